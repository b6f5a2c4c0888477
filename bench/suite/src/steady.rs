//! What is compared is measured in one state of the machine: on a virtual machine the host moves virtual CPUs between cores, from two threads
//! of one core (near) to two cores (far), several times a minute, and what passes lines between CPUs then takes several times as long.
//!
//! A run has one state: the one that the machine is in most of the time just before. It waits for that, but not for ever, and what does not end in
//! the state in which it began is measured again. States are the same if a line takes about as long in both: on some machines that is close to any
//! limit between near and far. A quick run, whose figures nothing is said about, does not wait.

use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};
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
/// How often something is measured again.
const MOST_TRIES: u32 = 8;
/// How long in all a run waits for its state: so long, or this part of its time once that is longer.
const LEAST_WAIT: Duration = Duration::from_secs(120);
const WAITING_PART: u32 = 4;

static REPEATED: AtomicU32 = AtomicU32::new(0);
static UNSTEADY: AtomicU32 = AtomicU32::new(0);
static WAITED: Mutex<Duration> = Mutex::new(Duration::ZERO);
static FIRST_NS: LazyLock<Option<f64>> = LazyLock::new(|| median(first_floors()));
static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);

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

/// Until the machine is in the state of this run, or the run has waited for too long: the round trip of a line.
fn wait() -> Option<f64> {
    let mut waited = WAITED.lock().unwrap_or_else(PoisonError::into_inner);
    let (before, started) = (*waited, Instant::now());
    let longest = LEAST_WAIT.max(BEGUN.elapsed() / WAITING_PART);
    loop {
        let now = floor_ns();
        if are_alike(now, *FIRST_NS) || *waited >= longest {
            return now;
        }
        if *waited == before {
            eprintln!("the host has moved the virtual CPUs; waiting until they are where they were most of the time");
        }
        *waited = before + started.elapsed();
    }
}

/// Measure in one state from the beginning to the end: what is added to `results` otherwise is not kept.
pub(crate) fn measure<T>(results: &mut Results, mut measure: impl FnMut(&mut Results) -> Result<T, String>) -> Result<T, String> {
    if IS_QUICK.get() == Some(&true) {
        return measure(results);
    }
    let mut tries = 0;
    loop {
        let (before, mut found) = (wait(), Results::default());
        let value = measure(&mut found)?;
        tries += 1;
        let is_steady = are_alike(floor_ns(), before);
        if is_steady || tries == MOST_TRIES {
            let is_other = !are_alike(before, *FIRST_NS);
            UNSTEADY.fetch_add(u32::from(!is_steady || is_other), Ordering::Relaxed);
            results.append(found);
            return Ok(value);
        }
        REPEATED.fetch_add(1, Ordering::Relaxed);
    }
}

/// For the results: the state, how often something was measured again, and how often it was not in that state even then.
pub(crate) fn to_json() -> Value {
    json!({
        "floor_ns": *FIRST_NS,
        "near": FIRST_NS.map(|ns| ns < NEAR_NS),
        "repeated": REPEATED.load(Ordering::Relaxed),
        "unsteady": UNSTEADY.load(Ordering::Relaxed),
    })
}

/// For people.
pub(crate) fn text() -> Option<String> {
    let state = FIRST_NS.map(|ns| format!("one line bounced in {ns:.0} ns ({})", if ns < NEAR_NS { "near" } else { "far" }))?;
    let (repeated, unsteady) = (REPEATED.load(Ordering::Relaxed), UNSTEADY.load(Ordering::Relaxed));
    Some(format!(
        "{state}; measured again because that changed: {repeated} times; in another state all the same: {unsteady} times"
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
}
