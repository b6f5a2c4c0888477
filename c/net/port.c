/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#define _GNU_SOURCE
#include "port.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "region.h"

/* Frames with a tag begin with so many bytes. */
#define TAGGED_HEADER_BYTES 18
#define BUFFER_ALIGN_BYTES 64
#define MAX_VLAN 4094

/* ---- Attaching ------------------------------------------------------------------------------------------------- */

static int refuse(struct channel_error *error, const char *what)
{
	return channel_fail(error, EPROTO, "the daemon gave a value that the protocol does not allow: %s", what);
}

static int check_info(const struct fipsee_net_port_info *info, struct channel_error *error)
{
	size_t index;

	if (info->mac[0] & 1)
		return refuse(error, "the MAC address");
	if (info->mtu < FIPSEE_NET_MIN_MTU || info->mtu > FIPSEE_NET_MAX_MTU)
		return refuse(error, "the MTU");
	if (info->max_frame_bytes != info->mtu + (uint32_t)TAGGED_HEADER_BYTES)
		return refuse(error, "the longest frame");
	if (info->offloads != 0)
		return refuse(error, "offloads that were not asked for");
	if (info->vlan > MAX_VLAN)
		return refuse(error, "the VLAN");
	if (info->pairs != 1)
		return refuse(error, "the pairs of queues");
	for (index = 0; index < sizeof(info->reserved) / sizeof(info->reserved[0]); index++)
		if (info->reserved[index] != 0)
			return refuse(error, "a reserved field of the port's information");
	return 0;
}

static int open_queue(struct net_port *port, struct net_queue *queue, const struct fipsee_queue_entry *entry,
		      struct channel_error *error)
{
	int outcome = region_check_entry(entry, port->region_bytes, 0, FIPSEE_NET_EVENT_CREDITS, error);
	struct fipsee_ring requests, completions;

	if (outcome != 0)
		return outcome;
	region_rings(port->region, entry, &requests, &completions);
	if (fipsee_writer_init(&queue->requests, requests, fipsee_cursor_at_start(entry->request_start)) != FIPSEE_RING_OK ||
	    fipsee_reader_init(&queue->completions, completions, fipsee_cursor_at_start(entry->completion_start)) != FIPSEE_RING_OK)
		return refuse(error, "the place of a ring");
	return 0;
}

/* `count` buffers, all of them ours. */
static int make_buffers(struct net_buffers *buffers, uint32_t offset_bytes, uint32_t stride_bytes, uint32_t count)
{
	uint32_t tag;

	buffers->offset_bytes = offset_bytes;
	buffers->stride_bytes = stride_bytes;
	buffers->count = count;
	buffers->free_count = count;
	buffers->given = calloc(count, sizeof(*buffers->given));
	buffers->free_tags = calloc(count, sizeof(*buffers->free_tags));
	if (!buffers->given || !buffers->free_tags)
		return -ENOMEM;
	for (tag = 0; tag < count; tag++)
		buffers->free_tags[tag] = (uint16_t)tag;
	return 0;
}

static void free_buffers(struct net_port *port)
{
	free(port->transmit.buffers.given);
	free(port->transmit.buffers.free_tags);
	free(port->receive.buffers.given);
	free(port->receive.buffers.free_tags);
}

static uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* Copy header and table once, check the copy, and put the queues on them. */
static int open_channel(struct net_port *port, struct channel_error *error)
{
	uint32_t stride_bytes = (port->info.max_frame_bytes + BUFFER_ALIGN_BYTES - 1) / BUFFER_ALIGN_BYTES * BUFFER_ALIGN_BYTES;
	struct fipsee_region_header header;
	struct fipsee_queue_entry entries[FIPSEE_NET_QUEUES_PER_PAIR];
	uint32_t count;
	int outcome;

	if (!region_holds(port->region_bytes, 0, sizeof(header) + sizeof(entries)))
		return refuse(error, "the length of the region");
	memcpy(&header, port->region, sizeof(header));
	memcpy(entries, port->region + sizeof(header), sizeof(entries));
	/* Without this the compiler may load again, after a check, what was copied here. */
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	outcome = region_check_header(&header, port->region_bytes, 0, FIPSEE_NET_QUEUES_PER_PAIR, error);
	if (outcome == 0)
		outcome = open_queue(port, &port->transmit, &entries[0], error);
	if (outcome == 0)
		outcome = open_queue(port, &port->receive, &entries[1], error);
	if (outcome != 0)
		return outcome;
	port->pool = port->region + header.pool_offset_bytes;
	count = least(least(entries[0].depth, entries[1].depth), (uint32_t)(header.pool_bytes / (2 * (uint64_t)stride_bytes)));
	if (count == 0)
		return channel_fail(error, ENOMEM, "the daemon granted less memory than a frame each way needs; raise max_pool_bytes");
	if (make_buffers(&port->transmit.buffers, 0, stride_bytes, count) != 0 ||
	    make_buffers(&port->receive.buffers, count * stride_bytes, stride_bytes, count) != 0) {
		free_buffers(port);
		return channel_fail(error, ENOMEM, "no memory for %u buffers", count);
	}
	return 0;
}

static int open_attached(struct net_port *port, const struct control_answer *answer, struct channel_error *error)
{
	const struct fipsee_attached *attached = &answer->attached;
	int outcome;

	memcpy(&port->info, attached->service_info, sizeof(port->info));
	outcome = check_info(&port->info, error);
	if (outcome != 0)
		return outcome;
	if (attached->queue_count != FIPSEE_NET_QUEUES_PER_PAIR || attached->reserved != 0 ||
	    answer->descriptor_count != 1 + 2 * FIPSEE_NET_QUEUES_PER_PAIR)
		return refuse(error, "the queues granted");
	outcome = region_map(answer->descriptors[0], attached->region_bytes, &port->region, error);
	if (outcome != 0)
		return outcome;
	port->region_bytes = attached->region_bytes;
	outcome = open_channel(port, error);
	if (outcome != 0)
		munmap(port->region, port->region_bytes);
	return outcome;
}

static int attach(struct net_port *port, const char *name, uint32_t depth, struct channel_error *error)
{
	struct fipsee_hello hello = {
		.header = control_header(FIPSEE_HELLO, sizeof(hello)), .version_min = FIPSEE_VERSION, .version_max = FIPSEE_VERSION,
	};
	struct fipsee_attach request = {
		.header = control_header(FIPSEE_ATTACH, sizeof(request)),
		.service = FIPSEE_SERVICE_NET,
		.queue_count = FIPSEE_NET_QUEUES_PER_PAIR,
		.depth = depth,
		.pool_bytes = 2 * (uint64_t)depth * (FIPSEE_NET_MAX_MTU + 2 * BUFFER_ALIGN_BYTES),
	};
	struct control_answer answer;
	int outcome = control_ask(port->control, &hello, FIPSEE_WELCOME, -1, "the greeting", &answer, error);

	if (outcome != 0)
		return outcome;
	if (answer.welcome.version != FIPSEE_VERSION || answer.welcome.features != 0)
		return refuse(error, "the version or features in force");
	memcpy(request.name, name, strlen(name));
	outcome = control_ask(port->control, &request, FIPSEE_ATTACHED, -1, "the request to attach", &answer, error);
	if (outcome != 0)
		return outcome;
	outcome = open_attached(port, &answer, error);
	if (outcome != 0) {
		control_close_descriptors(&answer, 0);
		return outcome;
	}
	close(answer.descriptors[0]);
	port->transmit.daemon_doorbell = answer.descriptors[1];
	port->transmit.our_doorbell = answer.descriptors[2];
	port->receive.daemon_doorbell = answer.descriptors[3];
	port->receive.our_doorbell = answer.descriptors[4];
	net_port_post(port);
	return 0;
}

int net_port_open(struct net_port *port, const char *socket_path, const char *name, uint32_t depth, struct channel_error *error)
{
	int outcome;

	memset(port, 0, sizeof(*port));
	if (strlen(name) == 0 || strlen(name) > FIPSEE_MAX_NAME_BYTES || depth == 0)
		return channel_fail(error, EINVAL, "give a port of 1 to %d bytes, and a depth", FIPSEE_MAX_NAME_BYTES);
	port->control = control_connect(socket_path, error);
	if (port->control < 0)
		return port->control;
	outcome = attach(port, name, depth, error);
	if (outcome != 0)
		close(port->control);
	return outcome;
}

void net_port_close(struct net_port *port)
{
	struct fipsee_control_header detach = control_header(FIPSEE_DETACH, sizeof(detach));
	struct control_answer answer;
	struct channel_error ignored;

	if (!port->fault)
		(void)control_ask(port->control, &detach, FIPSEE_DETACHED, -1, "the request to detach", &answer, &ignored);
	close(port->control);
	close(port->transmit.daemon_doorbell);
	close(port->transmit.our_doorbell);
	close(port->receive.daemon_doorbell);
	close(port->receive.our_doorbell);
	munmap(port->region, port->region_bytes);
	free_buffers(port);
}
