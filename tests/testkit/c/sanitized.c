/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Both ends of a guest's rings in one program, for gcc's sanitizers. Rings, cold words and what rings.c writes into are in memory
 * of exactly their length, so that one byte too many is seen. `sanitized SEED`; exit status: 0 all as expected, 1 wrong.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In one translation unit with what it looks into. */
#include "rings.c"

#define ROUNDS 400
#define MESSAGES 64

static uint64_t state;

static uint32_t chance(uint32_t below)
{
	state = state * 6364136223846793005ULL + 1442695040888963407ULL;
	return (uint32_t)(state >> 33) % below;
}

static void fail(const char *what, unsigned int number)
{
	fprintf(stderr, "sanitized: %s (%u)\n", what, number);
	exit(1);
}

static void *memory(size_t bytes)
{
	void *made = aligned_alloc(64, bytes);

	if (!made)
		abort();
	memset(made, 0, bytes);
	return made;
}

/* A ring as both ends see it. */
struct pair {
	struct fipsee_vm_queue entry;
	struct fipsee_slot *requests, *completions;
	struct fipsee_cold *cold;
	struct c_ring *guest;
	struct fipsee_reader calls;
	struct fipsee_writer answers;
	uint32_t outstanding;
	uint16_t next_tag, next_call, next_answer, next_done;
};

static void make(struct pair *pair)
{
	struct fipsee_ring calls, answers;

	memset(pair, 0, sizeof(*pair));
	pair->entry.depth = 1 + chance(32);
	for (pair->entry.request_slots = 2; pair->entry.request_slots < pair->entry.depth;)
		pair->entry.request_slots *= 2;
	for (pair->entry.completion_slots = 2; pair->entry.completion_slots < pair->entry.depth + 2;)
		pair->entry.completion_slots *= 2;
	pair->entry.request_start = chance(pair->entry.request_slots);
	pair->entry.completion_start = chance(pair->entry.completion_slots);
	pair->requests = memory(pair->entry.request_slots * sizeof(struct fipsee_slot));
	pair->completions = memory(pair->entry.completion_slots * sizeof(struct fipsee_slot));
	pair->cold = memory(2 * sizeof(struct fipsee_cold));
	pair->guest = malloc(guest_c_ring_bytes());
	if (!pair->guest)
		abort();
	if (!guest_c_open(pair->guest, &pair->entry, pair->requests, pair->completions, pair->cold))
		fail("a sound geometry is refused", pair->entry.depth);
	guest_c_choose(pair->guest, chance(0x00200000));
	calls = (struct fipsee_ring){ pair->requests, pair->cold, pair->entry.request_slots };
	answers = (struct fipsee_ring){ pair->completions, pair->cold + 1, pair->entry.completion_slots };
	fipsee_reader_init(&pair->calls, calls, fipsee_cursor_at_start(pair->entry.request_start));
	fipsee_writer_init(&pair->answers, answers, fipsee_cursor_at_start(pair->entry.completion_start));
}

static void end(struct pair *pair)
{
	free(pair->requests);
	free(pair->completions);
	free(pair->cold);
	free(pair->guest);
}

static void submit_some(struct pair *pair)
{
	uint32_t count = chance(pair->entry.depth + 3);

	while (count-- > 0) {
		uint64_t address = ((uint64_t)chance(3) << FIPSEE_VM_REGION_SHIFT) + ((uint64_t)chance(0x7fffffff) << 9);
		int published = guest_c_submit(pair->guest, FIPSEE_WRITE, pair->next_tag, ~0ULL - pair->next_tag, address, 8);

		if ((published == 0) != (pair->outstanding == pair->entry.depth))
			fail("room is where none is, or none where room is", pair->outstanding);
		pair->outstanding += published != 0;
		pair->next_tag += published != 0;
	}
}

/* The daemon takes what is there, as far as it answers it: 1 to 14 in a message. */
static void answer_some(struct pair *pair)
{
	union fipsee_message call, answer;
	uint8_t count;

	for (;;) {
		memset(&answer, 0, sizeof(answer));
		answer.completion.kind = FIPSEE_KIND_COMPLETIONS;
		for (count = 0; count < 1 + chance(FIPSEE_MAX_PACKED) && fipsee_reader_receive(&pair->calls, &call); count++) {
			if (call.request.tag != pair->next_call || call.request.sector != ~0ULL - call.request.tag ||
			    call.request.segments[0].length_sectors != 8)
				fail("another request than was published", call.request.tag);
			pair->next_call++;
			answer.completion.entries[count].tag = pair->next_answer;
			answer.completion.entries[count].status = (uint16_t)(pair->next_answer * 3);
			pair->next_answer++;
		}
		if (count == 0)
			return;
		answer.completion.count = count;
		fipsee_writer_publish(&pair->answers, &answer);
		(void)fipsee_writer_needs_doorbell(&pair->answers);
	}
}

static void reap_all(struct pair *pair)
{
	uint16_t *tags = malloc(FIPSEE_MAX_PACKED * sizeof(*tags)), *statuses = malloc(FIPSEE_MAX_PACKED * sizeof(*statuses));
	int count, index;

	if (!tags || !statuses)
		abort();
	while ((count = guest_c_reap(pair->guest, tags, statuses)) != 0) {
		if (count < 0 || (uint32_t)count > pair->outstanding)
			fail("a fault is reported for a correct daemon", pair->outstanding);
		for (index = 0; index < count; index++, pair->next_done++)
			if (tags[index] != pair->next_done || statuses[index] != (uint16_t)(pair->next_done * 3))
				fail("another answer than was given", pair->next_done);
		pair->outstanding -= (uint32_t)count;
	}
	if (pair->outstanding != 0)
		fail("answers are missing", pair->outstanding);
	free(tags);
	free(statuses);
	if (guest_c_arm(pair->guest))
		fail("work is said to remain", 0);
	guest_c_woken(pair->guest);
}

/* Any bytes whatever on the ring of completions, and on the cold words. */
static void inject_faults(struct pair *pair)
{
	uint16_t *tags = malloc(FIPSEE_MAX_PACKED * sizeof(*tags)), *statuses = malloc(FIPSEE_MAX_PACKED * sizeof(*statuses));
	union fipsee_message message;
	unsigned int index, byte;
	int count;

	if (!tags || !statuses)
		abort();
	for (index = 0; index < MESSAGES; index++) {
		for (byte = 0; byte < FIPSEE_PAYLOAD_BYTES; byte++)
			message.slot.payload[byte] = (uint8_t)chance(256);
		if (chance(4) != 0)
			message.completion.kind = FIPSEE_KIND_COMPLETIONS;
		if (chance(4) != 0)
			message.completion.count = (uint8_t)chance(FIPSEE_MAX_PACKED + 3);
		fipsee_writer_publish(&pair->answers, &message);
		pair->cold[1].asleep = chance(2);
		count = guest_c_reap(pair->guest, tags, statuses);
		if (count > FIPSEE_MAX_PACKED || (count > 0 && (uint32_t)count > pair->outstanding))
			fail("more answers than calls", (unsigned int)count);
		/* The channel of a faulty peer is closed. */
		if (count < 0)
			break;
		pair->outstanding -= (uint32_t)count;
		submit_some(pair);
	}
	free(tags);
	free(statuses);
}

static void upgrade_requests(void)
{
	uint16_t count = (uint16_t)chance(9);
	struct fipsee_vm_queue *entries = calloc(count ? count : 1, sizeof(*entries));
	size_t length = sizeof(struct fipsee_vm_question) + count * sizeof(*entries);
	uint8_t *into = malloc(length), *doorbell = malloc(sizeof(struct fipsee_vm_question));

	if (!entries || !into || !doorbell)
		abort();
	if (guest_c_attach(into, entries, count) != length ||
	    guest_c_doorbell_request(doorbell, ~0ULL, count) != sizeof(struct fipsee_vm_question))
		fail("an upgrade request of another length", count);
	free(entries);
	free(into);
	free(doorbell);
}

int main(int argc, char **argv)
{
	unsigned int round, lap;
	struct pair pair;

	state = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
	for (round = 0; round < ROUNDS; round++) {
		upgrade_requests();
		make(&pair);
		for (lap = 0; lap < MESSAGES; lap++) {
			submit_some(&pair);
			answer_some(&pair);
			reap_all(&pair);
		}
		submit_some(&pair);
		inject_faults(&pair);
		end(&pair);
	}
	printf("%u rings\n", round);
	return 0;
}
