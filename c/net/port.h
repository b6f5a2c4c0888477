/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A client of a port in C over include/ alone: the second implementation of docs/protocol.md section 10, against which
 * crates/net/src/port is tested. Each pair of queues of a port is for one thread. Control messages are those of c/fio/control.h.
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

/* How to attach. */
struct net_options {
	uint32_t depth;				/* of each queue; the daemon may grant fewer */
	uint16_t pairs;				/* likewise */
	uint16_t least_mtu;			/* 0: any */
	uint32_t offloads;			/* FIPSEE_NET_OFFLOAD_* */
	bool takes_events;
};

/* A pair of queues of an attached port. */
struct net_port {
	int control;				/* of all pairs, as is the region */
	uint8_t *region;
	uint64_t region_bytes;
	uint8_t *pool;
	struct fipsee_net_port_info info;	/* checked; the MAC address is that of now */
	struct net_queue transmit, receive;
	struct fipsee_net_offload offload;	/* of the frame that was received last */
	bool takes_events;
	bool is_unacknowledged;			/* an event, for want of a tag */
	bool is_down;				/* as of the last event */
	uint16_t mtu;				/* likewise; never above that of `info`, for which the buffers are */
	uint64_t changes;			/* events */
	struct fipsee_net_filled_packed unpacked;	/* checked: frames of one message, of which so many were received */
	uint32_t unpacked_taken;
	uint64_t sent_back, refused;
	uint16_t newest_refusal;		/* FIPSEE_NET_STATUS_* */
	const char *fault;			/* what the daemon got wrong, once it did */
};

/* Attach to `name`, network and port. 0, or a negative errno with `error`; then there is nothing to close. */
int net_port_open(struct net_port *port, const char *socket_path, const char *name, uint32_t depth, struct channel_error *error);

/* The same with options: how many pairs the daemon granted, into `ports`, which has room for all that were asked for. */
int net_port_open_pairs(struct net_port *ports, const char *socket_path, const char *name, const struct net_options *options,
			struct channel_error *error);

/* Post the receive buffers that are free. */
void net_port_post(struct net_port *port);

/* Detach in order if the daemon is there: all pairs, of which the first is given. */
void net_port_close(struct net_port *ports);

/* Send a frame. 0; -EAGAIN: all buffers are on their way; -EMSGSIZE; -EPROTO with port->fault. */
int net_port_send(struct net_port *port, const uint8_t *frame, uint32_t length_bytes);

/* The same for a frame that leaves this to be done, by offloads that are in force. */
int net_port_send_offloaded(struct net_port *port, const uint8_t *frame, uint32_t length_bytes,
			    const struct fipsee_net_offload *offload);

/*
 * Get frames to a group, or no more; to all groups, or to none. 0; -EAGAIN: all buffers are on their way; -EPROTO. Whether the daemon
 * agrees is seen when it is given back.
 */
int net_port_join(struct net_port *port, const uint8_t group[6]);
int net_port_leave(struct net_port *port, const uint8_t group[6]);
int net_port_all_groups(struct net_port *port, bool all);

/* Take what was given back: 0 or -EPROTO. */
int net_port_reap(struct net_port *port);

/* Frames and requests that were sent and not given back. */
uint32_t net_port_unsent(const struct net_port *port);

/*
 * Copy the next frame into `frame`, which has room for info.max_frame_bytes: its length, 0 if there is none, or -EPROTO. It is also 0
 * after an event, whether a frame is behind it or not.
 */
int net_port_receive(struct net_port *port, uint8_t *frame);

/* Sleep until the daemon rings for `queue`, one of the port's: 0, or -ENOTCONN when it is gone and nothing is left. */
int net_port_sleep(struct net_port *port, struct net_queue *queue);

/* The same for the receive queues of all `count` pairs of a port. */
int net_port_sleep_pairs(struct net_port *ports, uint32_t count);

#endif /* FIPSEE_NET_PORT_H */
