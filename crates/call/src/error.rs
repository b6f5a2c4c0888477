//! What can go wrong with calls.

use std::fmt;
use std::io;
use std::path::PathBuf;

use fipsee_ring::PeerFault;
use fipsee_ring::control::{Malformed, RefusalCode};
use fipsee_ring::handshake::HandshakeError;
use fipsee_ring::wait::Unavailable;

/// Why connecting, calling or serving failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// This CPU cannot wait in the way that was asked for.
    Wait(Unavailable),
    /// Nobody listens at the socket, or it cannot be reached.
    Connect {
        /// The socket.
        path: PathBuf,
        /// What connect(2) said.
        source: io::Error,
    },
    /// The server refused, or ended the channel and said why.
    Refused {
        /// For programs.
        code: RefusalCode,
        /// For people.
        text: String,
    },
    /// The server has other types under the same name.
    OtherTypes {
        /// What differs.
        what: &'static str,
        /// Its length at the server, in bytes.
        theirs_bytes: u32,
        /// Its length here.
        ours_bytes: u32,
    },
    /// The server closed the connection or died. Calls without a reply may or may not have been carried out.
    Disconnected,
    /// The server did not answer in time.
    TimedOut(&'static str),
    /// The server broke the protocol; the channel is closed.
    Fault(PeerFault),
    /// The server sent something that is not a control message.
    Malformed(Malformed),
    /// As many calls are outstanding as the channel takes.
    Full,
    /// Replies to calls that were started before must be taken first.
    RepliesDue {
        /// How many.
        outstanding: u32,
    },
    /// Bytes beyond the end of a payload.
    OutsidePayload {
        /// Where they begin.
        offset_bytes: usize,
        /// How many.
        length_bytes: usize,
        /// Bytes of the payload.
        payload_bytes: u32,
    },
    /// The socket cannot be had, or the options cannot be met; in words.
    Serve(String),
    /// The operating system refused something.
    Io {
        /// What was tried.
        context: &'static str,
        /// What it said.
        source: io::Error,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wait(unavailable) => unavailable.fmt(f),
            Self::Connect { path, source } => {
                let path = path.display();
                match source.kind() {
                    io::ErrorKind::NotFound => write!(f, "no server at {path}: there is no such socket; start the server"),
                    io::ErrorKind::ConnectionRefused => {
                        write!(f, "no server at {path}: the socket is there but nobody listens; start the server")
                    }
                    io::ErrorKind::PermissionDenied => {
                        write!(f, "no permission to open {path}; ask for write permission on the socket")
                    }
                    _ => write!(f, "cannot connect to {path}: {source}"),
                }
            }
            Self::Refused { text, .. } | Self::Serve(text) => f.write_str(text),
            Self::OtherTypes { what, theirs_bytes, ours_bytes } => write!(
                f,
                "{what} has {theirs_bytes} bytes at the server and {ours_bytes} here; build both with the same types, and give the service a new version in its name when they change"
            ),
            Self::Disconnected => f.write_str(
                "the server closed the connection or died; calls without a reply may or may not have been carried out; connect again",
            ),
            Self::TimedOut(what) => write!(f, "the server did not answer {what} in time; is it stopped or overloaded?"),
            Self::Fault(fault) => write!(f, "{fault}; the channel is closed"),
            Self::Malformed(malformed) => malformed.fmt(f),
            Self::Full => f.write_str("as many calls are outstanding as the channel takes; take replies first"),
            Self::RepliesDue { outstanding } => {
                write!(f, "{outstanding} calls were started and their replies not taken; take those before calling")
            }
            Self::OutsidePayload { offset_bytes, length_bytes, payload_bytes } => {
                write!(f, "{length_bytes} bytes at {offset_bytes} lie outside the payload, which has {payload_bytes}")
            }
            Self::Io { context, source } => write!(f, "cannot {context}: {source}"),
        }
    }
}

impl std::error::Error for Error {}

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
            // No flag of a call needs a feature.
            HandshakeError::Unsupported(context) => Self::Io { context, source: io::ErrorKind::Unsupported.into() },
            HandshakeError::Fault(fault) => Self::Fault(fault),
            HandshakeError::Malformed(malformed) => Self::Malformed(malformed),
            HandshakeError::Io { context, source } => Self::Io { context, source },
        }
    }
}

impl From<Unavailable> for Error {
    fn from(unavailable: Unavailable) -> Self {
        Self::Wait(unavailable)
    }
}
