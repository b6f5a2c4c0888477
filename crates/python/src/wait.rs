//! Waiting for completions so that Python's signal handlers run.

use std::time::Duration;

use fipsee_block::client::{Error, Queue};
use pyo3::prelude::*;

use crate::attached::{DiskConnection, Lane};
use crate::error::Failure;

/// How often a waiting thread checks for signals: a signal may be delivered to another thread, which does not wake this one.
pub(crate) const SIGNAL_PERIOD: Duration = Duration::from_millis(50);

/// Run Python's signal handlers if we are the thread that does, and signals came. Call it with the interpreter released.
pub(crate) fn check_signals() -> PyResult<()> {
    // Only the main thread runs handlers; the others need not stop for it.
    let is_main = rustix::thread::gettid() == rustix::process::getpid();
    if is_main { Python::attach(|py| py.check_signals()) } else { Ok(()) }
}

/// Publish what is staged and wait until something completed or a signal period went by.
pub(crate) fn wait(disk: &DiskConnection, lane: &mut Lane) -> Result<(), Failure> {
    let waited = lane.queue.wait_timeout(SIGNAL_PERIOD, &mut |_| {});
    settle(disk, &mut lane.is_faulty, &mut lane.queue, waited)
}

/// After waiting: run signal handlers if nothing came, and reconnect if the disk was opened so.
#[inline]
pub(crate) fn settle(
    disk: &DiskConnection,
    is_faulty: &mut bool,
    queue: &mut Queue,
    waited: Result<usize, Error>,
) -> Result<(), Failure> {
    while queue.next_event().is_some() {} // The new size is in the disk's description.
    match waited {
        Ok(0) => Ok(check_signals()?),
        Ok(_) => Ok(()),
        Err(Error::Disconnected) => disk.reconnect(queue),
        Err(error) => {
            *is_faulty |= matches!(error, Error::Fault(_));
            Err(error.into())
        }
    }
}
