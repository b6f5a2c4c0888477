/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Frames: section 10 of docs/protocol.md. Counterpart of crates/net/src/wire.rs.
 *
 * A comment says where a structure is in memory that a peer may write at any moment. Copy it once, then read the copy.
 */
#ifndef FIPSEE_NET_H
#define FIPSEE_NET_H

#include "fipsee.h"

/* `service` of ATTACH. */
#define FIPSEE_SERVICE_NET 3

/* Queues of one pair, and most pairs of one attachment. */
#define FIPSEE_NET_QUEUES_PER_PAIR 2
#define FIPSEE_NET_MAX_PAIRS 8
#define FIPSEE_NET_EVENT_CREDITS 2
#define FIPSEE_NET_MIN_MTU 68
#define FIPSEE_NET_MAX_MTU 9000

/* Operations: of a transmit queue, and of a receive queue. */
#define FIPSEE_NET_SEND 1
#define FIPSEE_NET_SEND_SMALL 2
#define FIPSEE_NET_POST 3
#define FIPSEE_NET_SEND_PACKED 9
#define FIPSEE_NET_SEND_COMPRESSED 10

/* Of a transmit queue, beside frames. */
#define FIPSEE_NET_ACKNOWLEDGE 4
#define FIPSEE_NET_JOIN 5
#define FIPSEE_NET_LEAVE 6
#define FIPSEE_NET_ALL_GROUPS 7
#define FIPSEE_NET_NO_GROUP 8

/* Flags of ATTACH: which bits are offloads, the client takes events, and from which bit on the least MTU is. */
#define FIPSEE_NET_ATTACH_OFFLOADS 0xff
#define FIPSEE_NET_ATTACH_EVENTS 0x100
#define FIPSEE_NET_ATTACH_MTU_SHIFT 16

/* Kinds of answers. */
#define FIPSEE_NET_RETURNED 0
#define FIPSEE_NET_RECEIVED 1
#define FIPSEE_NET_RECEIVED_SMALL 2
#define FIPSEE_NET_EVENT 3		/* answers nothing */
#define FIPSEE_NET_RECEIVED_PACKED 4
#define FIPSEE_NET_RECEIVED_COMPRESSED 5

#define FIPSEE_NET_MAX_FIRST_BYTES 36
#define FIPSEE_NET_MAX_SMALL_BYTES 56
#define FIPSEE_NET_ADDRESSES_BYTES 12
#define FIPSEE_NET_MAX_COMPRESSED_BYTES (FIPSEE_NET_MAX_SMALL_BYTES + FIPSEE_NET_ADDRESSES_BYTES)
#define FIPSEE_NET_MAX_POSTED 4
#define FIPSEE_NET_MAX_FRAME_BUFFERS 20
#define FIPSEE_NET_MAX_RETURNED 14
#define FIPSEE_NET_MAX_PACKED_SENT 7
#define FIPSEE_NET_MAX_PACKED_RECEIVED 14
#define FIPSEE_NET_MAX_GROUPS 64

/* Flag of a listed port: a client has it. */
#define FIPSEE_NET_LISTED_IN_USE 1

/* What became of a frame that was sent, or of a buffer that holds no frame. */
#define FIPSEE_NET_STATUS_OK 0
#define FIPSEE_NET_STATUS_INVALID 1
#define FIPSEE_NET_STATUS_UNSUPPORTED 2
#define FIPSEE_NET_STATUS_BAD_MEMORY 3
#define FIPSEE_NET_STATUS_TOO_SHORT 4
#define FIPSEE_NET_STATUS_TOO_LONG 5
#define FIPSEE_NET_STATUS_WRONG_SOURCE 6
#define FIPSEE_NET_STATUS_WRONG_VLAN 7
#define FIPSEE_NET_STATUS_LIMITED 8
#define FIPSEE_NET_STATUS_TOO_SMALL 9
#define FIPSEE_NET_STATUS_BAD_OFFLOAD 10
#define FIPSEE_NET_STATUS_WRONG_IP 11
#define FIPSEE_NET_STATUS_DOWN 12

/* Offloads: in `flags` of ATTACH, and those in force in the information of a port. */
#define FIPSEE_NET_OFFLOAD_CHECKSUM 1
#define FIPSEE_NET_OFFLOAD_TSO4 2
#define FIPSEE_NET_OFFLOAD_TSO6 4
#define FIPSEE_NET_OFFLOAD_ECN 8
#define FIPSEE_NET_OFFLOAD_USO 16

/* Longest packet of a frame that is still to be divided. */
#define FIPSEE_NET_MAX_SEGMENTED_BYTES 65535

/* Flags of a frame's offload, and types of segmentation. */
#define FIPSEE_NET_CHECKSUM_NEEDED 1
#define FIPSEE_NET_CHECKSUM_VALID 2
#define FIPSEE_NET_SEGMENT_TCP4 1
#define FIPSEE_NET_SEGMENT_TCP6 4
#define FIPSEE_NET_SEGMENT_UDP 5
#define FIPSEE_NET_SEGMENT_ECN 0x80		/* added to one of TCP */

/* What is left to be done with a frame, as the header of virtio-net. 0 without an offload in force. */
struct fipsee_net_offload {
	uint8_t flags;
	uint8_t segmentation;
	uint16_t header_bytes;
	uint16_t segment_bytes;
	uint16_t checksum_start;
	uint16_t checksum_offset;
};
FIPSEE_ASSERT_SIZE(struct fipsee_net_offload, 10);

/* A frame that is sent, in shared memory (a slot of a transmit queue's request ring). */
struct fipsee_net_send {
	uint8_t operation;
	uint8_t first_bytes;
	uint16_t tag;
	uint32_t offset_bytes;			/* of the rest */
	uint32_t rest_bytes;
	uint16_t memory;
	struct fipsee_net_offload offload;
	uint8_t first[FIPSEE_NET_MAX_FIRST_BYTES];
	uint32_t stamp;				/* the ring's */
};
FIPSEE_ASSERT_SIZE(struct fipsee_net_send, FIPSEE_SLOT_BYTES);
FIPSEE_ASSERT_AT(struct fipsee_net_send, offload, 14);
FIPSEE_ASSERT_AT(struct fipsee_net_send, first, 24);
FIPSEE_ASSERT_AT(struct fipsee_net_send, stamp, FIPSEE_STAMP_OFFSET_BYTES);

/*
 * A frame in a message, in shared memory, in either direction: byte 0 is FIPSEE_NET_SEND_SMALL or FIPSEE_NET_RECEIVED_SMALL. With
 * FIPSEE_NET_SEND_COMPRESSED or FIPSEE_NET_RECEIVED_COMPRESSED, it is in `bytes` but for its addresses, which count for the length.
 */
struct fipsee_net_small {
	uint8_t operation;
	uint8_t length_bytes;
	uint16_t tag;
	uint8_t bytes[FIPSEE_NET_MAX_SMALL_BYTES];
	uint32_t stamp;
};
FIPSEE_ASSERT_SIZE(struct fipsee_net_small, FIPSEE_SLOT_BYTES);

/* A frame in memory, of several that one message sends. */
struct fipsee_net_packed_frame {
	uint16_t tag;
	uint16_t length_bytes;
	uint32_t offset_bytes;
};
FIPSEE_ASSERT_SIZE(struct fipsee_net_packed_frame, 8);

/* Frames in memory that are sent, without offloads, in shared memory (a slot of a transmit queue's request ring). */
struct fipsee_net_send_packed {
	uint8_t operation;
	uint8_t count;
	uint16_t memory;
	struct fipsee_net_packed_frame frames[FIPSEE_NET_MAX_PACKED_SENT];
	uint32_t stamp;
};
FIPSEE_ASSERT_SIZE(struct fipsee_net_send_packed, FIPSEE_SLOT_BYTES);
FIPSEE_ASSERT_AT(struct fipsee_net_send_packed, frames, 4);
FIPSEE_ASSERT_AT(struct fipsee_net_send_packed, stamp, FIPSEE_STAMP_OFFSET_BYTES);

/* A buffer for a frame. */
struct fipsee_net_posted_buffer {
	uint16_t tag;
	uint16_t memory;
	uint32_t offset_bytes;
	uint32_t length_bytes;
};
FIPSEE_ASSERT_SIZE(struct fipsee_net_posted_buffer, 12);

/* Buffers for frames, in shared memory (a slot of a receive queue's request ring). */
struct fipsee_net_post {
	uint8_t operation;
	uint8_t count;
	uint16_t reserved;
	struct fipsee_net_posted_buffer buffers[FIPSEE_NET_MAX_POSTED];
	uint32_t reserved_end[2];
	uint32_t stamp;
};
FIPSEE_ASSERT_SIZE(struct fipsee_net_post, FIPSEE_SLOT_BYTES);
FIPSEE_ASSERT_AT(struct fipsee_net_post, stamp, FIPSEE_STAMP_OFFSET_BYTES);

/* A frame in buffers, in shared memory: all of them are full but the last. */
struct fipsee_net_filled {
	uint8_t kind;
	uint8_t count;
	uint16_t reserved;
	uint32_t length_bytes;
	struct fipsee_net_offload offload;
	uint16_t reserved_too;
	uint16_t tags[FIPSEE_NET_MAX_FRAME_BUFFERS];
	uint32_t stamp;
};
FIPSEE_ASSERT_SIZE(struct fipsee_net_filled, FIPSEE_SLOT_BYTES);
FIPSEE_ASSERT_AT(struct fipsee_net_filled, tags, 20);
FIPSEE_ASSERT_AT(struct fipsee_net_filled, stamp, FIPSEE_STAMP_OFFSET_BYTES);

/* A buffer that a frame has come in, of several. */
struct fipsee_net_packed_buffer {
	uint16_t tag;
	uint16_t length_bytes;
};
FIPSEE_ASSERT_SIZE(struct fipsee_net_packed_buffer, 4);

/* Frames in a buffer each, without offloads, in shared memory. */
struct fipsee_net_filled_packed {
	uint8_t kind;
	uint8_t count;
	uint16_t reserved;
	struct fipsee_net_packed_buffer frames[FIPSEE_NET_MAX_PACKED_RECEIVED];
	uint32_t stamp;
};
FIPSEE_ASSERT_SIZE(struct fipsee_net_filled_packed, FIPSEE_SLOT_BYTES);
FIPSEE_ASSERT_AT(struct fipsee_net_filled_packed, frames, 4);
FIPSEE_ASSERT_AT(struct fipsee_net_filled_packed, stamp, FIPSEE_STAMP_OFFSET_BYTES);

/* A request that is no frame, in shared memory (a slot of a transmit queue's request ring). */
struct fipsee_net_request {
	uint8_t operation;
	uint8_t reserved;
	uint16_t tag;
	uint8_t group[6];
	uint8_t reserved_end[50];
	uint32_t stamp;
};
FIPSEE_ASSERT_SIZE(struct fipsee_net_request, FIPSEE_SLOT_BYTES);
FIPSEE_ASSERT_AT(struct fipsee_net_request, stamp, FIPSEE_STAMP_OFFSET_BYTES);

/* What a port is like now, in shared memory. */
struct fipsee_net_event {
	uint8_t kind;
	uint8_t link;				/* 1: up, 0: down */
	uint16_t mtu;
	uint8_t mac[6];
	uint8_t reserved[50];
	uint32_t stamp;
};
FIPSEE_ASSERT_SIZE(struct fipsee_net_event, FIPSEE_SLOT_BYTES);
FIPSEE_ASSERT_AT(struct fipsee_net_event, stamp, FIPSEE_STAMP_OFFSET_BYTES);

struct fipsee_net_returned_entry {
	uint16_t tag;
	uint16_t status;
};
FIPSEE_ASSERT_SIZE(struct fipsee_net_returned_entry, 4);

/* What is given back, in shared memory. */
struct fipsee_net_returned {
	uint8_t kind;
	uint8_t count;
	uint16_t reserved;
	struct fipsee_net_returned_entry entries[FIPSEE_NET_MAX_RETURNED];
	uint32_t stamp;
};
FIPSEE_ASSERT_SIZE(struct fipsee_net_returned, FIPSEE_SLOT_BYTES);

/* Information of a port, in ATTACHED. */
struct fipsee_net_port_info {
	uint8_t mac[6];
	uint16_t mtu;
	uint32_t max_frame_bytes;
	uint32_t offloads;
	uint16_t vlan;
	uint16_t pairs;
	uint32_t reserved[11];
};
FIPSEE_ASSERT_SIZE(struct fipsee_net_port_info, FIPSEE_SERVICE_INFO_BYTES);

/* A port in LISTED. */
struct fipsee_net_listed_port {
	uint8_t mac[6];
	uint16_t mtu;
	uint32_t flags;
	uint32_t reserved;
};
FIPSEE_ASSERT_SIZE(struct fipsee_net_listed_port, FIPSEE_LISTED_INFO_BYTES);

#endif /* FIPSEE_NET_H */
