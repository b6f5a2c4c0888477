/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * When a disk gets another thread, loses one, or rings move between them (docs/decisions/0035-governor.md): loads go in, a
 * decision comes out. No clock, no lock, nothing of the kernel but its types: c/kmod/tests/rules.c runs it without one.
 */
#ifndef FIP_RULES_H
#define FIP_RULES_H

#define FIP_RULES_MOST 64

/* Shares of a thread's time, in thousandths. */
#define FIP_FULL 900
/* What a full thread must have beside its largest ring for another thread to help; and what may stay without one of its own. */
#define FIP_DIVISIBLE 50
#define FIP_NEGLIGIBLE 30
/* Another thread is added when the busiest would have so much after any division, */
#define FIP_RELIEVED 750
/* and removed when the busiest of the others would have no more than that. */
#define FIP_SPARE 600
/* What a division must gain. */
#define FIP_GAIN 100

#define FIP_FULL_SAMPLES 2
#define FIP_SPARE_MS 2000
#define FIP_MOVE_MS 1000
#define FIP_MOST_MOVE_MS 256000
/* A ring works until it had no load for so long. */
#define FIP_WORKING_MS 3000

/* How many threads; `most` 0: one less than rings. */
struct fip_range {
	unsigned int least;
	unsigned int most;
};

struct fip_rules {
	unsigned int full_samples;
	u32 spare_ms;
	u32 uneven_ms;
	u32 move_ms;				/* 0: FIP_MOVE_MS; doubled by each move, as long as the same rings work */
	u64 working;				/* a bit for each ring */
	u64 seen;				/* had load in the last `seen_ms` */
	u32 seen_ms;
};

enum fip_decision {
	FIP_KEEP,
	FIP_ADD,
	FIP_REMOVE,
	FIP_MOVE,
};

/* What the rings cost, and which threads have them. */
struct fip_load {
	unsigned int rings;
	unsigned int threads;
	u32 shares[FIP_RULES_MOST];		/* of rings */
	u8 thread_of[FIP_RULES_MOST];
};

/* Divides the rings among `threads`: the largest first, each to the emptiest. Those without load go by number. What the busiest has. */
static inline u32 fip_rules_divide(const struct fip_load *load, unsigned int threads, u8 *thread_of)
{
	u32 sums[FIP_RULES_MOST] = { 0 }, most = 0;
	unsigned int ring, thread, left, best;
	bool is_placed[FIP_RULES_MOST] = { 0 };

	for (left = load->rings; left; left--) {
		best = load->rings;
		for (ring = 0; ring < load->rings; ring++) {
			if (!is_placed[ring] && (best == load->rings || load->shares[ring] > load->shares[best]))
				best = ring;
		}
		is_placed[best] = true;
		if (!load->shares[best]) {
			thread_of[best] = best % threads;
			continue;
		}
		/* It stays where it is if that is one of the emptiest. */
		thread_of[best] = load->thread_of[best] < threads ? load->thread_of[best] : 0;
		for (thread = 0; thread < threads; thread++) {
			if (sums[thread] < sums[thread_of[best]])
				thread_of[best] = thread;
		}
		sums[thread_of[best]] += load->shares[best];
		if (sums[thread_of[best]] > most)
			most = sums[thread_of[best]];
	}
	return most;
}

/* What the busiest thread has now; `is_divisible`: some full one has enough beside its largest ring. */
static inline u32 fip_rules_busiest(const struct fip_load *load, bool *is_divisible)
{
	u32 sums[FIP_RULES_MOST] = { 0 }, largest[FIP_RULES_MOST] = { 0 }, most = 0;
	unsigned int ring, thread;

	for (ring = 0; ring < load->rings; ring++) {
		thread = load->thread_of[ring];
		sums[thread] += load->shares[ring];
		if (load->shares[ring] > largest[thread])
			largest[thread] = load->shares[ring];
	}
	*is_divisible = false;
	for (thread = 0; thread < load->threads; thread++) {
		*is_divisible |= sums[thread] >= FIP_FULL && sums[thread] - largest[thread] >= FIP_DIVISIBLE;
		if (sums[thread] > most)
			most = sums[thread];
	}
	return most;
}

/* What is left when each of `threads` has one of the largest rings for itself. */
static inline u32 fip_rules_rest(const struct fip_load *load, unsigned int threads)
{
	bool is_taken[FIP_RULES_MOST] = { 0 };
	unsigned int ring, best;
	u32 rest = 0;

	for (; threads; threads--) {
		best = load->rings;
		for (ring = 0; ring < load->rings; ring++) {
			if (!is_taken[ring] && (best == load->rings || load->shares[ring] > load->shares[best]))
				best = ring;
		}
		if (best < load->rings)
			is_taken[best] = true;
	}
	for (ring = 0; ring < load->rings; ring++)
		rest += is_taken[ring] ? 0 : load->shares[ring];
	return rest;
}

/* Other rings than before are no reason to wait: what was learnt about moves holds for those that worked. */
static inline void fip_rules_watch(struct fip_rules *rules, const struct fip_load *load, u32 passed_ms)
{
	unsigned int ring;
	bool is_over;

	for (ring = 0; ring < load->rings; ring++)
		rules->seen |= load->shares[ring] ? 1ULL << ring : 0;
	rules->seen_ms += passed_ms;
	is_over = rules->seen_ms >= FIP_WORKING_MS;
	if (rules->seen & ~rules->working || (is_over && rules->seen != rules->working))
		rules->move_ms = 0;
	rules->working = is_over ? rules->seen : rules->working | rules->seen;
	if (is_over)
		rules->seen = rules->seen_ms = 0;
}

/* Once for each sample, `passed_ms` after the one before. With anything but FIP_KEEP, `thread_of` says which thread is to have each ring. */
static inline enum fip_decision fip_rules_decide(struct fip_rules *rules, const struct fip_load *load, unsigned int least,
						 unsigned int most, u32 passed_ms, u8 *thread_of)
{
	bool is_divisible, is_spare;
	u32 busiest = fip_rules_busiest(load, &is_divisible), divided = fip_rules_divide(load, load->threads, thread_of);

	fip_rules_watch(rules, load, passed_ms);
	rules->full_samples = is_divisible ? rules->full_samples + 1 : 0;
	if (rules->full_samples >= FIP_FULL_SAMPLES && divided >= FIP_RELIEVED && load->threads < most) {
		*rules = (struct fip_rules){ 0 };
		fip_rules_divide(load, load->threads + 1, thread_of);
		return FIP_ADD;
	}
	rules->uneven_ms = busiest >= divided + FIP_GAIN ? rules->uneven_ms + passed_ms : 0;
	if (rules->uneven_ms && rules->uneven_ms >= (rules->move_ms ? rules->move_ms : FIP_MOVE_MS)) {
		rules->move_ms = (rules->move_ms ? rules->move_ms : FIP_MOVE_MS) * 2;
		if (rules->move_ms > FIP_MOST_MOVE_MS)
			rules->move_ms = FIP_MOST_MOVE_MS;
		rules->uneven_ms = 0;
		return FIP_MOVE;
	}
	is_spare = false;
	if (load->threads > least)
		is_spare = fip_rules_divide(load, load->threads - 1, thread_of) <= FIP_SPARE ||
			   fip_rules_rest(load, load->threads - 1) <= FIP_NEGLIGIBLE;
	rules->spare_ms = is_spare ? rules->spare_ms + passed_ms : 0;
	if (is_spare && rules->spare_ms >= FIP_SPARE_MS) {
		*rules = (struct fip_rules){ 0 };
		return FIP_REMOVE;
	}
	return FIP_KEEP;
}

#endif
