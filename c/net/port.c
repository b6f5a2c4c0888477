/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#define _GNU_SOURCE
#include "internal.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "region.h"

/* Frames with a tag begin with so many bytes. */
#define TAGGED_HEADER_BYTES 18
#define BUFFER_ALIGN_BYTES 64
/* Of a receive buffer with a segmentation in force: 20 of them hold every frame. */
#define SEGMENTED_BUFFER_BYTES 4096
#define MAX_VLAN 4094

/* ---- Attaching ------------------------------------------------------------------------------------------------- */

static int refuse(struct channel_error *error, const char *what)
{
	return channel_fail(error, EPROTO, "the daemon gave a value that the protocol does not allow: %s", what);
}

/* The longest frame, with this MTU and these offloads. */
static uint32_t longest(uint32_t mtu, uint32_t offloads)
{
	return (offloads & NET_SEGMENTATION ? FIPSEE_NET_MAX_SEGMENTED_BYTES : mtu) + TAGGED_HEADER_BYTES;
}

static uint32_t stride(uint32_t length_bytes)
{
	return (length_bytes + BUFFER_ALIGN_BYTES - 1) / BUFFER_ALIGN_BYTES * BUFFER_ALIGN_BYTES;
}

static uint32_t receive_stride(uint32_t max_frame_bytes, uint32_t offloads)
{
	return offloads & NET_SEGMENTATION ? SEGMENTED_BUFFER_BYTES : stride(max_frame_bytes);
}

static int check_info(const struct fipsee_net_port_info *info, const struct net_options *options, struct channel_error *error)
{
	size_t index;

	if (info->mac[0] & 1)
		return refuse(error, "the MAC address");
	if (info->mtu < FIPSEE_NET_MIN_MTU || info->mtu > FIPSEE_NET_MAX_MTU)
		return refuse(error, "the MTU");
	if (info->max_frame_bytes != longest(info->mtu, info->offloads))
		return refuse(error, "the longest frame");
	if (info->offloads & ~options->offloads)
		return refuse(error, "offloads that were not asked for");
	if (info->vlan > MAX_VLAN)
		return refuse(error, "the VLAN");
	if (info->pairs == 0 || info->pairs > FIPSEE_NET_MAX_PAIRS || info->pairs > options->pairs)
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

static void free_buffers(struct net_port *ports)
{
	uint32_t index;

	for (index = 0; index < ports[0].info.pairs; index++) {
		free(ports[index].transmit.buffers.given);
		free(ports[index].transmit.buffers.free_tags);
		free(ports[index].receive.buffers.given);
		free(ports[index].receive.buffers.free_tags);
	}
}

static uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* Put a pair on its queues, with its share of the pool: whole cache lines. */
static int open_pair(struct net_port *port, const struct fipsee_queue_entry entries[FIPSEE_NET_QUEUES_PER_PAIR], uint64_t first_bytes,
		     uint64_t share_bytes, struct channel_error *error)
{
	uint32_t sent = stride(port->info.max_frame_bytes);
	uint32_t received = receive_stride(port->info.max_frame_bytes, port->info.offloads);
	uint32_t count = least(least(entries[0].depth, entries[1].depth), (uint32_t)(share_bytes / (sent + (uint64_t)received)));
	uint32_t place = (uint32_t)first_bytes;
	int outcome = open_queue(port, &port->transmit, &entries[0], error);

	if (outcome == 0)
		outcome = open_queue(port, &port->receive, &entries[1], error);
	if (outcome != 0)
		return outcome;
	if (count == 0)
		return channel_fail(error, ENOMEM, "the daemon granted less memory than a frame each way needs; raise max_pool_bytes");
	if (make_buffers(&port->transmit.buffers, place, sent, count) != 0 ||
	    make_buffers(&port->receive.buffers, place + count * sent, received, count) != 0)
		return channel_fail(error, ENOMEM, "no memory for %u buffers", count);
	return 0;
}

/* Copy header and table once, check the copy, and put the pairs on the queues. */
static int open_channel(struct net_port *ports, struct channel_error *error)
{
	struct fipsee_queue_entry entries[FIPSEE_NET_MAX_PAIRS * FIPSEE_NET_QUEUES_PER_PAIR];
	uint32_t pairs = ports[0].info.pairs, index;
	size_t entries_bytes = pairs * FIPSEE_NET_QUEUES_PER_PAIR * sizeof(entries[0]);
	struct fipsee_region_header header;
	uint64_t share_bytes;
	int outcome;

	if (!region_holds(ports[0].region_bytes, 0, sizeof(header) + entries_bytes))
		return refuse(error, "the length of the region");
	memcpy(&header, ports[0].region, sizeof(header));
	memcpy(entries, ports[0].region + sizeof(header), entries_bytes);
	/* Without this the compiler may load again, after a check, what was copied here. */
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	outcome = region_check_header(&header, ports[0].region_bytes, 0, pairs * FIPSEE_NET_QUEUES_PER_PAIR, error);
	share_bytes = header.pool_bytes / pairs / BUFFER_ALIGN_BYTES * BUFFER_ALIGN_BYTES;
	for (index = 0; index < pairs && outcome == 0; index++) {
		ports[index].pool = ports[0].region + header.pool_offset_bytes;
		outcome = open_pair(&ports[index], &entries[index * FIPSEE_NET_QUEUES_PER_PAIR], index * share_bytes, share_bytes, error);
	}
	if (outcome != 0)
		free_buffers(ports);
	return outcome;
}

static int open_attached(struct net_port *ports, const struct control_answer *answer, const struct net_options *options,
			 struct channel_error *error)
{
	const struct fipsee_attached *attached = &answer->attached;
	struct fipsee_net_port_info info;
	uint32_t queues, index;
	int outcome;

	memcpy(&info, attached->service_info, sizeof(info));
	outcome = check_info(&info, options, error);
	if (outcome != 0)
		return outcome;
	queues = info.pairs * (uint32_t)FIPSEE_NET_QUEUES_PER_PAIR;
	if (attached->queue_count != queues || attached->reserved != 0 || answer->descriptor_count != 1 + 2 * queues)
		return refuse(error, "the queues granted");
	outcome = region_map(answer->descriptors[0], attached->region_bytes, &ports[0].region, error);
	if (outcome != 0)
		return outcome;
	ports[0].region_bytes = attached->region_bytes;
	ports[0].info = info;
	ports[0].mtu = info.mtu;
	ports[0].takes_events = options->takes_events;
	for (index = 1; index < info.pairs; index++)
		ports[index] = ports[0];
	outcome = open_channel(ports, error);
	if (outcome != 0)
		munmap(ports[0].region, ports[0].region_bytes);
	return outcome;
}

static int attach(struct net_port *ports, const char *name, const struct net_options *options, struct channel_error *error)
{
	struct fipsee_hello hello = {
		.header = control_header(FIPSEE_HELLO, sizeof(hello)), .version_min = FIPSEE_VERSION, .version_max = FIPSEE_VERSION,
	};
	uint32_t max_frame_bytes = longest(FIPSEE_NET_MAX_MTU, options->offloads);
	uint64_t each_bytes = stride(max_frame_bytes) + (uint64_t)receive_stride(max_frame_bytes, options->offloads);
	struct fipsee_attach request = {
		.header = control_header(FIPSEE_ATTACH, sizeof(request)),
		.service = FIPSEE_SERVICE_NET,
		.queue_count = (uint16_t)(options->pairs * FIPSEE_NET_QUEUES_PER_PAIR),
		.depth = options->depth,
		.flags = (options->offloads & FIPSEE_NET_ATTACH_OFFLOADS) | (options->takes_events ? FIPSEE_NET_ATTACH_EVENTS : 0) |
			 (uint32_t)options->least_mtu << FIPSEE_NET_ATTACH_MTU_SHIFT,
		.pool_bytes = options->pairs * (uint64_t)options->depth * each_bytes,
	};
	struct control_answer answer;
	int outcome = control_ask(ports[0].control, &hello, FIPSEE_WELCOME, -1, "the greeting", &answer, error);
	uint32_t index;

	if (outcome != 0)
		return outcome;
	if (answer.welcome.version != FIPSEE_VERSION || answer.welcome.features != 0)
		return refuse(error, "the version or features in force");
	memcpy(request.name, name, strlen(name));
	outcome = control_ask(ports[0].control, &request, FIPSEE_ATTACHED, -1, "the request to attach", &answer, error);
	if (outcome != 0)
		return outcome;
	outcome = open_attached(ports, &answer, options, error);
	if (outcome != 0) {
		control_close_descriptors(&answer, 0);
		return outcome;
	}
	close(answer.descriptors[0]);
	for (index = 0; index < ports[0].info.pairs; index++) {
		const int *doorbells = &answer.descriptors[1 + 4 * index];

		ports[index].transmit.daemon_doorbell = doorbells[0];
		ports[index].transmit.our_doorbell = doorbells[1];
		ports[index].receive.daemon_doorbell = doorbells[2];
		ports[index].receive.our_doorbell = doorbells[3];
		net_port_post(&ports[index]);
	}
	return ports[0].info.pairs;
}

int net_port_open_pairs(struct net_port *ports, const char *socket_path, const char *name, const struct net_options *options,
			struct channel_error *error)
{
	int outcome;

	if (options->pairs == 0 || options->pairs > FIPSEE_NET_MAX_PAIRS)
		return channel_fail(error, EINVAL, "give 1 to %d pairs of queues", FIPSEE_NET_MAX_PAIRS);
	memset(ports, 0, options->pairs * sizeof(*ports));
	if (strlen(name) == 0 || strlen(name) > FIPSEE_MAX_NAME_BYTES || options->depth == 0)
		return channel_fail(error, EINVAL, "give a port of 1 to %d bytes, and a depth", FIPSEE_MAX_NAME_BYTES);
	ports[0].control = control_connect(socket_path, error);
	if (ports[0].control < 0)
		return ports[0].control;
	outcome = attach(ports, name, options, error);
	if (outcome < 0)
		close(ports[0].control);
	return outcome;
}

int net_port_open(struct net_port *port, const char *socket_path, const char *name, uint32_t depth, struct channel_error *error)
{
	const struct net_options options = { .depth = depth, .pairs = 1 };
	int outcome = net_port_open_pairs(port, socket_path, name, &options, error);

	return outcome < 0 ? outcome : 0;
}

void net_port_close(struct net_port *ports)
{
	struct fipsee_control_header detach = control_header(FIPSEE_DETACH, sizeof(detach));
	struct control_answer answer;
	struct channel_error ignored;
	bool has_fault = false;
	uint32_t index;

	for (index = 0; index < ports[0].info.pairs; index++)
		has_fault |= ports[index].fault != NULL;
	if (!has_fault)
		(void)control_ask(ports[0].control, &detach, FIPSEE_DETACHED, -1, "the request to detach", &answer, &ignored);
	close(ports[0].control);
	for (index = 0; index < ports[0].info.pairs; index++) {
		close(ports[index].transmit.daemon_doorbell);
		close(ports[index].transmit.our_doorbell);
		close(ports[index].receive.daemon_doorbell);
		close(ports[index].receive.our_doorbell);
	}
	munmap(ports[0].region, ports[0].region_bytes);
	free_buffers(ports);
}
