/* SPDX-License-Identifier: GPL-2.0-only */
/* What happens once per job: options, checks of the job against the disk, the channel, memory for fio's buffers. */
#define _GNU_SOURCE
#include "engine.h"

#include "optgroup.h"

struct fio_option fipsee_options[] = {
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
			{ .ival = "pause", .oval = WAIT_PAUSE, .help = "Never sleep, PAUSE between two looks" },
			{ .ival = "poll", .oval = WAIT_PAUSE, .help = "Another name of pause" },
			{ .ival = "spin", .oval = WAIT_SPIN, .help = "Never sleep, nothing between two looks" },
			{ .ival = "yield", .oval = WAIT_YIELD, .help = "Never sleep, yield between two looks" },
			{ .ival = "sleep", .oval = WAIT_SLEEP, .help = "Sleep at once" },
		},
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{
		.name = "reconnect",
		.lname = "Fip-see time to reconnect",
		.type = FIO_OPT_INT,
		.off1 = offsetof(struct engine_options, reconnect_s),
		.help = "When the daemon is gone, seconds to wait for the next (default: 0, the job fails at once)",
		.def = "0",
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{
		.name = "claim",
		.lname = "Fip-see claim",
		.type = FIO_OPT_STR,
		.off1 = offsetof(struct engine_options, claim),
		.help = "What other clients may do while the job writes to the disk",
		.def = "none",
		.posval = {
			{ .ival = "none", .oval = CLAIM_NONE, .help = "Others may write, unless they claim to be the only ones" },
			{ .ival = "sole_writer", .oval = CLAIM_SOLE_WRITER, .help = "No other client may write meanwhile" },
			{ .ival = "ignore", .oval = CLAIM_IGNORE, .help = "Write even if another client has a claim" },
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

int fipsee_report(struct thread_data *td, const struct channel_error *error)
{
	log_err("fipsee: %s\n", error->text);
	td_verror(td, error->number, "fipsee");
	return 1;
}

void fipsee_channel_options(struct thread_data *td, struct channel_options *wanted, char *path)
{
	const struct engine_options *given = td->eo;

	*wanted = (struct channel_options) {
		.socket_path = given->socket,
		.disk = disk_name(td),
		/* Acknowledgements of events take no tag from fio: its verify phase fails when a queue is busy. */
		.depth = td->o.iodepth < FIPSEE_MAX_DEPTH - FIPSEE_EVENT_CREDITS ? td->o.iodepth + FIPSEE_EVENT_CREDITS :
										   FIPSEE_MAX_DEPTH,
		.read_only = !td_write(td) && !td_trim(td),
		.claim = (enum channel_claim)given->claim,
		.wait = (enum wait_mode)given->wait,
	};
	if (!wanted->socket_path) {
		channel_default_socket(path, PATH_MAX);
		wanted->socket_path = path;
	}
}

static int open_channel(struct thread_data *td, struct channel *channel, struct channel_error *error)
{
	char path[PATH_MAX];
	struct channel_options wanted;

	fipsee_channel_options(td, &wanted, path);
	if (!wanted.disk)
		return channel_fail(error, EINVAL, "no disk is named; say filename=DISK or disk=DISK");
	return channel_open(channel, &wanted, error);
}

/* Most bytes of one read or write. */
static uint64_t most_bytes(const struct fipsee_block_info *info)
{
	uint64_t sectors = info->max_transfer_bytes / FIPSEE_SECTOR_BYTES;

	return (sectors < UINT16_MAX ? sectors : UINT16_MAX) * FIPSEE_SECTOR_BYTES / info->block_bytes * info->block_bytes;
}

/* Most bytes of one trim. */
static uint64_t most_range_bytes(const struct fipsee_block_info *info)
{
	return (uint64_t)info->max_range_sectors * FIPSEE_SECTOR_BYTES / info->block_bytes * info->block_bytes;
}

/* Do the disk and the daemon support what the job asks for? 0, or a negative errno with `error`. */
static int check_job(struct thread_data *td, const struct channel *channel, struct channel_error *error)
{
	const struct fipsee_block_info *info = &channel->info;
	const struct thread_options *o = &td->o;
	const char *disk = disk_name(td);
	unsigned int block = info->block_bytes;

	if (channel->queue.depth < o->iodepth)
		return channel_fail(error, EINVAL, "the daemon grants %u requests at a time, but iodepth is %u; use iodepth=%u, or "
				    "set max_depth in the daemon's configuration", channel->queue.depth, o->iodepth,
				    channel->queue.depth);
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
		unsigned long long most = ddir == DDIR_TRIM ? most_range_bytes(info) : most_bytes(info);

		if (is_used && o->max_bs[ddir] > most)
			return channel_fail(error, EMSGSIZE, "a request to disk '%s' carries at most %llu bytes, but the job's bs is "
					    "%llu; use a smaller bs", disk, most, o->max_bs[ddir]);
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
int fipsee_setup(struct thread_data *td)
{
	const struct engine *engine = td->io_ops_data;
	struct channel_error error;
	struct channel channel;
	struct fio_file *file;
	uint64_t sector_count = 0;
	int outcome;

	if (strcmp(fio_version_string, FIPSEE_FIO_VERSION) != 0) {
		log_err("fipsee: this engine was built for %s, but this is %s; build it anew with cargo xtask dist\n",
			FIPSEE_FIO_VERSION, fio_version_string);
		return 1;
	}
	if (td->files_index > 1) {
		channel_fail(&error, EINVAL, "a job uses one disk; give each of the %u its own job", td->files_index);
		return fipsee_report(td, &error);
	}
	if (td->o.io_submit_mode == IO_MODE_OFFLOAD) {
		channel_fail(&error, EOPNOTSUPP, "fio does not load external engines for io_submit_mode=offload; use inline");
		return fipsee_report(td, &error);
	}
	if (engine) {
		/* With create_serialize=0 fio calls this late. */
		outcome = check_job(td, &engine->channel, &error);
		sector_count = engine->channel.info.sector_count;
	} else {
		outcome = open_channel(td, &channel, &error);
		if (outcome == 0) {
			sector_count = channel.info.sector_count;
			outcome = check_job(td, &channel, &error);
			channel_close(&channel);
		}
	}
	if (outcome != 0)
		return fipsee_report(td, &error);
	if (td->files_index == 0) {
		/* Of two jobs with one file, fio does not set it for the second. */
		add_file(td, disk_name(td), 0, 0);
		td->o.nr_files = td->o.nr_files ? td->o.nr_files : 1;
		td->o.open_files++;
	}
	file = td->files[0];
	file->filetype = FIO_TYPE_BLOCK;	/* fio does not create, extend or unlink those */
	file->real_file_size = sector_count * FIPSEE_SECTOR_BYTES;
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

int fipsee_init(struct thread_data *td)
{
	struct engine *engine = calloc(1, sizeof(*engine));
	struct channel_error error;
	const struct fipsee_block_info *info;
	uint32_t depth;

	if (!engine) {
		channel_fail(&error, ENOMEM, "no memory");
		return fipsee_report(td, &error);
	}
	if (open_channel(td, &engine->channel, &error) != 0) {
		free(engine);
		return fipsee_report(td, &error);
	}
	depth = engine->channel.queue.depth;
	engine->transfers = calloc(depth, sizeof(*engine->transfers));
	engine->staged = calloc(depth, sizeof(*engine->staged));
	/* A finished request leaves its tag at once and stays here until fio asks; fio has `iodepth`. */
	engine->ready = calloc(td->o.iodepth, sizeof(*engine->ready));
	if (!engine->transfers || !engine->staged || !engine->ready) {
		channel_close(&engine->channel);
		free_engine(engine);
		channel_fail(&error, ENOMEM, "no memory for a queue of depth %u", depth);
		return fipsee_report(td, &error);
	}
	info = &engine->channel.info;
	engine->most_bytes = most_bytes(info);
	engine->most_range_bytes = most_range_bytes(info);
	engine->has_flush = info->capabilities & FIPSEE_CAPABILITY_FLUSH;
	if (td->o.sync_io && info->capabilities & FIPSEE_CAPABILITY_FUA)
		engine->write_flags = FIPSEE_FLAG_FUA;
	td->io_ops_data = engine;
	return 0;
}

void fipsee_cleanup(struct thread_data *td)
{
	struct engine *engine = td->io_ops_data;

	if (!engine)
		return;
	channel_unshare(&engine->channel, &engine->bounce);
	channel_close(&engine->channel);
	free_engine(engine);
	td->io_ops_data = NULL;
}

int fipsee_iomem_alloc(struct thread_data *td, size_t length_bytes)
{
	struct engine *engine = td->io_ops_data;
	struct channel_error error;

	if (channel_share(&engine->channel, length_bytes, &engine->buffers, &error) != 0)
		return fipsee_report(td, &error);
	td->orig_buffer = (char *)engine->buffers.base;
	return 0;
}

void fipsee_iomem_free(struct thread_data *td)
{
	struct engine *engine = td->io_ops_data;

	if (engine)
		channel_unshare(&engine->channel, &engine->buffers);
}
