//! A CPU that a worker shares with the thread of its clients: how the two take turns, and what their steps cost there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fipsee_block::disk::{AnyDisk, Engine};
use fipsee_measure::cpus::Cpus;
use fipsee_ring::{AtomicU32, Ordering, clock};
use fipsee_serve::Worker;

use super::costs::{self, Costs, LONGEST_STEP, Rounds, TIMED_PASSES, least_ns, ns};
use super::crowd::{Crowd, Shape};
use super::harness::{join, time_pass, worker};
use crate::place::{bind_to, on};

/// Turns of another thread on the same CPU whose length is measured, and for how long at most.
const SLICES: usize = 32;
const LONGEST_SLICES: Duration = Duration::from_secs(1);
const PASSES_PER_CHECK: u32 = 64;

/// In nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SharedCpu {
    /// Of a change between two threads.
    pub(super) switch: f64,
    /// After which the other one has its turn, even if this one does not yield.
    pub(super) slice: f64,
    /// What both do there: no cache line moves between CPUs.
    pub(super) local: Costs,
}

/// The worker has so many queues.
pub(super) fn measure(disk: &Arc<AnyDisk>, (queues, bytes): (usize, u64), seconds: f64) -> Result<SharedCpu, String> {
    let (switch, slice) = turns()?;
    let duration = Duration::from_secs_f64(seconds);
    let local = costs::by_load(disk, (queues, bytes), |depth| {
        let shape = Shape { queues: 1, depth, bytes };
        on(Cpus::choose().client, || Both::new(disk, queues, shape)?.run_timed(duration))
    })?;
    Ok(SharedCpu { switch, slice, local })
}

/// Two threads that take turns on a CPU: both yield, then neither does. A change between them, and how long one has the CPU.
fn turns() -> Result<(f64, f64), String> {
    let (cpu, stops) = (Cpus::choose().client, AtomicU32::new(0));
    let turns = |before: fn(), rounds: u32| {
        while stops.load(Ordering::Relaxed) < rounds {
            before();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            bind_to(cpu);
            turns(std::thread::yield_now, 1);
            turns(std::hint::spin_loop, 2);
        });
        let timed = scope.spawn(|| {
            bind_to(cpu);
            let there_and_back = least_ns(TIMED_PASSES, || {
                std::thread::yield_now();
                Ok(())
            });
            stops.store(1, Ordering::Relaxed);
            let mut slices = slices();
            stops.store(2, Ordering::Relaxed);
            slices.sort_unstable();
            let slice = ns(slices.get(slices.len() / 2).copied().unwrap_or(0));
            Ok((there_and_back? / 2.0, slice))
        });
        timed.join().unwrap_or_else(|_| Err("the thread that yields panicked".to_owned()))
    })
}

/// Ticks of the times in which another thread had the CPU.
fn slices() -> Vec<u64> {
    let (mut slices, started) = (Vec::new(), Instant::now());
    let (mut before, least) = (clock::ticks(), clock::duration_to_ticks(LONGEST_STEP));
    while slices.len() < SLICES && started.elapsed() < LONGEST_SLICES {
        let now = clock::ticks();
        slices.extend(Some(now.wrapping_sub(before)).filter(|gap| *gap > least));
        before = now;
    }
    slices
}

/// A worker and its clients on one thread.
struct Both {
    worker: Worker<Engine>,
    crowd: Crowd,
}

impl Both {
    fn new(disk: &Arc<AnyDisk>, queues: usize, shape: Shape) -> Result<Self, String> {
        let ((worker, handle), mut crowd) = (worker()?, Crowd::new());
        join(&mut crowd, &handle, disk, (queues, shape))?;
        Ok(Self { worker, crowd })
    }

    /// Passes and rounds by turns, of which none waits for the other.
    fn run_timed(&mut self, duration: Duration) -> Result<(Rounds, Rounds), String> {
        let (mut passes, mut rounds, started) = (Rounds::default(), Rounds::default(), Instant::now());
        while started.elapsed() < duration {
            for _ in 0..PASSES_PER_CHECK {
                let _ = time_pass(&mut self.worker, &mut passes);
                self.crowd.time_round(&mut rounds)?;
            }
        }
        Ok((passes, rounds))
    }
}
