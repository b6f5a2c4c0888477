//! When a sleeping reader is notified (docs/decisions/0036-notification-control.md). Without a policy it is at once. Ticks in,
//! decisions out: no clock, no doorbell.
//!
//! Nothing is lost: what is held back has a time at which the caller asks again, and the reader's flag stays set until it is
//! notified.

mod caller;
mod compare;
mod policy;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

pub use self::caller::{CallerModerator, Verdict};
use self::compare::{Comparison, SLICE};
pub use self::policy::{MAX_COMPLETIONS, MAX_DELAY, MAX_RATE, Policy, Wanted};

/// Requests that were not taken yet count as so many at least: the writer may know only that there are some, and what remains to be
/// served costs no time but its own. For half as many the cost of a wake-up is little.
const UNTAKEN: u32 = 64;
/// The interval over which the rate is measured, in delays of `auto`.
const DELAYS_PER_INTERVAL: u64 = 5;

/// The policy of several queues, which any thread may change; each reads it after a change.
#[derive(Debug, Default)]
pub struct SharedPolicy(Mutex<Option<Policy>>);

impl SharedPolicy {
    pub fn new(policy: Option<Policy>) -> Self {
        Self(Mutex::new(policy))
    }

    pub fn get(&self) -> Option<Policy> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set(&self, policy: Option<Policy>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = policy;
    }
}

/// What is to come of requests that were taken, and of those that wait to be, of which there are at least so many.
pub const fn to_come(taken: u32, waiting: u32) -> u32 {
    taken.saturating_add(match waiting {
        0 => 0,
        1..UNTAKEN => UNTAKEN,
        _ => waiting,
    })
}

/// Decides for one ring when its sleeping reader is notified.
#[derive(Clone, Debug)]
pub struct Moderator {
    policy: Policy,
    /// Least time between two notifications.
    spacing_ticks: u64,
    /// What completions wait for others.
    gathering_ticks: u64,
    least: u32,
    /// Of the last notification.
    last_ticks: Option<u64>,
    held: Option<Held>,
    rate: Rate,
    comparison: Comparison,
}

/// Completions whose reader was not notified.
#[derive(Clone, Copy, Debug)]
struct Held {
    since_ticks: u64,
    count: u32,
    due_ticks: u64,
}

/// How many completions the last interval had.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    started_ticks: u64,
    count: u64,
    /// What may be expected within the time for gathering.
    expected: u32,
}

impl Moderator {
    pub fn new(policy: Policy, ticks_per_second: u64) -> Self {
        let (rate, comparison) = (Rate::default(), Comparison::default());
        let mut moderator =
            Self { policy, spacing_ticks: 0, gathering_ticks: 0, least: 0, last_ticks: None, held: None, rate, comparison };
        moderator.set_policy(policy, ticks_per_second);
        moderator
    }

    /// Another policy from now on. The time of the last notification counts for it, too, and the caller asks again for what is
    /// held back.
    pub fn set_policy(&mut self, policy: Policy, ticks_per_second: u64) {
        let ticks = |time: Duration| {
            u64::try_from(time.as_nanos() * u128::from(ticks_per_second) / 1_000_000_000).unwrap_or(u64::MAX).max(1)
        };
        self.policy = policy;
        self.spacing_ticks = policy.max_rate().map_or(0, |rate| ticks_per_second.div_ceil(u64::from(rate)));
        self.gathering_ticks = ticks(policy.gathering());
        self.least = policy.least_completions();
        self.comparison = Comparison::new(ticks(SLICE));
    }

    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// `count` completions were published, and the reader is awake: it finds them, and what was held back, by itself.
    #[inline(always)]
    pub fn reader_is_awake(&mut self, count: u32) {
        self.rate.count += u64::from(count);
        self.comparison.completed(count);
        self.held = None;
    }

    /// `count` completions were published, or none and the caller asks again, and the reader sleeps. `to_come`: so many more are
    /// in flight ([`to_come`]). Is it to be notified now? If not, [`due`](Self::due) says when to ask again.
    #[must_use = "a sleeping reader wakes only by its notification"]
    pub fn reader_sleeps(&mut self, now_ticks: u64, count: u32, to_come: u32) -> bool {
        let held = self.held.unwrap_or(Held { since_ticks: now_ticks, count: 0, due_ticks: now_ticks });
        let count_held = held.count.saturating_add(count);
        self.rate.add(now_ticks, count, self.gathering_ticks);
        let least = if self.policy.is_auto() { self.least_by_itself(now_ticks, count, count_held, to_come) } else { self.least };
        let is_enough = to_come == 0 || count_held >= least;
        let gathered_ticks = if is_enough { now_ticks } else { held.since_ticks.saturating_add(self.gathering_ticks) };
        let next_ticks = self.last_ticks.map_or(0, |last| last.saturating_add(self.spacing_ticks));
        let due_ticks = gathered_ticks.max(next_ticks);
        if now_ticks >= due_ticks {
            self.notified(now_ticks);
            return true;
        }
        self.held = Some(Held { count: count_held, due_ticks, ..held });
        false
    }

    fn least_by_itself(&mut self, now_ticks: u64, count: u32, count_held: u32, to_come: u32) -> u32 {
        self.comparison.completed(count);
        self.comparison.look(now_ticks);
        // The first, and those that come while it waits.
        let least = self.rate.expected.saturating_add(1).min(self.comparison.most(count_held.saturating_add(to_come)));
        // As many may come at once again: now, if that is nearer.
        least.saturating_sub(count / 2)
    }

    /// When [`reader_sleeps`](Self::reader_sleeps) is to be asked again though nothing was published.
    #[inline(always)]
    pub fn due(&self) -> Option<u64> {
        self.held.map(|held| held.due_ticks)
    }

    /// The reader was notified, by this decision or another.
    pub const fn notified(&mut self, now_ticks: u64) {
        self.last_ticks = Some(now_ticks);
        self.held = None;
        self.comparison.notified();
    }
}

impl Rate {
    fn add(&mut self, now_ticks: u64, count: u32, gathering_ticks: u64) {
        self.count += u64::from(count);
        let elapsed_ticks = now_ticks.saturating_sub(self.started_ticks);
        if elapsed_ticks >= gathering_ticks.saturating_mul(DELAYS_PER_INTERVAL) {
            let expected = u128::from(self.count) * u128::from(gathering_ticks) / u128::from(elapsed_ticks);
            *self = Self { started_ticks: now_ticks, count: 0, expected: u32::try_from(expected).unwrap_or(u32::MAX) };
        }
    }
}
