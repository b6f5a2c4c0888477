//! Violations of the protocol by a peer.

/// The peer broke the protocol. The channel is closed; the operation cannot be retried.
///
/// Full and empty are ordinary states and have types of their own; an I/O error is a status of one request. This is
/// neither: it says that the contents of shared memory could not have been written by a correct peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerFault {
    #[error("the peer set the reserved field at byte {offset_bytes} to {value:#x}; it must be 0")]
    ReservedSet {
        /// Byte offset of the field in its message or header.
        offset_bytes: u32,
        value: u64,
    },
    #[error("the peer gave {value} {what}; at most {limit} are allowed")]
    Count { what: &'static str, value: u64, limit: u64 },
    /// A structure is not within the memory that was handed over.
    #[error(
        "the peer placed its {what} at offset {offset_bytes}, {length_bytes} bytes, outside a region of \
         {region_bytes} bytes"
    )]
    OutOfRegion { what: &'static str, offset_bytes: u64, length_bytes: u64, region_bytes: u64 },
    /// The memory handed over cannot be used safely.
    #[error("the peer handed over memory that cannot be used: {why}")]
    UnsafeMemory { why: &'static str },
    /// A value that is not among those the protocol allows.
    #[error("the peer gave {value:#x} as {what}, which the protocol does not allow")]
    Value { what: &'static str, value: u64 },
}

/// A fault of the peer's unless the value `is_allowed`.
pub fn expect(what: &'static str, value: impl Into<u64>, is_allowed: bool) -> Result<(), PeerFault> {
    if is_allowed { Ok(()) } else { Err(PeerFault::Value { what, value: value.into() }) }
}
