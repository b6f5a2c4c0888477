//! Doorbells that a policy holds back.

use fipsee_ring::clock;
use fipsee_ring::doorbell::ClientDoorbell;
use fipsee_ring::memory::Memory;
use fipsee_ring::notify::{Moderator, Policy, to_come};

use super::QueueServer;

#[derive(Debug)]
pub(super) struct Moderated {
    moderator: Moderator,
    /// Requests answered until the last flush.
    answered: u64,
}

impl<M: Memory, C: ClientDoorbell, O> QueueServer<M, C, O> {
    /// Ring the client's doorbell as `policy` says from now on.
    pub fn set_policy(&mut self, policy: Option<Policy>) {
        if self.moderated.as_ref().map(|moderated| *moderated.moderator.policy()) == policy {
            return;
        }
        let ticks_per_second = clock::ticks_per_second();
        match (&mut self.moderated, policy) {
            (_, None) => {
                self.ring_what_is_held();
                self.moderated = None;
            }
            (Some(moderated), Some(policy)) => {
                moderated.moderator.set_policy(policy, ticks_per_second);
                self.flush_moderated();
            }
            (None, Some(policy)) => {
                let (moderator, answered) = (Moderator::new(policy, ticks_per_second), self.answered());
                self.moderated = Some(Box::new(Moderated { moderator, answered }));
            }
        }
    }

    pub const fn has_policy(&self) -> bool {
        self.moderated.is_some()
    }

    /// When [`flush`](Self::flush) is to be called although nothing happens.
    pub fn due(&self) -> Option<u64> {
        self.moderated.as_ref()?.moderator.due()
    }

    /// Ring at once if a doorbell is held back: the queue is served by another process from here on, or without a policy.
    pub fn ring_what_is_held(&mut self) {
        let Some(moderated) = self.moderated.as_mut().filter(|moderated| moderated.moderator.due().is_some()) else { return };
        moderated.moderator.notified(clock::ticks());
        if self.queue.completions.reader_needs_doorbell() {
            self.ring();
        }
    }

    /// After everything complete was published.
    #[inline(never)]
    pub(super) fn flush_moderated(&mut self) {
        let is_held = self.due().is_some();
        // Requests may only have been taken, or what was held back is rung already: then the client is not looked at. Else at once, as without a policy: many a
        // client is about to sleep, and would do so while the rest is found out.
        let looks = std::mem::take(&mut self.published) || is_held;
        let sleeps = looks && self.queue.completions.reader_sleeps();
        let answered = self.answered();
        let to_come = to_come(self.in_flight, self.queue.requests.has_message().into());
        let Some(Moderated { moderator, answered: before }) = self.moderated.as_deref_mut() else { return };
        let count = u32::try_from(answered.wrapping_sub(std::mem::replace(before, answered))).unwrap_or(u32::MAX);
        if !looks {
            return;
        }
        if !sleeps {
            return moderator.reader_is_awake(count);
        }
        if !moderator.reader_sleeps(clock::ticks(), count, to_come) {
            self.counters.suppressed.add(u64::from(count > 0));
        } else if self.queue.completions.reader_needs_doorbell() {
            self.ring();
        }
    }

    /// Requests answered, from what is counted anyway: each that was taken is counted, and answered or in flight.
    fn answered(&self) -> u64 {
        (self.counters.taken() + self.tally.reads + self.tally.writes).wrapping_sub(self.in_flight.into())
    }

    /// The client rang: was there no request?
    pub fn count_doorbell(&self) {
        self.counters.spurious.add((!self.queue.requests.has_message()).into());
    }

    /// The client's doorbell must be asked for again before sleeping.
    pub fn doorbell_rang(&mut self) {
        self.queue.requests.disarm();
    }
}
