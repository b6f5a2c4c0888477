/*
 * An attachment as Promela: attach, submit, detach, death of either side, restart of the daemon, resubmission. `cargo xtask
 * models` checks it with spin; a comment names each part's place in the code.
 *
 * What must hold, whatever the order of events:
 *   - each request completes exactly once to the caller: the assertion where the client reaps, and `ends` below;
 *   - no completion comes for what was not issued, or was issued before a restart under the same tag: the same assertion;
 *   - memory is unmapped only when nothing in flight names it: the assertions of the daemon;
 *   - no process waits for ever: spin finds no state without a way out but the two `end` labels.
 *
 * A model that passes says little until it is seen to fail. Each of these macros must make it fail in `cargo xtask models`:
 *   RESUBMIT_WITHOUT_CLEARING  the next attachment has the rings of the last: what is there comes once more
 *   FORGET_TO_RESUBMIT         after a restart the client waits for what the ended daemon had
 *   UNMAP_BEFORE_DRAIN         a hang-up unmaps at once
 *   DETACH_WITHOUT_DRAIN       DETACH is answered while requests are in flight
 *   REAP_AFTER_RESUBMIT        the client submits again before it takes what the ended daemon had published, and takes it then
 */
#define DEPTH 2			/* requests outstanding at most, tags 0 and 1 */
#ifndef REQUESTS
#define REQUESTS 3		/* requests that the caller has: more than the depth, so that a tag is used again */
#endif
#ifndef RESTARTS
#define RESTARTS 2		/* deaths and stops of the daemon */
#endif
#define LINKS (RESTARTS + 1)	/* connections, each an attachment with memory of its own */

#ifdef RESUBMIT_WITHOUT_CLEARING
#define RING(link) 0
#else
#define RING(link) (link)
#endif

#ifdef CLIENT_DIES		/* the client may die at any moment: everything above but the completeness holds then, too */
#define CLIENT_MAY_DIE true
#else
#define CLIENT_MAY_DIE false
#endif

mtype = { ATTACH, ATTACHED, DETACH, DETACHED };

/* Of each connection: its socket, both ways, and the rings of its region. A message of a ring is a tag, and, for the
 * assertions only, the number of the request. */
chan asked[LINKS] = [2] of { mtype };
chan answered[LINKS] = [2] of { mtype };
chan requests[LINKS] = [DEPTH] of { byte, byte };
chan completions[LINKS] = [DEPTH] of { byte, byte };
bool gone[LINKS];		/* the daemon has closed its end, or died */
bool hung_up[LINKS];		/* the client has closed its end, or died */

byte links = 0;			/* connections made so far */
bool running = false;		/* a daemon listens */
bool client_ended = false;
byte restarts = 0;

byte number_of[DEPTH];		/* the client's table: 0, or the request outstanding under that tag */
byte issued = 0;
byte finished = 0;

/* crates/block/src/client: connection.rs, queue.rs, queue/recovery.rs */
active proctype client()
{
	byte mine, tag, number;

connect:
	atomic {
		running -> mine = links; links++;
	}
	asked[mine]!ATTACH;
	if
	:: answered[mine]?ATTACHED
	:: gone[mine] -> goto connect
	fi;
#ifndef FORGET_TO_RESUBMIT
	/* Queue::resume: what has no completion is published again, under its tag. */
	tag = 0;
	do
	:: tag < DEPTH ->
		if
		:: number_of[tag] != 0 -> requests[RING(mine)]!tag, number_of[tag]
		:: else
		fi;
		tag++
	:: else -> break
	od;
#endif
#ifdef REAP_AFTER_RESUBMIT
	do
	:: mine > 0 && completions[mine - 1]?[tag, number] ->
		completions[mine - 1]?tag, number;
		assert(number_of[tag] == number);
		number_of[tag] = 0;
		finished++
	:: else -> break
	od;
#endif
	do
	:: issued < REQUESTS && (number_of[0] == 0 || number_of[1] == 0) ->
		/* Queue::stage and submit. */
		atomic {
			if
			:: number_of[0] == 0 -> tag = 0
			:: number_of[1] == 0 -> tag = 1
			fi;
			issued++;
			number_of[tag] = issued;
		}
		requests[RING(mine)]!tag, number_of[tag]
	:: completions[RING(mine)]?tag, number ->
		/* Queue::finish: a tag with a request outstanding; the number says that it is this one. */
		assert(number != 0 && number_of[tag] == number);
		number_of[tag] = 0;
		finished++
#ifdef REAP_AFTER_RESUBMIT
	:: gone[mine] && finished < REQUESTS -> goto connect
#else
	/* Queue::check_liveness: what was published before the end still counts. */
	:: gone[mine] && empty(completions[RING(mine)]) && finished < REQUESTS -> goto connect
#endif
	:: finished == REQUESTS -> break
#ifdef CLIENT_DIES
	:: goto over
#endif
	od;
	asked[mine]!DETACH;
	if
	:: answered[mine]?DETACHED
	:: gone[mine]
	fi;
over:
	hung_up[mine] = true;
	client_ended = true;
end_client:
	assert(finished <= issued)
}

byte in_flight = 0;		/* requests that the disk works on */
byte doing[DEPTH];		/* their numbers, by tag */
bool mapped = false;

/* A process that dies loses its mappings and its work. */
inline die()
{
	d_step {
		restarts++;
		running = false;
		mapped = false;
		in_flight = 0;
		doing[0] = 0;
		doing[1] = 0;
		tag = 0;
		do
		:: tag < links -> gone[tag] = true; tag++
		:: else -> break
		od;
		tag = 0;
		number = 0
	}
}

/* crates/serve: session/mod.rs, worker.rs */
active proctype daemon()
{
	byte served = 0;	/* connections accepted */
	byte here, tag, number;
	bool leaving, abandoned, stopping;

start:
	atomic {
		leaving = false;
		abandoned = false;
		stopping = false;
		served = links;
		running = true;
	}
listen:
	do
	:: served < links -> here = served; served++; break
	:: restarts < RESTARTS && !client_ended -> die(); goto start
	:: client_ended && served == links -> goto end_daemon
	od;
	if
	:: asked[here]?ATTACH -> mapped = true; answered[here]!ATTACHED
	:: hung_up[here] -> goto listen
	:: restarts < RESTARTS -> die(); goto start
	fi;
	do
	/* A worker takes a request, unless its client has hung up. */
	:: atomic { !abandoned && nempty(requests[RING(here)]) ->
			requests[RING(here)]?tag, number;
			assert(doing[tag] == 0);
			doing[tag] = number;
			in_flight++;
		}
	/* The disk has moved the data, to or from the client's memory, and the worker answers. There always is a slot. */
	:: in_flight > 0 ->
		atomic {
			if
			:: doing[0] != 0 -> tag = 0
			:: doing[1] != 0 -> tag = 1
			fi;
			assert(mapped);
			assert(nfull(completions[RING(here)]));
			completions[RING(here)]!tag, doing[tag];
			doing[tag] = 0;
			in_flight--;
		}
	:: asked[here]?DETACH -> leaving = true
	/* SIGTERM: accept no client, finish what is published, and say so. */
	:: restarts < RESTARTS && !stopping && !leaving && !abandoned -> running = false; stopping = true; leaving = true
	:: hung_up[here] && !abandoned -> abandoned = true
#ifdef DETACH_WITHOUT_DRAIN
	:: leaving ->
#else
	:: leaving && !abandoned && empty(requests[RING(here)]) && in_flight == 0 ->
#endif
		assert(in_flight == 0);
		mapped = false;
		answered[here]!DETACHED;
		gone[here] = true;
		break
#ifdef UNMAP_BEFORE_DRAIN
	:: abandoned ->
#else
	:: abandoned && in_flight == 0 ->
#endif
		assert(in_flight == 0);
		mapped = false;
		gone[here] = true;
		break
	:: restarts < RESTARTS -> die(); goto start
	od;
	leaving = false;
	abandoned = false;
	if
	:: stopping -> stopping = false; die(); goto start
	:: else -> goto listen
	fi;
end_daemon:
	running = false
}

/* A client that does not die finishes: every process is given its turn. */
ltl ends { <> (client_ended && (finished == REQUESTS || CLIENT_MAY_DIE)) }
