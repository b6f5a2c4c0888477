/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * When to look first for the answer to a call (docs/protocol.md section 2.5, docs/how-fast.md): the C side of
 * crates/ring/src/pace. The caller searches two delays, its own and the answerer's, by the period of its own exchanges, and keeps the pair that
 * is best, or none. If allowed, it then tries other ways in which both sides own the slots of single messages.
 *
 *	once:			fipsee_pace_init(&pace, ticks_per_us);
 *				fipsee_pace_choose(&pace, choices);	where a word of choices was advised
 *	one call published,
 *	none other outstanding:	if (fipsee_pace_begin(&pace, now_ticks, answers.ring.cold))
 *					fipsee_pace_apply(&pace, &calls, &answers);
 *	anything else published: fipsee_pace_interrupt(&pace);
 *	before a look:		while (fipsee_pace_is_early(&pace, now_ticks)) ;
 *
 * Ticks are of any counter that runs at a constant rate and is cheap to read, such as rdtsc. C11, C++17 and kernel C.
 */
#ifndef FIPSEE_PACE_H
#define FIPSEE_PACE_H

#include "fipsee_ring.h"

/* Longest delay; an exchange beyond the longest period had other reasons. In ticks. */
#define FIPSEE_PACE_MAX_HOLD 1024U
#define FIPSEE_PACE_MAX_PERIOD 8192U
/* Exchanges measured together. */
#define FIPSEE_PACE_WINDOW 16U

/* Coarse steps in the undelayed period, from none to half of it; fine ones are half as long. */
#define FIPSEE_PACE_STEPS_PER_PERIOD 12U
#define FIPSEE_PACE_COARSE_POINTS 7U
#define FIPSEE_PACE_FINE_POINTS 3U
/* Windows measured at a coarse and at a fine point; one more goes before. */
#define FIPSEE_PACE_COARSE_WINDOWS 3U
#define FIPSEE_PACE_FINE_WINDOWS 9U
#define FIPSEE_PACE_LEAST_GAIN_PERCENT 3U
/* Windows judged together for drift, the drift that starts a new search, and the windows between two searches. */
#define FIPSEE_PACE_BLOCK_WINDOWS 32U
#define FIPSEE_PACE_DRIFT_PERCENT 8U
#define FIPSEE_PACE_LEAST_REST 2048U
#define FIPSEE_PACE_MOST_REST (1U << 18)

struct fipsee_delays {
	uint32_t caller;	/* after a call, in ticks */
	uint32_t answerer;	/* after an answer, in ticks */
};

/*
 * How both sides own the slots of single messages: a prefetch of the next slot, with the delays found; nothing; a locked
 * operation on the slot two ahead; the same, and the reader touches what it has copied. Only the first has delays.
 */
enum fipsee_method {
	FIPSEE_METHOD_PREFETCH, FIPSEE_METHOD_NOT_ASKED, FIPSEE_METHOD_LOCKED, FIPSEE_METHOD_LOCKED_TOUCHED, FIPSEE_METHODS
};

enum fipsee_search_phase {
	FIPSEE_SEARCH_COARSE, FIPSEE_SEARCH_FINE, FIPSEE_SEARCH_CONFIRM, FIPSEE_SEARCH_METHOD, FIPSEE_SEARCH_KEEP
};

/* The search: takes windows, returns what to try. All zero is not a valid state. */
struct fipsee_search {
	enum fipsee_search_phase phase;
	uint32_t point;			/* of the coarse or fine grid; the method tried */
	struct fipsee_delays center;	/* of the fine grid */
	uint32_t trial[FIPSEE_PACE_FINE_WINDOWS];
	uint32_t windows;		/* of this trial, the one that settles included */
	uint32_t step;
	struct fipsee_delays best;
	bool methods;			/* try other methods than prefetching */
	uint32_t best_method;		/* enum fipsee_method */
	uint32_t best_period;
	uint32_t usual_block;		/* 0 until the first block of a choice ended */
	uint32_t block;
	uint32_t block_windows;
	bool was_off;
	uint32_t kept_windows;
	uint32_t rest_windows;
};

static inline void fipsee_search_init(struct fipsee_search *search)
{
	static const struct fipsee_delays none = { 0, 0 };

	search->phase = FIPSEE_SEARCH_COARSE;
	search->point = 0;
	search->center = none;
	search->windows = 0;
	search->step = 0;
	search->best = none;
	search->methods = false;
	search->best_method = FIPSEE_METHOD_PREFETCH;
	search->best_period = 0;
	search->usual_block = 0;
	search->block = 0;
	search->block_windows = 0;
	search->was_off = false;
	search->kept_windows = 0;
	search->rest_windows = FIPSEE_PACE_LEAST_REST / 2;
}

/* A point of the fine grid along one delay; its middle is the center. */
static inline uint32_t fipsee_search_around(uint32_t center, uint32_t index, uint32_t half)
{
	uint32_t end = center + index * half;

	return end > half ? end - half : 0;
}

/* The delays to use now. */
static inline struct fipsee_delays fipsee_search_delays(const struct fipsee_search *search)
{
	struct fipsee_delays delays = { 0, 0 };
	uint32_t half = search->step / 2;

	switch (search->phase) {
	case FIPSEE_SEARCH_COARSE:
		delays.caller = search->point % FIPSEE_PACE_COARSE_POINTS * search->step;
		delays.answerer = search->point / FIPSEE_PACE_COARSE_POINTS * search->step;
		break;
	case FIPSEE_SEARCH_FINE:
		delays.caller = fipsee_search_around(search->center.caller, search->point % FIPSEE_PACE_FINE_POINTS, half);
		delays.answerer = fipsee_search_around(search->center.answerer, search->point / FIPSEE_PACE_FINE_POINTS, half);
		break;
	case FIPSEE_SEARCH_CONFIRM:
	case FIPSEE_SEARCH_METHOD:
		break;
	case FIPSEE_SEARCH_KEEP:
		delays = search->best;
		break;
	}
	return delays;
}

/* The method to use now, enum fipsee_method. */
static inline uint32_t fipsee_search_method(const struct fipsee_search *search)
{
	if (search->phase == FIPSEE_SEARCH_METHOD)
		return search->point;
	return search->phase == FIPSEE_SEARCH_KEEP ? search->best_method : (uint32_t)FIPSEE_METHOD_PREFETCH;
}

/* Is `period` shorter than `than` by the gain that a choice must bring? */
static inline bool fipsee_search_gains(uint32_t period, uint32_t than)
{
	return (uint64_t)period * 100 <= (uint64_t)than * (100 - FIPSEE_PACE_LEAST_GAIN_PERCENT);
}

static inline void fipsee_search_keep(struct fipsee_search *search)
{
	search->phase = FIPSEE_SEARCH_KEEP;
	search->usual_block = 0;
	search->block = 0;
	search->block_windows = 0;
	search->was_off = false;
	search->kept_windows = 0;
}

/* The best delays must be worth it: without any, a window took `undelayed`. */
static inline void fipsee_search_confirm(struct fipsee_search *search, uint32_t undelayed)
{
	static const struct fipsee_delays none = { 0, 0 };

	search->best_method = FIPSEE_METHOD_PREFETCH;
	if (!fipsee_search_gains(search->best_period, undelayed)) {
		search->best = none;
		search->best_period = undelayed;
	}
	search->phase = FIPSEE_SEARCH_METHOD;
	search->point = FIPSEE_METHOD_PREFETCH + 1;
	if (!search->methods)
		fipsee_search_keep(search);
}

/* A method was tried, without delays. */
static inline void fipsee_search_next_method(struct fipsee_search *search, uint32_t period)
{
	static const struct fipsee_delays none = { 0, 0 };

	if (fipsee_search_gains(period, search->best_period)) {
		search->best = none;
		search->best_method = search->point;
		search->best_period = period;
	}
	if (++search->point == FIPSEE_METHODS)
		fipsee_search_keep(search);
}

/* A trial ended; `period` is the median of its windows. */
static inline void fipsee_search_next_point(struct fipsee_search *search, uint32_t period)
{
	struct fipsee_delays tried = fipsee_search_delays(search);
	bool is_first = search->phase == FIPSEE_SEARCH_COARSE && search->point == 0;
	uint32_t points = search->phase == FIPSEE_SEARCH_COARSE ? FIPSEE_PACE_COARSE_POINTS : FIPSEE_PACE_FINE_POINTS;

	if (search->phase == FIPSEE_SEARCH_CONFIRM) {
		fipsee_search_confirm(search, period);
		return;
	}
	if (search->phase == FIPSEE_SEARCH_METHOD) {
		fipsee_search_next_method(search, period);
		return;
	}
	if (is_first) {
		uint32_t step = period / FIPSEE_PACE_WINDOW / FIPSEE_PACE_STEPS_PER_PERIOD;
		uint32_t most = FIPSEE_PACE_MAX_HOLD / FIPSEE_PACE_COARSE_POINTS;

		search->step = step < 2 ? 2 : step > most ? most : step;
	}
	if (is_first || period < search->best_period) {
		search->best = tried;
		search->best_period = period;
	}
	search->point++;
	if (search->point < points * points)
		return;
	search->point = 0;
	if (search->phase == FIPSEE_SEARCH_FINE) {
		search->phase = FIPSEE_SEARCH_CONFIRM;
		return;
	}
	search->phase = FIPSEE_SEARCH_FINE;
	search->center = search->best;
	search->best_period = 0xffffffffU;	/* measured again, with more care */
}

/* While keeping: has the period drifted, or is it time to look again? */
static inline void fipsee_search_watch(struct fipsee_search *search, uint32_t window)
{
	uint32_t difference;
	bool is_off, drifted;

	search->kept_windows++;
	search->block += window;
	if (++search->block_windows < FIPSEE_PACE_BLOCK_WINDOWS)
		return;
	if (search->usual_block == 0)
		search->usual_block = search->block;
	difference = search->block > search->usual_block ? search->block - search->usual_block
							 : search->usual_block - search->block;
	is_off = (uint64_t)difference * 100 > (uint64_t)search->usual_block * FIPSEE_PACE_DRIFT_PERCENT;
	drifted = is_off && search->was_off;
	search->was_off = is_off;
	search->block = 0;
	search->block_windows = 0;
	if (search->kept_windows < search->rest_windows)
		return;
	if (drifted)
		search->rest_windows = search->rest_windows * 2 < FIPSEE_PACE_MOST_REST ? search->rest_windows * 2
											 : FIPSEE_PACE_MOST_REST;
	else if (search->kept_windows >= FIPSEE_PACE_MOST_REST)
		search->rest_windows = FIPSEE_PACE_LEAST_REST;
	else
		return;
	search->phase = FIPSEE_SEARCH_COARSE;
	search->point = 0;
	search->windows = 0;
}

/* A window ended; its exchanges took `window` ticks together. */
static inline void fipsee_search_window(struct fipsee_search *search, uint32_t window)
{
	uint32_t wanted = search->phase == FIPSEE_SEARCH_COARSE ? FIPSEE_PACE_COARSE_WINDOWS : FIPSEE_PACE_FINE_WINDOWS;
	uint32_t place;

	if (search->phase == FIPSEE_SEARCH_KEEP) {
		fipsee_search_watch(search, window);
		return;
	}
	if (search->windows > 0) {
		/* In order, so that the median is in the middle. */
		for (place = search->windows - 1; place > 0 && search->trial[place - 1] > window; place--)
			search->trial[place] = search->trial[place - 1];
		search->trial[place] = window;
	}
	if (++search->windows <= wanted)
		return;
	search->windows = 0;
	fipsee_search_next_point(search, search->trial[wanted / 2]);
}

/* ---- The caller's side ------------------------------------------------------------------------------------------ */

struct fipsee_pace {
	struct fipsee_search search;
	struct fipsee_delays delays;
	uint32_t choices;		/* ownership and touch of single messages, at both sides; 0: unchanged */
	uint32_t ticks_per_us;		/* 0: the counter cannot be used, and nothing is delayed */
	uint64_t began;
	bool in_step;			/* the call before was answered, and no other was made meanwhile */
	bool early;
	bool untold;			/* delays or choices are not yet sent to the answerer */
	uint32_t exchanges;
	uint32_t window;
};

static inline void fipsee_pace_init(struct fipsee_pace *pace, uint32_t ticks_per_us)
{
	static const struct fipsee_delays none = { 0, 0 };

	fipsee_search_init(&pace->search);
	pace->delays = none;
	pace->choices = 0;
	pace->ticks_per_us = ticks_per_us;
	pace->began = 0;
	pace->in_step = false;
	pace->early = false;
	pace->untold = false;
	pace->exchanges = 0;
	pace->window = 0;
}

/* Ownership and touch as one word. */
static inline uint32_t fipsee_pace_word(uint32_t ownership, uint32_t touch)
{
	return ownership << FIPSEE_CHOICES_OWNERSHIP_SHIFT | touch << FIPSEE_CHOICES_TOUCH_SHIFT;
}

/*
 * Both sides begin as `choices` advise. Other methods are tried where the advice was measured, or is not the prefetch of the
 * next slot: not where their effect was not measured.
 */
static inline void fipsee_pace_choose(struct fipsee_pace *pace, uint32_t choices)
{
	uint32_t ownership = FIPSEE_CHOICE(choices, OWNERSHIP);
	uint32_t touch = FIPSEE_CHOICE(choices, TOUCH) == FIPSEE_TOUCH_ALWAYS ? FIPSEE_TOUCH_ALWAYS : FIPSEE_TOUCH_NEVER;

	if (ownership < FIPSEE_OWNERSHIP_PREFETCH_NEXT || ownership > FIPSEE_OWNERSHIP_NOT_ASKED)
		ownership = FIPSEE_OWNERSHIP_PREFETCH_NEXT;
	pace->search.methods = (choices & FIPSEE_CHOICES_MEASURED) != 0 || ownership != FIPSEE_OWNERSHIP_PREFETCH_NEXT;
	pace->choices = fipsee_pace_word(ownership, touch);
	pace->untold = true;
}

/* Something other than one call and its answer: look at once, and do not count it. */
static inline void fipsee_pace_interrupt(struct fipsee_pace *pace)
{
	pace->in_step = false;
	pace->early = false;
	pace->exchanges = 0;
	pace->window = 0;
}

/* The choices of both sides for a method. */
static inline uint32_t fipsee_pace_method_choices(uint32_t method)
{
	switch (method) {
	case FIPSEE_METHOD_NOT_ASKED:
		return fipsee_pace_word(FIPSEE_OWNERSHIP_NOT_ASKED, FIPSEE_TOUCH_NEVER);
	case FIPSEE_METHOD_LOCKED:
		return fipsee_pace_word(FIPSEE_OWNERSHIP_LOCKED_AHEAD, FIPSEE_TOUCH_NEVER);
	case FIPSEE_METHOD_LOCKED_TOUCHED:
		return fipsee_pace_word(FIPSEE_OWNERSHIP_LOCKED_AHEAD, FIPSEE_TOUCH_ALWAYS);
	default:
		return fipsee_pace_word(FIPSEE_OWNERSHIP_PREFETCH_NEXT, FIPSEE_TOUCH_NEVER);
	}
}

/* A window is full: evaluate it. */
static inline void fipsee_pace_end_window(struct fipsee_pace *pace)
{
	struct fipsee_delays delays;
	uint32_t choices = pace->choices;

	fipsee_search_window(&pace->search, pace->window);
	delays = fipsee_search_delays(&pace->search);
	if (pace->search.methods)
		choices = fipsee_pace_method_choices(fipsee_search_method(&pace->search));
	pace->exchanges = 0;
	pace->window = 0;
	if (delays.answerer != pace->delays.answerer || choices != pace->choices)
		pace->untold = true;
	pace->delays = delays;
	pace->choices = choices;
}

/* Ask the answerer, through the cold words of its ring. */
static inline void fipsee_pace_tell(struct fipsee_pace *pace, struct fipsee_cold *answers)
{
	/* Of FIPSEE_PACE_MAX_HOLD ticks at most, so that 32 bits hold the product; a kernel of 32 bits has no other division. */
	uint32_t ns = pace->delays.answerer * 1000 / pace->ticks_per_us;

	pace->untold = false;
	FIPSEE_STORE_RELEASE(&answers->hold, ns < FIPSEE_MAX_HOLD_NS ? ns : FIPSEE_MAX_HOLD_NS);
	FIPSEE_STORE_RELEASE(&answers->choices, pace->choices);
}

/* One call was published and it is the only one outstanding. True: a delay or choice has changed, call fipsee_pace_apply(). */
static inline bool fipsee_pace_begin(struct fipsee_pace *pace, uint64_t now, struct fipsee_cold *answers)
{
	uint64_t period = now - pace->began;
	bool untold;

	if (pace->ticks_per_us == 0)
		return false;
	if (pace->in_step && period > FIPSEE_PACE_MAX_PERIOD) {
		pace->exchanges = 0;
		pace->window = 0;
	} else if (pace->in_step) {
		pace->window += (uint32_t)period;
		if (++pace->exchanges == FIPSEE_PACE_WINDOW)
			fipsee_pace_end_window(pace);
	}
	pace->began = now;
	pace->in_step = true;
	pace->early = pace->delays.caller != 0;
	untold = pace->untold;
	if (untold)
		fipsee_pace_tell(pace, answers);
	return untold;
}

/* Apply the method to the caller's own two ends. Messages of a run are touched as before. */
static inline void fipsee_pace_apply(const struct fipsee_pace *pace, struct fipsee_writer *calls, struct fipsee_reader *answers)
{
	uint32_t touch = FIPSEE_CHOICE(pace->choices, TOUCH);

	fipsee_writer_choose(calls, pace->choices);
	if (touch != 0)
		answers->touch_first = touch == FIPSEE_TOUCH_ALWAYS;
}

/* Is it too early to look? At most FIPSEE_PACE_MAX_HOLD ticks after the call. */
static inline bool fipsee_pace_is_early(struct fipsee_pace *pace, uint64_t now)
{
	if (pace->early && now - pace->began >= pace->delays.caller)
		pace->early = false;
	return pace->early;
}

#endif /* FIPSEE_PACE_H */
