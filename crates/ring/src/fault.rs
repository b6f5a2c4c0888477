//! What a lying peer is told apart by.

use core::fmt;

/// The peer broke the protocol. The channel is closed; the operation cannot be retried.
///
/// Full and empty are ordinary states and have types of their own; an I/O error is a status of one request. This is
/// neither: it says that what stands in shared memory could not have been written by a correct peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerFault {
    /// A field that must be zero was not.
    ReservedSet {
        /// Byte offset of the field in its message or header.
        offset_bytes: u32,
        /// What stood there.
        value: u64,
    },
    /// A count was outside its bounds.
    Count {
        /// What was counted.
        what: &'static str,
        /// The value found.
        value: u64,
        /// The largest value allowed.
        limit: u64,
    },
    /// A structure does not lie within the memory that was handed over.
    OutOfRegion {
        /// What was placed there.
        what: &'static str,
        /// Its offset in bytes.
        offset_bytes: u64,
        /// Its length in bytes.
        length_bytes: u64,
        /// The length of the region in bytes.
        region_bytes: u64,
    },
    /// The memory handed over cannot be used safely.
    UnsafeMemory {
        /// Why.
        why: &'static str,
    },
    /// A value that is not among those the protocol allows.
    Value {
        /// Which field.
        what: &'static str,
        /// The value found.
        value: u64,
    },
}

impl fmt::Display for PeerFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ReservedSet { offset_bytes, value } => {
                write!(f, "the peer set the reserved field at byte {offset_bytes} to {value:#x}; it must be 0")
            }
            Self::Count { what, value, limit } => write!(f, "the peer gave {value} {what}; at most {limit} are allowed"),
            Self::OutOfRegion { what, offset_bytes, length_bytes, region_bytes } => write!(
                f,
                "the peer placed its {what} at offset {offset_bytes}, {length_bytes} bytes, outside a region of \
                 {region_bytes} bytes"
            ),
            Self::UnsafeMemory { why } => write!(f, "the peer handed over memory that cannot be used: {why}"),
            Self::Value { what, value } => write!(f, "the peer gave {value:#x} as {what}, which the protocol does not allow"),
        }
    }
}

impl core::error::Error for PeerFault {}
