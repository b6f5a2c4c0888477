//! What is compared is measured in one state of the machine: on a virtual machine the host moves virtual CPUs between cores, from two threads
//! of one core (near) to two cores (far), several times a minute, and what passes lines between CPUs then takes several times as long.
//!
//! A run has one state, in which it begins. What begins or ends in the other one is measured again.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fipsee_measure::cpus::Cpus;
use fipsee_measure::statistics::median;
use fipsee_topology::bounce;
use serde_json::{Value, json};

use crate::table::Results;

/// A line that comes back sooner was bounced between CPUs that are near.
pub(crate) const NEAR_NS: f64 = 150.0;
const FLOOR_TIME: Duration = Duration::from_millis(20);
/// Floors of which the median is the state of a run.
const FIRST_FLOORS: usize = 15;
/// How often something is measured again, and how long in all a run waits for its state.
const MOST_TRIES: u32 = 8;
const LONGEST_WAIT: Duration = Duration::from_secs(300);

static REPEATED: AtomicU32 = AtomicU32::new(0);
static UNSTEADY: AtomicU32 = AtomicU32::new(0);
static WAITED: Mutex<Duration> = Mutex::new(Duration::ZERO);
static FIRST_NS: LazyLock<Option<f64>> = LazyLock::new(|| median((0..FIRST_FLOORS).filter_map(|_| floor_ns()).collect()));

/// Looked for before threads are bound to one of them.
static PAIR: LazyLock<Option<[usize; 2]>> = LazyLock::new(|| Cpus::choose().pair());

/// A run begins: the state of now is its state.
pub(crate) fn begin() {
    LazyLock::force(&FIRST_NS);
}

/// Round trip of one line between the CPUs of client and server; `None`: they are one.
fn floor_ns() -> Option<f64> {
    PAIR.and_then(|pair| bounce::round_trip_ns(pair, FLOOR_TIME))
}

/// Is the machine in the state of this run? With one CPU there is only one.
fn is_right() -> bool {
    match (*FIRST_NS, floor_ns()) {
        (Some(first), Some(now)) => (first < NEAR_NS) == (now < NEAR_NS),
        _ => true,
    }
}

/// Until the machine is in the state of this run, or the run has waited for too long.
fn wait() {
    let mut waited = WAITED.lock().unwrap_or_else(PoisonError::into_inner);
    let (before, started) = (*waited, Instant::now());
    while !is_right() && *waited < LONGEST_WAIT {
        *waited = before + started.elapsed();
    }
}

/// Measure, in the state of this run from the beginning to the end; what is added to `results` otherwise is not kept.
pub(crate) fn measure<T>(results: &mut Results, mut measure: impl FnMut(&mut Results) -> Result<T, String>) -> Result<T, String> {
    let mut tries = 0;
    loop {
        wait();
        let mut found = Results::default();
        let value = measure(&mut found)?;
        tries += 1;
        let is_steady = is_right();
        if is_steady || tries == MOST_TRIES {
            UNSTEADY.fetch_add(u32::from(!is_steady), Ordering::Relaxed);
            results.append(found);
            return Ok(value);
        }
        REPEATED.fetch_add(1, Ordering::Relaxed);
    }
}

/// For the results: the state, how often something was measured again, and was not in one state even then.
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
    Some(format!("{state}; measured again because that changed: {repeated} times; changed even then: {unsteady} times"))
}
