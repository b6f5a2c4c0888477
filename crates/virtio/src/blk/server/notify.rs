//! Interrupts that a policy holds back.

use fipsee_ring::clock;
use fipsee_ring::notify::{Moderator, Policy, to_come};
use fipsee_serve::probe;

use super::VirtqueueServer;

#[derive(Debug)]
pub(super) struct Moderated {
    moderator: Moderator,
    /// While an interrupt is held back: what was published from this position on has had none.
    since: u16,
}

impl VirtqueueServer {
    /// Interrupt the guest as `policy` says from now on, for the virtqueue and for the ring beside it. The first policy touches
    /// nothing of the guest: another daemon may still have to continue with it.
    pub fn set_policy(&mut self, policy: Option<Policy>) {
        if self.policy() == policy {
            return;
        }
        let (ticks_per_second, is_first) = (clock::ticks_per_second(), self.moderated.is_none());
        match (&mut self.moderated, policy) {
            (_, None) => {
                self.interrupt_for_what_is_held();
                self.moderated = None;
            }
            (Some(moderated), Some(policy)) => moderated.moderator.set_policy(policy, ticks_per_second),
            (None, Some(policy)) => {
                self.moderated = Some(Box::new(Moderated { moderator: Moderator::new(policy, ticks_per_second), since: 0 }));
            }
        }
        if let Some(ring) = &mut self.ring {
            ring.server.set_policy(policy);
        }
        if !is_first {
            self.flush();
        }
    }

    pub(super) fn policy(&self) -> Option<Policy> {
        self.moderated.as_ref().map(|moderated| *moderated.moderator.policy())
    }

    /// When [`flush`](Self::flush) is to be called although nothing happens.
    pub fn due(&self) -> Option<u64> {
        let moderated = self.moderated.as_ref()?;
        let on_virtqueue = moderated.moderator.due().filter(|_| !self.queue.is_over());
        let on_ring = self.ring.as_ref().and_then(|ring| ring.server.due());
        on_virtqueue.into_iter().chain(on_ring).min()
    }

    /// Publish, and interrupt the guest as the policy says.
    #[inline(never)]
    pub(super) fn publish_moderated(&mut self) {
        let before = self.queue.published();
        let _ = self.queue.flush();
        let count = self.queue.published().wrapping_sub(before);
        let to_come = to_come(self.in_flight(), self.queue.ring.waiting().into());
        let Some(Moderated { moderator, since }) = self.moderated.as_deref_mut() else { return };
        if moderator.due().is_none() {
            *since = before;
        }
        if self.queue.is_over() || (count == 0 && moderator.due().is_none()) {
            return;
        }
        if !self.queue.wants_interrupt(*since) {
            moderator.reader_is_awake(count.into());
        } else if moderator.reader_sleeps(clock::ticks(), count.into(), to_come) {
            let is_interrupted = self.queue.interrupt();
            self.count_interrupt(is_interrupted);
        } else {
            self.counters.suppressed.add(u64::from(count > 0));
        }
    }

    /// Publish, and interrupt the guest now if it wants that: an interrupt must not wait any longer, or the policy of the ring has
    /// decided it. Returns whether it was interrupted.
    pub(super) fn publish_at_once(&mut self) -> bool {
        let before = self.queue.published();
        let _ = self.queue.flush();
        let mut since = before;
        if let Some(moderated) = &mut self.moderated {
            if moderated.moderator.due().is_some() {
                since = moderated.since;
            }
            moderated.moderator.notified(clock::ticks());
        }
        let is_new = self.queue.published() != since;
        is_new && !self.queue.is_over() && self.queue.wants_interrupt(since) && self.queue.interrupt()
    }

    /// Interrupt at once if that is held back: the queue ends, or is served by another process from here on.
    pub(super) fn interrupt_for_what_is_held(&mut self) {
        if let Some(ring) = &mut self.ring {
            ring.server.ring_what_is_held();
            self.ring_was_served();
        }
        if self.due().is_some() {
            let is_interrupted = self.publish_at_once();
            self.count_interrupt(is_interrupted);
        }
    }

    #[inline(always)]
    pub(super) fn count_interrupt(&self, is_interrupted: bool) {
        if is_interrupted {
            probe!(doorbell, self.id);
            self.counters.doorbells.add(1);
        }
    }
}
