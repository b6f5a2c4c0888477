//! The 64-byte unit every ring carries.

use crate::layout::SLOT_BYTES;

/// One message: 60 bytes of payload; the last four bytes belong to the ring (the stamp).
///
/// Held as eight little-endian words, so that a field is a shift of a register, not a load that waits for an
/// earlier narrower store to the same line (store forwarding).
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Message {
    words: [u64; 8],
}

const _: () = assert!(size_of::<Message>() == SLOT_BYTES);
const _: () = assert!(align_of::<Message>() == SLOT_BYTES);

impl Message {
    pub const ZERO: Self = Self { words: [0; 8] };

    /// A message from its eight words; the upper half of `words[7]` is overwritten by the stamp when published.
    #[inline]
    pub const fn from_words(words: [u64; 8]) -> Self {
        Self { words }
    }

    /// A message with `payload`, 60 bytes.
    pub fn from_payload(payload: &[u8; 60]) -> Self {
        let mut bytes = [0_u8; SLOT_BYTES];
        bytes[..60].copy_from_slice(payload);
        Self::from_bytes(&bytes)
    }

    pub fn from_bytes(bytes: &[u8; SLOT_BYTES]) -> Self {
        let mut words = [0_u64; 8];
        for (word, chunk) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*chunk);
        }
        Self { words }
    }

    pub fn to_bytes(&self) -> [u8; SLOT_BYTES] {
        let mut bytes = [0_u8; SLOT_BYTES];
        for (chunk, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(self.words) {
            *chunk = word.to_le_bytes();
        }
        bytes
    }

    /// Word `index` (0..8), bytes `8 * index ..` of the slot.
    #[inline(always)]
    pub const fn word(&self, index: usize) -> u64 {
        self.words[index]
    }

    /// The word that begins `offset_bytes` into the slot: of a structure, `offset_of!` of the first field in it.
    #[inline(always)]
    pub const fn word_at(&self, offset_bytes: usize) -> u64 {
        debug_assert!(offset_bytes.is_multiple_of(8), "a word begins there");
        self.words[offset_bytes / 8]
    }

    /// Half word `index` (0..16), bytes `4 * index ..` of the slot.
    #[inline(always)]
    pub const fn half_word(&self, index: usize) -> u32 {
        let [half, _]: [u32; 2] = zerocopy::transmute!(self.words[index / 2] >> (32 * (index % 2)));
        half
    }

    /// Replace word `index` (0..8).
    #[inline(always)]
    pub const fn set_word(&mut self, index: usize, value: u64) {
        self.words[index] = value;
    }

    #[inline(always)]
    pub const fn words(&self) -> &[u64; 8] {
        &self.words
    }

    /// For the copy-in primitive, which writes all 64 bytes at once.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u64 {
        self.words.as_mut_ptr()
    }
}
