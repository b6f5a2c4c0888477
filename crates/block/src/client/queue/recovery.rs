//! What becomes of the requests of a queue whose channel is gone.

use fipsee_ring::channel::ClientQueue;
use fipsee_ring::port::Port;

use super::{Queue, Use};
use crate::wire::{BlockInfo, CAPABILITY_PACKED};

impl Queue {
    /// After an error of the channel: forget every request without an answer, so that a reconnection does not repeat it.
    /// Whether it was done is unknown.
    pub fn abandon(&mut self) {
        self.acknowledging = 0;
        for tag in self.staged.drain(..) {
            self.uses[usize::from(tag)] = Use::Free;
            self.free_tags.push(tag);
        }
        for tag in (0..u16::MAX).take(self.uses.len()) {
            if std::mem::replace(&mut self.uses[usize::from(tag)], Use::Free) != Use::Free {
                self.port.queue.requests.answered();
                self.free_tags.push(tag);
            }
        }
    }

    /// Replace the dead channel by a new one and publish everything unanswered again, oldest tag numbers first. The
    /// order among requests in flight was never guaranteed. `info`: what the daemon of the new one says.
    pub(in crate::client) fn resume(&mut self, channel: ClientQueue, info: &BlockInfo) {
        self.port = Port::new(channel, self.shared.backoff());
        self.packs = info.can(CAPABILITY_PACKED);
        self.max_segments = info.most_segments();
        self.unacknowledged.clear();
        self.acknowledging = 0;
        self.staged.clear();
        for tag in 0..u16::try_from(self.uses.len()).unwrap_or(u16::MAX) {
            match self.uses[usize::from(tag)] {
                Use::Caller => self.staged.push(tag),
                Use::Internal => {
                    self.uses[usize::from(tag)] = Use::Free;
                    self.free_tags.push(tag);
                }
                Use::Free => {}
            }
        }
        self.submit();
    }
}
