//! Requests per second of 1 and 2 workers, measured and simulated, and of larger machines, simulated.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fipsee::load::count_f64;
use fipsee_block::disk::{AnyDisk, DiskSpec};
use fipsee_block::wire::SECTOR_BYTES;
use fipsee_measure::claim::Claim;
use fipsee_measure::cpus::Cpus;
use fipsee_measure::plot::curves::Points;
use fipsee_measure::statistics::is_undecided;
use serde_json::{Value, json};

use super::costs::{self, Costs, Timed};
use super::crowd::{Crowd, Shape};
use super::model::{Machine, simulate, simulate_slices};
use super::{harness, picture, shared_cpu};
use crate::daemon::Daemon;
use crate::idle::daemon_usage;
use crate::parts::{Part, Picture};
use crate::place::on;
use crate::service::MEMORY_BYTES;
use crate::table::{RATE, Results, Series};
use crate::{Settings, generator, steady};

/// Of the daemon, in percent of one CPU.
pub(super) const CPU_PERCENT: &str = "cpu_percent";
/// In the fastest slice of the time, as costs are.
const FASTEST: &str = "requests_per_s_fastest_slice";

/// A disk under a load, on so many workers.
struct Load {
    name: &'static str,
    spec: &'static str,
    workers: usize,
    depth: u32,
    bytes: u64,
    clients: &'static [usize],
}

const MEMORY: &str = "memory";

const LOADS: [Load; 3] = [
    Load {
        name: "null disk, 4 KiB, QD1, 1 worker",
        spec: "null:1G",
        workers: 1,
        depth: 1,
        bytes: 4096,
        clients: &[1, 3, 30, 300, 1000],
    },
    Load {
        name: "memory disk, 16 KiB, QD4, 1 worker",
        spec: "memory:64M",
        workers: 1,
        depth: 4,
        bytes: 16_384,
        clients: &[1, 2, 4, 8, 16, 200, 1000],
    },
    Load {
        name: "memory disk, 16 KiB, QD4, 2 workers",
        spec: "memory:64M",
        workers: 2,
        depth: 4,
        bytes: 16_384,
        clients: &[1, 2, 4, 8, 16, 200, 1000],
    },
];
const QUICK_CLIENTS: [usize; 2] = [1, 4];
/// Each load and each part of the costs is measured so many times by turns, of which the fastest slice counts: what disturbs a machine may last as long
/// as one of them.
const TRIES: u32 = 4;
/// In all tries, at least.
const LEAST_SECONDS: f64 = 0.5;
pub(super) const IDLE: Duration = Duration::from_secs(2);
/// Of the model to what it is a model of.
const MOST_APART: f64 = 0.15;

const SIMULATED_SECONDS: f64 = 0.03;
const CPUS: [usize; 7] = [2, 4, 8, 16, 32, 64, 128];
pub(super) const QUEUES: [usize; 3] = [100, 1000, 10_000];
/// Of the CPUs, in eighths, workers have so many.
const EIGHTHS: [usize; 5] = [2, 3, 4, 5, 6];

fn candidate(how: &str, load: &Load, clients: usize) -> String {
    format!("{how}: {}, {clients} client{}", load.name, if clients == 1 { "" } else { "s" })
}

const REAL: &str = "measured";
const MODEL: &str = "simulated";

fn machine(workers: usize, queues: usize, cpus: usize) -> String {
    format!("{MODEL}: {cpus} CPUs, {queues} clients, {workers} workers")
}

fn idle(load: &Load) -> String {
    format!("idle: {}", load.name)
}

/// Costs, instead of those that were measured before with as many queues.
fn replace(all: &mut Vec<Costs>, costs: Vec<Costs>) {
    all.retain(|known| costs.iter().all(|costs| costs.queues != known.queues));
    all.extend(costs);
    all.sort_by(|one, other| one.queues.total_cmp(&other.queues));
}

#[derive(Default)]
pub(super) struct Workers {
    /// Of the last round in which they were measured, by the first load of each disk.
    costs: Vec<(&'static str, Vec<Costs>)>,
    /// Of a null disk: CPUs, clients, the best number of workers, and requests per second with it.
    larger: Vec<(usize, usize, usize, f64)>,
}

impl Workers {
    pub(super) fn are_chosen(settings: &Settings) -> bool {
        let named =
            |load: &Load| clients(settings, load).iter().any(|clients| settings.chooses(&candidate(REAL, load, *clients)));
        LOADS.iter().any(named)
    }

    /// CPUs, clients and requests per second.
    pub(super) fn larger(&self) -> impl Iterator<Item = (usize, usize, f64)> {
        self.larger.iter().map(|(cpus, queues, _, rate)| (*cpus, *queues, *rate))
    }

    /// Clients and requests per second of each load: measured, then simulated.
    pub(super) fn curves(results: &Results) -> Vec<(&'static str, [Points; 2])> {
        let of_load = |load: &'static Load| {
            let points = |how| {
                let point = |clients: &usize| {
                    let rate = results.get(&candidate(how, load, *clients), RATE)?.median();
                    Some((count_f64(*clients as u64), rate))
                };
                load.clients.iter().filter_map(point).collect()
            };
            (load.name, [REAL, MODEL].map(points))
        };
        LOADS.iter().map(of_load).collect()
    }
}

impl Part for Workers {
    fn measure(&mut self, settings: &Settings, _round: usize, results: &mut Results) -> Result<(), String> {
        // Loads of the same disk are compared: one after the other for each number of clients.
        for loads in LOADS.chunk_by(|one, other| one.spec == other.spec) {
            let name = loads[0].name;
            let loads: Vec<&Load> = loads.iter().filter(|load| chosen(settings, load).next().is_some()).collect();
            if loads.is_empty() {
                continue;
            }
            let costs = Disk::start(&loads, settings, results)?.measure(settings, results)?;
            match self.costs.iter_mut().find(|(of, _)| *of == name) {
                Some((_, all)) => replace(all, costs),
                None => self.costs.push((name, costs)),
            }
        }
        Ok(())
    }

    fn undecided(&self, results: &Results) -> Vec<String> {
        let of_load = |load: &'static Load| {
            let undecided = |clients: &&usize| {
                let get = |(how, metric)| results.get(&candidate(how, load, **clients), metric);
                let Some((model, real)) = get((MODEL, RATE)).zip(get((REAL, FASTEST))) else { return false };
                [1.0 - MOST_APART, 1.0 + MOST_APART].iter().any(|limit| is_undecided(model.ratios_to(real), *limit))
            };
            load.clients.iter().filter(undecided).map(|clients| candidate(REAL, load, *clients))
        };
        LOADS.iter().flat_map(of_load).collect()
    }

    /// Machines with more CPUs, each with the best number of workers.
    fn finish(&mut self, settings: &Settings, results: &mut Results) -> Result<(), String> {
        let Some((_, costs)) = self.costs.iter().find(|(load, _)| *load == LOADS[0].name) else { return Ok(()) };
        let (cpus, queues): (&[usize], &[usize]) = if settings.quick { (&[4], &[10]) } else { (&CPUS, &QUEUES) };
        for (cpus, queues) in cpus.iter().flat_map(|cpus| queues.iter().map(move |queues| (*cpus, *queues))) {
            let mut best = (0, 0.0);
            let mut tried: Vec<usize> = EIGHTHS.iter().map(|part| (cpus * part / 8).clamp(1, cpus - 1)).collect();
            tried.dedup();
            for workers in tried {
                let drivers = (cpus - workers).min(queues);
                let model = Machine { workers, drivers, shared: None, queues, depth: 1, blocks: 8 };
                // Several rounds of each thread over its queues.
                let seconds = 5e-4 + 4e-6 * count_f64((queues / cpus) as u64);
                let rate = simulate(&model, costs, seconds)?;
                best = if rate > best.1 { (workers, rate) } else { best };
            }
            results.add(&machine(best.0, queues, cpus), RATE, best.1);
            self.larger.push((cpus, queues, best.0, best.1));
        }
        Ok(())
    }

    fn print(&self, results: &Results) {
        println!("\n{:<56} {REAL:>12} {:>12} {MODEL:>12} {:>7} {:>6}", "requests/s", "fastest", "ratio", "CPU %");
        for load in &LOADS {
            let quick = QUICK_CLIENTS.iter().filter(|clients| !load.clients.contains(clients));
            for clients in load.clients.iter().chain(quick) {
                let [real, fastest, model] = [(REAL, RATE), (REAL, FASTEST), (MODEL, RATE)]
                    .map(|(how, metric)| results.get(&candidate(how, load, *clients), metric));
                if let Some((real, fastest)) = real.zip(fastest) {
                    let cpu = results.get(&candidate(REAL, load, *clients), CPU_PERCENT).map_or(f64::NAN, Series::median);
                    let name = candidate("", load, *clients);
                    let measured = real.median();
                    let (simulated, ratio) =
                        model.map_or((f64::NAN, f64::NAN), |model| (model.median(), model.ratio_to(fastest)));
                    let fastest = fastest.median();
                    println!("{:<56} {measured:>12.0} {fastest:>12.0} {simulated:>12.0} {ratio:>7.3} {cpu:>6.0}", &name[2..]);
                }
            }
        }
        for (load, at) in &self.costs {
            println!("\ncosts in ns, {load:<44} {}", Costs::NAMES.map(|name| format!("{name:>12}")).concat());
            for costs in at {
                let shown = costs.values().map(|value| format!("{value:>12.1}")).concat();
                println!("{:>58} {shown}", format!("{} queues", costs.queues));
            }
        }
        for (cpus, queues, workers, rate) in &self.larger {
            println!("{:<56} {:>12} {rate:>12.0}", format!("{cpus} CPUs, {queues} clients, {workers} workers"), "");
        }
    }

    fn claims(&self, settings: &Settings, results: &Results) -> Vec<Claim> {
        let apart = |load: &'static Load| {
            let of = move |clients: &usize| {
                let [real, model] =
                    [(REAL, FASTEST), (MODEL, RATE)].map(|(how, metric)| results.get(&candidate(how, load, *clients), metric));
                Some((model?.ratio_to(real?) - 1.0).abs())
            };
            clients(settings, load).iter().map(of).collect::<Option<Vec<f64>>>()?.into_iter().reduce(f64::max)
        };
        let of_load = |load| {
            Claim::at_most(MOST_APART, format!("simulated requests/s off measured ones: {}", load_name(load)), apart(load))
        };
        let mut claims: Vec<Claim> = LOADS.iter().map(of_load).collect();
        let idle = LOADS.iter().filter_map(|load| results.get(&idle(load), CPU_PERCENT)).map(Series::median);
        claims.push(Claim::at_most(1.0, "% of a CPU of the idle daemon, 1 and 2 workers", idle.reduce(f64::max)));
        claims
    }

    fn to_json(&self) -> Option<(&'static str, Value)> {
        let at = |costs: &[Costs]| costs.iter().map(|costs| costs.to_json()).collect::<Vec<_>>();
        let of_load = |(load, costs): &(&str, Vec<Costs>)| json!({ "load": load, "at": at(costs) });
        Some(("costs", self.costs.iter().map(of_load).collect()))
    }

    fn picture(&self, results: &Results, entry: &Value) -> Option<Picture> {
        Some(("scale-workers", picture::workers(self, results, entry)?))
    }
}

const fn load_name(load: &Load) -> &'static str {
    load.name
}

const fn clients(settings: &Settings, load: &Load) -> &'static [usize] {
    if settings.quick { &QUICK_CLIENTS } else { load.clients }
}

const fn tries(settings: &Settings) -> u32 {
    if settings.quick { 1 } else { TRIES }
}

/// Of a try.
fn seconds(settings: &Settings) -> f64 {
    if settings.quick { settings.seconds } else { settings.seconds.max(LEAST_SECONDS) / f64::from(TRIES) }
}

/// As what is measured. With a CPU for each thread all slices are alike; where two share one, a slice has a turn more or less of each, so that the fastest
/// of as many counts.
fn simulated(model: &Machine, costs: &[Costs], slices: usize, settings: &Settings) -> Result<f64, String> {
    if settings.quick || model.shared.is_none() {
        return simulate(model, costs, if settings.quick { SIMULATED_SECONDS / 10.0 } else { SIMULATED_SECONDS });
    }
    let rates = simulate_slices(model, costs, costs::SLICE.as_secs_f64(), slices)?;
    Ok(rates.into_iter().fold(0.0, f64::max))
}

/// The numbers of clients that are measured.
fn chosen<'a>(settings: &'a Settings, load: &'a Load) -> impl Iterator<Item = usize> + 'a {
    clients(settings, load).iter().copied().filter(|clients| settings.chooses(&candidate(REAL, load, *clients)))
}

/// The daemon as it ships, with the first of two workers on the clients' CPU.
fn start(load: &Load, settings: &Settings, results: &mut Results) -> Result<Daemon, String> {
    let cpus = Cpus::choose();
    let list = if load.workers == 1 { cpus.server.to_string() } else { format!("{},{}", cpus.client, cpus.server) };
    let workers = load.workers.to_string();
    let disk = format!("m={},shared", load.spec);
    let daemon = Daemon::start_program(&Daemon::shipped()?, &[disk], &["--workers", &workers, "--cpus", &list])?;
    if load.spec.starts_with(MEMORY) {
        generator::fill(&daemon.socket(), "m", MEMORY_BYTES)?;
    }
    let (percent, _) = daemon_usage(&daemon, if settings.quick { IDLE / 20 } else { IDLE })?;
    results.add(&idle(load), CPU_PERCENT, percent);
    Ok(daemon)
}

/// Loads of one disk, with a daemon for each, and that disk in this process.
struct Disk<'a> {
    loads: Vec<(&'a Load, Daemon)>,
    here: Arc<AnyDisk>,
}

impl<'a> Disk<'a> {
    fn start(loads: &[&'a Load], settings: &Settings, results: &mut Results) -> Result<Self, String> {
        let spec = loads.first().map_or("", |load| load.spec);
        let here = Arc::new(DiskSpec::parse(&format!("m={spec}"))?.open()?);
        if spec.starts_with(MEMORY) {
            harness::touch(&here)?;
        }
        let loads = loads.iter().map(|load| Ok((*load, start(load, settings, results)?))).collect::<Result<_, String>>()?;
        Ok(Self { loads, here })
    }

    /// For each number of clients the costs, each load, and its simulation, one right after the other. The costs of all.
    fn measure(&self, settings: &Settings, results: &mut Results) -> Result<Vec<Costs>, String> {
        let mut counts: Vec<usize> = self.loads.iter().flat_map(|(load, _)| chosen(settings, load)).collect();
        counts.sort_unstable();
        counts.dedup();
        let mut all: Vec<Costs> = Vec::new();
        for count in &counts {
            let costs = steady::measure(results, |results| self.with(*count, settings, results))?;
            replace(&mut all, costs);
        }
        Ok(all)
    }

    fn with(&self, count: usize, settings: &Settings, results: &mut Results) -> Result<Vec<Costs>, String> {
        let is_chosen = |(load, _): &&(&Load, Daemon)| chosen(settings, load).any(|chosen| chosen == count);
        let loads: Vec<&(&Load, Daemon)> = self.loads.iter().filter(is_chosen).collect();
        // Of the clients' thread, and of each of the workers.
        let mut queues: Vec<usize> = loads.iter().map(|(load, _)| count.div_ceil(load.workers)).chain([count]).collect();
        queues.sort_unstable();
        queues.dedup();
        let bytes = loads.first().map_or(0, |(load, _)| load.bytes);
        let mut timed: Vec<Option<Timed>> = vec![None; queues.len()];
        let mut measured: Vec<Measured> = loads.iter().map(|_| Measured::default()).collect();
        for _ in 0..tries(settings) {
            for (queues, timed) in queues.iter().zip(&mut timed) {
                add(timed, Timed::apart(&self.here, (*queues, bytes), seconds(settings))?);
            }
            for ((load, daemon), measured) in loads.iter().zip(&mut measured) {
                steady::look();
                on(Cpus::choose().client, || measured.run((load, count), daemon, settings))?;
                steady::look();
                if load.workers > 1 {
                    let queues = count.div_ceil(load.workers);
                    add(&mut measured.shared, shared_cpu::time(&self.here, (queues, load.bytes), seconds(settings))?);
                }
            }
        }
        let costs = timed.iter().flatten().map(Timed::costs).collect::<Result<Vec<_>, _>>()?;
        for ((load, _), measured) in loads.iter().zip(&measured) {
            measured.report(&candidate(REAL, load, count), results);
            let shared = measured.shared.as_ref().map(shared_cpu::measure).transpose()?;
            let (workers, depth, blocks) = (load.workers, load.depth, load.bytes / SECTOR_BYTES);
            let model = Machine { workers, drivers: 1, shared, queues: count, depth, blocks };
            results.add(&candidate(MODEL, load, count), RATE, simulated(&model, &costs, measured.rates.len(), settings)?);
        }
        Ok(costs)
    }
}

fn add(all: &mut Option<Timed>, more: Timed) {
    match all {
        Some(all) => all.add(more),
        None => *all = Some(more),
    }
}

/// Of a load, over all tries.
#[derive(Default)]
struct Measured {
    /// In each slice.
    rates: Vec<f64>,
    /// Of the daemon, in seconds of a CPU and of time.
    used: f64,
    lasted: f64,
    /// With two workers: what the first one and the clients' thread did on one CPU.
    shared: Option<Timed>,
}

impl Measured {
    fn run(&mut self, (load, clients): (&Load, usize), daemon: &Daemon, settings: &Settings) -> Result<(), String> {
        let user = rustix::process::geteuid().as_raw();
        let shape = Shape { queues: 1, depth: load.depth, bytes: load.bytes };
        let mut crowd = Crowd::new();
        crowd.yields = load.workers != 1;
        (0..clients).try_for_each(|_| crowd.join(&daemon.socket(), user, shape))?;
        crowd.run(Duration::from_secs_f64(seconds(settings) / 4.0))?;
        let (before, started) = (daemon.usage()?.0, Instant::now());
        self.rates.extend(crowd.rates(Duration::from_secs_f64(seconds(settings)), costs::SLICE)?);
        self.used += daemon.usage()?.0.saturating_sub(before).as_secs_f64();
        self.lasted += started.elapsed().as_secs_f64();
        Ok(())
    }

    fn report(&self, name: &str, results: &mut Results) {
        results.add(name, RATE, self.rates.iter().sum::<f64>() / count_f64(self.rates.len() as u64));
        results.add(name, FASTEST, self.rates.iter().copied().fold(0.0, f64::max));
        results.add(name, CPU_PERCENT, 100.0 * self.used / self.lasted);
    }
}
