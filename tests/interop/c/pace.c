/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The search for the delays of the first look, for one test at a time. */
#include "interop.h"

#include "fipsee_pace.h"

static struct fipsee_search search;

void interop_pace_reset(void)
{
	fipsee_search_init(&search);
}

uint64_t interop_pace_window(uint32_t window)
{
	struct fipsee_delays delays;

	fipsee_search_window(&search, window);
	delays = fipsee_search_delays(&search);
	return (uint64_t)delays.answerer << 32 | delays.caller;
}
