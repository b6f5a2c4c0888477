//! When the reader of a stream waits for messages to gather, without a clock.

use fipsee_ring::ring::Gather;
use fipsee_ring::tuning::{Choices, Touch, Tuning};

/// Messages without which there is no continuous load, and the most ticks for each (`crates/ring/src/ring/gather.rs`).
const LEAST_MESSAGES: u32 = 32;
const MOST_TICKS_PER_MESSAGE: u64 = 128;
/// The most that a wait takes, in ticks.
const MOST_TICKS: u64 = 2000;

fn gather(touch: Touch, slot_count: u32) -> Gather {
    Gather::new(&Tuning::usual().with_choices(Choices::NONE.with_touch(touch)), slot_count)
}

/// Messages, each so many ticks after the one before, with an empty look directly after each: what those looks wait.
fn waits(gather: &mut Gather, received: &mut u32, messages: u32, apart_ticks: u64, now_ticks: &mut u64) -> Vec<u64> {
    let look = |_| {
        *now_ticks += apart_ticks;
        *received = received.wrapping_add(1);
        gather.decide(*received, *now_ticks)
    };
    (0..messages).map(look).collect()
}

#[test]
fn a_lone_message_never_waits() {
    for mut received in [0, u32::MAX - 5] {
        let mut gather = gather(Touch::Always, 1024);
        let mut now_ticks = 1_000_000;
        gather.decide(received, now_ticks);
        // Continuous load, whose looks wait now and then; then silence, and messages one at a time.
        assert!(waits(&mut gather, &mut received, 320, 10, &mut now_ticks).iter().any(|ticks| *ticks != 0));
        let lone = waits(&mut gather, &mut received, 320, MOST_TICKS_PER_MESSAGE + 1, &mut now_ticks);
        assert!(lone.iter().all(|ticks| *ticks == 0));
    }
}

#[test]
fn a_message_after_a_silence_never_waits_whatever_came_before_it() {
    for before in 0..LEAST_MESSAGES {
        let mut gather = gather(Touch::Always, 1024);
        let (mut received, mut now_ticks) = (0, 1_000_000);
        waits(&mut gather, &mut received, LEAST_MESSAGES, 10, &mut now_ticks);
        waits(&mut gather, &mut received, before, 10, &mut now_ticks);
        now_ticks += u64::from(LEAST_MESSAGES) * MOST_TICKS_PER_MESSAGE;
        assert_eq!(gather.decide(received + 1, now_ticks + 1), 0, "{before}");
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
