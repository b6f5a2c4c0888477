//! When waiting turns into sleeping.
#![cfg(not(loom))]

use std::time::Duration;

use fipsee_ring::wait::{Backoff, Next, WaitMode};

/// More empty looks than any mode pauses before it yields.
const MANY_LOOKS: u32 = 20_000;

#[test]
fn sleep_mode_sleeps_after_the_first_empty_look() {
    let mut backoff = Backoff::new(WaitMode::Sleep, Duration::from_secs(3600));
    assert_eq!(backoff.step(false), Next::Sleep);
    backoff.reset();
    assert_eq!(backoff.step(false), Next::Sleep);
}

#[test]
fn poll_mode_never_sleeps() {
    let mut backoff = Backoff::new(WaitMode::Poll, Duration::ZERO);
    assert!((0..MANY_LOOKS).all(|_| backoff.step(false) == Next::Look));
}

#[test]
fn adaptive_mode_looks_first_and_then_sleeps() {
    let mut backoff = Backoff::new(WaitMode::Adaptive, Duration::ZERO);
    let looks_before_sleep = |backoff: &mut Backoff| (0..MANY_LOOKS).take_while(|_| backoff.step(false) == Next::Look).count();
    let looks = looks_before_sleep(&mut backoff);
    assert!((1..20_000).contains(&looks), "{looks} looks before the first sleep");
    assert_eq!(backoff.step(false), Next::Sleep, "an empty look after that sleeps again");
    backoff.reset();
    assert_eq!(looks_before_sleep(&mut backoff), looks, "work starts the count again");
}

#[test]
fn adaptive_mode_looks_as_long_as_it_was_told() {
    let mut backoff = Backoff::new(WaitMode::Adaptive, Duration::from_secs(3600));
    assert!((0..MANY_LOOKS).all(|_| backoff.step(false) == Next::Look));
}

#[test]
fn modes_are_read_from_their_names_only() {
    assert_eq!("poll".parse(), Ok(WaitMode::Poll));
    assert_eq!("adaptive".parse(), Ok(WaitMode::Adaptive));
    assert_eq!("sleep".parse(), Ok(WaitMode::Sleep));
    let error = "Poll".parse::<WaitMode>().expect_err("names are lower case");
    assert!(error.contains("'Poll'") && error.contains("poll, adaptive or sleep"), "{error}");
}
