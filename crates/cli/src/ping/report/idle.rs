//! Wake-up of a side that sleeps, by the idle state that its CPU may enter: as tables 3 and 4 of the report for MWAIT, which is
//! the kernel's here.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::machine::{MachineInfo, idle_entries};
use super::progress::Progress;
use crate::error::Error;
use crate::ping::waits;
use crate::units;

/// Long enough for every state that is worth entering, and for governors that poll before they halt.
const SILENCE: Duration = Duration::from_millis(1);
/// Limits how long a CPU may take to leave its idle state while the file is open (Linux:
/// Documentation/power/pm_qos_interface.rst).
const LATENCY_LIMIT: &str = "/dev/cpu_dma_latency";
/// Wake-ups of each state, and their total time with the start of the second process.
const COUNT: u32 = 200;
const LEAST_COUNT: u32 = 10;
const START: Duration = Duration::from_millis(80);

/// The results for one limit.
pub(super) struct Waking {
    /// States with a longer exit latency are not entered; none: no limit was set.
    pub(super) limit: Option<String>,
    /// From publishing to the copy on the other side, in nanoseconds.
    pub(super) ns: Histogram<u64>,
    /// How often the answering CPU entered each state meanwhile.
    pub(super) entered: Vec<(String, u64)>,
}

/// All limits, and the reason if they could not be set.
pub(super) struct Wakings {
    pub(super) rows: Vec<Waking>,
    pub(super) missing: Option<String>,
}

/// At most about how long [`run`] takes.
pub(super) fn expected(info: &MachineInfo) -> Duration {
    let limits = u32::try_from(info.idle_states.len() + 1).unwrap_or(1);
    (START + SILENCE * 2 * COUNT) * limits
}

/// Measure for about `time`.
pub(super) fn run(info: &MachineInfo, cpus: Option<[usize; 2]>, time: Duration, progress: &Progress) -> Result<Wakings, Error> {
    let states = info.idle_states.iter().filter(|state| !state.is_disabled);
    let mut limits = vec![None];
    limits.extend(states.map(|state| Some((state.name.clone(), state.latency_us))));
    let share = time / u32::try_from(limits.len()).unwrap_or(1);
    let count = u32::try_from(share.saturating_sub(START).as_nanos() / (2 * SILENCE).as_nanos()).unwrap_or(COUNT);
    let count = count.clamp(LEAST_COUNT, COUNT);
    let (mut rows, mut missing) = (Vec::new(), None);
    for limit in limits {
        progress.check()?;
        let held = match limit.as_ref().map(|(_, latency_us)| hold(*latency_us)).transpose() {
            Ok(held) => held,
            Err(error) => {
                missing =
                    Some(format!("the idle states cannot be limited: {LATENCY_LIMIT}: {error}; run as root for a row of each"));
                break;
            }
        };
        let answerer = cpus.map(|[_, answerer]| answerer);
        let before = answerer.map(idle_entries).unwrap_or_default();
        let ns = waits::sleepers_wake_ups(cpus, SILENCE, count).map_err(|error| progress.explain(error))?;
        let after = answerer.map(idle_entries).unwrap_or_default();
        drop(held);
        let entered = info.idle_states.iter().zip(before.iter().zip(&after));
        let entered = entered.map(|(state, (before, after))| (state.name.clone(), after.saturating_sub(*before)));
        let entered = entered.filter(|(_, count)| *count > 0).collect();
        rows.push(Waking { limit: limit.map(|(name, _)| name), ns, entered });
    }
    Ok(Wakings { rows, missing })
}

/// Forbid states that take longer to leave, for as long as the file is open.
fn hold(latency_us: u64) -> io::Result<File> {
    let mut file = OpenOptions::new().write(true).open(LATENCY_LIMIT)?;
    file.write_all(&i32::try_from(latency_us).unwrap_or(i32::MAX).to_ne_bytes())?;
    Ok(file)
}

impl Waking {
    /// Minimum, mean, median and 99th percentile, in nanoseconds.
    pub(super) fn figures(&self) -> [f64; 4] {
        let at = |quantile| units::to_f64(self.ns.value_at_quantile(quantile));
        [units::to_f64(self.ns.min()), self.ns.mean(), at(0.5), at(0.99)]
    }

    pub(super) fn to_json(&self) -> Value {
        let [min, mean, p50, p99] = self.figures();
        let entered = self.entered.iter().map(|(state, count)| json!({ "state": state, "count": count }));
        json!({
            "limit": self.limit, "silence_us": u64::try_from(SILENCE.as_micros()).unwrap_or(u64::MAX), "count": self.ns.len(),
            "ns_min": min, "ns_mean": mean, "ns_p50": p50, "ns_p99": p99, "entered": entered.collect::<Vec<_>>(),
        })
    }
}
