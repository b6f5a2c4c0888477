/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the C half of the interop tests offers to the Rust half; src/ffi.rs declares the same. */
#ifndef INTEROP_H
#define INTEROP_H

#include "fipsee.h"

/* One size, offset or constant of the headers. */
struct interop_entry {
	const char *name;
	uint64_t value;
};

/* Entry `index` of the layout table; NULL behind its end. */
const struct interop_entry *interop_layout(size_t index);

/* Example `index`, built through the C structures, into at most 512 bytes; NULL behind the last. */
const char *interop_golden(size_t index, uint8_t *into, size_t *length_bytes);

/* A control message in neutral form: values[0] is the kind, the fields follow in wire order. */
struct interop_control {
	uint64_t values[8];
	uint32_t text_bytes;
	uint8_t text[FIPSEE_MAX_MESSAGE_BYTES];
};

/* 1: understood; 0: malformed. `bytes` has any alignment. */
int interop_control_decode(const uint8_t *bytes, size_t length_bytes, struct interop_control *out);
/* Bytes written into `into` (FIPSEE_MAX_MESSAGE_BYTES); 0: no such kind. */
size_t interop_control_encode(const struct interop_control *in, uint8_t *into);

/* 1: a description of a disk that is possible; 0: not. */
int interop_block_info_is_valid(const struct fipsee_block_info *info);
/* A message of a completion ring: -1 at a fault, 1 if it is an event, else 0; and the entries before the fault or end, at most 14. */
int interop_completion_read(const uint8_t *bytes, uint32_t unacknowledged, struct fipsee_completion_entry *entries, uint32_t *count);
/* 1: header and table of a region of `region_bytes` are sound; 0: not. `bytes` holds at least 64 * 65. */
int interop_region_is_valid(const uint8_t *bytes, uint64_t region_bytes);

struct interop_limits {
	uint64_t sector_count;
	uint64_t block_mask;
	uint64_t max_transfer_sectors;
	uint64_t max_range_sectors;
	uint32_t capabilities;
};

struct interop_view {
	const uint8_t *base;
	uint64_t length_sectors;
	uint16_t access;
};

struct interop_span {
	uint64_t address;
	uint64_t length_bytes;
};

struct interop_parsed {
	uint64_t sector;
	uint64_t length_sectors;
	uint32_t aux;
	uint32_t span_count;
	uint16_t tag;
	uint8_t operation;
	uint8_t fua;
	uint8_t unmap;
	struct interop_span spans[FIPSEE_MAX_INDIRECT_ENTRIES];
};

/* The status that the request deserves; FIPSEE_STATUS_OK fills `out`. `views` has FIPSEE_MAX_REGIONS entries. */
uint16_t interop_request_parse(const union fipsee_message *message, const struct interop_limits *limits,
			       const struct interop_view *views, struct interop_parsed *out);

/* Kinds of message on the rings of the block protocol, and their fields one by one as 32-bit words. */
#define INTEROP_REQUEST_SEGMENTS 1
#define INTEROP_REQUEST_RANGE 2
#define INTEROP_COMPLETIONS 3
#define INTEROP_EVENT 4
#define INTEROP_FIELDS 45

/* 0: no such kind. Fields that the kind does not have are 0. */
int interop_describe(uint32_t kind, const union fipsee_message *message, uint32_t *fields);
int interop_build(uint32_t kind, const uint32_t *fields, union fipsee_message *message);

/* The search for the delays and the method of calls (fipsee_pace.h): afresh, with other methods than prefetching or without; and
 * one window on, answering the caller's delay, from bit 24 on the answerer's, from bit 48 on the method. Not for two threads at a
 * time. */
void interop_pace_reset(int methods);
uint64_t interop_pace_window(uint32_t window);
/* Of a caller with this advice, after so many windows of exchanges that all take `period`: `choices` of the cold words below
 * `hold`. */
uint64_t interop_pace_asks(uint32_t choices, uint32_t period, uint32_t windows);

/* A stream's reader of a ring of so many slots that chooses `choices`; and one empty look at `now` after so many messages more, which
 * answers how long it waits. Not for two threads at a time. */
void interop_gather_reset(uint32_t choices, uint32_t slot_count);
uint64_t interop_gather_look(uint32_t messages, uint64_t now);

/* The accesses of each ring operation, in order, with both ends choosing `choices`: see trace.c. Not for two threads at a time. */
const char *interop_trace(uint32_t choices);
/* The same of single messages and runs of them, streamed and called. */
const char *interop_trace_runs(uint32_t choices);

#endif
