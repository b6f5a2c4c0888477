//! The ring of the Fip-see report: each slot has a flag, MSG_READY when the writer has filled it and SLOT_FREE when the
//! reader has emptied it. The reader's write-back costs another transfer of the line, which is why the product has none.

use std::sync::atomic::Ordering;

use fipsee_ring::{AtomicU32, Message};

use crate::harness::spin_backoff::SpinBackoff;
use crate::harness::{End, Mechanism, Plan, Side, shared};

const SLOT_FREE: u32 = 0;
const MSG_READY: u32 = 1;
const PAYLOAD_BYTES: usize = 60;

/// A pair of rings in the memory both processes map.
pub struct Classic {
    calls: *mut u8,
    answers: *mut u8,
}

/// One side of it.
pub struct ClassicEnd {
    outgoing: Ring,
    incoming: Ring,
}

struct Ring {
    slots: *mut u8,
    index: usize,
    last: usize,
}

impl Mechanism for Classic {
    type End = ClassicEnd;

    fn share(plan: &Plan) -> Result<Self, String> {
        let length_bytes = plan.slots as usize * 64;
        Ok(Self { calls: shared::map(length_bytes)?, answers: shared::map(length_bytes)? })
    }

    fn open(self, side: Side, plan: &Plan) -> Result<ClassicEnd, String> {
        let ring = |slots| Ring { slots, index: 0, last: plan.slots as usize - 1 };
        let (calls, answers) = (ring(self.calls), ring(self.answers));
        Ok(match side {
            Side::Client => ClassicEnd { outgoing: calls, incoming: answers },
            Side::Server => ClassicEnd { outgoing: answers, incoming: calls },
        })
    }
}

impl Ring {
    #[inline(always)]
    fn slot(&self) -> *mut u8 {
        self.slots.wrapping_add(self.index * 64)
    }

    #[inline(always)]
    fn flag(&self) -> &AtomicU32 {
        // SAFETY: the slot is 64-byte aligned, inside a mapping that stays, and its last word is accessed atomically only.
        unsafe { AtomicU32::from_ptr(self.slot().wrapping_add(PAYLOAD_BYTES).cast()) }
    }

    #[inline(always)]
    fn step(&mut self) {
        self.index = if self.index == self.last { 0 } else { self.index + 1 };
    }
}

impl End for ClassicEnd {
    #[inline(always)]
    fn send(&mut self, messages: &[Message]) {
        let ring = &mut self.outgoing;
        for message in messages {
            let mut backoff = SpinBackoff::default();
            while ring.flag().load(Ordering::Acquire) != SLOT_FREE {
                backoff.pause();
            }
            // SAFETY: 60 bytes of the slot, which is ours while its flag says free.
            unsafe { std::ptr::copy_nonoverlapping(message.words().as_ptr().cast(), ring.slot(), PAYLOAD_BYTES) };
            ring.flag().store(MSG_READY, Ordering::Release);
            ring.step();
        }
    }

    #[inline(always)]
    fn receive(&mut self, into: &mut [Message]) -> usize {
        let ring = &mut self.incoming;
        let mut backoff = SpinBackoff::default();
        while ring.flag().load(Ordering::Acquire) != MSG_READY {
            backoff.pause();
        }
        let mut count = 0;
        while count < into.len() && ring.flag().load(Ordering::Acquire) == MSG_READY {
            // SAFETY: 60 bytes of the slot, which is ours while its flag says ready, to a message of our own.
            unsafe { std::ptr::copy_nonoverlapping(ring.slot(), (&raw mut into[count]).cast(), PAYLOAD_BYTES) };
            ring.flag().store(SLOT_FREE, Ordering::Release);
            ring.step();
            count += 1;
        }
        count
    }
}
