/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * How a message is put into its slot: one 64-byte store on CPU models that are known to make it visible at once,
 * eight-byte stores elsewhere (docs/decisions/0002-store-variants.md; the twin is crates/ring/src/{cpu,mapped}.rs).
 * Include this instead of fipsee_ring.h.
 */
#ifndef FIPSEE_FIO_PUBLISH_H
#define FIPSEE_FIO_PUBLISH_H

#include <stdbool.h>

#include "fipsee.h"

/* Chosen once, by publish_choose(). */
extern bool publish_is_wide;
void publish_choose(void);

#if defined(__x86_64__)
static inline void publish_message(struct fipsee_slot *slot, const union fipsee_message *message, uint32_t stamp);
#define FIPSEE_PUBLISH(slot, message, stamp) publish_message((slot), (message), (stamp))
static inline void publish_copy_in(union fipsee_message *into, const struct fipsee_slot *slot);
#define FIPSEE_COPY_IN(into, slot) publish_copy_in((into), (slot))
#endif

#include "fipsee_ring.h"

#if defined(__x86_64__)
/* A compiler that may not use these registers refuses to hear that they change, and need not know. */
#ifdef __AVX512F__
#define PUBLISH_CLOBBERS "memory", "xmm16", "k1"
#else
#define PUBLISH_CLOBBERS "memory"
#endif

static inline void publish_message(struct fipsee_slot *slot, const union fipsee_message *message, uint32_t stamp)
{
	const fipsee_ring_word *from = (const fipsee_ring_word *)(const void *)message;
	fipsee_ring_word *to = (fipsee_ring_word *)(void *)slot;
	unsigned int index;

	if (publish_is_wide) {
		/* Payload and stamp become visible at once (A), after everything stored before. The registers zmm16 and
		 * up leave the state alone that slows legacy SSE code. */
		__asm__ volatile("vmovdqa64 (%[message]), %%zmm16\n\t"
				 "kmovw %[last], %%k1\n\t"
				 "vpbroadcastd %[stamp], %%zmm16%{%%k1%}\n\t"
				 "vmovdqa64 %%zmm16, (%[slot])"
				 :
				 : [message] "r"(message), [slot] "r"(slot), [stamp] "r"(stamp), [last] "r"(0x8000)
				 : PUBLISH_CLOBBERS);
		return;
	}
	for (index = 0; index < 7; index++)
		__atomic_store_n(&to[index], from[index], __ATOMIC_RELAXED);
	__atomic_store_n((fipsee_ring_half *)(void *)&slot->payload[56], (uint32_t)from[7], __ATOMIC_RELAXED);
	FIPSEE_STORE_RELEASE(&slot->stamp, stamp); /* A */
}

static inline void publish_copy_in(union fipsee_message *into, const struct fipsee_slot *slot)
{
	const fipsee_ring_word *from = (const fipsee_ring_word *)(const void *)slot;
	fipsee_ring_word *to = (fipsee_ring_word *)(void *)into;
	unsigned int index;

	if (publish_is_wide) {
		__asm__ volatile("vmovdqa64 (%[slot]), %%zmm16\n\t"
				 "vmovdqa64 %%zmm16, (%[into])"
				 :
				 : [slot] "r"(slot), [into] "r"(into)
				 : PUBLISH_CLOBBERS);
		return;
	}
	for (index = 0; index < FIPSEE_SLOT_BYTES / sizeof(*from); index++)
		to[index] = __atomic_load_n(&from[index], __ATOMIC_RELAXED);
}
#endif

#endif /* FIPSEE_FIO_PUBLISH_H */
