//! A few hundred lifetimes, what is found when something is broken on purpose, and that a seed says it all.

use fipsee_simulate::play;
use fipsee_simulate::script::{Fault, Script};
use fipsee_simulate::shrink::shrink;
use fipsee_simulate::variant::Variant;

#[test]
fn nothing_is_violated_and_each_lifetime_has_its_requests_and_a_fault() {
    for seed in 0..400 {
        let outcome = play(&Script::draw(seed), None, false);
        assert_eq!(outcome.failure, None, "seed {seed}; `cargo xtask simulate --seed {seed}` shows it");
        assert!(outcome.faults > 0, "seed {seed} had no fault");
    }
}

#[test]
fn a_seed_plays_the_same_lifetime_again() {
    for seed in 0..40 {
        let (first, second) = (play(&Script::draw(seed), None, true), play(&Script::draw(seed), None, true));
        assert_eq!(first.trace, second.trace, "seed {seed}");
        let script = Script { choices: Some(first.choices.clone()), ..Script::draw(seed) };
        assert_eq!(play(&script, None, true).trace, first.trace, "seed {seed}, by its choices");
    }
}

#[test]
fn every_kind_of_fault_is_drawn() {
    let drawn: Vec<Fault> = (0..400).flat_map(|seed| Script::draw(seed).faults).map(|planned| planned.fault).collect();
    let has = |is_kind: fn(&Fault) -> bool| assert!(drawn.iter().any(is_kind));
    has(|fault| matches!(fault, Fault::ClientGone));
    has(|fault| matches!(fault, Fault::PacketCut));
    has(|fault| matches!(fault, Fault::WorkerSlow(_)));
    has(|fault| matches!(fault, Fault::DiskSlow(_)));
    has(|fault| matches!(fault, Fault::DiskErrors(_)));
    has(|fault| matches!(fault, Fault::Replaced(true)));
    has(|fault| matches!(fault, Fault::Replaced(false)));
    has(|fault| matches!(fault, Fault::Killed));
    has(|fault| matches!(fault, Fault::PowerCut));
    has(|fault| matches!(fault, Fault::Visitor(_)));
    has(|fault| matches!(fault, Fault::Unregister));
}

#[test]
fn every_known_bad_variant_is_found() {
    for (variant, name) in Variant::ALL {
        let found = (0..2000).any(|seed| play(&Script::draw(seed), Some(variant), false).failure.is_some());
        assert!(found, "{name} was not found");
    }
}

#[test]
fn what_fails_is_shrunk_to_something_shorter_that_fails_again() {
    let variant = Some(Variant::SleepWithoutLook);
    let mut seeds = (0..2000).map(Script::draw);
    let script = seeds.find(|script| play(script, variant, false).failure.is_some()).expect("it is found");
    let first = play(&script, variant, false).steps;
    let shrunk = shrink(&script, variant).expect("it fails");
    assert!(shrunk.outcome.steps < first, "{} instead of {first} steps", shrunk.outcome.steps);
    let again = play(&shrunk.script, variant, true);
    assert_eq!((again.failure, again.trace), (shrunk.outcome.failure, shrunk.outcome.trace));
}
