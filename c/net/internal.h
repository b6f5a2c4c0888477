/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the files of this client share. */
#ifndef FIPSEE_NET_INTERNAL_H
#define FIPSEE_NET_INTERNAL_H

#include "port.h"

/* Offloads with which frames may be longer than the MTU. */
#define NET_SEGMENTATION (FIPSEE_NET_OFFLOAD_TSO4 | FIPSEE_NET_OFFLOAD_TSO6 | FIPSEE_NET_OFFLOAD_USO)

/* The daemon broke the protocol: returns -EPROTO. */
int net_fault(struct net_port *port, const char *what);

/* Take a buffer to give to the daemon. There is one. */
uint16_t net_give(struct net_buffers *buffers);

/* Publish a message, and wake the daemon if it sleeps and is to look. */
void net_publish(struct net_queue *queue, const union fipsee_message *message, bool rings);

/* What an offload of a received frame needs, or a bit that no daemon grants if it is none. */
uint32_t net_offload_needs(const struct fipsee_net_offload *offload);

/* A message of kind 3: 0 or -EPROTO. */
int net_take_event(struct net_port *port, const struct fipsee_net_event *event);

/* Acknowledge the last event if that is still to be done and a tag is free: 0 or -EPROTO. */
int net_acknowledge(struct net_port *port);

#endif /* FIPSEE_NET_INTERNAL_H */
