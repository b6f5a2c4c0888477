/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The C half of the interop tests on random bytes, for gcc's sanitizers: every buffer is in memory of exactly its length. What
 * parses a peer's bytes goes through tests/fuzz/c/replay.c, both rings through peer.c. Exit status: 0 all as expected, 1 wrong.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interop.h"

#define ROUNDS 20000

static uint64_t state = 1;

static uint32_t word(void)
{
	state = state * 6364136223846793005ULL + 1442695040888963407ULL;
	return (uint32_t)(state >> 32);
}

static void *memory(size_t bytes)
{
	void *made = malloc(bytes);

	if (!made)
		abort();
	return made;
}

static void fail(const char *what, unsigned int number)
{
	fprintf(stderr, "sanitized: %s (%u)\n", what, number);
	exit(1);
}

/* What is built of a message's fields has these fields. */
static void messages(void)
{
	union fipsee_message *message = aligned_alloc(FIPSEE_SLOT_BYTES, sizeof(*message));
	uint32_t *fields = memory(INTEROP_FIELDS * sizeof(*fields)), *again = memory(INTEROP_FIELDS * sizeof(*again));
	uint32_t round, kind, index;

	if (!message)
		abort();
	for (round = 0; round < ROUNDS; round++) {
		for (index = 0; index < FIPSEE_PAYLOAD_BYTES; index++)
			message->slot.payload[index] = (uint8_t)word();
		for (kind = 0; kind < 6; kind++) {
			if (interop_describe(kind, message, fields) != (kind >= 1 && kind <= 4))
				fail("a kind that is none is known, or one that is is not", kind);
			if (kind < 1 || kind > 4)
				continue;
			interop_build(kind, fields, message);
			interop_describe(kind, message, again);
			/* Reserved fields are not built. */
			for (index = 5; index < INTEROP_FIELDS; index++)
				if (again[index] != fields[index])
					fail("another field than was built", index);
		}
	}
	free(message);
	free(fields);
	free(again);
}

static void controls(void)
{
	struct interop_control *in = memory(sizeof(*in)), *out = memory(sizeof(*out));
	uint8_t *bytes = memory(FIPSEE_MAX_MESSAGE_BYTES);
	uint32_t round, index;

	for (round = 0; round < ROUNDS; round++) {
		size_t length;
		uint8_t *exactly;

		memset(in, 0, sizeof(*in));
		in->values[0] = 1 + word() % 12;
		for (index = 1; index < 8; index++)
			in->values[index] = word();
		in->text_bytes = word() % (sizeof(in->text) + 1);
		for (index = 0; index < in->text_bytes; index++)
			in->text[index] = (uint8_t)('a' + word() % 26);
		/* A name is shorter than a reason; what is longer no program here makes. */
		if (in->values[0] != FIPSEE_REFUSED && in->text_bytes > FIPSEE_MAX_NAME_BYTES)
			in->text_bytes = FIPSEE_MAX_NAME_BYTES;
		length = interop_control_encode(in, bytes);
		exactly = memory(length ? length : 1);
		memcpy(exactly, bytes, length);
		if (length)
			interop_control_decode(exactly, length, out);
		/* And cut short. */
		if (length > 1)
			interop_control_decode(exactly + 1, length - 1, out);
		free(exactly);
	}
	free(in);
	free(out);
	free(bytes);
}

static void examples(void)
{
	uint8_t *into = memory(512);
	size_t index, length;
	const struct interop_entry *entry;

	for (index = 0; interop_golden(index, into, &length); index++)
		if (length > 512)
			fail("an example is too long", (unsigned int)index);
	if (index < 30)
		fail("examples are missing", (unsigned int)index);
	free(into);
	for (index = 0; (entry = interop_layout(index)); index++)
		if (strlen(entry->name) == 0)
			fail("a size has no name", (unsigned int)index);
	for (index = 0; index < 256; index++)
		if (strlen(interop_trace((uint32_t)index)) < 20 || strlen(interop_trace_runs((uint32_t)index)) < 20)
			fail("the trace is short", (unsigned int)index);
	interop_pace_asks(word(), 100, 500);
	interop_pace_reset(1);
	for (index = 0; index < ROUNDS; index++)
		interop_pace_window(word() >> word() % 32);
}

int main(void)
{
	messages();
	controls();
	examples();
	puts("done");
	return 0;
}
