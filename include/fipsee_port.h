/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * libfipsee: exchange Ethernet frames at a port of a network that a Fip-see daemon switches.
 *
 * Build: cc program.c $(pkg-config --cflags --libs fipsee). Guide with examples: docs/guide/c.md. C11 and C++17; Linux.
 *
 * A port (fipsee_port_open) sends frames (fipsee_port_send; or in bursts, fipsee_port_stage and fipsee_port_submit; or filled in
 * place, fipsee_port_buffer) and receives them (fipsee_port_receive, which copies, or fipsee_port_take, which does not). A frame
 * begins with its destination address and has no check sequence at its end: 14 bytes to fipsee_port_info.max_frame_bytes.
 *
 * A receiver that is too slow loses frames, which the daemon counts; no sender waits for it. A frame that the daemon does not
 * take, for example with another source address than the port's, is counted, too (fipsee_port_get_counters).
 *
 * Errors, fork() and times are as in fipsee_client.h, and so are threads: a port is for one thread at a time. Errors of several calls:
 *   -EAGAIN    all transmit buffers are in use: wait (fipsee_port_descriptor, fipsee_port_wait_sent), or drop the frame
 *   -EMSGSIZE  the frame is shorter or longer than the network's frames; nothing was done
 *   -ENOTCONN  the daemon ended or closed the connection; see fipsee_port_reconnect
 *   -EPROTO    the daemon broke the protocol; close the port
 */
#ifndef FIPSEE_PORT_H
#define FIPSEE_PORT_H

#include "fipsee_client.h"

#ifdef __cplusplus
extern "C" {
#endif

struct fipsee_port;	/* a pair of queues of a port; from fipsee_port_open to fipsee_port_close */
struct fipsee_port_list;	/* ports that may be opened; from fipsee_port_list_open to fipsee_port_list_close */

/* ---- Port ------------------------------------------------------------------------------------------------------ */

/* How to open a port; 0 or NULL means default. It may grow at its end: size_bytes says which fields the program knows. */
struct fipsee_port_options {
	size_t size_bytes;		/* sizeof(struct fipsee_port_options) */
	const char *socket_path;	/* as fipsee_options.socket_path */
	const char *port;		/* network and port, "lan/a"; must be given */
	uint32_t depth;			/* frames on their way in each direction, default 256; the daemon may grant fewer */
	uint32_t buffer_bytes;		/* length of a receive buffer, default: the longest frame; a longer one fills several */
	uint32_t wait;			/* FIPSEE_WAIT_* */
	uint32_t receive_depth;		/* receive buffers, default `depth` */
	uint64_t look_ns;		/* adaptive waiting: how long to poll before sleeping, default 200 us */
	uint32_t offloads;		/* FIPSEE_PORT_OFFLOAD_*, default none; the daemon may grant fewer: fipsee_port_info.offloads */
	uint32_t least_mtu;		/* refuse to open a port of a network with a smaller MTU */
};

/* Set every field to its default. */
static inline void fipsee_port_options_init(struct fipsee_port_options *options)
{
	static const struct fipsee_port_options defaults = { sizeof(struct fipsee_port_options), NULL, NULL, 0, 0, 0, 0, 0, 0, 0 };

	*options = defaults;
}

/*
 * Open the port options->port. On success *port is for fipsee_port_close; `options` and its strings are not needed afterwards.
 * Errors: as fipsee_open; -ENOENT also when there is no such port that this user may use, -EBUSY when another client has it.
 */
int fipsee_port_open(const struct fipsee_port_options *options, struct fipsee_port **port);

/*
 * The same for several threads, with a pair of queues each: up to `max_ports` into `ports`. Frames of one flow come by one of
 * them. Returns how many the daemon granted, at least 1. Each is for fipsee_port_close; the port is free after the last, and
 * frames whose flows belong to one that is closed before are lost.
 */
int fipsee_port_open_pairs(const struct fipsee_port_options *options, struct fipsee_port **ports, uint32_t max_ports);

/*
 * Close it. Frames that were submitted are sent. Buffers and frames of it must not be used any more. NULL is allowed.
 * Errors: -ENOTCONN, -ETIMEDOUT: frames that were submitted may or may not have been sent; it is closed nevertheless.
 */
int fipsee_port_close(struct fipsee_port *port);

/*
 * What frames may leave to be done, the ones that are sent and the ones that come: see fipsee_port_stage_offloaded. The numbers
 * are those of fipsee_net.h.
 */
#define FIPSEE_PORT_OFFLOAD_CHECKSUM 1	/* the checksum of TCP, UDP or another protocol with a sum of 16-bit words */
#define FIPSEE_PORT_OFFLOAD_TSO4 2	/* the division of TCP over IPv4 into frames that fit the MTU; frames have up to 64 KiB then */
#define FIPSEE_PORT_OFFLOAD_TSO6 4	/* of TCP over IPv6 */
#define FIPSEE_PORT_OFFLOAD_ECN 8	/* of TCP with CWR, with one of these two */
#define FIPSEE_PORT_OFFLOAD_USO 16	/* of UDP */

struct fipsee_port_info {
	size_t size_bytes;		/* sizeof(struct fipsee_port_info), set before the call; it may grow at its end */
	uint8_t mac[6];			/* the port's address */
	uint16_t mtu;			/* of the network */
	uint32_t max_frame_bytes;	/* MTU, Ethernet header and a VLAN tag; 65553 with a division in force */
	uint32_t offloads;		/* FIPSEE_PORT_OFFLOAD_* in force */
	uint16_t vlan;			/* of a port that has one; else 0 */
	uint16_t pairs;			/* granted */
	uint32_t send_depth;		/* transmit buffers */
	uint32_t receive_depth;		/* receive buffers */
};

/* Describe the port. */
int fipsee_port_get_info(const struct fipsee_port *port, struct fipsee_port_info *info);

#define FIPSEE_PORT_UP 1	/* it sends and gets frames: no administrator has taken it down */

struct fipsee_port_status {
	size_t size_bytes;		/* sizeof(struct fipsee_port_status), set before the call; it may grow at its end */
	uint64_t changes;		/* how often the daemon has reported a change since the port was opened */
	uint8_t mac[6];			/* the port's address */
	uint16_t mtu;			/* never greater than that of fipsee_port_info, for which the buffers are */
	uint32_t flags;			/* FIPSEE_PORT_UP */
	uint32_t reserved;
};

/*
 * What the port is like now, as the daemon has reported it. Reports come among the frames: those that came so far are looked at by
 * the calls that receive (fipsee_port_receive, _take, and those that wait), with or without a frame after them. They wake an event
 * loop, but no call that waits for a frame: let that time out now and then, if changes matter.
 */
int fipsee_port_get_status(const struct fipsee_port *port, struct fipsee_port_status *status);

struct fipsee_port_counters {
	size_t size_bytes;		/* sizeof(struct fipsee_port_counters), set before the call; it may grow at its end */
	uint64_t sent_back;		/* frames that the daemon has given back, refused ones included */
	uint64_t refused;		/* frames that the daemon did not take */
	uint64_t lost;			/* in flight when the daemon was lost; whether they were delivered is not known */
	uint32_t newest_refusal;	/* FIPSEE_PORT_REFUSED_*; 0 if `refused` is 0 */
	uint32_t unsent;		/* frames staged or submitted and not given back */
};

/* Why a frame was not taken; the same numbers as in fipsee_net.h. */
#define FIPSEE_PORT_REFUSED_INVALID 1
#define FIPSEE_PORT_REFUSED_UNSUPPORTED 2
#define FIPSEE_PORT_REFUSED_BAD_MEMORY 3
#define FIPSEE_PORT_REFUSED_TOO_SHORT 4
#define FIPSEE_PORT_REFUSED_TOO_LONG 5
#define FIPSEE_PORT_REFUSED_WRONG_SOURCE 6	/* not the port's address */
#define FIPSEE_PORT_REFUSED_WRONG_VLAN 7	/* the port is not in it */
#define FIPSEE_PORT_REFUSED_LIMITED 8		/* more broadcasts than the port may send */
#define FIPSEE_PORT_REFUSED_BAD_OFFLOAD 10	/* the frame is not what its offload says */
#define FIPSEE_PORT_REFUSED_WRONG_IP 11		/* not an IP address that the port may send with */
#define FIPSEE_PORT_REFUSED_DOWN 12		/* an administrator took the port down */

/* Count the frames of this port so far. Takes what was given back first, as fipsee_port_reap. */
int fipsee_port_get_counters(struct fipsee_port *port, struct fipsee_port_counters *counters);

/* What was wrong with the frame, and what to do, of a FIPSEE_PORT_REFUSED_*. Never NULL, static. */
const char *fipsee_port_refusal_message(uint32_t refusal);

/*
 * After -ENOTCONN: attach again, for at most give_up_after_ns (UINT64_MAX: for ever), with all `count` ports of one
 * fipsee_port_open_pairs in their order. Receive buffers are posted again; frames in flight are lost, and counted. Frames that the
 * program has stay readable until they are released; transmit buffers that it has cannot be sent any more (-ESTALE). There is
 * another descriptor.
 * Errors: as fipsee_port_open; -ESTALE when the port has another address or MTU now: close it.
 */
int fipsee_port_reconnect(struct fipsee_port *const *ports, uint32_t count, uint64_t give_up_after_ns);

/* ---- Sending --------------------------------------------------------------------------------------------------- */

/* Send a frame. It is copied; returns at once. Errors: -EAGAIN, -EMSGSIZE. */
int fipsee_port_send(struct fipsee_port *port, const void *frame, size_t length_bytes);

/* The same, but it leaves with the next fipsee_port_submit (or a call that waits, or fipsee_port_arm). */
int fipsee_port_stage(struct fipsee_port *port, const void *frame, size_t length_bytes);

/* Send what is staged, in one burst. Cheap when nothing is staged. Never blocks. */
int fipsee_port_submit(struct fipsee_port *port);

/* A transmit buffer, to be filled in place. */
struct fipsee_port_buffer {
	void *data;			/* shared memory, aligned to 64 bytes */
	uint64_t handle;
	uint32_t capacity_bytes;	/* max_frame_bytes */
	uint32_t reserved;
};

/* Take a transmit buffer; it is for fipsee_port_stage_buffer or fipsee_port_put_back. Errors: -EAGAIN. */
int fipsee_port_get_buffer(struct fipsee_port *port, struct fipsee_port_buffer *buffer);

/* Stage the frame that begins the buffer. After -EMSGSIZE the buffer is free again. */
int fipsee_port_stage_buffer(struct fipsee_port *port, const struct fipsee_port_buffer *buffer, uint32_t length_bytes);
int fipsee_port_put_back(struct fipsee_port *port, const struct fipsee_port_buffer *buffer);

#define FIPSEE_PORT_CHECKSUM_NEEDED 1	/* left to be done: its place holds the sum of what is not covered, as the pseudo header of TCP */
#define FIPSEE_PORT_CHECKSUM_VALID 2	/* the checksum was checked and is right; not together with _NEEDED */
#define FIPSEE_PORT_SEGMENT_TCP4 1
#define FIPSEE_PORT_SEGMENT_TCP6 4
#define FIPSEE_PORT_SEGMENT_UDP 5
#define FIPSEE_PORT_SEGMENT_ECN 0x80	/* added to one of TCP */

/* What a frame leaves to be done, in the order of a virtio-net header. All 0: nothing. */
struct fipsee_port_offload {
	uint8_t flags;			/* FIPSEE_PORT_CHECKSUM_* */
	uint8_t segmentation;		/* FIPSEE_PORT_SEGMENT_*, with FIPSEE_PORT_CHECKSUM_NEEDED; 0: the frame is not to be divided */
	uint16_t header_bytes;		/* of all headers, of frames that are received and to be divided */
	uint16_t segment_bytes;		/* most payload of a segment */
	uint16_t checksum_start;	/* where the sum begins, from the beginning of the frame */
	uint16_t checksum_offset;	/* its place, from there */
};

/*
 * As fipsee_port_stage and fipsee_port_stage_buffer, of a frame that leaves this to be done, by offloads that are in force. A
 * receiver that takes the same gets it as it is; for any other the daemon does it. A frame that is not what `offload` says is
 * refused (FIPSEE_PORT_REFUSED_BAD_OFFLOAD). NULL: nothing is left.
 */
int fipsee_port_stage_offloaded(struct fipsee_port *port, const void *frame, size_t length_bytes,
				const struct fipsee_port_offload *offload);
int fipsee_port_stage_buffer_offloaded(struct fipsee_port *port, const struct fipsee_port_buffer *buffer, uint32_t length_bytes,
				       const struct fipsee_port_offload *offload);

/* Take what the daemon gave back, without waiting; returns how many frames. Sending does so when it needs buffers. */
int fipsee_port_reap(struct fipsee_port *port);

/*
 * fipsee_port_submit, then wait until all frames were given back. Returns 1; 0 when timeout_ns passed (negative: wait for ever).
 * Errors: -ENOTCONN.
 */
int fipsee_port_wait_sent(struct fipsee_port *port, int64_t timeout_ns);

/* ---- Receiving ------------------------------------------------------------------------------------------------- */

/*
 * Copy the next frame into `buffer`; returns its length, or 0 when none is there. Never blocks. Give room for max_frame_bytes: a
 * frame that is longer than the buffer is cut, and its whole length returned, as with recv(2) and MSG_TRUNC.
 */
int fipsee_port_receive(struct fipsee_port *port, void *buffer, size_t buffer_bytes);

/* The same, and wait for a frame; 0 when timeout_ns passed (negative: wait for ever). Errors: -ENOTCONN when the daemon is gone. */
int fipsee_port_wait(struct fipsee_port *port, void *buffer, size_t buffer_bytes, int64_t timeout_ns);

/* What the frame leaves to be done that was copied last. Nothing, unless offloads are in force. */
int fipsee_port_received_offload(const struct fipsee_port *port, struct fipsee_port_offload *offload);

/* A received frame, where the daemon put it. */
struct fipsee_port_frame {
	const void *data;		/* its first piece. The daemon can write there at any time: copy first what must be checked */
	uint32_t length_bytes;		/* of the frame */
	uint32_t piece_bytes;		/* at `data`; less than length_bytes with short options->buffer_bytes: fipsee_port_frame_pieces */
	uint64_t handle;
};

/*
 * Take up to `max_frames` frames without a copy; returns how many, 0 when none is there. Never blocks. Each has receive buffers until
 * it is released: while the program keeps all of them, frames are lost. Errors: -EAGAIN: it has as many frames as there are buffers.
 */
int fipsee_port_take(struct fipsee_port *port, struct fipsee_port_frame *frames, uint32_t max_frames);

/* The same, and wait for the first, as fipsee_port_wait. */
int fipsee_port_wait_take(struct fipsee_port *port, struct fipsee_port_frame *frames, uint32_t max_frames, int64_t timeout_ns);

/* All pieces of a frame, at most 20; returns how many there are, -EMSGSIZE when `max_pieces` are fewer. */
int fipsee_port_frame_pieces(struct fipsee_port *port, const struct fipsee_port_frame *frame, struct iovec *pieces,
			     uint32_t max_pieces);

/* What a frame that was taken leaves to be done. */
int fipsee_port_frame_offload(struct fipsee_port *port, const struct fipsee_port_frame *frame, struct fipsee_port_offload *offload);

/* Give `count` frames back; their buffers are posted again by the next call that receives. -EINVAL: one was given back before. */
int fipsee_port_release(struct fipsee_port *port, const struct fipsee_port_frame *frames, uint32_t count);

/* ---- Multicast groups ------------------------------------------------------------------------------------------ */

/*
 * Which groups' frames the port gets: all of them, until the first fipsee_port_join, and from then on those that were joined, at
 * most 64 for all pairs of the port. Broadcasts come in any case. `group` is an address of 6 bytes.
 *
 * Each call is a message in the order of the frames that are sent: it needs a transmit buffer, is counted by fipsee_port_counters,
 * and is in force once it was given back (fipsee_port_wait_sent). A 65th group is refused, FIPSEE_PORT_REFUSED_LIMITED. The groups
 * are forgotten when the port is closed, and by fipsee_port_reconnect: join again.
 * Errors: -EAGAIN; -EINVAL when `group` is no address of a group, or that of broadcasts.
 */
int fipsee_port_join(struct fipsee_port *port, const uint8_t *group);
/* Get no frames to this group any more. After the last one none are left: fipsee_port_all_groups brings all back. */
int fipsee_port_leave(struct fipsee_port *port, const uint8_t *group);
/* Get frames to all groups, as in the beginning (`all` is not 0), or to none. Either way none is joined any more. */
int fipsee_port_all_groups(struct fipsee_port *port, int all);

/* ---- Event loops ----------------------------------------------------------------------------------------------- */

/*
 * As fipsee_descriptor, fipsee_arm and fipsee_woken: readable when a frame came, when a transmit buffer is free again that was
 * missing, and when the daemon is gone. fipsee_port_arm submits what is staged and returns 1 when work remains: receive, do not
 * wait. fipsee_port_woken fails with -ENOTCONN when the daemon is gone and no frame is left.
 */
int fipsee_port_descriptor(struct fipsee_port *port);
int fipsee_port_arm(struct fipsee_port *port);
int fipsee_port_woken(struct fipsee_port *port);

/* ---- List ------------------------------------------------------------------------------------------------------ */

#define FIPSEE_PORT_IN_USE 1	/* a client has it */

struct fipsee_listed_port {
	size_t size_bytes;		/* sizeof(struct fipsee_listed_port), set before the call; it may grow at its end */
	const char *name;		/* for fipsee_port_options.port; valid until fipsee_port_list_close */
	uint8_t mac[6];
	uint16_t mtu;
	uint32_t flags;			/* FIPSEE_PORT_IN_USE */
	uint32_t reserved;
};

/* Ask the daemon for the ports that this user may open, in the order of their names; none is opened. As fipsee_list_open. */
int fipsee_port_list_open(const char *socket_path, struct fipsee_port_list **list);
/* Returns 1 with the next port, 0 at the end. */
int fipsee_port_list_next(struct fipsee_port_list *list, struct fipsee_listed_port *port);
void fipsee_port_list_close(struct fipsee_port_list *list);

#ifdef __cplusplus
}
#endif

#endif /* FIPSEE_PORT_H */
