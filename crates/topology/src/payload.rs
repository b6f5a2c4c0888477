//! The content of messages that are measured: each differs from every other in each of its words, so that a lost, doubled, stale or torn
//! message shows, and checking costs a few cycles.

use fipsee_ring::Message;

/// Word i of message s is KEYS[i] ^ s. Digits of pi: no pattern that an error could make by itself.
const KEYS: [u64; 8] = [
    0x243f_6a88_85a3_08d3,
    0x1319_8a2e_0370_7344,
    0xa409_3822_299f_31d0,
    0x082e_fa98_ec4e_6c89,
    0x4528_21e6_38d0_1377,
    0xbe54_66cf_34e9_0c6c,
    0xc0ac_29b7_c97c_50dd,
    0x3f84_d5b5_b547_0917,
];

/// The message that ends the other side.
pub const STOP: Message = Message::from_words([0x5354_4f50_5354_4f50; 8]);

/// Message `sequence`.
#[inline(always)]
#[must_use]
pub fn message(sequence: u64) -> Message {
    changed(KEYS, sequence)
}

/// The answer to a message: every bit inverted, so that a message cannot be taken for its answer.
#[inline(always)]
#[must_use]
pub fn answer_to(message: &Message) -> Message {
    changed(*message.words(), u64::MAX)
}

/// A loop, because the compiler does not inline `array::map`, and a call costs as much as the message.
#[inline(always)]
fn changed(mut words: [u64; 8], mask: u64) -> Message {
    for word in &mut words {
        *word ^= mask;
    }
    Message::from_words(words)
}

/// Is this message `sequence`, in all 60 bytes?
#[inline(always)]
#[must_use]
pub fn is_message(message: &Message, sequence: u64) -> bool {
    differences(message, sequence) == 0
}

/// Is this the answer to message `sequence`, in all 60 bytes?
#[inline(always)]
#[must_use]
pub fn is_answer(answer: &Message, sequence: u64) -> bool {
    differences(answer, !sequence) == 0
}

/// Is this [`STOP`], ignoring the ring's last four bytes?
#[must_use]
pub fn is_stop(message: &Message) -> bool {
    message.words()[..7] == STOP.words()[..7]
}

/// In pairs, so that the compiler compares two words at a time.
#[inline(always)]
fn differences(message: &Message, mask: u64) -> u64 {
    let mut found = [0; 2];
    for (words, keys) in message.words().as_chunks::<2>().0.iter().zip(KEYS.as_chunks::<2>().0).take(3) {
        found[0] |= words[0] ^ keys[0] ^ mask;
        found[1] |= words[1] ^ keys[1] ^ mask;
    }
    found[0] |= message.word(6) ^ KEYS[6] ^ mask;
    found[1] |= (message.word(7) ^ KEYS[7] ^ mask) & 0xffff_ffff; // The upper half is the ring's.
    found[0] | found[1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wrong_bit_in_any_of_60_bytes_is_noticed() {
        let (sent, answer) = (message(7), answer_to(&message(7)));
        assert!(is_message(&sent, 7) && is_answer(&answer, 7));
        for byte in 0..60 {
            let spoil = |message: &Message| {
                let mut bytes = message.to_bytes();
                bytes[byte] ^= 0x10;
                Message::from_bytes(&bytes)
            };
            assert!(!is_message(&spoil(&sent), 7) && !is_answer(&spoil(&answer), 7), "byte {byte}");
        }
    }

    #[test]
    fn a_message_is_no_answer_no_stop_and_no_other_message() {
        assert!(!is_answer(&message(7), 7) && !is_message(&answer_to(&message(7)), 7));
        assert!(!is_message(&message(6), 7) && !is_message(&Message::ZERO, 7));
        assert!(is_stop(&STOP) && !is_stop(&message(7)) && !is_stop(&answer_to(&message(7))));
    }

    #[test]
    fn the_last_four_bytes_belong_to_the_ring() {
        let mut stamped = message(9);
        stamped.set_word(7, stamped.word(7) & 0xffff_ffff | 5 << 32);
        assert!(is_message(&stamped, 9));
    }
}
