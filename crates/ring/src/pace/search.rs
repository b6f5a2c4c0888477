//! The search for the two delays: a coarse grid, a fine one around its best point, the other methods without delays, then a watch
//! for drift.

use super::{Delays, MAX_HOLD_TICKS, Method};

/// Coarse steps in the undelayed period; the valley is about one of them wide.
const STEPS_PER_PERIOD: u64 = 12;
/// Coarse points along each delay, from none on: up to half a period.
const COARSE_POINTS: u32 = 7;
/// Fine points along each delay, half a coarse step apart, around the best coarse point.
const FINE_POINTS: u32 = 3;
/// Windows measured at a coarse point, and at a fine one. One more goes before, in which the change settles.
const COARSE_WINDOWS: usize = 3;
const FINE_WINDOWS: usize = 9;
/// Percent that delays must gain against none, and another method against the best without it.
const LEAST_GAIN_PERCENT: u64 = 3;
/// Windows that are judged together for drift.
const BLOCK_WINDOWS: u32 = 32;
/// A change of the mean by this many percent over two blocks starts a new search.
const DRIFT_PERCENT: u64 = 8;
/// Least windows between two searches (some 10 ms of exchanges). Doubled by each search that drift started, so that an
/// irregular caller soon pays next to nothing.
const LEAST_REST_WINDOWS: u32 = 2048;
const MOST_REST_WINDOWS: u32 = 1 << 18;

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Point `point` of the coarse grid.
    Coarse { point: u32 },
    /// Point `point` of the fine grid around `center`.
    Fine { point: u32, center: Delays },
    /// No delays, measured as carefully as the best.
    Confirm,
    /// Another method than prefetching, without delays.
    Method { method: Method },
    /// A choice was made.
    Keep,
}

/// Tries pairs of delays, then other methods, and keeps the best. `include/fipsee_pace.h` is its counterpart.
#[derive(Debug)]
pub struct Search {
    phase: Phase,
    trial: [u64; FINE_WINDOWS],
    /// Windows of this trial so far, the one that settles included.
    windows: usize,
    step_ticks: u64,
    /// Try other methods than prefetching?
    pub(super) methods: bool,
    best: Delays,
    best_method: Method,
    best_period: u64,
    kept: Kept,
    rest_windows: u32,
}

/// What was seen since a choice was made.
#[derive(Debug, Default)]
struct Kept {
    windows: u32,
    /// The usual sum of a block, 0 until the first; the sum and windows of this one.
    usual_block: u64,
    block: u64,
    block_windows: u32,
    was_off: bool,
}

impl Search {
    /// The search of a new channel; `methods`: of other methods than prefetching, too.
    pub fn new(methods: bool) -> Self {
        Self {
            methods,
            best_method: Method::Prefetch,
            phase: Phase::Coarse { point: 0 },
            trial: [0; FINE_WINDOWS],
            windows: 0,
            step_ticks: 0,
            best: Delays::default(),
            best_period: 0,
            kept: Kept::default(),
            rest_windows: LEAST_REST_WINDOWS / 2,
        }
    }

    /// A window of 16 exchanges ended, which took `window_ticks` together; returns delays and method from here on.
    pub fn window(&mut self, window_ticks: u64) -> (Delays, Method) {
        match self.phase {
            Phase::Keep => self.watch(window_ticks),
            Phase::Coarse { .. } => self.measure(window_ticks, COARSE_WINDOWS),
            Phase::Fine { .. } | Phase::Confirm | Phase::Method { .. } => self.measure(window_ticks, FINE_WINDOWS),
        }
        (self.delays(), self.method())
    }

    fn measure(&mut self, window_ticks: u64, wanted: usize) {
        if self.windows > 0 {
            self.trial[self.windows - 1] = window_ticks;
        }
        self.windows += 1;
        if self.windows > wanted {
            self.windows = 0;
            let measured = &mut self.trial[..wanted];
            measured.sort_unstable();
            let median = measured[wanted / 2];
            self.next_point(median);
        }
    }

    const fn method(&self) -> Method {
        match self.phase {
            Phase::Method { method } => method,
            Phase::Keep => self.best_method,
            Phase::Coarse { .. } | Phase::Fine { .. } | Phase::Confirm => Method::Prefetch,
        }
    }

    fn delays(&self) -> Delays {
        let steps = |count: u32, of_ticks: u64| u64::from(count) * of_ticks;
        match self.phase {
            Phase::Coarse { point } => Delays {
                caller_ticks: steps(point % COARSE_POINTS, self.step_ticks),
                answerer_ticks: steps(point / COARSE_POINTS, self.step_ticks),
            },
            Phase::Fine { point, center } => {
                let half = self.step_ticks / 2;
                // The middle of the fine grid is the center.
                let around = |center_ticks: u64, index: u32| (center_ticks + steps(index, half)).saturating_sub(half);
                Delays {
                    caller_ticks: around(center.caller_ticks, point % FINE_POINTS),
                    answerer_ticks: around(center.answerer_ticks, point / FINE_POINTS),
                }
            }
            Phase::Confirm | Phase::Method { .. } => Delays::default(),
            Phase::Keep => self.best,
        }
    }

    fn next_point(&mut self, period: u64) {
        let tried = self.delays();
        match self.phase {
            Phase::Coarse { point: 0 } => {
                (self.best, self.best_period) = (tried, period);
                let exchange_ticks = period / u64::from(super::WINDOW_EXCHANGES);
                self.step_ticks = (exchange_ticks / STEPS_PER_PERIOD).clamp(2, MAX_HOLD_TICKS / u64::from(COARSE_POINTS));
                self.phase = Phase::Coarse { point: 1 };
            }
            Phase::Coarse { point } => {
                self.improve(tried, period);
                let next = point + 1;
                self.phase = if next < COARSE_POINTS * COARSE_POINTS {
                    Phase::Coarse { point: next }
                } else {
                    self.best_period = u64::MAX; // Measured again, with more care.
                    Phase::Fine { point: 0, center: self.best }
                };
            }
            Phase::Fine { point, center } => {
                self.improve(tried, period);
                let next = point + 1;
                self.phase = if next < FINE_POINTS * FINE_POINTS { Phase::Fine { point: next, center } } else { Phase::Confirm };
            }
            Phase::Confirm => {
                self.confirm(period);
                self.phase = if self.methods { self.after(Method::Prefetch) } else { self.keep() };
            }
            Phase::Method { method } => {
                if gains(period, self.best_period) {
                    (self.best, self.best_method, self.best_period) = (Delays::default(), method, period);
                }
                self.phase = self.after(method);
            }
            Phase::Keep => {}
        }
    }

    fn improve(&mut self, tried: Delays, period: u64) {
        if period < self.best_period {
            (self.best, self.best_period) = (tried, period);
        }
    }

    /// The best delays must be worth it: none took `undelayed`.
    fn confirm(&mut self, undelayed: u64) {
        self.best_method = Method::Prefetch;
        if !gains(self.best_period, undelayed) {
            (self.best, self.best_period) = (Delays::default(), undelayed);
        }
    }

    fn after(&mut self, method: Method) -> Phase {
        method.next().map_or_else(|| self.keep(), |method| Phase::Method { method })
    }

    fn keep(&mut self) -> Phase {
        self.kept = Kept::default();
        Phase::Keep
    }

    fn watch(&mut self, window_ticks: u64) {
        self.kept.windows += 1;
        self.kept.block += window_ticks;
        self.kept.block_windows += 1;
        if self.kept.block_windows == BLOCK_WINDOWS {
            self.end_block();
        }
    }

    fn end_block(&mut self) {
        let kept = &mut self.kept;
        let block = std::mem::take(&mut kept.block);
        kept.block_windows = 0;
        if kept.usual_block == 0 {
            kept.usual_block = block;
        }
        let is_off = block.abs_diff(kept.usual_block) * 100 > kept.usual_block * DRIFT_PERCENT;
        let drifted = std::mem::replace(&mut kept.was_off, is_off) && is_off;
        if kept.windows < self.rest_windows {
            return;
        }
        if drifted {
            self.rest_windows = (self.rest_windows * 2).min(MOST_REST_WINDOWS);
        } else if kept.windows >= MOST_REST_WINDOWS {
            self.rest_windows = LEAST_REST_WINDOWS;
        } else {
            return;
        }
        self.phase = Phase::Coarse { point: 0 };
        self.windows = 0;
    }
}

/// Is a period of `ticks` enough better than one of `than` for a choice?
const fn gains(ticks: u64, than: u64) -> bool {
    ticks.saturating_mul(100) <= than.saturating_mul(100 - LEAST_GAIN_PERCENT)
}

// Millions of windows: hours under Miri, which has nothing to find in them.
#[cfg(all(test, not(miri)))]
mod tests {
    use super::super::WINDOW_EXCHANGES;
    use super::*;

    /// A machine and a peer: the period of one exchange, by the delays.
    type Surface = fn(Delays, Method) -> u64;

    /// Measured on a Xeon: a ridge at `answerer = caller + 40`, ever higher from (40, 80) on; too early costs a transfer.
    fn ridge(delays: Delays, _: Method) -> u64 {
        let off_ridge = (delays.caller_ticks + 40).abs_diff(delays.answerer_ticks);
        let along = delays.caller_ticks.saturating_sub(40) / 2;
        if delays.caller_ticks < 30 || off_ridge > 30 { 560 + delays.caller_ticks / 8 } else { 340 + along + off_ridge / 2 }
    }

    /// Threads of one core: every delay is a loss.
    fn fast(delays: Delays, _: Method) -> u64 {
        140 + delays.caller_ticks + delays.answerer_ticks
    }

    /// The delays change nothing: the time is spent elsewhere.
    fn flat(_: Delays, _: Method) -> u64 {
        5000
    }

    struct Run {
        search: Search,
        delays: Delays,
        method: Method,
        random: u64,
        /// Ticks spent in all, and what they would have been without delays.
        spent: u64,
        undelayed: u64,
    }

    impl Run {
        fn new() -> Self {
            Self {
                search: Search::new(true),
                delays: Delays::default(),
                method: Method::Prefetch,
                random: 1,
                spent: 0,
                undelayed: 0,
            }
        }

        /// This many windows; of a hundred exchanges `bad_percent` take 60 % longer.
        fn windows(&mut self, count: u32, surface: Surface, bad_percent: u64) -> Delays {
            for _ in 0..count {
                let period = surface(self.delays, self.method);
                let mut window = 0;
                for _ in 0..WINDOW_EXCHANGES {
                    self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let bad = (self.random >> 33) % 100 < bad_percent;
                    window += if bad { period * 8 / 5 } else { period + (self.random >> 40) % 12 };
                }
                self.spent += window;
                self.undelayed += surface(Delays::default(), Method::Prefetch) * u64::from(WINDOW_EXCHANGES);
                (self.delays, self.method) = self.search.window(window);
            }
            self.delays
        }
    }

    /// Zen 4: delays gain nothing, the locked operation does, and the touch a little more.
    fn zen4(delays: Delays, method: Method) -> u64 {
        let at_once = [404, 398, 333, 307][method as usize];
        at_once + delays.caller_ticks / 2 + delays.answerer_ticks / 2
    }

    const ENOUGH: u32 = 440;

    #[test]
    fn the_best_of_a_ridge_is_found() {
        for bad_percent in [0, 5, 15] {
            let delays = Run::new().windows(ENOUGH, ridge, bad_percent);
            assert!(
                ridge(delays, Method::Prefetch) <= 340 * 107 / 100,
                "{delays:?}: {} with {bad_percent} % bad",
                ridge(delays, Method::Prefetch)
            );
        }
    }

    #[test]
    fn where_delays_lose_there_are_none() {
        for bad_percent in [0, 15] {
            assert_eq!(Run::new().windows(ENOUGH, fast, bad_percent), Delays::default());
            assert_eq!(Run::new().windows(ENOUGH, flat, bad_percent), Delays::default());
        }
    }

    #[test]
    fn the_best_method_is_found_where_methods_are_searched() {
        for bad_percent in [0, 5, 15] {
            let mut run = Run::new();
            assert_eq!(run.windows(ENOUGH, zen4, bad_percent), Delays::default());
            assert_eq!(run.method, Method::LockedTouched);
        }
        let mut run = Run { search: Search::new(false), ..Run::new() };
        run.windows(ENOUGH, zen4, 5);
        assert_eq!(run.method, Method::Prefetch, "not searched");
        let mut run = Run::new();
        run.windows(ENOUGH, ridge, 5);
        assert_eq!(run.method, Method::Prefetch, "where delays gain more than a method, they stay");
    }

    #[test]
    fn another_machine_is_noticed() {
        let mut run = Run::new();
        assert_ne!(run.windows(ENOUGH, ridge, 5), Delays::default());
        // The host moves both virtual CPUs to one core, and back.
        assert_eq!(run.windows(LEAST_REST_WINDOWS * 3, fast, 5), Delays::default());
        let delays = run.windows(LEAST_REST_WINDOWS * 8, ridge, 5);
        assert!(ridge(delays, Method::Prefetch) <= 340 * 107 / 100, "{delays:?}");
    }

    #[test]
    fn an_irregular_caller_soon_pays_little() {
        let mut run = Run::new();
        for slow in 0..4000 {
            run.windows(50 + slow % 100, if slow % 2 == 0 { fast } else { flat }, 15);
        }
        (run.spent, run.undelayed) = (0, 0);
        for slow in 0..4000 {
            run.windows(50 + slow % 100, if slow % 2 == 0 { fast } else { flat }, 0);
        }
        let percent = run.spent * 100 / run.undelayed;
        assert!(percent <= 103, "{percent} % of the time without delays");
    }
}
