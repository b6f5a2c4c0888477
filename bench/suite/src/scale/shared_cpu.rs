//! A CPU that a worker shares with the thread of its clients: how the two take turns, and what their steps cost there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fipsee_block::disk::AnyDisk;
use fipsee_measure::cpus::Cpus;
use fipsee_ring::clock;

use super::costs::{Costs, LONGEST_STEP, TIMED_PASSES, Timed, least_ns, ns};
use super::crowd::{Crowd, ORDINARY, Shape};
use super::harness::on_one_cpu;
use crate::daemon::Daemon;
use crate::place::{bind_to, on};

/// Turns of another thread on the same CPU whose length is measured, and for how long at most.
const SLICES: usize = 32;
const LONGEST_SLICES: Duration = Duration::from_secs(1);

/// In nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SharedCpu {
    /// Of a change between worker and clients, each of which yields.
    pub(super) switch: f64,
    /// Between two times at which the other one has its turn, even if this one does not yield; however long that has had the CPU.
    pub(super) tick: f64,
    /// What both do there: no cache line moves between CPUs, but what one needs is not at hand after the other had the CPU.
    pub(super) local: Costs,
}

impl SharedCpu {
    /// Is a turn that began then over now?
    pub(super) fn has_ticked(&self, began: f64, now: f64) -> bool {
        (now / self.tick).floor() > (began / self.tick).floor()
    }
}

/// What both do there; the worker has so many queues.
pub(super) fn time(disk: &Arc<AnyDisk>, (queues, bytes): (usize, u64), seconds: f64) -> Result<Timed, String> {
    Timed::of(disk, (queues, bytes), |depth| on_one_cpu((disk, queues, Shape { queues: 1, depth, bytes }, seconds)))
}

/// With what they did.
pub(super) fn measure(timed: &Timed) -> Result<SharedCpu, String> {
    Ok(SharedCpu { switch: switch()?, tick: tick()?, local: timed.costs()? })
}

/// Between a client and a daemon whose worker looks once in each turn: half of the time until the client has the CPU again.
fn switch() -> Result<f64, String> {
    let cpu = Cpus::choose().client;
    let more = ["--workers", "1", "--cpus", &cpu.to_string(), "--wait", "yield"];
    let daemon = Daemon::start_program(&Daemon::shipped()?, &["m=null:1G".to_owned()], &more)?;
    on(cpu, || {
        // A worker without queues sleeps.
        let mut client = Crowd::silent();
        client.join(&daemon.socket(), rustix::process::geteuid().as_raw(), ORDINARY)?;
        let there_and_back = least_ns(TIMED_PASSES, || {
            std::thread::yield_now();
            Ok(())
        });
        there_and_back.map(|ns| ns / 2.0)
    })
}

/// How long each of two threads that do not yield has the CPU.
fn tick() -> Result<f64, String> {
    let (cpu, ends) = (Cpus::choose().client, AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            bind_to(cpu);
            while !ends.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let timed = scope.spawn(|| {
            bind_to(cpu);
            let mut slices = slices();
            ends.store(true, Ordering::Relaxed);
            slices.sort_unstable();
            ns(slices.get(slices.len() / 2).copied().unwrap_or(0))
        });
        timed.join().map_err(|_| "the thread that times turns panicked".to_owned())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_ends_at_the_next_tick_however_long_it_was() {
        let shared = SharedCpu { switch: 0.0, tick: 4.0, local: Costs::default() };
        assert!(!shared.has_ticked(4.1, 7.9));
        assert!(shared.has_ticked(7.9, 8.0) && shared.has_ticked(4.1, 12.5));
    }
}
