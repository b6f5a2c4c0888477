/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The guest's half of a ring, by the headers alone; src/c.rs calls it. */
#include <string.h>

#include "fipsee_ring.h"
#include "fipsee_vm.h"

struct c_ring {
	struct fipsee_call_writer requests;
	struct fipsee_reader completions;
};

size_t guest_c_ring_bytes(void)
{
	return sizeof(struct c_ring);
}

/* An upgrade request of `entry_count` entries, each in the order of struct fipsee_vm_queue. Its length. */
size_t guest_c_attach(uint8_t *into, const struct fipsee_vm_queue *entries, uint16_t entry_count)
{
	struct fipsee_vm_question upgrade_request;

	memset(&upgrade_request, 0, sizeof(upgrade_request));
	upgrade_request.magic = FIPSEE_VM_MAGIC;
	upgrade_request.version = FIPSEE_VM_VERSION;
	upgrade_request.operation = FIPSEE_VM_ATTACH;
	upgrade_request.features = FIPSEE_VM_FEATURES;
	upgrade_request.queue_count = entry_count;
	memcpy(into, &upgrade_request, sizeof(upgrade_request));
	memcpy(into + sizeof(upgrade_request), entries, entry_count * sizeof(*entries));
	return sizeof(upgrade_request) + entry_count * sizeof(*entries);
}

size_t guest_c_doorbell_request(uint8_t *into, uint64_t attachment, uint16_t queue)
{
	struct fipsee_vm_question upgrade_request;

	memset(&upgrade_request, 0, sizeof(upgrade_request));
	upgrade_request.magic = FIPSEE_VM_MAGIC;
	upgrade_request.version = FIPSEE_VM_VERSION;
	upgrade_request.operation = FIPSEE_VM_DOORBELL;
	upgrade_request.attachment = attachment;
	upgrade_request.queue = queue;
	memcpy(into, &upgrade_request, sizeof(upgrade_request));
	return sizeof(upgrade_request);
}

/* 1: open. */
int guest_c_open(struct c_ring *ring, const struct fipsee_vm_queue *entry, void *requests, void *completions, void *cold)
{
	const struct fipsee_ring out = { requests, cold, entry->request_slots };
	const struct fipsee_ring in = { completions, (struct fipsee_cold *)cold + 1, entry->completion_slots };
	const struct fipsee_cursor out_start = fipsee_cursor_at_start(entry->request_start);
	const struct fipsee_cursor in_start = fipsee_cursor_at_start(entry->completion_start);

	return fipsee_call_init(&ring->requests, out, out_start, entry->depth) == FIPSEE_RING_OK &&
	       fipsee_reader_init(&ring->completions, in, in_start) == FIPSEE_RING_OK;
}

/* As the daemon advised, or a test. */
void guest_c_choose(struct c_ring *ring, uint32_t choices)
{
	fipsee_writer_choose(&ring->requests.writer, choices);
	fipsee_reader_choose(&ring->completions, choices);
}

/* Read or write one segment. 0: no room; 1: published; 2: published, and the daemon wants its doorbell. */
int guest_c_submit(struct c_ring *ring, uint8_t operation, uint16_t tag, uint64_t sector, uint64_t address, uint16_t sectors)
{
	union fipsee_message message;

	memset(&message, 0, sizeof(message));
	message.request.operation = operation;
	message.request.segment_count = 1;
	message.request.tag = tag;
	message.request.sector = sector;
	message.request.segments[0].offset_sectors = (uint32_t)(address >> FIPSEE_SECTOR_SHIFT);
	message.request.segments[0].length_sectors = sectors;
	message.request.segments[0].region = (uint16_t)(address >> FIPSEE_VM_REGION_SHIFT);
	if (fipsee_call_publish_all(&ring->requests, &message, 1) != FIPSEE_RING_OK)
		return 0;
	return fipsee_writer_needs_doorbell(&ring->requests.writer) ? 2 : 1;
}

/* Tags and statuses of one message into `tags` and `statuses`, 14 of each: how many; -1: a faulty daemon, or an event. */
int guest_c_reap(struct c_ring *ring, uint16_t *tags, uint16_t *statuses)
{
	union fipsee_message message;
	int index;

	if (!fipsee_reader_receive(&ring->completions, &message))
		return 0;
	if (message.completion.kind != FIPSEE_KIND_COMPLETIONS || message.completion.count < 1 ||
	    message.completion.count > FIPSEE_MAX_PACKED)
		return -1;
	for (index = 0; index < message.completion.count; index++) {
		if (fipsee_call_answered(&ring->requests) != FIPSEE_RING_OK)
			return -1;
		tags[index] = message.completion.entries[index].tag;
		statuses[index] = message.completion.entries[index].status;
	}
	return message.completion.count;
}

/* 1: something is there, do not sleep. */
int guest_c_arm(struct c_ring *ring)
{
	if (!fipsee_reader_arm_and_work_remains(&ring->completions))
		return 0;
	fipsee_reader_disarm(&ring->completions);
	return 1;
}

void guest_c_woken(struct c_ring *ring)
{
	fipsee_reader_disarm(&ring->completions);
}
