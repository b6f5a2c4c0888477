//! A ring in a mapped region: the one place that touches slots.

#[cfg(all(target_arch = "x86_64", not(miri)))]
use core::arch::x86_64::{__m128i, _mm_load_si128};
use std::fmt::Debug;
use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::cpu::{self, StoreVariant};
use crate::fault::{PeerFault, expect};
use crate::layout::{COLD_BYTES, ColdWords, SLOT_BYTES, STAMP_OFFSET_BYTES, is_slot_count};
use crate::message::Message;
use crate::region::Region;
use crate::ring::{Cursor, RingMemory};
use crate::sync::{AtomicU32, Ordering};
use crate::tuning::{Choices, Tuning};

/// What keeps the memory of a ring mapped: a [`Region`], or the memory of a guest.
pub trait Mapping: Debug + Send + Sync {}

impl<T: Debug + Send + Sync> Mapping for T {}

/// Slots and cold words of one ring in shared memory, which it keeps mapped.
#[derive(Debug)]
pub struct MappedRing {
    slots: NonNull<u8>,
    cold: NonNull<u8>,
    slot_count: u32,
    store: StoreVariant,
    mapping: Arc<dyn Mapping>,
}

/// Where the next stamp of a ring will be, and its value.
#[derive(Debug)]
pub struct NextStamp {
    address: *const AtomicU32,
    expected: u32,
    mapping: Arc<dyn Mapping>,
}

impl NextStamp {
    /// What a poller needs, 16 bytes; and the owner that keeps the address mapped, to be held as long as the address is used.
    #[must_use]
    pub fn split(self) -> ((*const AtomicU32, u32), Arc<dyn Mapping>) {
        ((self.address, self.expected), self.mapping)
    }
}

// SAFETY: the pointers lead into memory that `mapping` keeps mapped and that any thread may access; all access goes
// through atomics or through copies whose exclusivity the ring protocol gives.
unsafe impl Send for MappedRing {}

impl MappedRing {
    /// The ring of `slot_count` slots at `slots_offset_bytes` with its cold words at `cold_offset_bytes`.
    pub fn new(
        region: &Arc<Region>,
        slots_offset_bytes: u64,
        slot_count: u32,
        cold_offset_bytes: u64,
    ) -> Result<Self, PeerFault> {
        expect("the slot count of a ring", slot_count, is_slot_count(slot_count))?;
        expect("the offset of a ring", slots_offset_bytes, is_aligned(slots_offset_bytes))?;
        expect("the offset of a ring's cold words", cold_offset_bytes, is_aligned(cold_offset_bytes))?;
        let slots = region.pointer("ring", slots_offset_bytes, u64::from(slot_count) * SLOT_BYTES as u64)?;
        let cold = region.pointer("cold words", cold_offset_bytes, COLD_BYTES as u64)?;
        Ok(Self { slots, cold, slot_count, store: Tuning::default().store, mapping: Arc::<Region>::clone(region) })
    }

    /// The ring of `slot_count` slots at `slots` with its cold words at `cold`, in memory that `mapping` keeps mapped.
    ///
    /// # Errors
    /// The count is none a ring has, or an address is no multiple of 64.
    ///
    /// # Safety
    /// Slots (64 bytes each) and cold words (128 bytes) are mapped for loads and stores as long as `mapping` exists.
    pub unsafe fn over(
        mapping: Arc<dyn Mapping>,
        slots: NonNull<u8>,
        slot_count: u32,
        cold: NonNull<u8>,
    ) -> Result<Self, PeerFault> {
        expect("the slot count of a ring", slot_count, is_slot_count(slot_count))?;
        let (slots_address, cold_address) = (slots.addr().get() as u64, cold.addr().get() as u64);
        expect("the address of a ring", slots_address, is_aligned(slots_address))?;
        expect("the address of a ring's cold words", cold_address, is_aligned(cold_address))?;
        Ok(Self { slots, cold, slot_count, store: Tuning::default().store, mapping })
    }

    /// Use another store variant than the CPU's best, for tests and comparisons. One that this CPU lacks is not used.
    #[must_use]
    pub fn with_store(mut self, store: StoreVariant) -> Self {
        self.store = store.or_best_below(cpu::features().store);
        self
    }

    /// The message that `cursor` comes to, for a poller of many rings.
    pub fn next_stamp(&self, cursor: Cursor) -> NextStamp {
        NextStamp { address: self.stamp(cursor.index()), expected: cursor.stamp(), mapping: Arc::clone(&self.mapping) }
    }

    /// A word of the message that `cursor` comes to: any value, and perhaps another one when the message is received. For hints alone.
    #[inline(always)]
    pub fn glance(&self, cursor: Cursor, word: usize) -> u64 {
        let slot = self.slot(cursor.index() & (self.slot_count - 1)).cast::<u64>();
        // SAFETY: one of the eight words of a slot, which is mapped and aligned; this is an atomic load, so another process may write it meanwhile.
        unsafe { AtomicU64::from_ptr(slot.wrapping_add(word & 7)) }.load(Ordering::Relaxed)
    }

    /// The reader of answers asks their writer to wait this many nanoseconds after an answer before it looks for the next call.
    pub fn ask_hold(&self, hold_ns: u32) {
        self.cold_word(offset_of!(ColdWords, hold)).store(hold_ns, Ordering::Relaxed);
    }

    /// What the reader asks for: any value, from a peer. Costs nothing beside the look at its asleep flag: it is the same line.
    #[inline(always)]
    pub fn asked_hold(&self) -> u32 {
        self.cold_word(offset_of!(ColdWords, hold)).load(Ordering::Relaxed)
    }

    /// The reader of answers asks their writer for these choices for messages that travel alone.
    pub fn ask_choices(&self, choices: Choices) {
        self.cold_word(offset_of!(ColdWords, choices)).store(choices.word(), Ordering::Relaxed);
    }

    /// What the reader asks for: any value, from a peer. In the line of the asleep flag, as [`asked_hold`](Self::asked_hold).
    #[inline(always)]
    pub fn asked_choices(&self) -> u32 {
        self.cold_word(offset_of!(ColdWords, choices)).load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn cold_word(&self, offset_bytes: usize) -> &AtomicU32 {
        self.word(self.cold.as_ptr(), offset_bytes)
    }

    #[inline(always)]
    fn slot(&self, index: u32) -> *mut u8 {
        debug_assert!(index < self.slot_count);
        self.slots.as_ptr().wrapping_add(index as usize * SLOT_BYTES)
    }

    #[inline(always)]
    fn word(&self, base: *mut u8, offset_bytes: usize) -> &AtomicU32 {
        // SAFETY: * aligned: slots and cold words are 64-byte aligned and every offset is a multiple of 4;
        // * valid: inside memory that stays mapped as long as self; * every access to these words is atomic, on both
        // sides by protocol, and a peer in another process cannot be reasoned about in any other way.
        unsafe { AtomicU32::from_ptr(base.wrapping_add(offset_bytes).cast()) }
    }
}

const fn is_aligned(address: u64) -> bool {
    address.is_multiple_of(SLOT_BYTES as u64)
}

// SAFETY: slot_count was validated and never changes; the words are at fixed places; both copies mask nothing but stay
// in the slot they are given; `copy_in` is tested to read each byte once (tests/copy_in_assembly.rs).
unsafe impl RingMemory for MappedRing {
    #[inline(always)]
    fn slot_count(&self) -> u32 {
        self.slot_count
    }

    #[inline(always)]
    fn stamp(&self, index: u32) -> &AtomicU32 {
        self.word(self.slot(index), STAMP_OFFSET_BYTES)
    }

    #[inline(always)]
    fn released(&self) -> &AtomicU32 {
        self.cold_word(offset_of!(ColdWords, released))
    }

    #[inline(always)]
    fn asleep(&self) -> &AtomicU32 {
        self.cold_word(offset_of!(ColdWords, asleep))
    }

    #[inline(always)]
    unsafe fn copy_in(&self, index: u32, into: &mut Message) {
        // SAFETY: the slot is inside the ring's memory and 64-byte aligned; the variant is one this CPU has.
        unsafe { copy_in(self.store, self.slot(index), into) };
    }

    #[inline(always)]
    unsafe fn write_payload(&self, index: u32, message: &Message) {
        // SAFETY: as above.
        unsafe { store_words(self.slot(index), message) };
    }

    #[inline(always)]
    unsafe fn publish(&self, index: u32, message: &Message, stamp: u32) {
        let slot = self.slot(index);
        match self.store {
            // SAFETY: the slot is inside the ring's memory and 64-byte aligned; the variant is one this CPU has.
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            StoreVariant::Wide64 => unsafe { store_wide64(slot, message, stamp) },
            // SAFETY: as above.
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            StoreVariant::Split32 => unsafe { store_split32(slot, message, stamp) },
            // SAFETY: as above.
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            StoreVariant::Wide16 => unsafe { store_wide16(slot, message, stamp) },
            _ => {
                // SAFETY: as above.
                unsafe { store_words(slot, message) };
                // Of the size the reader loads: racing accesses of different sizes have no meaning in Rust.
                self.stamp(index).store(stamp, Ordering::Release); // A: pairs with `Reader::has_message`.
            }
        }
    }

    #[inline(always)]
    fn prefetch_for_write(&self, index: u32) {
        cpu::prefetch_for_write(self.slot(index));
    }

    #[inline(always)]
    fn prefetch_for_read(&self, index: u32) {
        cpu::prefetch_for_read(self.slot(index));
    }

    #[inline(always)]
    fn demote(&self, index: u32) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: a hint that cannot fault, and a no-operation on CPUs without it.
        unsafe {
            core::arch::asm!("cldemote [{}]", in(reg) self.slot(index), options(nostack, preserves_flags, readonly));
        }
    }
}

/// Copy one slot, each byte read exactly once.
///
/// # Safety
/// `slot` is valid for reads of 64 bytes and 64-byte aligned; `store` was chosen by CPU detection.
#[inline(always)]
unsafe fn copy_in(store: StoreVariant, slot: *const u8, into: &mut Message) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if store != StoreVariant::Portable {
        // SAFETY: the caller's obligations are the same.
        unsafe { copy_in_quarters(slot, into) };
        return;
    }
    let to = into.as_mut_ptr();
    for index in 0..8 {
        // SAFETY: in bounds and 8-byte aligned. An atomic load is never repeated or split by the compiler.
        let word = unsafe { AtomicU64::from_ptr(slot.cast_mut().cast::<u64>().wrapping_add(index)) }.load(Ordering::Relaxed);
        // SAFETY: `to` leads to eight words of our own.
        unsafe { to.wrapping_add(index).write(word) };
    }
}

/// As `copy_in`. The message stays in registers where its reader can use it there: one that is stored whole and then loaded in
/// parts would wait for the store. VEX-encoded, which clears the upper parts of the registers: the older encoding would keep what
/// code compiled for AVX left there, and so wait for the load of the message before.
///
/// # Safety
/// As for `copy_in`; the CPU has AVX, as both variants with wide stores imply.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
unsafe fn copy_in_quarters(slot: *const u8, into: &mut Message) {
    let (a, b, c, d): (__m128i, __m128i, __m128i, __m128i);
    // SAFETY: the slot is aligned to 64 bytes; the CPU has AVX.
    unsafe {
        core::arch::asm!(
            "vmovdqa {a}, [{slot}]",
            "vmovdqa {b}, [{slot} + 16]",
            "vmovdqa {c}, [{slot} + 32]",
            "vmovdqa {d}, [{slot} + 48]",
            slot = in(reg) slot,
            a = out(xmm_reg) a,
            b = out(xmm_reg) b,
            c = out(xmm_reg) c,
            d = out(xmm_reg) d,
            options(nostack, preserves_flags, readonly),
        );
    }
    // SAFETY: a message is four quarters of 16 bytes, aligned to 64.
    unsafe { into.as_mut_ptr().cast::<[__m128i; 4]>().write([a, b, c, d]) };
}

/// Store the first seven and a half words; the stamp is left alone.
///
/// # Safety
/// `slot` is valid for writes of 64 bytes and 64-byte aligned.
#[inline(always)]
unsafe fn store_words(slot: *mut u8, message: &Message) {
    for index in 0..7 {
        // SAFETY: in bounds and 8-byte aligned.
        unsafe { AtomicU64::from_ptr(slot.cast::<u64>().wrapping_add(index)) }.store(message.word(index), Ordering::Relaxed);
    }
    let low = u32::try_from(message.word(7) & 0xffff_ffff).unwrap_or(0);
    // SAFETY: in bounds and 4-byte aligned.
    unsafe { AtomicU32::from_ptr(slot.wrapping_add(56).cast()) }.store(low, Ordering::Relaxed);
}

/// A message in four registers. A wide load of a message that was just written to memory in narrower pieces would wait until
/// those have left the store buffer, behind the slots that are still on their way.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
fn in_registers(message: &Message) -> [__m128i; 4] {
    let quarters = message.words().as_ptr().cast::<__m128i>();
    // SAFETY: a message is four quarters of 16 bytes, aligned to 64.
    let quarter = |index| unsafe { _mm_load_si128(quarters.wrapping_add(index)) };
    [quarter(0), quarter(1), quarter(2), quarter(3)]
}

/// The same message, each quarter of which has been in one register. Where this is stored, quarters can be loaded again at once, which is how a message is
/// published. Fields or words that were stored could not until they, and all that was stored before, have left this CPU.
#[inline(always)]
pub fn in_quarters(message: &Message) -> Message {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let (mut whole, mut quarters) = (Message::ZERO, in_registers(message));
        for quarter in &mut quarters {
            // SAFETY: no instruction: the compiler alone must take it for a value of its own.
            unsafe {
                core::arch::asm!(
                    "/* {quarter} */",
                    quarter = inout(xmm_reg) * quarter,
                    options(pure, nomem, nostack, preserves_flags)
                )
            };
        }
        // SAFETY: a message is four quarters of 16 bytes, aligned to 64.
        unsafe { whole.as_mut_ptr().cast::<[__m128i; 4]>().write(quarters) };
        whole
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    *message
}

/// Its words, each of which is loaded by itself: a load of two that begins within a quarter would wait as [above](in_quarters).
#[inline(always)]
pub fn in_words(message: &Message) -> [u64; 8] {
    // SAFETY: a reference to a word.
    let word = |index: usize| unsafe { (&raw const message.words()[index]).read_volatile() };
    [word(0), word(1), word(2), word(3), word(4), word(5), word(6), word(7)]
}

/// Stores of a whole message in few pieces, the stamp in the last: `{a}` to `{d}` are its quarters.
#[cfg(all(target_arch = "x86_64", not(miri)))]
macro_rules! wide_stores {
    ($($(#[$about:meta])* $name:ident($($clobber:tt)?): $($instruction:literal)+;)+) => {$(
        $(#[$about])*
        #[inline(always)]
        unsafe fn $name(slot: *mut u8, message: &Message, stamp: u32) {
            let [a, b, c, d] = in_registers(message);
            // SAFETY: the slot is aligned to 64 bytes; the clobber is declared.
            unsafe {
                core::arch::asm!(
                    "vpinsrd {d}, {d}, {stamp:e}, 3",
                    $($instruction,)+
                    slot = in(reg) slot,
                    stamp = in(reg) stamp,
                    a = in(xmm_reg) a,
                    b = in(xmm_reg) b,
                    c = in(xmm_reg) c,
                    d = inout(xmm_reg) d => _,
                    $(out($clobber) _,)?
                    options(nostack, preserves_flags),
                );
            }
        }
    )+};
}

// Registers from 16 on leave the lower ones, and the state of older code, alone; see `copy_in_quarters`.
#[cfg(all(target_arch = "x86_64", not(miri)))]
wide_stores! {
    /// # Safety
    /// As for `store_words`; the CPU has AVX-512F and stores 64 bytes at once. A: the store carries payload and stamp, and
    /// x86 makes it visible after everything stored before.
    store_wide64("zmm16"):
        "vpxord zmm16, zmm16, zmm16"
        "vinserti32x4 zmm16, zmm16, {a}, 0"
        "vinserti32x4 zmm16, zmm16, {b}, 1"
        "vinserti32x4 zmm16, zmm16, {c}, 2"
        "vinserti32x4 zmm16, zmm16, {d}, 3"
        "vmovdqa64 [{slot}], zmm16";
    /// # Safety
    /// As for `store_words`; the CPU has AVX-512VL. A: the last store, of 16 bytes and thus atomic, carries the stamp, and x86
    /// keeps stores in order.
    store_split32("ymm16"):
        "vpxord ymm16, ymm16, ymm16"
        "vinserti32x4 ymm16, ymm16, {a}, 0"
        "vinserti32x4 ymm16, ymm16, {b}, 1"
        "vmovdqa32 [{slot}], ymm16"
        "vmovdqa [{slot} + 32], {c}"
        "vmovdqa [{slot} + 48], {d}";
    /// # Safety
    /// As for `store_words`; the CPU has AVX, which makes each aligned 16-byte store atomic. A: the last one carries the
    /// stamp, and x86 keeps stores in order.
    store_wide16():
        "vmovdqa [{slot}], {a}"
        "vmovdqa [{slot} + 16], {b}"
        "vmovdqa [{slot} + 32], {c}"
        "vmovdqa [{slot} + 48], {d}";
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A slot of ordinary memory: no system call, so that Miri can watch the raw copies too.
    #[derive(Default)]
    #[repr(align(64))]
    struct Slot([AtomicU32; SLOT_BYTES / 4]);

    #[test]
    fn portable_copies_pass_a_message_between_threads() {
        let slot = Slot::default();
        let (base, stamp) = (|| slot.0.as_ptr().cast_mut().cast::<u8>(), &slot.0[STAMP_OFFSET_BYTES / 4]);
        let sent = Message::from_bytes(&std::array::from_fn(|index| if index < STAMP_OFFSET_BYTES { 0xa5 } else { 0 }));
        let mut received = Message::ZERO;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: the slot is valid and aligned.
                unsafe { store_words(base(), &sent) };
                stamp.store(1, Ordering::Release);
            });
            while stamp.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
            // SAFETY: as above; the portable variant suits every CPU.
            unsafe { copy_in(StoreVariant::Portable, base(), &mut received) };
        });
        let mut expected = sent;
        expected.set_word(7, sent.word(7) & 0xffff_ffff | 1 << 32);
        assert_eq!(received, expected);
    }
}
