//! Waiting for completions so that Python's signal handlers run.

use std::time::Duration;

use fipsee_block::client::{Completion, Error};
use pyo3::prelude::*;

use crate::attached::{Attached, Lane};
use crate::error::Failure;

/// How often whoever waits looks for signals: a signal may have come to another thread, which does not wake us.
pub(crate) const SIGNAL_PERIOD: Duration = Duration::from_millis(50);

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
    loop {
        let waited = lane.queue.wait_timeout(SIGNAL_PERIOD, done);
        while lane.queue.next_event().is_some() {} // The new size is in the disk's description.
        match waited {
            Ok(count) if count > 0 || lane.queue.outstanding() == 0 => return Ok(()),
            Ok(_) => check_signals()?,
            Err(Error::Disconnected) => disk.reconnect(&mut lane.queue)?,
            Err(error) => {
                lane.is_faulty |= matches!(error, Error::Fault(_));
                return Err(error.into());
            }
        }
    }
}
