//! Packed messages: up to three reads and writes of one segment each, without flags (docs/protocol.md section 5.9). One third as
//! many cache lines move between the CPUs.

use fipsee_ring::Message;

use crate::wire::{Operation, Segment};

/// The first byte of a packed message, in the place of the operation.
pub const PACKED: u8 = 8;
/// Most requests in one message.
pub const MAX_PACKED_REQUESTS: usize = 3;

/// An entry of a packed message, which has two or three: a read or write of one segment, without flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short {
    /// First sector.
    pub sector: u64,
    /// The segment as a word of the wire: written and read as a whole, so that store forwarding works.
    pub segment: u64,
    /// The client's name for it.
    pub tag: u16,
    /// Memory to disk, or disk to memory?
    pub is_write: bool,
}

impl Short {
    /// A write, if `is_write`, or else a read.
    #[must_use]
    #[inline(always)]
    pub fn new(is_write: bool, tag: u16, sector: u64, segment: Segment) -> Self {
        Self { sector, segment: segment.to_word(), tag, is_write }
    }

    /// Its operation.
    #[must_use]
    #[inline(always)]
    pub const fn operation(&self) -> Operation {
        if self.is_write { Operation::Write } else { Operation::Read }
    }
}

/// Is it a packed message, well-formed or not?
#[must_use]
#[inline(always)]
pub const fn is_packed(message: &Message) -> bool {
    message.word(0).to_le_bytes()[0] == PACKED
}

/// Two or three requests as one message.
#[must_use]
#[inline(always)]
pub fn pack<const COUNT: usize>(requests: [&Short; COUNT]) -> Message {
    const { assert!(2 <= COUNT && COUNT <= MAX_PACKED_REQUESTS) };
    let mut words = [0; 8];
    words[0] = u64::from(PACKED) | (COUNT as u64) << 8;
    for (index, request) in requests.into_iter().enumerate() {
        words[0] |= u64::from(request.is_write) << (16 + index);
        match index {
            0 | 1 => words[0] |= u64::from(request.tag) << (32 + 16 * index),
            _ => words[7] = request.tag.into(),
        }
        words[1 + 2 * index] = request.sector;
        words[2 + 2 * index] = request.segment;
    }
    Message::from_words(words)
}

/// The requests of a packed message, still to be checked ([`check_short`](crate::request::check_short)); none if the message is
/// malformed.
#[inline(always)]
pub fn unpack(message: &Message) -> impl Iterator<Item = Short> + use<'_> {
    let [_, count, writes, reserved, tags @ ..] = message.word(0).to_le_bytes();
    let [low, high, ends @ .., _, _, _, _] = message.word(7).to_le_bytes();
    let fits = match count {
        2 => [low, high] == [0, 0] && message.word(5) | message.word(6) == 0,
        3 => true,
        _ => false,
    };
    let is_sound = fits && ends == [0, 0] && reserved == 0 && writes >> count == 0;
    let count = if is_sound { usize::from(count) } else { 0 };
    let tags = u64::from(u32::from_le_bytes(tags)) | u64::from(u16::from_le_bytes([low, high])) << 32;
    (0..count).map(move |index| {
        let [low, high, ..] = (tags >> (16 * index)).to_le_bytes();
        Short {
            sector: message.word(1 + 2 * index),
            segment: message.word(2 + 2 * index),
            tag: u16::from_le_bytes([low, high]),
            is_write: writes >> index & 1 != 0,
        }
    })
}
