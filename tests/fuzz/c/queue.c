/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* In one translation unit with what it looks into. */
#include "../../../c/fio/queue.c"

#include "fuzz.h"

struct finished {
	uint32_t count;
	uint32_t *into;
};

static void keep(void *context, uint16_t tag, uint16_t status)
{
	struct finished *finished = context;

	finished->into[finished->count++] = (uint32_t)tag << 16 | status;
}

int fuzz_store(uint32_t stores, const union fipsee_message *message, uint32_t stamp, struct fipsee_slot *into)
{
	if (!stores_are_possible(stores))
		return 0;
	return stores_publish((uint8_t)stores, into, message, stamp) ? 1 : -1;
}

int fuzz_reap(const union fipsee_message *messages, uint32_t message_count, uint32_t request_count, uint32_t *into,
	      uint32_t *into_count, uint64_t *sector_count)
{
	static const uint32_t advice[] = { 0, 0x00111232, 0x00121323, 0x00022111, 0xffffffff };
	static struct fipsee_slot request_slots[FUZZ_DEPTH], completion_slots[4 * FUZZ_DEPTH];
	static struct fipsee_cold cold[2];
	static union fipsee_message staged[FUZZ_DEPTH];
	uint16_t free_tags[FUZZ_DEPTH];
	uint8_t uses[FUZZ_DEPTH] = { 0 };
	struct queue queue = { .staged = staged, .free_tags = free_tags, .uses = uses, .depth = FUZZ_DEPTH,
			       .free_count = FUZZ_DEPTH, .daemon_doorbell = -1, .our_doorbell = -1, .control = -1 };
	struct fipsee_ring requests = { .slots = request_slots, .cold = &cold[0], .slot_count = FUZZ_DEPTH };
	struct fipsee_ring completions = { .slots = completion_slots, .cold = &cold[1], .slot_count = 4 * FUZZ_DEPTH };
	struct finished finished = { .into = into };
	struct fipsee_writer daemon;
	uint32_t index;

	memset(request_slots, 0, sizeof(request_slots));
	memset(completion_slots, 0, sizeof(completion_slots));
	memset(cold, 0, sizeof(cold));
	for (index = 0; index < FUZZ_DEPTH; index++)
		free_tags[index] = (uint16_t)(FUZZ_DEPTH - 1 - index);
	fipsee_pace_init(&queue.pace, 1000);
	if (fipsee_call_init(&queue.requests, requests, fipsee_cursor_at_start(0), FUZZ_DEPTH) != 0 ||
	    fipsee_reader_init(&queue.completions, completions, fipsee_cursor_at_start(0)) != 0 ||
	    fipsee_writer_init(&daemon, completions, fipsee_cursor_at_start(0)) != 0)
		return -1;
	/* Whatever is advised, the outcome is the same. */
	queue_choose(&queue, advice[message_count % (sizeof(advice) / sizeof(advice[0]))]);
	for (index = 0; index < request_count; index++)
		queue_stage(&queue);
	queue_submit(&queue);
	for (index = 0; index < message_count; index++)
		fipsee_writer_publish(&daemon, &messages[index]);
	/* Pacing may say that it is too early to look: it is not. */
	fipsee_pace_interrupt(&queue.pace);
	queue_reap(&queue, keep, &finished);
	*into_count = finished.count;
	*sector_count = queue.sector_count;
	return queue.fault != NULL;
}
