//! A few hundred lifetimes, what is found when something is broken on purpose, and that a seed says it all.

use fipsee_simulate::kinds::{KINDS, of_seed, play};
use fipsee_simulate::moves::{Step, Tally};
use fipsee_simulate::script::{Kind, Script};
use fipsee_simulate::variant::Variant;
use fipsee_simulate::{CallFault, Calls, Disks, Fault, InMove, Machine, MachineFault, Misuse, Moves, Outcome, Ports};

#[test]
fn nothing_is_violated_and_each_lifetime_has_its_requests_and_a_fault() {
    for seed in 0..400 {
        let outcome = play(seed, None, false);
        assert_eq!(outcome.failure, None, "seed {seed}; `cargo xtask simulate --seed {seed}` shows it");
        if !of_seed(seed).is_part() {
            assert!(outcome.made >= 100, "seed {seed} made {} requests", outcome.made);
            assert!(outcome.faults > 0, "seed {seed} had no fault that did anything");
        }
    }
}

#[test]
fn a_seed_plays_the_same_lifetime_again() {
    for seed in 0..40 {
        let (first, second) = (play(seed, None, true), play(seed, None, true));
        assert_eq!(first.trace, second.trace, "seed {seed}");
        if let Some(replay) = of_seed(seed).replay {
            assert_eq!(replay(seed, first.choices.clone()).trace, first.trace, "seed {seed}, by its choices");
        }
    }
}

fn faults<K: Kind>() -> Vec<K::Fault> {
    (0..800).flat_map(|seed| Script::<K>::draw(seed).faults).map(|planned| planned.fault).collect()
}

#[test]
fn every_kind_of_fault_is_drawn() {
    let drawn = faults::<Disks>();
    let has = |is_kind: fn(&Fault) -> bool| assert!(drawn.iter().any(is_kind));
    has(|fault| matches!(fault, Fault::ClientGone));
    has(|fault| matches!(fault, Fault::PacketDamaged(_)));
    has(|fault| matches!(fault, Fault::WorkerSlow(_)));
    has(|fault| matches!(fault, Fault::DiskSlow(_)));
    has(|fault| matches!(fault, Fault::DiskErrors(_)));
    has(|fault| matches!(fault, Fault::Resized(_)));
    has(|fault| matches!(fault, Fault::Replaced(true)));
    has(|fault| matches!(fault, Fault::Replaced(false)));
    has(|fault| matches!(fault, Fault::Killed));
    has(|fault| matches!(fault, Fault::PowerCut));
    has(|fault| matches!(fault, Fault::Drained));
    has(|fault| matches!(fault, Fault::SecondClient(_)));
    has(|fault| matches!(fault, Fault::Unregister));
    has(|fault| matches!(fault, Fault::Moved(_)));
    let drawn = faults::<Calls>();
    let has = |is_kind: fn(&CallFault) -> bool| assert!(drawn.iter().any(is_kind));
    has(|fault| matches!(fault, CallFault::ClientGone));
    has(|fault| matches!(fault, CallFault::PacketDamaged(_)));
    has(|fault| matches!(fault, CallFault::WorkerSlow(_)));
    has(|fault| matches!(fault, CallFault::CallsSlow(_)));
    has(|fault| matches!(fault, CallFault::WorkerGone));
    has(|fault| matches!(fault, CallFault::NoCall));
    has(|fault| matches!(fault, CallFault::Silent));
    has(|fault| matches!(fault, CallFault::Drained));
    has(|fault| matches!(fault, CallFault::Killed));
    let drawn = faults::<Machine>();
    let has = |is_kind: fn(&MachineFault) -> bool| assert!(drawn.iter().any(is_kind));
    has(|fault| matches!(fault, MachineFault::WorkerSlow(_)));
    has(|fault| matches!(fault, MachineFault::DiskSlow(_)));
    has(|fault| matches!(fault, MachineFault::DiskErrors(_)));
    has(|fault| matches!(fault, MachineFault::Killed));
    has(|fault| matches!(fault, MachineFault::HungUp));
    has(|fault| matches!(fault, MachineFault::Reset));
    has(|fault| matches!(fault, MachineFault::Paused));
    has(|fault| matches!(fault, MachineFault::Memory));
    has(|fault| matches!(fault, MachineFault::Call));
    has(|fault| matches!(fault, MachineFault::Transfer));
    has(|fault| matches!(fault, MachineFault::BadChain));
    has(|fault| matches!(fault, MachineFault::InMove(_)));
    let drawn = faults::<Moves>();
    let has = |step, what| assert!(drawn.contains(&Fault::InMove(step, what)), "{what:?} while {step:?}");
    for (step, _) in Step::ALL {
        for what in [InMove::ClientGone, InMove::Killed, InMove::PowerCut, InMove::Replaced, InMove::Drained] {
            has(step, what);
        }
    }
}

#[test]
fn ports_receive_frames_and_their_clients_break_every_rule() {
    let seeds: Vec<u64> = (0..360).filter(|seed| of_seed(*seed).name == Ports::NAME).collect();
    let frames: u32 = seeds.iter().map(|seed| play(*seed, None, false).frames).sum();
    assert!(frames as usize > 50 * seeds.len(), "{frames} frames in {} lifetimes", seeds.len());
    let drawn = faults::<Ports>();
    for misuse in [Misuse::NeverReads, Misuse::Floods, Misuse::WrongFrames, Misuse::PostsTwice, Misuse::PostsNonsense] {
        assert!(drawn.contains(&Fault::Port(misuse)), "{misuse:?}");
    }
    assert!(drawn.iter().any(|fault| matches!(fault, Fault::Replaced(_))) && drawn.contains(&Fault::ClientGone));
}

#[test]
fn queues_move_all_the_time_and_something_is_killed_at_each_step_of_a_move() {
    for kind in [Moves::NAME, Machine::NAME] {
        let mut tally = Tally::default();
        for seed in (0..3200).filter(|seed| of_seed(*seed).name == kind) {
            tally.add(&play(seed, None, false).moves);
        }
        assert!(tally.moves > 2000, "{kind}: {tally:?}");
        let is_reached = |(step, _): &&(Step, &str)| kind == Moves::NAME || !matches!(step, Step::Handed | Step::Added);
        for (step, name) in Step::ALL.iter().filter(is_reached) {
            assert!(tally.kills[*step as usize] > 0, "{kind}, {name}: {tally:?}");
        }
        assert!(tally.refused > 0, "{kind}: {tally:?}");
    }
}

#[test]
fn every_known_bad_variant_is_found() {
    for (variant, name) in Variant::ALL {
        // Nothing else has what these three break.
        let is_takeovers = name.starts_with("withdrawn-") || name == "served-unheard";
        let mut seeds = (0..10_000).filter(|seed| !is_takeovers || of_seed(*seed).name == "takeover");
        let found = seeds.any(|seed| play(seed, Some(variant), false).failure.is_some());
        assert!(found, "{name} was not found");
    }
}

#[test]
fn what_fails_is_shrunk_to_something_shorter_that_fails_again() {
    for (kind, shrink) in KINDS.iter().filter_map(|kind| Some((kind, kind.shrink?))) {
        let is_machine = kind.name == Machine::NAME;
        let variant = Some(if is_machine { Variant::VirtqueueSleepsWithoutLook } else { Variant::SleepWithoutLook });
        // Some fail so soon that nothing is left to leave out, and some are endless.
        let fails = |outcome: Outcome| outcome.failure.is_some() && (100..10_000).contains(&outcome.steps);
        let fails = |seed: &u64| of_seed(*seed).name == kind.name && fails(play(*seed, variant, false));
        let seed = (0..4000).find(fails).expect("it is found");
        let first = play(seed, variant, false).steps;
        let shrunk = shrink(seed, variant).expect("it fails");
        assert!(shrunk.outcome.steps < first, "{}: {} instead of {first} steps", kind.name, shrunk.outcome.steps);
        assert_eq!((shrunk.again.failure, shrunk.again.trace), (shrunk.outcome.failure, shrunk.outcome.trace));
    }
}
