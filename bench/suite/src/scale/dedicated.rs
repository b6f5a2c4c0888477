//! A dedicated disk: its worker has one CPU, all else the other: its client, 100 clients of a shared disk, and the worker for
//! them. From taking a request of the dedicated disk to publishing its completion, as its worker counts it, with these clients and without.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fipsee::load::count_f64;
use fipsee_measure::claim::Claim;
use fipsee_measure::cpus::Cpus;
use fipsee_ring::wait::WaitMode;
use fipsee_testkit::Scratch;
use serde_json::{Value, json};

use super::Part;
use super::crowd::{Crowd, ORDINARY, attach_to};
use crate::Settings;
use crate::daemon::Daemon;
use crate::generator;
use crate::place::on;
use crate::service::MEMORY_BYTES;
use crate::table::{Results, Series};

const P50: &str = "service_ns_p50";
const P999: &str = "service_ns_p999";
const SAMPLES: &str = "service_samples";

const KINDS: [&str; 2] = ["null", "memory"];
const CLIENTS: usize = 100;
const QUICK_CLIENTS: usize = 5;
const LIMIT: f64 = 1.2;
/// Of the seconds for a candidate: one visit in 64 is a sample, and the last thousandth of them is what counts.
const MEASURED: f64 = 2.0;
const WARM_UP: f64 = 0.2;
/// Between two looks at the clock.
const TURNS: u32 = 256;

fn candidate(kind: &str, is_beside: bool) -> String {
    let others = if is_beside { format!("beside {CLIENTS} shared clients") } else { "alone".to_owned() };
    format!("dedicated {kind} disk, 4 KiB, QD1, {others}")
}

/// How often a service time was seen, by where its bucket begins.
type Times = BTreeMap<u64, u64>;

/// Of the only client of the disk `d`, since it attached.
fn times(stat: &Value) -> Result<Times, String> {
    let queues = stat["queues"].as_array().ok_or("stat has no queues")?;
    let queue = queues.iter().find(|queue| queue["disk"] == "d").ok_or("stat has no queue of the dedicated disk")?;
    let buckets = queue["service_ns_histogram"].as_array().ok_or("stat has no service times")?;
    let pair = |bucket: &Value| Some((bucket[0].as_u64()?, bucket[1].as_u64()?));
    buckets.iter().map(pair).collect::<Option<_>>().ok_or_else(|| "service times are pairs of numbers".to_owned())
}

/// What came to `before` until `after`.
fn between(before: &Times, mut after: Times) -> Times {
    for (from_ns, count) in &mut after {
        *count = count.saturating_sub(before.get(from_ns).copied().unwrap_or(0));
    }
    after
}

/// Where the bucket begins that so much of all does not exceed.
fn quantile(times: &Times, part: f64) -> f64 {
    let total: u64 = times.values().sum();
    let (wanted, mut seen) = (part * count_f64(total), 0);
    let reached = times.iter().find(|(_, count)| {
        seen += **count;
        total > 0 && count_f64(seen) >= wanted
    });
    reached.map_or(f64::NAN, |(from_ns, _)| count_f64(*from_ns))
}

pub(super) struct Dedicated {
    skips: Vec<(String, String)>,
}

impl Dedicated {
    pub(super) fn new() -> Self {
        let reason = || ("a dedicated disk".to_owned(), "needs a CPU for its worker and another for everything else".to_owned());
        Self { skips: Cpus::choose().pair().is_none().then(reason).into_iter().collect() }
    }

    pub(super) fn is_chosen(settings: &Settings) -> bool {
        KINDS.iter().any(|kind| is_chosen(settings, kind))
    }
}

fn is_chosen(settings: &Settings, kind: &str) -> bool {
    [false, true].iter().any(|is_beside| settings.chooses(&candidate(kind, *is_beside)))
}

/// With the dedicated disk `d`, whose worker has the server's CPU, and the shared one `m`.
fn start(kind: &str, cpus: Cpus) -> Result<Daemon, String> {
    let disk = |name, more| format!("[[disk]]\nname = \"{name}\"\nkind = \"{kind}\"\nsize = \"{MEMORY_BYTES}\"\n{more}\n");
    let configuration = Scratch::new();
    let path = configuration.file("fipseed.toml", disk("d", "dedicated = true") + &disk("m", ""));
    let list = format!("{},{}", cpus.client, cpus.server);
    let more = ["--workers", "2", "--cpus", &list, "--config", &path.to_string_lossy()];
    let daemon = Daemon::start_program(&Daemon::shipped()?, &[], &more)?;
    let workers = daemon.ask(&json!({ "method": "workers" }))?;
    let all = workers["workers"].as_array().ok_or("no list of workers")?;
    let is_placed = all.iter().any(|worker| worker["state"] == "dedicated" && worker["cpu"].as_u64() == Some(cpus.server as u64));
    if !is_placed {
        return Err(format!("the dedicated worker is not on CPU {}: {workers}", cpus.server));
    }
    if kind == "memory" {
        ["d", "m"].iter().try_for_each(|disk| generator::fill(&daemon.socket(), disk, MEMORY_BYTES))?;
    }
    Ok(daemon)
}

/// Keep the client of the dedicated disk and the others going for so long.
fn drive(dedicated: &mut Crowd, others: &mut Crowd, seconds: f64) -> Result<(), String> {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs_f64(seconds) {
        for _ in 0..TURNS {
            let answered = others.turn()?;
            // The worker for the others has the same CPU.
            if dedicated.turn()? + answered == 0 && !others.lanes.is_empty() {
                std::thread::yield_now();
            }
        }
    }
    Ok(())
}

fn measure_kind(kind: &str, settings: &Settings, round: usize, results: &mut Results) -> Result<(), String> {
    let cpus = Cpus::choose();
    let (daemon, user) = (start(kind, cpus)?, rustix::process::geteuid().as_raw());
    let clients = if settings.quick { QUICK_CLIENTS } else { CLIENTS };
    let orders = [[false, true], [true, false]];
    on(cpus.client, || {
        let mut dedicated = Crowd::new();
        dedicated.join_with(attach_to(&daemon.socket(), "d", user, ORDINARY, WaitMode::Adaptive)?, ORDINARY);
        for is_beside in orders[round % 2] {
            let mut others = Crowd::new();
            (0..if is_beside { clients } else { 0 }).try_for_each(|_| others.join(&daemon.socket(), user, ORDINARY))?;
            drive(&mut dedicated, &mut others, settings.seconds * WARM_UP)?;
            let before = times(&daemon.ask(&json!({ "method": "stat" }))?)?;
            drive(&mut dedicated, &mut others, settings.seconds * MEASURED)?;
            let times = between(&before, times(&daemon.ask(&json!({ "method": "stat" }))?)?);
            let name = candidate(kind, is_beside);
            results.add(&name, P50, quantile(&times, 0.5));
            results.add(&name, P999, quantile(&times, 0.999));
            results.add(&name, SAMPLES, count_f64(times.values().sum()));
        }
        Ok(())
    })
}

impl Part for Dedicated {
    fn measure(&mut self, settings: &Settings, round: usize, results: &mut Results) -> Result<(), String> {
        let chosen = KINDS.iter().filter(|kind| self.skips.is_empty() && is_chosen(settings, kind));
        chosen.copied().try_for_each(|kind| measure_kind(kind, settings, round, results))
    }

    fn print(&self, results: &Results) {
        println!("\n{:<60} {:>9} {:>10} {:>9}", "from taken to published", "p50 ns", "p99.9 ns", "samples");
        for name in KINDS.iter().flat_map(|kind| [false, true].map(|is_beside| candidate(kind, is_beside))) {
            let [p50, p999, samples] = [P50, P999, SAMPLES].map(|metric| results.get(&name, metric).map(Series::median));
            if let (Some(p50), Some(p999), Some(samples)) = (p50, p999, samples) {
                println!("{name:<60} {p50:>9.0} {p999:>10.0} {samples:>9.0}");
            }
        }
    }

    fn claims(&self, _settings: &Settings, results: &Results) -> Vec<Claim> {
        let of = |kind: &&'static str| {
            let [alone, beside] = [false, true].map(|is_beside| results.get(&candidate(kind, is_beside), P999));
            (format!("{kind} disk"), beside.zip(alone).map(|(beside, alone)| beside.ratio_to(alone)))
        };
        let text = format!("p99.9 of a dedicated disk's service time beside {CLIENTS} shared clients over without");
        vec![Claim::all_at_most(LIMIT, &text, KINDS.iter().map(of))]
    }

    fn skips(&self) -> &[(String, String)] {
        &self.skips
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_between_two_looks() {
        let stat = |buckets: Value| {
            let other = json!({ "disk": "m", "service_ns_histogram": [[1, 1_000_000]] });
            json!({ "queues": [other, { "disk": "d", "service_ns_histogram": buckets }] })
        };
        let before = times(&stat(json!([[100, 5000], [900, 7]]))).expect("times");
        let after = times(&stat(json!([[100, 5998], [200, 1], [900, 8]]))).expect("times");
        let times = between(&before, after);
        assert_eq!(times.values().sum::<u64>(), 1000);
        assert_eq!([0.5, 0.999, 1.0].map(|part| quantile(&times, part)), [100.0, 200.0, 900.0]);
        assert!(quantile(&Times::new(), 0.5).is_nan());
        assert!(super::times(&json!({ "queues": [] })).is_err());
    }
}
