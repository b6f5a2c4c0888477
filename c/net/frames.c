/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Frames of a port that is attached: sending, receiving and waiting. */
#define _GNU_SOURCE
#include "internal.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

/* Frames without a tag begin with so many bytes, those with one with so many. */
#define HEADER_BYTES 14
#define TAGGED_HEADER_BYTES 18

int net_fault(struct net_port *port, const char *what)
{
	port->fault = what;
	/* A daemon that breaks the protocol is talked to no more. */
	(void)shutdown(port->control, SHUT_RDWR);
	return -EPROTO;
}

static uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* ---- Buffers --------------------------------------------------------------------------------------------------- */

uint16_t net_give(struct net_buffers *buffers)
{
	uint16_t tag = buffers->free_tags[--buffers->free_count];

	buffers->given[tag] = 1;
	return tag;
}

/* The daemon gives it back: false if it has not got it. */
static bool take_back(struct net_buffers *buffers, uint16_t tag)
{
	if (tag >= buffers->count || !buffers->given[tag])
		return false;
	buffers->given[tag] = 0;
	buffers->free_tags[buffers->free_count++] = tag;
	return true;
}

static uint32_t place_of(const struct net_buffers *buffers, uint16_t tag)
{
	return buffers->offset_bytes + tag * buffers->stride_bytes;
}

/* A message of kind 0: 0 or -EPROTO. */
static int take_returned(struct net_port *port, struct net_buffers *buffers, const struct fipsee_net_returned *returned,
			 bool of_frames)
{
	uint32_t index;

	if (returned->kind != FIPSEE_NET_RETURNED || returned->reserved != 0 || returned->count == 0 ||
	    returned->count > FIPSEE_NET_MAX_RETURNED)
		return net_fault(port, "a message of what is given back");
	for (index = 0; index < returned->count; index++) {
		const struct fipsee_net_returned_entry *entry = &returned->entries[index];

		if (entry->status > FIPSEE_NET_STATUS_DOWN || !take_back(buffers, entry->tag))
			return net_fault(port, "a tag or status that is given back");
		/* A buffer without a frame has a reason. */
		if (!of_frames && entry->status == FIPSEE_NET_STATUS_OK)
			return net_fault(port, "the status of a buffer");
		if (entry->status != FIPSEE_NET_STATUS_OK) {
			port->newest_refusal = entry->status;
			port->refused++;
		}
		port->sent_back += of_frames;
	}
	return 0;
}

/* ---- Addresses ------------------------------------------------------------------------------------------------- */

static void remember(struct net_addresses *addresses, const uint8_t *frame)
{
	memcpy(addresses->bytes, frame, sizeof(addresses->bytes));
	addresses->are_known = true;
}

static bool are_those_of(const struct net_addresses *addresses, const uint8_t *frame)
{
	return addresses->are_known && memcmp(addresses->bytes, frame, sizeof(addresses->bytes)) == 0;
}

/* ---- Sending --------------------------------------------------------------------------------------------------- */

uint32_t net_port_unsent(const struct net_port *port)
{
	return port->transmit.buffers.count - port->transmit.buffers.free_count;
}

int net_port_reap(struct net_port *port)
{
	union { union fipsee_message message; struct fipsee_net_returned returned; } answer;

	while (fipsee_reader_receive(&port->transmit.completions, &answer.message)) {
		int outcome = take_returned(port, &port->transmit.buffers, &answer.returned, true);

		if (outcome != 0)
			return outcome;
	}
	return 0;
}

void net_publish(struct net_queue *queue, const union fipsee_message *message, bool rings)
{
	const uint64_t one = 1;

	fipsee_writer_publish(&queue->requests, message);
	/* A daemon that is gone is noticed where we wait. */
	if (rings && fipsee_writer_needs_doorbell(&queue->requests) && write(queue->daemon_doorbell, &one, sizeof(one)) < 0)
		return;
}

int net_port_send(struct net_port *port, const uint8_t *frame, uint32_t length_bytes)
{
	static const struct fipsee_net_offload none;

	return net_port_send_offloaded(port, frame, length_bytes, &none);
}

static bool is_none(const struct fipsee_net_offload *offload)
{
	static const struct fipsee_net_offload none;

	return memcmp(offload, &none, sizeof(none)) == 0;
}

int net_port_send_offloaded(struct net_port *port, const uint8_t *frame, uint32_t length_bytes,
			    const struct fipsee_net_offload *offload)
{
	union { union fipsee_message message; struct fipsee_net_send send; struct fipsee_net_small small; } request;
	struct net_buffers *buffers = &port->transmit.buffers;
	uint16_t tag;
	int outcome;

	if (length_bytes < HEADER_BYTES || length_bytes > port->info.max_frame_bytes)
		return -EMSGSIZE;
	outcome = net_port_reap(port);
	if (outcome != 0)
		return outcome;
	if (buffers->free_count == 0)
		return -EAGAIN;
	tag = net_give(buffers);
	memset(&request, 0, sizeof(request));
	if (length_bytes <= FIPSEE_NET_MAX_COMPRESSED_BYTES && is_none(offload) && are_those_of(&port->transmit.addresses, frame)) {
		request.small.operation = FIPSEE_NET_SEND_COMPRESSED;
		request.small.length_bytes = (uint8_t)length_bytes;
		request.small.tag = tag;
		memcpy(request.small.bytes, frame + FIPSEE_NET_ADDRESSES_BYTES, length_bytes - FIPSEE_NET_ADDRESSES_BYTES);
	} else if (length_bytes <= FIPSEE_NET_MAX_SMALL_BYTES && is_none(offload)) {
		remember(&port->transmit.addresses, frame);
		request.small.operation = FIPSEE_NET_SEND_SMALL;
		request.small.length_bytes = (uint8_t)length_bytes;
		request.small.tag = tag;
		memcpy(request.small.bytes, frame, length_bytes);
	} else {
		/* The shortest that holds a tagged header is as good as the longest. */
		uint32_t first_bytes = least(length_bytes, length_bytes % 2 ? TAGGED_HEADER_BYTES : FIPSEE_NET_MAX_FIRST_BYTES);

		remember(&port->transmit.addresses, frame);
		request.send.operation = FIPSEE_NET_SEND;
		request.send.first_bytes = (uint8_t)first_bytes;
		request.send.tag = tag;
		request.send.offset_bytes = place_of(buffers, tag);
		request.send.rest_bytes = length_bytes - first_bytes;
		request.send.offload = *offload;
		memcpy(request.send.first, frame, first_bytes);
		memcpy(port->pool + request.send.offset_bytes, frame + first_bytes, request.send.rest_bytes);
	}
	net_publish(&port->transmit, &request.message, true);
	return 0;
}

/* ---- Receiving ------------------------------------------------------------------------------------------------- */

/* Post what is free. The daemon looks for buffers when it has a frame: it needs no doorbell. */
void net_port_post(struct net_port *port)
{
	struct net_buffers *buffers = &port->receive.buffers;

	while (buffers->free_count > 0) {
		union { union fipsee_message message; struct fipsee_net_post post; } request;

		memset(&request, 0, sizeof(request));
		request.post.operation = FIPSEE_NET_POST;
		while (buffers->free_count > 0 && request.post.count < FIPSEE_NET_MAX_POSTED) {
			struct fipsee_net_posted_buffer *posted = &request.post.buffers[request.post.count++];

			posted->tag = net_give(buffers);
			posted->offset_bytes = place_of(buffers, posted->tag);
			posted->length_bytes = buffers->stride_bytes;
		}
		net_publish(&port->receive, &request.message, false);
	}
}

static int take_small(struct net_port *port, const struct fipsee_net_small *small, uint8_t *frame)
{
	if (small->length_bytes < HEADER_BYTES || small->length_bytes > FIPSEE_NET_MAX_SMALL_BYTES)
		return net_fault(port, "the length of a small frame");
	if (!take_back(&port->receive.buffers, small->tag))
		return net_fault(port, "the tag of a buffer");
	memcpy(frame, small->bytes, small->length_bytes);
	remember(&port->receive.addresses, frame);
	return small->length_bytes;
}

static int take_compressed(struct net_port *port, const struct fipsee_net_small *small, uint8_t *frame)
{
	const struct net_queue *queue = &port->receive;

	if (small->length_bytes < HEADER_BYTES || small->length_bytes > FIPSEE_NET_MAX_COMPRESSED_BYTES ||
	    small->length_bytes > queue->buffers.stride_bytes || !queue->addresses.are_known)
		return net_fault(port, "the length of a frame without addresses, or there were none");
	if (!take_back(&port->receive.buffers, small->tag))
		return net_fault(port, "the tag of a buffer");
	memcpy(frame, queue->addresses.bytes, FIPSEE_NET_ADDRESSES_BYTES);
	memcpy(frame + FIPSEE_NET_ADDRESSES_BYTES, small->bytes, small->length_bytes - FIPSEE_NET_ADDRESSES_BYTES);
	return small->length_bytes;
}

/* Check all frames of a message; they are copied out one by one, and their buffers are free then. */
static int take_packed(struct net_port *port, const struct fipsee_net_filled_packed *packed)
{
	struct net_buffers *buffers = &port->receive.buffers;
	uint32_t index;

	if (packed->reserved != 0 || packed->count == 0 || packed->count > FIPSEE_NET_MAX_PACKED_RECEIVED)
		return net_fault(port, "a message with several frames");
	for (index = 0; index < packed->count; index++) {
		const struct fipsee_net_packed_buffer *frame = &packed->frames[index];

		if (frame->length_bytes < HEADER_BYTES || frame->length_bytes > port->info.max_frame_bytes ||
		    frame->length_bytes > buffers->stride_bytes)
			return net_fault(port, "the length of a frame");
		if (frame->tag >= buffers->count || !buffers->given[frame->tag])
			return net_fault(port, "the tag of a buffer");
		buffers->given[frame->tag] = 0;
	}
	port->unpacked = *packed;
	port->unpacked_taken = 0;
	return 0;
}

/* The next frame of such a message. There is one. */
static int next_unpacked(struct net_port *port, uint8_t *frame)
{
	const struct fipsee_net_packed_buffer *next = &port->unpacked.frames[port->unpacked_taken++];
	struct net_buffers *buffers = &port->receive.buffers;

	memcpy(frame, port->pool + place_of(buffers, next->tag), next->length_bytes);
	buffers->free_tags[buffers->free_count++] = next->tag;
	return next->length_bytes;
}

static bool is_unpacked_left(const struct net_port *port)
{
	return port->unpacked_taken < port->unpacked.count;
}

static int take_filled(struct net_port *port, const struct fipsee_net_filled *filled, uint8_t *frame)
{
	struct net_buffers *buffers = &port->receive.buffers;
	uint32_t done = 0, index;

	if (filled->reserved != 0 || filled->reserved_too != 0)
		return net_fault(port, "a reserved field of a frame");
	if (net_offload_needs(&filled->offload) & ~port->info.offloads)
		return net_fault(port, "an offload that is none, or not in force");
	if (filled->length_bytes < HEADER_BYTES || filled->length_bytes > port->info.max_frame_bytes || filled->count == 0 ||
	    filled->count > FIPSEE_NET_MAX_FRAME_BUFFERS ||
	    (filled->length_bytes + buffers->stride_bytes - 1) / buffers->stride_bytes != filled->count)
		return net_fault(port, "the length of a frame");
	for (index = 0; index < filled->count; index++) {
		uint32_t length_bytes = least(filled->length_bytes - done, buffers->stride_bytes);

		if (!take_back(buffers, filled->tags[index]))
			return net_fault(port, "the tag of a buffer");
		memcpy(frame + done, port->pool + place_of(buffers, filled->tags[index]), length_bytes);
		done += length_bytes;
	}
	port->offload = filled->offload;
	if (filled->length_bytes <= FIPSEE_NET_MAX_COMPRESSED_BYTES)
		remember(&port->receive.addresses, frame);
	return (int)filled->length_bytes;
}

int net_port_receive(struct net_port *port, uint8_t *frame)
{
	union {
		union fipsee_message message;
		struct fipsee_net_small small;
		struct fipsee_net_filled filled;
		struct fipsee_net_filled_packed packed;
		struct fipsee_net_returned returned;
		struct fipsee_net_event event;
	} answer;
	int outcome;

	memset(&port->offload, 0, sizeof(port->offload));
	if (is_unpacked_left(port)) {
		outcome = next_unpacked(port, frame);
		net_port_post(port);
		return outcome;
	}
	if (!fipsee_reader_receive(&port->receive.completions, &answer.message))
		return net_acknowledge(port);
	switch (answer.small.operation) {
	case FIPSEE_NET_RECEIVED_SMALL:
		outcome = take_small(port, &answer.small, frame);
		break;
	case FIPSEE_NET_RECEIVED_COMPRESSED:
		outcome = take_compressed(port, &answer.small, frame);
		break;
	case FIPSEE_NET_RECEIVED:
		outcome = take_filled(port, &answer.filled, frame);
		break;
	case FIPSEE_NET_RECEIVED_PACKED:
		outcome = take_packed(port, &answer.packed);
		if (outcome == 0)
			outcome = next_unpacked(port, frame);
		break;
	case FIPSEE_NET_EVENT:
		outcome = net_take_event(port, &answer.event);
		break;
	default:
		outcome = take_returned(port, &port->receive.buffers, &answer.returned, false);
	}
	if (outcome >= 0)
		net_port_post(port);
	return outcome;
}

/* ---- Waiting --------------------------------------------------------------------------------------------------- */

/* Sleep until the daemon rings for one of these queues, of which there are at most as many as a port has pairs. */
static int sleep_on(int control, struct net_queue *const *queues, uint32_t count)
{
	struct pollfd ready[FIPSEE_NET_MAX_PAIRS + 1];
	bool remains = false, is_gone;
	uint32_t index;

	for (index = 0; index < count; index++) {
		ready[index] = (struct pollfd){ .fd = queues[index]->our_doorbell, .events = POLLIN };
		remains |= fipsee_reader_arm_and_work_remains(&queues[index]->completions);
	}
	ready[count] = (struct pollfd){ .fd = control, .events = POLLRDHUP };
	if (!remains)
		(void)poll(ready, count + 1, -1);	/* a signal wakes as well as a ring: the caller looks again */
	is_gone = ready[count].revents & (POLLHUP | POLLRDHUP | POLLERR | POLLNVAL);
	for (index = 0; index < count; index++) {
		uint8_t bytes[8];
		ssize_t received = 1;

		fipsee_reader_disarm(&queues[index]->completions);
		while (received > 0)
			received = recv(queues[index]->our_doorbell, bytes, sizeof(bytes), MSG_DONTWAIT);
		is_gone |= received == 0 || errno != EAGAIN;
	}
	/* What the daemon published before it died still counts. */
	for (index = 0; index < count && is_gone; index++)
		is_gone = !fipsee_reader_has_message(&queues[index]->completions);
	return is_gone ? -ENOTCONN : 0;
}

int net_port_sleep(struct net_port *port, struct net_queue *queue)
{
	return queue == &port->receive && is_unpacked_left(port) ? 0 : sleep_on(port->control, &queue, 1);
}

int net_port_sleep_pairs(struct net_port *ports, uint32_t count)
{
	struct net_queue *queues[FIPSEE_NET_MAX_PAIRS];
	uint32_t index;

	for (index = 0; index < count; index++) {
		if (is_unpacked_left(&ports[index]))
			return 0;
		queues[index] = &ports[index].receive;
	}
	return sleep_on(ports[0].control, queues, count);
}
