//! `cargo xtask bench hostile`: what a faulty client of a disk or port costs a correct one, and when the daemon has released it.
//!
//! The victim's throughput is measured beside each faulty peer and beside its *baseline*, a correct client that does as much:
//! both take time from the victim by being there, which the scheduler and the worker share out and no daemon can prevent. What
//! the fault costs is the ratio of the two. The daemon's worker has a CPU of its own; faulty peer and baseline have another, or
//! share the victim's.
//!
//! Where they share it (two CPUs), requests per second say how the scheduler divides that CPU, and no more. What the claim is
//! about is requests per second of the victim's own processor time (`victim`): that also runs while the worker makes the victim
//! wait. What it cannot show there: a faulty peer that acts in the same instant as the victim. The two take turns, by
//! milliseconds, so of the peer's requests, doorbells and packets the victim meets what the worker and the daemon's other threads
//! still have to do when its own turn comes. On three CPUs and more peer and victim run at once, and the same ratio shows all.

mod injected;
mod neighbour;
mod report;
mod victim;

use std::io::Write;
use std::path::PathBuf;

use fipsee_measure::claim::{self, Claim};
use fipsee_measure::cpus::Cpus;
use fipsee_measure::machine::Run;
use fipsee_measure::results::append;
use fipsee_testkit::Scratch;
use fipsee_topology::pin;
use serde_json::json;

pub(crate) use self::injected::Injected;
use self::injected::{Beside, Case};
pub(crate) use self::neighbour::{Neighbour, await_release, be_neighbour, holdings};
use self::victim::{DiskClient, Measured, Pair};
use crate::Settings;
use crate::daemon::Daemon;
use crate::place::bind_to;
use crate::table::{IOPS, IOPS_OF_OWN, P99, Results};

/// Milliseconds from the death of a neighbour until nothing of it is left in the daemon.
const RELEASED: &str = "released_ms";

struct Bench {
    settings: Settings,
    client: DiskClient,
    pair: Pair,
    daemon: Daemon,
    neighbour_cpu: usize,
    /// Where guests find the neighbour's disk.
    guests: PathBuf,
    before: (usize, usize),
    results: Results,
}

impl Bench {
    fn start(settings: Settings) -> Result<Self, String> {
        let cpus = Cpus::choose();
        let disks = ["n=null:1M", "victim=memory:64M", "neighbour=memory:64M"].map(ToOwned::to_owned);
        let (configuration, cpu) = (Scratch::new(), cpus.server.to_string());
        let file = configuration.file("fipseed.toml", injected::network());
        let file = file.to_string_lossy();
        let more = ["--workers", "1", "--cpus", &cpu, "--config", &file, "--vhost-user", "neighbour={dir}/g"];
        let daemon = Daemon::start(&disks, &more)?;
        let guests = daemon.directory().join("g");
        bind_to(cpus.client);
        let client = DiskClient::attach(&daemon.socket(), "victim")?;
        let pair = Pair::attach(&daemon.socket(), injected::VICTIMS.map(|(name, _)| name))?;
        let neighbour_cpu = neighbour_cpu(cpus);
        let (before, results) = ((0, 0), Results::default());
        let mut bench = Self { settings, client, pair, daemon, neighbour_cpu, guests, before, results };
        [Beside::DiskClient, Beside::Pair].into_iter().try_for_each(|victim| bench.measure_victim(victim).map(drop))?;
        bench.before = holdings(bench.daemon.pid())?;
        Ok(bench)
    }

    fn measure_victim(&mut self, victim: Beside) -> Result<Measured, String> {
        match victim {
            Beside::DiskClient => victim::measure(&mut self.client, self.settings.seconds),
            Beside::Pair => victim::measure(&mut self.pair, self.settings.seconds),
        }
    }

    fn alone(&mut self, case: &Case) -> Result<(), String> {
        let measured = self.measure_victim(case.beside).map_err(|error| format!("{}, alone: {error}", case.name()))?;
        self.keep(&named(case, ALONE), &measured);
        Ok(())
    }

    /// Beside a neighbour, and how long the daemon took to forget it.
    fn beside(&mut self, case: &Case, injected: Injected, what: &str) -> Result<(), String> {
        let socket = injected.socket(self.daemon.socket(), &self.guests);
        let mut neighbour = Neighbour::start(injected, &socket, self.neighbour_cpu)?;
        let measured = self.measure_victim(case.beside).map_err(|error| format!("{}, {what}: {error}", case.name()))?;
        if !neighbour.is_alive() {
            return Err(format!("{}: it gave up", injected.name()));
        }
        let killed = neighbour.kill();
        let released = await_release(self.daemon.pid(), self.before, killed)?;
        self.keep(&named(case, what), &measured);
        self.results.add(&named(case, what), RELEASED, released);
        Ok(())
    }

    fn keep(&mut self, candidate: &str, measured: &Measured) {
        self.results.add(candidate, IOPS, measured.rate);
        self.results.add(candidate, IOPS_OF_OWN, measured.rate_of_own);
        self.results.add(candidate, P99, measured.latency_p99_ns);
    }

    /// One fault in one round: faulty peer and baseline one right after the other, so that both find the machine the same; which
    /// comes first changes.
    fn measure(&mut self, case: &Case, round: usize) -> Result<(), String> {
        let baseline = case.fault.baseline().ok_or("a fault has a baseline")?;
        self.alone(case)?;
        if round.is_multiple_of(2) {
            self.beside(case, baseline, BASELINE)?;
            self.beside(case, case.fault, FAULTY)
        } else {
            self.beside(case, case.fault, FAULTY)?;
            self.beside(case, baseline, BASELINE)
        }
    }

    fn claims(&self, cases: &[Case]) -> Vec<Claim> {
        let worst = |is_meant: fn(&Case) -> bool| {
            let shares = cases.iter().filter(|case| is_meant(case));
            shares.filter_map(|case| share(&self.results, case, BASELINE, IOPS_OF_OWN)).reduce(f64::min)
        };
        let released = cases.iter().filter_map(|case| Some(self.results.get(&named(case, FAULTY), RELEASED)?.median()));
        vec![
            Claim::at_least(
                0.9,
                "requests per own CPU second beside the worst fault, of those beside its baseline",
                worst(|case| !case.is_of_port()),
            ),
            Claim::at_least(
                0.9,
                "frames of a pair per own CPU second beside the worst fault of a port, of those beside its baseline",
                worst(|case| case.beside == Beside::Pair),
            ),
            Claim::at_least(
                0.9,
                "requests of a disk's client beside the worst fault of a port, likewise",
                worst(|case| case.is_of_port() && case.beside == Beside::DiskClient),
            ),
            Claim::at_most(
                1000.0,
                "ms until nothing of the slowest faulty peer is left, median of rounds",
                released.reduce(f64::max),
            ),
        ]
    }

    fn shares_to_json(&self, case: &Case) -> serde_json::Value {
        json!({
            "fault": case.name(),
            "of_alone": share(&self.results, case, ALONE, IOPS),
            "of_baseline": share(&self.results, case, BASELINE, IOPS),
            "of_alone_own_cpu": share(&self.results, case, ALONE, IOPS_OF_OWN),
            "of_baseline_own_cpu": share(&self.results, case, BASELINE, IOPS_OF_OWN),
        })
    }
}

const ALONE: &str = "alone";
const BASELINE: &str = "beside the baseline";
const FAULTY: &str = "beside the faulty peer";

/// The median over the rounds of the ratio of the faulty peer to `of`.
fn share(results: &Results, case: &Case, of: &str, metric: &str) -> Option<f64> {
    let faulty = results.get(&named(case, FAULTY), metric)?;
    Some(faulty.ratio_to(results.get(&named(case, of), metric)?))
}

fn named(case: &Case, what: &str) -> String {
    format!("{}: {what}", case.name())
}

/// A CPU that neither victim nor worker has, or the victim's.
fn neighbour_cpu(cpus: Cpus) -> usize {
    let allowed = pin::allowed().unwrap_or_default();
    allowed.into_iter().find(|cpu| ![cpus.client, cpus.server].contains(cpu)).unwrap_or(cpus.client)
}

pub(crate) fn run(settings: Settings) -> Result<(), String> {
    let run = Run::begin_in_sight();
    let cases: Vec<Case> = Case::all().into_iter().filter(|case| settings.chooses(&case.name())).collect();
    if cases.is_empty() {
        return Err("--only leaves nothing to measure".to_owned());
    }
    let (rounds, seconds, markdown) = (settings.rounds, settings.seconds, settings.markdown);
    let path = settings.file("hostile", &Ok(()));
    let mut bench = Bench::start(settings)?;
    for round in 0..rounds {
        for place in 0..cases.len() {
            bench.measure(&cases[(place + round) % cases.len()], round)?;
        }
        let _ = writeln!(std::io::stderr(), "round {} of {rounds}", round + 1);
    }
    report::print(&cases, &bench.results);
    let (machine, _) = run.end();
    if markdown {
        report::print_markdown(&cases, &bench.results);
    }
    let claims = bench.claims(&cases);
    println!("\n{}", claim::table(&claims));
    let entry = json!({
        "suite": "hostile",
        "machine": machine,
        "rounds": rounds,
        "seconds": seconds,
        "neighbour_shares_the_victims_cpu": bench.neighbour_cpu == Cpus::choose().client,
        "series": bench.results.to_json(),
        "shares": cases.iter().map(|case| bench.shares_to_json(case)).collect::<Vec<_>>(),
        "claims": claim::to_json(&claims),
    });
    append(&path, &entry)
}
