/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Which CPU a thread gets (docs/decisions/0035-governor.md): what is known of two CPUs goes in, the better one comes out. Nothing of the
 * kernel but its types: c/kmod/tests/rules.c runs it without one.
 */
#ifndef FIP_PLACE_H
#define FIP_PLACE_H

struct fip_place {
	unsigned int cpu;
	unsigned int threads;			/* of this driver, on the CPU */
	unsigned int beside;			/* likewise, on the other CPUs of its core */
	bool is_far;				/* from the rings' memory: on another node */
	bool is_cold;				/* its last-level cache is not that of the disk's first thread */
};

/*
 * Two threads that poll on one CPU take turns of milliseconds, so that is the last resort. Memory of another node costs each look more
 * than a sibling's load does. Rings move between the threads of a disk, whose state is best in one cache.
 */
static inline bool fip_place_is_better(const struct fip_place *one, const struct fip_place *other)
{
	if (one->threads != other->threads)
		return one->threads < other->threads;
	if (one->is_far != other->is_far)
		return other->is_far;
	if (one->beside != other->beside)
		return one->beside < other->beside;
	return other->is_cold && !one->is_cold;
}

#endif
