//! A ring in a mapped region: the one place that touches slots.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::cpu::{self, StoreVariant};
use crate::fault::PeerFault;
use crate::layout::{
    COLD_ASLEEP_OFFSET_BYTES, COLD_BYTES, COLD_RELEASED_OFFSET_BYTES, MAX_SLOTS, MIN_SLOTS, SLOT_BYTES, STAMP_OFFSET_BYTES,
};
use crate::message::Message;
use crate::region::Region;
use crate::ring::RingMemory;
use crate::sync::{AtomicU32, Ordering};

/// Slots and cold words of one ring inside a [`Region`], which it keeps mapped.
#[derive(Debug)]
pub struct MappedRing {
    slots: NonNull<u8>,
    cold: NonNull<u8>,
    slot_count: u32,
    store: StoreVariant,
    _region: Arc<Region>,
}

// SAFETY: the pointers lead into a region that `_region` keeps mapped and that any thread may access; all access goes
// through atomics or through copies whose exclusivity the ring protocol gives.
unsafe impl Send for MappedRing {}

impl MappedRing {
    /// The ring of `slot_count` slots at `slots_offset_bytes` with its cold words at `cold_offset_bytes`.
    ///
    /// # Errors
    /// Any of the three does not fit the region, or is misaligned.
    pub fn new(
        region: &Arc<Region>,
        slots_offset_bytes: u64,
        slot_count: u32,
        cold_offset_bytes: u64,
    ) -> Result<Self, PeerFault> {
        if !slot_count.is_power_of_two() || !(MIN_SLOTS..=MAX_SLOTS).contains(&slot_count) {
            return Err(PeerFault::Value { what: "the slot count of a ring", value: u64::from(slot_count) });
        }
        let aligned = |what, offset: u64| match offset % SLOT_BYTES as u64 {
            0 => Ok(()),
            _ => Err(PeerFault::Value { what, value: offset }),
        };
        aligned("the offset of a ring", slots_offset_bytes)?;
        aligned("the offset of a ring's cold words", cold_offset_bytes)?;
        let slots = region.pointer("ring", slots_offset_bytes, u64::from(slot_count) * SLOT_BYTES as u64)?;
        let cold = region.pointer("cold words", cold_offset_bytes, COLD_BYTES as u64)?;
        Ok(Self { slots, cold, slot_count, store: cpu::features().store, _region: Arc::clone(region) })
    }

    /// Use another store variant than the CPU's best, for tests and comparisons.
    #[must_use]
    pub fn with_store(mut self, store: StoreVariant) -> Self {
        self.store = store;
        self
    }

    /// Where the stamp of slot `index` stands, for a poller that watches many rings.
    #[must_use]
    pub fn stamp_address(&self, index: u32) -> *const AtomicU32 {
        self.stamp(index)
    }

    #[inline(always)]
    fn slot(&self, index: u32) -> *mut u8 {
        debug_assert!(index < self.slot_count);
        self.slots.as_ptr().wrapping_add(index as usize * SLOT_BYTES)
    }

    #[inline(always)]
    fn word(&self, base: *mut u8, offset_bytes: usize) -> &AtomicU32 {
        // SAFETY: * aligned: slots and cold words are 64-byte aligned and every offset is a multiple of 4;
        // * valid: inside the region, which lives as long as self; * every access to these words is atomic, on both
        // sides by protocol, and a peer in another process cannot be reasoned about in any other way.
        unsafe { AtomicU32::from_ptr(base.wrapping_add(offset_bytes).cast()) }
    }
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
        self.word(self.cold.as_ptr(), COLD_RELEASED_OFFSET_BYTES)
    }

    #[inline(always)]
    fn asleep(&self) -> &AtomicU32 {
        self.word(self.cold.as_ptr(), COLD_ASLEEP_OFFSET_BYTES)
    }

    #[inline(always)]
    unsafe fn copy_in(&self, index: u32, into: &mut Message) {
        // SAFETY: the slot is inside the region and 64-byte aligned; the variant is one this CPU has.
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
            // SAFETY: the slot is inside the region and 64-byte aligned; the variant is one this CPU has.
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            StoreVariant::Wide64 => unsafe { store_wide64(slot, message, stamp) },
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
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: a hint that cannot fault.
        unsafe {
            core::arch::asm!("prefetchw [{}]", in(reg) self.slot(index), options(nostack, preserves_flags, readonly));
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = index;
    }
}

/// Copy one slot, each byte read exactly once.
///
/// # Safety
/// `slot` is valid for reads of 64 bytes and 64-byte aligned; `store` was chosen by CPU detection.
#[inline(always)]
unsafe fn copy_in(store: StoreVariant, slot: *const u8, into: &mut Message) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if store == StoreVariant::Wide64 {
        // SAFETY: AVX-512 is present when this variant is chosen; both operands are aligned to 64 bytes. zmm16 is
        // used because the upper sixteen registers leave the state that slows legacy SSE code untouched.
        unsafe {
            core::arch::asm!(
                "vmovdqa64 zmm16, [{slot}]",
                "vmovdqa64 [{into}], zmm16",
                slot = in(reg) slot,
                into = in(reg) into.as_mut_ptr(),
                out("zmm16") _,
                options(nostack, preserves_flags),
            );
        }
        return;
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = store;
    let to = into.as_mut_ptr();
    for index in 0..8 {
        // SAFETY: in bounds and 8-byte aligned. An atomic load is never repeated or split by the compiler.
        let word = unsafe { AtomicU64::from_ptr(slot.cast_mut().cast::<u64>().wrapping_add(index)) }.load(Ordering::Relaxed);
        // SAFETY: `to` leads to eight words of our own.
        unsafe { to.wrapping_add(index).write(word) };
    }
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

/// # Safety
/// As for `store_words`; the CPU has AVX-512F and stores 64 bytes at once. A: the store carries payload and stamp, and
/// x86 makes it visible after everything stored before.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
unsafe fn store_wide64(slot: *mut u8, message: &Message, stamp: u32) {
    // SAFETY: both operands are aligned to 64 bytes; clobbers are declared.
    unsafe {
        core::arch::asm!(
            "vmovdqa64 zmm16, [{message}]",
            "kmovw k1, {mask:e}",
            "vpbroadcastd zmm16 {{k1}}, {stamp:e}",
            "vmovdqa64 [{slot}], zmm16",
            message = in(reg) message.words().as_ptr(),
            mask = in(reg) 0x8000_u32,
            stamp = in(reg) stamp,
            slot = in(reg) slot,
            out("zmm16") _,
            out("k1") _,
            options(nostack, preserves_flags),
        );
    }
}

/// # Safety
/// As for `store_words`; the CPU has AVX, which makes each aligned 16-byte store atomic. A: the last one carries the
/// stamp, and x86 keeps stores in order.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
unsafe fn store_wide16(slot: *mut u8, message: &Message, stamp: u32) {
    let last = message.word(7) & 0xffff_ffff | u64::from(stamp) << 32;
    // SAFETY: both operands are aligned to 16 bytes; clobbers are declared.
    unsafe {
        core::arch::asm!(
            "movdqa {a}, [{message}]",
            "movdqa {b}, [{message} + 16]",
            "movdqa {c}, [{message} + 32]",
            "movq {d}, {six}",
            "movq {e}, {last}",
            "punpcklqdq {d}, {e}",
            "movdqa [{slot}], {a}",
            "movdqa [{slot} + 16], {b}",
            "movdqa [{slot} + 32], {c}",
            "movdqa [{slot} + 48], {d}",
            message = in(reg) message.words().as_ptr(),
            six = in(reg) message.word(6),
            last = in(reg) last,
            slot = in(reg) slot,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            e = out(xmm_reg) _,
            options(nostack, preserves_flags),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A slot of ordinary memory: no system call, so that Miri can watch the raw copies too.
    #[repr(align(64))]
    struct Slot([u8; SLOT_BYTES]);

    /// The address of a slot that two threads share.
    struct Shared(*mut u8);
    // SAFETY: the slot outlives both threads and is accessed through atomics only.
    unsafe impl Send for Shared {}

    impl Shared {
        /// Through a method, so that a closure captures the whole and not the pointer in it.
        fn address(&self) -> *mut u8 {
            self.0
        }
    }

    #[test]
    fn portable_copies_pass_a_message_between_threads() {
        let mut slot = Slot([0; SLOT_BYTES]);
        let base = slot.0.as_mut_ptr();
        let (to, from) = (Shared(base), Shared(base));
        let sent = Message::from_bytes(&std::array::from_fn(|index| if index < STAMP_OFFSET_BYTES { 0xa5 } else { 0 }));
        let stamp_of = |slot: *mut u8| {
            // SAFETY: inside the slot, 4-byte aligned, and every access to it is atomic.
            unsafe { AtomicU32::from_ptr(slot.wrapping_add(STAMP_OFFSET_BYTES).cast()) }
        };
        let mut received = Message::ZERO;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let to = to.address();
                // SAFETY: the slot is valid and aligned.
                unsafe { store_words(to, &sent) };
                stamp_of(to).store(1, Ordering::Release);
            });
            let from = from.address();
            while stamp_of(from).load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
            // SAFETY: as above; the portable variant suits every CPU.
            unsafe { copy_in(StoreVariant::Portable, from, &mut received) };
        });
        let mut expected = sent;
        expected.set_word(7, sent.word(7) & 0xffff_ffff | 1 << 32);
        assert_eq!(received, expected);
    }
}
