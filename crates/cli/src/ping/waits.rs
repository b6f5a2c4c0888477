//! `fipsee ping --waits`: the cost of each wait mode, in latency and in processor time. Two processes over a channel of the
//! product, with its doorbells, both waiting in the same way; no daemon.

use std::time::Duration;

use fipsee_measure::harness::{Amount, Change, Partner, RunLength, Sample, Spec, drive};
use fipsee_ring::clock;
use fipsee_ring::wait::WaitMode;
use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::{base_spec, start_partner};
use crate::error::Error;
use crate::output::{self, Table};
use crate::units;

/// Exchanges before the measured ones: they map pages, fill caches, and let the CPU reach its frequency.
const WARM_UP: Duration = Duration::from_millis(50);
/// The length of the exchanges.
const BUSY: Duration = Duration::from_millis(500);
/// The silence in which processor time is measured.
const IDLE: Duration = Duration::from_secs(1);
/// Silences before a message, and how often each.
const SILENCES: [(Duration, u64); 4] = [
    (Duration::from_micros(1), 2000),
    (Duration::from_micros(50), 1000),
    (Duration::from_millis(1), 200),
    (Duration::from_millis(100), 10),
];

/// The results of one wait mode. Times of exchanges in ticks, all others in nanoseconds.
struct Measured {
    round_trip_ticks: Histogram<u64>,
    wakeup_ns: Vec<Histogram<u64>>,
    idle_cpu_percent: f64,
}

/// Measure each wait mode, the calling side on the first of `cpus` and the answering side on the second.
pub(super) fn run(cpus: Option<[usize; 2]>, json: bool) -> Result<(), Error> {
    // Measured once, before the peer is bound to a CPU and takes it.
    let tsc_hz = clock::ticks_per_second();
    let mut lines = Vec::new();
    let headings = ["WAIT", "CYCLES P50", "NS P50", "NS P99", "WAKE 1us", "50us", "1ms", "100ms", "IDLE CPU"];
    let mut table = Table::new(1, &headings);
    for mode in WaitMode::ALL {
        let measured = match mode.available() {
            Ok(()) => Ok(measure(mode, cpus)?),
            Err(unavailable) => Err(unavailable.missing()),
        };
        match (&measured, json) {
            (Ok(measured), true) => output::print_json(&measured.to_json(mode, tsc_hz))?,
            (Err(missing), true) => output::print_json(&json!({ "wait": mode.name(), "unavailable": missing }))?,
            (Ok(measured), false) => table.push(measured.to_row(mode)),
            (Err(missing), false) => lines.push(format!("{mode}: this CPU has {missing}\n")),
        }
    }
    if json {
        return Ok(());
    }
    let place = cpus.map_or_else(|| "wherever the scheduler puts them".to_owned(), |[a, b]| format!("on CPUs {a} and {b}"));
    let head = format!(
        "two processes {place}, both waiting in the same way; a call and its answer at once after another (CYCLES, NS), from publishing to \
         receiving\na call after a silence (WAKE, p50/p99 in ns), processor time of a side that waits for a second (IDLE CPU); \
         cycles of {tsc_hz} Hz\n"
    );
    output::print(&format!("{head}{}{}", table.render(), lines.concat()))
}

fn measure(mode: WaitMode, cpus: Option<[usize; 2]>) -> Result<Measured, Error> {
    let mut partner = start_partner(cpus)?;
    let round_trip_ticks = partner.measure(&spec(mode, cpus), RunLength::of_time(WARM_UP, BUSY))?.ticks;
    let wakeup_ns = SILENCES.map(|(silence, count)| Ok(wake_ups(&mut partner, mode, cpus, silence, count)?.ticks));
    let wakeup_ns = wakeup_ns.into_iter().collect::<Result<_, Error>>()?;
    let idle = wake_ups(&mut partner, mode, cpus, IDLE, 1)?;
    let elapsed_ns = clock::ticks_to_ns(idle.elapsed_ticks).max(1);
    let idle_cpu_percent = 100.0 * units::to_f64(idle.answerer_cpu_ns) / units::to_f64(elapsed_ns);
    Ok(Measured { round_trip_ticks, wakeup_ns, idle_cpu_percent })
}

/// Both sides wait in this way, and in no other: not before the first look.
fn spec(mode: WaitMode, cpus: Option<[usize; 2]>) -> Spec {
    Spec { wait: mode.name().to_owned(), change: Some(Change::FirstLookAfter([0, 0])), ..base_spec(cpus) }
}

fn wake_ups(
    partner: &mut Partner,
    mode: WaitMode,
    cpus: Option<[usize; 2]>,
    silence: Duration,
    count: u64,
) -> Result<Sample, Error> {
    let spec = Spec { silence_us: u64::try_from(silence.as_micros()).ok(), ..spec(mode, cpus) };
    Ok(partner.measure(&spec, RunLength { warm_up: Amount::Time(WARM_UP), measured: Amount::Count(count) })?)
}

/// How long a side that sleeps takes to wake up after `count` silences of `silence`, in nanoseconds.
pub(super) fn sleepers_wake_ups(cpus: Option<[usize; 2]>, silence: Duration, count: u32) -> Result<Histogram<u64>, Error> {
    let mut partner = start_partner(cpus)?;
    Ok(wake_ups(&mut partner, WaitMode::Sleep, cpus, silence, count.into())?.ticks)
}

impl Measured {
    fn to_json(&self, mode: WaitMode, tsc_hz: u64) -> Value {
        let ticks = |quantile| self.round_trip_ticks.value_at_quantile(quantile);
        let wake_up = |((silence, count), ns): (&(Duration, u64), &Histogram<u64>)| {
            json!({
                "silence_us": u64::try_from(silence.as_micros()).unwrap_or(u64::MAX),
                "count": count,
                "ns_p50": ns.value_at_quantile(0.5),
                "ns_p99": ns.value_at_quantile(0.99),
            })
        };
        let wake_ups: Vec<_> = SILENCES.iter().zip(&self.wakeup_ns).map(wake_up).collect();
        json!({
            "wait": mode.name(),
            "round_trip_cycles_p50": ticks(0.5),
            "round_trip_cycles_p99": ticks(0.99),
            "round_trip_ns_p50": clock::ticks_to_ns(ticks(0.5)),
            "round_trip_ns_p99": clock::ticks_to_ns(ticks(0.99)),
            "round_trips": self.round_trip_ticks.len(),
            "wakeups": wake_ups,
            "idle_cpu_percent": self.idle_cpu_percent,
            "clock": drive::shared_clock(),
            "tsc_hz": tsc_hz,
        })
    }

    fn to_row(&self, mode: WaitMode) -> Vec<String> {
        let ticks = |quantile| self.round_trip_ticks.value_at_quantile(quantile);
        let mut row = vec![
            mode.to_string(),
            ticks(0.5).to_string(),
            clock::ticks_to_ns(ticks(0.5)).to_string(),
            clock::ticks_to_ns(ticks(0.99)).to_string(),
        ];
        row.extend(self.wakeup_ns.iter().map(|ns| {
            let [p50, p99] = [0.5, 0.99].map(|quantile| units::nanoseconds(ns.value_at_quantile(quantile)));
            format!("{p50}/{p99}")
        }));
        row.push(format!("{:.2}%", self.idle_cpu_percent));
        row
    }
}
