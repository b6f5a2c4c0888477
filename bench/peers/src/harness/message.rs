//! The messages: 60 bytes, all of which depend on the sequence number, made and checked in a few cycles.

use fipsee_ring::Message;

/// One word of each message before the sequence number is mixed in: no two alike, so that words in the wrong place show.
const PATTERN: [u64; 8] = [
    0x243f_6a88_85a3_08d3,
    0x1319_8a2e_0370_7344,
    0xa409_3822_299f_31d0,
    0x082e_fa98_ec4e_6c89,
    0x4528_21e6_38d0_1377,
    0xbe54_66cf_34e9_0c6c,
    0xc0ac_29b7_c97c_50dd,
    0x0000_0000_b5b5_ab16,
];
/// The bits of each word that are payload: 60 bytes.
const PAYLOAD: [u64; 8] = [u64::MAX, u64::MAX, u64::MAX, u64::MAX, u64::MAX, u64::MAX, u64::MAX, 0xffff_ffff];

/// Message `sequence`. It differs from that of every other sequence number in every word.
#[inline(always)]
#[must_use]
pub fn call(sequence: u64) -> Message {
    let mixed = mix(sequence);
    Message::from_words(std::array::from_fn(|index| PATTERN[index] ^ (mixed & PAYLOAD[index])))
}

/// The answer to `message`: every bit of the payload turned over, so that a call cannot be taken for its answer.
#[inline(always)]
#[must_use]
pub fn answer_to(message: &Message) -> Message {
    let words = message.words();
    Message::from_words(std::array::from_fn(|index| !words[index] & PAYLOAD[index]))
}

/// The multiplier is odd, so no two numbers are mixed to the same; its bits spread to all bytes.
#[inline(always)]
const fn mix(sequence: u64) -> u64 {
    sequence.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Checks that calls, or answers to them, arrive whole, once and in order.
#[derive(Debug)]
pub struct Checker {
    answers: bool,
    next: u64,
}

impl Checker {
    /// Of calls from number 0 on.
    #[must_use]
    pub const fn of_calls() -> Self {
        Self { answers: false, next: 0 }
    }

    /// Of the answers to them.
    #[must_use]
    pub const fn of_answers() -> Self {
        Self { answers: true, next: 0 }
    }

    /// Are these the next messages?
    ///
    /// # Errors
    /// Which is the first that is wrong, and where.
    #[inline(always)]
    pub fn check(&mut self, messages: &[Message]) -> Result<(), String> {
        let mut differences = [0_u64; 8];
        let turned = if self.answers { u64::MAX } else { 0 };
        for (sequence, message) in (self.next..).zip(messages) {
            let expected = mix(sequence) ^ turned;
            for index in 0..8 {
                differences[index] |= message.word(index) ^ PATTERN[index] ^ expected;
            }
        }
        let mut any = 0;
        for index in 0..8 {
            any |= differences[index] & PAYLOAD[index];
        }
        if any != 0 {
            return Err(self.verdict(messages));
        }
        self.next += messages.len() as u64;
        Ok(())
    }

    #[cold]
    fn verdict(&self, messages: &[Message]) -> String {
        let what = if self.answers { "answer" } else { "message" };
        for (sequence, message) in (self.next..).zip(messages) {
            let expected = if self.answers { answer_to(&call(sequence)) } else { call(sequence) };
            let (got, expected) = (message.to_bytes(), expected.to_bytes());
            if let Some(byte) = (0..60).find(|&byte| got[byte] != expected[byte]) {
                return format!("{what} {sequence} is wrong from byte {byte} on: {:02x}, not {:02x}", got[byte], expected[byte]);
            }
        }
        format!("a {what} from {} on is wrong", self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wrong_bit_in_any_of_60_bytes_is_found_on_both_ways() {
        for bit in 0..480 {
            let flip = |message: Message| {
                let mut bytes = message.to_bytes();
                bytes[bit / 8] ^= 1 << (bit % 8);
                Message::from_bytes(&bytes)
            };
            let error = Checker::of_calls().check(&[call(0), flip(call(1))]).expect_err("a wrong call");
            assert!(error.starts_with(&format!("message 1 is wrong from byte {} on", bit / 8)), "{error}");
            let error = Checker::of_answers().check(&[flip(answer_to(&call(0)))]).expect_err("a wrong answer");
            assert!(error.starts_with(&format!("answer 0 is wrong from byte {} on", bit / 8)), "{error}");
        }
    }

    #[test]
    fn what_the_ring_adds_behind_60_bytes_is_not_looked_at() {
        let mut stamped = call(0);
        stamped.set_word(7, stamped.word(7) | 7 << 32);
        assert_eq!(Checker::of_calls().check(&[stamped]), Ok(()));
        assert_eq!(answer_to(&stamped), answer_to(&call(0)));
    }

    #[test]
    fn messages_lost_doubled_or_unanswered_are_found() {
        for wrong in [[call(0), call(2)], [call(0), call(0)], [call(1), call(0)], [call(0), answer_to(&call(1))]] {
            assert!(Checker::of_calls().check(&wrong).is_err());
        }
        let mut checker = Checker::of_calls();
        assert_eq!(checker.check(&[call(0), call(1)]), Ok(()));
        assert_eq!(checker.check(&[call(2)]), Ok(()));
        assert!(checker.check(&[call(2)]).is_err());
    }
}
