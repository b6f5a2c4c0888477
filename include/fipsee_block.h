/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The block protocol on the wire (docs/protocol.md section 5): the part of fipsee.h about disks, which includes it. Counterpart
 * of crates/block/src/wire.rs.
 */
#ifndef FIPSEE_BLOCK_H
#define FIPSEE_BLOCK_H

#include "fipsee.h"

/* ---- Block protocol (section 5) -------------------------------------------------------------------------------- */

/* The service, in ATTACH. */
#define FIPSEE_SERVICE_BLOCK 1
/*
 * ATTACH flags: the client will not write; no other client may be attached meanwhile. With FIPSEE_FEATURE_SOLE_WRITER: no
 * other client may write meanwhile; write beside a claim.
 */
#define FIPSEE_ATTACH_READ_ONLY 1
#define FIPSEE_ATTACH_EXCLUSIVE 2
#define FIPSEE_ATTACH_SOLE_WRITER 4
#define FIPSEE_ATTACH_IGNORE_CLAIM 8
/* Slots that a completion ring has beyond the depth: one unacknowledged event of each kind. */
#define FIPSEE_EVENT_CREDITS 2
/* The unit of offsets and lengths, whatever the logical block size of the disk. */
#define FIPSEE_SECTOR_BYTES 512
#define FIPSEE_SECTOR_SHIFT 9
/* Most segments in the request itself. */
#define FIPSEE_MAX_INLINE_SEGMENTS 5
/* Segment count of an indirect request: segment 0 names a table of segments. */
#define FIPSEE_SEGMENTS_INDIRECT 0xff
/* Most entries of that table. */
#define FIPSEE_MAX_INDIRECT_ENTRIES 256
/* Most bytes of one read or write of any disk; a disk may allow less (block info). */
#define FIPSEE_MAX_TRANSFER_BYTES (16ULL << 20)
/* Most completions in one message. */
#define FIPSEE_MAX_PACKED 14

/* Operations. */
#define FIPSEE_READ 1
#define FIPSEE_WRITE 2
#define FIPSEE_FLUSH 3
#define FIPSEE_DISCARD 4
#define FIPSEE_WRITE_ZEROES 5
#define FIPSEE_GET_INFO 6
#define FIPSEE_ACK_EVENT 7
/* Not an operation: the message holds two or three requests (struct fipsee_packed). */
#define FIPSEE_PACKED 8
#define FIPSEE_MAX_PACKED_REQUESTS 3

/* Request flags: durable before the completion (write, write-zeroes); may deallocate (write-zeroes). */
#define FIPSEE_FLAG_FUA 1
#define FIPSEE_FLAG_UNMAP 2

/* Kinds of message on the completion ring. */
#define FIPSEE_KIND_COMPLETIONS 0
#define FIPSEE_KIND_RESIZE 1
#define FIPSEE_KIND_DETACH 2

/* Statuses; fipsee_status_errno() gives their errno. */
#define FIPSEE_STATUS_OK 0
#define FIPSEE_STATUS_IO_ERROR 1
#define FIPSEE_STATUS_INVALID 2
#define FIPSEE_STATUS_UNSUPPORTED 3
#define FIPSEE_STATUS_BAD_MEMORY 4
#define FIPSEE_STATUS_READ_ONLY 5
#define FIPSEE_STATUS_OUT_OF_RANGE 6
#define FIPSEE_STATUS_NO_SPACE 7
#define FIPSEE_STATUS_DETACHED 8
#define FIPSEE_STATUS_MISALIGNED 9
#define FIPSEE_STATUS_TOO_LONG 10
#define FIPSEE_STATUS_NO_SEGMENTS 11
/* Numbers from here on are no statuses. */
#define FIPSEE_STATUS_COUNT 12

/* A disk ends below this sector. */
#define FIPSEE_SECTOR_LIMIT (1ULL << 55)

/* Capabilities of a disk: takes writes; has a cache that a flush makes durable; FUA; discard; write-zeroes. */
#define FIPSEE_CAPABILITY_WRITE 1
#define FIPSEE_CAPABILITY_FLUSH 2
#define FIPSEE_CAPABILITY_FUA 4
#define FIPSEE_CAPABILITY_DISCARD 8
#define FIPSEE_CAPABILITY_WRITE_ZEROES 16
/* Capability of the daemon: it takes FIPSEE_PACKED. */
#define FIPSEE_CAPABILITY_PACKED 32

/* A piece of registered memory. */
struct fipsee_segment {
	uint32_t offset_sectors;		/* from the start of the region, in sectors of 512 bytes */
	uint16_t length_sectors;		/* at least 1 */
	uint16_t region;			/* id; 0 is the pool */
};
FIPSEE_ASSERT_SIZE(struct fipsee_segment, 8);
FIPSEE_ASSERT_AT(struct fipsee_segment, length_sectors, 4);
FIPSEE_ASSERT_AT(struct fipsee_segment, region, 6);

/* A request in a slot of the request ring. */
struct fipsee_request {
	uint8_t operation;			/* FIPSEE_READ .. FIPSEE_ACK_EVENT */
	uint8_t segment_count;			/* read, write: 1..5 or 0xff; get-info: 1; others: 0 */
	uint16_t flags;				/* FIPSEE_FLAG_* */
	uint16_t tag;				/* the client's name for it, unique among those outstanding */
	uint16_t reserved;
	uint64_t sector;			/* first sector on the disk; 0 where the operation has none */
	union {
		struct fipsee_segment segments[FIPSEE_MAX_INLINE_SEGMENTS];	/* read, write, get-info; 0 beyond
										   the count */
		uint64_t length_sectors;	/* discard, write-zeroes: at least 1; the words after it are 0 */
	};
	uint32_t aux;				/* indirect: entries of the table; ack-event: kind; otherwise 0 */
	uint32_t stamp;				/* the ring's */
};
FIPSEE_ASSERT_SIZE(struct fipsee_request, FIPSEE_SLOT_BYTES);
FIPSEE_ASSERT_AT(struct fipsee_request, segment_count, 1);
FIPSEE_ASSERT_AT(struct fipsee_request, flags, 2);
FIPSEE_ASSERT_AT(struct fipsee_request, tag, 4);
FIPSEE_ASSERT_AT(struct fipsee_request, sector, 8);
FIPSEE_ASSERT_AT(struct fipsee_request, segments, 16);
FIPSEE_ASSERT_AT(struct fipsee_request, length_sectors, 16);
FIPSEE_ASSERT_AT(struct fipsee_request, aux, 56);
FIPSEE_ASSERT_AT(struct fipsee_request, stamp, FIPSEE_STAMP_OFFSET_BYTES);

/* A read or write of one segment, without flags. */
struct fipsee_packed_request {
	uint64_t sector;
	struct fipsee_segment segment;
};
FIPSEE_ASSERT_SIZE(struct fipsee_packed_request, 16);

/* Two or three of them in one slot of the request ring (section 5.9). Each counts as a request and has its own answer. */
struct fipsee_packed {
	uint8_t operation;			/* FIPSEE_PACKED */
	uint8_t count;				/* 2 or 3 */
	uint8_t writes;				/* bit n: request n is a write; 0: a read */
	uint8_t reserved;
	uint16_t tags[2];			/* of the first two */
	struct fipsee_packed_request requests[FIPSEE_MAX_PACKED_REQUESTS];	/* 0 beyond the count */
	uint16_t last_tag;			/* of the third; 0 if there is none */
	uint16_t reserved_end;
	uint32_t stamp;				/* the ring's */
};
FIPSEE_ASSERT_SIZE(struct fipsee_packed, FIPSEE_SLOT_BYTES);
FIPSEE_ASSERT_AT(struct fipsee_packed, writes, 2);
FIPSEE_ASSERT_AT(struct fipsee_packed, tags, 4);
FIPSEE_ASSERT_AT(struct fipsee_packed, requests, 8);
FIPSEE_ASSERT_AT(struct fipsee_packed, last_tag, 56);
FIPSEE_ASSERT_AT(struct fipsee_packed, stamp, FIPSEE_STAMP_OFFSET_BYTES);

/* One finished request. */
struct fipsee_completion_entry {
	uint16_t tag;				/* of an outstanding request */
	uint16_t status;			/* FIPSEE_STATUS_* */
};
FIPSEE_ASSERT_SIZE(struct fipsee_completion_entry, 4);
FIPSEE_ASSERT_AT(struct fipsee_completion_entry, status, 2);

/* A message of kind FIPSEE_KIND_COMPLETIONS on the completion ring. */
struct fipsee_completion {
	uint8_t count;				/* entries used, 1..FIPSEE_MAX_PACKED */
	uint8_t kind;				/* FIPSEE_KIND_COMPLETIONS */
	uint16_t reserved;
	struct fipsee_completion_entry entries[FIPSEE_MAX_PACKED];	/* zeroes beyond the count */
	uint32_t stamp;				/* the ring's */
};
FIPSEE_ASSERT_SIZE(struct fipsee_completion, FIPSEE_SLOT_BYTES);
FIPSEE_ASSERT_AT(struct fipsee_completion, kind, 1);
FIPSEE_ASSERT_AT(struct fipsee_completion, entries, 4);
FIPSEE_ASSERT_AT(struct fipsee_completion, stamp, FIPSEE_STAMP_OFFSET_BYTES);

/* A message of kind FIPSEE_KIND_RESIZE or FIPSEE_KIND_DETACH on the completion ring. */
struct fipsee_event {
	uint8_t count;				/* 1 */
	uint8_t kind;				/* FIPSEE_KIND_RESIZE, FIPSEE_KIND_DETACH */
	uint16_t reserved;
	uint32_t reserved_too;
	uint64_t sector_count;			/* resize: the new size in sectors of 512 bytes; detach: 0 */
	uint8_t reserved_end[44];
	uint32_t stamp;				/* the ring's */
};
FIPSEE_ASSERT_SIZE(struct fipsee_event, FIPSEE_SLOT_BYTES);
FIPSEE_ASSERT_AT(struct fipsee_event, kind, 1);
FIPSEE_ASSERT_AT(struct fipsee_event, sector_count, 8);
FIPSEE_ASSERT_AT(struct fipsee_event, reserved_end, 16);
FIPSEE_ASSERT_AT(struct fipsee_event, stamp, FIPSEE_STAMP_OFFSET_BYTES);

/* A private copy of one slot, and the views of it. */
union fipsee_message {
	struct fipsee_slot slot;
	struct fipsee_request request;
	struct fipsee_packed packed;
	struct fipsee_completion completion;
	struct fipsee_event event;
	uint64_t words[FIPSEE_SLOT_BYTES / 8];
};
FIPSEE_ASSERT_SIZE(union fipsee_message, FIPSEE_SLOT_BYTES);

/* Properties of a disk, in ATTACHED and as the answer to get-info. */
struct fipsee_block_info {
	uint64_t first_sector;			/* where the export begins in the disk below; requests count from 0 */
	uint64_t sector_count;			/* size in sectors of 512 bytes, at least 1 */
	uint32_t block_bytes;			/* logical block: 512, 1024, 2048 or 4096 */
	uint32_t optimal_bytes;			/* preferred size and alignment of a transfer; 0: none */
	uint32_t max_transfer_bytes;		/* most data of one read or write, at least block_bytes */
	uint32_t max_range_sectors;		/* most sectors of one discard or write-zeroes */
	uint32_t max_segments;			/* most segments of one request, at least 1 */
	uint32_t capabilities;			/* FIPSEE_CAPABILITY_* */
	uint8_t identity[16];			/* identifies disk and content; the same after a restart of the daemon */
	uint64_t reserved;
};
FIPSEE_ASSERT_SIZE(struct fipsee_block_info, FIPSEE_SERVICE_INFO_BYTES);
FIPSEE_ASSERT_AT(struct fipsee_block_info, sector_count, 8);
FIPSEE_ASSERT_AT(struct fipsee_block_info, block_bytes, 16);
FIPSEE_ASSERT_AT(struct fipsee_block_info, optimal_bytes, 20);
FIPSEE_ASSERT_AT(struct fipsee_block_info, max_transfer_bytes, 24);
FIPSEE_ASSERT_AT(struct fipsee_block_info, max_range_sectors, 28);
FIPSEE_ASSERT_AT(struct fipsee_block_info, max_segments, 32);
FIPSEE_ASSERT_AT(struct fipsee_block_info, capabilities, 36);
FIPSEE_ASSERT_AT(struct fipsee_block_info, identity, 40);
FIPSEE_ASSERT_AT(struct fipsee_block_info, reserved, 56);

#define FIPSEE_LISTED_READ_ONLY 1

/* What an entry of LISTED says of a disk. */
struct fipsee_listed_info {
	uint64_t sector_count;			/* size in sectors of 512 bytes, at least 1 */
	uint32_t block_bytes;			/* logical block: 512, 1024, 2048 or 4096 */
	uint32_t flags;				/* FIPSEE_LISTED_READ_ONLY: no client may write it; others are ignored */
};
FIPSEE_ASSERT_SIZE(struct fipsee_listed_info, FIPSEE_LISTED_INFO_BYTES);
FIPSEE_ASSERT_AT(struct fipsee_listed_info, block_bytes, 8);
FIPSEE_ASSERT_AT(struct fipsee_listed_info, flags, 12);

/*
 * What is wrong with the daemon's description of a disk (a private copy), and in `value` which number is; a null pointer if no
 * field has a value that the protocol does not allow (section 6).
 */
static inline const char *fipsee_block_info_fault(const struct fipsee_block_info *info, uint64_t *value)
{
	uint32_t block = info->block_bytes;

	*value = block;
	if (block != 512 && block != 1024 && block != 2048 && block != 4096)
		return "the logical block size";
	*value = info->sector_count;
	if (info->sector_count == 0 || info->sector_count >= FIPSEE_SECTOR_LIMIT ||
	    info->first_sector >= FIPSEE_SECTOR_LIMIT - info->sector_count)
		return "the size of the disk in sectors";
	*value = info->max_transfer_bytes;
	if (info->max_transfer_bytes < block)
		return "the longest transfer";
	*value = info->max_segments;
	if (info->max_segments == 0)
		return "the most segments";
	*value = info->reserved;
	return info->reserved != 0 ? "the reserved end of the disk's description" : (const char *)0;
}

/* As fipsee_completion_fault(), for a message that is not of kind FIPSEE_KIND_COMPLETIONS. */
static inline const char *fipsee_event_fault(const struct fipsee_event *event)
{
	unsigned int index;
	uint8_t reserved = 0;

	if (event->kind != FIPSEE_KIND_RESIZE && event->kind != FIPSEE_KIND_DETACH)
		return "the kind of an event";
	for (index = 0; index < sizeof(event->reserved_end); index++)
		reserved |= event->reserved_end[index];
	if (event->count != 1 || event->reserved != 0 || event->reserved_too != 0 || reserved != 0)
		return "the head of an event";
	if (event->kind == FIPSEE_KIND_DETACH)
		return event->sector_count != 0 ? "the head of an event" : (const char *)0;
	return event->sector_count == 0 || event->sector_count >= FIPSEE_SECTOR_LIMIT ? "the new size of the disk" : (const char *)0;
}

/*
 * What is wrong with a message of the completion ring (a private copy), or a null pointer: checked before an entry or event is used
 * (R-6-12 to R-6-14). What depends on the client's memory remains for it: is each tag outstanding, is an event of the kind
 * unacknowledged already?
 */
static inline const char *fipsee_completion_fault(const union fipsee_message *message)
{
	const struct fipsee_completion *completion = &message->completion;

	if (completion->kind != FIPSEE_KIND_COMPLETIONS)
		return fipsee_event_fault(&message->event);
	if (completion->count == 0 || completion->count > FIPSEE_MAX_PACKED || completion->reserved != 0)
		return "the head of a completion message";
	return (const char *)0;
}

/*
 * The one reader of messages of the completion ring: all that can be checked without the client's table of requests is checked before
 * an entry or event is handed out. begin(); next() until it gives a null pointer; event(); then look at `fault`.
 */
struct fipsee_completions {
	const union fipsee_message *message;	/* a private copy */
	const char *fault;			/* what is wrong with it; a null pointer: nothing that was seen */
	uint32_t next;				/* index of the next entry */
	uint32_t count;				/* entries; 0 of an event, or after a fault */
};

static inline void fipsee_completions_begin(struct fipsee_completions *reader, const union fipsee_message *message)
{
	reader->message = message;
	reader->fault = fipsee_completion_fault(message);
	reader->next = 0;
	reader->count = reader->fault || message->completion.kind != FIPSEE_KIND_COMPLETIONS ? 0 : message->completion.count;
}

/* The next entry, whose status is below FIPSEE_STATUS_COUNT; is its tag outstanding? A null pointer behind the last, or at a fault. */
static inline const struct fipsee_completion_entry *fipsee_completions_next(struct fipsee_completions *reader)
{
	const struct fipsee_completion_entry *entry;

	if (reader->next >= reader->count)
		return (const struct fipsee_completion_entry *)0;
	entry = &reader->message->completion.entries[reader->next++];
	if (entry->status < FIPSEE_STATUS_COUNT)
		return entry;
	reader->fault = "the status of a completion";
	reader->count = 0;
	return (const struct fipsee_completion_entry *)0;
}

/* Is the message an event, and sound? */
static inline int fipsee_completions_is_event(const struct fipsee_completions *reader)
{
	return reader->message->completion.kind != FIPSEE_KIND_COMPLETIONS && !reader->fault;
}

/*
 * The event; a null pointer if there is none, or at a fault. `unacknowledged` has bit 1 << kind of each kind whose last event
 * was not acknowledged.
 */
static inline const struct fipsee_event *fipsee_completions_event(struct fipsee_completions *reader, uint32_t unacknowledged)
{
	if (!fipsee_completions_is_event(reader))
		return (const struct fipsee_event *)0;
	if (!(unacknowledged & 1U << reader->message->event.kind))
		return &reader->message->event;
	reader->fault = "a second event of a kind that was not acknowledged";
	return (const struct fipsee_event *)0;
}

#if defined(__KERNEL__) || __STDC_HOSTED__
/*
 * The errno (positive) that a caller of read(2) or write(2) would see for a status; 0 for success. A number that is
 * no status gives EPROTO: the peer broke the protocol, close the channel.
 */
static inline int fipsee_status_errno(uint16_t status)
{
	switch (status) {
	case FIPSEE_STATUS_OK:
		return 0;
	case FIPSEE_STATUS_IO_ERROR:
		return EIO;
	case FIPSEE_STATUS_INVALID:
	case FIPSEE_STATUS_MISALIGNED:
	case FIPSEE_STATUS_NO_SEGMENTS:
		return EINVAL;
	case FIPSEE_STATUS_UNSUPPORTED:
		return EOPNOTSUPP;
	case FIPSEE_STATUS_BAD_MEMORY:
		return EFAULT;
	case FIPSEE_STATUS_READ_ONLY:
		return EROFS;
	case FIPSEE_STATUS_OUT_OF_RANGE:
		return ENXIO;
	case FIPSEE_STATUS_NO_SPACE:
		return ENOSPC;
	case FIPSEE_STATUS_DETACHED:
		return ENODEV;
	case FIPSEE_STATUS_TOO_LONG:
		return EMSGSIZE;
	default:
		return EPROTO;
	}
}
#endif

#endif /* FIPSEE_BLOCK_H */
