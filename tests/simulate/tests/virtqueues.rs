//! Virtual machines: a few hundred lifetimes, what is found when something is broken on purpose, and that a seed says it all.

use fipsee_simulate::virtqueues::{Broken, Fault, Script, play};

#[test]
fn nothing_is_violated_and_each_lifetime_has_its_requests() {
    for seed in 0..400 {
        let script = Script::draw(seed);
        let outcome = play(&script, None, false);
        if outcome.failure.is_some() {
            let shortest = script.shrink(None);
            let lines = play(&shortest, None, true).trace.join("\n");
            panic!("seed {seed}: {:?}; the shortest found is {shortest:?}:\n{lines}", outcome.failure);
        }
    }
}

#[test]
fn a_seed_plays_the_same_lifetime_again() {
    for seed in 0..40 {
        let (first, second) = (play(&Script::draw(seed), None, true), play(&Script::draw(seed), None, true));
        assert_eq!(first.trace, second.trace, "seed {seed}");
    }
}

#[test]
fn every_kind_of_fault_is_drawn() {
    let drawn: Vec<Fault> = (0..400).flat_map(|seed| Script::draw(seed).faults).map(|(.., fault)| fault).collect();
    for fault in [Fault::Killed, Fault::HungUp, Fault::Reset, Fault::Paused, Fault::Memory, Fault::Call, Fault::BadChain] {
        assert!(drawn.contains(&fault), "{fault:?}");
    }
}

#[test]
fn every_known_bad_variant_is_found() {
    for (broken, name) in Broken::ALL {
        let found = (0..2000).any(|seed| play(&Script::draw(seed), Some(broken), false).failure.is_some());
        assert!(found, "{name} was not found");
    }
}
