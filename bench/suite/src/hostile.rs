//! `cargo xtask bench hostile`: what a client that lies costs one that does not, and when the daemon is rid of it.
//!
//! The victim's throughput is measured beside each liar and beside the liar's *twin*, a client that does as much and tells the truth: on
//! few CPUs both take time from the victim by being there, which the scheduler shares out and no daemon can prevent. What the lie costs
//! is the ratio of the two. The daemon's worker has a CPU of its own; liar and twin have another, or share the victim's.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use fipsee_block::client::{AttachOptions, Buffer, Disk, Queue};
use fipsee_hostile::lies::{LIES, Lie, Random, Until};
use fipsee_hostile::twins::TWINS;
use rustix::thread::{CpuSet, sched_getaffinity};
use serde_json::json;

use crate::block::append;
use crate::daemon::Daemon;
use crate::facts;
use crate::place::{Cpus, bind_to, on};
use crate::table::{Claim, IOPS, Results};

/// Requests the victim has outstanding.
const DEPTH: u32 = 32;
const BLOCK_BYTES: u64 = 4096;
/// Milliseconds from the death of a neighbour until nothing of it is left in the daemon.
const RELEASED: &str = "released_ms";
/// Longer than this nothing is waited for.
const PATIENCE: Duration = Duration::from_secs(20);

/// How to run.
pub(crate) struct Settings {
    pub(crate) rounds: usize,
    pub(crate) seconds: f64,
    pub(crate) results: PathBuf,
    pub(crate) only: Vec<String>,
    /// Too short to say anything.
    pub(crate) quick: bool,
}

/// The client that behaves: random reads of 4 KiB.
struct Victim {
    disk: Disk,
    queue: Queue,
    buffer: Buffer,
    random: Random,
}

impl Victim {
    fn attach(socket: &Path) -> Result<Self, String> {
        let mut options = AttachOptions::new("victim");
        options.depth = DEPTH;
        let (disk, mut queues) = Disk::attach(socket, &options).map_err(|error| format!("cannot attach: {error}"))?;
        let queue = queues.pop().ok_or("no queue")?;
        let buffer = disk.allocate(u64::from(DEPTH) * BLOCK_BYTES).map_err(|error| error.to_string())?;
        Ok(Self { disk, queue, buffer, random: Random(7) })
    }

    /// Requests a second for so long.
    fn measure(&mut self, seconds: f64) -> Result<f64, String> {
        let sectors = BLOCK_BYTES / 512;
        let blocks = self.disk.info().sector_count / sectors;
        let (started, mut finished) = (Instant::now(), 0_u64);
        while started.elapsed().as_secs_f64() < seconds {
            // Looking at the clock costs more than a request: some hundred between two looks.
            for _ in 0..64 {
                while self.queue.free() > 0 {
                    let place = self.random.number() % u64::from(DEPTH) * BLOCK_BYTES;
                    let sector = self.random.number() % blocks * sectors;
                    let staged = self.queue.read(sector, self.buffer.segment(place, BLOCK_BYTES), 0);
                    staged.map_err(|_| "a queue with room is full".to_owned())?;
                }
                finished += self.wait()?;
            }
        }
        let elapsed = started.elapsed().as_secs_f64();
        while self.queue.outstanding() > 0 {
            self.wait()?;
        }
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let rate = finished as f64 / elapsed;
        Ok(rate)
    }

    fn wait(&mut self) -> Result<u64, String> {
        let count = self.queue.wait(&mut |_| {}).map_err(|error| error.to_string())?;
        u64::try_from(count).map_err(|error| error.to_string())
    }
}

/// A liar or a twin, in a process of its own.
struct Neighbour(Child);

impl Neighbour {
    /// Start it, and wait until it is about to begin.
    fn start(lie: &Lie, socket: &Path, cpu: usize) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut child = on(cpu, || {
            let mut command = Command::new(program);
            command.args(["hostile", "--neighbour", lie.name, "--socket"]).arg(socket).stdout(Stdio::piped());
            command.spawn().map_err(|error| format!("cannot start this program again: {error}"))
        })?;
        let mut line = String::new();
        let said = child.stdout.as_mut().map(|out| BufReader::new(out).read_line(&mut line));
        let neighbour = Self(child);
        if !matches!(said, Some(Ok(1..))) {
            return Err(format!("{}: it ended before it began", lie.name));
        }
        Ok(neighbour)
    }

    /// It must still be there when the measurement is over.
    fn is_alive(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Be a neighbour: begin again whenever the daemon has closed the channel, until killed.
pub(crate) fn be_neighbour(name: &str, socket: &Path) -> Result<(), String> {
    let mut all = LIES.iter().chain(TWINS);
    let lie = all.find(|lie| lie.name == name).ok_or_else(|| format!("no lie '{name}'"))?;
    println!("begin");
    let stop = AtomicBool::new(false);
    let mut failures = 0;
    loop {
        match lie.tell(socket, "neighbour", &mut Until::times(u64::MAX, &stop)) {
            Ok(()) => {}
            // Who comes again faster than the daemon lets go of the last may be refused now and then.
            Err(_) if failures < 1000 => failures += 1,
            Err(error) => return Err(format!("{name}: {error}")),
        }
    }
}

/// Descriptors and mappings of the daemon.
fn holdings(pid: u32) -> Result<(usize, usize), String> {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).map_err(|error| format!("the daemon is gone: {error}"))?;
    let mapped = std::fs::read_to_string(format!("/proc/{pid}/maps")).map_err(|error| format!("the daemon is gone: {error}"))?;
    Ok((open.count(), mapped.lines().filter(|line| line.contains("memfd:fipsee")).count()))
}

/// Wait until the daemon holds no more than it did; how long that took.
fn await_release(pid: u32, before: (usize, usize), since: Instant) -> Result<f64, String> {
    loop {
        let now = holdings(pid)?;
        let elapsed = since.elapsed();
        if now.0 <= before.0 && now.1 <= before.1 {
            return Ok(elapsed.as_secs_f64() * 1e3);
        }
        if elapsed > PATIENCE {
            return Err(format!("after {PATIENCE:?} the daemon still holds {now:?} descriptors and mappings, {before:?} before"));
        }
    }
}

struct Bench {
    settings: Settings,
    victim: Victim,
    daemon: Daemon,
    neighbour_cpu: usize,
    before: (usize, usize),
    results: Results,
}

impl Bench {
    fn start(settings: Settings) -> Result<Self, String> {
        let cpus = Cpus::choose();
        let disks = ["n=null:1M", "victim=memory:64M", "neighbour=memory:64M"].map(ToOwned::to_owned);
        let daemon = Daemon::start(&disks, &["--workers", "1", "--cpus", &cpus.server.to_string()])?;
        bind_to(cpus.client);
        let mut victim = Victim::attach(&daemon.socket())?;
        victim.measure(settings.seconds)?;
        let before = holdings(daemon.pid())?;
        Ok(Self { settings, victim, daemon, neighbour_cpu: neighbour_cpu(cpus), before, results: Results::default() })
    }

    /// Beside a neighbour, and how long the daemon took to forget it.
    fn beside(&mut self, lie: &Lie) -> Result<(f64, f64), String> {
        let mut neighbour = Neighbour::start(lie, &self.daemon.socket(), self.neighbour_cpu)?;
        let rate = self.victim.measure(self.settings.seconds)?;
        if !neighbour.is_alive() {
            return Err(format!("{}: it gave up", lie.name));
        }
        let _ = neighbour.0.kill();
        let killed = Instant::now();
        drop(neighbour);
        Ok((rate, await_release(self.daemon.pid(), self.before, killed)?))
    }

    /// One lie in one round: alone, beside the twin, beside the liar, in an order that changes.
    fn measure(&mut self, lie: &Lie, round: usize) -> Result<(), String> {
        for step in 0..3 {
            match (step + round) % 3 {
                0 => {
                    let rate = self.victim.measure(self.settings.seconds)?;
                    self.results.add(&named(lie, ALONE), IOPS, rate);
                }
                1 => {
                    let (rate, released) = self.beside(lie.twin.ok_or("a lie has a twin")?)?;
                    self.results.add(&named(lie, TWIN), IOPS, rate);
                    self.results.add(&named(lie, TWIN), RELEASED, released);
                }
                _ => {
                    let (rate, released) = self.beside(lie)?;
                    self.results.add(&named(lie, LIAR), IOPS, rate);
                    self.results.add(&named(lie, LIAR), RELEASED, released);
                }
            }
        }
        Ok(())
    }

    fn share(&self, lie: &Lie, of: &str) -> Option<f64> {
        let liar = self.results.get(&named(lie, LIAR), IOPS)?;
        Some(liar.ratio_to(self.results.get(&named(lie, of), IOPS)?))
    }

    fn print(&self, lies: &[&Lie]) {
        println!(
            "\n{:<50} {:>10} {:>10} {:>10} {:>8} {:>8} {:>12}",
            "lie", "alone k/s", "twin k/s", "liar k/s", "of alone", "of twin", "released ms"
        );
        for lie in lies {
            let median =
                |of: &str, metric: &str| self.results.get(&named(lie, of), metric).map_or(f64::NAN, |series| series.median());
            let percent = |of: &str| 100.0 * self.share(lie, of).unwrap_or(f64::NAN);
            println!(
                "{:<50} {:>10.1} {:>10.1} {:>10.1} {:>7.1}% {:>7.1}% {:>12.1}",
                lie.name,
                median(ALONE, IOPS) / 1e3,
                median(TWIN, IOPS) / 1e3,
                median(LIAR, IOPS) / 1e3,
                percent(ALONE),
                percent(TWIN),
                median(LIAR, RELEASED),
            );
        }
    }

    fn claims(&self, lies: &[&Lie]) -> Vec<Claim> {
        let shares = lies.iter().filter_map(|lie| self.share(lie, TWIN));
        let released = lies.iter().filter_map(|lie| Some(self.results.get(&named(lie, LIAR), RELEASED)?.median()));
        vec![
            Claim {
                text: "throughput beside the worst lie over that beside its honest twin",
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
}

const ALONE: &str = "alone";
const TWIN: &str = "beside the honest twin";
const LIAR: &str = "beside the liar";

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
    let machine = facts::machine();
    println!("{machine:#}");
    let chosen = |lie: &&Lie| settings.only.is_empty() || settings.only.iter().any(|part| lie.name.contains(part.as_str()));
    let lies: Vec<&Lie> = LIES.iter().filter(chosen).collect();
    if lies.is_empty() {
        return Err("--only leaves nothing to measure".to_owned());
    }
    let is_whole = lies.len() == LIES.len() && !settings.quick;
    let (rounds, seconds) = (settings.rounds, settings.seconds);
    let path = settings.results.join(if is_whole { "hostile.jsonl" } else { "hostile-part.jsonl" });
    let mut bench = Bench::start(settings)?;
    for round in 0..rounds {
        for place in 0..lies.len() {
            bench.measure(lies[(place + round) % lies.len()], round)?;
        }
        let _ = writeln!(std::io::stderr(), "round {} of {rounds}", round + 1);
    }
    bench.print(&lies);
    println!();
    let claims = bench.claims(&lies);
    claims.iter().for_each(Claim::print);
    let shares =
        lies.iter().map(|lie| json!({ "lie": lie.name, "of_alone": bench.share(lie, ALONE), "of_twin": bench.share(lie, TWIN) }));
    let entry = json!({
        "suite": "hostile",
        "machine": machine,
        "rounds": rounds,
        "seconds": seconds,
        "neighbour_shares_the_victims_cpu": bench.neighbour_cpu == Cpus::choose().client,
        "series": bench.results.series.iter().map(|series| series.to_json()).collect::<Vec<_>>(),
        "shares": shares.collect::<Vec<_>>(),
        "claims": claims.iter().map(Claim::to_json).collect::<Vec<_>>(),
    });
    append(&path, &entry.to_string())
}
