//! The block protocol on the wire (docs/protocol.md section 5). Counterpart of `include/fipsee_block.h`.
//!
//! Offsets and lengths on the wire are in sectors of 512 bytes, whatever the disk's logical block size.
#![deny(clippy::as_conversions)]

use fipsee_ring::Message;
use fipsee_ring::channel::{self, FlagRule, Profile};
use fipsee_ring::control::{FEATURE_LIST, LISTED_INFO_BYTES, SERVICE_INFO_BYTES};
use fipsee_ring::fault::expect;
use fipsee_ring::memory::Extent;

/// Service number of block devices.
pub const SERVICE_BLOCK: u16 = 1;
/// ATTACH flag: the client will not write.
pub const ATTACH_READ_ONLY: u32 = 1;
/// ATTACH flag: refuse if another client is attached, and refuse others meanwhile.
pub const ATTACH_EXCLUSIVE: u32 = 2;
/// ATTACH flag, with [`FEATURE_SOLE_WRITER`]: no other client may write meanwhile.
pub const ATTACH_SOLE_WRITER: u32 = 4;
/// ATTACH flag, with [`FEATURE_SOLE_WRITER`]: write although another client claims to be the sole writer.
pub const ATTACH_IGNORE_CLAIM: u32 = 8;
/// Feature: ATTACH may claim the disk, or attach beside a claim.
pub const FEATURE_SOLE_WRITER: u64 = 2;
/// The features that this build supports.
pub const FEATURES: u64 = channel::FEATURES | FEATURE_SOLE_WRITER | FEATURE_LIST;
/// Slots of a completion ring beyond the depth: one unacknowledged event of each kind.
pub const EVENT_CREDITS: u32 = 2;
/// Channels to disks.
pub const PROFILE: Profile = Profile {
    features: FEATURES,
    event_credits: EVENT_CREDITS,
    flags: &[
        FlagRule {
            flag: ATTACH_SOLE_WRITER,
            feature: FEATURE_SOLE_WRITER,
            unsupported: Some("claims to be a disk's sole writer"),
        },
        // Without claims there is no claim to be ignored.
        FlagRule { flag: ATTACH_IGNORE_CLAIM, feature: FEATURE_SOLE_WRITER, unsupported: None },
    ],
};

/// Bytes of a sector, the unit of the wire.
pub const SECTOR_BYTES: u64 = 512;
/// `SECTOR_BYTES` as a shift.
pub const SECTOR_SHIFT: u32 = 9;
/// Most segments in the request itself.
pub const MAX_INLINE_SEGMENTS: usize = 5;
/// Value of the segment count that means "the first segment is a table".
pub const SEGMENTS_INDIRECT: u8 = 0xff;
/// Most entries of an indirect table: 2 KiB, copied once. 256 pages make the 1 MiB that guests send at most.
pub const MAX_INDIRECT_ENTRIES: usize = 256;
/// Largest disk in sectors: its last byte has an offset that a signed 64-bit number holds, with room to add lengths.
pub const MAX_SECTOR_COUNT: u64 = (1 << 55) - 1;
/// Most data of one read or write: half of what one inline segment can carry, and more than any disk gains from.
pub const MAX_TRANSFER_BYTES: u64 = 16 << 20;
/// Most completions in one message.
pub const MAX_PACKED: usize = 14;

/// Request flag: the data is durable before the completion (forced unit access).
pub const FLAG_FUA: u16 = 1;
/// Request flag of write-zeroes: the blocks may be deallocated.
pub const FLAG_UNMAP: u16 = 2;

/// Completion kind: answers to requests.
pub const KIND_COMPLETIONS: u8 = 0;
/// Completion kind: the disk's size changed; the new size in sectors is at bytes 8..16.
pub const KIND_RESIZE: u8 = 1;
/// Completion kind: the back end removes the disk; requests are answered DETACHED from here on.
pub const KIND_DETACH: u8 = 2;

/// Declare an enum of the wire: for each value the documentation, the name and the number.
#[macro_export]
macro_rules! wire_numbers {
    ($(#[$meta:meta])* $name:ident: $wire:ty { $($(#[$about:meta])+ $value:ident = $number:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$about])+ $value,)+ }

        impl $name {
            /// Every value, in the order of their numbers.
            pub const ALL: [Self; [$($number),+].len()] = [$(Self::$value),+];

            /// The number on the wire.
            #[must_use]
            #[inline(always)]
            pub const fn to_wire(self) -> $wire {
                match self { $(Self::$value => $number,)+ }
            }

            /// The value of this number, if there is one.
            #[inline(always)]
            pub const fn from_wire(wire: $wire) -> Option<Self> {
                match wire { $($number => Some(Self::$value),)+ _ => None }
            }
        }
    };
}

wire_numbers! {
    /// The operation of a request.
    Operation: u8 {
        /// Disk to memory.
        Read = 1,
        /// Memory to disk.
        Write = 2,
        /// Everything completed before is durable after.
        Flush = 3,
        /// The blocks' content is no longer needed; reads return zeroes or the old content.
        Discard = 4,
        /// The blocks read as zeroes.
        WriteZeroes = 5,
        /// Put a [`BlockInfo`] into the (single) segment.
        GetInfo = 6,
        /// The client has seen the event whose kind is in `aux`.
        AckEvent = 7,
    }
}

macro_rules! statuses {
    ($($(#[doc = $doc:literal])+ $name:ident = $wire:literal, $errno:ident, $text:literal;)+) => {
        wire_numbers! {
            /// The status of a request. One table has its number, its errno and its message.
            Status: u16 { $($(#[doc = $doc])+ $name = $wire,)+ }
        }

        impl Status {
            /// The errno a caller of read(2) or write(2) would see; 0 for success.
            #[must_use]
            pub fn errno(self) -> i32 {
                match self { $(Self::$name => statuses!(@errno $errno),)+ }
            }

            /// What was wrong and what to do.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }
        }
    };
    (@errno ZERO) => { 0 };
    (@errno $errno:ident) => { rustix::io::Errno::$errno.raw_os_error() };
}

statuses! {
    /// Done.
    Ok = 0, ZERO, "done";
    /// The device failed.
    IoError = 1, IO, "the disk failed to do it (EIO); see the daemon's log and the kernel's for the device";
    /// A field of the request is wrong.
    Invalid = 2, INVAL, "a field of the request is not what the protocol allows; the client library is at fault";
    /// The disk does not know the operation.
    Unsupported = 3, OPNOTSUPP, "the disk does not do this operation; see its capabilities (fipsee info)";
    /// A segment is outside the memory that was handed over, or access to it was not granted.
    BadMemory = 4, FAULT, "a buffer is outside the memory registered with the channel; register it with the access needed";
    /// The disk is attached, or exported, for reading only.
    ReadOnly = 5, ROFS, "the disk is read-only; export it without ro and attach it for writing";
    /// The blocks are beyond the end of the disk.
    OutOfRange = 6, NXIO, "the request reaches past the end of the disk; ask for its size (fipsee info)";
    /// The file system below is full.
    NoSpace = 7, NOSPC, "no space left where the disk is stored; free some, the request can be repeated";
    /// The disk was removed.
    Detached = 8, NODEV, "the disk was detached by the daemon";
    /// Offset or length is not a multiple of the logical block size.
    Misaligned = 9, INVAL, "offset and length must be multiples of the disk's logical block size";
    /// More data, segments or blocks than one request may carry.
    TooLong = 10, MSGSIZE, "the request is longer than the disk's maximum; split it";
    /// A read or write without data.
    NoSegments = 11, INVAL, "a read or write needs at least one segment with data";
}

fipsee_ring::wire_structures! {
    /// A piece of memory named on the wire, in a word: `offset:32 | length:16 | region:16`, the first two in sectors.
    #[derive(PartialEq, Eq)]
    pub Segment: 8 {
        /// Offset in the region, in sectors.
        0 offset_sectors: u32,
        /// Length, in sectors.
        4 length_sectors: u16,
        /// The region's id.
        6 region: u16,
    }
}

impl Segment {
    /// None: what stands behind the segments of a request.
    pub const ZERO: Self = Self { offset_sectors: 0, length_sectors: 0, region: 0 };

    /// The bytes it names.
    #[must_use]
    #[inline(always)]
    pub fn extent(self) -> Extent {
        let (offset, length) = (u64::from(self.offset_sectors), u64::from(self.length_sectors));
        Extent { region: self.region, offset_bytes: offset << SECTOR_SHIFT, length_bytes: length << SECTOR_SHIFT }
    }

    /// As one word of the wire.
    #[must_use]
    #[inline(always)]
    pub const fn to_word(self) -> u64 {
        zerocopy::transmute!(self)
    }

    /// From one word of the wire; any word is a segment, which is checked later.
    #[inline(always)]
    pub const fn from_word(word: u64) -> Self {
        zerocopy::transmute!(word)
    }
}

fipsee_ring::wire_structures! {
    /// The first word of a request.
    pub RequestHead: 8 { 0 operation: u8, 1 segment_count: u8, 2 flags: u16, 4 tag: u16, 6 reserved: u16 }
    /// A request in a slot of the request ring; the stamp is the ring's.
    pub RawRequest: 64 { 0 head: RequestHead, 8 sector: u64, 16 segments: [Segment; MAX_INLINE_SEGMENTS], 56 aux: u32, 60 stamp: u32 }
    /// The same of an operation that names sectors of the disk and no memory.
    pub RawRange: 64 { 0 head: RequestHead, 8 sector: u64, 16 length_sectors: u64, 24 reserved: [u64; 4], 56 aux: u32, 60 stamp: u32 }
    /// The start of a message of the completion ring.
    pub CompletionHead: 4 { 0 count: u8, 1 kind: u8, 2 reserved: u16 }
    /// One finished request.
    pub CompletionEntry: 4 { 0 tag: u16, 2 status: u16 }
    /// Finished requests in a slot of the completion ring; the stamp is the ring's.
    pub RawCompletion: 64 { 0 head: CompletionHead, 4 entries: [CompletionEntry; MAX_PACKED], 60 stamp: u32 }
    /// An event in a slot of the completion ring; the stamp is the ring's.
    pub RawEvent: 64 { 0 head: CompletionHead, 4 reserved_too: u32, 8 sector_count: u64, 16 reserved_end: [u8; 44], 60 stamp: u32 }
}

/// The first word of a request: operation, segment count, flags, tag.
#[inline(always)]
pub const fn request_head(operation: Operation, segment_count: u8, flags: u16, tag: u16) -> RequestHead {
    RequestHead { operation: operation.to_wire(), segment_count, flags, tag, reserved: 0 }
}

/// A request that names memory.
#[inline(always)]
pub const fn request(head: RequestHead, sector: u64, segments: [Segment; MAX_INLINE_SEGMENTS], aux: u32) -> Message {
    Message::from_words(zerocopy::transmute!(RawRequest { head, sector, segments, aux, stamp: 0 }))
}

/// A read, write or get-info of one contiguous piece: the common case, built in registers.
#[inline(always)]
pub const fn request_one_segment(operation: Operation, flags: u16, tag: u16, sector: u64, segment: Segment) -> Message {
    request(
        request_head(operation, 1, flags, tag),
        sector,
        [segment, Segment::ZERO, Segment::ZERO, Segment::ZERO, Segment::ZERO],
        0,
    )
}

/// A read or write of up to [`MAX_INLINE_SEGMENTS`] pieces. More are a mistake of the caller and are omitted, which
/// the server answers with [`Status::Invalid`].
pub fn request_inline(operation: Operation, flags: u16, tag: u16, sector: u64, segments: &[Segment]) -> Message {
    let count = u8::try_from(segments.len()).unwrap_or(SEGMENTS_INDIRECT - 1);
    let segments = std::array::from_fn(|index| segments.get(index).copied().unwrap_or(Segment::ZERO));
    request(request_head(operation, count, flags, tag), sector, segments, 0)
}

/// A read or write whose `entry_count` segments are in a table at `table`.
pub const fn request_indirect(
    operation: Operation,
    flags: u16,
    tag: u16,
    sector: u64,
    table: Segment,
    entry_count: u32,
) -> Message {
    request(
        request_head(operation, SEGMENTS_INDIRECT, flags, tag),
        sector,
        [table, Segment::ZERO, Segment::ZERO, Segment::ZERO, Segment::ZERO],
        entry_count,
    )
}

/// A discard or write-zeroes of `length_sectors`.
pub const fn request_range(operation: Operation, flags: u16, tag: u16, sector: u64, length_sectors: u64) -> Message {
    let head = request_head(operation, 0, flags, tag);
    Message::from_words(zerocopy::transmute!(RawRange { head, sector, length_sectors, reserved: [0; 4], aux: 0, stamp: 0 }))
}

/// A flush.
pub const fn request_flush(tag: u16) -> Message {
    request_range(Operation::Flush, 0, tag, 0, 0)
}

/// The client has seen an event of `kind`.
pub fn request_ack_event(tag: u16, kind: u8) -> Message {
    request(request_head(Operation::AckEvent, 0, 0, tag), 0, [Segment::ZERO; MAX_INLINE_SEGMENTS], kind.into())
}

/// An event of `kind`; of a resize, with the new size.
pub const fn event(kind: u8, sector_count: u64) -> Message {
    let head = CompletionHead { count: 1, kind, reserved: 0 };
    Message::from_words(zerocopy::transmute!(RawEvent { head, reserved_too: 0, sector_count, reserved_end: [0; 44], stamp: 0 }))
}

/// Capability: the export takes writes.
pub const CAPABILITY_WRITE: u32 = 1;
/// Capability: a flush is needed for durability and is honoured.
pub const CAPABILITY_FLUSH: u32 = 2;
/// Capability: FUA writes.
pub const CAPABILITY_FUA: u32 = 4;
/// Capability: discard.
pub const CAPABILITY_DISCARD: u32 = 8;
/// Capability: write-zeroes.
pub const CAPABILITY_WRITE_ZEROES: u32 = 16;
/// Capability of the daemon: several short requests in one message ([`crate::packed`]).
pub const CAPABILITY_PACKED: u32 = 32;

/// The names of a disk's capabilities in messages.
pub const CAPABILITY_NAMES: [(u32, &str); 5] = [
    (CAPABILITY_WRITE, "write"),
    (CAPABILITY_FLUSH, "flush"),
    (CAPABILITY_FUA, "fua"),
    (CAPABILITY_DISCARD, "discard"),
    (CAPABILITY_WRITE_ZEROES, "write_zeroes"),
];

fipsee_ring::wire_structures! {
    /// The description of a disk for a client: in ATTACHED, and in the answer to get-info. 64 bytes on the wire.
    #[derive(PartialEq, Eq)]
    pub BlockInfo: 56 {
        /// Where the export begins on the disk it is a part of, for information; sectors in requests count from 0.
        0 first_sector: u64,
        /// Size in sectors of 512 bytes.
        8 sector_count: u64,
        /// Logical block size in bytes: the unit of offset and length.
        16 block_bytes: u32,
        /// Preferred size and alignment of a transfer, in bytes.
        20 optimal_bytes: u32,
        /// Most data of one read or write, in bytes.
        24 max_transfer_bytes: u32,
        /// Most sectors of one discard or write-zeroes.
        28 max_range_sectors: u32,
        /// Most segments of one request.
        32 max_segments: u32,
        /// `CAPABILITY_*` bits.
        36 capabilities: u32,
        /// Identifies this disk and its contents: the same after a daemon restart; a client that reconnects compares it.
        40 identity: [u8; 16],
    }
    RawBlockInfo: 64 { 0 info: BlockInfo, 56 reserved: u64 }
    /// What an entry of LISTED says of a disk.
    #[derive(PartialEq, Eq)]
    pub ListedInfo: 16 {
        /// Size in sectors of 512 bytes.
        0 sector_count: u64,
        /// Logical block size in bytes.
        8 block_bytes: u32,
        /// [`LISTED_READ_ONLY`]; others are ignored.
        12 flags: u32,
    }
}

/// In an entry of LISTED: no client may write the disk.
pub const LISTED_READ_ONLY: u32 = 1;

impl ListedInfo {
    /// What a list says of a disk.
    pub const fn of(info: &BlockInfo) -> Self {
        let flags = if info.can(CAPABILITY_WRITE) { 0 } else { LISTED_READ_ONLY };
        Self { sector_count: info.sector_count, block_bytes: info.block_bytes, flags }
    }

    /// The 16 bytes on the wire.
    pub const fn to_bytes(self) -> [u8; LISTED_INFO_BYTES] {
        zerocopy::transmute!(self)
    }

    /// Parse what a daemon says of a disk.
    pub fn from_bytes(bytes: [u8; LISTED_INFO_BYTES]) -> Result<Self, fipsee_ring::PeerFault> {
        let info: Self = zerocopy::transmute!(bytes);
        expect("the logical block size", info.block_bytes, is_block(info.block_bytes))?;
        expect("the size of the disk in sectors", info.sector_count, (1..=MAX_SECTOR_COUNT).contains(&info.sector_count))?;
        Ok(info)
    }
}

const fn is_block(block_bytes: u32) -> bool {
    matches!(block_bytes, 512 | 1024 | 2048 | 4096)
}

impl BlockInfo {
    /// The 64 bytes on the wire.
    pub fn to_bytes(&self) -> [u8; SERVICE_INFO_BYTES] {
        zerocopy::transmute!(RawBlockInfo { info: *self, reserved: 0 })
    }

    /// Parse a daemon's description of a disk.
    pub fn from_bytes(bytes: &[u8; SERVICE_INFO_BYTES]) -> Result<Self, fipsee_ring::PeerFault> {
        let RawBlockInfo { info, reserved } = zerocopy::transmute!(*bytes);
        expect("the logical block size", info.block_bytes, is_block(info.block_bytes))?;
        let end = info.first_sector.checked_add(info.sector_count).filter(|end| *end <= MAX_SECTOR_COUNT);
        expect("the size of the disk in sectors", info.sector_count, end.is_some() && info.sector_count > 0)?;
        expect("the longest transfer", info.max_transfer_bytes, info.max_transfer_bytes >= info.block_bytes)?;
        expect("the most segments", info.max_segments, info.max_segments >= 1)?;
        expect("the reserved end of the disk's description", reserved, reserved == 0)?;
        Ok(info)
    }

    /// Segments that one request may have. A table has no more entries than the protocol allows, whatever the daemon says.
    pub fn most_segments(&self) -> usize {
        usize::try_from(self.max_segments).unwrap_or(usize::MAX).min(MAX_INDIRECT_ENTRIES)
    }

    /// Size in bytes.
    pub const fn size_bytes(&self) -> u64 {
        self.sector_count << SECTOR_SHIFT
    }

    /// Does it have all of these `CAPABILITY_*` bits?
    pub const fn can(&self, capabilities: u32) -> bool {
        self.capabilities & capabilities == capabilities
    }
}
