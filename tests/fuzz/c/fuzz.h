/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the C clients check of what a daemon says, as functions of bytes; src/fio.rs and src/received_by_c.rs declare the same. */
#ifndef FIPSEE_FUZZ_H
#define FIPSEE_FUZZ_H

#include <stddef.h>
#include <stdint.h>

#include "fipsee.h"

/* Requests that the queue of fuzz_reap() can have outstanding. */
#define FUZZ_DEPTH 8

/* A packet of at most 513 bytes with so many descriptors, as the answer of `kind`: 0, or an errno; its text, up to a zero, goes
 * into `text`, of 640 bytes. */
int fuzz_answer(const uint8_t *bytes, size_t length_bytes, uint16_t kind, uint32_t descriptor_count, char *text);

/* Header and table of a region that begins at `region`: is everything where it may be? */
int fuzz_region(uint8_t *region, uint64_t region_bytes);

/* 64 bytes of a disk's description. */
int fuzz_info(const uint8_t *bytes);

/*
 * Publish `request_count` requests, at most FUZZ_DEPTH, then look at `message_count` messages of a daemon, at most 4 *
 * FUZZ_DEPTH. What finished goes into `into` (FUZZ_DEPTH), tag above status; 1: a fault of the daemon was found.
 */
int fuzz_reap(const union fipsee_message *messages, uint32_t message_count, uint32_t request_count, uint32_t *into,
	      uint32_t *into_count, uint64_t *sector_count);

/* Frames of fuzz_net(), which are at most so long and so many: 12 messages with 14 each. */
#define FUZZ_FRAME_BYTES 518
#define FUZZ_MOST_FRAMES 168
#define FUZZ_MOST_LOOKS (FUZZ_MOST_FRAMES + 13)

struct fuzz_frames {
	uint32_t *lengths;		/* room for all */
	uint8_t *bytes;			/* likewise, FUZZ_FRAME_BYTES each */
	uint32_t count;			/* frames that were received: 0 before */
	uint32_t given_back;		/* frames that were sent, if no fault was found in that */
	uint32_t refused;		/* of these */
};

/* What came of fuzz_net(). FUZZ_UNSOUND: the client's record of its buffers is wrong. */
#define FUZZ_SOUND 0
#define FUZZ_FAULT_SENT 1
#define FUZZ_FAULT_RECEIVED 2
#define FUZZ_UNSOUND (-1)

/*
 * The client of a port, with FUZZ_DEPTH buffers each way, sends `sent_count` frames, at most FUZZ_DEPTH, and receives what `message_count`
 * messages of a daemon have, at most 12, each for the ring of what was sent (0) or received (1). Each byte of receive buffer N is FUZZ_DEPTH + N.
 */
int fuzz_net(const union fipsee_message *messages, const uint8_t *rings, uint32_t message_count, uint32_t sent_count,
	     struct fuzz_frames *into);

/* Store a message as the engine does with these FIPSEE_STORES_*: 1; 0 if this CPU lacks them; -1 if they are said to be there and
 * are not. */
int fuzz_store(uint32_t stores, const union fipsee_message *message, uint32_t stamp, struct fipsee_slot *into);

#endif
