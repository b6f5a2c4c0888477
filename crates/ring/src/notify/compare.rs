//! Whether `auto` gathers: completions per second with and without are compared, a short time of each.
//!
//! A reader that is notified of the first of many completions may find the next ones without sleeping again, or it may pay a wake-up for
//! every few. Which it is depends on the time of a request and on that of a wake-up, and does not follow from a rate.

use std::time::Duration;

/// How long each is tried.
pub(super) const TRIAL: Duration = Duration::from_millis(4);
/// After so many trials with nothing to notify of for too long, completions that come together are gathered.
const MOST_INTERRUPTED: u32 = 8;
/// The better of both is in force for so many times as long.
const TRIALS_PER_USE: u64 = 98;
/// Gathering saves wake-ups, so it may have as little as this part of the completions, in percent.
const ENOUGH_PERCENT: u128 = 98;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    TryGathering,
    TryWithout,
    Use,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Comparison {
    phase: Phase,
    trial_ticks: u64,
    started_ticks: u64,
    count: u64,
    interrupted: u32,
    /// Completions that gathering had, and ticks.
    gathering: (u64, u64),
    without_is_better: bool,
}

impl Comparison {
    pub(super) fn new(trial_ticks: u64) -> Self {
        Self { trial_ticks, ..Self::default() }
    }

    pub(super) const fn gathers(&self) -> bool {
        match self.phase {
            Phase::TryGathering => true,
            Phase::TryWithout => false,
            Phase::Use => !self.without_is_better,
        }
    }

    pub(super) const fn add(&mut self, count: u32) {
        self.count = self.count.saturating_add(count as u64);
    }

    pub(super) fn look(&mut self, now_ticks: u64) {
        let elapsed_ticks = now_ticks.saturating_sub(self.started_ticks);
        let times = if self.phase == Phase::Use { TRIALS_PER_USE } else { 1 };
        let lasts_ticks = self.trial_ticks.saturating_mul(times);
        if elapsed_ticks < lasts_ticks {
            return;
        }
        if elapsed_ticks > lasts_ticks.saturating_mul(2) && self.phase != Phase::Use {
            // There was nothing to notify of meanwhile: this says nothing.
            self.interrupted += 1;
            if self.interrupted > MOST_INTERRUPTED {
                (self.phase, self.without_is_better) = (Phase::Use, false);
            }
            (self.started_ticks, self.count) = (now_ticks, 0);
            return;
        }
        self.phase = match self.phase {
            Phase::TryGathering => {
                self.gathering = (self.count, elapsed_ticks);
                Phase::TryWithout
            }
            Phase::TryWithout => {
                let (with, with_ticks) = self.gathering;
                let scaled = |count: u64, ticks: u64| u128::from(count) * u128::from(ticks);
                let enough = scaled(self.count, with_ticks) * ENOUGH_PERCENT / 100;
                self.without_is_better = scaled(with, elapsed_ticks) < enough;
                Phase::Use
            }
            Phase::Use => {
                self.interrupted = 0;
                Phase::TryGathering
            }
        };
        (self.started_ticks, self.count) = (now_ticks, 0);
    }
}
