//! The choices of the ring's hot path ([`fipsee_ring::tuning`]), made by measurement between two CPUs
//! (docs/decisions/0027-choices-by-measurement.md): two pinned threads pass messages through the ring of this workspace, candidate
//! and present choice by turns, and [`decide()`] keeps what is clearly faster.
//!
//! A piece of measurement is the median of windows of a few exchanges, so that it survives interrupts and other load. Two pieces
//! that follow each other are compared, and of these ratios the median counts: a virtual machine is moved between cores within
//! seconds, and both pieces see the same. Threads of one core are not measured: a line does not move between them.

mod decide;
mod fixture;
mod sides;
mod words;

use std::collections::BTreeMap;
use std::io;
use std::time::Instant;

use fipsee_ring::clock;
use fipsee_ring::cpu::{self, StoreVariant};
use fipsee_ring::tuning::{Choices, Tuning};

pub use self::decide::{Decision, Measure, Task, Trial, decide};
pub use self::words::{BY_FAMILY, field, over, reason, summary};
use crate::machine::{Distance, Machine};
use crate::matrix::Matrix;
use crate::plan::Plan;

/// A word bounced on one line between two threads of one core is back within this many nanoseconds, from another core it is not:
/// siblings were seen to take 27 to 44, the nearest cores 54 and more. In between measuring is harmless: it finds no difference.
pub const ONE_CORE_NS: f64 = 35.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Basis {
    Measured,
    /// The line did not move: both threads were on one core. Those from before, or of the CPU's family, are kept.
    OneCore,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    pub choices: Choices,
    pub basis: Basis,
    /// A word bounced on one line, there and back, in ticks: before all else, and after.
    pub floor_ticks: [f64; 2],
    pub milliseconds: f64,
    /// What was tried, in its order.
    pub trials: Vec<Trial>,
}

/// The choices of each class of pairs that was measured.
pub type ByDistance = BTreeMap<Distance, Chosen>;

pub fn of_family() -> Choices {
    Tuning::default().to_choices()
}

/// Was a CPU of this family measured, so that its choices are more than a guess?
pub fn is_family_known(vendor: &[u8; 12], family: u32, model: u32) -> bool {
    let by_table = Tuning::for_family(vendor, family, model) != Tuning::usual();
    // The usual choices are those of Sapphire and Emerald Rapids, and were not beaten on Zen 3.
    by_table || matches!((vendor, family, model), (b"GenuineIntel", 6, 143 | 207) | (b"AuthenticAMD", 0x19, 0x00..=0x0f))
}

/// The stores that this CPU has, the one that asks most of it first.
pub fn stores() -> Vec<StoreVariant> {
    let best = cpu::features().store;
    let all = [StoreVariant::Wide64, StoreVariant::Split32, StoreVariant::Wide16];
    all.into_iter().filter(|store| store.or_best_below(best) == *store).collect()
}

/// Choose between two CPUs, the first of which calls. `prior` is kept where nothing else is clearly better.
///
/// # Errors
/// A thread cannot be started or bound, memory is missing, a CPU is so busy that it did not answer for seconds, or a message
/// was not what was sent.
pub fn choose(pair: (usize, usize), prior: Choices) -> io::Result<Chosen> {
    fixture::run(pair, |fixture| {
        let started = Instant::now();
        let before = fixture.floor()?;
        let decision = if is_one_core(before) { None } else { Some(decide(prior, &stores(), fixture)?) };
        let after = fixture.floor()?;
        let milliseconds = started.elapsed().as_secs_f64() * 1e3;
        let floor_ticks = [before, after];
        // A virtual machine may be moved meanwhile: nothing that was found on one core holds for two.
        Ok(match decision.filter(|_| !is_one_core(after)) {
            Some(Decision { choices, trials }) => {
                Chosen { choices: choices.as_measured(), basis: Basis::Measured, floor_ticks, milliseconds, trials }
            }
            None => Chosen { choices: prior, basis: Basis::OneCore, floor_ticks, milliseconds, trials: Vec::new() },
        })
    })
}

fn is_one_core(floor_ticks: f64) -> bool {
    floor_ticks * 1e9 / crate::matrix::to_f64(clock::ticks_per_second()) < ONE_CORE_NS
}

/// One round of a comparison: the floor before and after it, and of each of the choices the ticks per message of every task.
pub type Round = ([f64; 2], Vec<BTreeMap<Task, f64>>);

/// Measure all tasks with each of `all`, by turns, `rounds` times. For checks of what was chosen.
pub fn compare(pair: (usize, usize), all: &[Choices], rounds: usize) -> io::Result<Vec<Round>> {
    fixture::run(pair, |fixture| {
        let mut found = Vec::with_capacity(rounds);
        for round in 0..rounds {
            let before = fixture.floor()?;
            let mut figures = vec![BTreeMap::new(); all.len()];
            for task in Task::ALL {
                // Each comes first in one round of `all.len()`.
                for (index, _) in all.iter().enumerate() {
                    let index = (index + round) % all.len();
                    if let (Some(choices), Some(figures)) = (all.get(index), figures.get_mut(index)) {
                        figures.insert(task, fixture.measure(*choices, task, round)?);
                    }
                }
            }
            found.push(([before, fixture.floor()?], figures));
        }
        Ok(found)
    })
}

/// A pair of usable CPUs of each class, the caller's first: where a worker and its client are recommended, if that is one.
pub fn pairs(machine: &Machine, matrix: Option<&Matrix>) -> BTreeMap<Distance, (usize, usize)> {
    let mut pairs = BTreeMap::new();
    let plan = Plan::new(machine, matrix, 1);
    for poller in &plan.pollers {
        for client in &poller.clients {
            pairs.entry(machine.distance(poller.cpu, *client)).or_insert((*client, poller.cpu));
        }
    }
    let cpus = &machine.usable;
    for (index, a) in cpus.iter().enumerate() {
        for b in cpus.iter().skip(index + 1) {
            pairs.entry(machine.distance(*a, *b)).or_insert((*a, *b));
        }
    }
    pairs
}

/// Choose for a pair of each class of the machine. Choices from before, `earlier`, are kept where the two are on one core now.
pub fn choose_all(machine: &Machine, matrix: Option<&Matrix>, earlier: &ByDistance) -> io::Result<ByDistance> {
    let mut chosen = ByDistance::new();
    for (distance, pair) in pairs(machine, matrix) {
        let mut found = choose(pair, of_family())?;
        if let Some(earlier) = earlier.get(&distance).filter(|_| found.basis == Basis::OneCore) {
            found.choices = earlier.choices;
        }
        chosen.insert(distance, found);
    }
    Ok(chosen)
}

/// What a worker on `cpu`, if it is bound, should use with clients on `clients`, best first: the choices of the class of the
/// first such pair. Without a pair, those that all classes have in common; `None` if there is no such thing.
pub fn for_clients<'a>(machine: &Machine, cpu: Option<usize>, clients: &[usize], chosen: &'a ByDistance) -> Option<&'a Chosen> {
    if let (Some(cpu), Some(client)) = (cpu, clients.first()) {
        return chosen.get(&machine.distance(cpu, *client));
    }
    // Without being bound, no thread stays on one core.
    let mut between_cores = chosen.iter().filter(|(distance, _)| **distance != Distance::SameCore).map(|(_, chosen)| chosen);
    let first = between_cores.next()?;
    between_cores.all(|other| other.choices == first.choices).then_some(first)
}
