//! Frames in a message without their addresses, which are those of a frame before.

use fipsee_ring::Message;
use fipsee_ring::mapped::{in_quarters, in_words};

use super::{MAX_SMALL_BYTES, Small};

/// Bytes of destination and source.
pub const ADDRESSES_BYTES: usize = 12;
/// Most bytes of a frame that is in a message without its addresses.
pub const MAX_COMPRESSED_BYTES: usize = MAX_SMALL_BYTES + ADDRESSES_BYTES;

/// Destination and source of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    first: u64,
    last: u32,
}

impl Addresses {
    /// Of a frame with these first bytes, if it has both. As words of the frame: it may have just been stored by words.
    #[inline(always)]
    pub fn of(first: &[u8]) -> Option<Self> {
        let (first, rest) = first.split_first_chunk()?;
        Some(Self { first: u64::from_le_bytes(*first), last: u32::from_le_bytes(*rest.first_chunk()?) })
    }

    pub fn to_bytes(self) -> [u8; ADDRESSES_BYTES] {
        let mut bytes = [0; ADDRESSES_BYTES];
        bytes[..size_of::<u64>()].copy_from_slice(&self.first.to_le_bytes());
        bytes[size_of::<u64>()..].copy_from_slice(&self.last.to_le_bytes());
        bytes
    }

    /// The frame of a message that has it but for these addresses, in words: so many of its bytes as the message says, and others behind.
    ///
    /// A message has the words of the frame behind its addresses: nothing is moved within a word.
    #[inline(always)]
    pub fn expand(self, message: &Message) -> [u64; EXPANDED_WORDS] {
        let [first, w2, w3, w4, w5, w6, w7, last] = in_words(message);
        [self.first, self.second_word(first), w2, w3, w4, w5, w6, w7, last & !HIGH_HALF]
    }

    /// Of the frame whose message begins with this word.
    #[inline(always)]
    fn second_word(self, first_of_message: u64) -> u64 {
        u64::from(self.last) | (first_of_message & HIGH_HALF)
    }

    /// The first two words of the frame of a message that has it but for these addresses.
    #[inline(always)]
    pub fn first_words(self, message: &Message) -> [u64; 2] {
        [self.first, self.second_word(message.word(0))]
    }
}

const HIGH_HALF: u64 = 0xffff_ffff_0000_0000;

/// That hold the longest such frame.
pub const EXPANDED_WORDS: usize = 9;
const _: () = assert!(EXPANDED_WORDS == MAX_COMPRESSED_BYTES.div_ceil(size_of::<u64>()));

/// As bytes.
#[inline(always)]
pub fn expanded_bytes(words: &[u64; EXPANDED_WORDS]) -> [u8; EXPANDED_WORDS * size_of::<u64>()] {
    zerocopy::transmute!(words.map(u64::to_le))
}

/// Is a frame of this length sent in a message without its addresses, if they are known? A shorter one is in the message with them.
#[inline(always)]
pub const fn is_compressible(length_bytes: usize) -> bool {
    length_bytes > MAX_SMALL_BYTES && length_bytes <= MAX_COMPRESSED_BYTES
}

/// A message that has a frame but for its addresses. What does not fit is left out.
#[inline(always)]
pub fn compressed(operation: u8, tag: u16, frame: &[u8]) -> Message {
    let (words, rest) = frame.as_chunks::<8>();
    let last = rest.iter().rev().fold(0, |word, byte| word << u8::BITS | u64::from(*byte));
    let (w1, behind) = match *words {
        [_, w1, w2, w3, w4, w5, w6] => (w1, [w2, w3, w4, w5, w6, last.to_le_bytes(), [0; 8]]),
        [_, w1, w2, w3, w4, w5, w6, w7] => (w1, [w2, w3, w4, w5, w6, w7, last.to_le_bytes()]),
        _ => return compressed_short(operation, tag, frame),
    };
    let length_bytes = u8::try_from(frame.len()).unwrap_or(u8::MAX);
    let first = head(operation, length_bytes, tag) | (u64::from_le_bytes(w1) & HIGH_HALF);
    let [w2, w3, w4, w5, w6, w7, w8] = behind.map(u64::from_le_bytes);
    in_quarters(&Message::from_words([first, w2, w3, w4, w5, w6, w7, w8]))
}

/// The lower half of the first word.
#[inline(always)]
const fn head(operation: u8, length_bytes: u8, tag: u16) -> u64 {
    let [low, high] = tag.to_le_bytes();
    u64::from_le_bytes([operation, length_bytes, low, high, 0, 0, 0, 0])
}

/// A byte of a frame is so many bytes earlier in its message.
#[cfg(feature = "server")]
const HEAD_LESS_ADDRESSES: usize = ADDRESSES_BYTES - size_of::<u32>();
#[cfg(feature = "server")]
const QUARTER_AT: usize = 48;

#[cfg(feature = "server")]
#[inline(always)]
fn low_word(value: u128) -> u64 {
    let [low, _]: [u64; 2] = zerocopy::transmute!(value.to_le());
    u64::from_le(low)
}

#[cold]
fn compressed_short(operation: u8, tag: u16, frame: &[u8]) -> Message {
    let length_bytes = u8::try_from(frame.len()).unwrap_or(u8::MAX);
    Small { length_bytes, ..Small::new(operation, tag, frame.get(ADDRESSES_BYTES..).unwrap_or_default()) }.to_message()
}

/// The same message, of a frame of a [compressible](is_compressible) length, with another operation or kind, another tag, and zeroes behind the frame.
#[cfg(feature = "server")]
#[inline(always)]
pub(crate) fn readdressed(message: &Message, kind: u8, tag: u16) -> Message {
    let [_, length_bytes, ..] = message.word(0).to_le_bytes();
    let mut changed = *message;
    changed.set_word(0, head(kind, length_bytes, tag) | (message.word(0) & HIGH_HALF));
    // It ends in the last quarter.
    const {
        assert!(
            MAX_SMALL_BYTES + 1 - HEAD_LESS_ADDRESSES > QUARTER_AT
                && MAX_COMPRESSED_BYTES - HEAD_LESS_ADDRESSES < QUARTER_AT + 16
        )
    };
    let behind_bytes = QUARTER_AT + 16 + HEAD_LESS_ADDRESSES - usize::from(length_bytes);
    let last = u128::from(message.word(6)) | u128::from(message.word(7)) << u64::BITS;
    let kept = last & (u128::MAX >> (8 * behind_bytes));
    changed.set_word(6, low_word(kept));
    changed.set_word(7, low_word(kept >> u64::BITS));
    in_quarters(&changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_of_any_length_that_fits_is_what_it_was_and_zeroes_are_behind_it() {
        let frame: Vec<u8> = (1..=68).collect();
        for length in 14..=MAX_COMPRESSED_BYTES {
            let message = compressed(10, 0xabcd, &frame[..length]);
            let bytes = message.to_bytes();
            assert_eq!(bytes[..4], [10, u8::try_from(length).expect("small"), 0xcd, 0xab]);
            assert_eq!(bytes[4..length - 8], frame[12..length]);
            assert!(bytes[length - 8..].iter().all(|byte| *byte == 0), "{length}: {bytes:?}");
            let addresses = Addresses::of(&frame).expect("both");
            assert_eq!(addresses.to_bytes(), frame[..12]);
            assert_eq!(expanded_bytes(&addresses.expand(&message))[..length], frame[..length]);
        }
    }

    #[test]
    fn addresses_are_whole_or_none() {
        let frame: Vec<u8> = (1..=14).collect();
        assert!((0..12).all(|length| Addresses::of(&frame[..length]).is_none()));
        let known = Addresses::of(&frame);
        for index in 0..14 {
            let mut other = frame.clone();
            other[index] = 99;
            assert_eq!(Addresses::of(&other) == known, index >= ADDRESSES_BYTES, "byte {index}");
        }
    }

    #[test]
    fn what_is_behind_a_frame_in_its_message_is_no_part_of_it() {
        let frame: Vec<u8> = (1..=68).collect();
        let mut bytes = compressed(10, 1, &frame).to_bytes();
        bytes[60..].fill(0xff);
        let expanded = expanded_bytes(&Addresses::of(&frame).expect("both").expand(&Message::from_bytes(&bytes)));
        assert_eq!((&expanded[..68], &expanded[68..]), (&frame[..], &[0; 4][..]));
    }

    #[cfg(feature = "server")]
    #[test]
    fn message_that_is_passed_on_has_the_frame_and_zeroes_behind_it() {
        let frame: Vec<u8> = (1..=68).collect();
        for length in (MAX_SMALL_BYTES + 1)..=MAX_COMPRESSED_BYTES {
            let mut bytes = compressed(10, 1, &frame[..length]).to_bytes();
            bytes[length - 8..].fill(0x5a);
            let passed_on = readdressed(&Message::from_bytes(&bytes), 5, 0xabcd);
            assert_eq!(passed_on, compressed(5, 0xabcd, &frame[..length]), "{length} bytes");
        }
    }
}
