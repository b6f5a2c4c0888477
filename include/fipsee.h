/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The Fip-see wire format: every size, offset, number and structure that two programs exchange. docs/protocol.md defines
 * their meaning; each part names its section. Counterpart of crates/ring/src/{layout,control,channel}.rs and
 * crates/{block,call}/src/wire.rs; tests/interop compares the two as whole tables.
 *
 * C11, C++17 and kernel C, with gcc or clang. All values are little-endian, and so must the machine be. Reserved
 * fields are sent as 0 and refused if they are not, except where a comment says "ignored".
 *
 * A comment says where a structure is in memory that a peer may write at any moment. Copy it once, then read the copy.
 */
#ifndef FIPSEE_H
#define FIPSEE_H

#ifdef __KERNEL__
#include <linux/errno.h>
#include <linux/stddef.h>
#include <linux/types.h>
#else
#include <stddef.h>
#include <stdint.h>
#if __STDC_HOSTED__
#include <errno.h>
#endif
#endif

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "fipsee.h describes little-endian values and is written for little-endian machines"
#endif

#ifdef __cplusplus
#define FIPSEE_ASSERT(condition) static_assert(condition, #condition)
#else
#define FIPSEE_ASSERT(condition) _Static_assert(condition, #condition)
#endif
/* The size of a structure and the offset of each field, on which the peer relies. */
#define FIPSEE_ASSERT_SIZE(type, bytes) FIPSEE_ASSERT(sizeof(type) == (bytes))
#define FIPSEE_ASSERT_AT(type, field, offset_bytes) FIPSEE_ASSERT(offsetof(type, field) == (offset_bytes))

/* ---- Ring (section 2) ------------------------------------------------------------------------------------------ */

/* Bytes of one slot: a cache line. Rings are aligned to it. */
#define FIPSEE_SLOT_BYTES 64
/* Bytes of a message; the rest of the slot is the stamp. */
#define FIPSEE_PAYLOAD_BYTES 60
/* Byte offset of the stamp in a slot. */
#define FIPSEE_STAMP_OFFSET_BYTES 60
/* Fewest and most slots of a ring; always a power of two. */
#define FIPSEE_MIN_SLOTS 2
#define FIPSEE_MAX_SLOTS 65536
/* Bytes of one ring's cold words, and their offsets. */
#define FIPSEE_COLD_BYTES 128
#define FIPSEE_COLD_RELEASED_OFFSET_BYTES 0
#define FIPSEE_COLD_ASLEEP_OFFSET_BYTES 4
#define FIPSEE_COLD_HOLD_OFFSET_BYTES 8
#define FIPSEE_COLD_CHOICES_OFFSET_BYTES 12

/* One slot, in shared memory. Written by the ring's writer; the reader may store the stamp that it has loaded once more. */
struct fipsee_slot {
	uint8_t payload[FIPSEE_PAYLOAD_BYTES];	/* the message; meaningful once the stamp is seen */
	uint32_t stamp;				/* lap number of the message, never 0; stored last (letter A) */
} __attribute__((aligned(FIPSEE_SLOT_BYTES)));
FIPSEE_ASSERT_SIZE(struct fipsee_slot, FIPSEE_SLOT_BYTES);
FIPSEE_ASSERT_AT(struct fipsee_slot, stamp, FIPSEE_STAMP_OFFSET_BYTES);

/* The cold words of one ring, in shared memory. Written by the ring's reader; the writer may only clear `asleep`. */
struct fipsee_cold {
	uint32_t released;			/* streams: messages released since the start, modulo 2^32 (letter B) */
	uint32_t asleep;			/* not 0: the reader needs the doorbell (letter S) */
	uint32_t hold;				/* answers: nanoseconds the writer may wait before it looks for the next call */
	uint32_t choices;			/* answers: ownership and touch that the writer is asked for, FIPSEE_CHOICES_* */
	uint8_t reserved[FIPSEE_COLD_BYTES - 16];	/* 0 at the start, ignored */
};
FIPSEE_ASSERT_SIZE(struct fipsee_cold, FIPSEE_COLD_BYTES);
FIPSEE_ASSERT_AT(struct fipsee_cold, released, FIPSEE_COLD_RELEASED_OFFSET_BYTES);
FIPSEE_ASSERT_AT(struct fipsee_cold, asleep, FIPSEE_COLD_ASLEEP_OFFSET_BYTES);
FIPSEE_ASSERT_AT(struct fipsee_cold, hold, FIPSEE_COLD_HOLD_OFFSET_BYTES);
FIPSEE_ASSERT_AT(struct fipsee_cold, choices, FIPSEE_COLD_CHOICES_OFFSET_BYTES);
/* Highest value of `hold` that a writer uses (section 2.5). */
#define FIPSEE_MAX_HOLD_NS 1000

/*
 * Choices of a ring's two ends, which change nothing on the wire, as one word: fields of four bits. In each field 0 is no
 * advice, and so is a value that the receiver does not know. Reserved bits are sent as 0 and ignored.
 */
#define FIPSEE_CHOICES_OWNERSHIP_SHIFT 0
#define FIPSEE_CHOICES_TOUCH_SHIFT 4
#define FIPSEE_CHOICES_STORES_SHIFT 8
#define FIPSEE_CHOICES_BURST_PREFETCH_SHIFT 12
#define FIPSEE_CHOICES_TAKE_SHIFT 16
#define FIPSEE_CHOICES_FIELD 0xfU
/* Set: measured on this machine. Clear: the defaults of the CPU's family. */
#define FIPSEE_CHOICES_MEASURED (1U << 20)
/* How a writer gets lines of slots to come: prefetch of the next; locked operations on slots ahead, after up to 8 messages; not. */
#define FIPSEE_OWNERSHIP_PREFETCH_NEXT 1
#define FIPSEE_OWNERSHIP_LOCKED_AHEAD 2
#define FIPSEE_OWNERSHIP_NOT_ASKED 3
/* Which messages' stamps the reader stores once more: none; those that directly follow another; all. */
#define FIPSEE_TOUCH_NEVER 1
#define FIPSEE_TOUCH_RUNS 2
#define FIPSEE_TOUCH_ALWAYS 3
/* How a message is stored: 4 times 16 bytes; 32, 16 and 16; 64. */
#define FIPSEE_STORES_WIDE16 1
#define FIPSEE_STORES_SPLIT32 2
#define FIPSEE_STORES_WIDE64 3
/* Does the writer of a burst prefetch further slots? */
#define FIPSEE_BURST_PREFETCH_OFF 1
#define FIPSEE_BURST_PREFETCH_ON 2
/* Requests that an answerer takes before it answers the first: 1, or up to 16. */
#define FIPSEE_TAKE_SINGLY 1
#define FIPSEE_TAKE_SIXTEEN 2
/* The value of field FIPSEE_CHOICES_<field>_SHIFT. */
#define FIPSEE_CHOICE(word, field) ((uint32_t)(word) >> FIPSEE_CHOICES_##field##_SHIFT & FIPSEE_CHOICES_FIELD)

/* ---- Region (section 3) ---------------------------------------------------------------------------------------- */

/* "FIPSEE01", the first eight bytes of a region. */
#define FIPSEE_REGION_MAGIC 0x3130454553504946ULL
/* The only layout version. */
#define FIPSEE_REGION_VERSION 1
#define FIPSEE_REGION_HEADER_BYTES 64
#define FIPSEE_QUEUE_ENTRY_BYTES 64
/* Unit of the pool's offset and length, in bytes. */
#define FIPSEE_REGION_PAGE_BYTES 4096
/* Most requests outstanding in one queue. */
#define FIPSEE_MAX_DEPTH 4096
/* Most bytes of the pool of one attachment. */
#define FIPSEE_MAX_POOL_BYTES (1ULL << 30)
/* Most bytes of one region, of the daemon or of a client: what 32 bits of sectors reach. */
#define FIPSEE_MAX_REGION_BYTES (1ULL << 41)
/*
 * Features: the table of queues names the CPUs of the daemon's workers; ATTACH may claim; the table of queues advises choices; the
 * client may send LIST. And all that this header knows.
 */
#define FIPSEE_FEATURE_WORKER_CPU (1ULL << 0)
#define FIPSEE_FEATURE_SOLE_WRITER (1ULL << 1)
#define FIPSEE_FEATURE_CHOICES (1ULL << 2)
#define FIPSEE_FEATURE_LIST (1ULL << 3)
#define FIPSEE_FEATURES \
	(FIPSEE_FEATURE_WORKER_CPU | FIPSEE_FEATURE_SOLE_WRITER | FIPSEE_FEATURE_CHOICES | FIPSEE_FEATURE_LIST)

/* At byte 0 of the region; written once by the daemon before the region is handed over. */
struct fipsee_region_header {
	uint64_t magic;				/* FIPSEE_REGION_MAGIC */
	uint32_t version;			/* FIPSEE_REGION_VERSION */
	uint32_t queue_count;			/* entries of the table that follows, 1..FIPSEE_MAX_QUEUES */
	uint64_t region_bytes;			/* equals the length in ATTACHED */
	uint64_t features;			/* features in force, FIPSEE_FEATURE_* */
	uint64_t pool_offset_bytes;		/* multiple of FIPSEE_REGION_PAGE_BYTES */
	uint64_t pool_bytes;			/* multiple of FIPSEE_REGION_PAGE_BYTES; 0: no pool */
	uint64_t reserved[2];
};
FIPSEE_ASSERT_SIZE(struct fipsee_region_header, FIPSEE_REGION_HEADER_BYTES);
FIPSEE_ASSERT_AT(struct fipsee_region_header, version, 8);
FIPSEE_ASSERT_AT(struct fipsee_region_header, queue_count, 12);
FIPSEE_ASSERT_AT(struct fipsee_region_header, region_bytes, 16);
FIPSEE_ASSERT_AT(struct fipsee_region_header, features, 24);
FIPSEE_ASSERT_AT(struct fipsee_region_header, pool_offset_bytes, 32);
FIPSEE_ASSERT_AT(struct fipsee_region_header, pool_bytes, 40);
FIPSEE_ASSERT_AT(struct fipsee_region_header, reserved, 48);

/* Entry q of the table is at FIPSEE_REGION_HEADER_BYTES + q * FIPSEE_QUEUE_ENTRY_BYTES. */
struct fipsee_queue_entry {
	uint64_t request_offset_bytes;		/* ring from client to daemon; multiple of 64 */
	uint64_t completion_offset_bytes;	/* ring from daemon to client; multiple of 64 */
	uint64_t cold_offset_bytes;		/* two fipsee_cold: request ring, completion ring; multiple of 64 */
	uint32_t request_slots;			/* power of two, FIPSEE_MIN_SLOTS..FIPSEE_MAX_SLOTS */
	uint32_t completion_slots;		/* as above */
	uint32_t request_start;			/* slot index of the first request, below request_slots */
	uint32_t completion_start;		/* slot index of the first completion, below completion_slots */
	uint32_t depth;				/* requests that may be outstanding; at most request_slots and
						   completion_slots - FIPSEE_EVENT_CREDITS */
	uint32_t worker_cpu_plus_1;		/* CPU that the daemon's worker is bound to, plus 1; 0: unknown. Only with
						   FIPSEE_FEATURE_WORKER_CPU in force, else 0 */
	uint32_t choices;			/* advice to the client, FIPSEE_CHOICES_*. Only with FIPSEE_FEATURE_CHOICES in
						   force, else 0 */
	uint32_t reserved[3];
};
FIPSEE_ASSERT_SIZE(struct fipsee_queue_entry, FIPSEE_QUEUE_ENTRY_BYTES);
FIPSEE_ASSERT_AT(struct fipsee_queue_entry, completion_offset_bytes, 8);
FIPSEE_ASSERT_AT(struct fipsee_queue_entry, cold_offset_bytes, 16);
FIPSEE_ASSERT_AT(struct fipsee_queue_entry, request_slots, 24);
FIPSEE_ASSERT_AT(struct fipsee_queue_entry, completion_slots, 28);
FIPSEE_ASSERT_AT(struct fipsee_queue_entry, request_start, 32);
FIPSEE_ASSERT_AT(struct fipsee_queue_entry, completion_start, 36);
FIPSEE_ASSERT_AT(struct fipsee_queue_entry, depth, 40);
FIPSEE_ASSERT_AT(struct fipsee_queue_entry, worker_cpu_plus_1, 44);
FIPSEE_ASSERT_AT(struct fipsee_queue_entry, choices, 48);
FIPSEE_ASSERT_AT(struct fipsee_queue_entry, reserved, 52);

/* ---- Control plane (section 4) --------------------------------------------------------------------------------- */

/* "FPSC", the first four bytes of every control message. */
#define FIPSEE_CONTROL_MAGIC 0x43535046U
/* The protocol version described here. */
#define FIPSEE_VERSION 1
/* Longest control message, in bytes. */
#define FIPSEE_MAX_MESSAGE_BYTES 512
/* Most descriptors that come with one message: a region and two doorbells per queue. */
#define FIPSEE_MAX_DESCRIPTORS 129
/* Most queues of one attachment. */
#define FIPSEE_MAX_QUEUES 64
/* Most memory regions of one attachment; id 0 is the pool. */
#define FIPSEE_MAX_REGIONS 64
/* Longest name of an export and longest text of a refusal, in bytes of UTF-8. */
#define FIPSEE_MAX_NAME_BYTES 64
#define FIPSEE_MAX_REFUSAL_BYTES 400
/* Bytes of service-specific information in ATTACHED. */
#define FIPSEE_SERVICE_INFO_BYTES 64
/* Most entries of LISTED, and bytes of service-specific information in each. */
#define FIPSEE_MAX_LISTED 6
#define FIPSEE_LISTED_INFO_BYTES 16
/* Longest path of the control socket, in bytes, without a terminating zero. */
#define FIPSEE_MAX_SOCKET_PATH_BYTES 107

/* Control message kinds. */
#define FIPSEE_HELLO 1
#define FIPSEE_WELCOME 2
#define FIPSEE_ATTACH 3
#define FIPSEE_ATTACHED 4
#define FIPSEE_REFUSED 5
#define FIPSEE_REGISTER 6
#define FIPSEE_REGISTERED 7
#define FIPSEE_UNREGISTER 8
#define FIPSEE_UNREGISTERED 9
#define FIPSEE_DETACH 10
#define FIPSEE_DETACHED 11
#define FIPSEE_LIST 12
#define FIPSEE_LISTED 13

/* Services: FIPSEE_SERVICE_BLOCK (fipsee_block.h), and calls. */
#define FIPSEE_SERVICE_CALLS 2

/* REGISTER access bits, from the daemon's view: it may load (the client writes to the disk), it may store. */
#define FIPSEE_ACCESS_READ 1
#define FIPSEE_ACCESS_WRITE 2

/* Refusal codes. Others may come from later daemons; show the text. */
#define FIPSEE_REFUSAL_VERSION 1
#define FIPSEE_REFUSAL_MALFORMED 2
#define FIPSEE_REFUSAL_UNKNOWN_NAME 3
#define FIPSEE_REFUSAL_UNKNOWN_EXPORT FIPSEE_REFUSAL_UNKNOWN_NAME /* its name until 2026 */
#define FIPSEE_REFUSAL_NOT_ALLOWED 4
#define FIPSEE_REFUSAL_BUSY 5
#define FIPSEE_REFUSAL_LIMIT 6
#define FIPSEE_REFUSAL_BAD_MEMORY 7
#define FIPSEE_REFUSAL_SHUTTING_DOWN 8

/* The start of every control message; alone: DETACH (client) and DETACHED (daemon). */
struct fipsee_control_header {
	uint32_t magic;				/* FIPSEE_CONTROL_MAGIC */
	uint16_t kind;				/* FIPSEE_HELLO .. FIPSEE_LISTED */
	uint16_t version;			/* FIPSEE_VERSION; not checked in HELLO and REFUSED */
	uint32_t length_bytes;			/* of the whole message; equals the packet's length */
};
FIPSEE_ASSERT_SIZE(struct fipsee_control_header, 12);
FIPSEE_ASSERT_AT(struct fipsee_control_header, kind, 4);
FIPSEE_ASSERT_AT(struct fipsee_control_header, version, 6);
FIPSEE_ASSERT_AT(struct fipsee_control_header, length_bytes, 8);

/* Client, first: the versions and features that it supports. */
struct fipsee_hello {
	struct fipsee_control_header header;
	uint16_t version_min;			/* lowest version spoken */
	uint16_t version_max;			/* highest version spoken, not below version_min */
	uint64_t features;			/* features offered; bits the daemon does not know are ignored */
};
FIPSEE_ASSERT_SIZE(struct fipsee_hello, 24);
FIPSEE_ASSERT_AT(struct fipsee_hello, version_min, 12);
FIPSEE_ASSERT_AT(struct fipsee_hello, version_max, 14);
FIPSEE_ASSERT_AT(struct fipsee_hello, features, 16);

/* Daemon: the version in force and its limits. */
struct fipsee_welcome {
	struct fipsee_control_header header;
	uint16_t version;			/* within the range of HELLO */
	uint16_t max_queues;			/* most queues it grants, 1..FIPSEE_MAX_QUEUES */
	uint32_t max_depth;			/* most requests outstanding in one queue, 1..FIPSEE_MAX_DEPTH */
	uint32_t reserved;
	uint64_t features;			/* features that both have */
	uint64_t max_pool_bytes;		/* largest pool it grants */
};
FIPSEE_ASSERT_SIZE(struct fipsee_welcome, 40);
FIPSEE_ASSERT_AT(struct fipsee_welcome, version, 12);
FIPSEE_ASSERT_AT(struct fipsee_welcome, max_queues, 14);
FIPSEE_ASSERT_AT(struct fipsee_welcome, max_depth, 16);
FIPSEE_ASSERT_AT(struct fipsee_welcome, reserved, 20);
FIPSEE_ASSERT_AT(struct fipsee_welcome, features, 24);
FIPSEE_ASSERT_AT(struct fipsee_welcome, max_pool_bytes, 32);

/* Client: asks for an export. */
struct fipsee_attach {
	struct fipsee_control_header header;
	uint16_t service;			/* FIPSEE_SERVICE_* */
	uint16_t queue_count;			/* queues wanted, at least 1; the daemon caps */
	uint32_t depth;				/* requests outstanding per queue, at least 1; the daemon caps */
	uint32_t flags;				/* FIPSEE_ATTACH_* */
	uint64_t pool_bytes;			/* pool wanted, 0 for none; the daemon caps */
	uint8_t name[FIPSEE_MAX_NAME_BYTES];	/* UTF-8, filled with zeroes; unterminated at full length */
};
FIPSEE_ASSERT_SIZE(struct fipsee_attach, 96);
FIPSEE_ASSERT_AT(struct fipsee_attach, service, 12);
FIPSEE_ASSERT_AT(struct fipsee_attach, queue_count, 14);
FIPSEE_ASSERT_AT(struct fipsee_attach, depth, 16);
FIPSEE_ASSERT_AT(struct fipsee_attach, flags, 20);
FIPSEE_ASSERT_AT(struct fipsee_attach, pool_bytes, 24);
FIPSEE_ASSERT_AT(struct fipsee_attach, name, 32);

/* Daemon: granted. Descriptors: the region, then per queue the daemon's eventfd and the client's socket doorbell. */
struct fipsee_attached {
	struct fipsee_control_header header;
	uint16_t queue_count;			/* queues granted */
	uint16_t reserved;
	uint64_t region_bytes;			/* bytes of the region to map */
	uint8_t service_info[FIPSEE_SERVICE_INFO_BYTES];	/* struct fipsee_block_info or fipsee_call_info */
};
FIPSEE_ASSERT_SIZE(struct fipsee_attached, 88);
FIPSEE_ASSERT_AT(struct fipsee_attached, queue_count, 12);
FIPSEE_ASSERT_AT(struct fipsee_attached, region_bytes, 16);
FIPSEE_ASSERT_AT(struct fipsee_attached, service_info, 24);

/* Daemon: refused. */
struct fipsee_refused {
	struct fipsee_control_header header;
	uint32_t code;				/* FIPSEE_REFUSAL_*, for programs */
	uint32_t text_bytes;			/* bytes used of the text, at most FIPSEE_MAX_REFUSAL_BYTES */
	uint8_t text[FIPSEE_MAX_REFUSAL_BYTES];	/* UTF-8 without zero bytes, for people; zeroes after it */
};
FIPSEE_ASSERT_SIZE(struct fipsee_refused, 420);
FIPSEE_ASSERT_AT(struct fipsee_refused, code, 12);
FIPSEE_ASSERT_AT(struct fipsee_refused, text_bytes, 16);
FIPSEE_ASSERT_AT(struct fipsee_refused, text, 20);

/* Client: memory of its own, with one descriptor. */
struct fipsee_register {
	struct fipsee_control_header header;
	uint16_t region;			/* id it gets, 1..FIPSEE_MAX_REGIONS - 1, not in use */
	uint16_t access;			/* FIPSEE_ACCESS_*, at least one */
	uint64_t length_bytes;			/* bytes to map from offset 0 of the descriptor */
};
FIPSEE_ASSERT_SIZE(struct fipsee_register, 24);
FIPSEE_ASSERT_AT(struct fipsee_register, region, 12);
FIPSEE_ASSERT_AT(struct fipsee_register, access, 14);
FIPSEE_ASSERT_AT(struct fipsee_register, length_bytes, 16);

/* REGISTERED (daemon), UNREGISTER (client), UNREGISTERED (daemon). */
struct fipsee_region_id {
	struct fipsee_control_header header;
	uint16_t region;			/* the id */
	uint16_t reserved;
};
FIPSEE_ASSERT_SIZE(struct fipsee_region_id, 16);
FIPSEE_ASSERT_AT(struct fipsee_region_id, region, 12);

/* Client, between WELCOME and ATTACH, with FIPSEE_FEATURE_LIST in force: what may it attach to? */
struct fipsee_list {
	struct fipsee_control_header header;
	uint16_t service;			/* FIPSEE_SERVICE_* */
	uint16_t reserved;
	uint8_t after[FIPSEE_MAX_NAME_BYTES];	/* only names after this one, in the order of their bytes; as in ATTACH */
};
FIPSEE_ASSERT_SIZE(struct fipsee_list, 80);
FIPSEE_ASSERT_AT(struct fipsee_list, service, 12);
FIPSEE_ASSERT_AT(struct fipsee_list, reserved, 14);
FIPSEE_ASSERT_AT(struct fipsee_list, after, 16);

/* Something that the client may attach to. */
struct fipsee_listed_entry {
	uint8_t name[FIPSEE_MAX_NAME_BYTES];	/* as in ATTACH */
	uint8_t service_info[FIPSEE_LISTED_INFO_BYTES];	/* struct fipsee_listed_info */
};
FIPSEE_ASSERT_SIZE(struct fipsee_listed_entry, 80);
FIPSEE_ASSERT_AT(struct fipsee_listed_entry, service_info, 64);

/* Daemon: the first of what was asked for, in the order of the names' bytes. */
struct fipsee_listed {
	struct fipsee_control_header header;
	uint16_t count;				/* entries used, at most FIPSEE_MAX_LISTED; the others are 0 */
	uint16_t more;				/* 1: others follow, after the last of these; 0: none */
	struct fipsee_listed_entry entries[FIPSEE_MAX_LISTED];
};
FIPSEE_ASSERT_SIZE(struct fipsee_listed, 496);
FIPSEE_ASSERT_AT(struct fipsee_listed, count, 12);
FIPSEE_ASSERT_AT(struct fipsee_listed, more, 14);
FIPSEE_ASSERT_AT(struct fipsee_listed, entries, 16);

/* ---- Calls (section 8) ----------------------------------------------------------------------------------------- */

/* Unit of the lengths of payloads. A request or reply has at most FIPSEE_PAYLOAD_BYTES. */
#define FIPSEE_CALL_PAYLOAD_UNIT_BYTES 64

/* Information of a service of calls, in ATTACHED. */
struct fipsee_call_info {
	uint32_t request_bytes;			/* length of a request, at most FIPSEE_PAYLOAD_BYTES */
	uint32_t reply_bytes;			/* length of a reply, at most FIPSEE_PAYLOAD_BYTES */
	uint32_t request_payload_bytes;		/* multiple of FIPSEE_CALL_PAYLOAD_UNIT_BYTES; 0: none */
	uint32_t reply_payload_bytes;		/* as above */
	uint8_t reserved[48];
};
FIPSEE_ASSERT_SIZE(struct fipsee_call_info, FIPSEE_SERVICE_INFO_BYTES);
FIPSEE_ASSERT_AT(struct fipsee_call_info, reply_bytes, 4);
FIPSEE_ASSERT_AT(struct fipsee_call_info, request_payload_bytes, 8);
FIPSEE_ASSERT_AT(struct fipsee_call_info, reply_payload_bytes, 12);
FIPSEE_ASSERT_AT(struct fipsee_call_info, reserved, 16);

#include "fipsee_block.h" /* section 5 */

#endif /* FIPSEE_H */
