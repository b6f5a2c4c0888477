//! The word of choices, and what its advice changes.

use fipsee_ring::cpu::{self, StoreVariant};
use fipsee_ring::tuning::{Choices, Ownership, TAKE_MANY, Touch, Tuning};

#[test]
fn every_choice_survives_its_word() {
    for ownership in [Ownership::PrefetchNext, Ownership::LockedAhead, Ownership::NotAsked] {
        for touch in [Touch::Never, Touch::Runs, Touch::Always] {
            for (store, prefetch, take) in [
                (StoreVariant::Wide16, true, 1),
                (StoreVariant::Split32, false, TAKE_MANY),
                (StoreVariant::Wide64, true, TAKE_MANY),
            ] {
                let made = Choices::NONE.with_ownership(ownership).with_touch(touch).with_store(store);
                let made = made.with_burst_prefetch(prefetch).with_take(take).as_measured();
                let read = Choices::from_word(made.word());
                assert_eq!((read.ownership(), read.touch(), read.store()), (Some(ownership), Some(touch), Some(store)));
                assert_eq!((read.burst_prefetch(), read.take(), read.is_measured()), (Some(prefetch), Some(take), true));
            }
        }
    }
}

/// checks: R-2.6-2
#[test]
fn no_store_is_advised_into_a_cpu_that_lacks_it() {
    let best = cpu::features().store;
    for store in [StoreVariant::Wide16, StoreVariant::Split32, StoreVariant::Wide64] {
        let tuning = Tuning::usual().with_choices(Choices::NONE.with_store(store));
        assert_eq!(tuning.store, store.max(best), "in falling order of what they require of a CPU");
    }
}

/// checks: R-2.6-1
#[test]
fn unknown_values_and_no_advice_change_nothing() {
    let usual = Tuning::usual();
    for word in [0, 0xffef_ffff, 0x0005_7777] {
        assert_eq!(usual.with_choices(Choices::from_word(word)), usual, "{word:#x}");
    }
}

#[test]
fn advice_of_ones_own_choices_changes_nothing() {
    for tuning in [Tuning::usual(), Tuning::default()] {
        assert_eq!(tuning.with_choices(tuning.to_choices()), tuning);
    }
}
