//! Packed messages: up to three reads and writes of one segment each, without flags (docs/protocol.md section 5.9). One third as
//! many cache lines move between the CPUs.

use std::mem::offset_of;

use fipsee_ring::Message;

use crate::wire::{Operation, Segment, request_one_segment};

/// The first byte of a packed message, in the place of the operation.
pub const PACKED: u8 = 8;
pub const MAX_PACKED_REQUESTS: usize = 3;

fipsee_ring::wire_structures! {
    pub PackedRequest: 16 { 0 sector: u64, 8 segment: Segment }
    /// Two or three of them in a slot of the request ring; the stamp is the ring's.
    pub RawPacked: 64 {
        0 operation: u8, 1 count: u8, 2 writes: u8, 3 reserved: u8, 4 tags: [u16; 2],
        8 requests: [PackedRequest; MAX_PACKED_REQUESTS], 56 last_tag: u16, 58 reserved_end: u16, 60 stamp: u32,
    }
}

/// What a packed message holds two or three of: a read or write of one segment, without flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short {
    pub sector: u64,
    /// The segment as a word of the wire: written and read as a whole, so that store forwarding works.
    pub segment: u64,
    pub tag: u16,
    /// Memory to disk, or disk to memory?
    pub is_write: bool,
}

impl Short {
    /// A write, if `is_write`, or else a read.
    #[inline(always)]
    pub fn new(is_write: bool, tag: u16, sector: u64, segment: Segment) -> Self {
        Self { sector, segment: segment.to_word(), tag, is_write }
    }

    /// In a message of its own.
    #[inline(always)]
    pub const fn to_message(&self) -> Message {
        request_one_segment(self.operation(), 0, self.tag, self.sector, Segment::from_word(self.segment))
    }

    #[inline(always)]
    pub const fn operation(&self) -> Operation {
        if self.is_write { Operation::Write } else { Operation::Read }
    }
}

/// Is it a packed message, well-formed or not?
#[inline(always)]
pub const fn is_packed(message: &Message) -> bool {
    let [first, ..] = message.word_at(offset_of!(RawPacked, operation)).to_le_bytes();
    first == PACKED
}

#[inline(always)]
pub fn pack<const COUNT: usize>(requests: [&Short; COUNT]) -> Message {
    const { assert!(2 <= COUNT && COUNT <= MAX_PACKED_REQUESTS) };
    let third = requests.get(2);
    let request = |short: &&Short| PackedRequest { sector: short.sector, segment: Segment::from_word(short.segment) };
    let none = PackedRequest { sector: 0, segment: Segment::ZERO };
    let writes = requests.iter().enumerate().fold(0, |writes, (index, short)| writes | u8::from(short.is_write) << index);
    Message::from_words(zerocopy::transmute!(RawPacked {
        operation: PACKED,
        count: if third.is_some() { 3 } else { 2 },
        writes,
        reserved: 0,
        tags: [requests[0].tag, requests[1].tag],
        requests: [request(&requests[0]), request(&requests[1]), third.map_or(none, request)],
        last_tag: third.map_or(0, |short| short.tag),
        reserved_end: 0,
        stamp: 0,
    }))
}

/// The requests of a packed message, still to be checked ([`check_short`](crate::request::check_short)); none if the message is
/// malformed.
#[inline(always)]
pub fn unpack(message: &Message) -> impl Iterator<Item = Short> + use<'_> {
    let raw: &RawPacked = zerocopy::transmute_ref!(message.words());
    let RawPacked { count, writes, tags: [first, second], last_tag, .. } = *raw;
    let is_third_empty = last_tag == 0 && raw.requests[2].sector | raw.requests[2].segment.to_word() == 0;
    let fits = count == 3 || (count == 2 && is_third_empty);
    let is_sound = fits && raw.reserved_end == 0 && raw.reserved == 0 && writes >> count == 0;
    let count = if is_sound { usize::from(count) } else { 0 };
    // In a register: an array whose index is not known would be stored, and loaded again.
    let tags: u64 = zerocopy::transmute!([first, second, last_tag, 0]);
    (0..count).map(move |index| {
        let (PackedRequest { sector, segment }, [tag, ..]) = (raw.requests[index], halves(tags >> (16 * index)));
        Short { sector, segment: segment.to_word(), tag, is_write: writes >> index & 1 != 0 }
    })
}

const fn halves(word: u64) -> [u16; 4] {
    zerocopy::transmute!(word)
}
