//! C and Rust search for the delays of calls in the same way.

use fipsee_interop::ffi::CSearch;
use fipsee_interop::random::Random;
use fipsee_ring::pace::{Delays, Search};

/// Ticks of a window of 16 exchanges on a machine with a ridge, with noise; at times on another machine.
fn window_ticks(delays: Delays, other_machine: bool, random: &mut Random) -> u32 {
    let (caller, answerer) = (delays.caller_ticks, delays.answerer_ticks);
    let exchange = match other_machine {
        true => 150 + caller + answerer,
        false if (caller + 40).abs_diff(answerer) < 30 && caller > 20 => 340 + caller / 2,
        false => 560 + caller / 8,
    };
    let bad = 200 * random.below(5);
    u32::try_from(exchange * 16 + bad + random.below(64)).expect("a short time")
}

#[test]
fn c_and_rust_find_the_same_delays_from_the_same_windows() {
    let (mut c, mut rust, mut random) = (CSearch::start(), Search::default(), Random::new(7));
    let (mut delays, mut kept, mut changes) = (Delays::default(), 0, 0);
    for window in 0..400_000_u32 {
        let ticks = window_ticks(delays, window / 50_000 % 2 == 1, &mut random);
        let found = rust.window(ticks.into());
        assert_eq!((found.caller_ticks, found.answerer_ticks), c.window(ticks), "window {window}");
        kept += u32::from(found == delays && found != Delays::default());
        changes += u32::from(found != delays);
        delays = found;
    }
    assert!(kept > 100_000 && changes > 150, "the searches kept {kept} and changed {changes} times: nothing was compared");
}
