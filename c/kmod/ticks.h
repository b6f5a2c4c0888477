/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * A cheap clock, and waiting for a store of another CPU.
 */
#ifndef FIP_TICKS_H
#define FIP_TICKS_H

#include <linux/delay.h>
#include <linux/ktime.h>
#include <linux/math64.h>
#include <linux/processor.h>
#include <linux/timex.h>

/* User-mode Linux runs on the same instruction as the kernel it replaces. */
static inline u64 fip_ticks(void)
{
#if defined(CONFIG_X86_64) || defined(CONFIG_UML)
	u32 low, high;

	asm volatile("rdtsc" : "=a"(low), "=d"(high));
	return (u64)high << 32 | low;
#else
	return get_cycles();
#endif
}

/* prefetchw() of user-mode Linux is a prefetch for reading, which takes the line away from the reader without owning it. */
static inline void fip_prefetchw(const void *address)
{
#if defined(CONFIG_UML)
	asm volatile("prefetchw %0" : : "m"(*(const char *)address));
#else
	prefetchw(address);
#endif
}

/* What fipsee_ring.h asks for a line with. */
#define FIPSEE_PREFETCHW(slot) fip_prefetchw(slot)

/* Ticks in a millisecond, measured; at least 1. */
static inline u64 fip_measure_ticks_per_ms(void)
{
	u64 from_ns = ktime_get_ns(), from = fip_ticks(), passed_ns;

	do {
		passed_ns = ktime_get_ns() - from_ns;
	} while (passed_ns < 2 * NSEC_PER_MSEC);
	return max_t(u64, mul_u64_u64_div_u64(fip_ticks() - from, NSEC_PER_MSEC, passed_ns), 1);
}

#if defined(CONFIG_X86_64) && !defined(CONFIG_UML)
#include <asm/cpufeature.h>
#include <asm/mwait.h>

/* Without such an instruction, or where the hypervisor hides it, only PAUSE. */
static inline bool fip_can_mwait(void)
{
	return boot_cpu_has(X86_FEATURE_WAITPKG) || boot_cpu_has(X86_FEATURE_MWAIT);
}

/*
 * Wait until `word` is no longer `value`, or for about `ticks`. UMWAIT has a deadline. MWAIT ends at the next interrupt at the
 * latest, and a CPU that runs a thread has its tick.
 */
static inline void fip_mwait(const u32 *word, u32 value, u64 ticks)
{
	if (boot_cpu_has(X86_FEATURE_WAITPKG)) {
		u64 deadline = fip_ticks() + ticks;

		/* UMONITOR %rcx; UMWAIT %ecx: the shallow state, C0.1. */
		asm volatile(".byte 0xf3, 0x0f, 0xae, 0xf1" : : "c"(word) : "memory");
		if (READ_ONCE(*word) == value)
			asm volatile(".byte 0xf2, 0x0f, 0xae, 0xf1"
				     : : "c"(1), "a"((u32)deadline), "d"((u32)(deadline >> 32)) : "memory", "cc");
		return;
	}
	__monitor(word, 0, 0);
	if (READ_ONCE(*word) == value)
		__mwait(0, 0);
}
#else
static inline bool fip_can_mwait(void)
{
	return false;
}

static inline void fip_mwait(const u32 *word, u32 value, u64 ticks)
{
	cpu_relax();
}
#endif

#endif
