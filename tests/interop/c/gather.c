/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* When a stream's reader lets messages gather, for one test at a time. */
#include "interop.h"

#include "fipsee_ring.h"

static struct fipsee_reader reader;

void interop_gather_reset(uint32_t choices, uint32_t slot_count)
{
	/* The decision looks at no slot, and at no cold word. */
	static struct fipsee_slot slots[1];
	static struct fipsee_cold cold __attribute__((aligned(FIPSEE_SLOT_BYTES)));
	const struct fipsee_ring ring = { slots, &cold, slot_count };

	(void)fipsee_reader_init(&reader, ring, fipsee_cursor_at_start(0));
	fipsee_reader_choose(&reader, choices);
}

uint64_t interop_gather_look(uint32_t messages, uint64_t now)
{
	reader.received += messages;
	return fipsee_reader_gather_ticks(&reader, now);
}
