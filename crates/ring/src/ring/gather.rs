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
    #[must_use]
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::{Choices, Touch};

    /// The most that a wait takes, in ticks.
    const MOST_TICKS: u64 = 2000;

    fn gather(touch: Touch, slot_count: u32) -> Gather {
        Gather::new(&Tuning::usual().with_choices(Choices::NONE.with_touch(touch)), slot_count)
    }

    /// One message, so many ticks after the one before, and an empty look directly after it: what that look waits.
    fn waits(gather: &mut Gather, messages: u32, apart_ticks: u64, now_ticks: &mut u64) -> Vec<u64> {
        let first = gather.since_message;
        let look = |number| {
            *now_ticks += apart_ticks;
            gather.decide(first.wrapping_add(number), *now_ticks)
        };
        (1..=messages).map(look).collect()
    }

    #[test]
    fn a_lone_message_never_waits() {
        for received in [0, u32::MAX - 5] {
            let mut gather = gather(Touch::Always, 1024);
            let mut now_ticks = 1_000_000;
            gather.since_message = received;
            // Continuous load, whose last look waits; then silence, and messages one at a time.
            assert_eq!(waits(&mut gather, 320, 10, &mut now_ticks).iter().filter(|ticks| **ticks != 0).count(), 9);
            assert!(waits(&mut gather, 320, MOST_TICKS_PER_MESSAGE + 1, &mut now_ticks).iter().all(|ticks| *ticks == 0));
        }
    }

    #[test]
    fn a_message_after_a_silence_never_waits_whatever_came_before_it() {
        for before in 0..LEAST_MESSAGES {
            let mut gather = gather(Touch::Always, 1024);
            let mut now_ticks = 1_000_000;
            waits(&mut gather, LEAST_MESSAGES, 10, &mut now_ticks);
            waits(&mut gather, before, 10, &mut now_ticks);
            now_ticks += u64::from(LEAST_MESSAGES) * MOST_TICKS_PER_MESSAGE;
            let received = gather.since_message.wrapping_add(before + 1);
            assert_eq!(gather.decide(received, now_ticks + 1), 0, "{before}");
        }
    }

    #[test]
    fn continuous_load_waits_once_after_an_empty_look_and_for_a_bounded_time() {
        for (slot_count, expected) in [(64, 0), (128, 0), (256, 512), (512, 1024), (1024, MOST_TICKS), (65_536, MOST_TICKS)] {
            let mut gather = gather(Touch::Runs, slot_count);
            let mut now_ticks = 1_000_000;
            assert_eq!(gather.decide(1000, now_ticks), 0, "nothing is known of what came before the first look");
            for burst in 1..10 {
                now_ticks += 40 * MOST_TICKS_PER_MESSAGE;
                assert_eq!(gather.decide(1000 + 40 * burst, now_ticks), expected, "{slot_count} slots");
                // As many empty looks more, none of which waits.
                assert!((0..5).all(|look| gather.decide(1000 + 40 * burst, now_ticks + look) == 0), "{slot_count} slots");
            }
        }
        let mut never = gather(Touch::Never, 1024);
        assert!((1..100).all(|look| never.decide(40 * look, u64::from(look)) == 0), "without the touch there is no wait");
    }
}
