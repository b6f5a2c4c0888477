/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The fio engine's checks of what a daemon says, as functions of bytes; src/fio.rs declares the same. */
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

/* Store a message as the engine does with these FIPSEE_STORES_*: 1; 0 if this CPU lacks them; -1 if they are said to be there and
 * are not. */
int fuzz_store(uint32_t stores, const union fipsee_message *message, uint32_t stamp, struct fipsee_slot *into);

#endif
