/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A client of a port in C over include/ alone: the second implementation of docs/protocol.md section 10, against which
 * crates/net/src/port is tested. One pair of queues, for one thread. Control messages are those of c/fio/control.h.
 *
 * The daemon is trusted with frames and not with memory: what it says is copied once, checked, then used.
 */
#ifndef FIPSEE_NET_PORT_H
#define FIPSEE_NET_PORT_H

#include "control.h"
#include "fipsee_net.h"
#include "fipsee_ring.h"

/* Destination and source of the last frame that had them in a message, or came in a short one, if there was one. */
struct net_addresses {
	uint8_t bytes[FIPSEE_NET_ADDRESSES_BYTES];
	bool are_known;
};

/* Equal pieces of the pool, known by their numbers, which are their tags. */
struct net_buffers {
	uint32_t offset_bytes;			/* of the first, in the pool */
	uint32_t stride_bytes;
	uint32_t count;
	uint8_t *given;				/* by tag: the daemon has the use of it */
	uint16_t *free_tags;			/* of the others, in any order */
	uint32_t free_count;
};

struct net_queue {
	struct fipsee_writer requests;
	struct fipsee_reader completions;
	int daemon_doorbell;
	int our_doorbell;
	struct net_buffers buffers;
	struct net_addresses addresses;
};

/* An attached port. */
struct net_port {
	int control;
	uint8_t *region;
	uint64_t region_bytes;
	uint8_t *pool;
	struct fipsee_net_port_info info;	/* checked */
	struct net_queue transmit, receive;
	struct fipsee_net_filled_packed unpacked;	/* checked: frames of one message, of which so many were received */
	uint32_t unpacked_taken;
	uint64_t sent_back, refused;
	uint16_t newest_refusal;		/* FIPSEE_NET_STATUS_* */
	const char *fault;			/* what the daemon got wrong, once it did */
};

/* Attach to `name`, network and port. 0, or a negative errno with `error`; then there is nothing to close. */
int net_port_open(struct net_port *port, const char *socket_path, const char *name, uint32_t depth, struct channel_error *error);

/* Post the receive buffers that are free. */
void net_port_post(struct net_port *port);

/* Detach in order if the daemon is there. */
void net_port_close(struct net_port *port);

/* Send a frame. 0; -EAGAIN: all buffers are on their way; -EMSGSIZE; -EPROTO with port->fault. */
int net_port_send(struct net_port *port, const uint8_t *frame, uint32_t length_bytes);

/* Take what was given back: 0 or -EPROTO. */
int net_port_reap(struct net_port *port);

/* Frames that were sent and not given back. */
uint32_t net_port_unsent(const struct net_port *port);

/* Copy the next frame into `frame`, which has room for info.max_frame_bytes: its length, 0 if there is none, or -EPROTO. */
int net_port_receive(struct net_port *port, uint8_t *frame);

/* Sleep until the daemon rings for `queue`, one of the port's: 0, or -ENOTCONN when it is gone and nothing is left. */
int net_port_sleep(struct net_port *port, struct net_queue *queue);

#endif /* FIPSEE_NET_PORT_H */
