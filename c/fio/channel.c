/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#define _GNU_SOURCE
#include "channel.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "control.h"
#include "region.h"

void channel_default_socket(char *path, size_t path_bytes)
{
	const char *named = getenv("FIPSEE_SOCKET");
	const char *base = getenv("XDG_RUNTIME_DIR");

	if (named) {
		snprintf(path, path_bytes, "%s", named);
		return;
	}
	if (base && geteuid() != 0) {
		int length = snprintf(path, path_bytes, "%s/fipsee/fipsee.sock", base);

		if (length > 0 && (size_t)length < path_bytes && access(path, F_OK) == 0)
			return;
	}
	snprintf(path, path_bytes, "/run/fipsee/fipsee.sock");
}

static int check_info(const struct fipsee_block_info *info, struct channel_error *error)
{
	uint64_t value;
	const char *what = fipsee_block_info_fault(info, &value);

	return what ? channel_fault(error, what, value) : 0;
}

/* Copy header and table once, check the copy, and put the queue on it. */
static int open_queue(struct channel *channel, struct channel_error *error)
{
	struct queue *queue = &channel->queue;
	struct fipsee_region_header header;
	struct fipsee_queue_entry entry;
	struct fipsee_ring requests, completions;
	int outcome;

	if (!region_holds(channel->region_bytes, 0, sizeof(header) + sizeof(entry)))
		return channel_fault(error, "the length of the region", channel->region_bytes);
	memcpy(&header, channel->region, sizeof(header));
	memcpy(&entry, channel->region + sizeof(header), sizeof(entry));
	/* Without this the compiler may load again, after a check, what was copied here. */
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	outcome = region_check_header(&header, channel->region_bytes, channel->features, 1, error);
	if (outcome == 0)
		outcome = region_check_entry(&entry, channel->region_bytes, channel->features, FIPSEE_EVENT_CREDITS, error);
	if (outcome != 0)
		return outcome;
	region_rings(channel->region, &entry, &requests, &completions);
	if (fipsee_call_init(&queue->requests, requests, fipsee_cursor_at_start(entry.request_start), entry.depth) != 0 ||
	    fipsee_reader_init(&queue->completions, completions, fipsee_cursor_at_start(entry.completion_start)) != 0)
		return channel_fault(error, "the place of a ring", entry.request_offset_bytes);
	if (queue_init(queue, entry.depth) != 0)
		return channel_fail(error, ENOMEM, "no memory for a queue of depth %u", entry.depth);
	if (entry.choices != 0)
		queue_choose(queue, entry.choices);
	return 0;
}

/* Check and map what came with ATTACHED. The region's descriptor is closed by the caller. */
static int open_region(struct channel *channel, const struct control_answer *answer, struct channel_error *error)
{
	const struct fipsee_attached *attached = &answer->attached;
	int outcome;

	memcpy(&channel->info, attached->service_info, sizeof(channel->info));
	outcome = check_info(&channel->info, error);
	if (outcome != 0)
		return outcome;
	if (attached->queue_count != 1 || attached->reserved != 0)
		return channel_fault(error, "the number of queues granted", attached->queue_count);
	if (answer->descriptor_count != 3)
		return channel_fault(error, "the number of descriptors", answer->descriptor_count);
	outcome = region_map(answer->descriptors[0], attached->region_bytes, &channel->region, error);
	if (outcome != 0)
		return outcome;
	channel->region_bytes = attached->region_bytes;
	outcome = open_queue(channel, error);
	if (outcome != 0)
		munmap(channel->region, channel->region_bytes);
	return outcome;
}

/* What ATTACH says of claims. */
static uint32_t claim_flags(const struct channel_options *options)
{
	if (options->read_only || options->claim == CLAIM_NONE)
		return 0;
	return options->claim == CLAIM_SOLE_WRITER ? FIPSEE_ATTACH_SOLE_WRITER : FIPSEE_ATTACH_IGNORE_CLAIM;
}

static int greet(struct channel *channel, const struct channel_options *options, struct control_answer *answer,
		 struct channel_error *error)
{
	struct fipsee_hello hello = {
		.header = control_header(FIPSEE_HELLO, sizeof(hello)),
		.version_min = FIPSEE_VERSION,
		.version_max = FIPSEE_VERSION,
		.features = FIPSEE_FEATURE_CHOICES | (claim_flags(options) ? FIPSEE_FEATURE_SOLE_WRITER : 0),
	};
	int outcome = control_ask(channel->control, &hello, FIPSEE_WELCOME, -1, "the greeting", answer, error);

	if (outcome != 0)
		return outcome;
	if (answer->welcome.version != FIPSEE_VERSION)
		return channel_fault(error, "the protocol version", answer->welcome.version);
	if ((answer->welcome.features & ~hello.features) != 0)
		return channel_fault(error, "features we did not offer", answer->welcome.features);
	if (answer->welcome.reserved != 0)
		return channel_fault(error, "a reserved field of WELCOME", answer->welcome.reserved);
	channel->features = answer->welcome.features;
	if (claim_flags(options) == FIPSEE_ATTACH_SOLE_WRITER && !(channel->features & FIPSEE_FEATURE_SOLE_WRITER))
		return channel_fail(error, EOPNOTSUPP, "the daemon knows no claims to be a disk's sole writer: it is older than this "
				    "program; upgrade it, or do without");
	return 0;
}

static int attach(struct channel *channel, const struct channel_options *options, struct control_answer *answer,
		  struct channel_error *error)
{
	struct fipsee_attach attach = {
		.header = control_header(FIPSEE_ATTACH, sizeof(attach)),
		.service = FIPSEE_SERVICE_BLOCK,
		.queue_count = 1,
		.depth = options->depth,
		/* Without the feature there is no claim to be ignored. */
		.flags = (options->read_only ? FIPSEE_ATTACH_READ_ONLY : 0) | (channel->features & FIPSEE_FEATURE_SOLE_WRITER ? claim_flags(options) : 0),
	};
	int outcome;

	memcpy(attach.name, options->disk, strlen(options->disk));
	outcome = control_ask(channel->control, &attach, FIPSEE_ATTACHED, -1, "the request to attach", answer, error);
	if (outcome != 0)
		return outcome;
	outcome = open_region(channel, answer, error);
	if (outcome != 0) {
		control_close_descriptors(answer, 0);
		return outcome;
	}
	close(answer->descriptors[0]);
	channel->queue.daemon_doorbell = answer->descriptors[1];
	channel->queue.our_doorbell = answer->descriptors[2];
	channel->queue.control = channel->control;
	queue_set_wait(&channel->queue, options->wait);
	channel->queue.sector_count = channel->info.sector_count;
	channel->regions_in_use = 1;
	return 0;
}

int channel_open(struct channel *channel, const struct channel_options *options, struct channel_error *error)
{
	size_t name_bytes = strlen(options->disk);
	struct control_answer answer;
	int outcome;

	if (name_bytes == 0 || name_bytes > FIPSEE_MAX_NAME_BYTES)
		return channel_fail(error, ENOENT, "the name '%.80s' has %zu bytes; a disk's name has 1 to %d", options->disk,
				    name_bytes, FIPSEE_MAX_NAME_BYTES);
	channel->control = control_connect(options->socket_path, error);
	if (channel->control < 0)
		return channel->control;
	outcome = greet(channel, options, &answer, error);
	if (outcome == 0)
		outcome = attach(channel, options, &answer, error);
	if (outcome != 0)
		close(channel->control);
	return outcome;
}

/* Everything but the queue's tables. */
static void close_channel(struct channel *channel)
{
	close(channel->control);
	close(channel->queue.daemon_doorbell);
	close(channel->queue.our_doorbell);
	munmap(channel->region, channel->region_bytes);
}

void channel_close(struct channel *channel)
{
	struct queue *queue = &channel->queue;

	if (queue_outstanding(queue) == 0 && !queue->fault) {
		struct fipsee_control_header detach = control_header(FIPSEE_DETACH, sizeof(detach));
		struct control_answer answer;
		struct channel_error ignored;

		/* If the daemon is gone, so is its state. */
		(void)control_ask(channel->control, &detach, FIPSEE_DETACHED, -1, "the request to detach", &answer, &ignored);
	}
	close_channel(channel);
	queue_free_tables(queue);
}

/* New memory of zeroes, sealed against shrinking and growing, mapped; its descriptor, or a negative errno with `error`. */
static int create_memory(struct channel_memory *memory, uint64_t length_bytes, struct channel_error *error)
{
	uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
	void *base = MAP_FAILED;
	int file;

	if (length_bytes == 0 || length_bytes > FIPSEE_MAX_REGION_BYTES)
		return channel_fail(error, EINVAL, "shared memory of %llu bytes is not possible", (unsigned long long)length_bytes);
	memory->length_bytes = (length_bytes + page_bytes - 1) / page_bytes * page_bytes;
	file = memfd_create("fipsee-memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (file >= 0 && ftruncate(file, (off_t)memory->length_bytes) == 0 &&
	    fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
		/* Populated now: no request is to pay for a page that is touched for the first time. */
		base = mmap(NULL, memory->length_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
	if (base == MAP_FAILED) {
		int number = errno;

		if (file >= 0)
			close(file);
		return channel_fail(error, number, "cannot create %llu bytes of shared memory: %s",
				    (unsigned long long)memory->length_bytes, strerror(number));
	}
	memory->base = base;
	return file;
}

/* Hand memory over under its id. 0, or a negative errno with `error`. */
static int hand_over(struct channel *channel, const struct channel_memory *memory, struct channel_error *error)
{
	struct fipsee_register request = {
		.header = control_header(FIPSEE_REGISTER, sizeof(request)),
		.region = memory->region,
		.access = FIPSEE_ACCESS_READ | FIPSEE_ACCESS_WRITE,
		.length_bytes = memory->length_bytes,
	};
	struct control_answer answer;
	int outcome = control_ask(channel->control, &request, FIPSEE_REGISTERED, memory->file, "the request to register memory",
				  &answer, error);

	if (outcome == 0 && (answer.region.region != memory->region || answer.region.reserved != 0))
		outcome = channel_fault(error, "the id of registered memory", answer.region.region);
	if (outcome == 0)
		channel->regions_in_use |= 1ULL << memory->region;
	return outcome;
}

static void forget_memory(struct channel_memory *memory)
{
	close(memory->file);
	munmap(memory->base, memory->length_bytes);
	memory->base = NULL;
}

int channel_share(struct channel *channel, uint64_t length_bytes, struct channel_memory *memory,
		  struct channel_error *error)
{
	int file, outcome;

	memory->base = NULL;
	for (memory->region = 1; channel->regions_in_use >> memory->region & 1; memory->region++)
		if (memory->region == FIPSEE_MAX_REGIONS - 1)
			return channel_fail(error, ENOSPC, "all %d memory ids of the channel are in use", FIPSEE_MAX_REGIONS - 1);
	file = create_memory(memory, length_bytes, error);
	if (file < 0)
		return file;
	memory->file = file;
	outcome = hand_over(channel, memory, error);
	if (outcome != 0)
		forget_memory(memory);
	return outcome;
}

void channel_unshare(struct channel *channel, struct channel_memory *memory)
{
	struct fipsee_region_id request = { .header = control_header(FIPSEE_UNREGISTER, sizeof(request)),
					    .region = memory->region };
	struct control_answer answer;
	struct channel_error ignored;

	if (!memory->base)
		return;
	/* An id that the daemon has not released is not used again; the memory is ours to unmap either way. */
	if (queue_outstanding(&channel->queue) == 0 && !channel->queue.fault &&
	    control_ask(channel->control, &request, FIPSEE_UNREGISTERED, -1, "the request to unregister memory", &answer,
			&ignored) == 0 &&
	    answer.region.region == memory->region)
		channel->regions_in_use &= ~(1ULL << memory->region);
	forget_memory(memory);
}

/* Is this the same disk? Nothing may be resubmitted to another. */
static int check_same(const struct channel *channel, const struct channel *fresh, struct channel_error *error)
{
	const struct fipsee_block_info *old = &channel->info, *new = &fresh->info;
	const char *what = NULL;

	if (memcmp(old->identity, new->identity, sizeof(old->identity)) != 0)
		what = "identity";
	else if (old->block_bytes != new->block_bytes)
		what = "logical block size";
	else if (new->sector_count < channel->queue.sector_count)
		what = "(smaller) size";
	else if (fresh->queue.depth < channel->queue.depth)
		what = "(smaller) depth";
	if (!what)
		return 0;
	return channel_fail(error, ESTALE, "the daemon came back with a disk of another %s; nothing was resubmitted", what);
}

int channel_reopen(struct channel *channel, const struct channel_options *options, struct channel_memory *const *memories,
		   unsigned int count, queue_rebuild rebuild, void *context, struct channel_error *error)
{
	struct channel fresh;
	unsigned int index;
	int outcome = channel_open(&fresh, options, error);

	if (outcome != 0)
		return outcome;
	outcome = check_same(channel, &fresh, error);
	for (index = 0; index < count && outcome == 0; index++)
		if (memories[index]->base)
			outcome = hand_over(&fresh, memories[index], error);
	if (outcome != 0) {
		close_channel(&fresh);
		queue_free_tables(&fresh.queue);
		return outcome;
	}
	close_channel(channel);
	channel->control = fresh.control;
	channel->region = fresh.region;
	channel->region_bytes = fresh.region_bytes;
	channel->features = fresh.features;
	channel->info = fresh.info;
	channel->regions_in_use = fresh.regions_in_use;
	queue_resume(&channel->queue, &fresh.queue, rebuild, context);
	return 0;
}
