//! What can go wrong for a client.

use std::fmt;
use std::io;
use std::path::PathBuf;

use fipsee_ring::PeerFault;
use fipsee_ring::control::{Malformed, RefusalCode};
use fipsee_ring::handshake::HandshakeError;
use fipsee_ring::region::RegionError;
use fipsee_ring::ring::Full;
use fipsee_ring::wait::Unavailable;

use crate::wire::Status;

/// Why an operation of the client failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// This CPU lacks the instructions for the wait mode that was asked for.
    Wait(Unavailable),
    /// Nobody listens at the socket, or it cannot be reached.
    Connect {
        /// The socket.
        path: PathBuf,
        /// What connect(2) said.
        source: io::Error,
    },
    /// The daemon refused; its text says what to do.
    Refused {
        /// For programs.
        code: RefusalCode,
        /// For people.
        text: String,
    },
    /// The daemon closed the connection or died. Requests without an answer may or may not have been done.
    Disconnected,
    /// The daemon did not answer in time.
    TimedOut(&'static str),
    /// The daemon is too old: it lacks this, which was asked for.
    Unsupported(&'static str),
    /// The daemon broke the protocol; the channel is closed.
    Fault(PeerFault),
    /// The daemon sent something that is not a control message.
    Malformed(Malformed),
    /// As many requests are outstanding as the queue takes.
    QueueFull,
    /// A request failed.
    Request(Status),
    /// The pool has no room for a buffer of so many bytes.
    PoolExhausted {
        /// Bytes asked for.
        wanted_bytes: u64,
        /// Bytes of the whole pool.
        pool_bytes: u64,
    },
    /// The operating system refused something.
    Io {
        /// What was tried.
        context: &'static str,
        /// What it said.
        source: io::Error,
    },
    /// The export that answered after a reconnection is not the one we had.
    DifferentDisk(&'static str),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wait(unavailable) => unavailable.fmt(f),
            Self::Connect { path, source } => match source.kind() {
                io::ErrorKind::NotFound => {
                    write!(
                        f,
                        "no daemon at {}: there is no such socket; start fipseed, or name its socket with --connect or FIPSEE_SOCKET",
                        path.display()
                    )
                }
                io::ErrorKind::ConnectionRefused => {
                    write!(f, "no daemon at {}: the socket is there but nobody listens; start fipseed", path.display())
                }
                io::ErrorKind::PermissionDenied => {
                    write!(f, "no permission to open {}; ask for write permission on the socket", path.display())
                }
                _ => write!(f, "cannot connect to {}: {source}", path.display()),
            },
            Self::Refused { text, .. } => f.write_str(text),
            Self::Disconnected => f.write_str(
                "the daemon closed the connection; see its log; requests without an answer may or may not have been done",
            ),
            Self::TimedOut(what) => write!(f, "the daemon did not answer {what} in time; is it stopped or overloaded?"),
            Self::Unsupported(what) => {
                write!(f, "the daemon knows no {what}: it is older than this program; upgrade it, or do without")
            }
            Self::Fault(fault) => write!(f, "{fault}; the channel is closed"),
            Self::Malformed(malformed) => malformed.fmt(f),
            Self::QueueFull => f.write_str("as many requests are outstanding as the queue takes; reap completions first"),
            Self::Request(status) => f.write_str(status.text()),
            Self::PoolExhausted { wanted_bytes, pool_bytes } => write!(
                f,
                "no room for a buffer of {wanted_bytes} bytes in the pool of {pool_bytes} bytes; ask for a larger pool when attaching, or register memory"
            ),
            Self::Io { context, source } => write!(f, "cannot {context}: {source}"),
            Self::DifferentDisk(what) => write!(f, "the daemon came back with a disk of another {what}; nothing was resubmitted"),
        }
    }
}

impl std::error::Error for Error {}

impl Error {
    /// May another attempt to attach succeed?
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            // The old attachment may not be released yet, or the new daemon not complete.
            Self::Refused { code, .. } => {
                !matches!(code, RefusalCode::Version | RefusalCode::Malformed | RefusalCode::NotAllowed)
            }
            Self::Connect { .. } | Self::Disconnected | Self::TimedOut(_) => true,
            _ => false,
        }
    }
}

impl From<Unavailable> for Error {
    fn from(unavailable: Unavailable) -> Self {
        Self::Wait(unavailable)
    }
}

impl From<Full> for Error {
    fn from(Full: Full) -> Self {
        Self::QueueFull
    }
}

impl From<PeerFault> for Error {
    fn from(fault: PeerFault) -> Self {
        Self::Fault(fault)
    }
}

impl From<HandshakeError> for Error {
    fn from(error: HandshakeError) -> Self {
        match error {
            HandshakeError::Connect { path, source } => Self::Connect { path, source },
            HandshakeError::Refused { code, text } => Self::Refused { code, text },
            HandshakeError::Disconnected => Self::Disconnected,
            HandshakeError::TimedOut(what) => Self::TimedOut(what),
            HandshakeError::Unsupported(what) => Self::Unsupported(what),
            HandshakeError::Fault(fault) => Self::Fault(fault),
            HandshakeError::Malformed(malformed) => Self::Malformed(malformed),
            HandshakeError::Io { context, source } => Self::Io { context, source },
        }
    }
}

impl From<RegionError> for Error {
    fn from(error: RegionError) -> Self {
        HandshakeError::from(error).into()
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Io { source, .. } | Error::Connect { source, .. } => source,
            Error::Request(status) => Self::from_raw_os_error(status.errno()),
            Error::TimedOut(_) => Self::new(io::ErrorKind::TimedOut, error),
            Error::Wait(_) | Error::Unsupported(_) => Self::new(io::ErrorKind::Unsupported, error),
            Error::Disconnected => Self::new(io::ErrorKind::NotConnected, error),
            other => Self::other(other),
        }
    }
}
