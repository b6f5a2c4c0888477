/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * fio's engine for disks of a Fip-see daemon: ioengine=external:.../fipsee.so. docs/guide/fio.md is for its users.
 *
 * Each job (thread or process) has a channel of its own, opened in init(), because without --thread fio forks after
 * setup(). fio's buffers are in memory shared with the daemon, so data is copied once, between them and the disk;
 * buffers of another origin (mem=) go through a bounce buffer.
 */
#define _GNU_SOURCE
#include "engine.h"

static void give_up(struct thread_data *td, struct engine *engine, const struct channel_error *error)
{
	engine->failed = error->number;
	fipsee_report(td, error);
}

static void fail(struct thread_data *td, struct engine *engine, int outcome)
{
	struct channel_error error;

	if (engine->failed)
		return;
	if (outcome == -EPROTO)
		channel_fail(&error, EPROTO, "the daemon broke the protocol: %s; the channel is closed",
			     engine->channel.queue.fault);
	else
		channel_fail(&error, -outcome, "%s", QUEUE_DISCONNECTED_TEXT);
	give_up(td, engine, &error);
}
/* Refuse a request without the daemon; reported once per job. */
static enum fio_q_status refuse(struct engine *engine, struct io_u *io_u, int number, const char *why)
{
	if (!engine->has_warned)
		log_err("fipsee: %llu bytes at %llu: %s\n", io_u->xfer_buflen, io_u->offset, why);
	engine->has_warned = true;
	io_u->error = (unsigned int)number;
	return FIO_Q_COMPLETED;
}

/* A piece of the bounce buffer for the request `tag`; allocated when first needed. NULL: `io_u` was refused. */
static uint8_t *bounce_of(struct thread_data *td, struct engine *engine, uint16_t tag, uint64_t length_bytes)
{
	struct channel_error error;

	if (!engine->bounce.base) {
		uint64_t piece_bytes = (td_max_bs(td) + 4095) / 4096 * 4096;

		if (channel_share(&engine->channel, piece_bytes * engine->channel.queue.depth, &engine->bounce, &error) != 0) {
			fipsee_report(td, &error);
			return NULL;
		}
		engine->bounce_bytes = piece_bytes;
	}
	return length_bytes > engine->bounce_bytes ? NULL : engine->bounce.base + tag * engine->bounce_bytes;
}

/* Where the data of `io_u` is for the daemon. False: it cannot be reached. */
static bool place(struct thread_data *td, struct engine *engine, struct io_u *io_u, uint16_t tag, uint64_t length_bytes,
		  struct fipsee_segment *segment)
{
	struct transfer *transfer = &engine->transfers[tag];
	uint64_t at_bytes = (uintptr_t)io_u->xfer_buf - (uintptr_t)engine->buffers.base;
	uint16_t region = engine->buffers.region;

	transfer->bounce = NULL;
	if (UNLIKELY(!engine->buffers.base || at_bytes >= engine->buffers.length_bytes ||
		     length_bytes > engine->buffers.length_bytes - at_bytes || at_bytes % FIPSEE_SECTOR_BYTES != 0)) {
		transfer->bounce = bounce_of(td, engine, tag, length_bytes);
		if (!transfer->bounce)
			return false;
		at_bytes = (uint64_t)(transfer->bounce - engine->bounce.base);
		region = engine->bounce.region;
		if (io_u->ddir == DDIR_WRITE)
			memcpy(transfer->bounce, io_u->xfer_buf, length_bytes);
	}
	segment->offset_sectors = (uint32_t)(at_bytes >> FIPSEE_SECTOR_SHIFT);
	segment->length_sectors = (uint16_t)(length_bytes >> FIPSEE_SECTOR_SHIFT);
	segment->region = region;
	return true;
}

static inline void build(const struct engine *engine, struct fipsee_request *request)
{
	const struct transfer *transfer = &engine->transfers[request->tag];
	const struct io_u *io_u = transfer->io_u;

	request->sector = ddir_rw(io_u->ddir) ? io_u->offset >> FIPSEE_SECTOR_SHIFT : 0;
	if (io_u->ddir == DDIR_READ || io_u->ddir == DDIR_WRITE) {
		request->operation = io_u->ddir == DDIR_READ ? FIPSEE_READ : FIPSEE_WRITE;
		request->flags = io_u->ddir == DDIR_READ ? 0 : engine->write_flags;
		request->segment_count = 1;
		request->segments[0] = transfer->segment;
	} else if (io_u->ddir == DDIR_TRIM) {
		request->operation = FIPSEE_DISCARD;
		request->length_sectors = io_u->xfer_buflen >> FIPSEE_SECTOR_SHIFT;
	} else {
		request->operation = FIPSEE_FLUSH;
	}
}

void fipsee_build(void *context, struct fipsee_request *request)
{
	build(context, request);
}

static enum fio_q_status fipsee_queue(struct thread_data *td, struct io_u *io_u)
{
	struct engine *engine = td->io_ops_data;
	struct queue *queue = &engine->channel.queue;
	bool has_data = io_u->ddir == DDIR_READ || io_u->ddir == DDIR_WRITE;
	struct fipsee_segment segment = { 0 };
	uint64_t length_bytes = io_u->xfer_buflen;
	uint16_t tag;

	fio_ro_check(td, io_u);
	if (UNLIKELY(engine->failed)) {
		io_u->error = (unsigned int)engine->failed;
		return FIO_Q_COMPLETED;
	}
	if (queue_free(queue) == 0)
		return FIO_Q_BUSY;
	tag = queue->free_tags[queue->free_count - 1];
	if (ddir_rw(io_u->ddir)) {
		if (UNLIKELY(length_bytes > (has_data ? engine->most_bytes : engine->most_range_bytes)))
			return refuse(engine, io_u, EMSGSIZE, "more than one request carries");
		if (UNLIKELY((length_bytes | io_u->offset) % FIPSEE_SECTOR_BYTES != 0))
			return refuse(engine, io_u, EINVAL, "disks are read and written in sectors of 512 bytes");
		if (has_data && UNLIKELY(!place(td, engine, io_u, tag, length_bytes, &segment)))
			return refuse(engine, io_u, ENOMEM, "no memory that the daemon reaches");
	} else if (!ddir_sync(io_u->ddir)) {
		return refuse(engine, io_u, EOPNOTSUPP, "no such operation");
	} else if (!engine->has_flush) {
		return FIO_Q_COMPLETED;		/* what was written is as durable as it gets */
	}
	engine->transfers[tag].io_u = io_u;
	engine->transfers[tag].segment = segment;
	build(engine, queue_stage(queue));
	engine->staged[engine->staged_count++] = io_u;
	return FIO_Q_QUEUED;
}

static int fipsee_commit(struct thread_data *td)
{
	struct engine *engine = td->io_ops_data;
	unsigned int index, count = engine->staged_count;
	struct timespec now;

	if (count == 0)
		return 0;
	engine->staged_count = 0;
	if (!fio_fill_issue_time(td)) {
		queue_submit(&engine->channel.queue);
		io_u_mark_submit(td, count);
		return 0;
	}
	fio_gettime(&now, NULL);
	queue_submit(&engine->channel.queue);
	/* The daemon works meanwhile; these are not looked at before getevents(). */
	for (index = 0; index < count; index++) {
		struct io_u *io_u = engine->staged[index];

		io_u->issue_time = now;
		io_u_queued(td, io_u);
	}
	if (td->o.read_iolog_file)
		td->last_issue = now;
	io_u_mark_submit(td, count);
	return 0;
}

static void finish_slowly(const struct transfer *transfer, uint16_t status)
{
	struct io_u *io_u = transfer->io_u;

	io_u->error = (unsigned int)fipsee_status_errno(status);
	if (status == FIPSEE_STATUS_OK && io_u->ddir == DDIR_READ)
		memcpy(io_u->xfer_buf, transfer->bounce, io_u->xfer_buflen);
}

static inline void finish(void *context, uint16_t tag, uint16_t status)
{
	struct engine *engine = context;
	const struct transfer *transfer = &engine->transfers[tag];

	if (UNLIKELY(status != FIPSEE_STATUS_OK || transfer->bounce))
		finish_slowly(transfer, status);
	engine->ready[engine->ready_count++] = transfer->io_u;
}

/* The daemon is gone: is there another? */
static bool recover(struct thread_data *td, struct engine *engine)
{
	struct channel_error error;
	int outcome = fipsee_reconnect(td, engine, &error);

	if (outcome != 0 && outcome != -ENOTCONN)
		give_up(td, engine, &error);
	return outcome == 0;
}

static int fipsee_getevents(struct thread_data *td, unsigned int min, unsigned int max,
			    const struct timespec fio_unused *timeout)
{
	struct engine *engine = td->io_ops_data;
	struct queue *queue = &engine->channel.queue;
	unsigned int left;

	engine->ready_first += engine->given_count;
	engine->given_count = 0;
	left = engine->ready_count - engine->ready_first;
	if (left < min || left == 0) {
		memmove(engine->ready, engine->ready + engine->ready_first, left * sizeof(*engine->ready));
		engine->ready_first = 0;
		engine->ready_count = left;
		for (;;) {
			int outcome = engine->failed ? -engine->failed : queue_reap(queue, finish, engine);

			if (outcome == 0 && engine->ready_count < min)
				outcome = queue_look_again(queue);
			else if (outcome == 0 && min == 0)
				outcome = queue_check_liveness(queue);
			if (UNLIKELY(outcome < 0)) {
				if (!engine->failed && outcome == -ENOTCONN && recover(td, engine))
					continue;
				fail(td, engine, outcome);
				return -engine->failed;
			}
			if (engine->ready_count >= min)
				break;
		}
		left = engine->ready_count;
	}
	engine->given_count = left < max ? left : max;
	return (int)engine->given_count;
}

static struct io_u *fipsee_event(struct thread_data *td, int event)
{
	const struct engine *engine = td->io_ops_data;

	return engine->ready[engine->ready_first + (unsigned int)event];
}

static int nothing_to_do(struct thread_data fio_unused *td, struct fio_file fio_unused *file)
{
	return 0;
}

__attribute__((visibility("default"))) struct ioengine_ops ioengine = {
	.name = "fipsee",
	.version = FIO_IOOPS_VERSION,
	.flags = FIO_DISKLESSIO | FIO_NOEXTEND | FIO_ASYNCIO_SETS_ISSUE_TIME,
	.setup = fipsee_setup,
	.init = fipsee_init,
	.queue = fipsee_queue,
	.commit = fipsee_commit,
	.getevents = fipsee_getevents,
	.event = fipsee_event,
	.cleanup = fipsee_cleanup,
	.open_file = nothing_to_do,
	.close_file = nothing_to_do,
	.invalidate = nothing_to_do,
	.unlink_file = nothing_to_do,
	.iomem_alloc = fipsee_iomem_alloc,
	.iomem_free = fipsee_iomem_free,
	.options = fipsee_options,
	.option_struct_size = sizeof(struct engine_options),
};
