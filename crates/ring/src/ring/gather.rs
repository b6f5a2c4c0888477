//! When a stream's reader lets messages gather.

use crate::clock;
use crate::tuning::Tuning;

/// At least this many messages since the last empty look that was followed by a wait,
const LEAST_MESSAGES: u32 = 32;
/// on average within this many ticks of each other, are continuous load.
const MOST_TICKS_PER_MESSAGE: u64 = 128;

/// Waits after an empty look, while the load is continuous. `include/fipsee_stream.h` decides the same.
#[derive(Debug)]
pub struct Gather {
    ticks: u64,
    since_message: u32,
    since_ticks: u64,
}

impl Gather {
    /// Of the reader of a stream of `slot_count` slots.
    pub fn new(tuning: &Tuning, slot_count: u32) -> Self {
        Self { ticks: tuning.gather_and_read_ahead(slot_count).0, since_message: 0, since_ticks: 0 }
    }

    /// A look found nothing, after `received` messages in all (modulo 2^32).
    #[inline(always)]
    pub(super) fn empty_look(&mut self, received: u32) {
        if self.ticks != 0 && received.wrapping_sub(self.since_message) >= LEAST_MESSAGES {
            self.wait(received);
        }
    }

    #[cold]
    fn wait(&mut self, received: u32) {
        let now_ticks = clock::ticks();
        let ticks = self.decide(received, now_ticks);
        while clock::ticks().wrapping_sub(now_ticks) < ticks {
            core::hint::spin_loop();
        }
    }

    /// How many ticks to wait after an empty look at `now_ticks`.
    pub fn decide(&mut self, received: u32, now_ticks: u64) -> u64 {
        let messages = received.wrapping_sub(self.since_message);
        if messages < LEAST_MESSAGES {
            return 0;
        }
        let is_continuous = now_ticks.wrapping_sub(self.since_ticks) <= u64::from(messages) * MOST_TICKS_PER_MESSAGE;
        (self.since_message, self.since_ticks) = (received, now_ticks);
        if is_continuous { self.ticks } else { 0 }
    }
}
