/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * fio's engine for disks of a Fip-see daemon: ioengine=external:.../fipsee.so. docs/guide/fio.md is for its users.
 *
 * Each job (thread or process) has a channel of its own, opened in init(), because without --thread fio forks after
 * setup(). fio's buffers lie in memory shared with the daemon, so data is copied once, between them and the disk;
 * buffers of another origin (mem=) go through a bounce buffer.
 */
#define _GNU_SOURCE
#include "fio.h"
#include "optgroup.h"

#include "channel.h"

#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)

struct engine_options {
	void *pad;			/* fio stores a pointer into the first word */
	char *disk;
	char *socket;
	unsigned int wait;
};

/* What is known of a request by its tag. */
struct transfer {
	struct io_u *io_u;
	uint8_t *bounce;		/* where its data is, if not in fio's buffer */
	uint64_t length_bytes;		/* asked for now; less than fio wants when that is more than one request takes */
	uint64_t left_bytes;		/* of what fio wants, beyond that: fio asks again for it */
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

static struct fio_option options[] = {
	{
		.name = "disk",
		.lname = "Fip-see disk",
		.type = FIO_OPT_STR_STORE,
		.off1 = offsetof(struct engine_options, disk),
		.help = "Name of the disk, as fipsee ls shows it (default: filename)",
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{
		.name = "socket",
		.lname = "Fip-see socket",
		.type = FIO_OPT_STR_STORE,
		.off1 = offsetof(struct engine_options, socket),
		.help = "Socket of the daemon (default: FIPSEE_SOCKET, else the user's or the system's daemon)",
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{
		.name = "wait",
		.lname = "Fip-see way to wait",
		.type = FIO_OPT_STR,
		.off1 = offsetof(struct engine_options, wait),
		.help = "How to wait for completions",
		.def = "adaptive",
		.posval = {
			{ .ival = "adaptive", .oval = WAIT_ADAPTIVE, .help = "Look for a millisecond, then sleep" },
			{ .ival = "poll", .oval = WAIT_POLL, .help = "Never sleep" },
			{ .ival = "sleep", .oval = WAIT_SLEEP, .help = "Sleep at once" },
		},
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{ .name = NULL },
};

static const char *disk_name(const struct thread_data *td)
{
	const struct engine_options *given = td->eo;

	return given->disk ? given->disk : td->o.filename;
}

static int report(struct thread_data *td, const struct channel_error *error)
{
	log_err("fipsee: %s\n", error->text);
	td_verror(td, error->number, "fipsee");
	return 1;
}

static int open_channel(struct thread_data *td, struct channel *channel, uint32_t depth, struct channel_error *error)
{
	const struct engine_options *given = td->eo;
	char path[PATH_MAX];
	struct channel_options wanted = {
		.socket_path = given->socket,
		.disk = disk_name(td),
		.depth = depth < FIPSEE_MAX_DEPTH ? depth : FIPSEE_MAX_DEPTH,
		.read_only = !td_write(td) && !td_trim(td),
		.wait = (enum wait_mode)given->wait,
	};

	if (!wanted.disk)
		return channel_fail(error, EINVAL, "no disk is named; say filename=DISK or disk=DISK");
	if (!wanted.socket_path) {
		channel_default_socket(path, sizeof(path));
		wanted.socket_path = path;
	}
	return channel_open(channel, &wanted, error);
}

/* Can the disk do what the job wants? 0, or a negative errno with `error`. */
static int check_job(struct thread_data *td, const struct fipsee_block_info *info, struct channel_error *error)
{
	const struct thread_options *o = &td->o;
	const char *disk = disk_name(td);
	unsigned int block = info->block_bytes;

	if ((td_write(td) || td_trim(td)) && !(info->capabilities & FIPSEE_CAPABILITY_WRITE))
		return channel_fail(error, EROFS, "disk '%s' is read-only, but the job writes; use rw=read or rw=randread", disk);
	if ((td_trim(td) || o->trim_percentage) && !(info->capabilities & FIPSEE_CAPABILITY_DISCARD))
		return channel_fail(error, EOPNOTSUPP, "disk '%s' cannot discard, but the job trims", disk);
	if (o->sync_io && td_write(td) &&
	    (info->capabilities & (FIPSEE_CAPABILITY_FLUSH | FIPSEE_CAPABILITY_FUA)) == FIPSEE_CAPABILITY_FLUSH)
		return channel_fail(error, EOPNOTSUPP, "disk '%s' cannot write durably (no FUA); use fsync=1 instead of sync=1",
				    disk);
	for_each_rw_ddir(ddir) {
		bool is_used = ddir == DDIR_READ ? td_read(td) : ddir == DDIR_WRITE ? td_write(td) : td_trim(td);

		if (is_used && (o->min_bs[ddir] % block != 0 || o->max_bs[ddir] % block != 0 || o->ba[ddir] % block != 0 ||
				o->bs_unaligned))
			return channel_fail(error, EINVAL, "disk '%s' has blocks of %u bytes, but the job's bs, bsrange or "
					    "blockalign is no multiple of that; use bs=%u or a multiple", disk, block, block);
	}
	if (o->start_offset % block != 0 && !o->start_offset_percent)
		return channel_fail(error, EINVAL, "disk '%s' has blocks of %u bytes, but offset=%llu is no multiple of that",
				    disk, block, o->start_offset);
	return 0;
}

static struct ioengine_ops with_foreign_memory;

/* fio asks once per job for the size of its files, before it forks. */
static int fipsee_setup(struct thread_data *td)
{
	struct channel_error error;
	struct channel channel;
	struct fio_file *file;
	int outcome;

	if (strcmp(fio_version_string, FIPSEE_FIO_VERSION) != 0) {
		log_err("fipsee: this engine was built for %s, but this is %s; build it anew with cargo xtask dist\n",
			FIPSEE_FIO_VERSION, fio_version_string);
		return 1;
	}
	if (td->files_index > 1) {
		channel_fail(&error, EINVAL, "a job uses one disk; give each of the %u its own job", td->files_index);
		return report(td, &error);
	}
	if (td->o.io_submit_mode == IO_MODE_OFFLOAD) {
		channel_fail(&error, EOPNOTSUPP, "fio does not load external engines for io_submit_mode=offload; use inline");
		return report(td, &error);
	}
	outcome = open_channel(td, &channel, 1, &error);
	if (outcome == 0) {
		outcome = check_job(td, &channel.info, &error);
		channel_close(&channel);
	}
	if (outcome != 0)
		return report(td, &error);
	if (td->files_index == 0) {
		/* fio leaves the second of two jobs with one file without it. */
		add_file(td, disk_name(td), 0, 0);
		td->o.nr_files = td->o.nr_files ? td->o.nr_files : 1;
		td->o.open_files++;
	}
	file = td->files[0];
	file->filetype = FIO_TYPE_BLOCK;	/* fio does not create, extend or unlink those */
	file->real_file_size = channel.info.sector_count * FIPSEE_SECTOR_BYTES;
	if (fio_option_is_set(&td->o, mem_type) && td->io_ops->iomem_alloc) {
		/* fio refuses mem= with an engine that offers memory, so for this job we offer none. */
		with_foreign_memory = *td->io_ops;
		with_foreign_memory.iomem_alloc = NULL;
		with_foreign_memory.iomem_free = NULL;
		td->io_ops = &with_foreign_memory;
	}
	return 0;
}

static void free_engine(struct engine *engine)
{
	free(engine->transfers);
	free(engine->staged);
	free(engine->ready);
	free(engine);
}

static int fipsee_init(struct thread_data *td)
{
	struct engine *engine = calloc(1, sizeof(*engine));
	struct channel_error error;
	const struct fipsee_block_info *info;
	uint32_t depth;
	uint64_t most_sectors;

	if (!engine) {
		channel_fail(&error, ENOMEM, "no memory");
		return report(td, &error);
	}
	if (open_channel(td, &engine->channel, td->o.iodepth, &error) != 0) {
		free(engine);
		return report(td, &error);
	}
	depth = engine->channel.queue.depth;
	engine->transfers = calloc(depth, sizeof(*engine->transfers));
	engine->staged = calloc(depth, sizeof(*engine->staged));
	/* A finished request leaves its tag at once and stays here until fio asks. */
	engine->ready = calloc(td->o.iodepth > depth ? td->o.iodepth : depth, sizeof(*engine->ready));
	if (!engine->transfers || !engine->staged || !engine->ready) {
		channel_close(&engine->channel);
		free_engine(engine);
		channel_fail(&error, ENOMEM, "no memory for a queue of depth %u", depth);
		return report(td, &error);
	}
	if (depth < td->o.iodepth)
		log_info("fipsee: the daemon grants %u requests at a time of the %u of iodepth=; its max_depth limits them\n", depth,
			 td->o.iodepth);
	info = &engine->channel.info;
	most_sectors = info->max_transfer_bytes / FIPSEE_SECTOR_BYTES;
	if (most_sectors > UINT16_MAX)
		most_sectors = UINT16_MAX;
	engine->most_bytes = most_sectors * FIPSEE_SECTOR_BYTES / info->block_bytes * info->block_bytes;
	engine->most_range_bytes = (uint64_t)info->max_range_sectors * FIPSEE_SECTOR_BYTES / info->block_bytes * info->block_bytes;
	engine->has_flush = info->capabilities & FIPSEE_CAPABILITY_FLUSH;
	if (td->o.sync_io && info->capabilities & FIPSEE_CAPABILITY_FUA)
		engine->write_flags = FIPSEE_FLAG_FUA;
	td->io_ops_data = engine;
	return 0;
}

static void fipsee_cleanup(struct thread_data *td)
{
	struct engine *engine = td->io_ops_data;

	if (!engine)
		return;
	channel_unshare(&engine->channel, &engine->bounce);
	channel_close(&engine->channel);
	free_engine(engine);
	td->io_ops_data = NULL;
}

static int fipsee_iomem_alloc(struct thread_data *td, size_t length_bytes)
{
	struct engine *engine = td->io_ops_data;
	struct channel_error error;

	if (channel_share(&engine->channel, length_bytes, &engine->buffers, &error) != 0)
		return report(td, &error);
	td->orig_buffer = (char *)engine->buffers.base;
	return 0;
}

static void fipsee_iomem_free(struct thread_data *td)
{
	struct engine *engine = td->io_ops_data;

	if (engine)
		channel_unshare(&engine->channel, &engine->buffers);
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
	engine->failed = error.number;
	report(td, &error);
}

/* Refuse a request without the daemon; said once per job. */
static enum fio_q_status refuse(struct engine *engine, struct io_u *io_u, int number, const char *why)
{
	if (!engine->has_warned)
		log_err("fipsee: %llu bytes at %llu: %s\n", io_u->xfer_buflen, io_u->offset, why);
	engine->has_warned = true;
	io_u->error = (unsigned int)number;
	return FIO_Q_COMPLETED;
}

/* A piece of the bounce memory for the request `tag`; made when it is first needed. NULL: `io_u` was refused. */
static uint8_t *bounce_of(struct thread_data *td, struct engine *engine, uint16_t tag, uint64_t length_bytes)
{
	struct channel_error error;

	if (!engine->bounce.base) {
		uint64_t most_bytes = td_max_bs(td) < engine->most_bytes ? td_max_bs(td) : engine->most_bytes;
		uint64_t piece_bytes = (most_bytes + 4095) / 4096 * 4096;

		if (channel_share(&engine->channel, piece_bytes * engine->channel.queue.depth, &engine->bounce, &error) != 0) {
			report(td, &error);
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

static enum fio_q_status fipsee_queue(struct thread_data *td, struct io_u *io_u)
{
	struct engine *engine = td->io_ops_data;
	struct queue *queue = &engine->channel.queue;
	bool has_data = io_u->ddir == DDIR_READ || io_u->ddir == DDIR_WRITE;
	struct fipsee_segment segment = { 0 };
	struct fipsee_request *request;
	uint64_t length_bytes = 0;
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
		uint64_t most_bytes = has_data ? engine->most_bytes : engine->most_range_bytes;

		length_bytes = io_u->xfer_buflen < most_bytes ? io_u->xfer_buflen : most_bytes;
		if (UNLIKELY((length_bytes | io_u->offset) % FIPSEE_SECTOR_BYTES != 0))
			return refuse(engine, io_u, EINVAL, "disks are read and written in sectors of 512 bytes");
		if (has_data && UNLIKELY(!place(td, engine, io_u, tag, length_bytes, &segment)))
			return refuse(engine, io_u, ENOMEM, "no memory that the daemon reaches");
	} else if (!ddir_sync(io_u->ddir)) {
		return refuse(engine, io_u, EOPNOTSUPP, "no such operation");
	} else if (!engine->has_flush) {
		return FIO_Q_COMPLETED;		/* what was written is as durable as it gets */
	}
	request = queue_stage(queue);
	request->sector = ddir_rw(io_u->ddir) ? io_u->offset >> FIPSEE_SECTOR_SHIFT : 0;
	if (has_data) {
		request->operation = io_u->ddir == DDIR_READ ? FIPSEE_READ : FIPSEE_WRITE;
		request->flags = io_u->ddir == DDIR_READ ? 0 : engine->write_flags;
		request->segment_count = 1;
		request->segments[0] = segment;
	} else if (io_u->ddir == DDIR_TRIM) {
		request->operation = FIPSEE_DISCARD;
		request->length_sectors = length_bytes >> FIPSEE_SECTOR_SHIFT;
	} else {
		request->operation = FIPSEE_FLUSH;
	}
	engine->transfers[tag].io_u = io_u;
	engine->transfers[tag].length_bytes = length_bytes;
	engine->transfers[tag].left_bytes = ddir_rw(io_u->ddir) ? io_u->xfer_buflen - length_bytes : 0;
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
	/* The daemon works meanwhile; nobody looks at these before getevents(). */
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
	if (status != FIPSEE_STATUS_OK)
		return;
	io_u->resid = transfer->left_bytes;
	if (transfer->bounce && io_u->ddir == DDIR_READ)
		memcpy(io_u->xfer_buf, transfer->bounce, transfer->length_bytes);
}

static inline void finish(void *context, uint16_t tag, uint16_t status)
{
	struct engine *engine = context;
	const struct transfer *transfer = &engine->transfers[tag];

	if (UNLIKELY(status != FIPSEE_STATUS_OK || transfer->left_bytes != 0 || transfer->bounce))
		finish_slowly(transfer, status);
	engine->ready[engine->ready_count++] = transfer->io_u;
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
				fail(td, engine, outcome);
				return outcome;
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
	.options = options,
	.option_struct_size = sizeof(struct engine_options),
};
