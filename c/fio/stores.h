/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Messages stored in wider pieces than words, in assembly so that the engine needs no compiler options and runs on every
 * CPU: CPUID says which of them it may use (docs/decisions/0002-store-variants.md; counterpart of crates/ring/src/cpu.rs).
 *
 * A message is gathered from its words of 8 bytes. It was just written by words, and a wider load would wait until those
 * have left the store buffer. The registers from 16 on do not dirty the upper halves of the lower ones, which would slow
 * down code compiled without AVX.
 */
#ifndef FIPSEE_FIO_STORES_H
#define FIPSEE_FIO_STORES_H

#include <stdbool.h>

#include "fipsee.h"

#if defined(__x86_64__)
#include <cpuid.h>

/* The message's quarters into xmm0 to xmm3, the stamp at the end of the last. */
#define STORES_GATHER \
	"vmovq (%[from]), %%xmm0\n\t" \
	"vpinsrq $1, 8(%[from]), %%xmm0, %%xmm0\n\t" \
	"vmovq 16(%[from]), %%xmm1\n\t" \
	"vpinsrq $1, 24(%[from]), %%xmm1, %%xmm1\n\t" \
	"vmovq 32(%[from]), %%xmm2\n\t" \
	"vpinsrq $1, 40(%[from]), %%xmm2, %%xmm2\n\t" \
	"vmovq 48(%[from]), %%xmm3\n\t" \
	"vpinsrd $2, 56(%[from]), %%xmm3, %%xmm3\n\t" \
	"vpinsrd $3, %k[stamp], %%xmm3, %%xmm3\n\t"
#if defined(__AVX512F__)
#define STORES_CLOBBER "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm16"
#else
/* Nothing else uses xmm16, and the compiler does not know it. */
#define STORES_CLOBBER "memory", "xmm0", "xmm1", "xmm2", "xmm3"
#endif

/* Four aligned stores of 16 bytes, each of which AVX makes atomic, in order. */
static inline void stores_wide16(struct fipsee_slot *slot, const union fipsee_message *message, uint32_t stamp)
{
	__asm__ volatile(STORES_GATHER
			 "vmovdqa %%xmm0, (%[to])\n\t"
			 "vmovdqa %%xmm1, 16(%[to])\n\t"
			 "vmovdqa %%xmm2, 32(%[to])\n\t"
			 "vmovdqa %%xmm3, 48(%[to])"
			 : : [to] "r"(slot), [from] "r"(message), [stamp] "r"(stamp) : STORES_CLOBBER);
}

/* One of 32, which need not be atomic, and two of 16, the stamp in the last. */
static inline void stores_split32(struct fipsee_slot *slot, const union fipsee_message *message, uint32_t stamp)
{
	__asm__ volatile(STORES_GATHER
			 "vpxord %%ymm16, %%ymm16, %%ymm16\n\t"
			 "vinserti32x4 $0, %%xmm0, %%ymm16, %%ymm16\n\t"
			 "vinserti32x4 $1, %%xmm1, %%ymm16, %%ymm16\n\t"
			 "vmovdqa32 %%ymm16, (%[to])\n\t"
			 "vmovdqa %%xmm2, 32(%[to])\n\t"
			 "vmovdqa %%xmm3, 48(%[to])"
			 : : [to] "r"(slot), [from] "r"(message), [stamp] "r"(stamp) : STORES_CLOBBER);
}

/* One of 64. */
static inline void stores_wide64(struct fipsee_slot *slot, const union fipsee_message *message, uint32_t stamp)
{
	__asm__ volatile(STORES_GATHER
			 "vpxord %%zmm16, %%zmm16, %%zmm16\n\t"
			 "vinserti32x4 $0, %%xmm0, %%zmm16, %%zmm16\n\t"
			 "vinserti32x4 $1, %%xmm1, %%zmm16, %%zmm16\n\t"
			 "vinserti32x4 $2, %%xmm2, %%zmm16, %%zmm16\n\t"
			 "vinserti32x4 $3, %%xmm3, %%zmm16, %%zmm16\n\t"
			 "vmovdqa64 %%zmm16, (%[to])"
			 : : [to] "r"(slot), [from] "r"(message), [stamp] "r"(stamp) : STORES_CLOBBER);
}

/* Does an aligned store of 64 bytes become visible as one? Intel's do; AMD's on Zen 5 servers and desktops. */
static inline bool stores_are_whole(void)
{
	unsigned int most, ebx, ecx, edx, signature, family, model;

	if (!__get_cpuid(0, &most, &ebx, &ecx, &edx))
		return false;
	if (!__get_cpuid(1, &signature, &most, &most, &most))
		return false;
	family = signature >> 8 & 0xf;
	if (family == 0xf)
		family += signature >> 20 & 0xff;
	model = (signature >> 4 & 0xf) | (signature >> 16 & 0xf) << 4;
	if (ebx == signature_INTEL_ebx && edx == signature_INTEL_edx && ecx == signature_INTEL_ecx)
		return family == 6;
	if (ebx == signature_AMD_ebx && edx == signature_AMD_edx && ecx == signature_AMD_ecx)
		return family == 0x1a && (model <= 0x1f || (model >= 0x40 && model <= 0x4f));
	return false;
}

/* Does this CPU have these stores, FIPSEE_STORES_*? */
static inline bool stores_are_possible(uint32_t stores)
{
	switch (stores) {
	case FIPSEE_STORES_WIDE16:
		return __builtin_cpu_supports("avx");
	case FIPSEE_STORES_SPLIT32:
		return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl");
	case FIPSEE_STORES_WIDE64:
		return __builtin_cpu_supports("avx512f") && stores_are_whole();
	default:
		return false;
	}
}

/* False: not stored, because the CPU lacks these stores. */
static inline bool stores_publish(uint8_t stores, struct fipsee_slot *slot, const union fipsee_message *message, uint32_t stamp)
{
	switch (stores) {
	case FIPSEE_STORES_WIDE16:
		stores_wide16(slot, message, stamp);
		return true;
	case FIPSEE_STORES_SPLIT32:
		stores_split32(slot, message, stamp);
		return true;
	case FIPSEE_STORES_WIDE64:
		stores_wide64(slot, message, stamp);
		return true;
	default:
		return false;
	}
}
#else
static inline bool stores_are_possible(uint32_t stores)
{
	(void)stores;
	return false;
}

static inline bool stores_publish(uint8_t stores, struct fipsee_slot *slot, const union fipsee_message *message, uint32_t stamp)
{
	(void)stores;
	(void)slot;
	(void)message;
	(void)stamp;
	return false;
}
#endif

/* The part of a word of choices that this CPU can do. */
static inline uint32_t stores_possible_choices(uint32_t choices)
{
	if (stores_are_possible(FIPSEE_CHOICE(choices, STORES)))
		return choices;
	return choices & ~(FIPSEE_CHOICES_FIELD << FIPSEE_CHOICES_STORES_SHIFT);
}

/* For fipsee_ring.h, which comes after this. */
#define FIPSEE_PUBLISH_AS(stores, slot, message, stamp)			\
	do {								\
		if (!stores_publish(stores, slot, message, stamp))	\
			FIPSEE_PUBLISH(slot, message, stamp);		\
	} while (0)

#endif /* FIPSEE_FIO_STORES_H */
