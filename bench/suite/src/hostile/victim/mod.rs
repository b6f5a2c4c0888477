//! Correct clients, and what is counted of them.
//!
//! A victim looks for answers without ever giving its CPU away: no sleep, no `sched_yield`. Where it shares
//! that CPU with the neighbour, the scheduler takes it away all the same, and how often is no matter of the daemon's. So beside
//! requests per second it counts requests per second of its own processor time (`CLOCK_THREAD_CPUTIME_ID`): that runs while the
//! victim looks in vain because the worker is busy with the neighbour, and stops while the neighbour has the victim's CPU.

mod disk;
mod pair;

use std::time::{Duration, Instant};

use fipsee::load::count_f64;
use fipsee_ring::clock;
use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};

pub(super) use self::disk::DiskClient;
pub(super) use self::pair::Pair;

/// Requests or frames that a victim has outstanding.
const DEPTH: u32 = 32;
/// Between two looks of a victim that has its CPU a microsecond passes, or two; longer, and another thread had it. What the
/// worker answered meanwhile is up to `DEPTH` requests for no time of the victim's own, so it is not counted there.
const AWAY: Duration = Duration::from_micros(10);
/// Looks between two checks of the timeout.
const LOOKS_PER_CHECK: u32 = 1 << 20;
/// Longer than this no answer is waited for.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The longest latency that is distinguished.
const LONGEST_NS: u64 = 10_000_000_000;

/// A correct client of a disk, or of two ports.
pub(super) trait Victim {
    /// Take what came while it was not measured.
    fn begin(&mut self) -> Result<(), String> {
        Ok(())
    }

    /// Ask for as much as may be outstanding. The first of each burst carries the time `now`, and gives its latency; the others 0.
    fn fill(&mut self, now: u64) -> Result<(), String>;

    /// Look once for what has come, with the time that each carries: how many.
    fn look(&mut self, came: impl FnMut(u64)) -> Result<u64, String>;

    /// Nothing is outstanding.
    fn is_idle(&self) -> bool;
}

/// What a victim did in one measurement.
pub(super) struct Measured {
    /// Requests per second.
    pub(super) rate: f64,
    /// Requests per second of its own processor time.
    pub(super) rate_of_own: f64,
    /// 99 of 100 requests were answered so soon, of those during which no other thread took its CPU.
    pub(super) latency_p99_ns: f64,
}

/// What came in one measurement, and when the victim had its CPU.
struct Tally {
    finished: u64,
    /// Of these, answered while the victim was away from its CPU.
    meanwhile: u64,
    latencies: Histogram<u64>,
    away_ticks: u64,
    /// When it last had its CPU back.
    back_ticks: u64,
}

impl Tally {
    fn new() -> Result<Self, String> {
        let latencies = Histogram::new_with_bounds(1, LONGEST_NS, 3).map_err(|error| error.to_string())?;
        let away_ticks = clock::duration_to_ticks(AWAY);
        Ok(Self { finished: 0, meanwhile: 0, latencies, away_ticks, back_ticks: 1 })
    }

    /// Look until something is answered.
    fn take(&mut self, victim: &mut impl Victim, mut last: u64) -> Result<(), String> {
        let mut looks = 0_u32;
        let mut since = None;
        loop {
            let now = clock::ticks();
            let was_away = now.wrapping_sub(last) > self.away_ticks;
            last = now;
            if was_away {
                self.back_ticks = now;
            }
            let Self { latencies, back_ticks, .. } = self;
            let count = victim.look(|token| {
                if token >= *back_ticks {
                    let _ = latencies.record(clock::ticks_to_ns(now.wrapping_sub(token)));
                }
            })?;
            if count > 0 {
                self.finished += count;
                self.meanwhile += if was_away { count } else { 0 };
                return Ok(());
            }
            std::hint::spin_loop();
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS_PER_CHECK) && since.get_or_insert_with(Instant::now).elapsed() > TIMEOUT {
                return Err(format!("the victim has no answer after {TIMEOUT:?}"));
            }
        }
    }
}

/// What it does in so many seconds.
pub(super) fn measure(victim: &mut impl Victim, seconds: f64) -> Result<Measured, String> {
    let mut tally = Tally::new()?;
    victim.begin()?;
    let (started, used) = (Instant::now(), own_time());
    while started.elapsed().as_secs_f64() < seconds {
        // Looking at the clock costs more than a request: some hundred between two looks.
        for _ in 0..64 {
            let now = clock::ticks();
            victim.fill(now)?;
            tally.take(victim, now)?;
        }
    }
    let (elapsed, used) = (started.elapsed(), own_time().saturating_sub(used));
    // Those left are no part of it.
    let mut left = Tally::new()?;
    while !victim.is_idle() {
        left.take(victim, clock::ticks())?;
    }
    let rate = |count: u64, time: Duration| count_f64(count) / time.as_secs_f64();
    Ok(Measured {
        rate: rate(tally.finished, elapsed),
        rate_of_own: rate(tally.finished - tally.meanwhile, used),
        latency_p99_ns: count_f64(tally.latencies.value_at_quantile(0.99)),
    })
}

/// Processor time of this thread.
fn own_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
