/* SPDX-License-Identifier: GPL-2.0-only */
/* The state of one job: shared between job.c, which sets it up, and engine.c, which moves data. */
#ifndef FIPSEE_FIO_ENGINE_H
#define FIPSEE_FIO_ENGINE_H

#include "fio.h"

#include "channel.h"

#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)

struct engine_options {
	void *pad;			/* fio stores a pointer into the first word */
	char *disk;
	char *socket;
	unsigned int wait;
	unsigned int reconnect_s;
	unsigned int claim;
};

/* What is known of a request by its tag. Requests are never split or short: fio would fill a buffer anew before it sends
 * the rest of it, and its verify phase would miss what was written first. */
struct transfer {
	struct io_u *io_u;
	uint8_t *bounce;		/* where its data is, if not in fio's buffer */
	struct fipsee_segment segment;	/* the same, for the daemon */
};

struct engine {
	struct channel channel;
	struct channel_memory buffers;	/* fio's */
	struct channel_memory bounce;	/* `depth` pieces of `bounce_bytes` */
	uint64_t bounce_bytes;
	uint64_t most_bytes;		/* of one read or write */
	uint64_t most_range_bytes;	/* of one trim */
	uint16_t write_flags;
	bool has_flush;
	bool has_warned;
	int failed;			/* errno of the channel's end; 0 while it works */
	struct transfer *transfers;	/* by tag */
	struct io_u **staged;		/* queued and not committed */
	unsigned int staged_count;
	struct io_u **ready;		/* finished: those from ready_first on were not yet given to fio */
	unsigned int ready_first;
	unsigned int ready_count;
	unsigned int given_count;	/* of those, by the last getevents() */
};


extern struct fio_option fipsee_options[];

/* Fill in the channel's options for this job; `path` of `PATH_MAX` bytes is what they may point to. */
void fipsee_channel_options(struct thread_data *td, struct channel_options *wanted, char *path);

/* The request of a tag, from what is known of it. */
void fipsee_build(void *context, struct fipsee_request *request);

/*
 * The daemon is gone: find it again within reconnect= seconds and submit what has no answer. 0: go on. Otherwise a negative
 * errno, with `error`.
 */
int fipsee_reconnect(struct thread_data *td, struct engine *engine, struct channel_error *error);

int fipsee_setup(struct thread_data *td);
int fipsee_init(struct thread_data *td);
void fipsee_cleanup(struct thread_data *td);
int fipsee_iomem_alloc(struct thread_data *td, size_t length_bytes);
void fipsee_iomem_free(struct thread_data *td);

/* Say what went wrong and have the job end with it; 1. */
int fipsee_report(struct thread_data *td, const struct channel_error *error);

#endif /* FIPSEE_FIO_ENGINE_H */
