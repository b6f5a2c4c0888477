//! Frames in a message without their addresses, which are those of a frame before.

use fipsee_ring::Message;

use super::MAX_SMALL_BYTES;

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

    /// The frame of a message that has it but for these addresses: so many of its bytes as the message says, and others behind.
    ///
    /// A message has the words of the frame behind its addresses: nothing is moved within a word.
    #[inline(always)]
    pub fn expand(self, message: &Message) -> [u8; EXPANDED_BYTES] {
        let [first, w2, w3, w4, w5, w6, w7, last] = *message.words();
        let w1 = u64::from(self.last) | (first & HIGH_HALF);
        zerocopy::transmute!([self.first, w1, w2, w3, w4, w5, w6, w7, last & !HIGH_HALF].map(u64::to_le))
    }
}

const HIGH_HALF: u64 = 0xffff_ffff_0000_0000;

/// Whole words that hold the longest such frame.
const EXPANDED_BYTES: usize = 72;
const _: () = assert!(EXPANDED_BYTES == MAX_COMPRESSED_BYTES.next_multiple_of(size_of::<u64>()));

/// Is a frame of this length sent in a message without its addresses, if they are known? A shorter one is in the message with them.
#[inline(always)]
pub const fn is_compressible(length_bytes: usize) -> bool {
    length_bytes > MAX_SMALL_BYTES && length_bytes <= MAX_COMPRESSED_BYTES
}

/// A message that has a frame but for its addresses. What does not fit is left out.
#[inline(always)]
pub fn compressed(operation: u8, tag: u16, frame: &[u8]) -> Message {
    let (words, rest) = frame.as_chunks::<8>();
    let word = |index: usize| words.get(index).map_or(0, |word| u64::from_le_bytes(*word));
    let last = rest.iter().rev().fold(0, |word, byte| word << u8::BITS | u64::from(*byte));
    let behind = |index: usize| if index == words.len() { last } else { word(index) };
    let length_bytes = u8::try_from(frame.len()).unwrap_or(u8::MAX);
    let first = u64::from(operation) | u64::from(length_bytes) << 8 | u64::from(tag) << 16 | (behind(1) & HIGH_HALF);
    let [w2, w3, w4, w5, w6, w7, w8] = std::array::from_fn(|index| behind(index + 2));
    Message::from_words([first, w2, w3, w4, w5, w6, w7, w8])
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
            assert_eq!(addresses.expand(&message)[..length], frame[..length]);
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
        let expanded = Addresses::of(&frame).expect("both").expand(&Message::from_bytes(&bytes));
        assert_eq!((&expanded[..68], &expanded[68..]), (&frame[..], &[0; 4][..]));
    }
}
