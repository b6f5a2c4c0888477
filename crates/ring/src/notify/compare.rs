//! How much `auto` gathers: several parts of what is in flight, and nothing, are tried by turns for a short time each and compared.
//!
//! A reader that is notified of the first of many completions may find the next ones without sleeping again, or it may pay a wake-up for
//! every few. Which it is depends on the time of a request and on that of a wake-up, and does not follow from a rate.

use std::time::Duration;

/// How long one is tried at a time.
pub(super) const SLICE: Duration = Duration::from_millis(1);
/// Each is tried so often, in turn: what slows the machine for a moment meets all of them.
const TURNS: usize = 8;
/// The part of what is in flight or held back that is waited for at most, as a divisor; `None`: nothing is.
const LEVELS: [Option<u32>; 3] = [Some(2), Some(4), None];
const SLICES: usize = TURNS * LEVELS.len();
/// The best is in force for so many times as long as one is tried at a time: all of it takes 400 ms.
const SLICES_PER_USE: u64 = 376;
/// After so many slices with nothing to notify of for too long, completions that come together are gathered.
const MOST_INTERRUPTED: u32 = 8;
/// Gathering saves wake-ups, so it may have as little as this part of the completions, in percent.
const ENOUGH_PERCENT: u64 = 98;
/// It delays completions, so it must save a quarter of the notifications.
const WORTH: u64 = 4;

/// What one level had.
#[derive(Clone, Copy, Debug, Default)]
struct Tried {
    completions: u64,
    notifications: u64,
    ticks: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Comparison {
    slice_ticks: u64,
    started_ticks: u64,
    /// Since then.
    current: Tried,
    /// That were tried; all of them: the chosen one is in force.
    slices: usize,
    interrupted: u32,
    tried: [Tried; LEVELS.len()],
    chosen: usize,
}

impl Comparison {
    pub(super) fn new(slice_ticks: u64) -> Self {
        Self { slice_ticks, ..Self::default() }
    }

    /// How many of so many completions, which are held back or in flight, are waited for at most.
    pub(super) const fn most(&self, count: u32) -> u32 {
        let level = if self.slices < SLICES { self.slices % LEVELS.len() } else { self.chosen };
        match LEVELS[level] {
            Some(divisor) => count / divisor,
            None => 0,
        }
    }

    pub(super) const fn completed(&mut self, count: u32) {
        self.current.completions = self.current.completions.saturating_add(count as u64);
    }

    pub(super) const fn notified(&mut self) {
        self.current.notifications = self.current.notifications.saturating_add(1);
    }

    pub(super) fn look(&mut self, now_ticks: u64) {
        let elapsed_ticks = now_ticks.saturating_sub(self.started_ticks);
        let is_trial = self.slices < SLICES;
        let lasts_ticks = self.slice_ticks.saturating_mul(if is_trial { 1 } else { SLICES_PER_USE });
        if elapsed_ticks < lasts_ticks {
            return;
        }
        let current = std::mem::take(&mut self.current);
        self.started_ticks = now_ticks;
        if !is_trial {
            (self.slices, self.interrupted, self.tried) = (0, 0, Default::default());
        } else if elapsed_ticks > lasts_ticks.saturating_mul(2) {
            // There was nothing to notify of meanwhile: this says nothing.
            self.interrupted += 1;
            if self.interrupted > MOST_INTERRUPTED {
                (self.slices, self.chosen) = (SLICES, 0);
            }
        } else {
            self.tried[self.slices % LEVELS.len()].add(Tried { ticks: elapsed_ticks, ..current });
            self.slices += 1;
            if self.slices == SLICES {
                self.chosen = choose(&self.tried);
            }
        }
    }
}

impl Tried {
    const fn add(&mut self, more: Self) {
        self.completions = self.completions.saturating_add(more.completions);
        self.notifications = self.notifications.saturating_add(more.notifications);
        self.ticks = self.ticks.saturating_add(more.ticks);
    }

    /// Completions in some time.
    fn rate(&self) -> u64 {
        ratio(self.completions, self.ticks)
    }

    /// Notifications for some completions.
    fn cost(&self) -> u64 {
        ratio(self.notifications, self.completions)
    }
}

fn ratio(count: u64, of: u64) -> u64 {
    u64::try_from((u128::from(count) << 32) / u128::from(of.max(1))).unwrap_or(u64::MAX)
}

/// The level with fewest notifications of those that have nearly most completions. One that saves no notifications has no more
/// completions but by chance.
fn choose(tried: &[Tried; LEVELS.len()]) -> usize {
    let nothing = tried.iter().zip(LEVELS).find(|(_, level)| level.is_none()).map_or(0, |(tried, _)| tried.cost());
    let is_worth = |level: &usize| LEVELS[*level].is_none() || tried[*level].cost() <= nothing - nothing / WORTH;
    let levels = || (0..LEVELS.len()).filter(is_worth);
    let most = levels().map(|level| tried[level].rate()).max().unwrap_or(0);
    let enough = most / 100 * ENOUGH_PERCENT;
    levels().filter(|level| tried[*level].rate() >= enough).min_by_key(|level| tried[*level].cost()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gathering_has_to_save_notifications_and_may_not_cost_completions() {
        let chosen = |tried: [(u64, u64); 3]| {
            choose(&tried.map(|(completions, notifications)| Tried { completions, notifications, ticks: 1000 }))
        };
        assert_eq!(chosen([(100, 2), (100, 5), (100, 10)]), 0, "as fast, fewest");
        assert_eq!(chosen([(90, 2), (100, 5), (100, 10)]), 1, "half has too few completions");
        assert_eq!(chosen([(90, 2), (90, 5), (100, 10)]), 2, "both have");
        assert_eq!(chosen([(120, 2), (110, 5), (100, 10)]), 0, "fastest and fewest");
        assert_eq!(chosen([(120, 12), (115, 9), (100, 10)]), 2, "saves a fifth at most, so that it is faster by chance");
        assert_eq!(
            chosen([(120, 12), (101, 5), (100, 10)]),
            1,
            "half is faster by chance, so that it is no measure for a quarter"
        );
    }
}
