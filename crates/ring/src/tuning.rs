//! The choices of the hot path that cost or gain time and never change what is on the wire. The defaults were measured
//! one against the other (`fipsee ping --ablate`, docs/how-fast.md); other values are for measurements.

#[cfg(not(loom))]
use crate::{cpu, cpu::StoreVariant, pace::FirstLook};

/// How one end of a ring does its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// How a message is put into its slot. A variant that this CPU lacks is replaced by the best it has.
    #[cfg(not(loom))]
    pub store: StoreVariant,
    /// Between single messages: ask for ownership of the slot so far ahead, 1 being the very next; 0: do not ask. Beyond 1
    /// the reader's own prefetcher, which sees one slot after the other, takes back what was asked for.
    pub prefetch_slots: u32,
    /// The same within a burst, where the transfers of several slots overlap.
    pub burst_prefetch_slots: u32,
    /// The same in a stream, at most an eighth of the ring: further would take slots from the reader.
    pub stream_prefetch_slots: u32,
    /// A stream's reader asks for the slot so far ahead of the one it takes, at most a 16th of the ring: further would take
    /// slots from the writer. 0: do not ask.
    pub stream_read_ahead_slots: u32,
    /// Push each message out of this CPU's own cache after publishing it (CLDEMOTE, where the CPU has it).
    pub demote: bool,
    /// A stream's reader returns slots once one part in so many of the ring has been received.
    pub releases_per_lap: u32,
    /// When call and reply look first for what must come.
    #[cfg(not(loom))]
    pub first_look: FirstLook,
}

impl Tuning {
    /// Slots that a stream's reader of a ring of `slot_count` gives back at a time.
    pub(crate) const fn release_slots(&self, slot_count: u32) -> u32 {
        let parts = if self.releases_per_lap == 0 { 1 } else { self.releases_per_lap };
        let slots = slot_count / parts;
        if slots == 0 { 1 } else { slots }
    }
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            #[cfg(not(loom))]
            store: cpu::features().store,
            prefetch_slots: 1,
            burst_prefetch_slots: 4,
            stream_prefetch_slots: 8,
            stream_read_ahead_slots: 16,
            demote: false,
            releases_per_lap: 4,
            #[cfg(not(loom))]
            first_look: FirstLook::Calibrated,
        }
    }
}
