/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * One queue of an attached disk: stage requests, publish them in a burst, reap completions, wait for them. The hot path
 * is inline, allocates nothing and makes no system call; waiting for long is in queue.c.
 */
#ifndef FIPSEE_FIO_QUEUE_H
#define FIPSEE_FIO_QUEUE_H

#include <errno.h>
#include <string.h>

#include "stores.h"

#include "fipsee_pace.h"

#define QUEUE_DISCONNECTED_TEXT \
	"the daemon closed the connection; see its log; requests without an answer may or may not have been done"

/* How to wait for completions. */
enum wait_mode {
	WAIT_ADAPTIVE,			/* look for a while, then sleep on the doorbell */
	WAIT_PAUSE,			/* never sleep: PAUSE between two looks */
	WAIT_SPIN,			/* never sleep: nothing between two looks */
	WAIT_YIELD,			/* never sleep: yield between two looks */
	WAIT_SLEEP,			/* sleep on the doorbell at once */
};

enum tag_use {
	TAG_FREE,
	TAG_CALLER,
	TAG_INTERNAL,			/* an acknowledgement of ours, which the caller does not see */
};

struct queue {
	struct fipsee_call_writer requests;
	struct fipsee_reader completions;
	union fipsee_message *staged;	/* of `depth`, aligned to 64 bytes */
	uint32_t staged_count;
	uint32_t free_count;
	uint16_t *free_tags;		/* of `depth` */
	uint8_t *uses;			/* of `depth`: enum tag_use, by tag */
	uint32_t depth;
	uint32_t unacknowledged;	/* events the daemon waits to see acknowledged: bit per kind */
	uint32_t acknowledging;		/* of those, without a staged acknowledgement */
	uint64_t sector_count;		/* newest size known */
	struct fipsee_pace pace;
	/* Waiting. */
	enum wait_mode mode;
	uint32_t empty_looks;
	uint32_t looks_before_yield;
	int64_t started_ns;
	int64_t checked_ns;
	/* Doorbells, and the control socket: its hang-up is the daemon's end. */
	int daemon_doorbell;
	int our_doorbell;
	int control;
	const char *fault;		/* what the daemon got wrong, once it did */
};

/* Fill in the rest of the request `request->tag`, once more. */
typedef void (*queue_rebuild)(void *context, struct fipsee_request *request);

/* Called for each finished request with its tag and status, which is below FIPSEE_STATUS_COUNT. */
typedef void (*queue_done)(void *context, uint16_t tag, uint16_t status);

/* Take the daemon's advice, a word of choices, as far as this CPU can; before the first request. */
void queue_choose(struct queue *queue, uint32_t choices);
/* Make the tables for `depth` requests. 0 or -ENOMEM. */
int queue_init(struct queue *queue, uint32_t depth);
/* Choose how to wait; before the first wait. */
void queue_set_wait(struct queue *queue, enum wait_mode mode);
void queue_free_tables(struct queue *queue);

/*
 * The daemon is gone and another is there: continue with the rings and doorbells of `fresh`, which has at least our depth and
 * whose tables are freed, and publish every request without an answer again, under its tag.
 */
void queue_resume(struct queue *queue, struct queue *fresh, queue_rebuild rebuild, void *context);

/* Cold halves of the functions below. */
void queue_ring(struct queue *queue);
void queue_stage_acknowledgements(struct queue *queue);
void queue_take_event(struct queue *queue, struct fipsee_completions *reader);
int queue_look_slowly(struct queue *queue);
int queue_sleep(struct queue *queue);
int queue_fault(struct queue *queue, const char *what);

/* Has the daemon closed the connection, with nothing left to reap? -ENOTCONN if so, else 0. */
int queue_check_liveness(struct queue *queue);

/* The counter that paces calls; 0 where there is none. */
static inline uint64_t queue_ticks(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_rdtsc();
#else
	return 0;
#endif
}

/* Requests that can be staged now. */
static inline uint32_t queue_free(const struct queue *queue)
{
	return queue->free_count;
}

/* Requests staged or published and not reaped. */
static inline uint32_t queue_outstanding(const struct queue *queue)
{
	return queue->depth - queue->free_count;
}

/* A request of zeroes to fill in, with its tag set; only while queue_free() is not 0. */
static inline struct fipsee_request *queue_stage(struct queue *queue)
{
	uint16_t tag = queue->free_tags[--queue->free_count];
	struct fipsee_request *request = &queue->staged[queue->staged_count].request;

	/* The daemon's cache has its slot, which can be on its way until we publish: a seventh more requests at depth 64. */
	fipsee_writer_prefetch(&queue->requests.writer, queue->staged_count, queue->staged_count > 0);
	queue->staged_count++;
	memset(request, 0, sizeof(*request));
	request->tag = tag;
	queue->uses[tag] = TAG_CALLER;
	return request;
}

/* Publish what is staged in one burst, and wake the daemon if it sleeps. */
static inline void queue_submit(struct queue *queue)
{
	if (__builtin_expect(queue->acknowledging != 0, 0))
		queue_stage_acknowledgements(queue);
	if (queue->staged_count == 0)
		return;
	/* As many tags as calls that may be outstanding: it never is full. */
	(void)fipsee_call_publish_all(&queue->requests, queue->staged, queue->staged_count);
	queue->staged_count = 0;
	if (__builtin_expect(fipsee_writer_needs_doorbell(&queue->requests.writer), 0))
		queue_ring(queue);
	if (queue->requests.outstanding != 1) {
		fipsee_pace_interrupt(&queue->pace);
		return;
	}
	fipsee_reader_begin_run(&queue->completions);
	if (__builtin_expect(fipsee_pace_begin(&queue->pace, queue_ticks(), queue->completions.ring.cold), 0))
		fipsee_pace_apply(&queue->pace, &queue->requests.writer, &queue->completions);
}

static inline int queue_finish(struct queue *queue, struct fipsee_completion_entry entry, queue_done done, void *context)
{
	uint8_t use;

	if (__builtin_expect(entry.tag >= queue->depth || queue->uses[entry.tag] == TAG_FREE ||
			     fipsee_call_answered(&queue->requests) != FIPSEE_RING_OK, 0))
		return queue_fault(queue, "the tag of a completion that has no request outstanding");
	use = queue->uses[entry.tag];
	queue->uses[entry.tag] = TAG_FREE;
	queue->free_tags[queue->free_count++] = entry.tag;
	if (__builtin_expect(use == TAG_INTERNAL, 0))
		return 0;
	done(context, entry.tag, entry.status);
	return 1;
}

/* Hand every completion that is there to `done`; how many, or -EPROTO when the daemon broke the protocol. */
static inline int queue_reap(struct queue *queue, queue_done done, void *context)
{
	union fipsee_message message;
	int finished = 0;

	if (fipsee_pace_is_early(&queue->pace, queue_ticks()))
		return 0;
	while (queue->free_count < queue->depth && fipsee_reader_receive(&queue->completions, &message)) {
		const struct fipsee_completion_entry *entry;
		struct fipsee_completions reader;

		fipsee_completions_begin(&reader, &message);
		while ((entry = fipsee_completions_next(&reader)) != NULL) {
			int outcome = queue_finish(queue, *entry, done, context);

			if (__builtin_expect(outcome < 0, 0))
				return outcome;
			finished += outcome;
		}
		if (__builtin_expect(fipsee_completions_is_event(&reader), 0))
			queue_take_event(queue, &reader);
		if (__builtin_expect(reader.fault != NULL, 0))
			return queue_fault(queue, reader.fault);
	}
	if (finished > 0)
		queue->empty_looks = 0;
	return finished;
}

/*
 * Nothing was there and something must come: pause, yield or sleep, as the mode says. 0: look again. -ENOTCONN: the
 * daemon died or closed the channel.
 */
static inline int queue_look_again(struct queue *queue)
{
	if (queue->empty_looks < queue->looks_before_yield) {
		queue->empty_looks++;
#if defined(__x86_64__)
		__builtin_ia32_pause();
#endif
		return 0;
	}
	return queue_look_slowly(queue);
}

#endif /* FIPSEE_FIO_QUEUE_H */
