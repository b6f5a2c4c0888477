/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A client of a Fip-see daemon in C: attaches to one disk with one queue, shares memory with it, detaches.
 * docs/protocol.md says what is exchanged; crates/block/src/client is the same in Rust. Requests are in queue.h.
 *
 * The daemon is trusted with the data and not with memory: what it says is copied once, checked, then used. A channel
 * belongs to one thread at a time and does not survive fork(2).
 */
#ifndef FIPSEE_FIO_CHANNEL_H
#define FIPSEE_FIO_CHANNEL_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "queue.h"

/* Why something failed. */
struct channel_error {
	int number;			/* errno, positive */
	char text[640];			/* what was wrong and what to do, without a newline */
};

/* What an attachment that may write claims against other writers. */
enum channel_claim {
	CLAIM_NONE,			/* nothing: refused while another client claims to be the sole writer */
	CLAIM_SOLE_WRITER,		/* no other client is to write meanwhile */
	CLAIM_IGNORE,			/* write although another client claims that */
};

struct channel_options {
	const char *socket_path;
	const char *disk;		/* name of the export */
	uint32_t depth;			/* requests outstanding, at least 1; the daemon may grant fewer */
	bool read_only;			/* the daemon refuses writes */
	enum channel_claim claim;	/* of one that may write */
	enum wait_mode wait;
};

/* Memory of ours that the daemon has mapped: the data of requests moves between it and the disk. */
struct channel_memory {
	uint8_t *base;			/* NULL: none */
	uint64_t length_bytes;
	uint16_t region;		/* id on the wire */
	int file;			/* kept, to be handed over again */
};

/* An attached disk. */
struct channel {
	int control;			/* socket to the daemon */
	uint8_t *region;		/* rings, mapped */
	uint64_t region_bytes;
	uint64_t features;		/* in force, FIPSEE_FEATURE_* */
	struct fipsee_block_info info;	/* checked */
	struct queue queue;
	uint64_t regions_in_use;	/* bit per id; bit 0 is the pool */
};

/*
 * Where the daemon listens by default: FIPSEE_SOCKET; else the user's own daemon below XDG_RUNTIME_DIR if
 * it is there; else the system's. Written into `path` of `path_bytes`.
 */
void channel_default_socket(char *path, size_t path_bytes);

/* Attach. 0, or a negative errno with `error` filled in; then there is nothing to close. */
int channel_open(struct channel *channel, const struct channel_options *options, struct channel_error *error);

/*
 * The daemon is gone: attach once more, to the same disk or not at all, hand over the `count` memories that have a base, and
 * submit every request without an answer again. 0, or a negative errno with `error`; then the channel is as it was.
 */
int channel_reopen(struct channel *channel, const struct channel_options *options, struct channel_memory *const *memories,
		   unsigned int count, queue_rebuild rebuild, void *context, struct channel_error *error);

/*
 * Detach: in order, so that the daemon has released us when this returns, if nothing is outstanding and it is there; at
 * once otherwise. Unmaps the rings; memory is the caller's to unshare before, or to unmap after.
 */
void channel_close(struct channel *channel);

/* Make new memory of `length_bytes`, rounded up to pages, and hand it over. 0, or a negative errno with `error`. */
int channel_share(struct channel *channel, uint64_t length_bytes, struct channel_memory *memory,
		  struct channel_error *error);

/* Take memory back and unmap it. The daemon is not asked while requests are outstanding or when it is gone. */
void channel_unshare(struct channel *channel, struct channel_memory *memory);

/* Fill in `error`; returns -number. */
int channel_fail(struct channel_error *error, int number, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif /* FIPSEE_FIO_CHANNEL_H */
