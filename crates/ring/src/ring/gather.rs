//! When a stream's reader lets messages gather.

use crate::clock;

/// At least this many messages since the last empty look that was followed by a wait,
const LEAST_MESSAGES: u32 = 32;
/// on average within this many ticks of each other, are continuous load.
const MOST_TICKS_PER_MESSAGE: u64 = 128;

/// Waits after an empty look, while the load is continuous.
#[derive(Debug)]
pub(super) struct Gather {
    ticks: u64,
    since_message: u32,
    since_ticks: u64,
}

impl Gather {
    /// Waits of `ticks`; 0: never.
    pub(super) const fn new(ticks: u64) -> Self {
        Self { ticks, since_message: 0, since_ticks: 0 }
    }

    /// A look found nothing, after `received` messages in all (modulo 2^32).
    #[inline(always)]
    pub(super) fn empty_look(&mut self, received: u32) {
        if self.ticks != 0 && received.wrapping_sub(self.since_message) >= LEAST_MESSAGES {
            self.judge(received);
        }
    }

    #[cold]
    fn judge(&mut self, received: u32) {
        let messages = received.wrapping_sub(self.since_message);
        let now_ticks = clock::ticks();
        let is_continuous = now_ticks.wrapping_sub(self.since_ticks) <= u64::from(messages) * MOST_TICKS_PER_MESSAGE;
        (self.since_message, self.since_ticks) = (received, now_ticks);
        while is_continuous && clock::ticks().wrapping_sub(now_ticks) < self.ticks {
            core::hint::spin_loop();
        }
    }
}
