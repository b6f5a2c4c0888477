/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Times, counted in buckets: exact below 128 ticks, then 64 to each power of two, so that a quantile is right to 1.6 %.
 */
#ifndef FIP_HISTOGRAM_H
#define FIP_HISTOGRAM_H

#include <linux/bitops.h>
#include <linux/math64.h>
#include <linux/minmax.h>
#include <linux/types.h>

#define FIP_EXACT_BUCKETS 128U
#define FIP_BUCKETS (58 * 64 + 64)

struct fip_histogram {
	u64 samples;
	u64 sum;
	u64 most;
	u32 buckets[FIP_BUCKETS];
};

static inline u32 fip_bucket(u64 ticks)
{
	u32 shift;

	if (ticks < FIP_EXACT_BUCKETS)
		return (u32)ticks;
	shift = fls64(ticks) - 7;
	return (shift << 6) + (u32)(ticks >> shift);
}

/* The middle of a bucket. */
static inline u64 fip_bucket_ticks(u32 bucket)
{
	u32 shift;

	if (bucket < FIP_EXACT_BUCKETS)
		return bucket;
	shift = (bucket >> 6) - 1;
	return ((u64)(bucket & 63) + 64) * (1ULL << shift) + (1ULL << shift) / 2;
}

static inline void fip_histogram_add(struct fip_histogram *histogram, u64 ticks)
{
	histogram->samples++;
	histogram->sum += ticks;
	histogram->most = max(histogram->most, ticks);
	histogram->buckets[fip_bucket(ticks)]++;
}

/* The ticks that this many of a thousand samples did not exceed. */
static inline u64 fip_histogram_quantile(const struct fip_histogram *histogram, u32 thousandths)
{
	u64 rank = div_u64(histogram->samples * thousandths, 1000), seen = 0;
	u32 bucket;

	for (bucket = 0; bucket < FIP_BUCKETS; bucket++) {
		seen += histogram->buckets[bucket];
		if (seen > rank)
			return fip_bucket_ticks(bucket);
	}
	return 0;
}

#endif
