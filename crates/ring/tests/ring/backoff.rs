//! When waiting turns into sleeping.

use std::time::Duration;

use fipsee_ring::doorbell::{EventDoorbell, await_readable};
use fipsee_ring::wait::{Backoff, Next, WaitMode};
use fipsee_ring::{AtomicU32, Ordering, cpu};

use crate::common::{bind_to_first_cpu, one_at_a_time};

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
fn modes_that_never_sleep_do_not_whether_the_cpu_has_them_or_not() {
    let never_sleep = |mode: &WaitMode| !matches!(mode, WaitMode::Adaptive | WaitMode::Sleep);
    for mode in WaitMode::ALL.into_iter().filter(never_sleep) {
        let mut backoff = Backoff::new(mode, Duration::ZERO);
        assert!((0..MANY_LOOKS).all(|_| backoff.step(false) == Next::Look), "{mode}");
    }
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
fn adaptive_mode_looks_as_long_as_configured() {
    let mut backoff = Backoff::new(WaitMode::Adaptive, Duration::from_secs(3600));
    assert!((0..MANY_LOOKS).all(|_| backoff.step(false) == Next::Look));
}

#[test]
fn reader_on_the_same_cpu_runs_soon_after_its_doorbell() {
    const RINGS: u32 = 201;
    let _alone = one_at_a_time();
    let (doorbell, woken) = (EventDoorbell::new().expect("a doorbell"), AtomicU32::new(0));
    let reads = || {
        bind_to_first_cpu();
        for _ in 0..RINGS {
            await_readable(&doorbell, None).expect("a doorbell");
            rustix::io::read(&doorbell, &mut [0; 8]).expect("it was rung");
            woken.fetch_add(1, Ordering::Release);
        }
    };
    let looks_until_it_ran = |rings: u32| {
        // The reader sleeps again by then, and the scheduler leaves a thread that has run for a while in its turn.
        (0..100).for_each(|_| std::thread::yield_now());
        doorbell.ring();
        let mut backoff = Backoff::new(WaitMode::Pause, Duration::ZERO);
        (0_u32..).take_while(|_| woken.load(Ordering::Acquire) < rings && backoff.step(false) == Next::Look).count()
    };
    std::thread::scope(|scope| {
        scope.spawn(reads);
        let rings = scope.spawn(|| {
            bind_to_first_cpu();
            (1..=RINGS).map(looks_until_it_ran).collect::<Vec<_>>()
        });
        let mut looks = rings.join().expect("it does not fail");
        looks.sort_unstable();
        // After none it has run at once, whatever the writer did.
        looks.retain(|looks| *looks > 0);
        assert!(looks.get(looks.len() / 2).is_none_or(|looks| *looks <= 4), "looks before the reader ran: {looks:?}");
    });
}

#[test]
fn modes_are_read_from_their_names_only() {
    for mode in WaitMode::ALL {
        assert_eq!(mode.to_string().parse(), Ok(mode));
    }
    assert_eq!("poll".parse(), Ok(WaitMode::Pause), "its old name");
    let error = "Poll".parse::<WaitMode>().expect_err("names are lower case");
    let names = "adaptive, pause, spin, yield, sleep, umwait, tpause or monitorx";
    assert!(error.contains("'Poll'") && error.contains(names), "{error}");
}

#[test]
fn modes_without_instructions_of_their_own_are_there_and_the_others_if_the_cpu_says_so() {
    for mode in WaitMode::ALL {
        let has_instructions = match mode {
            WaitMode::Umwait | WaitMode::Tpause => cpu::features().has_waitpkg,
            WaitMode::Monitorx => cpu::features().has_monitorx,
            _ => true,
        };
        match mode.available() {
            Ok(()) => assert!(has_instructions, "{mode}"),
            Err(unavailable) => {
                assert!(!has_instructions, "{mode}");
                let text = unavailable.to_string();
                let says = text.starts_with(&format!("wait mode {mode}: this CPU has no ")) && text.contains("CPUID leaf");
                assert!(says && text.contains("; use adaptive, pause, spin, yield"), "{text}");
            }
        }
    }
}
