//! Errors in Python: `fipsee.Error` with an errno and the message of the Rust error.

use std::io;

use fipsee_block::client::{DiskError, Error};
use fipsee_block::wire::{BlockInfo, Status};
use fipsee_net::NetError;
use fipsee_ring::PeerFault;
use fipsee_ring::control::RefusalCode;
use fipsee_ring::error::{Error as Any, ServiceError};
use pyo3::prelude::*;
use rustix::io::Errno;

/// Why a call failed.
pub(crate) enum Failure<E = Error> {
    /// The client library's error.
    Client(E),
    /// An exception: from a signal handler (KeyboardInterrupt), or for a wrong argument.
    Python(PyErr),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Client(error)
    }
}

impl<E> From<PyErr> for Failure<E> {
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

impl From<Failure<fipsee_net::Error>> for PyErr {
    fn from(failure: Failure<fipsee_net::Error>) -> Self {
        match failure {
            Failure::Client(error) => net_exception(&error),
            Failure::Python(error) => error,
        }
    }
}

/// The exception for `error`.
pub(crate) fn exception(error: &Error) -> PyErr {
    let number = errno(error, |own| match own {
        DiskError::Request(status) => status.errno(),
        DiskError::PoolExhausted { .. } => Errno::NOBUFS.raw_os_error(),
        DiskError::Different(_) => Errno::STALE.raw_os_error(),
        _ => Errno::IO.raw_os_error(),
    });
    raise(error, number)
}

/// The exception for an error of a port.
pub(crate) fn net_exception(error: &fipsee_net::Error) -> PyErr {
    // As with a disk that is in use: it may work later.
    let number = if matches!(error, fipsee_net::Error::Full) { Errno::BUSY.raw_os_error() } else { errno(error, net_errno) };
    raise(error, number)
}

fn net_errno(error: &NetError) -> i32 {
    let errno = match error {
        NetError::Length { .. } => Errno::MSGSIZE,
        NetError::PoolTooSmall { .. } => Errno::NOBUFS,
        NetError::OtherBuffer | NetError::Different(_) => Errno::STALE,
        _ => Errno::PROTO,
    };
    errno.raw_os_error()
}

fn raise<S: ServiceError>(error: &Any<S>, number: i32) -> PyErr {
    let text = match error {
        Any::Connect { path, source } if source.kind() == io::ErrorKind::NotFound => format!(
            "no daemon at {}: there is no such socket; start fipseed, or name its socket with socket= or FIPSEE_SOCKET",
            path.display()
        ),
        other => other.to_string(),
    };
    Python::attach(|py| make(py, "error", (number, text)))
}

/// The exception for what may work later.
pub(crate) fn busy(text: &str) -> PyErr {
    Python::attach(|py| make(py, "error", (Errno::BUSY.raw_os_error(), text)))
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

/// `of_service`: of an error that only this service has.
fn errno<S>(error: &Any<S>, of_service: impl FnOnce(&S) -> i32) -> i32 {
    let errno = match error {
        Any::Connect { source, .. } | Any::Io { source, .. } => return of_io(source),
        Any::Wait(_) | Any::Unsupported(_) => Errno::OPNOTSUPP,
        Any::Service(own) => return of_service(own),
        Any::Refused { code, .. } => match code {
            RefusalCode::UnknownName => Errno::NOENT,
            RefusalCode::NotAllowed => Errno::ACCESS,
            RefusalCode::Busy => Errno::BUSY,
            RefusalCode::Limit => Errno::NOBUFS,
            RefusalCode::ShuttingDown => Errno::SHUTDOWN,
            _ => Errno::PROTO,
        },
        Any::Disconnected => Errno::NOTCONN,
        Any::TimedOut(_) => Errno::TIMEDOUT,
        Any::Fault(PeerFault::Count { what: "memory regions", .. }) => Errno::NOBUFS,
        Any::Fault(_) | Any::Malformed(_) => Errno::PROTO,
        Any::Full => Errno::AGAIN,
        _ => Errno::IO,
    };
    errno.raw_os_error()
}

fn of_io(source: &io::Error) -> i32 {
    source.raw_os_error().unwrap_or(Errno::IO.raw_os_error())
}
