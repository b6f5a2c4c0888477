/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * fipsee_ring.h over hooks that write down what they do: the order of accesses, which no run on one machine can show.
 * x86 keeps stores in order whatever the compiler does.
 */
#include <string.h>

#include "fipsee.h"

/* Four of a stream or of calls, four of answers. */
static struct fipsee_slot slots[8];
static struct fipsee_cold cold __attribute__((aligned(FIPSEE_SLOT_BYTES)));
static union fipsee_message sent;
static char trace[512];
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
	/* A stamp stored before its payload is what Release forbids. */
	if (name_of(word) == 's' &&
	    memcmp((const uint8_t *)word - FIPSEE_STAMP_OFFSET_BYTES, sent.slot.payload, FIPSEE_PAYLOAD_BYTES) != 0)
		note('!');
	*word = value;
}

/* The lap's stamp, once more, or a mistake. */
static void traced_touch(uint32_t *word, uint32_t stamp)
{
	note('T');
	note(name_of(word));
	if (*word != stamp)
		note('!');
	*word = stamp;
}

/* A locked operation, and the slot of the stamp that it names. */
static void traced_fence_at(const uint32_t *word)
{
	size_t offset_bytes = (size_t)((const uint8_t *)word - (const uint8_t *)slots);

	note('F');
	note(offset_bytes % FIPSEE_SLOT_BYTES == FIPSEE_STAMP_OFFSET_BYTES ? (char)('0' + offset_bytes / FIPSEE_SLOT_BYTES) : '!');
}

static void traced_copy(union fipsee_message *into, const struct fipsee_slot *slot)
{
	note('C');
	memcpy(into, slot, sizeof(*into));
}

#define FIPSEE_LOAD_ACQUIRE(word) traced_load(word)
#define FIPSEE_STORE_RELEASE(word, value) traced_store((word), (value))
#define FIPSEE_FULL_FENCE() note('F')
#define FIPSEE_FULL_FENCE_AT(word) traced_fence_at(word)
#define FIPSEE_TOUCH(word, stamp) traced_touch((word), (stamp))
#define FIPSEE_COPY_IN(into, slot) traced_copy((into), (slot))
#include "fipsee_ring.h"

#include "interop.h"

static void run(struct fipsee_stream_writer *stream, struct fipsee_reader *reader)
{
	union fipsee_message message;
	uint32_t published;

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

/* Publish `count` in one burst, ask about the doorbell, receive until nothing is there, give all back. */
static void run_burst(struct fipsee_stream_writer *stream, struct fipsee_reader *reader, uint32_t count)
{
	const union fipsee_message messages[3] = { sent, sent, sent };
	union fipsee_message message;
	uint32_t published;

	(void)fipsee_stream_publish_burst(stream, messages, count, &published);
	note(' ');
	(void)fipsee_writer_needs_doorbell(&stream->writer);
	do
		note(' ');
	while (fipsee_reader_receive(reader, &message));
	note(' ');
	fipsee_reader_release_all(reader);
	note(' ');
}

/* Two calls, each answered before the next: the accesses of the answerer, which looks no more often than a message is due. */
static void run_calls(struct fipsee_writer *calls, struct fipsee_reader *reader, struct fipsee_writer *answers)
{
	union fipsee_message message;
	int call;

	for (call = 0; call < 2; call++) {
		size_t length = trace_length;

		fipsee_writer_publish(calls, &sent);
		trace_length = length;
		fipsee_reader_begin_run(reader);
		(void)fipsee_reader_receive(reader, &message);
		note(' ');
		fipsee_writer_publish(answers, &sent);
		note(' ');
		(void)fipsee_writer_needs_doorbell(answers);
		if (call == 0)
			note(' ');
	}
}

static const char *begin(uint32_t choices, struct fipsee_stream_writer *stream, struct fipsee_reader *reader)
{
	const struct fipsee_ring ring = { slots, &cold, 4 };

	memset(slots, 0, sizeof(slots));
	memset(&cold, 0, sizeof(cold));
	memset(trace, 0, sizeof(trace));
	trace_length = 0;
	memset(&sent, 0x5a, sizeof(sent));
	if (fipsee_stream_init(stream, ring, fipsee_cursor_at_start(3)) != FIPSEE_RING_OK ||
	    fipsee_reader_init(reader, ring, fipsee_cursor_at_start(3)) != FIPSEE_RING_OK)
		return "geometry refused";
	fipsee_writer_choose(&stream->writer, choices);
	fipsee_reader_choose(reader, choices);
	return trace;
}

const char *interop_trace(uint32_t choices)
{
	struct fipsee_stream_writer stream;
	struct fipsee_reader reader;
	const char *outcome = begin(choices, &stream, &reader);

	if (outcome == trace)
		run(&stream, &reader);
	return outcome;
}

const char *interop_trace_runs(uint32_t choices)
{
	const struct fipsee_ring answer_ring = { slots + 4, &cold, 4 };
	struct fipsee_stream_writer stream;
	struct fipsee_writer answers;
	struct fipsee_reader reader;
	const char *outcome = begin(choices, &stream, &reader);

	if (outcome != trace || fipsee_writer_init(&answers, answer_ring, fipsee_cursor_at_start(0)) != FIPSEE_RING_OK)
		return "geometry refused";
	fipsee_writer_choose(&answers, choices);
	run_burst(&stream, &reader, 1);
	run_burst(&stream, &reader, 3);
	run_burst(&stream, &reader, 1);
	run_calls(&stream.writer, &reader, &answers);
	return trace;
}
