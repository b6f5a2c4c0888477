//! The best rings of the first experiments, which the product must reach: the same lap stamps, everything fixed at compile
//! time for this one CPU. Wide stores without a choice, a first look after three pauses, CLDEMOTE and a locked operation
//! after each message of call and reply, no doorbell, no checks.

use std::arch::asm;
use std::arch::x86_64::{__m512i, _mm_pause, _mm512_load_si512, _mm512_mask_set1_epi32, _mm512_store_si512};
use std::sync::atomic::Ordering;

use fipsee_ring::{AtomicU32, Message};

use crate::harness::spin_backoff::SpinBackoff;
use crate::harness::{End, Mechanism, Plan, Side, shared};

/// PAUSEs between sending and the first look for the answer: on the CPU this was found on, one less looks too early.
const PAUSES_BEFORE_FIRST_LOOK: u32 = 3;
/// Slots ahead in a burst that ownership is asked for.
const BURST_PREFETCH_SLOTS: u32 = 4;

/// Slots, and far from them a counter of what the reader of a stream has released.
#[derive(Clone, Copy)]
struct Ring {
    slots: *mut u8,
    released: &'static AtomicU32,
    slot_count: u32,
    /// Messages so far.
    position: u32,
}

impl Ring {
    fn make(slot_count: u32) -> Result<Self, String> {
        // SAFETY: an atomic.
        let released = unsafe { shared::zeroed::<AtomicU32>() }?;
        Ok(Self { slots: shared::map(slot_count as usize * 64)?, released, slot_count, position: 0 })
    }

    #[inline(always)]
    fn slot(&self, ahead: u32) -> *mut u8 {
        let index = self.position.wrapping_add(ahead) & (self.slot_count - 1);
        self.slots.wrapping_add(index as usize * 64)
    }

    #[inline(always)]
    const fn stamp(&self) -> u32 {
        self.position / self.slot_count + 1
    }

    #[inline(always)]
    fn is_ready(&self) -> bool {
        // SAFETY: the slot's last word: aligned, inside a mapping that stays, only ever loaded atomically.
        let stamp = unsafe { AtomicU32::from_ptr(self.slot(0).wrapping_add(60).cast()) };
        stamp.load(Ordering::Acquire) == self.stamp()
    }

    /// Store payload and stamp as one, ask for a slot ahead, and step on.
    #[inline(always)]
    fn put(&mut self, message: &Message, prefetch_slots: u32) {
        let stamp = self.stamp().cast_signed();
        // SAFETY: the CPU has AVX-512 or this file would not be compiled.
        let line = unsafe { _mm512_load_si512(message.words().as_ptr().cast::<__m512i>()) };
        // SAFETY: as above.
        let line = unsafe { _mm512_mask_set1_epi32(line, 1 << 15, stamp) };
        // SAFETY: as above; the slot is aligned and inside the mapping.
        unsafe { _mm512_store_si512(self.slot(0).cast::<__m512i>(), line) };
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
        self.position = self.position.wrapping_add(1);
        prefetch_for_write(self.slot(prefetch_slots - 1));
    }

    #[inline(always)]
    fn take(&mut self, into: &mut Message) {
        // SAFETY: the CPU has AVX-512; the slot is aligned and inside the mapping.
        let line = unsafe { _mm512_load_si512(self.slot(0).cast::<__m512i>()) };
        // SAFETY: a message is 64 bytes, aligned to as many.
        unsafe { _mm512_store_si512((&raw mut *into).cast::<__m512i>(), line) };
        self.position = self.position.wrapping_add(1);
    }

    /// Wait for a message, then take all that are there.
    #[inline(always)]
    fn take_all(&mut self, into: &mut [Message]) -> usize {
        let mut backoff = SpinBackoff::default();
        while !self.is_ready() {
            backoff.pause();
        }
        let mut count = 0;
        while count < into.len() && self.is_ready() {
            self.take(&mut into[count]);
            count += 1;
        }
        count
    }
}

fn prefetch_for_write(line: *mut u8) {
    // SAFETY: a hint that cannot fault.
    unsafe { asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly)) };
}

fn demote(line: *mut u8) {
    // SAFETY: a hint that cannot fault; CPUs without it take it for a NOP.
    unsafe { asm!("cldemote [{}]", in(reg) line, options(nostack, preserves_flags, readonly)) };
}

pub struct Calls {
    calls: Ring,
    answers: Ring,
}

pub struct CallsEnd {
    outgoing: Ring,
    incoming: Ring,
    holds: bool,
}

impl Mechanism for Calls {
    type End = CallsEnd;

    fn share(plan: &Plan) -> Result<Self, String> {
        Ok(Self { calls: Ring::make(plan.slots)?, answers: Ring::make(plan.slots)? })
    }

    fn open(self, side: Side, _: &Plan) -> Result<CallsEnd, String> {
        let (outgoing, incoming) = if side == Side::Client { (self.calls, self.answers) } else { (self.answers, self.calls) };
        Ok(CallsEnd { outgoing, incoming, holds: true })
    }
}

impl End for CallsEnd {
    #[inline(always)]
    fn send(&mut self, messages: &[Message]) {
        self.holds = messages.len() == 1;
        if let [message] = messages {
            let slot = self.outgoing.slot(0);
            self.outgoing.put(message, 1);
            demote(slot);
            fipsee_ring::full_fence();
            return;
        }
        for message in messages {
            self.outgoing.put(message, BURST_PREFETCH_SLOTS);
        }
    }

    #[inline(always)]
    fn receive(&mut self, into: &mut [Message]) -> usize {
        if self.holds {
            for _ in 0..PAUSES_BEFORE_FIRST_LOOK {
                _mm_pause();
            }
        }
        self.incoming.take_all(into)
    }
}

/// One ring with a counter of released messages, written once in a quarter of the ring.
pub struct Stream(Ring);

pub struct StreamEnd {
    ring: Ring,
    prefetch_slots: u32,
    /// The writer: messages that may be sent without a look at the counter. The reader: messages not yet released.
    credit: u32,
}

impl Mechanism for Stream {
    type End = StreamEnd;

    fn share(plan: &Plan) -> Result<Self, String> {
        Ring::make(plan.slots).map(Self)
    }

    fn open(self, side: Side, plan: &Plan) -> Result<StreamEnd, String> {
        let prefetch_slots = if plan.slots > 64 { 16 } else { 8 };
        let credit = if side == Side::Client { plan.slots } else { 0 };
        Ok(StreamEnd { ring: self.0, prefetch_slots, credit })
    }
}

impl End for StreamEnd {
    #[inline(always)]
    fn send(&mut self, messages: &[Message]) {
        for message in messages {
            let mut backoff = SpinBackoff::default();
            while self.credit == 0 {
                let unreleased = self.ring.position.wrapping_sub(self.ring.released.load(Ordering::Acquire));
                self.credit = self.ring.slot_count - unreleased;
                backoff.pause();
            }
            self.credit -= 1;
            self.ring.put(message, self.prefetch_slots);
        }
    }

    #[inline(always)]
    fn receive(&mut self, into: &mut [Message]) -> usize {
        let count = self.ring.take_all(into);
        self.credit += u32::try_from(count).unwrap_or(0);
        if self.credit >= self.ring.slot_count / 4 {
            self.credit = 0;
            self.ring.released.store(self.ring.position, Ordering::Release);
        }
        count
    }
}
