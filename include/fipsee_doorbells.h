/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * libfipsee: how often a program and the daemon woke each other. fipsee_client.h and fipsee_port.h include this header.
 *
 * A side that polls is not woken: the counts say what sleeping costs, and what a notification policy (fipsee_options.notify) saves.
 * They are of the program's end of a queue. What the daemon counts at its end is in its metrics and in `fipsee stat`.
 *
 * Errors, threads and fork() are as in fipsee_client.h: a count is taken by the thread that uses the queue.
 */
#ifndef FIPSEE_DOORBELLS_H
#define FIPSEE_DOORBELLS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct fipsee_queue;
struct fipsee_caller;
struct fipsee_port;

/* Since the queue was opened first: fipsee_reconnect does not begin anew. The structure may grow at its end. */
struct fipsee_doorbell_counts {
	size_t size_bytes;		/* in: sizeof(struct fipsee_doorbell_counts) */
	uint64_t doorbells;		/* times that the daemon slept and was woken */
	uint64_t suppressed;		/* times that it slept and was not woken, because of fipsee_options.notify */
	uint64_t wakeups;		/* times that the program's doorbell was found rung, after sleeping or by fipsee_woken */
	uint64_t spurious;		/* of these, times that there was no completion, reply or frame */
};

/* Of a queue of a disk. Set counts->size_bytes first; the library fills as much. Never asks the daemon, never blocks. */
int fipsee_get_doorbell_counts(const struct fipsee_queue *queue, struct fipsee_doorbell_counts *counts);

/* The same of a caller, whose server is in the daemon's place. `suppressed` is 0. */
int fipsee_caller_get_doorbell_counts(const struct fipsee_caller *caller, struct fipsee_doorbell_counts *counts);

/* The same of a port, of its two queues together: one for frames that are sent and given back, one for those that come. */
int fipsee_port_get_doorbell_counts(const struct fipsee_port *port, struct fipsee_doorbell_counts *counts);

#ifdef __cplusplus
}
#endif

#endif /* FIPSEE_DOORBELLS_H */
