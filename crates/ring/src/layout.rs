//! Sizes and limits shared by both sides of a ring (docs/protocol.md section 2). Counterpart of `include/fipsee.h`.

/// Bytes of one slot: a cache line of every CPU we run on.
pub const SLOT_BYTES: usize = 64;
/// Bytes of a message that belong to the caller.
pub const PAYLOAD_BYTES: usize = 60;
pub const STAMP_OFFSET_BYTES: usize = 60;
/// Fewest slots of a ring. One slot would make "the previous lap" and "empty" the same line for both sides.
pub const MIN_SLOTS: u32 = 2;
/// Most slots of a ring: 4 MiB. A larger ring leaves the last-level cache and gains nothing (DESIGN section 2).
pub const MAX_SLOTS: u32 = 65_536;

pub const fn is_slot_count(slots: u32) -> bool {
    slots.is_power_of_two() && MIN_SLOTS <= slots && slots <= MAX_SLOTS
}

crate::wire_structures! {
    /// The cold words of one ring, in its own pair of lines, because adjacent-line prefetch moves lines in pairs. It says where they
    /// are; all access to them is atomic, word by word.
    pub ColdWords: 128 {
        0 released: u32,
        4 asleep: u32,
        /// The delay that the reader asks the writer for (docs/protocol.md section 2.5).
        8 hold: u32,
        /// The choices that the reader asks the writer for (docs/protocol.md section 2.5).
        12 choices: u32,
        /// 0 at the start, ignored.
        16 reserved: [u8; 112],
    }
}
pub const COLD_BYTES: usize = size_of::<ColdWords>();

/// The stamp of the lap after `stamp`: laps count 1, 2, .. 2^32 - 1, 1, because fresh memory is zero and a stamp
/// must differ from it.
#[inline(always)]
pub const fn next_stamp(stamp: u32) -> u32 {
    if stamp == u32::MAX { 1 } else { stamp + 1 }
}
