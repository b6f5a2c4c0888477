//! `cargo xtask bench block`: what the block service must show.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fipsee::load::{self, DataPath, Mix, Report};
use fipsee_ring::region::Region;
use fipsee_ring::wait::WaitMode;
use serde_json::json;

use crate::daemon::Daemon;
use crate::table::{Claim, Results};
use crate::{facts, fio, floor, headline, idle, memcpy};

/// Size of the memory disk and of the copy loop's memory: beyond the second-level cache, as the prototype had it.
const MEMORY_BYTES: u64 = 64 << 20;
const FILE_BYTES: u64 = 1 << 30;
const BLOCK_BYTES: u64 = 4096;

const QD1: &str = "latency_ns_p50";
const P99: &str = "latency_ns_p99";
const IOPS: &str = "iops";
const BANDWIDTH: &str = "bandwidth_bytes_per_s";

/// How to run.
pub(crate) struct Settings {
    pub(crate) rounds: usize,
    pub(crate) seconds: f64,
    pub(crate) results: PathBuf,
    pub(crate) file_directory: PathBuf,
    pub(crate) only: String,
    /// The README whose headline is to be renewed.
    pub(crate) readme: Option<PathBuf>,
}

struct Bench<'a> {
    settings: &'a Settings,
    daemon: Daemon,
    file: PathBuf,
    copy_from: Region,
    copy_to: Region,
    results: Results,
}

type Candidate = (&'static str, fn(&mut Bench<'_>, &'static str) -> Result<(), String>);

const CANDIDATES: [Candidate; 12] = [
    ("one line bounced, null QD1's floor", |bench, name| bench.floor(name)),
    ("null QD1", |bench, name| bench.load(name, "n", 1, &[QD1, P99, IOPS])),
    ("null QD4", |bench, name| bench.load(name, "n", 4, &[QD1, P99, IOPS])),
    ("null QD16", |bench, name| bench.load(name, "n", 16, &[QD1, P99, IOPS])),
    ("null QD64", |bench, name| bench.load(name, "n", 64, &[QD1, P99, IOPS])),
    ("memory QD1", |bench, name| bench.load(name, "m", 1, &[QD1, P99, IOPS])),
    ("memory QD64", |bench, name| bench.load(name, "m", 64, &[BANDWIDTH, IOPS])),
    ("plain memcpy loop", |bench, name| bench.memcpy(name)),
    ("file QD1", |bench, name| bench.load(name, "f", 1, &[QD1, P99, IOPS])),
    ("fio io_uring QD1", |bench, name| bench.fio(name, 1)),
    ("file QD64", |bench, name| bench.load(name, "f", 64, &[QD1, P99, IOPS])),
    ("fio io_uring QD64", |bench, name| bench.fio(name, 64)),
];

/// Run everything, print the table and the claims, append the results.
pub(crate) fn run(settings: &Settings) -> Result<(), String> {
    let file = settings.file_directory.join("fipsee-bench.img");
    let disks =
        ["n=null:1G".to_owned(), format!("m=memory:{MEMORY_BYTES}"), format!("f=file:{},size={FILE_BYTES}", file.display())];
    let region = |bytes| Region::create("bench", bytes).map_err(|error| format!("cannot create memory: {error}"));
    let mut bench = Bench {
        settings,
        daemon: Daemon::start(&disks, &[])?,
        file,
        copy_from: region(MEMORY_BYTES)?,
        copy_to: region(BLOCK_BYTES * 64)?,
        results: Results::default(),
    };
    let machine = facts::machine();
    println!("{machine:#}");
    bench.prepare()?;
    let chosen: Vec<&Candidate> = CANDIDATES.iter().filter(|(name, _)| name.contains(&settings.only)).collect();
    for round in 0..settings.rounds {
        for place in 0..chosen.len() {
            let (name, candidate) = chosen[(place + round) % chosen.len()];
            candidate(&mut bench, name)?;
        }
        eprintln!("round {} of {}", round + 1, settings.rounds);
    }
    if "idle".contains(&settings.only) {
        bench.idle_clients()?;
    }
    bench.results.print();
    let claims = bench.claims();
    println!();
    claims.iter().for_each(Claim::print);
    let entry = json!({
        "suite": "block",
        "machine": machine,
        "rounds": settings.rounds,
        "seconds": settings.seconds,
        "series": bench.results.series.iter().map(|series| series.to_json()).collect::<Vec<_>>(),
        "claims": claims.iter().map(Claim::to_json).collect::<Vec<_>>(),
    });
    append(&settings.results, &entry.to_string())?;
    if let Some(readme) = &settings.readme {
        headline::write(readme, &bench.results, &entry["machine"])?;
    }
    std::fs::remove_file(&bench.file).map_err(|error| format!("cannot remove {}: {error}", bench.file.display()))
}

impl Bench<'_> {
    /// Put real content under the disks: untouched memory and holes read faster than data.
    fn prepare(&self) -> Result<(), String> {
        for (disk, bytes) in [("m", MEMORY_BYTES), ("f", FILE_BYTES)] {
            let mut settings = self.load_settings(disk, 8);
            (settings.mix, settings.block_bytes, settings.duration) = (Mix::Write, 1 << 20, Duration::from_millis(100));
            let mut written = 0;
            // The generator writes in sequence from the start; go on until the whole disk has been written.
            while written < 2 * bytes {
                settings.duration *= 2;
                written = load::run(&settings).map_err(|error| error.to_string())?.requests << 20;
            }
        }
        let noise: Vec<u8> = (0..1 << 20).map(|index: u32| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for offset in (0..MEMORY_BYTES).step_by(noise.len()) {
            self.copy_from.write(offset, &noise).map_err(|fault| fault.to_string())?;
        }
        Ok(())
    }

    fn load_settings(&self, disk: &str, depth: u32) -> load::Settings {
        load::Settings {
            socket: self.daemon.socket(),
            disk: disk.to_owned(),
            mix: Mix::RandRead,
            block_bytes: BLOCK_BYTES,
            depth,
            queues: 1,
            duration: Duration::from_secs_f64(self.settings.seconds),
            wait: WaitMode::Adaptive,
            data_path: DataPath::Memshare,
            cpus: fipsee::bench::first_cpu().into_iter().collect(),
            verify: false,
            range_bytes: (0, 0),
        }
    }

    fn load(&mut self, name: &'static str, disk: &str, depth: u32, metrics: &[&'static str]) -> Result<(), String> {
        let report = load::run(&self.load_settings(disk, depth)).map_err(|error| error.to_string())?;
        for metric in metrics {
            self.record(name, metric, &report);
        }
        Ok(())
    }

    fn record(&mut self, name: &'static str, metric: &'static str, report: &Report) {
        let value = match metric {
            QD1 => load::count_f64(report.latency_ns(0.5)),
            P99 => load::count_f64(report.latency_ns(0.99)),
            BANDWIDTH => report.bandwidth_bytes_per_s,
            _ => report.iops,
        };
        self.results.add(name, metric, metric == QD1 || metric == P99, value);
    }

    fn floor(&mut self, name: &'static str) -> Result<(), String> {
        if let Some(ns) = floor::round_trip_ns(Duration::from_millis(100)) {
            self.results.add(name, "round_trip_ns", true, ns);
        }
        Ok(())
    }

    fn memcpy(&mut self, name: &'static str) -> Result<(), String> {
        let duration = Duration::from_secs_f64(self.settings.seconds);
        let rate = memcpy::run(&self.copy_from, &self.copy_to, BLOCK_BYTES, 64, duration)?;
        self.results.add(name, BANDWIDTH, false, rate);
        Ok(())
    }

    fn fio(&mut self, name: &'static str, depth: u32) -> Result<(), String> {
        if let Some(fio) = fio::run(&self.file, BLOCK_BYTES, depth, self.settings.seconds)? {
            self.results.add(name, IOPS, false, fio.iops);
            self.results.add(name, QD1, true, fio.latency_ns_p50);
        }
        Ok(())
    }

    /// One active client beside one idle one, then beside a thousand; then nobody active.
    fn idle_clients(&mut self) -> Result<(), String> {
        let attach = |socket: &Path, count| idle::attach(socket, "n", count).map_err(|error| error.to_string());
        let socket = self.daemon.socket();
        for _ in 0..self.settings.rounds {
            let few = attach(&socket, 1)?;
            self.load("null QD1 beside 1 idle client", "n", 1, &[QD1, P99, IOPS])?;
            drop(few);
            let many = attach(&socket, 1000)?;
            self.load("null QD1 beside 1000 idle clients", "n", 1, &[QD1, P99, IOPS])?;
            drop(many);
        }
        let _many = attach(&socket, 1000)?;
        let (cpu_percent, sleeps) = idle::daemon_usage(&self.daemon, Duration::from_secs(5))?;
        self.results.add("daemon with 1000 idle clients", "cpu_percent", true, cpu_percent);
        self.results.add("daemon with 1000 idle clients", "wakeups_per_s", true, sleeps);
        Ok(())
    }

    fn claims(&self) -> Vec<Claim> {
        let best = |candidate, metric| self.results.get(candidate, metric).map(|series| series.best());
        let ratio = |a: Option<f64>, b: Option<f64>| Some(a? / b?);
        let claim = |text, value, at_most, limit| Claim { text, value, limit, at_most };
        let added = || Some(best("file QD1", QD1)? - best("fio io_uring QD1", QD1)?);
        // Measured in pairs: the median of the ratios stands even if the machine changes in between.
        let paired = |ours, theirs, metric| Some(self.results.get(ours, metric)?.ratio_to(self.results.get(theirs, metric)?));
        let beside = paired("null QD1 beside 1000 idle clients", "null QD1 beside 1 idle client", QD1);
        let over_fio = paired("file QD64", "fio io_uring QD64", IOPS);
        vec![
            claim("null disk, QD1: p50 latency in ns", best("null QD1", QD1), true, 500.0),
            claim("null disk, QD64: requests per second", best("null QD64", IOPS), false, 15e6),
            claim(
                "memory disk, QD64: bandwidth over a plain memcpy loop's",
                ratio(best("memory QD64", BANDWIDTH), best("plain memcpy loop", BANDWIDTH)),
                false,
                0.8,
            ),
            claim("QD1 p50 beside 1000 idle clients over beside 1, median of pairs", beside, true, 1.2),
            claim("file disk, QD64: IOPS over fio's, median of pairs", over_fio, false, 0.95),
            claim(
                "file disk, QD64: IOPS over fio's, best over best",
                ratio(best("file QD64", IOPS), best("fio io_uring QD64", IOPS)),
                false,
                0.95,
            ),
            claim("file disk, QD1: p50 latency in ns added to fio's", added(), true, 1500.0),
            claim("idle daemon, 1000 clients: CPU in percent", best("daemon with 1000 idle clients", "cpu_percent"), true, 1.0),
        ]
    }
}

fn append(directory: &Path, line: &str) -> Result<(), String> {
    let path = directory.join("block.jsonl");
    let mut open = std::fs::OpenOptions::new();
    let file = open.create(true).append(true).open(&path);
    let written = file.and_then(|mut file| writeln!(file, "{line}"));
    written.map_err(|error| format!("cannot append to {}: {error}; run from the top of the repository", path.display()))
}
