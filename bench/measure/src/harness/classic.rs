//! The ring of the Fip-see report (section 2): a flag at the end of each message says MSG_READY or SLOT_FREE, and the reader
//! writes it back. There is no other shared word.

use fipsee_ring::mapped::MappedRing;
use fipsee_ring::ring::RingMemory;
use fipsee_ring::{Message, Ordering};

use super::drive::{Answers, Calls, PeerError, Receives, Sends};
use super::spin::Spin;

/// Fresh memory is free.
const SLOT_FREE: u32 = 0;
const MSG_READY: u32 = 1;

/// One end of one ring. The flag is in the place of the stamp of Fip-see's ring.
struct End {
    memory: MappedRing,
    index: u32,
    /// Stores a message as our ring does, instead of by words and then the flag.
    our_stores: bool,
}

impl End {
    #[inline(always)]
    fn advance(&mut self) {
        self.index = (self.index + 1) & (self.memory.slot_count() - 1);
    }

    #[inline(always)]
    fn publish(&mut self, message: &Message, spin: &mut Spin<'_>) -> Result<(), PeerError> {
        let flag = self.memory.stamp(self.index);
        spin.until_is(flag, SLOT_FREE)?;
        if self.our_stores {
            // SAFETY: the index is masked by the slot count, and the flag says that the reader has released the slot.
            unsafe { self.memory.publish(self.index, message, MSG_READY) };
        } else {
            // SAFETY: as above.
            unsafe { self.memory.write_payload(self.index, message) };
            flag.store(MSG_READY, Ordering::Release);
        }
        self.advance();
        Ok(())
    }

    #[inline(always)]
    fn receive(&mut self, into: &mut Message, spin: &mut Spin<'_>) -> Result<(), PeerError> {
        let flag = self.memory.stamp(self.index);
        spin.until_is(flag, MSG_READY)?;
        // SAFETY: the index is masked by the slot count, and the flag says that the message is complete.
        unsafe { self.memory.copy_in(self.index, into) };
        flag.store(SLOT_FREE, Ordering::Release);
        self.advance();
        Ok(())
    }
}

/// One side: an end of each ring; a stream uses one of them.
pub(super) struct Classic<'a> {
    out: End,
    into: End,
    spin: Spin<'a>,
}

impl<'a> Classic<'a> {
    pub(super) fn new(out: MappedRing, into: MappedRing, our_stores: bool, spin: Spin<'a>) -> Self {
        let (out, into) = (End { memory: out, index: 0, our_stores }, End { memory: into, index: 0, our_stores });
        Self { out, into, spin }
    }
}

impl Calls for Classic<'_> {
    #[inline(always)]
    fn exchange(&mut self, calls: &[Message], answers: &mut [Message]) -> Result<(), PeerError> {
        calls.iter().try_for_each(|call| self.out.publish(call, &mut self.spin))?;
        answers.iter_mut().try_for_each(|answer| self.into.receive(answer, &mut self.spin))
    }

    fn send(&mut self, message: &Message) {
        let _ = self.out.publish(message, &mut self.spin);
    }
}

impl Answers for Classic<'_> {
    #[inline(always)]
    fn serve(&mut self, answer: &mut impl FnMut(&Message) -> Option<Message>) -> Result<(), PeerError> {
        let mut message = Message::ZERO;
        loop {
            self.into.receive(&mut message, &mut self.spin)?;
            let Some(reply) = answer(&message) else { return Ok(()) };
            self.out.publish(&reply, &mut self.spin)?;
        }
    }
}

impl Sends for Classic<'_> {
    #[inline(always)]
    fn send(&mut self, messages: &[Message]) -> Result<(), PeerError> {
        messages.iter().try_for_each(|message| self.out.publish(message, &mut self.spin))
    }

    fn drain(&mut self) -> Result<(), PeerError> {
        let last = self.out.index.wrapping_sub(1) & (self.out.memory.slot_count() - 1);
        let flag = self.out.memory.stamp(last);
        self.spin.until_is(flag, SLOT_FREE)
    }
}

impl Receives for Classic<'_> {
    #[inline(always)]
    fn receive(&mut self, take: &mut impl FnMut(&Message) -> bool) -> Result<(), PeerError> {
        let mut message = Message::ZERO;
        loop {
            self.into.receive(&mut message, &mut self.spin)?;
            if !take(&message) {
                return Ok(());
            }
        }
    }
}
