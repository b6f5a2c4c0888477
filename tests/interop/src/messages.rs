//! Every kind of message of the block protocol: as Rust builds it, and its fields one by one.

use fipsee_block::wire::{
    self, CompletionEntry, CompletionHead, FLAG_FUA, FLAG_UNMAP, KIND_COMPLETIONS, KIND_DETACH, KIND_RESIZE, MAX_INLINE_SEGMENTS,
    MAX_PACKED, Operation, RawCompletion, SEGMENTS_INDIRECT, Segment, Status,
};
use fipsee_ring::Message;

use crate::ffi::FIELDS;
use crate::random::Random;

/// Read, write, get-info, flush, ack-event: words 2..7 are segments.
pub const REQUEST_SEGMENTS: u32 = 1;
/// Discard and write-zeroes: word 2 is a length.
pub const REQUEST_RANGE: u32 = 2;
/// Packed completions.
pub const COMPLETIONS: u32 = 3;
/// Resize and detach.
pub const EVENT: u32 = 4;

/// One message in both forms.
#[derive(Clone, Debug)]
pub struct Case {
    pub kind: u32,
    pub fields: [u32; FIELDS],
    pub message: Message,
}

fn halves(value: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
    [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])]
}

fn request(operation: Operation, segment_count: u8, flags: u16, tag: u16, sector: u64) -> [u32; FIELDS] {
    let mut fields = [0; FIELDS];
    let head = [u32::from(operation.to_wire()), segment_count.into(), flags.into(), tag.into()];
    fields[..4].copy_from_slice(&head);
    fields[5..7].copy_from_slice(&halves(sector));
    fields
}

fn put_segment(fields: &mut [u32; FIELDS], index: usize, segment: Segment) {
    let at = 8 + 3 * index;
    fields[at..at + 3].copy_from_slice(&[segment.offset_sectors, segment.length_sectors.into(), segment.region.into()]);
}

fn segment(random: &mut Random) -> Segment {
    Segment { offset_sectors: random.word(), length_sectors: random.half(), region: random.half() }
}

fn transfers(random: &mut Random, cases: &mut Vec<Case>) {
    for operation in [Operation::Read, Operation::Write] {
        for flags in [0, FLAG_FUA] {
            for count in 1..=MAX_INLINE_SEGMENTS {
                let (tag, sector) = (random.half(), random.number());
                let segments: Vec<Segment> = (0..count).map(|_| segment(random)).collect();
                let mut fields = request(operation, u8::try_from(count).expect("at most five"), flags, tag, sector);
                segments.iter().enumerate().for_each(|(index, one)| put_segment(&mut fields, index, *one));
                let message = wire::request_inline(operation, flags, tag, sector, &segments);
                cases.push(Case { kind: REQUEST_SEGMENTS, fields, message });
                if let [only] = segments[..] {
                    let message = wire::request_one_segment(operation, flags, tag, sector, only);
                    cases.push(Case { kind: REQUEST_SEGMENTS, fields, message });
                }
            }
            let (tag, sector, table, entries) = (random.half(), random.number(), segment(random), random.word());
            let mut fields = request(operation, SEGMENTS_INDIRECT, flags, tag, sector);
            put_segment(&mut fields, 0, table);
            fields[7] = entries;
            let message = wire::request_indirect(operation, flags, tag, sector, table, entries);
            cases.push(Case { kind: REQUEST_SEGMENTS, fields, message });
        }
    }
}

fn others(random: &mut Random, cases: &mut Vec<Case>) {
    for operation in [Operation::Discard, Operation::WriteZeroes] {
        for flags in 0..=FLAG_FUA | FLAG_UNMAP {
            let (tag, sector, length) = (random.half(), random.number(), random.number());
            let mut fields = request(operation, 0, flags, tag, sector);
            fields[8..10].copy_from_slice(&halves(length));
            let message = wire::request_range(operation, flags, tag, sector, length);
            cases.push(Case { kind: REQUEST_RANGE, fields, message });
        }
    }
    let (tag, place) = (random.half(), segment(random));
    let mut fields = request(Operation::GetInfo, 1, 0, tag, 0);
    put_segment(&mut fields, 0, place);
    let message = wire::request_one_segment(Operation::GetInfo, 0, tag, 0, place);
    cases.push(Case { kind: REQUEST_SEGMENTS, fields, message });
    let fields = request(Operation::Flush, 0, 0, tag, 0);
    cases.push(Case { kind: REQUEST_SEGMENTS, fields, message: wire::request_flush(tag) });
    for kind in [KIND_RESIZE, KIND_DETACH] {
        let mut fields = request(Operation::AckEvent, 0, 0, tag, 0);
        fields[7] = kind.into();
        cases.push(Case { kind: REQUEST_SEGMENTS, fields, message: wire::request_ack_event(tag, kind) });
    }
}

/// A message of `entries`, packed as a server packs them.
pub fn completions(entries: &[(u16, Status)]) -> Message {
    let head = CompletionHead { count: u8::try_from(entries.len()).unwrap_or(u8::MAX), kind: KIND_COMPLETIONS, reserved: 0 };
    let entries = std::array::from_fn(|index| {
        let (tag, status) = entries.get(index).map_or((0, 0), |(tag, status)| (*tag, status.to_wire()));
        CompletionEntry { tag, status }
    });
    Message::from_words(zerocopy::transmute!(RawCompletion { head, entries, stamp: 0 }))
}

fn answers(random: &mut Random, cases: &mut Vec<Case>) {
    for count in 1..=MAX_PACKED {
        let entries: Vec<(u16, Status)> = (0..count).map(|_| (random.half(), random.pick(&Status::ALL))).collect();
        let mut fields = [0; FIELDS];
        fields[0] = u32::try_from(count).expect("at most fourteen");
        fields[1] = KIND_COMPLETIONS.into();
        for (pair, (tag, status)) in fields[3..].as_chunks_mut::<2>().0.iter_mut().zip(&entries) {
            *pair = [(*tag).into(), status.to_wire().into()];
        }
        cases.push(Case { kind: COMPLETIONS, fields, message: completions(&entries) });
    }
    let sector_count = random.number();
    for (kind, value) in [(KIND_RESIZE, sector_count), (KIND_DETACH, 0)] {
        let message = wire::event(kind, value);
        let mut fields = [0; FIELDS];
        fields[..2].copy_from_slice(&[1, kind.into()]);
        fields[4..6].copy_from_slice(&halves(value));
        cases.push(Case { kind: EVENT, fields, message });
    }
}

/// Every kind, with values from `random`.
pub fn every_kind(random: &mut Random) -> Vec<Case> {
    let mut cases = Vec::new();
    transfers(random, &mut cases);
    others(random, &mut cases);
    answers(random, &mut cases);
    cases
}
