//! Whether more workers serve more where CPUs are short: what an added worker takes of a CPU, clients may lose.
//!
//! A number of workers that another replaces is on trial: it is kept if what was served after the change says so. Nothing is on trial while
//! no worker waits for a CPU.

use std::time::Duration;

use super::lasts;

/// More workers have to serve this many times what fewer do.
const WORTH_IT: f64 = 1.05;
/// CPUs are short when workers waited for one, together, for this share of each of two samples in a row.
const SHORT: f64 = 0.02;
/// When they are for so long, one worker fewer is tried.
const SHORT_FOR: Duration = Duration::from_millis(100);
/// The samples after the last move from which on the change is judged, by what was served in the last two, and until which.
const FIRST_SAMPLE: u32 = 3;
const LAST_SAMPLE: u32 = 10;
/// For so long nothing is tried again; each time that the same is found, so many times as long, up to a number of times, as long as about as
/// many queues work. The first is short: a load that has just begun served less before the change than it does now, whatever the number of
/// workers.
const SETTLED_FOR: Duration = Duration::from_millis(250);
const TIMES_AS_LONG: u32 = 4;
const MOST_REPEATS: u32 = 4;

/// What the last two samples showed.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Units per second, if known.
    served: Option<f64>,
    /// The time that workers waited for a CPU, over that of the sample.
    waited: f64,
}

#[derive(Clone, Copy, Debug)]
struct Trial {
    /// Workers before, and what they served per second.
    before: (usize, Option<f64>),
    now: usize,
}

/// The last result.
#[derive(Clone, Copy, Debug)]
struct Settled {
    until: Duration,
    /// Workers that were found to be best.
    best: usize,
    /// Queues that worked.
    queues: usize,
    /// How often that was found before.
    repeats: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    NotYet,
    /// The number of workers stays as it is.
    Keep,
    /// It becomes what it was.
    Revert(usize),
}

#[derive(Debug, Default)]
pub(super) struct Trials {
    seen: [Seen; 2],
    short_since: Option<Duration>,
    running: Option<Trial>,
    settled: Option<Settled>,
}

impl Trials {
    #[allow(clippy::cast_precision_loss, reason = "a rate needs few digits")]
    pub(super) fn measure(&mut self, elapsed: Duration, units: Option<u64>, waited: f64) {
        let served = units.filter(|_| !elapsed.is_zero()).map(|units| units as f64 / elapsed.as_secs_f64());
        self.seen = [Seen { served, waited }, self.seen[0]];
    }

    fn served(&self) -> Option<f64> {
        Some(f64::midpoint(self.seen[0].served?, self.seen[1].served?))
    }

    fn is_short(&self) -> bool {
        self.seen.iter().all(|seen| seen.waited >= SHORT)
    }

    /// So many queues work: may another number of workers be tried?
    pub(super) fn may_begin(&mut self, queues: usize, now: Duration) -> bool {
        let Some(Settled { until, queues: before, .. }) = self.settled else { return true };
        // With twice as many, or half, it is another load.
        if queues >= 2 * before || queues <= before / 2 {
            self.settled = None;
        }
        self.settled.is_none() || now >= until
    }

    /// Are CPUs so short that one worker fewer is to be tried? Not while it is unknown what more serve: nothing would follow from it.
    pub(super) fn wants_fewer(&mut self, may_begin: bool, now: Duration) -> bool {
        let is_short = may_begin && self.is_short() && self.served().is_some();
        lasts(&mut self.short_since, is_short, now, SHORT_FOR)
    }

    pub(super) fn begin(&mut self, before: usize, now: usize) {
        self.running = Some(Trial { before: (before, self.served()), now });
    }

    pub(super) const fn cancel(&mut self) {
        (self.running, self.short_since) = (None, None);
    }

    /// Nor does the last result hold any more.
    pub(super) fn forget(&mut self) {
        self.cancel();
        self.settled = None;
    }

    /// `fresh` samples were taken since the last move of the change.
    pub(super) fn judge(&mut self, fresh: u32, queues: usize, now: Duration) -> Verdict {
        let Some(Trial { before: (before, served_before), now: count }) = self.running else { return Verdict::Keep };
        let adds = count > before;
        if adds && !self.is_short() {
            self.cancel();
            return Verdict::Keep;
        }
        let Some(served_before) = served_before else {
            // If CPUs are short, the number of workers before is tried soon.
            self.cancel();
            return Verdict::Keep;
        };
        let served = if fresh >= FIRST_SAMPLE { self.served() } else { None };
        if served.is_none() && fresh < LAST_SAMPLE {
            return Verdict::NotYet;
        }
        self.cancel();
        let is_better = served.is_none_or(|served| {
            let (more, fewer) = if adds { (served, served_before) } else { (served_before, served) };
            (more >= fewer * WORTH_IT) == adds
        });
        let best = if is_better { count } else { before };
        let agrees = self.settled.filter(|settled| settled.best == best && served.is_some());
        let repeats = agrees.map_or(0, |settled| (settled.repeats + 1).min(MOST_REPEATS));
        self.settled = Some(Settled { until: now + SETTLED_FOR * TIMES_AS_LONG.pow(repeats), best, queues, repeats });
        if is_better { Verdict::Keep } else { Verdict::Revert(before) }
    }
}
