//! What can go wrong for a client, whatever the service.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::control::{Malformed, RefusalCode};
use crate::fault::PeerFault;
use crate::region::RegionError;
use crate::ring::Full;
use crate::wait::Unavailable;

/// What a service adds: errors of its own, and its words for the common ones.
pub trait ServiceError: fmt::Debug + fmt::Display {
    /// What the other side is called.
    const PEER: &'static str;
    /// What to do when nothing listens.
    const START: &'static str;
    /// What to do besides where there is no socket.
    const OR_NAME_IT: &'static str;
    /// What it means that the connection is lost, and what to do.
    const LOST: &'static str;
    /// That the queue takes no more, and what to do.
    const FULL: &'static str;

    /// What a caller of read(2) or write(2) would see.
    fn errno(&self) -> Option<i32> {
        None
    }
}

/// Why an operation of a client failed. `S`: errors of the service.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error<S> {
    /// This CPU lacks the instructions for the wait mode that was asked for.
    Wait(Unavailable),
    /// Nothing listens at the socket, or it cannot be reached.
    Connect {
        /// The socket.
        path: PathBuf,
        /// What connect(2) said.
        source: io::Error,
    },
    /// The peer refused, or ended the channel and said why; its text says what to do.
    Refused {
        /// For programs.
        code: RefusalCode,
        /// For people.
        text: String,
    },
    /// The peer closed the connection or died. What was not answered may or may not have been done.
    Disconnected,
    /// The peer did not answer in time.
    TimedOut(&'static str),
    /// The peer is too old: it lacks this, which was asked for.
    Unsupported(&'static str),
    /// The peer broke the protocol; the channel is closed.
    Fault(PeerFault),
    /// The peer sent something that is not a control message.
    Malformed(Malformed),
    /// As many requests are outstanding as the queue takes.
    Full,
    /// The operating system refused something.
    Io {
        /// What was tried.
        context: &'static str,
        /// What it said.
        source: io::Error,
    },
    /// The service's own.
    Service(S),
}

impl<S: ServiceError> fmt::Display for Error<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (peer, start) = (S::PEER, S::START);
        match self {
            Self::Wait(unavailable) => unavailable.fmt(f),
            Self::Connect { path, source } => {
                let path = path.display();
                match source.kind() {
                    io::ErrorKind::NotFound => {
                        write!(f, "no {peer} at {path}: there is no such socket; start {start}{}", S::OR_NAME_IT)
                    }
                    io::ErrorKind::ConnectionRefused => {
                        write!(f, "no {peer} at {path}: the socket is there but nothing listens; start {start}")
                    }
                    io::ErrorKind::PermissionDenied => {
                        write!(f, "no permission to open {path}; ask for write permission on the socket")
                    }
                    _ => write!(f, "cannot connect to {path}: {source}"),
                }
            }
            Self::Refused { text, .. } => f.write_str(text),
            Self::Disconnected => f.write_str(S::LOST),
            Self::TimedOut(what) => write!(f, "the {peer} did not answer {what} in time; is it stopped or overloaded?"),
            Self::Unsupported(what) => {
                write!(f, "the {peer} knows no {what}: it is older than this program; upgrade it, or do without")
            }
            Self::Fault(fault) => write!(f, "{fault}; the channel is closed"),
            Self::Malformed(malformed) => malformed.fmt(f),
            Self::Full => f.write_str(S::FULL),
            Self::Io { context, source } => write!(f, "cannot {context}: {source}"),
            Self::Service(error) => write!(f, "{error}"),
        }
    }
}

impl<S: ServiceError> std::error::Error for Error<S> {}

impl<S> Error<S> {
    /// May another attempt to attach succeed?
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

impl<S> From<Unavailable> for Error<S> {
    fn from(unavailable: Unavailable) -> Self {
        Self::Wait(unavailable)
    }
}

impl<S> From<Full> for Error<S> {
    fn from(Full: Full) -> Self {
        Self::Full
    }
}

impl<S> From<PeerFault> for Error<S> {
    fn from(fault: PeerFault) -> Self {
        Self::Fault(fault)
    }
}

impl<S> From<Malformed> for Error<S> {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

impl<S> From<RegionError> for Error<S> {
    fn from(error: RegionError) -> Self {
        match error {
            RegionError::Fault(fault) => Self::Fault(fault),
            RegionError::Io(source) => Self::Io { context: "map the channel's memory", source },
        }
    }
}

impl<S: ServiceError + Send + Sync + 'static> From<Error<S>> for io::Error {
    fn from(error: Error<S>) -> Self {
        let kind = match error {
            Error::Io { source, .. } | Error::Connect { source, .. } => return source,
            Error::Service(ref own) if let Some(errno) = own.errno() => return Self::from_raw_os_error(errno),
            Error::TimedOut(_) => io::ErrorKind::TimedOut,
            Error::Wait(_) | Error::Unsupported(_) => io::ErrorKind::Unsupported,
            Error::Disconnected => io::ErrorKind::NotConnected,
            _ => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}
