//! Time in cycles of the time-stamp counter, and its conversion to nanoseconds.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// The counter now, unordered with the code around it: for statistics.
#[inline(always)]
pub fn ticks() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        // SAFETY: reads a counter that every x86-64 CPU we run on lets user code read.
        unsafe { core::arch::x86_64::_rdtsc() }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
    }
}

/// The counter once everything before has completed: for timing a piece of code. Unfenced stamps speculate past the
/// spin they are meant to time.
#[inline(always)]
pub fn ticks_fenced() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: SSE2 is part of x86-64.
    unsafe {
        core::arch::x86_64::_mm_lfence();
    }
    ticks()
}

/// Ticks per second, measured once against the monotonic clock over 20 ms (off by less than 0.01 %).
pub fn ticks_per_second() -> u64 {
    static RATE: LazyLock<u64> = LazyLock::new(|| {
        let (started, from) = (Instant::now(), ticks_fenced());
        while started.elapsed() < Duration::from_millis(20) {
            std::thread::yield_now();
        }
        let (elapsed, to) = (started.elapsed(), ticks_fenced());
        let rate = u128::from(to - from) * 1_000_000_000 / elapsed.as_nanos().max(1);
        u64::try_from(rate).unwrap_or(u64::MAX).max(1)
    });
    *RATE
}

/// `ticks` in nanoseconds.
pub fn ticks_to_ns(ticks: u64) -> u64 {
    let ns = u128::from(ticks) * 1_000_000_000 / u128::from(ticks_per_second());
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// `duration` in ticks.
pub fn duration_to_ticks(duration: Duration) -> u64 {
    let ticks = duration.as_nanos() * u128::from(ticks_per_second()) / 1_000_000_000;
    u64::try_from(ticks).unwrap_or(u64::MAX)
}

/// What is left until the counter reads `deadline_ticks`; nothing when it has.
pub fn until(deadline_ticks: u64) -> Duration {
    Duration::from_nanos(ticks_to_ns(deadline_ticks.saturating_sub(ticks())))
}
