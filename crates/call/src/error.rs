//! What can go wrong with calls.

use fipsee_ring::error::ServiceError;

/// Why connecting, calling or serving failed.
pub type Error = fipsee_ring::error::Error<CallError>;

/// What can go wrong with calls alone.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The server has other types under the same name.
    #[error(
        "{what} has {theirs_bytes} bytes at the server and {ours_bytes} here; build both with the same types, and give the service a \
         new version in its name when they change"
    )]
    OtherTypes {
        /// What differs.
        what: &'static str,
        /// Its length at the server, in bytes.
        theirs_bytes: u32,
        /// Its length here.
        ours_bytes: u32,
    },
    /// Replies to calls that were started before must be taken first.
    #[error("{outstanding} calls were started and their replies not taken; take those before calling")]
    RepliesDue {
        /// How many.
        outstanding: u32,
    },
    /// Bytes beyond the end of a payload.
    #[error("{length_bytes} bytes at {offset_bytes} are outside the payload, which has {payload_bytes}")]
    OutsidePayload {
        /// Where they begin.
        offset_bytes: usize,
        /// How many.
        length_bytes: usize,
        /// Bytes of the payload.
        payload_bytes: u32,
    },
    /// The socket cannot be had, or the options cannot be met; in words.
    #[error("{0}")]
    Serve(String),
}

impl ServiceError for CallError {
    const PEER: &'static str = "server";
    const START: &'static str = "the server";
    const OR_NAME_IT: &'static str = "";
    const LOST: &'static str =
        "the server closed the connection or died; calls without a reply may or may not have been carried out; connect again";
    const FULL: &'static str = "as many calls are outstanding as the channel takes; take replies first";
}
