/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#define _GNU_SOURCE
#include "port.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

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

static bool is_within(const struct net_port *port, uint64_t offset_bytes, uint64_t length_bytes)
{
	return offset_bytes <= port->region_bytes && length_bytes <= port->region_bytes - offset_bytes;
}

static bool is_slot_count(uint32_t slots)
{
	return slots >= FIPSEE_MIN_SLOTS && slots <= FIPSEE_MAX_SLOTS && (slots & (slots - 1)) == 0;
}

static int open_queue(struct net_port *port, struct net_queue *queue, const struct fipsee_queue_entry *entry,
		      struct channel_error *error)
{
	struct fipsee_ring requests, completions;

	if (!is_slot_count(entry->request_slots) || !is_slot_count(entry->completion_slots) ||
	    entry->request_start >= entry->request_slots || entry->completion_start >= entry->completion_slots)
		return refuse(error, "the slots of a ring");
	if (entry->depth == 0 || entry->depth > FIPSEE_MAX_DEPTH || entry->depth > entry->request_slots ||
	    entry->depth + FIPSEE_NET_EVENT_CREDITS > entry->completion_slots)
		return refuse(error, "the depth of a queue");
	if ((entry->request_offset_bytes | entry->completion_offset_bytes | entry->cold_offset_bytes) % FIPSEE_SLOT_BYTES != 0 ||
	    !is_within(port, entry->request_offset_bytes, (uint64_t)entry->request_slots * FIPSEE_SLOT_BYTES) ||
	    !is_within(port, entry->completion_offset_bytes, (uint64_t)entry->completion_slots * FIPSEE_SLOT_BYTES) ||
	    !is_within(port, entry->cold_offset_bytes, 2 * (uint64_t)FIPSEE_COLD_BYTES))
		return refuse(error, "the place of a ring");
	if (entry->worker_cpu_plus_1 != 0 || entry->choices != 0 || entry->reserved[0] != 0 || entry->reserved[1] != 0 ||
	    entry->reserved[2] != 0)
		return refuse(error, "a field of the table of queues that was not asked for");
	requests.slots = (struct fipsee_slot *)(void *)(port->region + entry->request_offset_bytes);
	requests.cold = (struct fipsee_cold *)(void *)(port->region + entry->cold_offset_bytes);
	requests.slot_count = entry->request_slots;
	completions.slots = (struct fipsee_slot *)(void *)(port->region + entry->completion_offset_bytes);
	completions.cold = requests.cold + 1;
	completions.slot_count = entry->completion_slots;
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

	if (!is_within(port, 0, sizeof(header) + sizeof(entries)))
		return refuse(error, "the length of the region");
	memcpy(&header, port->region, sizeof(header));
	memcpy(entries, port->region + sizeof(header), sizeof(entries));
	/* Without this the compiler may load again, after a check, what was copied here. */
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	if (header.magic != FIPSEE_REGION_MAGIC || header.version != FIPSEE_REGION_VERSION ||
	    header.queue_count != FIPSEE_NET_QUEUES_PER_PAIR || header.region_bytes != port->region_bytes || header.features != 0 ||
	    header.reserved[0] != 0 || header.reserved[1] != 0)
		return refuse(error, "the header of the region");
	if (header.pool_offset_bytes % FIPSEE_REGION_PAGE_BYTES != 0 || header.pool_bytes > FIPSEE_MAX_POOL_BYTES ||
	    !is_within(port, header.pool_offset_bytes, header.pool_bytes))
		return refuse(error, "the place of the pool");
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

/* A truncation must not turn an access into SIGBUS. */
static int check_file(int file, uint64_t length_bytes, struct channel_error *error)
{
	int seals = fcntl(file, F_GET_SEALS);
	struct stat status;

	if (seals < 0 || !(seals & F_SEAL_SHRINK) || seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE))
		return refuse(error, "memory that may shrink");
	if (fstat(file, &status) != 0 || length_bytes == 0 || length_bytes > FIPSEE_MAX_REGION_BYTES ||
	    length_bytes > (uint64_t)status.st_size)
		return refuse(error, "the length of the region");
	return 0;
}

static int open_attached(struct net_port *port, const struct control_answer *answer, struct channel_error *error)
{
	const struct fipsee_attached *attached = &answer->attached;
	void *region;
	int outcome;

	memcpy(&port->info, attached->service_info, sizeof(port->info));
	outcome = check_info(&port->info, error);
	if (outcome != 0)
		return outcome;
	if (attached->queue_count != FIPSEE_NET_QUEUES_PER_PAIR || attached->reserved != 0 ||
	    answer->descriptor_count != 1 + 2 * FIPSEE_NET_QUEUES_PER_PAIR)
		return refuse(error, "the queues granted");
	outcome = check_file(answer->descriptors[0], attached->region_bytes, error);
	if (outcome != 0)
		return outcome;
	region = mmap(NULL, attached->region_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, answer->descriptors[0], 0);
	if (region == MAP_FAILED)
		return channel_fail(error, errno, "cannot map the channel's memory: %s", strerror(errno));
	port->region = region;
	port->region_bytes = attached->region_bytes;
	outcome = open_channel(port, error);
	if (outcome != 0)
		munmap(region, port->region_bytes);
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
