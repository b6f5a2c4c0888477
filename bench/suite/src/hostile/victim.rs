//! The correct client, and what it counts.
//!
//! It reads blocks at random and looks for answers without ever giving its CPU away: no sleep, no `sched_yield`. Where it shares
//! that CPU with the neighbour, the scheduler takes it away all the same, and how often is no matter of the daemon's. So beside
//! requests per second it counts requests per second of its own processor time (`CLOCK_THREAD_CPUTIME_ID`): that runs while the
//! victim looks in vain because the worker is busy with the neighbour, and stops while the neighbour has the victim's CPU.

use std::path::Path;
use std::time::{Duration, Instant};

use fipsee::load::count_f64;
use fipsee_block::client::{AttachOptions, Buffer, Disk, Queue};
use fipsee_ring::clock;
use fipsee_testkit::Random;
use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};

/// Requests the victim has outstanding.
const DEPTH: u32 = 32;
const BLOCK_BYTES: u64 = 4096;
/// Between two looks of a victim that has its CPU a microsecond passes, or two; longer, and another thread had it. What the
/// worker answered meanwhile is up to `DEPTH` requests for no time of the victim's own, so it is not counted there.
const AWAY: Duration = Duration::from_micros(10);
/// Looks between two checks of the timeout.
const LOOKS_PER_CHECK: u32 = 1 << 20;
/// Longer than this no answer is waited for.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The longest latency that is distinguished.
const LONGEST_NS: u64 = 10_000_000_000;

/// The correct client: random reads of 4 KiB.
pub(super) struct Victim {
    disk: Disk,
    queue: Queue,
    buffer: Buffer,
    random: Random,
    away_ticks: u64,
    /// When it last had its CPU back.
    back_ticks: u64,
}

/// What it did in one measurement.
pub(super) struct Measured {
    /// Requests per second.
    pub(super) rate: f64,
    /// Requests per second of its own processor time.
    pub(super) rate_of_own: f64,
    /// 99 of 100 requests were answered so soon, of those during which no other thread took its CPU.
    pub(super) latency_p99_ns: f64,
}

/// What came since the last look at the clock.
#[derive(Default)]
struct Tally {
    finished: u64,
    /// Of these, answered while the victim was away from its CPU.
    meanwhile: u64,
}

impl Victim {
    pub(super) fn attach(socket: &Path) -> Result<Self, String> {
        let mut options = AttachOptions::new("victim");
        options.depth = DEPTH;
        let (disk, mut queues) = Disk::attach(socket, &options).map_err(|error| format!("cannot attach: {error}"))?;
        let queue = queues.pop().ok_or("no queue")?;
        let buffer = disk.allocate(u64::from(DEPTH) * BLOCK_BYTES).map_err(|error| error.to_string())?;
        Ok(Self { disk, queue, buffer, random: Random(7), away_ticks: clock::duration_to_ticks(AWAY), back_ticks: 1 })
    }

    /// Read for so many seconds.
    pub(super) fn measure(&mut self, seconds: f64) -> Result<Measured, String> {
        let mut latencies = Histogram::new_with_bounds(1, LONGEST_NS, 3).map_err(|error| error.to_string())?;
        let mut tally = Tally::default();
        let (started, used) = (Instant::now(), own_time());
        while started.elapsed().as_secs_f64() < seconds {
            // Looking at the clock costs more than a request: some hundred between two looks.
            for _ in 0..64 {
                let now = clock::ticks();
                self.fill(now)?;
                self.take(now, &mut tally, &mut latencies)?;
            }
        }
        let (elapsed, used) = (started.elapsed(), own_time().saturating_sub(used));
        // Those left are no part of it.
        while self.queue.outstanding() > 0 {
            self.take(clock::ticks(), &mut Tally::default(), &mut latencies)?;
        }
        let rate = |count: u64, time: Duration| count_f64(count) / time.as_secs_f64();
        Ok(Measured {
            rate: rate(tally.finished, elapsed),
            rate_of_own: rate(tally.finished - tally.meanwhile, used),
            latency_p99_ns: count_f64(latencies.value_at_quantile(0.99)),
        })
    }

    /// Ask for as much as may be outstanding. The first of each burst carries the time, and gives its latency.
    fn fill(&mut self, now: u64) -> Result<(), String> {
        let sectors = BLOCK_BYTES / 512;
        let blocks = self.disk.info().sector_count / sectors;
        let mut token = now;
        while self.queue.free() > 0 {
            let place = self.random.number() % u64::from(DEPTH) * BLOCK_BYTES;
            let sector = self.random.number() % blocks * sectors;
            let staged = self.queue.read(sector, self.buffer.segment(place, BLOCK_BYTES), token);
            staged.map_err(|_| "a queue with room is full".to_owned())?;
            token = 0;
        }
        self.queue.submit();
        Ok(())
    }

    /// Look until something is answered.
    fn take(&mut self, mut last: u64, tally: &mut Tally, latencies: &mut Histogram<u64>) -> Result<(), String> {
        let mut looks = 0_u32;
        let mut since = None;
        loop {
            let now = clock::ticks();
            let was_away = now.wrapping_sub(last) > self.away_ticks;
            last = now;
            if was_away {
                self.back_ticks = now;
            }
            let back_ticks = self.back_ticks;
            let reaped = self.queue.reap(&mut |completion| {
                if completion.token >= back_ticks {
                    let _ = latencies.record(clock::ticks_to_ns(now.wrapping_sub(completion.token)));
                }
            });
            let count = u64::try_from(reaped.map_err(|error| error.to_string())?).map_err(|error| error.to_string())?;
            if count > 0 {
                tally.finished += count;
                tally.meanwhile += if was_away { count } else { 0 };
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

/// Processor time of this thread.
fn own_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
