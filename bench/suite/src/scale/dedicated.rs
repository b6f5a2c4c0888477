//! A dedicated disk: its worker has one CPU, all else the other: its client, 100 clients of a shared disk, and the worker for
//! them. From taking a request of the dedicated disk to publishing its completion, as its worker counts it, with these clients and
//! without: then another daemon has them, whose worker takes the same CPU. A client with half of a CPU is served more slowly than one with all of it, whatever has the
//! other half (docs/scale.md), so that is compared where it has as much.
//!
//! The client of the dedicated disk has a thread of its own. When one thread looked at the dedicated queue and the others by turns, it took
//! lines from the worker at other times beside them than alone, as it did where the others belonged to another daemon.

use std::collections::BTreeMap;
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use fipsee::load::count_f64;
use fipsee_measure::claim::Claim;
use fipsee_measure::cpus::Cpus;
use fipsee_measure::statistics::is_undecided;
use fipsee_ring::wait::WaitMode;
use fipsee_testkit::Scratch;
use serde_json::{Value, json};

use super::crowd::{Crowd, ORDINARY, attach_to};
use crate::daemon::Daemon;
use crate::parts::Part;
use crate::place::on;
use crate::service::MEMORY_BYTES;
use crate::steady::State;
use crate::table::{RATE, Results, Series};
use crate::{Settings, generator, steady};

const P50: &str = "service_ns_p50";
const P999: &str = "service_ns_p999";
const SAMPLES: &str = "service_samples";
const OTHERS_RATE: &str = "others_requests_per_s";

const KINDS: [&str; 2] = ["null", "memory"];
const CLIENTS: usize = 100;
const QUICK_CLIENTS: usize = 5;
const LIMIT: f64 = 1.2;
/// One visit in 64 is a sample, and the last thousandth of them is what counts: so often in each round, for so many of the seconds for a candidate.
const CYCLES: usize = 8;
const MEASURED: f64 = 1.5;
const WARM_UP: f64 = 0.1;

const BESIDE: &str = "beside 100 shared clients";
const ELSEWHERE: &str = "beside 100 clients of another daemon";
const ALONE: &str = "alone";
const PLACES: [&str; 3] = [BESIDE, ELSEWHERE, ALONE];

fn candidate(kind: &str, place: &str) -> String {
    format!("dedicated {kind} disk, 4 KiB, QD1, {place}")
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
    PLACES.iter().any(|place| settings.chooses(&candidate(kind, place)))
}

fn disk(kind: &str, name: &str, more: &str) -> String {
    format!("[[disk]]\nname = \"{name}\"\nkind = \"{kind}\"\nsize = \"{MEMORY_BYTES}\"\n{more}\n")
}

/// No worker of it sleeps: while the others have the client's CPU, one that waits adaptively would, and the times were those of waking up.
fn with_disks(disks: &str, cpus: &[usize]) -> Result<Daemon, String> {
    let configuration = Scratch::new();
    let path = configuration.file("fipseed.toml", disks);
    let (workers, cpus) = (cpus.len().to_string(), cpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(","));
    let more = ["--wait", "pause", "--workers", &workers, "--cpus", &cpus, "--config", &path.to_string_lossy()];
    Daemon::start_program(&Daemon::shipped()?, &[], &more)
}

/// With the dedicated disk `d`, whose worker has the server's CPU, and the shared one `m`.
fn start(kind: &str, cpus: Cpus) -> Result<Daemon, String> {
    let daemon = with_disks(&(disk(kind, "d", "dedicated = true") + &disk(kind, "m", "")), &[cpus.client, cpus.server])?;
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

/// With a shared disk `m`, whose worker has the client's CPU.
fn start_other(kind: &str, cpus: Cpus) -> Result<Daemon, String> {
    let daemon = with_disks(&disk(kind, "m", ""), &[cpus.client])?;
    if kind == "memory" {
        generator::fill(&daemon.socket(), "m", MEMORY_BYTES)?;
    }
    Ok(daemon)
}

/// Keep both going for so long, each by a thread of its own as two programs would be: requests per second of the dedicated disk and of the others.
/// The client of the dedicated disk looks without a pause, so the others get the CPU when the kernel gives it to them.
fn drive(dedicated: &mut Crowd, others: &mut Crowd, seconds: f64) -> Result<[f64; 2], String> {
    let duration = Duration::from_secs_f64(seconds);
    let rate = |(seconds, completed): (f64, Vec<u64>)| count_f64(completed.iter().sum()) / seconds;
    std::thread::scope(|scope| {
        let others = (!others.lanes.is_empty()).then(|| scope.spawn(|| others.run(duration)));
        let of_dedicated = dedicated.run(duration).map(rate);
        let join = |thread: ScopedJoinHandle<_>| thread.join().map_err(|_| "the thread of the others panicked".to_owned())?;
        let of_others = others.map_or(Ok(0.0), |thread| join(thread).map(rate));
        Ok([of_dedicated?, of_others?])
    })
}

/// The cycles of a round together, of each state of the machine: one has few samples in its last thousandth.
fn measure_kind(kind: &str, settings: &Settings, results: &mut Results) -> Result<(), String> {
    let daemons = [start(kind, Cpus::choose())?, start_other(kind, Cpus::choose())?];
    let mut all = BTreeMap::<(Option<State>, String), Times>::new();
    for _ in 0..if settings.quick { 1 } else { CYCLES } {
        let (cycle, state) = steady::measure_in(results, |results| measure_cycle(kind, &daemons, settings, results))?;
        for (name, times) in cycle {
            let all = all.entry((state, name)).or_default();
            times.into_iter().for_each(|(from_ns, count)| *all.entry(from_ns).or_default() += count);
        }
    }
    for ((state, name), times) in &all {
        results.add_in(*state, name, P50, quantile(times, 0.5));
        results.add_in(*state, name, P999, quantile(times, 0.999));
        results.add_in(*state, name, SAMPLES, count_f64(times.values().sum()));
    }
    Ok(())
}

/// The times in each place, one right after the other.
fn measure_cycle(
    kind: &str,
    [daemon, other]: &[Daemon; 2],
    settings: &Settings,
    results: &mut Results,
) -> Result<Vec<(String, Times)>, String> {
    let (cpus, user) = (Cpus::choose(), rustix::process::geteuid().as_raw());
    let clients = if settings.quick { QUICK_CLIENTS } else { CLIENTS };
    on(cpus.client, || {
        let mut dedicated = Crowd::new();
        dedicated.join_with(attach_to(&daemon.socket(), "d", user, ORDINARY, WaitMode::Adaptive)?, ORDINARY);
        let mut all = Vec::new();
        for place in PLACES {
            let mut others = Crowd::new();
            others.yields = true;
            if place != ALONE {
                let socket = if place == BESIDE { daemon.socket() } else { other.socket() };
                (0..clients).try_for_each(|_| others.join(&socket, user, ORDINARY))?;
            }
            drive(&mut dedicated, &mut others, settings.seconds * WARM_UP)?;
            let before = times(&daemon.ask(&json!({ "method": "stat" }))?)?;
            let rates = drive(&mut dedicated, &mut others, settings.seconds * MEASURED)?;
            let times = between(&before, times(&daemon.ask(&json!({ "method": "stat" }))?)?);
            let name = candidate(kind, place);
            results.add(&name, RATE, rates[0]);
            results.add(&name, OTHERS_RATE, rates[1]);
            all.push((name, times));
        }
        Ok(all)
    })
}

impl Part for Dedicated {
    fn measure(&mut self, settings: &Settings, _round: usize, results: &mut Results) -> Result<(), String> {
        for kind in KINDS.iter().filter(|kind| is_chosen(settings, kind)) {
            if !self.skips.is_empty() {
                return Ok(());
            }
            measure_kind(kind, settings, results)?;
        }
        Ok(())
    }

    fn undecided(&self, results: &Results) -> Vec<String> {
        let undecided = |kind: &&&str| {
            let [with, without] = [BESIDE, ELSEWHERE].map(|place| results.get(&candidate(kind, place), P999));
            matches!((with, without), (Some(with), Some(without)) if is_undecided(with.ratios_to(without), LIMIT))
        };
        KINDS.iter().filter(undecided).map(|kind| candidate(kind, BESIDE)).collect()
    }

    fn print(&self, results: &Results) {
        let [rate, of_others] = ["requests/s", "others'"];
        println!(
            "\n{:<66} {:>9} {:>10} {:>9} {rate:>10} {of_others:>10}",
            "from taken to published", "p50 ns", "p99.9 ns", "samples"
        );
        for name in KINDS.iter().flat_map(|kind| PLACES.map(|place| candidate(kind, place))) {
            let [p50, p999, samples, rate, of_others] =
                [P50, P999, SAMPLES, RATE, OTHERS_RATE].map(|metric| results.get(&name, metric).map_or(f64::NAN, Series::median));
            if p50.is_nan() {
                continue;
            }
            println!("{name:<66} {p50:>9.0} {p999:>10.0} {samples:>9.0} {rate:>10.0} {of_others:>10.0}");
        }
    }

    fn claims(&self, _settings: &Settings, results: &Results) -> Vec<Claim> {
        let of = |kind: &&'static str| {
            let of_place = |place| results.get(&candidate(kind, place), P999);
            (format!("{kind} disk"), of_place(BESIDE).zip(of_place(ELSEWHERE)).map(|(with, without)| with.ratio_to(without)))
        };
        let text = "p99.9 of a dedicated disk's service time beside 100 shared clients over beside 100 of another daemon";
        vec![Claim::all_at_most(LIMIT, text, KINDS.iter().map(of))]
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
