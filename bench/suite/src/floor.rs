//! What the machine itself takes: one cache line bounced between the client's CPU and the worker's.
//!
//! On a virtual machine this changes when the host moves virtual CPUs between cores. On the machine of the first results a
//! message's round trip (`fipsee ping --queue 1`) became 460 ns instead of 110 and went back within minutes. Latencies of
//! different runs compare only if this does.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::place::{Cpus, bind_to};

/// Nanoseconds per round trip, the best of short stretches over `duration`; `None` with fewer than two CPUs.
pub(crate) fn round_trip_ns(duration: Duration) -> Option<f64> {
    const ROUND_TRIPS: u32 = 1000;
    let Cpus { client: here, server: there } = Cpus::choose();
    if here == there {
        return None;
    }
    let line = Line(AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            bind_to(there);
            // Odd numbers are ours to answer; the largest ends it.
            while let value = line.0.load(Ordering::Acquire)
                && value != u64::MAX
            {
                if value % 2 == 1 {
                    line.0.store(value + 1, Ordering::Release);
                }
                std::hint::spin_loop();
            }
        });
        let measure = || {
            bind_to(here);
            let (until, mut best, mut value) = (Instant::now() + duration, f64::MAX, 0);
            while Instant::now() < until {
                let started = Instant::now();
                for _ in 0..ROUND_TRIPS {
                    line.0.store(value + 1, Ordering::Release);
                    value += 2;
                    while line.0.load(Ordering::Acquire) != value {
                        std::hint::spin_loop();
                    }
                }
                best = best.min(started.elapsed().as_secs_f64() * 1e9 / f64::from(ROUND_TRIPS));
            }
            line.0.store(u64::MAX, Ordering::Release);
            best
        };
        scope.spawn(measure).join().ok()
    })
}

#[repr(align(128))]
struct Line(AtomicU64);
