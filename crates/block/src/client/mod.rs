//! The client: attach to an export, submit in batches, reap completions.
//!
//! [`Disk::attach`] gives a [`Disk`] (control connection, memory) and its [`Queue`]s, each for one thread at a time.
//! [`Blocking`] wraps a disk and one queue for plain reads and writes.

use fipsee_ring::error::ServiceError;

use crate::wire::Status;

mod blocking;
mod connection;
mod list;
mod memory;
mod queue;
pub mod transfer;

pub use blocking::Blocking;
pub use connection::{AttachOptions, Claim, Disk, ReconnectEvent, default_socket_path};
pub use fipsee_ring::port::ReconnectPolicy;
pub use list::{ListedDisk, list};
pub use memory::{Buffer, Bytes, Memory};
pub use queue::{Completion, Event, Queue};

/// An error of a client's operation.
pub type Error = fipsee_ring::error::Error<DiskError>;

/// Errors specific to disks.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// A request failed.
    #[error("{}", .0.text())]
    Request(Status),
    /// The pool has no room for a buffer of this length.
    #[error(
        "no room for a buffer of {wanted_bytes} bytes in the pool of {pool_bytes} bytes; ask for a larger pool when attaching, or \
         register memory"
    )]
    PoolExhausted {
        /// Bytes asked for.
        wanted_bytes: u64,
        /// Bytes of the whole pool.
        pool_bytes: u64,
    },
    /// The export after a reconnection is not the one before.
    #[error("the daemon came back with a disk of another {0}; nothing was resubmitted")]
    Different(&'static str),
}

impl ServiceError for DiskError {
    const PEER: &'static str = "daemon";
    const START: &'static str = "fipseed";
    const OR_NAME_IT: &'static str = ", or name its socket with --connect or FIPSEE_SOCKET";
    const LOST: &'static str =
        "the daemon closed the connection; see its log; requests without an answer may or may not have been done";
    const FULL: &'static str = "as many requests are outstanding as the queue takes; reap completions first";

    fn errno(&self) -> Option<i32> {
        match self {
            Self::Request(status) => Some(status.errno()),
            Self::PoolExhausted { .. } | Self::Different(_) => None,
        }
    }
}
