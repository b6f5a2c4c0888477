//! What can go wrong with ports.

use fipsee_ring::error::ServiceError;

use crate::wire::Status;

/// Why attaching, sending or receiving failed.
pub type Error = fipsee_ring::error::Error<NetError>;

/// What can go wrong with ports alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NetError {
    #[error("a frame of {length_bytes} bytes; this port takes {least} to {most}: send less at a time")]
    Length { length_bytes: usize, least: usize, most: usize },
    /// The daemon granted less memory than a frame in each direction needs.
    #[error(
        "the pool has {pool_bytes} bytes for a pair of queues, and a frame each way needs {least_bytes}; raise max_pool_bytes of the daemon"
    )]
    PoolTooSmall { pool_bytes: u64, least_bytes: u64 },
    #[error("the buffer is of another pair of queues, or of another attachment; give it back to the port that it came from")]
    OtherBuffer,
    /// What was attached to again is not the port that was lost.
    #[error("the port came back with another {0}; close it, and attach as to a new one")]
    Different(&'static str),
    /// A receive buffer came back without a frame.
    #[error("a receive buffer was not taken: {}", .0.text())]
    NotPosted(Status),
}

impl ServiceError for NetError {
    const PEER: &'static str = "daemon";
    const START: &'static str = "fipseed";
    const OR_NAME_IT: &'static str = ", or name its socket with --connect or FIPSEE_SOCKET";
    const LOST: &'static str = "the daemon closed the connection; see its log; reconnect, or attach again";
    const FULL: &'static str = "all transmit buffers are in use; wait until frames were sent back, or drop the frame";
}
