/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * One-way streams over a ring (docs/protocol.md section 2.3): the writer's flow control by the release counter, and the
 * reader that lets messages gather. Part of fipsee_ring.h, which includes it.
 */
#ifndef FIPSEE_STREAM_H
#define FIPSEE_STREAM_H

#include "fipsee_ring.h"

/* The writing end of a one-way stream. */
struct fipsee_stream_writer {
	struct fipsee_writer writer;
	uint32_t published;		/* messages published, modulo 2^32 */
	uint32_t released;		/* the release counter as last accepted */
};

/* FIPSEE_RING_OK, or FIPSEE_RING_FAULT when the geometry is invalid. */
static inline int fipsee_stream_init(struct fipsee_stream_writer *stream, struct fipsee_ring ring,
				     struct fipsee_cursor cursor)
{
	stream->published = 0;
	stream->released = 0;
	return fipsee_writer_init(&stream->writer, ring, cursor);
}

/*
 * Slots free now, into `*free_slots`; looks at the shared counter only when fewer than `wanted` are known to be.
 * FIPSEE_RING_FAULT when the counter moved by more than is outstanding.
 */
static inline int fipsee_stream_free(struct fipsee_stream_writer *stream, uint32_t wanted, uint32_t *free_slots)
{
	uint32_t slot_count = stream->writer.ring.slot_count;
	uint32_t outstanding = stream->published - stream->released;

	if (slot_count - outstanding < wanted) {
		uint32_t released = FIPSEE_LOAD_ACQUIRE(&stream->writer.ring.cold->released); /* B */

		if (released - stream->released > outstanding)
			return FIPSEE_RING_FAULT;
		stream->released = released;
		outstanding = stream->published - released;
	}
	*free_slots = slot_count - outstanding;
	return FIPSEE_RING_OK;
}

/* Publish as many of `count` messages as fit, in one burst; `*published` says how many. FIPSEE_RING_FAULT as above. */
static inline int fipsee_stream_publish_burst(struct fipsee_stream_writer *stream, const union fipsee_message *messages,
					      uint32_t count, uint32_t *published)
{
	uint32_t free_slots = 0;

	*published = 0;
	if (count > stream->writer.ring.slot_count)
		count = stream->writer.ring.slot_count;
	if (fipsee_stream_free(stream, count, &free_slots) != FIPSEE_RING_OK)
		return FIPSEE_RING_FAULT;
	if (count > free_slots)
		count = free_slots;
	fipsee_writer_publish_all(&stream->writer, messages, count);
	stream->published += count;
	*published = count;
	return FIPSEE_RING_OK;
}

/*
 * A stream's reader that touches waits once after an empty look under continuous load, so that messages gather: close
 * behind the writer it would take each line away while the next is written. This many messages since the last wait, that
 * came within this many ticks of each other, are continuous load; shorter rings have no room to gather in.
 */
#define FIPSEE_GATHER_MESSAGES 32
#define FIPSEE_GATHER_TICKS_PER_MESSAGE 128
#define FIPSEE_GATHER_SLOTS 256
#define FIPSEE_GATHER_TICKS 2000

/* Streams: does an empty look of this reader depend on the time? */
static inline bool fipsee_reader_may_gather(const struct fipsee_reader *reader)
{
	return reader->touch_rest && reader->received - reader->gather_since >= FIPSEE_GATHER_MESSAGES &&
	       reader->ring.slot_count >= FIPSEE_GATHER_SLOTS;
}

/* Streams: how many ticks to wait after an empty look at `now`; 0 there: no time is known, and there is no wait. */
static inline uint64_t fipsee_reader_gather_ticks(struct fipsee_reader *reader, uint64_t now)
{
	uint32_t messages = reader->received - reader->gather_since;
	uint64_t since = now - reader->gather_ticks, ticks = 2 * (uint64_t)reader->ring.slot_count;

	if (!fipsee_reader_may_gather(reader))
		return 0;
	reader->gather_since = reader->received;
	reader->gather_ticks = now;
	if (now == 0 || since > (uint64_t)messages * FIPSEE_GATHER_TICKS_PER_MESSAGE)
		return 0;
	return ticks < FIPSEE_GATHER_TICKS ? ticks : FIPSEE_GATHER_TICKS;
}

/* Streams: a look found nothing. */
static inline void fipsee_reader_gather(struct fipsee_reader *reader)
{
	uint64_t now, ticks;

	if (!fipsee_reader_may_gather(reader))
		return;
	now = FIPSEE_TICKS();
	ticks = fipsee_reader_gather_ticks(reader, now);
	while (FIPSEE_TICKS() - now < ticks)
		FIPSEE_PAUSE();
}

/* Streams: as fipsee_reader_receive(), and let messages gather as described above. */
static inline bool fipsee_reader_receive_streamed(struct fipsee_reader *reader, union fipsee_message *into)
{
	bool received = fipsee_reader_receive(reader, into);

	if (!received)
		fipsee_reader_gather(reader);
	return received;
}

#endif
