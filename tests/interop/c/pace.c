/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The search for the delays of the first look, for one test at a time. */
#include <string.h>

#include "interop.h"

#include "fipsee_pace.h"

static struct fipsee_search search;

void interop_pace_reset(int methods)
{
	fipsee_search_init(&search);
	search.methods = methods != 0;
}

uint64_t interop_pace_window(uint32_t window)
{
	struct fipsee_delays delays;

	fipsee_search_window(&search, window);
	delays = fipsee_search_delays(&search);
	return (uint64_t)fipsee_search_method(&search) << 48 | (uint64_t)delays.answerer << 24 | delays.caller;
}

/* What a caller in step asks of the answerer after so many windows, each exchange taking `period`. */
uint64_t interop_pace_asks(uint32_t choices, uint32_t period, uint32_t windows)
{
	static struct fipsee_slot slots[2];
	static struct fipsee_cold cold __attribute__((aligned(FIPSEE_SLOT_BYTES)));
	const struct fipsee_ring ring = { slots, &cold, 2 };
	struct fipsee_reader answers;
	struct fipsee_writer calls;
	struct fipsee_pace pace;
	uint64_t now = 1;
	uint32_t exchange;

	memset(&cold, 0, sizeof(cold));
	if (fipsee_writer_init(&calls, ring, fipsee_cursor_at_start(0)) != FIPSEE_RING_OK ||
	    fipsee_reader_init(&answers, ring, fipsee_cursor_at_start(0)) != FIPSEE_RING_OK)
		return 0;
	fipsee_pace_init(&pace, 1000);
	fipsee_pace_choose(&pace, choices);
	fipsee_writer_choose(&calls, choices);
	fipsee_reader_choose(&answers, choices);
	for (exchange = 0; exchange <= windows * FIPSEE_PACE_WINDOW; exchange++, now += period)
		if (fipsee_pace_begin(&pace, now, &cold))
			fipsee_pace_apply(&pace, &calls, &answers);
	/* What the caller does itself is what it asks for. */
	if (calls.ownership != FIPSEE_CHOICE(cold.choices, OWNERSHIP) ||
	    answers.touch_first != (FIPSEE_CHOICE(cold.choices, TOUCH) == FIPSEE_TOUCH_ALWAYS))
		return ~0ULL;
	return (uint64_t)cold.hold << 32 | cold.choices;
}
