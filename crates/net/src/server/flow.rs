//! Where frames like the one before go, without the switch.

use crate::frame::HEADER_BYTES;
use crate::switch::PortNumber;

/// Addresses and type.
type Key = [u64; 2];

/// Of a sender, where the last frame went of those whose addresses and type alone decide that, until the switch is changed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flow {
    known: Option<(Key, PortNumber)>,
    /// [Changes](crate::switch::Switch::changes) of the switch by then.
    changes: u64,
}

impl Flow {
    /// Of a frame with these first bytes. By words, as they may have just been stored.
    #[inline(always)]
    pub(super) fn key(first: &[u8]) -> Option<Key> {
        let [low, high] = *first.as_chunks::<8>().0.first_chunk()?;
        Some(Self::key_of([low, high].map(u64::from_le_bytes)))
    }

    /// Of one with these first words.
    #[inline(always)]
    pub(super) const fn key_of([low, high]: [u64; 2]) -> Key {
        const BEHIND: u32 = 8 * (16 - HEADER_BYTES);
        [low, high << BEHIND]
    }

    #[inline(always)]
    pub(super) fn find(&self, key: Option<Key>, changes: u64) -> Option<PortNumber> {
        let (known, port) = self.known?;
        (changes == self.changes && key? == known).then_some(port)
    }

    pub(super) fn remember(&mut self, key: Option<Key>, port: PortNumber, changes: u64) {
        *self = Self { known: key.map(|key| (key, port)), changes };
    }
}
