//! The two sides of a measurement, a thread on a CPU each, and waiting for the other one.

use std::io;
use std::thread::{Builder, ScopedJoinHandle};
use std::time::Duration;

use crate::pin;

/// Empty looks before the CPU is yielded to other threads.
pub(crate) const LOOKS_PER_YIELD: u32 = 1 << 12;
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);

/// The other side has failed, and says why itself.
pub(crate) fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::Interrupted, "the other side has ended")
}

/// [`TIMEOUT`] has passed on `cpu`.
pub(crate) fn timed_out(cpu: usize) -> io::Error {
    let text = format!(
        "CPU {cpu} waited {} s for the other one, which is too busy to be measured; try again when it is not",
        TIMEOUT.as_secs()
    );
    io::Error::new(io::ErrorKind::TimedOut, text)
}

pub(crate) fn bind(cpu: usize) -> io::Result<()> {
    pin::bind(cpu).map_err(|error| io::Error::new(error.kind(), format!("cannot measure on CPU {cpu}: {error}")))
}

/// Run both sides, which bind themselves to `cpus`; `end` makes a side stop when the other one has failed. Of two failures the
/// one is returned that is the cause: the side that failed says why, the other only that it was to stop.
pub(crate) fn run_both<A: Send, B: Send>(
    name: &str,
    cpus: (usize, usize),
    first: impl FnOnce() -> io::Result<A> + Send,
    second: impl FnOnce() -> io::Result<B> + Send,
    end: &(impl Fn() + Sync),
) -> io::Result<(A, B)> {
    fn join<T>(thread: io::Result<ScopedJoinHandle<'_, io::Result<T>>>) -> io::Result<T> {
        thread?.join().unwrap_or_else(|_| Err(io::Error::other("a measuring thread panicked")))
    }
    let outcomes = std::thread::scope(|scope| {
        let start = |cpu: usize| Builder::new().name(format!("{name}-{cpu}"));
        let first = start(cpus.0).spawn_scoped(scope, move || first().inspect_err(|_| end()));
        let second = start(cpus.1).spawn_scoped(scope, move || second().inspect_err(|_| end()));
        if first.is_err() || second.is_err() {
            end();
        }
        (join(first), join(second))
    });
    match outcomes {
        (Ok(first), Ok(second)) => Ok((first, second)),
        (Ok(_), Err(error)) | (Err(error), Ok(_)) => Err(error),
        (Err(one), Err(other)) => Err(if one.kind() == io::ErrorKind::Interrupted { other } else { one }),
    }
}
