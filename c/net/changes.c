/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Beside frames: events, groups, and what frames leave to be done (docs/protocol.md, 10.5, 10.8 and 10.9). */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>

/* ---- Requests -------------------------------------------------------------------------------------------------- */

static int request(struct net_port *port, uint8_t operation, const uint8_t *group)
{
	union { union fipsee_message message; struct fipsee_net_request request; } request;
	int outcome = net_port_reap(port);

	if (outcome != 0)
		return outcome;
	if (port->transmit.buffers.free_count == 0)
		return -EAGAIN;
	memset(&request, 0, sizeof(request));
	request.request.operation = operation;
	request.request.tag = net_give(&port->transmit.buffers);
	if (group)
		memcpy(request.request.group, group, sizeof(request.request.group));
	net_publish(&port->transmit, &request.message, true);
	return 0;
}

int net_port_join(struct net_port *port, const uint8_t group[6])
{
	return request(port, FIPSEE_NET_JOIN, group);
}

int net_port_leave(struct net_port *port, const uint8_t group[6])
{
	return request(port, FIPSEE_NET_LEAVE, group);
}

int net_port_all_groups(struct net_port *port, bool all)
{
	return request(port, all ? FIPSEE_NET_ALL_GROUPS : FIPSEE_NET_NO_GROUP, NULL);
}

/* ---- Events ---------------------------------------------------------------------------------------------------- */

int net_acknowledge(struct net_port *port)
{
	int outcome = port->is_unacknowledged ? request(port, FIPSEE_NET_ACKNOWLEDGE, NULL) : 0;

	if (outcome == 0)
		port->is_unacknowledged = false;
	return outcome == -EAGAIN ? 0 : outcome;
}

int net_take_event(struct net_port *port, const struct fipsee_net_event *event)
{
	size_t index;

	if (!port->takes_events || port->is_unacknowledged)
		return net_fault(port, "an event that was not asked for, or before the last was acknowledged");
	if (event->link > 1 || event->mtu < FIPSEE_NET_MIN_MTU || event->mtu > port->info.mtu || event->mac[0] & 1)
		return net_fault(port, "what an event says");
	for (index = 0; index < sizeof(event->reserved); index++)
		if (event->reserved[index] != 0)
			return net_fault(port, "a reserved field of an event");
	port->is_down = event->link == 0;
	port->mtu = event->mtu;
	memcpy(port->info.mac, event->mac, sizeof(port->info.mac));
	port->changes++;
	port->is_unacknowledged = true;
	return net_acknowledge(port);
}

/* ---- Offload --------------------------------------------------------------------------------------------------- */

uint32_t net_offload_needs(const struct fipsee_net_offload *offload)
{
	static const uint32_t unknown = UINT32_MAX;
	uint8_t type = offload->segmentation & (uint8_t)~FIPSEE_NET_SEGMENT_ECN;
	bool is_summed = offload->flags == FIPSEE_NET_CHECKSUM_NEEDED;
	uint32_t needs = offload->flags ? FIPSEE_NET_OFFLOAD_CHECKSUM : 0;

	if (offload->flags > FIPSEE_NET_CHECKSUM_VALID || (!is_summed && (offload->checksum_start | offload->checksum_offset)))
		return unknown;
	if (offload->segmentation == 0)
		return offload->header_bytes | offload->segment_bytes ? unknown : needs;
	if (type == FIPSEE_NET_SEGMENT_TCP4)
		needs |= FIPSEE_NET_OFFLOAD_TSO4;
	else if (type == FIPSEE_NET_SEGMENT_TCP6)
		needs |= FIPSEE_NET_OFFLOAD_TSO6;
	else if (offload->segmentation == FIPSEE_NET_SEGMENT_UDP)
		needs |= FIPSEE_NET_OFFLOAD_USO;
	else
		return unknown;
	if (offload->segmentation & FIPSEE_NET_SEGMENT_ECN)
		needs |= FIPSEE_NET_OFFLOAD_ECN;
	return is_summed && offload->segment_bytes != 0 ? needs : unknown;
}
