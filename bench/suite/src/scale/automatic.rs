//! `notify = { auto = true }` beside fixed settings: requests per second of a client that sleeps, and the processor time of client
//! and daemon for each. What is fixed suits one load or another; `auto` is to be nearly as good as the best under every load.

use std::time::{Duration, Instant};

use fipsee::load::count_f64;
use fipsee_block::client::{Buffer, Disk, Queue};
use fipsee_block::wire::{SECTOR_BYTES, Status};
use fipsee_measure::claim::Claim;
use fipsee_measure::cpus::Cpus;
use fipsee_measure::statistics::{is_undecided, median};
use fipsee_ring::wait::WaitMode;
use serde_json::{Value, json};

use super::crowd::{Shape, attach_to};
use crate::cost::{Meter, per_request_ns};
use crate::daemon::Daemon;
use crate::generator::Random;
use crate::parts::Part;
use crate::place::on;
use crate::service::MEMORY_BYTES;
use crate::table::{CPU, RATE, Results, Series};
use crate::{Settings, generator, steady};

struct Policy {
    name: &'static str,
    /// Parameters of `notify.set` beside the disk.
    parameters: fn() -> Value,
}

static AUTO: Policy = Policy { name: "auto", parameters: || json!({ "auto": true }) };
/// Everything at once; a few and many completions; a low and a high rate.
static FIXED: [Policy; 5] = [
    Policy { name: "off", parameters: || json!({ "off": true }) },
    Policy { name: "min 8", parameters: || json!({ "min_completions": 8 }) },
    Policy { name: "min 32", parameters: || json!({ "min_completions": 32 }) },
    Policy { name: "rate 5000", parameters: || json!({ "max_rate": 5000 }) },
    Policy { name: "rate 20000", parameters: || json!({ "max_rate": 20_000 }) },
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Load {
    disk: &'static str,
    bytes: u64,
    depth: u32,
}

/// A null disk, where nothing but notifications costs, then memory.
const DISKS: [(&str, u64); 4] = [("null", 512), ("memory", 4096), ("memory", 64 << 10), ("memory", 1 << 20)];
const DEPTHS: [u32; 4] = [1, 8, 32, 128];
const QUICK_DEPTHS: [u32; 2] = [1, 8];
const QUICK_DISKS: usize = 2;

/// Of the seconds for a candidate, which are many here, so often in each round: what is compared is close together.
const TURNS: usize = 8;
/// Of a disk that takes no time, where a wake-up more or less is all the difference.
const NULL_TURNS: usize = 16;
const MEASURED: f64 = 0.06;
const LEAST_MEASURED: f64 = 0.03;
/// Longer than `auto` tries its three ways, 8 ms each, which it does anew when it is set, then once in 400 ms.
const WARM_UP: f64 = 0.03;
const TIMEOUT: Duration = Duration::from_secs(20);

/// Of the requests per second of the best; settings with fewer are not compared by their processor time.
const RATE_LIMIT: f64 = 0.9;
const CPU_LIMIT: f64 = 1.1;
/// At most 5 % slower.
const SHALLOW_LIMIT: f64 = 1.0 / 1.05;

fn loads(settings: &Settings) -> Vec<Load> {
    let (disks, depths): (&[_], &[_]) = if settings.quick { (&DISKS[..QUICK_DISKS], &QUICK_DEPTHS) } else { (&DISKS, &DEPTHS) };
    let of_disk = |(disk, bytes): &(&'static str, u64)| {
        let (disk, bytes) = (*disk, *bytes);
        depths.iter().map(move |depth| Load { disk, bytes, depth: *depth }).collect::<Vec<_>>()
    };
    disks.iter().flat_map(of_disk).collect()
}

impl Load {
    fn name(self) -> String {
        let size = if self.bytes < 1024 { format!("{} B", self.bytes) } else { format!("{} KiB", self.bytes >> 10) };
        format!("{} disk, {size}, QD{}", self.disk, self.depth)
    }

    fn candidate(self, policy: &Policy) -> String {
        format!("notify {}: {}", policy.name, self.name())
    }
}

/// A client that sleeps until it is notified.
struct Sleeper {
    _disk: Disk,
    queue: Queue,
    buffer: Buffer,
    random: Random,
    bytes: u64,
    blocks: u64,
}

impl Sleeper {
    fn attach(daemon: &Daemon, load: Load) -> Result<Self, String> {
        let shape = Shape { queues: 1, depth: load.depth, bytes: load.bytes };
        let user = rustix::process::geteuid().as_raw();
        let (disk, mut queues, buffer) = attach_to(&daemon.socket(), load.disk, user, shape, WaitMode::Sleep)?;
        let blocks = disk.info().sector_count * SECTOR_BYTES / load.bytes;
        let queue = queues.pop().ok_or("no queue")?;
        Ok(Self { _disk: disk, queue, buffer, random: Random::default(), bytes: load.bytes, blocks })
    }

    /// Keep the queue full for so long: seconds, and requests that were answered.
    fn run(&mut self, seconds: f64) -> Result<(f64, u64), String> {
        let (started, mut answered, mut failed) = (Instant::now(), 0, 0_u64);
        loop {
            let elapsed = started.elapsed().as_secs_f64();
            if elapsed >= seconds {
                return Ok((elapsed, answered));
            }
            while self.queue.free() > 0 {
                let sector = self.random.below(self.blocks) * (self.bytes / SECTOR_BYTES);
                let staged = self.queue.read(sector, self.buffer.segment(0, self.bytes), 0);
                staged.map_err(|_| "a queue with room is full".to_owned())?;
            }
            let mut done = |completion: fipsee_block::client::Completion| failed += u64::from(completion.status != Status::Ok);
            let count = self.queue.wait_timeout(TIMEOUT, &mut done).map_err(|error| error.to_string())?;
            if count == 0 || failed > 0 {
                return Err(format!("{failed} requests failed, or none was answered within {TIMEOUT:?}"));
            }
            answered += count as u64;
        }
    }
}

pub(super) struct Automatic {
    loads: Vec<Load>,
}

/// A load: of `auto` to the best.
struct Compared {
    best: &'static Policy,
    rate: f64,
    cheapest: &'static Policy,
    cpu: f64,
}

/// Every turn, or every other one from the first or the second on.
#[derive(Clone, Copy)]
struct Turns {
    from: usize,
    step: usize,
}

const ALL: Turns = Turns { from: 0, step: 1 };
const HALVES: [Turns; 2] = [Turns { from: 0, step: 2 }, Turns { from: 1, step: 2 }];

impl Turns {
    fn of(self, series: &Series) -> impl Iterator<Item = f64> {
        series.values.iter().copied().skip(self.from).step_by(self.step)
    }

    fn median(self, series: Option<&Series>) -> f64 {
        series.and_then(|series| median(self.of(series).collect())).unwrap_or(f64::NAN)
    }

    fn ratio(self, ours: &Series, theirs: &Series) -> Option<f64> {
        median(self.of(ours).zip(self.of(theirs)).map(|(ours, theirs)| ours / theirs).collect())
    }
}

impl Automatic {
    pub(super) fn new(settings: &Settings) -> Self {
        Self { loads: loads(settings) }
    }

    pub(super) fn is_chosen(settings: &Settings) -> bool {
        loads(settings).iter().any(|load| is_chosen(settings, *load))
    }

    /// One load, every policy one right after the other on the same connection, each time in another order: after one with which the CPUs
    /// sleep for long, the next is slower.
    fn one(daemon: &Daemon, load: Load, seconds: f64, random: &mut Random, results: &mut Results) -> Result<(), String> {
        let mut sleeper = Sleeper::attach(daemon, load)?;
        let servers = [daemon.pid()];
        let turns = if load.disk == "null" { NULL_TURNS } else { TURNS };
        let orders: Vec<_> = (0..turns).map(|_| shuffled(random)).collect();
        for policy in orders.into_iter().flatten() {
            let name = load.candidate(policy);
            let mut request = (policy.parameters)();
            (request["method"], request["disk"]) = ("notify.set".into(), load.disk.into());
            daemon.ask(&request)?;
            let failed = |error| format!("{name}: {error}");
            sleeper.run(WARM_UP).map_err(failed)?;
            let meter = Meter::start(&servers)?;
            let (elapsed, answered) = sleeper.run((seconds * MEASURED).max(LEAST_MEASURED)).map_err(failed)?;
            let cost = meter.stop()?;
            results.add(&name, RATE, count_f64(answered) / elapsed);
            results.add(&name, CPU, per_request_ns(cost.processes, count_f64(answered)));
        }
        Ok(())
    }

    /// The best is the one with most requests per second; the cheapest, of those that reach nearly as many.
    fn best(results: &Results, load: Load, turns: Turns) -> Option<(&'static Policy, &'static Policy)> {
        let median = |policy: &Policy, metric: &str| turns.median(results.get(&load.candidate(policy), metric));
        let best = FIXED.iter().max_by(|a, b| median(a, RATE).total_cmp(&median(b, RATE)))?;
        let is_fast = |policy: &&Policy| median(policy, RATE) >= RATE_LIMIT * median(best, RATE);
        let cheapest = FIXED.iter().filter(is_fast).min_by(|a, b| median(a, CPU).total_cmp(&median(b, CPU)))?;
        Some((best, cheapest))
    }

    /// Of several settings that are alike the best is so by chance. So which is best is seen from one half of the turns, and how `auto`
    /// compares to it from the other half; the figure is the mean of both ways.
    fn compare(results: &Results, load: Load) -> Option<Compared> {
        let get = |policy: &Policy, metric: &str| results.get(&load.candidate(policy), metric);
        let (best, cheapest) = Self::best(results, load, ALL)?;
        let (mut rate, mut cpu) = (0.0, 0.0);
        for (choice, judgement) in HALVES.into_iter().zip(HALVES.into_iter().rev()) {
            let (best, cheapest) = Self::best(results, load, choice)?;
            rate += judgement.ratio(get(&AUTO, RATE)?, get(best, RATE)?)? / 2.0;
            cpu += judgement.ratio(get(&AUTO, CPU)?, get(cheapest, CPU)?)? / 2.0;
        }
        Some(Compared { best, rate, cheapest, cpu })
    }
}

/// Every policy, in some order.
fn shuffled(random: &mut Random) -> Vec<&'static Policy> {
    let mut policies: Vec<&Policy> = FIXED.iter().chain([&AUTO]).collect();
    for last in (1..policies.len()).rev() {
        policies.swap(last, random.index(last + 1));
    }
    policies
}

fn is_chosen(settings: &Settings, load: Load) -> bool {
    FIXED.iter().chain([&AUTO]).any(|policy| settings.chooses(&load.candidate(policy)))
}

impl Part for Automatic {
    fn measure(&mut self, settings: &Settings, round: usize, results: &mut Results) -> Result<(), String> {
        let cpus = Cpus::choose();
        let disks = ["null=null:1G".to_owned(), format!("memory=memory:{MEMORY_BYTES},shared")];
        let more = ["--workers", "1", "--cpus", &cpus.server.to_string()];
        let daemon = Daemon::start_program(&Daemon::shipped()?, &disks, &more)?;
        generator::fill(&daemon.socket(), "memory", MEMORY_BYTES)?;
        on(cpus.client, || {
            let chosen = self.loads.iter().filter(|load| is_chosen(settings, **load));
            let mut random = Random::default();
            (0..round).for_each(|_| drop(shuffled(&mut random)));
            let mut one =
                |load: Load| steady::measure(results, |results| Self::one(&daemon, load, settings.seconds, &mut random, results));
            chosen.copied().try_for_each(&mut one)
        })
    }

    fn undecided(&self, results: &Results) -> Vec<String> {
        let undecided = |load: &&Load| {
            let ratios = |fixed: &Policy, metric| {
                let get = |policy: &Policy| results.get(&load.candidate(policy), metric);
                Some(get(&AUTO)?.ratios_to(get(fixed)?))
            };
            let Some((best, cheapest)) = Self::best(results, **load, ALL) else { return false };
            let limit = if load.depth == 1 { SHALLOW_LIMIT } else { RATE_LIMIT };
            ratios(best, RATE).is_some_and(|ratios| is_undecided(ratios, limit))
                || ratios(cheapest, CPU).is_some_and(|ratios| is_undecided(ratios, CPU_LIMIT))
        };
        self.loads.iter().filter(undecided).map(|load| load.candidate(&AUTO)).collect()
    }

    fn print(&self, results: &Results) {
        println!(
            "\n{:<28} {:>10} {:>12} {:>10} {:>6} {:>9} {:>12} {:>9} {:>6}",
            "notify: a client that sleeps",
            "auto req/s",
            "best fixed",
            "req/s",
            "ratio",
            "auto ns",
            "cheapest",
            "CPU ns",
            "ratio"
        );
        for load in &self.loads {
            let Some(Compared { best, rate, cheapest, cpu }) = Self::compare(results, *load) else { continue };
            let median =
                |policy: &Policy, metric: &str| results.get(&load.candidate(policy), metric).map_or(f64::NAN, Series::median);
            println!(
                "{:<28} {:>10.0} {:>12} {:>10.0} {rate:>6.3} {:>9.0} {:>12} {:>9.0} {cpu:>6.3}",
                load.name(),
                median(&AUTO, RATE),
                best.name,
                median(best, RATE),
                median(&AUTO, CPU),
                cheapest.name,
                median(cheapest, CPU),
            );
        }
    }

    fn claims(&self, _settings: &Settings, results: &Results) -> Vec<Claim> {
        let of = |figure: fn(&Compared) -> f64, is_meant: fn(&Load) -> bool| {
            let loads = self.loads.iter().filter(|load| is_meant(load));
            loads.map(|load| (load.name(), Self::compare(results, *load).as_ref().map(figure))).collect::<Vec<_>>()
        };
        let (rate, cpu) = (|compared: &Compared| compared.rate, |compared: &Compared| compared.cpu);
        let is_shallow = |load: &Load| load.depth == 1;
        vec![
            Claim::all_at_least(RATE_LIMIT, "requests/s with notify auto over the best fixed setting", of(rate, |_| true)),
            Claim::all_at_most(CPU_LIMIT, "CPU per request with auto over the cheapest good fixed setting", of(cpu, |_| true)),
            Claim::all_at_least(SHALLOW_LIMIT, "requests/s with notify auto over the best fixed, depth 1", of(rate, is_shallow)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(turns: &[[(f64, f64); FIXED.len() + 1]]) -> (Load, Results) {
        let (load, mut results) = (Load { disk: "null", bytes: 512, depth: 8 }, Results::default());
        for figures in turns {
            for (policy, (rate, cpu)) in FIXED.iter().chain([&AUTO]).zip(figures) {
                assert!(Automatic::compare(&results, load).is_none(), "not all were measured");
                results.add(&load.candidate(policy), RATE, *rate);
                results.add(&load.candidate(policy), CPU, *cpu);
            }
        }
        (load, results)
    }

    #[test]
    fn best_has_most_requests_and_the_cheapest_is_among_those_that_are_nearly_as_fast() {
        let turn = [(100.0, 50.0), (95.0, 20.0), (89.0, 1.0), (10.0, 1.0), (20.0, 1.0), (98.0, 22.0)];
        let (load, results) = results(&[turn, turn]);
        let Compared { best, rate, cheapest, cpu } = Automatic::compare(&results, load).expect("all were measured");
        assert_eq!((best.name, cheapest.name), ("off", "min 8"));
        assert!((rate - 0.98).abs() < 1e-9 && (cpu - 1.1).abs() < 1e-9);
    }

    #[test]
    fn settings_that_are_best_by_turns_are_not_both_counted_as_best() {
        let [off, eight] = [[100.0, 80.0], [80.0, 100.0]];
        let turn = |index: usize| [off[index], eight[index], 10.0, 10.0, 10.0, 90.0].map(|rate| (rate, 1.0));
        let (load, results) = results(&[turn(0), turn(1)]);
        let rate = Automatic::compare(&results, load).expect("all were measured").rate;
        assert!((rate - 90.0 / 80.0).abs() < 1e-9, "of the best of one turn, what it had in the other: {rate}");
    }
}
