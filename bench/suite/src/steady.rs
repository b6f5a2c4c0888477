//! What is compared is measured in one state of the machine: on a virtual machine the host moves virtual CPUs between cores, from two threads
//! of one core (near) to two cores (far), several times a minute, and what passes lines between CPUs then takes several times as long.
//!
//! A run waits for the state that the machine is in most of the time just before, but not for ever, and what does not end in the state in which it
//! began is measured again. What the run reports of a figure is of one state: the one that most was measured in. States are the same if a line takes about
//! as long in both: on some machines that is close to any limit between near and far. A quick run, whose figures nothing is said about, does not wait.

use std::sync::{LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use fipsee_measure::cpus::Cpus;
use fipsee_measure::statistics::median;
use fipsee_ring::{AtomicU32, Ordering};
use fipsee_topology::bounce;
use serde_json::{Value, json};

use crate::table::Results;

/// A line that comes back sooner was bounced between CPUs that are near.
pub(crate) const NEAR_NS: f64 = 150.0;
const FLOOR_TIME: Duration = Duration::from_millis(20);
/// A state is another one if a line takes so many times as long, or if it takes so many times as long in this one.
const ANOTHER: f64 = 1.6;
/// Floors of which the median is the state of a run, and the time between two: together longer than the host leaves the CPUs where they are.
const FIRST_FLOORS: usize = 61;
const BETWEEN_FLOORS: Duration = Duration::from_millis(300);
/// A state that lasts no longer than this does not count: it comes and goes within what is measured, too.
const SHORTEST: Duration = Duration::from_millis(300);
/// How often something is measured in all.
const MOST_TRIES: u32 = 4;
/// How long in all a run waits for its state and measures what it does not keep: so long, or this part of its time once that is longer. What is measured in
/// the other state or across a change in the end is measured in this one in another round.
const LEAST_SPENT: Duration = Duration::from_secs(120);
const SPENT_PART: u32 = 4;

static REPEATED: AtomicU32 = AtomicU32::new(0);
/// Of each state in [`State::ALL`], the round trips before what was measured in it.
static FLOORS: Mutex<[Vec<f64>; State::ALL.len()]> = Mutex::new([const { Vec::new() }; State::ALL.len()]);
/// Of what is being measured: the round trip before it, and whether it has been another one since.
static CURRENT: Mutex<(Option<f64>, bool)> = Mutex::new((None, false));
/// On waiting, and on what was measured again.
static SPENT: Mutex<Duration> = Mutex::new(Duration::ZERO);
static FIRST_NS: LazyLock<Option<f64>> = LazyLock::new(|| median(first_floors()));
static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// In which state something was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    /// As the machine was most of the time before the run.
    First,
    Other,
    /// It changed, however often this was measured again.
    Changed,
}

impl State {
    const ALL: [Self; 3] = [Self::First, Self::Other, Self::Changed];
}

/// Looked for before threads are bound to one of them.
static PAIR: LazyLock<Option<[usize; 2]>> = LazyLock::new(|| Cpus::choose().pair());

/// Is nothing waited for, nor measured again?
static IS_QUICK: OnceLock<bool> = OnceLock::new();

/// A run begins: its state is looked for.
pub(crate) fn begin(is_quick: bool) {
    IS_QUICK.get_or_init(|| is_quick);
    LazyLock::force(&FIRST_NS);
    LazyLock::force(&BEGUN);
}

fn first_floors() -> Vec<f64> {
    let is_quick = IS_QUICK.get() == Some(&true);
    let (count, pause) = if is_quick { (1, Duration::ZERO) } else { (FIRST_FLOORS, BETWEEN_FLOORS) };
    let floor = |number| {
        if number > 0 {
            std::thread::sleep(pause); // tidy: allow sleep, the host's moves are to be seen
        }
        floor_ns()
    };
    (0..count).filter_map(floor).collect()
}

/// Round trip of one line between the CPUs of client and server; `None`: they are one.
fn floor_ns() -> Option<f64> {
    PAIR.and_then(|pair| bounce::round_trip_ns(pair, FLOOR_TIME))
}

/// Are these round trips of one state? With one CPU, and so without round trips, there is only one.
fn are_alike(one: Option<f64>, other: Option<f64>) -> bool {
    one.zip(other).is_none_or(|(one, other)| one.max(other) < ANOTHER * one.min(other))
}

/// Until the machine is in the state of this run, or no more time may be spent on that: the round trip of a line.
fn wait() -> Option<f64> {
    loop {
        let started = Instant::now();
        let now = floor_ns();
        if are_alike(now, *FIRST_NS) || !may_spend() {
            return now;
        }
        spend(started);
    }
}

/// May the run spend time on its state still?
fn may_spend() -> bool {
    *spent() < LEAST_SPENT.max(BEGUN.elapsed() / SPENT_PART)
}

fn spend(since: Instant) {
    let mut spent = spent();
    if spent.is_zero() {
        eprintln!(
            "the host has moved the virtual CPUs; waiting until they are where they mostly were, or measuring again, also later"
        );
    }
    *spent += since.elapsed();
}

fn spent() -> MutexGuard<'static, Duration> {
    SPENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Before what is being measured now.
fn line_ns() -> Option<f64> {
    current().0
}

/// Between two parts of a long measurement that have to be of the same state: a state that comes and goes meanwhile is noticed, too.
pub(crate) fn look() {
    if IS_QUICK.get() == Some(&true) {
        return;
    }
    let before = line_ns();
    let has_changed = || !are_alike(floor_ns(), before);
    if has_changed() {
        std::thread::sleep(SHORTEST); // tidy: allow sleep, the host's moves are to be seen
        current().1 |= has_changed();
    }
}

/// Measure in one state from the beginning to the end: what is added to `results` otherwise is not kept.
pub(crate) fn measure<T>(results: &mut Results, measure: impl FnMut(&mut Results) -> Result<T, String>) -> Result<T, String> {
    measure_in(results, measure).map(|(value, _)| value)
}

/// As [`measure`], and in which state that was; `None` in a quick run.
pub(crate) fn measure_in<T>(
    results: &mut Results,
    mut measure: impl FnMut(&mut Results) -> Result<T, String>,
) -> Result<(T, Option<State>), String> {
    if IS_QUICK.get() == Some(&true) {
        return Ok((measure(results)?, None));
    }
    let mut tries = 0;
    loop {
        let (before, mut found) = (wait(), Results::default());
        *current() = (before, false);
        let started = Instant::now();
        let value = measure(&mut found)?;
        tries += 1;
        look();
        let is_steady = !current().1;
        if is_steady || tries == MOST_TRIES || !may_spend() {
            let state = match is_steady {
                true if are_alike(before, *FIRST_NS) => State::First,
                true => State::Other,
                false => State::Changed,
            };
            floors()[state as usize].extend(before);
            results.append(found, Some(state));
            return Ok((value, Some(state)));
        }
        spend(started);
        REPEATED.fetch_add(1, Ordering::Relaxed);
    }
}

fn current() -> MutexGuard<'static, (Option<f64>, bool)> {
    CURRENT.lock().unwrap_or_else(PoisonError::into_inner)
}

fn floors() -> MutexGuard<'static, [Vec<f64>; State::ALL.len()]> {
    FLOORS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state that most was measured in so far.
pub(crate) fn usual() -> State {
    usual_of(&floors())
}

fn usual_of(floors: &[Vec<f64>; State::ALL.len()]) -> State {
    let [first, other, _] = floors;
    if other.len() > first.len() { State::Other } else { State::First }
}

/// The round trip of a line in the usual state; and how much was measured in it, in the other one, and across a change.
fn summary() -> (Option<f64>, [usize; 3]) {
    let floors = floors();
    let (usual, changed) = (&floors[usual_of(&floors) as usize], floors[State::Changed as usize].len());
    let in_usual = usual.len();
    let in_other = floors.iter().map(Vec::len).sum::<usize>() - in_usual - changed;
    (median(usual.clone()).or(*FIRST_NS), [in_usual, in_other, changed])
}

/// For the results: the state, how often something was measured again, and how much was measured in that state, in the other one, and in neither.
pub(crate) fn to_json() -> Value {
    let (floor_ns, [in_it, in_other, changed]) = summary();
    json!({
        "floor_ns": floor_ns,
        "near": floor_ns.map(|ns| ns < NEAR_NS),
        "repeated": REPEATED.load(Ordering::Relaxed),
        "measured": in_it,
        "other": in_other,
        "changed": changed,
    })
}

/// For people.
pub(crate) fn text() -> Option<String> {
    let (floor_ns, [in_it, in_other, changed]) = summary();
    let state = floor_ns.map(|ns| format!("one line bounced in {ns:.0} ns ({})", if ns < NEAR_NS { "near" } else { "far" }))?;
    let repeated = REPEATED.load(Ordering::Relaxed);
    Some(format!(
        "{state} while {in_it} measurements were made; it changed during {changed} more, also when they were repeated, and was another one during {in_other}. \
         A figure is of the first, where it was measured in it. Repeated because of a change: {repeated} times"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_told_apart_by_how_long_a_line_takes() {
        for (one, other, alike) in [(60.0, 310.0, false), (310.0, 60.0, false), (136.0, 176.0, true), (176.0, 136.0, true)] {
            assert_eq!(are_alike(Some(one), Some(other)), alike, "{one} and {other} ns");
        }
        assert!(are_alike(None, None));
    }

    #[test]
    fn usual_state_is_the_one_that_most_was_measured_in() {
        let floors = |counts: [usize; 3]| counts.map(|count| vec![100.0; count]);
        assert_eq!(usual_of(&floors([3, 2, 9])), State::First);
        assert_eq!(usual_of(&floors([2, 3, 0])), State::Other);
        assert_eq!(usual_of(&floors([0, 0, 0])), State::First);
    }
}
