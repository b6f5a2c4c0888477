//! The policy of a calling writer: it has no timer, so the caller says when it waits.

use super::{Moderator, Policy};
use crate::ring::{CallWriter, RingMemory};

/// Decides for the request ring of one queue when the sleeping daemon is woken.
#[derive(Clone, Debug)]
pub struct CallerModerator {
    moderator: Moderator,
    /// Requests outstanding after the last burst.
    outstanding: u32,
}

/// What is to be done about the doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Ring,
    /// The reader sleeps and is rung later. `is_new`: requests were published since it was last asked.
    HoldBack {
        is_new: bool,
    },
    Nothing,
}

impl CallerModerator {
    pub fn new(policy: Policy, ticks_per_second: u64) -> Self {
        Self { moderator: Moderator::new(policy, ticks_per_second), outstanding: 0 }
    }

    /// Requests were published, or what is held back is due. `more`: others may be published before the caller waits.
    #[must_use = "a sleeping reader wakes only by its doorbell"]
    pub fn ask<M: RingMemory>(&mut self, requests: &mut CallWriter<M>, now: impl FnOnce() -> u64, more: bool) -> Verdict {
        let (sleeps, outstanding, free) = (requests.reader_sleeps(), requests.outstanding(), requests.free());
        let count = outstanding.saturating_sub(std::mem::replace(&mut self.outstanding, outstanding)).max(more.into());
        if !sleeps {
            self.moderator.reader_is_awake(count);
            return Verdict::Nothing;
        }
        if !self.moderator.reader_sleeps(now(), count, if more { free } else { 0 }) {
            return Verdict::HoldBack { is_new: count > 0 };
        }
        if requests.reader_needs_doorbell() { Verdict::Ring } else { Verdict::Nothing }
    }

    /// Is [`ask`](Self::ask) to be called though nothing was published?
    pub fn is_due(&self, now: impl FnOnce() -> u64, more: bool) -> bool {
        self.due().is_some_and(|due| !more || due <= now())
    }

    pub fn due(&self) -> Option<u64> {
        self.moderator.due()
    }

    /// Is the doorbell to be rung now, because the caller waits elsewhere or has another policy from now on?
    #[must_use = "a sleeping reader wakes only by its doorbell"]
    pub fn release<M: RingMemory>(&mut self, requests: &mut CallWriter<M>, now: impl FnOnce() -> u64) -> bool {
        if self.due().is_none() {
            return false;
        }
        self.moderator.notified(now());
        requests.reader_needs_doorbell()
    }
}
