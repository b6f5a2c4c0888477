//! From a message of the peer to a request that holds only checked values.
//!
//! The message was copied out of shared memory once; everything here looks at that copy. An indirect table is copied
//! once, too, before its first entry is looked at.
#![deny(clippy::as_conversions)]

use std::ptr::NonNull;
use std::sync::Arc;

use fipsee_ring::Message;
use fipsee_ring::control::{ACCESS_READ, ACCESS_WRITE, MAX_REGIONS};
use fipsee_ring::region::Region;

use crate::packed::Short;
use crate::wire::{
    BlockInfo, CAPABILITY_DISCARD, CAPABILITY_FLUSH, CAPABILITY_FUA, CAPABILITY_WRITE, CAPABILITY_WRITE_ZEROES, FLAG_FUA,
    FLAG_UNMAP, MAX_INDIRECT_ENTRIES, MAX_INLINE_SEGMENTS, Operation, SECTOR_BYTES, SECTOR_SHIFT, SEGMENTS_INDIRECT, Segment,
    Status,
};

/// A checked request. Its memory, if any, is in the [`Span`]s that [`parse`] filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What to do.
    pub operation: Operation,
    /// The client's name for it; any value.
    pub tag: u16,
    /// Durable before the completion (writes only).
    pub fua: bool,
    /// May deallocate (write-zeroes only).
    pub unmap: bool,
    /// First sector.
    pub sector: u64,
    /// Sectors to transfer, discard or zero; they end within the disk.
    pub length_sectors: u64,
    /// Kind of the acknowledged event (ack-event only).
    pub aux: u32,
}

impl Request {
    /// Offset on the disk in bytes.
    #[must_use]
    #[inline(always)]
    pub const fn offset_bytes(&self) -> u64 {
        self.sector << SECTOR_SHIFT
    }

    /// Length in bytes.
    #[must_use]
    #[inline(always)]
    pub const fn length_bytes(&self) -> u64 {
        self.length_sectors << SECTOR_SHIFT
    }
}

/// A checked piece of the client's memory, laid out as an `iovec`.
///
/// It names memory that the client may change at any time. It stays mapped as long as the [`Memory`] it came from
/// keeps the region, which a server does until no request that names it is in flight.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Span {
    base: NonNull<u8>,
    length_bytes: usize,
}

// SAFETY: a span is an address and a length; whoever dereferences it proves that the memory is still mapped.
unsafe impl Send for Span {}

impl Span {
    /// A span of memory that the caller vouches for, for disks' own tests and for in-process use.
    ///
    /// # Safety
    /// The memory is valid for loads and stores of `length_bytes` for as long as the span is used.
    #[must_use]
    pub const unsafe fn new(base: NonNull<u8>, length_bytes: usize) -> Self {
        Self { base, length_bytes }
    }

    /// First byte.
    #[must_use]
    #[inline(always)]
    pub const fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Length in bytes. A multiple of 512 where it came over a ring; any number from a virtqueue, where only the sum is one.
    #[must_use]
    #[inline(always)]
    pub const fn length_bytes(&self) -> usize {
        self.length_bytes
    }

    /// What follows its first `bytes`, of which it has at least so many.
    pub(crate) fn without_first(&self, bytes: usize) -> Self {
        let bytes = bytes.min(self.length_bytes);
        // SAFETY: `bytes` was bounded just now: the sum stays within the memory, or at its end.
        Self { base: unsafe { self.base.add(bytes) }, length_bytes: self.length_bytes - bytes }
    }
}

/// Split the span that holds byte `length_bytes` of the memory from `first` on, so that the spans before it hold exactly as much; returns
/// how many these are.
pub(crate) fn cut_spans(spans: &mut Vec<Span>, first: usize, length_bytes: u64) -> usize {
    let mut left = usize::try_from(length_bytes).unwrap_or(usize::MAX);
    for index in first..spans.len() {
        let span = spans[index];
        if left == 0 {
            return index - first;
        }
        if span.length_bytes > left {
            spans[index].length_bytes = left;
            spans.insert(index + 1, span.without_first(left));
            return index + 1 - first;
        }
        left -= span.length_bytes;
    }
    spans.len() - first
}

/// Memory that requests name.
pub trait Memory {
    /// Append to `spans` the pieces, one or more, that `segment` consists of. `access` is the `ACCESS_*` bits needed. Each piece is
    /// a multiple of 512 bytes long and stays mapped while nobody changes the memory.
    ///
    /// # Errors
    /// Something of the segment is no memory, or may not be accessed so; `spans` may hold pieces of it.
    fn find(&self, segment: Segment, access: u16, spans: &mut Vec<Span>) -> Result<(), Status>;
}

/// Most spans of one request: an indirect table of segments of which some cross from one region of guest memory into the next; and what
/// the kernel takes at once.
pub const MAX_SPANS: usize = 1024;

#[derive(Clone, Copy, Debug)]
struct View {
    base: NonNull<u8>,
    length_sectors: u64,
    access: u16,
}

const NO_VIEW: View = View { base: NonNull::dangling(), length_sectors: 0, access: 0 };

/// The memory a client has handed over, by region id.
#[derive(Debug)]
pub struct RegionTable {
    views: Vec<View>,
    regions: Vec<Option<Arc<Region>>>,
}

// SAFETY: the pointers lead into regions that `regions` keeps mapped, and which any thread may access.
unsafe impl Send for RegionTable {}

impl Default for RegionTable {
    fn default() -> Self {
        Self::new()
    }
}

impl RegionTable {
    /// A table without memory: every segment is refused.
    #[must_use]
    pub fn new() -> Self {
        let count = usize::from(MAX_REGIONS);
        Self { views: vec![NO_VIEW; count], regions: vec![None; count] }
    }

    /// Give `length_bytes` at `offset_bytes` of `memory` the id `region`. `access` is `ACCESS_*` bits.
    ///
    /// # Errors
    /// The id is out of range or taken, or the range is outside the memory.
    pub fn insert(
        &mut self,
        region: u16,
        memory: &Arc<Region>,
        offset_bytes: u64,
        length_bytes: u64,
        access: u16,
    ) -> Result<(), Status> {
        let index = usize::from(region);
        let base = memory.pointer("registered memory", offset_bytes, length_bytes).map_err(|_| Status::BadMemory)?;
        match self.regions.get_mut(index) {
            Some(slot @ None) => *slot = Some(Arc::clone(memory)),
            _ => return Err(Status::BadMemory),
        }
        self.views[index] = View { base, length_sectors: length_bytes >> SECTOR_SHIFT, access };
        Ok(())
    }

    /// Forget a region. The caller has seen that no request in flight names it.
    ///
    /// # Errors
    /// There is none of that id.
    pub fn remove(&mut self, region: u16) -> Result<(), Status> {
        let index = usize::from(region);
        self.regions.get_mut(index).and_then(Option::take).ok_or(Status::BadMemory)?;
        self.views[index] = NO_VIEW;
        Ok(())
    }
}

impl Memory for RegionTable {
    #[inline(always)]
    fn find(&self, segment: Segment, access: u16, spans: &mut Vec<Span>) -> Result<(), Status> {
        let Some(view) = self.views.get(usize::from(segment.region)) else {
            return Err(Status::BadMemory);
        };
        let (offset, length) = (u64::from(segment.offset_sectors), u64::from(segment.length_sectors));
        if length == 0 {
            return Err(Status::NoSegments);
        }
        if view.access & access != access || offset + length > view.length_sectors {
            return Err(Status::BadMemory);
        }
        let bytes = usize::from(segment.length_sectors) << SECTOR_SHIFT;
        let Ok(skip) = usize::try_from(offset << SECTOR_SHIFT) else {
            return Err(Status::BadMemory);
        };
        // SAFETY: offset and length lie within the view, and the view within its region.
        spans.push(Span { base: unsafe { view.base.add(skip) }, length_bytes: bytes });
        Ok(())
    }
}

/// What of a disk decides whether a request is valid, kept beside the queue.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// Size in sectors.
    pub sector_count: u64,
    /// Sectors of a logical block minus one.
    pub block_mask: u64,
    /// Most sectors of one transfer.
    pub max_transfer_sectors: u64,
    /// Most sectors of one discard or write-zeroes.
    pub max_range_sectors: u64,
    /// `CAPABILITY_*` bits.
    pub capabilities: u32,
}

impl Facts {
    /// The facts of a disk of this description.
    #[must_use]
    pub fn new(info: &BlockInfo) -> Self {
        Self {
            sector_count: info.sector_count,
            block_mask: u64::from(info.block_bytes) / SECTOR_BYTES - 1,
            max_transfer_sectors: u64::from(info.max_transfer_bytes) >> SECTOR_SHIFT,
            max_range_sectors: u64::from(info.max_range_sectors),
            capabilities: info.capabilities,
        }
    }

    /// May blocks be transferred, discarded or zeroed from `sector` on?
    ///
    /// # Errors
    /// They are no whole blocks, or lie beyond the end of the disk.
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
    ///
    /// # Errors
    /// What to answer if not.
    #[inline(always)]
    pub const fn needs(&self, capabilities: u32) -> Result<(), Status> {
        if self.capabilities & capabilities == capabilities {
            return Ok(());
        }
        Err(if capabilities & !self.capabilities & CAPABILITY_WRITE != 0 { Status::ReadOnly } else { Status::Unsupported })
    }
}

/// Check `message` and fill `spans` with its memory.
///
/// # Errors
/// The status to answer; the tag is in bytes 4..6 whatever the rest holds ([`tag_of`]).
#[inline(always)]
pub fn parse<M: Memory>(message: &Message, facts: &Facts, memory: &M, spans: &mut Vec<Span>) -> Result<Request, Status> {
    let head = message.word(0);
    let [operation, segments, flags_low, flags_high, tag_low, tag_high, reserved_low, reserved_high] = head.to_le_bytes();
    let flags = u16::from_le_bytes([flags_low, flags_high]);
    let tag = u16::from_le_bytes([tag_low, tag_high]);
    spans.clear();
    let Some(operation) = Operation::from_wire(operation) else {
        return Err(Status::Unsupported);
    };
    if reserved_low | reserved_high != 0 {
        return Err(Status::Invalid);
    }
    let (fua, unmap) = (flags & FLAG_FUA != 0, flags & FLAG_UNMAP != 0);
    let mut request = Request { operation, tag, fua, unmap, sector: message.word(1), length_sectors: 0, aux: aux_of(message) };
    match operation {
        Operation::Read | Operation::Write => {
            let fua_ok = !fua || (operation == Operation::Write && facts.capabilities & CAPABILITY_FUA != 0);
            if flags & !FLAG_FUA != 0 || !fua_ok {
                return Err(Status::Invalid);
            }
            let access = access_needed(operation, facts)?;
            request.length_sectors = match segments {
                1 => gather_one(Segment::from_word(message.word(2)), memory, access, spans)?,
                _ => gather_several(message, segments, memory, access, spans)?,
            };
            check_length(&request, facts)?;
        }
        _ => parse_rare(message, segments, flags, facts, memory, spans, &mut request)?,
    }
    Ok(request)
}

/// As [`parse`], of a request that came beside others in a message.
///
/// # Errors
/// The status to answer.
#[inline(always)]
pub fn check_short<M: Memory>(short: &Short, facts: &Facts, memory: &M, spans: &mut Vec<Span>) -> Result<Request, Status> {
    let (operation, tag, sector) = (short.operation(), short.tag, short.sector);
    let mut request = Request { operation, tag, fua: false, unmap: false, sector, length_sectors: 0, aux: 0 };
    spans.clear();
    let access = access_needed(operation, facts)?;
    request.length_sectors = gather_one(Segment::from_word(short.segment), memory, access, spans)?;
    check_length(&request, facts)?;
    Ok(request)
}

/// What every read and write needs: the disk's capability, and this access to memory.
#[inline(always)]
fn access_needed(operation: Operation, facts: &Facts) -> Result<u16, Status> {
    let (need, access) = match operation {
        Operation::Read => (0, ACCESS_WRITE),
        _ => (CAPABILITY_WRITE, ACCESS_READ),
    };
    facts.needs(need).map(|()| access)
}

/// May a read or write be so long, and does it end on the disk?
#[inline(always)]
fn check_length(request: &Request, facts: &Facts) -> Result<(), Status> {
    if request.length_sectors > facts.max_transfer_sectors {
        return Err(Status::TooLong);
    }
    facts.range(request.sector, request.length_sectors)
}

#[cold]
fn parse_rare<M: Memory>(
    message: &Message,
    segments: u8,
    flags: u16,
    facts: &Facts,
    memory: &M,
    spans: &mut Vec<Span>,
    request: &mut Request,
) -> Result<(), Status> {
    let flags_allowed = if request.operation == Operation::WriteZeroes { FLAG_FUA | FLAG_UNMAP } else { 0 };
    let words_used = match request.operation {
        Operation::Discard | Operation::WriteZeroes | Operation::GetInfo => 3,
        _ => 1,
    };
    let sector_set = request.operation == Operation::GetInfo && request.sector != 0;
    let unused_set = sector_set || (words_used..7).any(|index| message.word(index) != 0);
    let fua_refused = request.fua && facts.capabilities & CAPABILITY_FUA == 0;
    let segments_expected = u8::from(request.operation == Operation::GetInfo);
    let aux_set = request.operation != Operation::AckEvent && request.aux != 0;
    if flags & !flags_allowed != 0 || fua_refused || unused_set || segments != segments_expected || aux_set {
        return Err(Status::Invalid);
    }
    match request.operation {
        Operation::Discard | Operation::WriteZeroes => {
            let wanted = if request.operation == Operation::Discard { CAPABILITY_DISCARD } else { CAPABILITY_WRITE_ZEROES };
            facts.needs(CAPABILITY_WRITE | wanted)?;
            request.length_sectors = message.word(2);
            if request.length_sectors == 0 {
                return Err(Status::NoSegments);
            }
            if request.length_sectors > facts.max_range_sectors {
                return Err(Status::TooLong);
            }
            facts.range(request.sector, request.length_sectors)
        }
        Operation::Flush => facts.needs(CAPABILITY_FLUSH),
        Operation::GetInfo => memory.find(Segment::from_word(message.word(2)), ACCESS_WRITE, spans),
        _ => Ok(()),
    }
}

/// Turn a segment into spans; returns the sectors it holds.
#[inline(always)]
fn gather_one<M: Memory>(segment: Segment, memory: &M, access: u16, spans: &mut Vec<Span>) -> Result<u64, Status> {
    memory.find(segment, access, spans)?;
    Ok(u64::from(segment.length_sectors))
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
        memory.find(segment, access, spans)?;
        total_sectors += u64::from(segment.length_sectors);
        Ok(())
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
            memory.find(Segment::from_word(message.word(2)), ACCESS_READ, spans)?;
            if !copy_out(spans, bytes) {
                return Err(Status::BadMemory);
            }
            spans.clear();
            for entry in bytes.as_chunks::<8>().0 {
                add(Segment::from_word(u64::from_le_bytes(*entry)), spans)?;
            }
        }
        count => {
            let count = usize::from(count);
            if count > MAX_INLINE_SEGMENTS {
                return Err(Status::Invalid);
            }
            for index in 2..2 + count {
                add(Segment::from_word(message.word(index)), spans)?;
            }
        }
    }
    Ok(total_sectors)
}

/// Fill `bytes` from the beginning of `spans`, which are still mapped; `false` if they are shorter. Each byte is read
/// once: what the client changes after that is not seen.
pub(crate) fn copy_out(spans: &[Span], bytes: &mut [u8]) -> bool {
    let mut rest = &mut *bytes;
    for span in spans {
        let (now, later) = rest.split_at_mut(span.length_bytes.min(rest.len()));
        // SAFETY: the span holds at least that many bytes and stays mapped during this call; the destination is ours.
        unsafe { std::ptr::copy_nonoverlapping(span.base.as_ptr(), now.as_mut_ptr(), now.len()) };
        rest = later;
    }
    let is_full = rest.is_empty();
    // Without this the compiler may read an entry again from where it was copied from.
    std::hint::black_box(bytes);
    is_full
}

/// Put `bytes` at the beginning of `spans`, which are still mapped; `false`, and nothing is written, if they are shorter.
pub(crate) fn copy_in(bytes: &[u8], spans: &[Span]) -> bool {
    if spans.iter().map(Span::length_bytes).sum::<usize>() < bytes.len() {
        return false;
    }
    let mut rest = bytes;
    for span in spans {
        let (now, later) = rest.split_at(span.length_bytes.min(rest.len()));
        // SAFETY: the span holds at least that many bytes and stays mapped during this call; the client may look meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), span.base.as_ptr(), now.len()) };
        rest = later;
    }
    true
}

/// The tag of a request message, valid or not.
#[must_use]
#[inline(always)]
pub fn tag_of(message: &Message) -> u16 {
    let [.., low, high, _, _] = message.word(0).to_le_bytes();
    u16::from_le_bytes([low, high])
}

#[inline(always)]
fn aux_of(message: &Message) -> u32 {
    let [a, b, c, d, ..] = message.word(7).to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}
