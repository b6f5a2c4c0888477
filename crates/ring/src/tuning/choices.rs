//! Choices in one word, as one program advises them to another (docs/protocol.md section 2.6).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{Ownership, TAKE_MANY, Touch};
use crate::cpu::StoreVariant;

const TAKE_SHIFT: u32 = 16;
const FIELD_MASK: u32 = 0xf;
const MEASURED: u32 = 1 << 20;

/// A word of choices. A field of 0, or of a value that this version does not know, is no advice; so any word of a peer is valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(transparent)]
pub struct Choices(u32);

impl Choices {
    /// No advice.
    pub const NONE: Self = Self(0);

    /// As a peer wrote it.
    pub const fn from_word(word: u32) -> Self {
        Self(word)
    }

    /// As it is written.
    #[must_use]
    pub const fn word(self) -> u32 {
        self.0
    }

    /// Field values are numbered from 1, in the order of `values`.
    fn value<T: Copy>(self, shift: u32, values: &[T]) -> Option<T> {
        let number = usize::try_from(self.0 >> shift & FIELD_MASK).ok()?;
        values.get(number.checked_sub(1)?).copied()
    }

    /// A value that is not among `values` is no advice.
    fn with_value<T: PartialEq>(self, shift: u32, values: &[T], value: T) -> Self {
        let number = (1..).zip(values).find(|(_, known)| **known == value).map_or(0, |(number, _)| number);
        Self(self.0 & !(FIELD_MASK << shift) | number << shift)
    }

    /// Requests that an answerer takes before it answers the first.
    #[must_use]
    pub fn take(self) -> Option<u32> {
        self.value(TAKE_SHIFT, &[1, TAKE_MANY])
    }

    /// With requests taken singly (1) or many at a time.
    #[must_use]
    pub fn with_take(self, take: u32) -> Self {
        self.with_value(TAKE_SHIFT, &[1, TAKE_MANY], if take <= 1 { 1 } else { TAKE_MANY })
    }

    /// Were they measured on this machine, instead of taken from its CPU's family?
    #[must_use]
    pub const fn is_measured(self) -> bool {
        self.0 & MEASURED != 0
    }

    /// Marked as measured on this machine.
    #[must_use]
    pub const fn as_measured(self) -> Self {
        Self(self.0 | MEASURED)
    }
}

/// Fields of the word: how they are read and set, where each begins, and its values.
macro_rules! fields {
    ($($(#[$about:meta])* $get:ident, $set:ident: $type:ty = $shift:literal, $values:expr;)+) => {
        impl Choices {$(
            $(#[$about])*
            pub fn $get(self) -> Option<$type> {
                self.value($shift, &$values)
            }

            $(#[$about])*
            pub fn $set(self, value: $type) -> Self {
                self.with_value($shift, &$values, value)
            }
        )+}
    };
}

fields! {
    /// How the writer comes to own the slot of the next lone message.
    ownership, with_ownership: Ownership = 0, [Ownership::PrefetchNext, Ownership::LockedAhead, Ownership::NotAsked];
    /// Which messages the reader touches.
    touch, with_touch: Touch = 4, [Touch::Never, Touch::Runs, Touch::Always];
    /// How a message is stored. Portable stores are no advice: a CPU that needs them has no others.
    store, with_store: StoreVariant = 8, [StoreVariant::Wide16, StoreVariant::Split32, StoreVariant::Wide64];
    /// Is ownership asked for ahead in bursts and streams?
    burst_prefetch, with_burst_prefetch: bool = 12, [false, true];
}
