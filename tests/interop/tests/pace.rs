//! C and Rust search for the delays and the method of calls in the same way.

use fipsee_interop::ffi::{self, CSearch};
use fipsee_interop::random::Random;
use fipsee_ring::pace::{Delays, Method, Search};
use fipsee_ring::tuning::{Choices, Ownership, Touch};

/// Ticks of a window of 16 exchanges, with noise, on a machine with a ridge; on one where delays lose; on one where methods gain.
fn window_ticks((delays, method): (Delays, Method), machine: u32, random: &mut Random) -> u32 {
    let (caller, answerer) = (delays.caller_ticks, delays.answerer_ticks);
    let exchange = match machine {
        0 if (caller + 40).abs_diff(answerer) < 30 && caller > 20 => 340 + caller / 2,
        0 => 560 + caller / 8,
        1 => 150 + caller + answerer,
        _ => [404, 398, 333, 307][number(method)] + caller / 2 + answerer / 2,
    };
    let bad = 200 * random.below(5);
    u32::try_from(exchange * 16 + bad + random.below(64)).expect("a short time")
}

fn number(method: Method) -> usize {
    [Method::Prefetch, Method::NotAsked, Method::Locked, Method::LockedTouched]
        .iter()
        .position(|one| *one == method)
        .expect("one of the four")
}

fn compare(methods: bool) {
    let (mut c, mut rust, mut random) = (CSearch::start(methods), Search::new(methods), Random::new(7));
    let mut now = (Delays::default(), Method::Prefetch);
    let (mut kept, mut changes, mut kept_methods) = (0, 0, [0; 4]);
    for window in 0..400_000_u32 {
        let ticks = window_ticks(now, window / 50_000 % 3, &mut random);
        let found = rust.window(ticks.into());
        let (delays, method) = found;
        let method = number(method);
        let as_c = (delays.caller_ticks, delays.answerer_ticks, u64::try_from(method).expect("small"));
        assert_eq!(as_c, c.window(ticks), "window {window}");
        kept += u32::from(found == now && delays != Delays::default());
        kept_methods[method] += u32::from(found == now);
        changes += u32::from(found != now);
        now = found;
    }
    assert!(kept > 50_000 && changes > 150, "the searches kept {kept} and changed {changes} times: nothing was compared");
    assert_eq!(kept_methods[3] > 20_000, methods, "{kept_methods:?}: other methods are tried where they are to be");
}

#[test]
fn c_and_rust_find_the_same_delays_from_the_same_windows() {
    compare(false);
}

#[test]
fn c_and_rust_find_the_same_method_from_the_same_windows() {
    compare(true);
}

/// Windows before the search has tried every pair of delays; windows of one trial of a method.
const DELAYS: u32 = 49 * 4 + 10 * 10;
const TRIAL: u32 = 10;

#[test]
fn a_caller_in_c_asks_for_what_it_does_itself() {
    let advice = |ownership| Choices::NONE.with_ownership(ownership).with_touch(Touch::Always);
    let locked = advice(Ownership::LockedAhead);
    assert_eq!(ffi::pace_asks(locked, 400, 0).1, locked, "as advised, until the search begins");
    let asked = |windows| ffi::pace_asks(locked, 400, windows).1;
    assert_eq!(asked(DELAYS), Method::NotAsked.choices());
    assert_eq!(asked(DELAYS + TRIAL), Method::Locked.choices());
    assert_eq!(asked(DELAYS + 2 * TRIAL), Method::LockedTouched.choices());
    assert_eq!(ffi::pace_asks(locked, 400, DELAYS + 3 * TRIAL), (0, Method::Prefetch.choices()), "nothing gains");
    let prefetch = Method::Prefetch.choices();
    for advised in [Choices::NONE, prefetch] {
        for windows in [0, 1, DELAYS, DELAYS + TRIAL] {
            assert_eq!(ffi::pace_asks(advised, 400, windows).1, prefetch, "where no caller has measured methods none is tried");
        }
    }
    assert_eq!(ffi::pace_asks(prefetch.as_measured(), 400, DELAYS + TRIAL).1, Method::Locked.choices());
}
