//! The parser of requests as it was before fields were checked in place (docs/decisions/0018-packed-requests.md): it made a
//! message of its own of each packed request, and parsed that. It is changed in nothing that a request could notice.

use fipsee_block::packed::PACKED;
use fipsee_block::request::{Request, RequestLimits};
use fipsee_block::wire::{
    CAPABILITY_DISCARD, CAPABILITY_FLUSH, CAPABILITY_FUA, CAPABILITY_WRITE, CAPABILITY_WRITE_ZEROES, FLAG_FUA, FLAG_UNMAP,
    MAX_INDIRECT_ENTRIES, MAX_INLINE_SEGMENTS, Operation, SEGMENTS_INDIRECT, Segment, Status,
};
use fipsee_interop::requests::Memory;
use fipsee_ring::Message;
use fipsee_ring::control::{ACCESS_READ, ACCESS_WRITE};
use fipsee_ring::memory::{Memory as _, Span};

use super::Outcome;

/// What the server of a queue makes of a message.
pub(super) fn outcomes(message: &Message, limits: &RequestLimits, memory: &Memory) -> Vec<Outcome> {
    let one = |message: &Message| {
        let mut spans = Vec::new();
        Outcome::new(tag_of(message), parse(message, limits, memory, &mut spans), &spans)
    };
    if message.to_bytes()[0] != PACKED {
        return vec![one(message)];
    }
    let all: Vec<Outcome> = unpack(message).map(|request| one(&request)).collect();
    if all.is_empty() { vec![Outcome::new(tag_of(message), Err(Status::Invalid), &[])] } else { all }
}

fn parse(message: &Message, limits: &RequestLimits, memory: &Memory, spans: &mut Vec<Span>) -> Result<Request, Status> {
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
            let (need, access) = match operation {
                Operation::Read => (0, ACCESS_WRITE),
                _ => (CAPABILITY_WRITE, ACCESS_READ),
            };
            let fua_ok = !fua || (operation == Operation::Write && limits.capabilities & CAPABILITY_FUA != 0);
            if flags & !FLAG_FUA != 0 || !fua_ok {
                return Err(Status::Invalid);
            }
            limits.needs(need)?;
            request.length_sectors = gather(message, segments, memory, access, spans)?;
            if request.length_sectors > limits.max_transfer_sectors {
                return Err(Status::TooLong);
            }
            limits.range(request.sector, request.length_sectors)?;
        }
        _ => parse_rare(message, segments, flags, limits, memory, spans, &mut request)?,
    }
    Ok(request)
}

fn parse_rare(
    message: &Message,
    segments: u8,
    flags: u16,
    limits: &RequestLimits,
    memory: &Memory,
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
            request.length_sectors = message.word(2);
            if request.length_sectors == 0 {
                return Err(Status::NoSegments);
            }
            if request.length_sectors > limits.max_range_sectors {
                return Err(Status::TooLong);
            }
            limits.range(request.sector, request.length_sectors)
        }
        Operation::Flush => limits.needs(CAPABILITY_FLUSH),
        Operation::GetInfo => Ok(memory.table.find(Segment::from_word(message.word(2)).extent(), ACCESS_WRITE, spans)?),
        _ => Ok(()),
    }
}

/// Turn the segments, inline or indirect, into spans; returns the sectors they hold together.
fn gather(message: &Message, segments: u8, memory: &Memory, access: u16, spans: &mut Vec<Span>) -> Result<u64, Status> {
    if segments == 1 {
        let segment = Segment::from_word(message.word(2));
        memory.table.find(segment.extent(), access, spans)?;
        return Ok(u64::from(segment.length_sectors));
    }
    gather_several(message, segments, memory, access, spans)
}

fn gather_several(message: &Message, segments: u8, memory: &Memory, access: u16, spans: &mut Vec<Span>) -> Result<u64, Status> {
    let mut total_sectors = 0;
    let mut add = |segment: Segment, spans: &mut Vec<Span>| {
        memory.table.find(segment.extent(), access, spans)?;
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
            memory.table.find(Segment::from_word(message.word(2)).extent(), ACCESS_READ, spans)?;
            if !copy_out(memory, spans, bytes) {
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

/// Fill `bytes` from the beginning of `spans`; `false` if they are shorter.
fn copy_out(memory: &Memory, spans: &[Span], mut bytes: &mut [u8]) -> bool {
    for span in spans {
        let (now, later) = bytes.split_at_mut(span.length_bytes().min(bytes.len()));
        let offset = span.base().addr().get() - memory.region.base().addr().get();
        memory.region.read(offset as u64, now).expect("a span is in the memory");
        bytes = later;
    }
    bytes.is_empty()
}

/// The tag of a request message, valid or not.
fn tag_of(message: &Message) -> u16 {
    let [.., low, high, _, _] = message.word(0).to_le_bytes();
    u16::from_le_bytes([low, high])
}

fn aux_of(message: &Message) -> u32 {
    let [a, b, c, d, ..] = message.word(7).to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}
/// Where a request's first word holds the tag.
const TAG: u64 = 0xffff_0000_0000;

/// The requests of a packed message, each as a message of its own, still to be parsed; none if the message is malformed.
fn unpack(message: &Message) -> impl Iterator<Item = Message> + use<> {
    let [_, count, writes, reserved, ..] = message.word(0).to_le_bytes();
    let third = message.word(7) & 0xffff_ffff;
    let fits = match count {
        2 => third == 0 && message.word(5) | message.word(6) == 0,
        3 => third >> 16 == 0,
        _ => false,
    };
    let is_sound = fits && reserved == 0 && writes >> count == 0;
    let count = if is_sound { usize::from(count) } else { 0 };
    let message = *message;
    (0..count).map(move |index| {
        let operation = if writes >> index & 1 == 0 { Operation::Read } else { Operation::Write };
        let tag = if index < 2 { message.word(0) >> (16 * index) & TAG } else { third << 32 };
        let head = u64::from(operation.to_wire()) | 1 << 8 | tag;
        Message::from_words([head, message.word(1 + 2 * index), message.word(2 + 2 * index), 0, 0, 0, 0, 0])
    })
}
