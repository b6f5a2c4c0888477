/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* In one translation unit with what it looks into. */
#include "../../../c/net/frames.c"
#include "../../../c/net/changes.c"

#include <stdlib.h>

#include "fuzz.h"

#define SLOTS (4 * FUZZ_DEPTH)
#define STRIDE_BYTES 576

/* Each buffer is free, given to the daemon, or one of `unpacked` that hold frames; and only one of them. */
static bool are_sound(const struct net_buffers *buffers, uint32_t unpacked)
{
	uint8_t seen[FUZZ_DEPTH] = { 0 };
	uint32_t index, given = 0;

	if (buffers->free_count > buffers->count)
		return false;
	for (index = 0; index < buffers->free_count; index++) {
		uint16_t tag = buffers->free_tags[index];

		if (tag >= buffers->count || seen[tag] || buffers->given[tag])
			return false;
		seen[tag] = 1;
	}
	for (index = 0; index < buffers->count; index++)
		given += buffers->given[index];
	return given + buffers->free_count + unpacked == buffers->count;
}

static bool is_sound(const struct net_port *port)
{
	return are_sound(&port->transmit.buffers, 0) &&
	       are_sound(&port->receive.buffers, port->unpacked.count - port->unpacked_taken);
}

/* A queue over `slots`, with all buffers free; the daemon's end of its completions. */
static int open_queue(struct net_queue *queue, struct fipsee_slot slots[2][SLOTS], struct fipsee_cold cold[2],
		      struct fipsee_writer *daemon)
{
	struct fipsee_ring requests = { .slots = slots[0], .cold = &cold[0], .slot_count = SLOTS };
	struct fipsee_ring completions = { .slots = slots[1], .cold = &cold[1], .slot_count = SLOTS };
	struct net_buffers *buffers = &queue->buffers;
	uint16_t tag;

	queue->daemon_doorbell = queue->our_doorbell = -1;
	buffers->stride_bytes = STRIDE_BYTES;
	buffers->count = buffers->free_count = FUZZ_DEPTH;
	buffers->given = calloc(FUZZ_DEPTH, sizeof(*buffers->given));
	buffers->free_tags = calloc(FUZZ_DEPTH, sizeof(*buffers->free_tags));
	if (!buffers->given || !buffers->free_tags)
		return -1;
	/* The first are used first, as the Rust client does. */
	for (tag = 0; tag < FUZZ_DEPTH; tag++)
		buffers->free_tags[tag] = (uint16_t)(FUZZ_DEPTH - 1 - tag);
	return fipsee_writer_init(&queue->requests, requests, fipsee_cursor_at_start(0)) ||
	       fipsee_reader_init(&queue->completions, completions, fipsee_cursor_at_start(0)) ||
	       fipsee_writer_init(daemon, completions, fipsee_cursor_at_start(0)) ? -1 : 0;
}

static void close_port(struct net_port *port)
{
	free(port->transmit.buffers.given);
	free(port->transmit.buffers.free_tags);
	free(port->receive.buffers.given);
	free(port->receive.buffers.free_tags);
	free(port->pool);
}

/* What a program does that sends, and receives until nothing is there. */
static int use_port(struct net_port *port, uint32_t sent_count, uint8_t *frame, struct fuzz_frames *into)
{
	uint32_t index;
	int length;

	if (net_port_reap(port) != 0)
		return FUZZ_FAULT_SENT;
	into->given_back = sent_count - net_port_unsent(port);
	into->refused = (uint32_t)port->refused;
	for (index = 0; index < FUZZ_MOST_LOOKS; index++) {
		uint64_t refused = port->refused;

		length = net_port_receive(port, frame);
		if (length < 0)
			return FUZZ_FAULT_RECEIVED;
		if (!is_sound(port) || (length > 0 && into->count == FUZZ_MOST_FRAMES))
			return FUZZ_UNSOUND;
		if (length > 0) {
			memcpy(into->bytes + FUZZ_FRAME_BYTES * into->count, frame, (size_t)length);
			into->lengths[into->count++] = (uint32_t)length;
		} else if (refused == port->refused) {
			return FUZZ_SOUND;
		}
	}
	return FUZZ_UNSOUND;
}

int fuzz_net(const union fipsee_message *messages, const uint8_t *rings, uint32_t message_count, uint32_t sent_count,
	     struct fuzz_frames *into)
{
	static struct fipsee_slot slots[2][2][SLOTS];
	static struct fipsee_cold cold[2][2];
	struct net_port port = { .control = -1, .info = { .max_frame_bytes = FUZZ_FRAME_BYTES } };
	struct fipsee_writer daemons[2];
	/* Of exactly its length: one byte too many is seen. */
	uint8_t *frame = malloc(FUZZ_FRAME_BYTES);
	int outcome = FUZZ_UNSOUND;
	uint32_t index;

	memset(slots, 0, sizeof(slots));
	memset(cold, 0, sizeof(cold));
	port.pool = malloc((size_t)2 * FUZZ_DEPTH * STRIDE_BYTES);
	if (!frame || !port.pool || open_queue(&port.transmit, slots[0], cold[0], &daemons[0]) != 0 ||
	    open_queue(&port.receive, slots[1], cold[1], &daemons[1]) != 0)
		abort();
	port.receive.buffers.offset_bytes = FUZZ_DEPTH * STRIDE_BYTES;
	/* A frame in buffers shows from which it is. */
	for (index = 0; index < 2 * FUZZ_DEPTH; index++)
		memset(port.pool + (size_t)index * STRIDE_BYTES, (int)index, STRIDE_BYTES);
	memset(frame, 2, FUZZ_FRAME_BYTES);
	for (index = 0; index < sent_count; index++)
		if (net_port_send(&port, frame, index % 2 ? 300 : 40) != 0)
			abort();
	net_port_post(&port);
	for (index = 0; index < message_count; index++)
		fipsee_writer_publish(&daemons[rings[index] & 1], &messages[index]);
	if (is_sound(&port))
		outcome = use_port(&port, sent_count, frame, into);
	if ((outcome == FUZZ_FAULT_SENT || outcome == FUZZ_FAULT_RECEIVED) != (port.fault != NULL))
		outcome = FUZZ_UNSOUND;
	free(frame);
	close_port(&port);
	return outcome;
}
