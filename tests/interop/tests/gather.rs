//! Streams' readers in C and Rust let messages gather after the same looks, for as long.

use fipsee_interop::ffi::CGather;
use fipsee_interop::random::Random;
use fipsee_ring::ring::Gather;
use fipsee_ring::tuning::{Choices, Touch, Tuning};

#[test]
fn c_and_rust_wait_after_the_same_empty_looks() {
    let mut random = Random::new(3);
    for touch in [Touch::Never, Touch::Runs, Touch::Always] {
        for slot_count in [2, 64, 255, 256, 512, 999, 1000, 1024, 65_536] {
            let choices = Choices::NONE.with_touch(touch);
            let mut c = CGather::start(choices, slot_count);
            let mut rust = Gather::new(&Tuning::usual().with_choices(choices), slot_count);
            let (mut received, mut now_ticks) = (0_u32, 5_000);
            let mut waits = 0;
            for look in 0..20_000 {
                // Looks again without a message, messages one at a time, bursts; at once, in step, after a silence.
                let messages = [0, 1, 31, 32, 33, random.below(200)][usize::try_from(random.below(6)).expect("small")];
                let messages = u32::try_from(messages).expect("few");
                let apart_ticks = [0, 1, 127, 128, 129, 100_000][usize::try_from(random.below(6)).expect("small")];
                now_ticks += apart_ticks * u64::from(messages.max(1));
                received = received.wrapping_add(messages);
                let waited = rust.decide(received, now_ticks);
                assert_eq!(c.look(messages, now_ticks), waited, "look {look}, {touch:?}, {slot_count} slots");
                assert!(waited <= 2000.min(2 * u64::from(slot_count)), "{waited} ticks");
                waits += u32::from(waited != 0);
            }
            let may_wait = touch != Touch::Never && slot_count >= 256;
            assert_eq!(waits > 100, may_wait, "{waits} waits, {touch:?}, {slot_count} slots");
            assert!(may_wait || waits == 0, "{waits} waits, {touch:?}, {slot_count} slots");
        }
    }
}
