/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A channel's memory as the daemon hands it over and lays it out (docs/protocol.md section 3): checked for channel.c and c/net/port.c. */
#ifndef FIPSEE_FIO_REGION_H
#define FIPSEE_FIO_REGION_H

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "channel.h"

/* The daemon gave a value that the protocol does not allow. Returns -EPROTO. */
static inline int channel_fault(struct channel_error *error, const char *what, unsigned long long value)
{
	return channel_fail(error, EPROTO, "the daemon gave %llu as %s, which the protocol does not allow; the channel is closed",
			    value, what);
}

/* The memory must be sealed: otherwise a truncation would turn our next access into SIGBUS. */
static inline int region_check_file(int file, uint64_t length_bytes, struct channel_error *error)
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
		return channel_fault(error, "the length of the region", length_bytes);
	return 0;
}

/* Check the file and map it at *region. 0, or a negative errno with `error`. */
static inline int region_map(int file, uint64_t length_bytes, uint8_t **region, struct channel_error *error)
{
	int outcome = region_check_file(file, length_bytes, error);
	void *base;

	if (outcome != 0)
		return outcome;
	base = mmap(NULL, length_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (base == MAP_FAILED)
		return channel_fail(error, errno, "cannot map the channel's memory: %s", strerror(errno));
	*region = base;
	return 0;
}

/* Are `length_bytes` at `offset_bytes` within the region? Neither sum can overflow. */
static inline bool region_holds(uint64_t region_bytes, uint64_t offset_bytes, uint64_t length_bytes)
{
	return offset_bytes <= region_bytes && length_bytes <= region_bytes - offset_bytes;
}

/* A copy of the header, of a region with these features and so many queues. */
static inline int region_check_header(const struct fipsee_region_header *header, uint64_t region_bytes, uint64_t features,
				      uint32_t queue_count, struct channel_error *error)
{
	if (header->magic != FIPSEE_REGION_MAGIC)
		return channel_fault(error, "the magic number of the region", header->magic);
	if (header->version != FIPSEE_REGION_VERSION)
		return channel_fault(error, "the layout version of the region", header->version);
	if (header->queue_count != queue_count)
		return channel_fault(error, "the queue count of the region", header->queue_count);
	if (header->region_bytes != region_bytes)
		return channel_fault(error, "the length in the region header", header->region_bytes);
	if (header->features != features)
		return channel_fault(error, "the features of the region", header->features);
	if (header->pool_offset_bytes % FIPSEE_REGION_PAGE_BYTES != 0 || header->pool_bytes % FIPSEE_REGION_PAGE_BYTES != 0 ||
	    header->pool_bytes > FIPSEE_MAX_POOL_BYTES || !region_holds(region_bytes, header->pool_offset_bytes, header->pool_bytes))
		return channel_fault(error, "the place of the pool", header->pool_offset_bytes);
	if (header->reserved[0] != 0 || header->reserved[1] != 0)
		return channel_fault(error, "a reserved field of the region header", header->reserved[0] | header->reserved[1]);
	return 0;
}

static inline bool region_is_slot_count(uint32_t slots)
{
	return slots >= FIPSEE_MIN_SLOTS && slots <= FIPSEE_MAX_SLOTS && (slots & (slots - 1)) == 0;
}

/* A copy of an entry of the table of queues, of a service with so many completions beyond the depth. */
static inline int region_check_entry(const struct fipsee_queue_entry *entry, uint64_t region_bytes, uint64_t features,
				     uint32_t event_credits, struct channel_error *error)
{
	unsigned int index;

	if (!region_is_slot_count(entry->request_slots) || !region_is_slot_count(entry->completion_slots))
		return channel_fault(error, "the slots of a ring", entry->request_slots);
	if (entry->request_start >= entry->request_slots || entry->completion_start >= entry->completion_slots)
		return channel_fault(error, "the start of a ring", entry->request_start);
	if (entry->depth == 0 || entry->depth > FIPSEE_MAX_DEPTH || entry->depth > entry->request_slots ||
	    entry->depth + event_credits > entry->completion_slots)
		return channel_fault(error, "the depth of the queue", entry->depth);
	if ((entry->request_offset_bytes | entry->completion_offset_bytes | entry->cold_offset_bytes) % FIPSEE_SLOT_BYTES != 0 ||
	    !region_holds(region_bytes, entry->request_offset_bytes, (uint64_t)entry->request_slots * FIPSEE_SLOT_BYTES) ||
	    !region_holds(region_bytes, entry->completion_offset_bytes, (uint64_t)entry->completion_slots * FIPSEE_SLOT_BYTES) ||
	    !region_holds(region_bytes, entry->cold_offset_bytes, 2 * (uint64_t)FIPSEE_COLD_BYTES))
		return channel_fault(error, "the place of a ring", entry->request_offset_bytes);
	if (entry->worker_cpu_plus_1 != 0)
		return channel_fault(error, "a CPU in the table of queues, which we did not ask for", entry->worker_cpu_plus_1);
	if (entry->choices != 0 && !(features & FIPSEE_FEATURE_CHOICES))
		return channel_fault(error, "advice in the table of queues, which we did not ask for", entry->choices);
	for (index = 0; index < sizeof(entry->reserved) / sizeof(entry->reserved[0]); index++)
		if (entry->reserved[index] != 0)
			return channel_fault(error, "a reserved field of the table of queues", entry->reserved[index]);
	return 0;
}

/* The rings of an entry that was checked. */
static inline void region_rings(uint8_t *region, const struct fipsee_queue_entry *entry, struct fipsee_ring *requests,
				struct fipsee_ring *completions)
{
	requests->slots = (struct fipsee_slot *)(void *)(region + entry->request_offset_bytes);
	requests->cold = (struct fipsee_cold *)(void *)(region + entry->cold_offset_bytes);
	requests->slot_count = entry->request_slots;
	completions->slots = (struct fipsee_slot *)(void *)(region + entry->completion_offset_bytes);
	completions->cold = requests->cold + 1;
	completions->slot_count = entry->completion_slots;
}

#endif /* FIPSEE_FIO_REGION_H */
