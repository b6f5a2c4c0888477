//! Sizes and limits shared by both sides of a ring (docs/protocol.md section 2). Counterpart of `include/fipsee.h`.

/// Bytes of one slot: a cache line of every CPU we run on.
pub const SLOT_BYTES: usize = 64;
/// Bytes of a message that belong to the caller.
pub const PAYLOAD_BYTES: usize = 60;
/// Byte offset of the stamp in a slot.
pub const STAMP_OFFSET_BYTES: usize = 60;
/// Fewest slots of a ring. One slot would make "the previous lap" and "empty" the same line for both sides.
pub const MIN_SLOTS: u32 = 2;
/// Most slots of a ring: 4 MiB. A larger ring leaves the last-level cache and gains nothing (DESIGN section 2).
pub const MAX_SLOTS: u32 = 65_536;

/// Can a ring have this many slots?
#[must_use]
pub const fn is_slot_count(slots: u32) -> bool {
    slots.is_power_of_two() && MIN_SLOTS <= slots && slots <= MAX_SLOTS
}

/// Bytes reserved for the cold words of one ring: its own pair of lines, because adjacent-line prefetch moves lines
/// in pairs.
pub const COLD_BYTES: usize = 128;
/// Byte offset of the release counter in the cold words.
pub const COLD_RELEASED_OFFSET_BYTES: usize = 0;
/// Byte offset of the asleep flag in the cold words.
pub const COLD_ASLEEP_OFFSET_BYTES: usize = 4;
/// Byte offset of the delay that the reader asks the writer for, in the cold words (docs/protocol.md section 2.5).
pub const COLD_HOLD_OFFSET_BYTES: usize = 8;
/// Byte offset of the choices that the reader asks the writer for, in the cold words (docs/protocol.md section 2.5).
pub const COLD_CHOICES_OFFSET_BYTES: usize = 12;

/// The stamp of the lap after `stamp`: laps count 1, 2, .. 2^32 - 1, 1, because fresh memory is zero and a stamp
/// must differ from it.
#[must_use]
#[inline(always)]
pub const fn next_stamp(stamp: u32) -> u32 {
    if stamp == u32::MAX { 1 } else { stamp + 1 }
}
