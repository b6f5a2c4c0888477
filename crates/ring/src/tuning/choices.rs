//! Choices in one word, as one program advises them to another (docs/protocol.md section 2.6).

use super::{Ownership, TAKE_MANY, Touch};
#[cfg(not(loom))]
use crate::cpu::StoreVariant;

const OWNERSHIP_SHIFT: u32 = 0;
const TOUCH_SHIFT: u32 = 4;
#[cfg(not(loom))]
const STORE_SHIFT: u32 = 8;
const BURST_PREFETCH_SHIFT: u32 = 12;
const TAKE_SHIFT: u32 = 16;
const FIELD_MASK: u32 = 0xf;
const MEASURED: u32 = 1 << 20;

/// A word of choices. A field of 0, or of a value that this version does not know, is no advice; so any word of a peer is valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choices(u32);

impl Choices {
    /// No advice at all.
    pub const NONE: Self = Self(0);

    /// As a peer wrote it.
    #[must_use]
    pub const fn from_word(word: u32) -> Self {
        Self(word)
    }

    /// As it is written.
    #[must_use]
    pub const fn word(self) -> u32 {
        self.0
    }

    const fn field(self, shift: u32) -> u32 {
        self.0 >> shift & FIELD_MASK
    }

    const fn with_field(self, shift: u32, value: u32) -> Self {
        Self(self.0 & !(FIELD_MASK << shift) | value << shift)
    }

    /// How the writer comes to own the slot of the next lone message.
    #[must_use]
    pub const fn ownership(self) -> Option<Ownership> {
        match self.field(OWNERSHIP_SHIFT) {
            1 => Some(Ownership::PrefetchNext),
            2 => Some(Ownership::LockedAhead),
            3 => Some(Ownership::NotAsked),
            _ => None,
        }
    }

    /// With this ownership.
    #[must_use]
    pub const fn with_ownership(self, ownership: Ownership) -> Self {
        let value = match ownership {
            Ownership::PrefetchNext => 1,
            Ownership::LockedAhead => 2,
            Ownership::NotAsked => 3,
        };
        self.with_field(OWNERSHIP_SHIFT, value)
    }

    /// Which messages the reader touches.
    #[must_use]
    pub const fn touch(self) -> Option<Touch> {
        match self.field(TOUCH_SHIFT) {
            1 => Some(Touch::Never),
            2 => Some(Touch::Runs),
            3 => Some(Touch::Always),
            _ => None,
        }
    }

    /// With this touch.
    #[must_use]
    pub const fn with_touch(self, touch: Touch) -> Self {
        let value = match touch {
            Touch::Never => 1,
            Touch::Runs => 2,
            Touch::Always => 3,
        };
        self.with_field(TOUCH_SHIFT, value)
    }

    /// How a message is stored.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn store(self) -> Option<StoreVariant> {
        match self.field(STORE_SHIFT) {
            1 => Some(StoreVariant::Wide16),
            2 => Some(StoreVariant::Split32),
            3 => Some(StoreVariant::Wide64),
            _ => None,
        }
    }

    /// With these stores. Portable ones are no advice: a CPU that needs them has no others.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn with_store(self, store: StoreVariant) -> Self {
        let value = match store {
            StoreVariant::Portable => 0,
            StoreVariant::Wide16 => 1,
            StoreVariant::Split32 => 2,
            StoreVariant::Wide64 => 3,
        };
        self.with_field(STORE_SHIFT, value)
    }

    /// Is ownership asked for ahead in bursts and streams?
    #[must_use]
    pub const fn burst_prefetch(self) -> Option<bool> {
        match self.field(BURST_PREFETCH_SHIFT) {
            1 => Some(false),
            2 => Some(true),
            _ => None,
        }
    }

    /// With ownership asked for ahead in bursts and streams, or not.
    #[must_use]
    pub const fn with_burst_prefetch(self, prefetch: bool) -> Self {
        self.with_field(BURST_PREFETCH_SHIFT, if prefetch { 2 } else { 1 })
    }

    /// Requests that an answerer takes before it answers the first.
    #[must_use]
    pub const fn take(self) -> Option<u32> {
        match self.field(TAKE_SHIFT) {
            1 => Some(1),
            2 => Some(TAKE_MANY),
            _ => None,
        }
    }

    /// With requests taken singly (1) or many at a time.
    #[must_use]
    pub const fn with_take(self, take: u32) -> Self {
        self.with_field(TAKE_SHIFT, if take <= 1 { 1 } else { 2 })
    }

    /// Were they measured on this machine, instead of known of its CPU's family?
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::Tuning;
    use super::*;
    use crate::cpu;

    #[test]
    fn every_choice_survives_its_word() {
        for ownership in [Ownership::PrefetchNext, Ownership::LockedAhead, Ownership::NotAsked] {
            for touch in [Touch::Never, Touch::Runs, Touch::Always] {
                for (store, prefetch, take) in [
                    (StoreVariant::Wide16, true, 1),
                    (StoreVariant::Split32, false, TAKE_MANY),
                    (StoreVariant::Wide64, true, TAKE_MANY),
                ] {
                    let made = Choices::NONE.with_ownership(ownership).with_touch(touch).with_store(store);
                    let made = made.with_burst_prefetch(prefetch).with_take(take).as_measured();
                    let read = Choices::from_word(made.word());
                    assert_eq!((read.ownership(), read.touch(), read.store()), (Some(ownership), Some(touch), Some(store)));
                    assert_eq!((read.burst_prefetch(), read.take(), read.is_measured()), (Some(prefetch), Some(take), true));
                }
            }
        }
    }

    #[test]
    fn the_word_is_as_documented() {
        let choices =
            Choices::NONE.with_ownership(Ownership::LockedAhead).with_touch(Touch::Always).with_store(StoreVariant::Split32);
        assert_eq!(choices.with_burst_prefetch(false).with_take(1).as_measured().word(), 0x0011_1232);
    }

    /// checks: R-2.6-2
    #[test]
    fn no_store_is_advised_into_a_cpu_that_lacks_it() {
        let best = cpu::features().store;
        for store in [StoreVariant::Wide16, StoreVariant::Split32, StoreVariant::Wide64] {
            let tuning = Tuning::usual().with_choices(Choices::NONE.with_store(store));
            assert_eq!(tuning.store, store.max(best), "in falling order of what they ask of a CPU");
        }
    }

    /// checks: R-2.6-1
    #[test]
    fn unknown_values_and_no_advice_change_nothing() {
        let usual = Tuning::usual();
        for word in [0, 0xffef_ffff, 0x0005_7777] {
            assert_eq!(usual.with_choices(Choices::from_word(word)), usual, "{word:#x}");
        }
    }

    #[test]
    fn advice_of_ones_own_choices_changes_nothing() {
        for tuning in [Tuning::usual(), Tuning::default()] {
            assert_eq!(tuning.with_choices(tuning.to_choices()), tuning);
        }
    }
}
