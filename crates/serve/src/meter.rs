//! How long a worker was idle, measured without a look at the clock in most of its passes.
//!
//! A worker is idle from a pass that finds nothing until the next that finds work. Short waits are sampled; long ones, and sleep,
//! are timed each, when the clock costs nothing that matters. The rest of the time it is busy.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use fipsee_ring::clock;
use fipsee_ring::doorbell::EventDoorbell;

/// One wait in so many is timed from its beginning, and counts for all of them.
const WAITS_PER_SAMPLE: u32 = 16;
/// Looks after which every wait is timed.
const LOOKS_BEFORE_TIMING: u32 = 256;

/// Ticks for which a worker has been idle, written by it alone: twice the sum; or, while it sleeps, twice the difference of the sum
/// and the time when it fell asleep, and one.
#[derive(Debug, Default)]
pub struct IdleTime(AtomicU64);

impl IdleTime {
    /// Ticks in all, at a time that [`clock::ticks`] gave.
    pub fn until(&self, now_ticks: u64) -> u64 {
        let value = self.0.load(Ordering::SeqCst);
        let ticks = value >> 1;
        if value & 1 == 0 { ticks } else { ticks.wrapping_add(now_ticks) & (u64::MAX >> 1) }
    }

    pub fn is_asleep(&self) -> bool {
        self.0.load(Ordering::SeqCst) & 1 == 1
    }

    fn awake(&self, ticks: u64) {
        self.0.store(ticks << 1, Ordering::Relaxed);
    }

    fn asleep(&self, ticks: u64, since_ticks: u64) {
        self.0.store(ticks.wrapping_sub(since_ticks) << 1 | 1, Ordering::Relaxed);
    }
}

/// Rings once, when a worker wakes up, for a thread that does nothing while all workers sleep.
#[derive(Debug)]
pub struct WakeUp {
    is_wanted: AtomicBool,
    pub doorbell: EventDoorbell,
}

impl WakeUp {
    pub fn new() -> std::io::Result<Self> {
        Ok(Self { is_wanted: AtomicBool::new(false), doorbell: EventDoorbell::new()? })
    }

    /// To ring from now on. A worker that was awake before does not: look at [`IdleTime::is_asleep`] of each afterwards.
    pub fn want(&self) {
        self.is_wanted.store(true, Ordering::SeqCst);
    }
}

/// Set once, where the counters are shared.
pub type WakesUp = OnceLock<Arc<WakeUp>>;

/// The worker's own part.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// Looks of this wait.
    looks: u32,
    waits: u32,
    /// For how many waits this one counts; 0: it is not timed.
    weight: u32,
    since_ticks: u64,
    idle_ticks: u64,
}

impl Meter {
    /// A pass found work.
    #[inline(always)]
    pub(crate) const fn worked(&mut self) {
        self.looks = 0;
    }

    /// A pass found nothing.
    #[inline(always)]
    pub(crate) fn idle(&mut self, published: &IdleTime) {
        if self.is_timed() {
            self.time(clock::ticks(), published);
        }
    }

    #[inline(always)]
    const fn is_timed(&mut self) -> bool {
        if self.looks == 0 {
            self.waits = self.waits.wrapping_add(1);
            self.weight = if self.waits.is_multiple_of(WAITS_PER_SAMPLE) { WAITS_PER_SAMPLE } else { 0 };
        }
        self.looks = self.looks.saturating_add(1);
        self.weight > 0 || self.looks >= LOOKS_BEFORE_TIMING
    }

    #[cold]
    fn time(&mut self, now_ticks: u64, published: &IdleTime) {
        if self.looks > 1 && self.weight > 0 {
            self.idle_ticks += now_ticks.saturating_sub(self.since_ticks) * u64::from(self.weight);
            published.awake(self.idle_ticks);
        }
        if self.looks >= LOOKS_BEFORE_TIMING {
            self.weight = 1;
        }
        self.since_ticks = now_ticks;
    }

    /// The worker is about to sleep.
    pub(crate) fn falls_asleep(&mut self, published: &IdleTime) {
        self.since_ticks = clock::ticks();
        published.asleep(self.idle_ticks, self.since_ticks);
    }

    /// It has slept.
    pub(crate) fn wakes(&mut self, published: &IdleTime, wakes_up: &WakesUp) {
        self.idle_ticks += clock::ticks().saturating_sub(self.since_ticks);
        self.looks = 0;
        published.awake(self.idle_ticks);
        // With `WakeUp::want`: either this finds it wanted, or what wants it finds the worker awake.
        fence(Ordering::SeqCst);
        if let Some(wake_up) = wakes_up.get()
            && wake_up.is_wanted.load(Ordering::Relaxed)
            && wake_up.is_wanted.swap(false, Ordering::SeqCst)
        {
            wake_up.doorbell.ring();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits of so many looks, ten ticks each, and work for a hundred ticks after each: the idle share in percent.
    fn idle_share(looks: u64, waits: u64) -> u64 {
        let (mut meter, published, mut now) = (Meter::default(), IdleTime::default(), 0);
        for _ in 0..waits {
            for _ in 0..=looks {
                if meter.is_timed() {
                    meter.time(now, &published);
                }
                now += 10;
            }
            now += 90;
            meter.worked();
        }
        published.until(now) * 100 / now
    }

    #[test]
    fn short_waits_are_sampled_and_long_ones_are_timed() {
        assert_eq!(idle_share(10, 1600), 50);
        assert_eq!(idle_share(90, 1600), 90);
        assert_eq!(idle_share(0, 1600), 0);
        // Timed from the 256th look on, and before that in one of sixteen.
        assert_eq!(idle_share(10_000, 16), 99);
        assert_eq!(idle_share(10_000, 1), 97);
    }

    #[test]
    fn time_asleep_is_idle_while_it_lasts() {
        let published = IdleTime::default();
        published.awake(7);
        assert_eq!((published.until(1000), published.is_asleep()), (7, false));
        published.asleep(7, 1000);
        assert_eq!((published.until(1000), published.until(1500), published.is_asleep()), (7, 507, true));
    }

    #[test]
    fn a_worker_that_wakes_up_rings_once_when_that_is_wanted() {
        let (mut meter, published, wakes_up) = (Meter::default(), IdleTime::default(), WakesUp::new());
        meter.wakes(&published, &wakes_up);
        let wake_up = wakes_up.get_or_init(|| Arc::new(WakeUp::new().expect("a descriptor")));
        let has_rung = || {
            let mut count = [0; 8];
            rustix::io::read(&wake_up.doorbell, &mut count).is_ok()
        };
        meter.wakes(&published, &wakes_up);
        assert!(!has_rung(), "it was not wanted");
        wake_up.want();
        meter.wakes(&published, &wakes_up);
        assert!(has_rung());
        meter.wakes(&published, &wakes_up);
        assert!(!has_rung(), "once");
    }
}
