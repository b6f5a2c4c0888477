//! From a message of the peer to a request that holds only checked values.
//!
//! The message was copied out of shared memory once; everything here uses that copy. An indirect table is copied
//! once, too, before its first entry is checked.
#![deny(clippy::as_conversions)]

use std::mem::offset_of;

use fipsee_ring::Message;
use fipsee_ring::control::{ACCESS_READ, ACCESS_WRITE};
use fipsee_ring::memory::{Memory, MemoryFault, Span};

use crate::packed::Short;
use crate::wire::{
    BlockInfo, CAPABILITY_DISCARD, CAPABILITY_FLUSH, CAPABILITY_FUA, CAPABILITY_WRITE, CAPABILITY_WRITE_ZEROES, FLAG_FUA,
    FLAG_UNMAP, MAX_INDIRECT_ENTRIES, Operation, RawRange, RawRequest, RequestHead, SECTOR_BYTES, SECTOR_SHIFT,
    SEGMENTS_INDIRECT, Segment, Status,
};

/// A checked request. Its memory, if any, is in the [`Span`]s that [`parse`] filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub operation: Operation,
    /// The client's name for it; any value.
    pub tag: u16,
    /// Durable before the completion (writes only).
    pub fua: bool,
    /// May deallocate (write-zeroes only).
    pub unmap: bool,
    pub sector: u64,
    /// Sectors to transfer, discard or zero; they end within the disk.
    pub length_sectors: u64,
    /// Kind of the acknowledged event (ack-event only).
    pub aux: u32,
}

impl Request {
    #[inline(always)]
    pub const fn offset_bytes(&self) -> u64 {
        self.sector << SECTOR_SHIFT
    }

    #[inline(always)]
    pub const fn length_bytes(&self) -> u64 {
        self.length_sectors << SECTOR_SHIFT
    }
}

impl From<MemoryFault> for Status {
    #[inline(always)]
    fn from(fault: MemoryFault) -> Self {
        match fault {
            MemoryFault::Outside => Self::BadMemory,
            MemoryFault::Empty => Self::NoSegments,
            MemoryFault::Scattered => Self::TooLong,
        }
    }
}

/// Most spans of one request: an indirect table of segments of which some cross from one region of guest memory into the next;
/// and the most that the kernel accepts at once.
pub const MAX_SPANS: usize = 1024;

/// The properties of a disk that decide whether a request is valid, kept beside the queue.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    pub sector_count: u64,
    /// Sectors of a logical block minus one.
    pub block_mask: u64,
    pub max_transfer_sectors: u64,
    pub max_range_sectors: u64,
    /// `CAPABILITY_*` bits.
    pub capabilities: u32,
}

impl RequestLimits {
    /// The limits of a disk of this description, for a client that may only read, if so.
    pub fn new(info: &BlockInfo, read_only: bool) -> Self {
        Self {
            sector_count: info.sector_count,
            block_mask: u64::from(info.block_bytes) / SECTOR_BYTES - 1,
            max_transfer_sectors: u64::from(info.max_transfer_bytes) >> SECTOR_SHIFT,
            max_range_sectors: u64::from(info.max_range_sectors),
            capabilities: if read_only { info.capabilities & !CAPABILITY_WRITE } else { info.capabilities },
        }
    }

    /// May blocks be transferred, discarded or zeroed from `sector` on?
    #[inline(always)]
    pub fn range(&self, sector: u64, length_sectors: u64) -> Result<(), Status> {
        if (sector | length_sectors) & self.block_mask != 0 {
            return Err(Status::Misaligned);
        }
        if sector > self.sector_count || length_sectors > self.sector_count - sector {
            return Err(Status::OutOfRange);
        }
        Ok(())
    }

    /// Does the disk have all of these `CAPABILITY_*` bits?
    #[inline(always)]
    pub const fn needs(&self, capabilities: u32) -> Result<(), Status> {
        if self.capabilities & capabilities == capabilities {
            return Ok(());
        }
        Err(if capabilities & !self.capabilities & CAPABILITY_WRITE != 0 { Status::ReadOnly } else { Status::Unsupported })
    }
}

/// Check `message` and fill `spans` with its memory: pieces that are whole sectors each.
///
/// # Errors
/// The status to answer; the tag is in bytes 4..6, whatever the rest holds ([`tag_of`]).
#[inline(always)]
pub fn parse<M: Memory>(message: &Message, limits: &RequestLimits, memory: &M, spans: &mut Vec<Span>) -> Result<Request, Status> {
    let RequestHead { operation, segment_count, flags, tag, reserved } = head_of(message);
    spans.clear();
    let Some(operation) = Operation::from_wire(operation) else {
        return Err(Status::Unsupported);
    };
    if reserved != 0 {
        return Err(Status::Invalid);
    }
    let (fua, unmap) = (flags & FLAG_FUA != 0, flags & FLAG_UNMAP != 0);
    let sector = message.word_at(offset_of!(RawRequest, sector));
    let mut request = Request { operation, tag, fua, unmap, sector, length_sectors: 0, aux: aux_of(message) };
    match operation {
        Operation::Read | Operation::Write => {
            let fua_ok = !fua || (operation == Operation::Write && limits.capabilities & CAPABILITY_FUA != 0);
            if flags & !FLAG_FUA != 0 || !fua_ok {
                return Err(Status::Invalid);
            }
            let access = access_needed(operation, limits)?;
            request.length_sectors = match segment_count {
                1 => {
                    let segment = first_segment(message);
                    memory.find(segment.extent(), access, spans)?;
                    segment.length_sectors.into()
                }
                _ => gather_several(message, segment_count, memory, access, spans)?,
            };
            if request.length_sectors > limits.max_transfer_sectors {
                return Err(Status::TooLong);
            }
            limits.range(request.sector, request.length_sectors)?;
        }
        _ => parse_rare(message, segment_count, flags, limits, memory, spans, &mut request)?,
    }
    Ok(request)
}

/// As [`parse`], of a request from a packed message.
#[inline(always)]
pub fn check_short<M: Memory>(
    short: &Short,
    limits: &RequestLimits,
    memory: &M,
    spans: &mut Vec<Span>,
) -> Result<Request, Status> {
    let (operation, tag, sector) = (short.operation(), short.tag, short.sector);
    let mut request = Request { operation, tag, fua: false, unmap: false, sector, length_sectors: 0, aux: 0 };
    spans.clear();
    let (access, segment) = (access_needed(operation, limits)?, Segment::from_word(short.segment));
    memory.find(segment.extent(), access, spans)?;
    request.length_sectors = segment.length_sectors.into();
    if request.length_sectors > limits.max_transfer_sectors {
        return Err(Status::TooLong);
    }
    limits.range(sector, request.length_sectors).map(|()| request)
}

/// The requirements of every read and write: the disk's capability, and this access to memory.
#[inline(always)]
fn access_needed(operation: Operation, limits: &RequestLimits) -> Result<u16, Status> {
    let (need, access) = match operation {
        Operation::Read => (0, ACCESS_WRITE),
        _ => (CAPABILITY_WRITE, ACCESS_READ),
    };
    limits.needs(need).map(|()| access)
}

#[cold]
fn parse_rare<M: Memory>(
    message: &Message,
    segments: u8,
    flags: u16,
    limits: &RequestLimits,
    memory: &M,
    spans: &mut Vec<Span>,
    request: &mut Request,
) -> Result<(), Status> {
    let flags_allowed = if request.operation == Operation::WriteZeroes { FLAG_FUA | FLAG_UNMAP } else { 0 };
    let unused_from = match request.operation {
        Operation::Discard | Operation::WriteZeroes => offset_of!(RawRange, reserved),
        Operation::GetInfo => offset_of!(RawRequest, segments) + size_of::<Segment>(),
        _ => offset_of!(RawRequest, sector),
    };
    let sector_set = request.operation == Operation::GetInfo && request.sector != 0;
    let unused_set = sector_set || (unused_from..offset_of!(RawRequest, aux)).step_by(8).any(|at| message.word_at(at) != 0);
    let fua_refused = request.fua && limits.capabilities & CAPABILITY_FUA == 0;
    let segments_expected = u8::from(request.operation == Operation::GetInfo);
    let aux_set = request.operation != Operation::AckEvent && request.aux != 0;
    if flags & !flags_allowed != 0 || fua_refused || unused_set || segments != segments_expected || aux_set {
        return Err(Status::Invalid);
    }
    match request.operation {
        Operation::Discard | Operation::WriteZeroes => {
            let wanted = if request.operation == Operation::Discard { CAPABILITY_DISCARD } else { CAPABILITY_WRITE_ZEROES };
            limits.needs(CAPABILITY_WRITE | wanted)?;
            request.length_sectors = message.word_at(offset_of!(RawRange, length_sectors));
            if request.length_sectors == 0 {
                return Err(Status::NoSegments);
            }
            if request.length_sectors > limits.max_range_sectors {
                return Err(Status::TooLong);
            }
            limits.range(request.sector, request.length_sectors)
        }
        Operation::Flush => limits.needs(CAPABILITY_FLUSH),
        Operation::GetInfo => Ok(memory.find(first_segment(message).extent(), ACCESS_WRITE, spans)?),
        _ => Ok(()),
    }
}

/// Turn the segments, inline or indirect, into spans; returns the sectors they hold together.
fn gather_several<M: Memory>(
    message: &Message,
    segments: u8,
    memory: &M,
    access: u16,
    spans: &mut Vec<Span>,
) -> Result<u64, Status> {
    let mut total_sectors = 0;
    let mut add = |segment: Segment, spans: &mut Vec<Span>| {
        memory.find(segment.extent(), access, spans)?;
        total_sectors += u64::from(segment.length_sectors);
        Ok::<(), Status>(())
    };
    match segments {
        0 => return Err(Status::NoSegments),
        SEGMENTS_INDIRECT => {
            let mut table = [0_u8; MAX_INDIRECT_ENTRIES * 8];
            let entries = usize::try_from(aux_of(message)).unwrap_or(usize::MAX);
            if entries == 0 {
                return Err(Status::NoSegments);
            }
            let bytes = table.get_mut(..entries.saturating_mul(8)).ok_or(Status::TooLong)?;
            memory.read(first_segment(message).extent(), spans, bytes)?;
            for entry in bytes.as_chunks::<8>().0 {
                add(Segment::from_word(u64::from_le_bytes(*entry)), spans)?;
            }
        }
        count => {
            let raw: &RawRequest = zerocopy::transmute_ref!(message.words());
            for segment in raw.segments.get(..count.into()).ok_or(Status::Invalid)? {
                add(*segment, spans)?;
            }
        }
    }
    Ok(total_sectors)
}

#[inline(always)]
pub fn tag_of(message: &Message) -> u16 {
    head_of(message).tag
}

#[inline(always)]
fn head_of(message: &Message) -> RequestHead {
    zerocopy::transmute!(message.word_at(offset_of!(RawRequest, head)))
}

#[inline(always)]
fn first_segment(message: &Message) -> Segment {
    Segment::from_word(message.word_at(offset_of!(RawRequest, segments)))
}

#[inline(always)]
fn aux_of(message: &Message) -> u32 {
    let [aux, _stamp]: [u32; 2] = zerocopy::transmute!(message.word_at(offset_of!(RawRequest, aux)));
    aux
}
