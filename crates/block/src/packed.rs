//! Packed messages: up to three reads and writes of one segment each, without flags (docs/protocol.md section 5.9). A third of the
//! lines moves between the CPUs.

use fipsee_ring::Message;

use crate::wire::{Operation, request_head};

/// The first byte of a packed message, where others have their operation.
pub const PACKED: u8 = 8;
/// Most requests in one message.
pub const MAX_PACKED_REQUESTS: usize = 3;

/// Is it a packed message, well-formed or not?
#[must_use]
#[inline(always)]
pub const fn is_packed(message: &Message) -> bool {
    message.word(0).to_le_bytes()[0] == PACKED
}

/// `requests`, two or three of them, as one message; `None` if that cannot hold one of them.
#[must_use]
#[inline(always)]
pub fn pack(requests: &[&Message]) -> Option<Message> {
    debug_assert!((2..=MAX_PACKED_REQUESTS).contains(&requests.len()), "{} requests", requests.len());
    let mut packed = Message::ZERO;
    let mut head = u64::from(PACKED) | (requests.len() as u64) << 8;
    for (index, request) in requests.iter().enumerate() {
        // Operation, segment count, flags, tag, in bytes 0, 1, 2..4, 4..6 (section 5.1).
        let word = request.word(0);
        let is_write = word == request_head(Operation::Write, 1, 0, 0) | word & TAG;
        if !is_write && word != request_head(Operation::Read, 1, 0, 0) | word & TAG {
            return None;
        }
        head |= u64::from(is_write) << (16 + index);
        let tag = (word & TAG) >> 32;
        match index {
            0 | 1 => head |= tag << (32 + 16 * index),
            _ => packed.set_word(7, tag),
        }
        packed.set_word(1 + 2 * index, request.word(1));
        packed.set_word(2 + 2 * index, request.word(2));
    }
    packed.set_word(0, head);
    Some(packed)
}

/// Where a request's first word holds the tag.
const TAG: u64 = 0xffff_0000_0000;

/// The requests of a packed message, each as a message of its own, still to be parsed; none if the message is malformed.
#[inline(always)]
pub fn unpack(message: &Message) -> impl Iterator<Item = Message> + use<> {
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
        let head = request_head(operation, 1, 0, 0) | tag;
        Message::from_words([head, message.word(1 + 2 * index), message.word(2 + 2 * index), 0, 0, 0, 0, 0])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{self, Segment};

    fn request(operation: Operation, tag: u16) -> Message {
        let segment = Segment { offset_sectors: 0xdead_0000 | u32::from(tag), length_sectors: tag ^ 0xffff, region: 63 };
        wire::request_one_segment(operation, 0, tag, (1 << 55) - u64::from(tag), segment)
    }

    #[test]
    fn what_was_packed_comes_out_as_it_was() {
        use Operation::{Read, Write};
        for operations in
            [vec![Read, Write], vec![Write, Read], vec![Write, Write, Write], vec![Read, Read, Write], vec![Write, Read, Read]]
        {
            let requests: Vec<Message> =
                operations.iter().zip([0xffff, 1, 0x8001]).map(|(operation, tag)| request(*operation, tag)).collect();
            let packed = pack(&requests.iter().collect::<Vec<_>>()).expect("short requests");
            assert!(is_packed(&packed) && !requests.iter().any(is_packed));
            assert_eq!(unpack(&packed).collect::<Vec<_>>(), requests);
        }
    }

    #[test]
    fn only_short_requests_are_packed() {
        let segment = Segment { offset_sectors: 0, length_sectors: 8, region: 0 };
        let others = [
            wire::request_one_segment(Operation::Write, wire::FLAG_FUA, 1, 0, segment),
            wire::request_inline(Operation::Read, 0, 1, 0, &[segment, segment]),
            wire::request_indirect(Operation::Read, 0, 1, 0, segment, 3),
            wire::request_flush(1),
            wire::request_one_segment(Operation::GetInfo, 0, 1, 0, segment),
            wire::request_range(Operation::Discard, 0, 1, 0, 8),
        ];
        let good = request(Operation::Read, 2);
        for other in &others {
            assert_eq!(pack(&[other, &good]), None, "{other:?}");
            assert_eq!(pack(&[&good, &good, other]), None, "{other:?}");
        }
    }

    #[test]
    fn of_a_malformed_message_nothing_is_taken() {
        let good = [request(Operation::Read, 1), request(Operation::Write, 2), request(Operation::Read, 3)];
        let two = pack(&[&good[0], &good[1]]).expect("short requests");
        let three = pack(&[&good[0], &good[1], &good[2]]).expect("short requests");
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
