//! `cargo xtask bench hostile`: what a client that lies costs one that does not, and when the daemon is rid of it.
//!
//! The victim's throughput is measured beside each liar and beside the liar's *twin*, a client that does as much and tells the truth: both
//! take time from the victim by being there, which the scheduler and the worker share out and no daemon can prevent. What the lie costs is the
//! ratio of the two. The daemon's worker has a CPU of its own; liar and twin have another, or share the victim's.
//!
//! Where they share it (two CPUs), requests per second say how the scheduler divides that CPU, and no more. What the claim is about is requests
//! per second of the victim's own processor time (`victim`): that also runs while the worker makes the victim wait. What it cannot show there: a
//! liar that acts in the same instant as the victim. The two take turns, by milliseconds, so of the liar's requests, bells and packets the
//! victim meets what the worker and the daemon's other threads still have to do when its own turn comes. On three CPUs and more liar and victim run at once, and
//! the same ratio shows all.

mod neighbour;
mod report;
mod victim;

use std::io::Write;
use std::path::PathBuf;

use fipsee_hostile::lie::{Lie, Way};
use fipsee_hostile::{guests, lies as clients};
use rustix::thread::{CpuSet, sched_getaffinity};
use serde_json::json;

pub(crate) use self::neighbour::be_neighbour;
use self::neighbour::{Neighbour, await_release, holdings};
use self::victim::{Measured, Victim};
use crate::block::append;
use crate::daemon::Daemon;
use crate::facts;
use crate::place::{Cpus, bind_to};
use crate::steal::Steal;
use crate::table::{Claim, IOPS, IOPS_OF_OWN, P99, Results};

/// Milliseconds from the death of a neighbour until nothing of it is left in the daemon.
const RELEASED: &str = "released_ms";

/// How to run.
pub(crate) struct Settings {
    pub(crate) rounds: usize,
    pub(crate) seconds: f64,
    pub(crate) results: PathBuf,
    pub(crate) only: Vec<String>,
    /// Too short to say anything.
    pub(crate) quick: bool,
    /// Print the table of docs/reliability.md, too.
    pub(crate) markdown: bool,
}

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

/// All that is told to a daemon.
fn lies() -> impl Iterator<Item = &'static Lie> {
    clients::LIES.iter().chain(guests::LIES)
}

impl Bench {
    fn start(settings: Settings) -> Result<Self, String> {
        let cpus = Cpus::choose();
        let disks = ["n=null:1M", "victim=memory:64M", "neighbour=memory:64M"].map(ToOwned::to_owned);
        let guests = Daemon::directory_to_be().join("g");
        let socket = format!("neighbour={}", guests.display());
        let daemon = Daemon::start(&disks, &["--workers", "1", "--cpus", &cpus.server.to_string(), "--vhost-user", &socket])?;
        bind_to(cpus.client);
        let mut victim = Victim::attach(&daemon.socket())?;
        victim.measure(settings.seconds)?;
        let before = holdings(daemon.pid())?;
        Ok(Self { settings, victim, daemon, neighbour_cpu: neighbour_cpu(cpus), guests, before, results: Results::default() })
    }

    fn alone(&mut self, lie: &Lie) -> Result<(), String> {
        let measured = self.victim.measure(self.settings.seconds)?;
        self.keep(&named(lie, ALONE), &measured);
        Ok(())
    }

    /// Beside a neighbour, and how long the daemon took to forget it.
    fn beside(&mut self, lie: &Lie, told: &Lie, what: &str) -> Result<(), String> {
        let socket = match told.way {
            Way::Local => self.daemon.socket(),
            Way::Guest => self.guests.clone(),
        };
        let mut neighbour = Neighbour::start(told, &socket, self.neighbour_cpu)?;
        let measured = self.victim.measure(self.settings.seconds)?;
        if !neighbour.is_alive() {
            return Err(format!("{}: it gave up", told.name));
        }
        let killed = neighbour.kill();
        let released = await_release(self.daemon.pid(), self.before, killed)?;
        self.keep(&named(lie, what), &measured);
        self.results.add(&named(lie, what), RELEASED, released);
        Ok(())
    }

    fn keep(&mut self, candidate: &str, measured: &Measured) {
        self.results.add(candidate, IOPS, measured.rate);
        self.results.add(candidate, IOPS_OF_OWN, measured.rate_of_own);
        self.results.add(candidate, P99, measured.latency_p99_ns);
    }

    /// One lie in one round: liar and twin one right after the other, so that both find the machine the same; which comes first changes.
    fn measure(&mut self, lie: &Lie, round: usize) -> Result<(), String> {
        let twin = lie.twin.ok_or("a lie has a twin")?;
        self.alone(lie)?;
        if round.is_multiple_of(2) {
            self.beside(lie, twin, TWIN)?;
            self.beside(lie, lie, LIAR)
        } else {
            self.beside(lie, lie, LIAR)?;
            self.beside(lie, twin, TWIN)
        }
    }

    fn claims(&self, lies: &[&Lie]) -> Vec<Claim> {
        let shares = lies.iter().filter_map(|lie| share(&self.results, lie, TWIN, IOPS_OF_OWN));
        let released = lies.iter().filter_map(|lie| Some(self.results.get(&named(lie, LIAR), RELEASED)?.median()));
        vec![
            Claim {
                text: "requests per own CPU second beside the worst lie, of those beside its twin",
                value: shares.reduce(f64::min),
                limit: 0.9,
                at_most: false,
            },
            Claim {
                text: "ms until nothing of the slowest liar is left, median of rounds",
                value: released.reduce(f64::max),
                limit: 1000.0,
                at_most: true,
            },
        ]
    }

    fn shares_to_json(&self, lie: &Lie) -> serde_json::Value {
        json!({
            "lie": lie.name,
            "of_alone": share(&self.results, lie, ALONE, IOPS),
            "of_twin": share(&self.results, lie, TWIN, IOPS),
            "of_alone_own_cpu": share(&self.results, lie, ALONE, IOPS_OF_OWN),
            "of_twin_own_cpu": share(&self.results, lie, TWIN, IOPS_OF_OWN),
        })
    }
}

const ALONE: &str = "alone";
const TWIN: &str = "beside the honest twin";
const LIAR: &str = "beside the liar";

/// The median over the rounds of the ratio of liar to `of`.
fn share(results: &Results, lie: &Lie, of: &str, metric: &str) -> Option<f64> {
    let liar = results.get(&named(lie, LIAR), metric)?;
    Some(liar.ratio_to(results.get(&named(lie, of), metric)?))
}

fn named(lie: &Lie, what: &str) -> String {
    format!("{}: {what}", lie.name)
}

/// A CPU that neither victim nor worker has, or the victim's.
fn neighbour_cpu(cpus: Cpus) -> usize {
    let allowed = sched_getaffinity(None).ok();
    let is_free = |cpu: &usize| ![cpus.client, cpus.server].contains(cpu) && allowed.as_ref().is_some_and(|set| set.is_set(*cpu));
    (0..CpuSet::MAX_CPU).find(is_free).unwrap_or(cpus.client)
}

/// Measure, print, keep.
pub(crate) fn run(settings: Settings) -> Result<(), String> {
    let mut machine = facts::machine();
    println!("{machine:#}");
    let steal = Steal::begin();
    let chosen = |lie: &&Lie| settings.only.is_empty() || settings.only.iter().any(|part| lie.name.contains(part.as_str()));
    let lies: Vec<&Lie> = lies().filter(chosen).collect();
    if lies.is_empty() {
        return Err("--only leaves nothing to measure".to_owned());
    }
    let is_whole = settings.only.is_empty() && !settings.quick;
    let (rounds, seconds, markdown) = (settings.rounds, settings.seconds, settings.markdown);
    let path = settings.results.join(if is_whole { "hostile.jsonl" } else { "hostile-part.jsonl" });
    let mut bench = Bench::start(settings)?;
    for round in 0..rounds {
        for place in 0..lies.len() {
            bench.measure(lies[(place + round) % lies.len()], round)?;
        }
        let _ = writeln!(std::io::stderr(), "round {} of {rounds}", round + 1);
    }
    report::print(&lies, &bench.results);
    machine["stolen_percent"] = Steal::end(steal.as_ref()).into();
    if markdown {
        report::print_markdown(&lies, &bench.results);
    }
    println!();
    let claims = bench.claims(&lies);
    claims.iter().for_each(Claim::print);
    let entry = json!({
        "suite": "hostile",
        "machine": machine,
        "rounds": rounds,
        "seconds": seconds,
        "neighbour_shares_the_victims_cpu": bench.neighbour_cpu == Cpus::choose().client,
        "series": bench.results.series.iter().map(|series| series.to_json()).collect::<Vec<_>>(),
        "shares": lies.iter().map(|lie| bench.shares_to_json(lie)).collect::<Vec<_>>(),
        "claims": claims.iter().map(Claim::to_json).collect::<Vec<_>>(),
    });
    append(&path, &entry.to_string())
}
