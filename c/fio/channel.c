/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#define _GNU_SOURCE
#include "channel.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "control.h"

/* One more than the last sector number of any disk (docs/protocol.md section 5.8). */

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

static int fault(struct channel_error *error, const char *what, unsigned long long value)
{
	return channel_fail(error, EPROTO, "the daemon gave %llu as %s, which the protocol does not allow; the channel is closed",
			    value, what);
}

static int check_info(const struct fipsee_block_info *info, struct channel_error *error)
{
	uint64_t value;
	const char *what = fipsee_block_info_fault(info, &value);

	return what ? fault(error, what, value) : 0;
}

/* The memory must be sealed: otherwise a truncation would turn our next access into SIGBUS. */
static int check_file(int file, uint64_t length_bytes, struct channel_error *error)
{
	int seals = fcntl(file, F_GET_SEALS);
	struct statfs system;
	struct stat status;

	if (seals < 0)
		return channel_fail(error, EPROTO, "the daemon handed over memory that is not a memory file (memfd_create)");
	if (!(seals & F_SEAL_SHRINK) || seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE))
		return channel_fail(error, EPROTO, "the daemon handed over memory with the wrong seals (%#x)", seals);
	if (fstatfs(file, &system) != 0 || fstat(file, &status) != 0)
		return channel_fail(error, errno, "cannot look at the channel's memory: %s", strerror(errno));
	if (system.f_type == HUGETLBFS_MAGIC)
		return channel_fail(error, EPROTO, "the daemon handed over memory on hugetlbfs, whose pages may be missing");
	if (length_bytes == 0 || length_bytes > FIPSEE_MAX_REGION_BYTES || length_bytes > (uint64_t)status.st_size)
		return fault(error, "the length of the region", length_bytes);
	return 0;
}

/* Are `length_bytes` at `offset_bytes` within the region? Neither sum can overflow. */
static bool is_within(const struct channel *channel, uint64_t offset_bytes, uint64_t length_bytes)
{
	return offset_bytes <= channel->region_bytes && length_bytes <= channel->region_bytes - offset_bytes;
}

static int check_header(const struct channel *channel, const struct fipsee_region_header *header,
			struct channel_error *error)
{
	if (header->magic != FIPSEE_REGION_MAGIC)
		return fault(error, "the magic number of the region", header->magic);
	if (header->version != FIPSEE_REGION_VERSION)
		return fault(error, "the layout version of the region", header->version);
	if (header->queue_count != 1)
		return fault(error, "the queue count of the region", header->queue_count);
	if (header->region_bytes != channel->region_bytes)
		return fault(error, "the length in the region header", header->region_bytes);
	if (header->features != channel->features)
		return fault(error, "the features of the region", header->features);
	if (header->pool_offset_bytes % FIPSEE_REGION_PAGE_BYTES != 0 || header->pool_bytes % FIPSEE_REGION_PAGE_BYTES != 0 ||
	    header->pool_bytes > FIPSEE_MAX_POOL_BYTES || !is_within(channel, header->pool_offset_bytes, header->pool_bytes))
		return fault(error, "the place of the pool", header->pool_offset_bytes);
	if (header->reserved[0] != 0 || header->reserved[1] != 0)
		return fault(error, "a reserved field of the region header", header->reserved[0] | header->reserved[1]);
	return 0;
}

static bool is_slot_count(uint32_t slots)
{
	return slots >= FIPSEE_MIN_SLOTS && slots <= FIPSEE_MAX_SLOTS && (slots & (slots - 1)) == 0;
}

static int check_entry(const struct channel *channel, const struct fipsee_queue_entry *entry, struct channel_error *error)
{
	unsigned int index;

	if (!is_slot_count(entry->request_slots) || !is_slot_count(entry->completion_slots))
		return fault(error, "the slots of a ring", entry->request_slots);
	if (entry->request_start >= entry->request_slots || entry->completion_start >= entry->completion_slots)
		return fault(error, "the start of a ring", entry->request_start);
	if (entry->depth == 0 || entry->depth > FIPSEE_MAX_DEPTH || entry->depth > entry->request_slots ||
	    entry->depth + FIPSEE_EVENT_CREDITS > entry->completion_slots)
		return fault(error, "the depth of the queue", entry->depth);
	if ((entry->request_offset_bytes | entry->completion_offset_bytes | entry->cold_offset_bytes) % FIPSEE_SLOT_BYTES != 0 ||
	    !is_within(channel, entry->request_offset_bytes, (uint64_t)entry->request_slots * FIPSEE_SLOT_BYTES) ||
	    !is_within(channel, entry->completion_offset_bytes, (uint64_t)entry->completion_slots * FIPSEE_SLOT_BYTES) ||
	    !is_within(channel, entry->cold_offset_bytes, 2 * (uint64_t)FIPSEE_COLD_BYTES))
		return fault(error, "the place of a ring", entry->request_offset_bytes);
	if (entry->worker_cpu_plus_1 != 0)
		return fault(error, "a CPU in the table of queues, which we did not ask for", entry->worker_cpu_plus_1);
	if (entry->choices != 0 && !(channel->features & FIPSEE_FEATURE_CHOICES))
		return fault(error, "advice in the table of queues, which we did not ask for", entry->choices);
	for (index = 0; index < sizeof(entry->reserved) / sizeof(entry->reserved[0]); index++)
		if (entry->reserved[index] != 0)
			return fault(error, "a reserved field of the table of queues", entry->reserved[index]);
	return 0;
}

/* Copy header and table once, check the copy, and put the queue on it. */
static int open_queue(struct channel *channel, struct channel_error *error)
{
	struct queue *queue = &channel->queue;
	struct fipsee_region_header header;
	struct fipsee_queue_entry entry;
	struct fipsee_ring requests, completions;
	int outcome;

	if (!is_within(channel, 0, sizeof(header) + sizeof(entry)))
		return fault(error, "the length of the region", channel->region_bytes);
	memcpy(&header, channel->region, sizeof(header));
	memcpy(&entry, channel->region + sizeof(header), sizeof(entry));
	/* Without this the compiler may load again, after a check, what was copied here. */
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	outcome = check_header(channel, &header, error);
	if (outcome == 0)
		outcome = check_entry(channel, &entry, error);
	if (outcome != 0)
		return outcome;
	requests.slots = (struct fipsee_slot *)(void *)(channel->region + entry.request_offset_bytes);
	requests.cold = (struct fipsee_cold *)(void *)(channel->region + entry.cold_offset_bytes);
	requests.slot_count = entry.request_slots;
	completions.slots = (struct fipsee_slot *)(void *)(channel->region + entry.completion_offset_bytes);
	completions.cold = requests.cold + 1;
	completions.slot_count = entry.completion_slots;
	if (fipsee_call_init(&queue->requests, requests, fipsee_cursor_at_start(entry.request_start), entry.depth) != 0 ||
	    fipsee_reader_init(&queue->completions, completions, fipsee_cursor_at_start(entry.completion_start)) != 0)
		return fault(error, "the place of a ring", entry.request_offset_bytes);
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
	void *region;
	int outcome;

	memcpy(&channel->info, attached->service_info, sizeof(channel->info));
	outcome = check_info(&channel->info, error);
	if (outcome != 0)
		return outcome;
	if (attached->queue_count != 1 || attached->reserved != 0)
		return fault(error, "the number of queues granted", attached->queue_count);
	if (answer->descriptor_count != 3)
		return fault(error, "the number of descriptors", answer->descriptor_count);
	outcome = check_file(answer->descriptors[0], attached->region_bytes, error);
	if (outcome != 0)
		return outcome;
	region = mmap(NULL, attached->region_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, answer->descriptors[0], 0);
	if (region == MAP_FAILED)
		return channel_fail(error, errno, "cannot map the channel's memory: %s", strerror(errno));
	channel->region = region;
	channel->region_bytes = attached->region_bytes;
	outcome = open_queue(channel, error);
	if (outcome != 0)
		munmap(region, channel->region_bytes);
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
		return fault(error, "the protocol version", answer->welcome.version);
	if ((answer->welcome.features & ~hello.features) != 0)
		return fault(error, "features we did not offer", answer->welcome.features);
	if (answer->welcome.reserved != 0)
		return fault(error, "a reserved field of WELCOME", answer->welcome.reserved);
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
		outcome = fault(error, "the id of registered memory", answer.region.region);
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
