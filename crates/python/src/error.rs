//! Errors in Python: `fipsee.Error` with an errno and the message of the Rust error.

use std::io;

use fipsee_block::client::{DiskError, Error};
use fipsee_block::wire::{BlockInfo, Status};
use fipsee_ring::PeerFault;
use fipsee_ring::control::RefusalCode;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rustix::io::Errno;

/// Why a call failed.
pub(crate) enum Failure {
    /// The client library's error.
    Client(Error),
    /// An exception: from a signal handler (KeyboardInterrupt), or for a wrong argument.
    Python(PyErr),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Client(error)
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Client(error) => exception(&error),
            Failure::Python(error) => error,
        }
    }
}

/// The exception for `error`.
pub(crate) fn exception(error: &Error) -> PyErr {
    let text = match error {
        Error::Connect { path, source } if source.kind() == io::ErrorKind::NotFound => format!(
            "no daemon at {}: there is no such socket; start fipseed, or name its socket with socket= or FIPSEE_SOCKET",
            path.display()
        ),
        other => other.to_string(),
    };
    Python::attach(|py| make(py, "error", (errno(error), text)))
}

/// The exception for a request on this range, offset and length, that failed.
pub(crate) fn request_exception(status: Status, (offset, length): (u64, u64), info: &BlockInfo) -> PyErr {
    if status != Status::Misaligned {
        return exception(&Error::Service(DiskError::Request(status)));
    }
    let block = info.block_bytes;
    let text = format!("offset {offset} and length {length} must be multiples of the disk's logical block size, {block}");
    Python::attach(|py| make(py, "error", (status.errno(), text)))
}

/// The exception for a batch of which these requests failed: index and status, at least one.
pub(crate) fn batch_exception(count: usize, failures: &[(usize, Status)]) -> PyErr {
    Python::attach(|py| {
        let list: Vec<(usize, i32)> = failures.iter().map(|(index, status)| (*index, status.errno())).collect();
        let (index, status) = failures.first().copied().unwrap_or((0, Status::IoError));
        let text = format!("{} of {count} requests failed (.failures names them); number {index}: {}", list.len(), status.text());
        make(py, "batch_error", (status.errno(), text, list))
    })
}

/// Create an exception by `fipsee._errors`, which has the classes.
fn make<'py>(py: Python<'py>, function: &str, arguments: impl pyo3::call::PyCallArgs<'py>) -> PyErr {
    let made = py.import("fipsee._errors").and_then(|module| module.getattr(function)?.call1(arguments));
    made.map_or_else(|error| error, PyErr::from_value)
}

pub(crate) fn closed() -> PyErr {
    PyValueError::new_err("the disk is closed; open it again")
}

fn errno(error: &Error) -> i32 {
    let errno = match error {
        Error::Connect { source, .. } | Error::Io { source, .. } => return of_io(source),
        Error::Wait(_) | Error::Unsupported(_) => Errno::OPNOTSUPP,
        Error::Service(DiskError::Request(status)) => return status.errno(),
        Error::Refused { code, .. } => match code {
            RefusalCode::UnknownName => Errno::NOENT,
            RefusalCode::NotAllowed => Errno::ACCESS,
            RefusalCode::Busy => Errno::BUSY,
            RefusalCode::Limit => Errno::NOBUFS,
            RefusalCode::ShuttingDown => Errno::SHUTDOWN,
            _ => Errno::PROTO,
        },
        Error::Disconnected => Errno::NOTCONN,
        Error::TimedOut(_) => Errno::TIMEDOUT,
        Error::Fault(PeerFault::Count { what: "memory regions", .. }) => Errno::NOBUFS,
        Error::Fault(_) | Error::Malformed(_) => Errno::PROTO,
        Error::Full => Errno::AGAIN,
        Error::Service(DiskError::PoolExhausted { .. }) => Errno::NOBUFS,
        Error::Service(DiskError::Different(_)) => Errno::STALE,
        _ => Errno::IO,
    };
    errno.raw_os_error()
}

fn of_io(source: &io::Error) -> i32 {
    source.raw_os_error().unwrap_or(Errno::IO.raw_os_error())
}
