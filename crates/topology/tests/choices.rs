//! Choices from figures: recorded ones of machines (docs/how-fast.md), and the ring itself on this machine.

mod common;

use std::io;

use common::machine;
use fipsee_ring::cpu::StoreVariant;
use fipsee_ring::tuning::{Choices, Ownership, TAKE_MANY, Touch, Tuning};
use fipsee_topology::choose::{self, Basis, Measure, Task, decide, for_clients, pairs, summary};
use fipsee_topology::machine::{Distance, Machine};

/// A machine by its figures: ticks per message.
struct Recorded {
    figure: fn(Choices, Task) -> f64,
    /// Noise of this many percent, the same each time.
    noise_percent: u64,
    random: u64,
    pieces: usize,
}

impl Recorded {
    fn new(figure: fn(Choices, Task) -> f64, noise_percent: u64) -> Self {
        Self { figure, noise_percent, random: 1, pieces: 0 }
    }
}

impl Measure for Recorded {
    fn measure(&mut self, choices: Choices, task: Task, _: usize) -> io::Result<f64> {
        self.pieces += 1;
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let noise = (self.random >> 40) % (2 * self.noise_percent + 1);
        Ok((self.figure)(choices, task) * (100 + noise) as f64 / 100.0)
    }
}

fn touches(choices: Choices) -> bool {
    choices.touch() != Some(Touch::Never)
}

/// Zen 4, both states: prefetching brings nothing, the lock on a slot and the touch do; stores in three or four are level.
fn zen4(far: bool, choices: Choices, task: Task) -> f64 {
    let locked = choices.ownership() == Some(Ownership::LockedAhead);
    let lone = choices.touch() == Some(Touch::Always);
    let once = choices.take() == Some(1);
    let factor = |is: bool, factor: f64| if is { factor } else { 1.0 };
    match (task, far) {
        (Task::RoundTrip, false) => 404.0 * factor(locked, 0.83) * factor(lone, if locked { 0.925 } else { 1.0 }),
        (Task::RoundTrip, true) => 1452.0 * factor(locked, 0.81) * factor(lone, if locked { 0.95 } else { 1.02 }),
        (Task::Burst8, _) => 119.0 * factor(once, 1.04) * factor(touches(choices), 0.62),
        (Task::Burst64, _) => 66.0 * factor(once, 1.27) * factor(touches(choices), 0.55),
        (Task::Stream | Task::ShortStream, _) => 50.0 * factor(touches(choices), 0.27),
    }
}

/// Zen 5: nothing is asked for, runs are touched.
fn zen5(choices: Choices, task: Task) -> f64 {
    let factor = |is: bool, factor: f64| if is { factor } else { 1.0 };
    let prefetch = choices.burst_prefetch() == Some(true);
    match task {
        Task::RoundTrip => {
            let ownership = match choices.ownership() {
                Some(Ownership::PrefetchNext) => 1.15,
                Some(Ownership::LockedAhead) => 1.0,
                _ => 1.0,
            };
            200.0 * ownership * factor(choices.touch() == Some(Touch::Always), 1.2)
        }
        Task::Burst8 => 59.7 * factor(!prefetch, 0.92) * factor(choices.take() == Some(1), 1.02),
        Task::Burst64 => 27.2 * factor(!prefetch, 0.95) * factor(choices.take() == Some(1), 1.17),
        Task::Stream | Task::ShortStream => 13.7 * factor(touches(choices), 0.5),
    }
}

/// Intel: prefetching brings ownership, and whatever is done instead costs a transfer.
fn intel(choices: Choices, task: Task) -> f64 {
    let factor = |is: bool, factor: f64| if is { factor } else { 1.0 };
    let prefetch = choices.burst_prefetch() == Some(true);
    let quarters = choices.store() != Some(StoreVariant::Wide64);
    match task {
        Task::RoundTrip => {
            let asked = choices.ownership() == Some(Ownership::PrefetchNext);
            560.0 * factor(!asked, 1.2) * factor(choices.touch() == Some(Touch::Always), 1.25) * factor(quarters, 1.08)
        }
        Task::Burst8 | Task::Burst64 => {
            55.0 * factor(!prefetch, 1.3)
                * factor(touches(choices), 1.2)
                * factor(quarters, 1.08)
                * factor(choices.take() == Some(1), 1.1)
        }
        Task::Stream | Task::ShortStream => 16.0 * factor(!prefetch, 1.6) * factor(touches(choices), 2.0),
    }
}

fn usual(store: StoreVariant) -> Choices {
    let none = Choices::NONE.with_ownership(Ownership::PrefetchNext).with_touch(Touch::Never).with_store(store);
    none.with_burst_prefetch(true).with_take(TAKE_MANY)
}

const ALL_STORES: [StoreVariant; 3] = [StoreVariant::Wide64, StoreVariant::Split32, StoreVariant::Wide16];

/// A machine, where its choice begins, what it must be, and with which stores.
type Case = (&'static str, fn(Choices, Task) -> f64, Choices, &'static [StoreVariant], &'static str);

const ZEN4_BEST: &str = "ownership locked ahead, stores 32+16+16, touch always, burst prefetch off, take 16";
const USUAL_64: &str = "ownership prefetch next, stores 64, touch never, burst prefetch on, take 16";

#[test]
fn recorded_machines_get_what_is_best_there_wherever_the_choice_begins() {
    let zen4_family = usual(StoreVariant::Split32).with_ownership(Ownership::LockedAhead).with_touch(Touch::Always);
    let zen4_family = zen4_family.with_burst_prefetch(false);
    let zen5_family = usual(StoreVariant::Wide64).with_ownership(Ownership::NotAsked).with_touch(Touch::Runs);
    let zen5_family = zen5_family.with_burst_prefetch(false);
    let zen5_best = "ownership not asked, stores 64, touch runs, burst prefetch off, take 16";
    let narrow = &ALL_STORES[1..];
    let cases: [Case; 7] = [
        ("Zen 4 near, by family", |choices, task| zen4(false, choices, task), zen4_family, narrow, ZEN4_BEST),
        ("Zen 4 far, by family", |choices, task| zen4(true, choices, task), zen4_family, narrow, ZEN4_BEST),
        ("Zen 5 by family", zen5, zen5_family, &ALL_STORES, zen5_best),
        ("Intel by family", intel, usual(StoreVariant::Wide64), &ALL_STORES, USUAL_64),
        ("Intel, begun as Zen 4", intel, zen4_family, &ALL_STORES, USUAL_64),
        ("Intel, begun as Zen 5", intel, zen5_family, &ALL_STORES, USUAL_64),
        ("no difference at all", |_, _| 100.0, zen4_family, &ALL_STORES, ZEN4_BEST),
    ];
    for noise_percent in [0, 3] {
        for (name, figure, prior, stores, expected) in cases {
            let made = decide(prior, stores, &mut Recorded::new(figure, noise_percent)).expect("figures do not fail");
            assert_eq!(summary(made.choices), expected, "{name}, noise {noise_percent} %: {:?}", made.trials);
        }
    }
}

#[test]
fn an_unknown_family_comes_from_the_usual_choices_to_what_is_better() {
    let made =
        decide(usual(StoreVariant::Wide16), &ALL_STORES[1..], &mut Recorded::new(|choices, task| zen4(false, choices, task), 2));
    let choices = made.expect("figures do not fail").choices;
    assert_eq!((choices.ownership(), choices.touch()), (Some(Ownership::LockedAhead), Some(Touch::Always)));
    // Level there: what nothing is gained by stays as it was.
    assert_eq!((choices.burst_prefetch(), choices.take()), (Some(true), Some(TAKE_MANY)));
}

#[test]
fn a_gain_in_bursts_that_streams_would_pay_for_is_not_taken() {
    let figure = |choices: Choices, task: Task| match (task, choices.burst_prefetch()) {
        (Task::Stream | Task::ShortStream, Some(false)) => 160.0,
        (Task::Burst8 | Task::Burst64, Some(false)) => 80.0,
        _ => 100.0,
    };
    let made = decide(usual(StoreVariant::Wide64), &ALL_STORES, &mut Recorded::new(figure, 0)).expect("figures do not fail");
    assert_eq!(summary(made.choices), USUAL_64);
    let trial = made.trials.iter().find(|trial| trial.tried.burst_prefetch() == Some(false)).expect("tried");
    assert!((trial.ratio - 0.8).abs() < 1e-9 && !trial.taken, "{trial:?}");
}

/// A state that lasts for some pieces, as a virtual machine that is moved: ratios of neighbours hold, medians of all would not.
#[test]
fn a_machine_that_changes_between_near_and_far_is_compared_within_a_state() {
    struct Moving(Recorded);
    impl Measure for Moving {
        fn measure(&mut self, choices: Choices, task: Task, turn: usize) -> io::Result<f64> {
            let far = self.0.pieces / 11 % 2 == 1;
            Ok(self.0.measure(choices, task, turn)? * if far { 3.5 } else { 1.0 })
        }
    }
    let made = decide(usual(StoreVariant::Wide64), &ALL_STORES, &mut Moving(Recorded::new(intel, 1)));
    assert_eq!(summary(made.expect("figures do not fail").choices), USUAL_64);
}

#[test]
fn a_clear_case_needs_few_pieces_and_one_near_the_bar_more() {
    let pieces = |figure| {
        let mut recorded = Recorded::new(figure, 0);
        decide(usual(StoreVariant::Wide64), &ALL_STORES, &mut recorded).expect("figures do not fail");
        recorded.pieces
    };
    let clear = pieces(intel);
    let close = pieces(|choices, _| if choices.touch() == Some(Touch::Never) { 100.0 } else { 95.5 });
    assert!(clear < close, "{clear} {close}");
}

#[test]
fn a_failing_measurement_fails_the_choice() {
    struct Failing;
    impl Measure for Failing {
        fn measure(&mut self, _: Choices, _: Task, _: usize) -> io::Result<f64> {
            Err(io::Error::other("message 7 is not what was sent"))
        }
    }
    let error = decide(Choices::NONE, &ALL_STORES, &mut Failing).expect_err("it failed");
    assert!(error.to_string().contains("message 7"));
}

#[test]
fn a_class_is_measured_where_worker_and_client_are_recommended() {
    let two_sockets = machine("two-sockets");
    let pairs = pairs(&two_sockets, None);
    let classes: Vec<Distance> = pairs.keys().copied().collect();
    assert_eq!(classes, [Distance::SameCore, Distance::SameCache, Distance::OtherSocket]);
    for (distance, (caller, worker)) in &pairs {
        assert_eq!(two_sockets.distance(*caller, *worker), *distance);
        assert_ne!(caller, worker);
    }
    assert!(choose::pairs(&machine("one-cpu"), None).is_empty());
}

#[test]
fn a_bound_worker_gets_the_class_of_its_clients_and_others_what_all_classes_share() {
    let machine = machine("two-sockets");
    let chosen = |choices: Choices| choose::Chosen {
        choices,
        basis: Basis::Measured,
        floor_ticks: [300.0; 2],
        milliseconds: 5.0,
        trials: Vec::new(),
    };
    let (near, far) = (chosen(Choices::NONE.with_take(1)), chosen(Choices::NONE.with_take(TAKE_MANY)));
    let mut all = choose::ByDistance::new();
    assert_eq!(for_clients(&machine, Some(2), &[4], &all), None);
    all.insert(Distance::SameCache, near.clone());
    all.insert(Distance::SameCore, far.clone());
    assert_eq!(for_clients(&machine, Some(2), &[4], &all), Some(&near));
    assert_eq!(for_clients(&machine, Some(2), &[3], &all), None, "another socket, which was not measured");
    assert_eq!(for_clients(&machine, None, &[], &all), Some(&near), "no client is on one core by chance");
    all.insert(Distance::OtherSocket, far);
    assert_eq!(for_clients(&machine, None, &[], &all), None, "it depends on where they run");
}

#[test]
fn families_that_were_measured_are_known() {
    assert!(choose::is_family_known(b"GenuineIntel", 6, 143));
    assert!(choose::is_family_known(b"AuthenticAMD", 0x19, 0x11));
    assert!(choose::is_family_known(b"AuthenticAMD", 0x1a, 2));
    assert!(!choose::is_family_known(b"GenuineIntel", 6, 85));
    assert!(!choose::is_family_known(b"AuthenticAMD", 0x17, 0x31));
    assert!(!choose::is_family_known(b"other       ", 0, 0));
}

#[test]
fn two_cpus_of_this_machine_get_choices_that_can_be_used() {
    let machine = Machine::this();
    let Some((distance, pair)) = pairs(&machine, None).into_iter().next() else {
        eprintln!("fipsee-skip: choices between two CPUs: there is one CPU to be used here");
        return;
    };
    let chosen = choose::choose(pair, choose::of_family()).unwrap_or_else(|error| panic!("{distance:?}: {error}"));
    assert!(chosen.floor_ticks.iter().all(|ticks| *ticks > 0.0) && chosen.milliseconds > 0.0, "{chosen:?}");
    let is_measured = chosen.basis == Basis::Measured;
    assert_eq!((chosen.choices.is_measured(), !chosen.trials.is_empty()), (is_measured, is_measured));
    assert!(chosen.trials.iter().all(|trial| trial.ratio > 0.0 && trial.ratio.is_finite()));
    let tuning = Tuning::usual().with_choices(chosen.choices);
    assert_eq!(choose::over(Choices::NONE, tuning.to_choices()), choose::over(Choices::NONE, chosen.choices));
}

#[test]
fn a_cpu_that_does_not_exist_ends_both_sides_and_is_named() {
    let cpu = Machine::this().usable[0];
    let nowhere = fipsee_topology::pin::FIRST_UNBINDABLE;
    for pair in [(cpu, nowhere), (nowhere, cpu)] {
        let error = choose::choose(pair, Choices::NONE).expect_err("no such CPU").to_string();
        assert!(error.starts_with(&format!("cannot measure on CPU {nowhere}")), "{error}");
    }
}
