//! Waiting for the thread on the other CPU of a measurement.

use std::io;
use std::time::Duration;

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

/// Of two failures the one that is the cause.
pub(crate) fn cause(one: io::Error, other: io::Error) -> io::Error {
    if one.kind() == io::ErrorKind::Interrupted { other } else { one }
}
