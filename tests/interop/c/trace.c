/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * fipsee_ring.h over hooks that write down what they do: the order of accesses, which no run on one machine can show.
 * x86 keeps stores in order whatever the compiler was told.
 */
#include <string.h>

#include "fipsee.h"

static struct fipsee_slot slots[4];
static struct fipsee_cold cold __attribute__((aligned(FIPSEE_SLOT_BYTES)));
static union fipsee_message sent;
static char trace[256];
static size_t trace_length;

static void note(char letter)
{
	if (trace_length < sizeof(trace) - 1)
		trace[trace_length++] = letter;
}

/* Which word: s stamp, r released, a asleep. */
static char name_of(const void *word)
{
	return word == &cold.released ? 'r' : word == &cold.asleep ? 'a' : 's';
}

static uint32_t traced_load(const uint32_t *word)
{
	note('L');
	note(name_of(word));
	return *word;
}

static void traced_store(uint32_t *word, uint32_t value)
{
	note('S');
	note(name_of(word));
	/* A stamp that stands before its payload is what Release forbids. */
	if (name_of(word) == 's' &&
	    memcmp((const uint8_t *)word - FIPSEE_STAMP_OFFSET_BYTES, sent.slot.payload, FIPSEE_PAYLOAD_BYTES) != 0)
		note('!');
	*word = value;
}

static void traced_copy(union fipsee_message *into, const struct fipsee_slot *slot)
{
	note('C');
	memcpy(into, slot, sizeof(*into));
}

#define FIPSEE_LOAD_ACQUIRE(word) traced_load(word)
#define FIPSEE_STORE_RELEASE(word, value) traced_store((word), (value))
#define FIPSEE_FULL_FENCE() note('F')
#define FIPSEE_COPY_IN(into, slot) traced_copy((into), (slot))
#include "fipsee_ring.h"

#include "interop.h"

static void run(struct fipsee_stream_writer *stream, struct fipsee_reader *reader)
{
	union fipsee_message message;
	uint32_t published;

	memset(&sent, 0x5a, sizeof(sent));
	(void)fipsee_stream_publish_burst(stream, &sent, 1, &published);
	note(' ');
	(void)fipsee_writer_needs_doorbell(&stream->writer);
	note(' ');
	(void)fipsee_reader_receive(reader, &message);
	note(' ');
	fipsee_reader_release_all(reader);
	note(' ');
	(void)fipsee_reader_arm_and_work_remains(reader);
	note(' ');
	(void)fipsee_writer_needs_doorbell(&stream->writer);
	note(' ');
	fipsee_reader_disarm(reader);
	note(' ');
	(void)fipsee_stream_free(stream, 4, &published);
}

const char *interop_trace(void)
{
	const struct fipsee_ring ring = { slots, &cold, 4 };
	struct fipsee_stream_writer stream;
	struct fipsee_reader reader;

	memset(slots, 0, sizeof(slots));
	memset(&cold, 0, sizeof(cold));
	memset(trace, 0, sizeof(trace));
	trace_length = 0;
	if (fipsee_stream_init(&stream, ring, fipsee_cursor_at_start(3)) != FIPSEE_RING_OK ||
	    fipsee_reader_init(&reader, ring, fipsee_cursor_at_start(3)) != FIPSEE_RING_OK)
		return "geometry refused";
	run(&stream, &reader);
	return trace;
}
