//! Packed messages: up to three reads and writes of one segment each, without flags (docs/protocol.md section 5.9). A third of the
//! lines moves between the CPUs.

use fipsee_ring::Message;

use crate::wire::{Operation, Segment};

/// The first byte of a packed message, where others have their operation.
pub const PACKED: u8 = 8;
/// Most requests in one message.
pub const MAX_PACKED_REQUESTS: usize = 3;

/// What a packed message holds two or three of: a read or write of one segment, without flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short {
    /// First sector.
    pub sector: u64,
    /// The segment as a word of the wire: written and read again as a whole, it never waits in a store buffer for its parts.
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

    /// What it asks for.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn request(is_write: bool, tag: u16) -> Short {
        let segment = Segment { offset_sectors: 0xdead_0000 | u32::from(tag), length_sectors: tag ^ 0xffff, region: 63 };
        Short::new(is_write, tag, (1 << 55) - u64::from(tag), segment)
    }

    #[test]
    fn what_was_packed_comes_out_as_it_was() {
        for writes in 0..8 {
            let [a, b, c] = [(0, 0xffff), (1, 1), (2, 0x8001)].map(|(bit, tag)| request(writes >> bit & 1 != 0, tag));
            let (two, three) = (pack([&a, &b]), pack([&a, &b, &c]));
            assert!(is_packed(&two) && is_packed(&three) && !is_packed(&Message::ZERO));
            assert_eq!(unpack(&two).collect::<Vec<_>>(), [a, b]);
            assert_eq!(unpack(&three).collect::<Vec<_>>(), [a, b, c]);
        }
    }

    #[test]
    fn of_a_malformed_message_nothing_is_taken() {
        let good = [request(false, 1), request(true, 2), request(false, 3)];
        let two = pack([&good[0], &good[1]]);
        let three = pack(good.each_ref());
        for (what, message, word, flip) in [
            ("no request", two, 0, 2 << 8),
            ("one request", two, 0, 3 << 8),
            ("four requests", three, 0, 7 << 8),
            ("a write beyond the count", two, 0, 4 << 16),
            ("a write beyond any count", three, 0, 8 << 16),
            ("reserved byte", three, 0, 1 << 24),
            ("reserved end", three, 7, 1 << 16),
            ("a third sector of two", two, 5, 1),
            ("a third segment of two", two, 6, 1),
            ("a third tag of two", two, 7, 1),
        ] {
            let mut message = message;
            message.set_word(word, message.word(word) ^ flip);
            assert_eq!(unpack(&message).count(), 0, "{what}");
        }
    }
}
