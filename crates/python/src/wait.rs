//! Waiting for completions so that Python's signal handlers run.

use std::time::Duration;

use fipsee_block::client::{Completion, Error};
use fipsee_ring::clock;
use fipsee_ring::wait::Next;
use pyo3::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::attached::{Attached, Lane};
use crate::error::Failure;

/// How often whoever waits looks for signals: a signal may have come to another thread, which does not wake us.
pub(crate) const SIGNAL_PERIOD: Duration = Duration::from_millis(50);
/// How many empty looks may pass before one that asks whether the daemon still lives and whether signals are due: at most 5 us each.
const LOOKS_PER_LIVENESS_CHECK: u32 = 4096;

/// Run Python's signal handlers if we are the thread that does, and signals came. Call it with the interpreter released.
pub(crate) fn check_signals() -> PyResult<()> {
    // Only the main thread runs handlers; the others need not stop for it.
    let is_main = rustix::thread::gettid() == rustix::process::getpid();
    if is_main { Python::attach(|py| py.check_signals()) } else { Ok(()) }
}

/// Publish what is staged and wait until at least one completion was handed to `done`; at once when nothing is
/// outstanding. Outlives the daemon if the disk was opened so.
#[inline]
pub(crate) fn wait(disk: &Attached, lane: &mut Lane, done: &mut impl FnMut(Completion)) -> Result<(), Failure> {
    if lane.is_faulty {
        return Err(Error::Disconnected.into());
    }
    lane.queue.submit();
    let mut looked = Looked { count: 0, signals_due_ticks: None };
    loop {
        let step = reap_or_pause(lane, &mut looked, done);
        match step {
            Ok(true) => {
                lane.backoff.reset();
                while lane.queue.next_event().is_some() {} // The new size is in the disk's description.
                return Ok(());
            }
            Ok(false) => {}
            Err(Failure::Client(Error::Disconnected)) => disk.reconnect(&mut lane.queue)?,
            Err(failure) => {
                lane.is_faulty |= matches!(failure, Failure::Client(Error::Fault(_)));
                return Err(failure);
            }
        }
    }
}

/// Empty looks of one wait, and when they are interrupted for signals.
struct Looked {
    count: u32,
    signals_due_ticks: Option<u64>,
}

impl Looked {
    #[cold]
    fn signals_are_due(&mut self) -> bool {
        let now_ticks = clock::ticks();
        let is_due = self.signals_due_ticks.is_some_and(|due_ticks| now_ticks >= due_ticks);
        if is_due || self.signals_due_ticks.is_none() {
            self.signals_due_ticks = Some(now_ticks.saturating_add(clock::duration_to_ticks(SIGNAL_PERIOD)));
        }
        is_due
    }
}

#[inline]
fn reap_or_pause(lane: &mut Lane, looked: &mut Looked, done: &mut impl FnMut(Completion)) -> Result<bool, Failure> {
    if lane.queue.reap(done)? > 0 || lane.queue.outstanding() == 0 {
        return Ok(true);
    }
    match lane.backoff.step_watching(true, || Some(lane.queue.watch())) {
        Next::Look => {
            looked.count = looked.count.wrapping_add(1);
            if looked.count.is_multiple_of(LOOKS_PER_LIVENESS_CHECK) {
                lane.queue.woken()?;
                if looked.signals_are_due() {
                    check_signals()?;
                }
            }
        }
        Next::Sleep => sleep(lane)?,
    }
    Ok(false)
}

#[cold]
fn sleep(lane: &mut Lane) -> Result<(), Failure> {
    let mut was_rung = true;
    if !lane.queue.arm_and_work_remains() {
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(SIGNAL_PERIOD.subsec_nanos()) };
        match rustix::event::poll(&mut [PollFd::new(&lane.queue, PollFlags::IN)], Some(&timeout)) {
            Ok(ready) => was_rung = ready > 0,
            Err(rustix::io::Errno::INTR) => was_rung = false,
            Err(error) => {
                return Err(Error::Io { context: "wait for the daemon's doorbell", source: error.into() }.into());
            }
        }
    }
    lane.queue.woken()?;
    if was_rung { Ok(()) } else { check_signals() }.map_err(Failure::from)
}
