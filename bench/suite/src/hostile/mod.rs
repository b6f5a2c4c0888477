//! `cargo xtask bench hostile`: what a faulty client costs a correct one, and when the daemon has released it.
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

mod neighbour;
mod report;
mod victim;

use std::io::Write;
use std::path::PathBuf;

use fipsee_measure::claim::{self, Claim};
use fipsee_measure::cpus::Cpus;
use fipsee_measure::machine::Run;
use fipsee_measure::results::append;
use fipsee_testkit::faulty::fault::{InjectedFault, Way};
use fipsee_testkit::faulty::{faults as clients, guests};
use fipsee_topology::pin;
use serde_json::json;

pub(crate) use self::neighbour::{Neighbour, await_release, be_neighbour, holdings};
use self::victim::{Measured, Victim};
use crate::Settings;
use crate::daemon::Daemon;
use crate::place::bind_to;
use crate::table::{IOPS, IOPS_OF_OWN, P99, Results};

/// Milliseconds from the death of a neighbour until nothing of it is left in the daemon.
const RELEASED: &str = "released_ms";

struct Bench {
    settings: Settings,
    victim: Victim,
    daemon: Daemon,
    neighbour_cpu: usize,
    /// Where guests find the neighbour's disk.
    guests: PathBuf,
    before: (usize, usize),
    results: Results,
}

/// All faults.
fn faults() -> impl Iterator<Item = &'static InjectedFault> {
    clients::FAULTS.iter().chain(guests::FAULTS)
}

impl Bench {
    fn start(settings: Settings) -> Result<Self, String> {
        let cpus = Cpus::choose();
        let disks = ["n=null:1M", "victim=memory:64M", "neighbour=memory:64M"].map(ToOwned::to_owned);
        let more = ["--workers", "1", "--cpus", &cpus.server.to_string(), "--vhost-user", "neighbour={dir}/g"];
        let daemon = Daemon::start(&disks, &more)?;
        let guests = daemon.directory().join("g");
        bind_to(cpus.client);
        let mut victim = Victim::attach(&daemon.socket())?;
        victim.measure(settings.seconds)?;
        let before = holdings(daemon.pid())?;
        Ok(Self { settings, victim, daemon, neighbour_cpu: neighbour_cpu(cpus), guests, before, results: Results::default() })
    }

    fn alone(&mut self, fault: &InjectedFault) -> Result<(), String> {
        let measured = self.victim.measure(self.settings.seconds)?;
        self.keep(&named(fault, ALONE), &measured);
        Ok(())
    }

    /// Beside a neighbour, and how long the daemon took to forget it.
    fn beside(&mut self, fault: &InjectedFault, injected: &InjectedFault, what: &str) -> Result<(), String> {
        let socket = match injected.way {
            Way::Local => self.daemon.socket(),
            Way::Guest => self.guests.clone(),
        };
        let mut neighbour = Neighbour::start(injected, &socket, self.neighbour_cpu)?;
        let measured = self.victim.measure(self.settings.seconds)?;
        if !neighbour.is_alive() {
            return Err(format!("{}: it gave up", injected.name));
        }
        let killed = neighbour.kill();
        let released = await_release(self.daemon.pid(), self.before, killed)?;
        self.keep(&named(fault, what), &measured);
        self.results.add(&named(fault, what), RELEASED, released);
        Ok(())
    }

    fn keep(&mut self, candidate: &str, measured: &Measured) {
        self.results.add(candidate, IOPS, measured.rate);
        self.results.add(candidate, IOPS_OF_OWN, measured.rate_of_own);
        self.results.add(candidate, P99, measured.latency_p99_ns);
    }

    /// One fault in one round: faulty peer and baseline one right after the other, so that both find the machine the same; which
    /// comes first changes.
    fn measure(&mut self, fault: &InjectedFault, round: usize) -> Result<(), String> {
        let baseline = fault.baseline.ok_or("a fault has a baseline")?;
        self.alone(fault)?;
        if round.is_multiple_of(2) {
            self.beside(fault, baseline, BASELINE)?;
            self.beside(fault, fault, FAULTY)
        } else {
            self.beside(fault, fault, FAULTY)?;
            self.beside(fault, baseline, BASELINE)
        }
    }

    fn claims(&self, faults: &[&InjectedFault]) -> Vec<Claim> {
        let shares = faults.iter().filter_map(|fault| share(&self.results, fault, BASELINE, IOPS_OF_OWN));
        let released = faults.iter().filter_map(|fault| Some(self.results.get(&named(fault, FAULTY), RELEASED)?.median()));
        vec![
            Claim::at_least(
                0.9,
                "requests per own CPU second beside the worst fault, of those beside its baseline",
                shares.reduce(f64::min),
            ),
            Claim::at_most(
                1000.0,
                "ms until nothing of the slowest faulty peer is left, median of rounds",
                released.reduce(f64::max),
            ),
        ]
    }

    fn shares_to_json(&self, fault: &InjectedFault) -> serde_json::Value {
        json!({
            "fault": fault.name,
            "of_alone": share(&self.results, fault, ALONE, IOPS),
            "of_baseline": share(&self.results, fault, BASELINE, IOPS),
            "of_alone_own_cpu": share(&self.results, fault, ALONE, IOPS_OF_OWN),
            "of_baseline_own_cpu": share(&self.results, fault, BASELINE, IOPS_OF_OWN),
        })
    }
}

const ALONE: &str = "alone";
const BASELINE: &str = "beside the baseline";
const FAULTY: &str = "beside the faulty peer";

/// The median over the rounds of the ratio of the faulty peer to `of`.
fn share(results: &Results, fault: &InjectedFault, of: &str, metric: &str) -> Option<f64> {
    let faulty = results.get(&named(fault, FAULTY), metric)?;
    Some(faulty.ratio_to(results.get(&named(fault, of), metric)?))
}

fn named(fault: &InjectedFault, what: &str) -> String {
    format!("{}: {what}", fault.name)
}

/// A CPU that neither victim nor worker has, or the victim's.
fn neighbour_cpu(cpus: Cpus) -> usize {
    let allowed = pin::allowed().unwrap_or_default();
    allowed.into_iter().find(|cpu| ![cpus.client, cpus.server].contains(cpu)).unwrap_or(cpus.client)
}

pub(crate) fn run(settings: Settings) -> Result<(), String> {
    let run = Run::begin_in_sight();
    let faults: Vec<&InjectedFault> = faults().filter(|fault| settings.chooses(fault.name)).collect();
    if faults.is_empty() {
        return Err("--only leaves nothing to measure".to_owned());
    }
    let (rounds, seconds, markdown) = (settings.rounds, settings.seconds, settings.markdown);
    let path = settings.file("hostile", &Ok(()));
    let mut bench = Bench::start(settings)?;
    for round in 0..rounds {
        for place in 0..faults.len() {
            bench.measure(faults[(place + round) % faults.len()], round)?;
        }
        let _ = writeln!(std::io::stderr(), "round {} of {rounds}", round + 1);
    }
    report::print(&faults, &bench.results);
    let (machine, _) = run.end();
    if markdown {
        report::print_markdown(&faults, &bench.results);
    }
    let claims = bench.claims(&faults);
    println!("\n{}", claim::table(&claims));
    let entry = json!({
        "suite": "hostile",
        "machine": machine,
        "rounds": rounds,
        "seconds": seconds,
        "neighbour_shares_the_victims_cpu": bench.neighbour_cpu == Cpus::choose().client,
        "series": bench.results.to_json(),
        "shares": faults.iter().map(|fault| bench.shares_to_json(fault)).collect::<Vec<_>>(),
        "claims": claim::to_json(&claims),
    });
    append(&path, &entry)
}
