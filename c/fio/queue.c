/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#define _GNU_SOURCE
#include "queue.h"

#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* As crates/ring/src/wait/backoff.rs: pauses before the first yield, about ten microseconds. Longer, and a daemon on the same
 * CPU waits for us to see that nothing can come while we run. */
#define LOOKS_BEFORE_YIELD 256
/* A client that never sleeps yields once in this many looks after that. */
#define PAUSES_PER_YIELD 64
#define SPINS_PER_YIELD 4096
/* Adaptive mode looks this long for an answer before it sleeps: a sleep and a wake-up cost up to 27 us. */
#define LOOK_NS 1000000
/* How often a client that looks asks the kernel whether the daemon is there; its end must be noticed within 100 ms. */
#define LIVENESS_NS 10000000
/* Rings of our doorbell that are taken before we look at the ring again. */
#define RINGS_AT_ONCE 64

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* How fast the counter runs, measured over 5 ms; 0 where there is none. */
static uint32_t ticks_per_us(void)
{
	int64_t from_ns = now_ns(), to_ns;
	uint64_t from = queue_ticks();

	do {
		to_ns = now_ns();
	} while (to_ns - from_ns < 5000000);
	return (uint32_t)((queue_ticks() - from) * 1000 / (uint64_t)(to_ns - from_ns));
}

int queue_init(struct queue *queue, uint32_t depth)
{
	uint32_t tag;

	queue->depth = depth;
	queue->free_count = depth;
	queue->staged_count = 0;
	queue->unacknowledged = 0;
	queue->acknowledging = 0;
	queue->fault = NULL;
	fipsee_pace_init(&queue->pace, ticks_per_us());
	queue->staged = aligned_alloc(FIPSEE_SLOT_BYTES, (size_t)depth * sizeof(*queue->staged));
	queue->free_tags = malloc((size_t)depth * sizeof(*queue->free_tags));
	queue->uses = calloc(depth, sizeof(*queue->uses));
	if (!queue->staged || !queue->free_tags || !queue->uses) {
		queue_free_tables(queue);
		return -ENOMEM;
	}
	for (tag = 0; tag < depth; tag++)
		queue->free_tags[tag] = (uint16_t)(depth - 1 - tag);
	return 0;
}

void queue_choose(struct queue *queue, uint32_t choices)
{
	choices = stores_possible_choices(choices);
	fipsee_writer_choose(&queue->requests.writer, choices);
	fipsee_reader_choose(&queue->completions, choices);
	fipsee_pace_choose(&queue->pace, choices);
}

void queue_set_wait(struct queue *queue, enum wait_mode mode)
{
	bool pauses = mode == WAIT_ADAPTIVE || mode == WAIT_PAUSE;

	queue->mode = mode;
	queue->empty_looks = 0;
	/* On a single CPU nothing can come while we run. */
	queue->looks_before_yield = pauses && sysconf(_SC_NPROCESSORS_ONLN) != 1 ? LOOKS_BEFORE_YIELD : 0;
	queue->started_ns = 0;
	queue->checked_ns = 0;
}

void queue_free_tables(struct queue *queue)
{
	free(queue->staged);
	free(queue->free_tags);
	free(queue->uses);
	queue->staged = NULL;
	queue->free_tags = NULL;
	queue->uses = NULL;
}

void queue_resume(struct queue *queue, struct queue *fresh, queue_rebuild rebuild, void *context)
{
	uint32_t tag;

	queue->requests = fresh->requests;
	queue->completions = fresh->completions;
	queue->daemon_doorbell = fresh->daemon_doorbell;
	queue->our_doorbell = fresh->our_doorbell;
	queue->control = fresh->control;
	queue->sector_count = fresh->sector_count;
	queue->pace = fresh->pace;
	queue_free_tables(fresh);
	/* The new daemon does not know which events the old one sent. */
	queue->unacknowledged = 0;
	queue->acknowledging = 0;
	queue->staged_count = 0;
	queue->empty_looks = 0;
	queue->started_ns = 0;
	for (tag = 0; tag < queue->depth; tag++) {
		if (queue->uses[tag] == TAG_CALLER) {
			struct fipsee_request *request = &queue->staged[queue->staged_count++].request;

			memset(request, 0, sizeof(*request));
			request->tag = (uint16_t)tag;
			rebuild(context, request);
		} else if (queue->uses[tag] == TAG_INTERNAL) {
			queue->uses[tag] = TAG_FREE;
			queue->free_tags[queue->free_count++] = (uint16_t)tag;
		}
	}
	queue_submit(queue);
}

int queue_fault(struct queue *queue, const char *what)
{
	queue->fault = what;
	return -EPROTO;
}

void queue_ring(struct queue *queue)
{
	uint64_t one = 1;
	ssize_t written;

	do {
		written = write(queue->daemon_doorbell, &one, sizeof(one));
	} while (written < 0 && errno == EINTR);
	/* A full counter means that it has been rung already; a daemon that is gone is noticed where we wait. */
}

void queue_stage_acknowledgements(struct queue *queue)
{
	uint32_t kind;

	for (kind = FIPSEE_KIND_RESIZE; kind <= FIPSEE_KIND_DETACH; kind++) {
		struct fipsee_request *request;

		if (!(queue->acknowledging & 1U << kind) || queue->free_count == 0)
			continue;
		request = queue_stage(queue);
		request->operation = FIPSEE_ACK_EVENT;
		request->aux = kind;
		queue->uses[request->tag] = TAG_INTERNAL;
		queue->acknowledging &= ~(1U << kind);
		/* Once it is published the daemon may send the next. */
		queue->unacknowledged &= ~(1U << kind);
	}
}

void queue_take_event(struct queue *queue, struct fipsee_completions *reader)
{
	const struct fipsee_event *event = fipsee_completions_event(reader, queue->unacknowledged);
	uint32_t bit;

	if (!event)
		return;
	bit = 1U << event->kind;
	if (event->kind == FIPSEE_KIND_RESIZE)
		queue->sector_count = event->sector_count;
	queue->unacknowledged |= bit;
	queue->acknowledging |= bit;
	queue_submit(queue);
}

int queue_check_liveness(struct queue *queue)
{
	struct pollfd control = { .fd = queue->control, .events = POLLRDHUP };

	if (poll(&control, 1, 0) <= 0 || !(control.revents & (POLLHUP | POLLRDHUP | POLLERR | POLLNVAL)))
		return 0;
	/* What the daemon published before it died still counts. */
	return fipsee_reader_has_message(&queue->completions) ? 0 : -ENOTCONN;
}

/*
 * Drain our doorbell: false when the daemon has closed its end. If the daemon rings faster than we read, some rings are
 * left, which wake us once more; a correct one rings once each time that we announced sleep.
 */
static bool drain(int doorbell)
{
	uint8_t bytes[8];
	int taken;

	for (taken = 0; taken < RINGS_AT_ONCE; taken++) {
		ssize_t received = recv(doorbell, bytes, sizeof(bytes), MSG_DONTWAIT);

		if (received == 0 || (received < 0 && errno != EINTR && errno != EAGAIN))
			return false;
		if (received < 0 && errno == EAGAIN)
			return true;
	}
	return true;
}

int queue_sleep(struct queue *queue)
{
	struct pollfd ready[2] = { { .fd = queue->our_doorbell, .events = POLLIN }, { .fd = queue->control, .events = POLLRDHUP } };
	bool is_alive;

	if (!fipsee_reader_arm_and_work_remains(&queue->completions))
		(void)poll(ready, 2, -1);	/* a signal wakes as well as a ring: we look again */
	fipsee_reader_disarm(&queue->completions);
	queue->empty_looks = 0;
	is_alive = drain(queue->our_doorbell) && !(ready[1].revents & (POLLHUP | POLLRDHUP | POLLERR | POLLNVAL));
	return is_alive || fipsee_reader_has_message(&queue->completions) ? 0 : -ENOTCONN;
}

int queue_look_slowly(struct queue *queue)
{
	int64_t time_ns;

	switch (queue->mode) {
	case WAIT_SLEEP:
		return queue_sleep(queue);
	case WAIT_PAUSE:
#if defined(__x86_64__)
		__builtin_ia32_pause();
#endif
		if (++queue->empty_looks % PAUSES_PER_YIELD != 0)
			return 0;
		break;
	case WAIT_SPIN:
		if (++queue->empty_looks % SPINS_PER_YIELD != 0)
			return 0;
		break;
	case WAIT_YIELD:
		queue->empty_looks++;
		break;
	case WAIT_ADAPTIVE:
		break;
	}
	sched_yield();
	time_ns = now_ns();
	if (queue->started_ns == 0 || queue->empty_looks == queue->looks_before_yield) {
		queue->started_ns = time_ns;
		queue->checked_ns = time_ns;
	}
	if (queue->mode == WAIT_ADAPTIVE) {
		queue->empty_looks = queue->looks_before_yield + 1;
		return time_ns - queue->started_ns >= LOOK_NS ? queue_sleep(queue) : 0;
	}
	if (time_ns - queue->checked_ns < LIVENESS_NS)
		return 0;
	queue->checked_ns = time_ns;
	return queue_check_liveness(queue);
}
