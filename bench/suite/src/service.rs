//! What the daemon and the Rust library are measured by alone: depths, copies, a file, idle clients.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fipsee::cpus::CpuChoice;
use fipsee::load::{self, Report};
use fipsee_measure::cpus::Cpus;
use fipsee_ring::region::Region;
use fipsee_topology::bounce;

use crate::daemon::Daemon;
use crate::files::{self, TemporaryFile};
use crate::fio::{self, Fio};
use crate::matrix::{Cell, DEEP, SHALLOW};
use crate::table::{BANDWIDTH, IOPS, P50, P99, Results};
use crate::{generator, idle, memcpy};

/// Size of the memory disk and of the copy loop's memory: beyond the second-level cache.
pub(crate) const MEMORY_BYTES: u64 = 64 << 20;
const FILE_BYTES: u64 = 1 << 30;
const BLOCK_BYTES: u64 = 4096;

/// A daemon with the disks `n` (null), `m` (memory) and `f` (file), and what its candidates are compared with.
pub(crate) struct Service {
    pub(crate) daemon: Daemon,
    seconds: f64,
    cpus: Cpus,
    fio: Option<Fio>,
    file: TemporaryFile,
    copy_from: Region,
    copy_to: Region,
}

/// A message and its answer through the rings of a channel, without a daemon.
pub(crate) const RING: &str = "round trip of a channel's rings";

/// Something to measure, by its name.
pub(crate) type Candidate = (&'static str, fn(&Service, &str, &mut Results) -> Result<(), String>);

pub(crate) const CANDIDATES: [Candidate; 13] = [
    ("one line bounced, null QD1's floor", Service::floor),
    (RING, Service::ring),
    ("null QD1", |service, name, results| service.load(name, "n", 1, &[P50, P99, IOPS], results)),
    ("null QD4", |service, name, results| service.load(name, "n", 4, &[P50, P99, IOPS], results)),
    ("null QD16", |service, name, results| service.load(name, "n", 16, &[P50, P99, IOPS], results)),
    ("null QD64", |service, name, results| service.load(name, "n", 64, &[P50, P99, IOPS], results)),
    ("memory QD1", |service, name, results| service.load(name, "m", 1, &[P50, P99, IOPS], results)),
    ("memory QD64", |service, name, results| service.load(name, "m", 64, &[BANDWIDTH, IOPS], results)),
    ("plain memcpy loop", Service::memcpy),
    ("file QD1", |service, name, results| service.load(name, "f", 1, &[P50, P99, IOPS], results)),
    ("fio io_uring QD1", |service, name, results| service.fio(name, 1, results)),
    ("file QD64", |service, name, results| service.load(name, "f", 64, &[P50, P99, IOPS], results)),
    ("fio io_uring QD64", |service, name, results| service.fio(name, 64, results)),
];

impl Service {
    pub(crate) fn start(null_bytes: u64, folder: &Path, seconds: f64, cpus: Cpus, fio: Option<Fio>) -> Result<Self, String> {
        std::fs::create_dir_all(folder).map_err(|error| format!("cannot create {}: {error}", folder.display()))?;
        let file = folder.join("fipsee-bench.img");
        let disks = [
            format!("n=null:{null_bytes}"),
            format!("m=memory:{MEMORY_BYTES}"),
            format!("f=file:{},size={FILE_BYTES}", file.display()),
        ];
        let region = |bytes| Region::create("bench", bytes).map_err(|error| format!("cannot create memory: {error}"));
        let (copy_from, copy_to) = (region(MEMORY_BYTES)?, region(BLOCK_BYTES * 64)?);
        Ok(Self { daemon: Daemon::start(&disks, &[])?, seconds, cpus, fio, file: TemporaryFile(file), copy_from, copy_to })
    }

    /// Put real content under the disks: untouched memory and holes read faster than data.
    pub(crate) fn prepare(&self, with_file: bool) -> Result<(), String> {
        generator::fill(&self.daemon.socket(), "m", MEMORY_BYTES)?;
        if with_file {
            generator::fill(&self.daemon.socket(), "f", FILE_BYTES)?;
        }
        let noise = files::noise();
        for offset in (0..MEMORY_BYTES).step_by(noise.len()) {
            self.copy_from.write(offset, &noise).map_err(|fault| fault.to_string())?;
        }
        Ok(())
    }

    fn load(&self, name: &str, disk: &str, depth: u32, metrics: &[&'static str], results: &mut Results) -> Result<(), String> {
        let cell = Cell { depth, ..SHALLOW };
        let settings = generator::settings(&self.daemon.socket(), disk, cell, self.seconds, CpuChoice::Auto);
        let report = load::run(&settings).map_err(|error| error.to_string())?;
        for metric in metrics {
            results.add(name, metric, figure(&report, metric));
        }
        Ok(())
    }

    fn floor(&self, name: &str, results: &mut Results) -> Result<(), String> {
        if let Some(ns) = self.cpus.pair().and_then(|pair| bounce::round_trip_ns(pair, Duration::from_millis(100))) {
            results.add(name, "round_trip_ns", ns);
        }
        Ok(())
    }

    /// `fipsee ping --queue 1`, the program that ships.
    fn ring(&self, name: &str, results: &mut Results) -> Result<(), String> {
        let dist =
            std::env::var_os("FIPSEE_DIST").ok_or("FIPSEE_DIST is not set; run `cargo xtask bench`, which builds what ships")?;
        let mut command = Command::new(Path::new(&dist).join("bin/fipsee"));
        command.args(["ping", "--queue", "1", "--json", "--seconds", &self.seconds.to_string()]);
        let output = command.output().map_err(|error| format!("cannot run fipsee ping: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let line: serde_json::Value =
            serde_json::from_str(text.trim()).map_err(|error| format!("fipsee ping printed no JSON: {error}: {text}"))?;
        results.add(name, P50, line["ns_per_batch_p50"].as_f64().ok_or("fipsee ping names no median")?);
        Ok(())
    }

    fn memcpy(&self, name: &str, results: &mut Results) -> Result<(), String> {
        let duration = Duration::from_secs_f64(self.seconds);
        let rate = memcpy::run(&self.copy_from, &self.copy_to, BLOCK_BYTES, 64, duration)?;
        results.add(name, BANDWIDTH, rate);
        Ok(())
    }

    fn fio(&self, name: &str, depth: u32, results: &mut Results) -> Result<(), String> {
        if let Some(fio) = &self.fio {
            let cell = if depth == 1 { SHALLOW } else { DEEP };
            let mut arguments = fio::on_file("io_uring", &self.file.0, true);
            // One by one, as fio does by default, and as it did in the results so far.
            arguments.extend(["--iodepth_batch_submit=1".to_owned(), "--iodepth_batch_complete_max=1".to_owned()]);
            let report = fio.run(&arguments, cell, self.seconds, self.cpus.client)?;
            results.add(name, IOPS, report.iops);
            results.add(name, P50, report.latency_ns_p50);
        }
        Ok(())
    }

    /// One active client beside one idle one, then beside a thousand; then none active.
    pub(crate) fn idle_clients(&self, rounds: usize, results: &mut Results) -> Result<(), String> {
        let attach = |socket: &Path, count| idle::attach(socket, "n", count).map_err(|error| error.to_string());
        let socket = self.daemon.socket();
        for _ in 0..rounds {
            let few = attach(&socket, 1)?;
            self.load("null QD1 beside 1 idle client", "n", 1, &[P50, P99, IOPS], results)?;
            drop(few);
            let many = attach(&socket, 1000)?;
            self.load("null QD1 beside 1000 idle clients", "n", 1, &[P50, P99, IOPS], results)?;
            drop(many);
        }
        let _many = attach(&socket, 1000)?;
        let (cpu_percent, sleeps) = idle::daemon_usage(&self.daemon, Duration::from_secs(5))?;
        results.add("daemon with 1000 idle clients", "cpu_percent", cpu_percent);
        results.add("daemon with 1000 idle clients", "wakeups_per_s", sleeps);
        Ok(())
    }
}

fn figure(report: &Report, metric: &str) -> f64 {
    match metric {
        P50 => load::count_f64(report.latency_ns(0.5)),
        P99 => load::count_f64(report.latency_ns(0.99)),
        BANDWIDTH => report.bandwidth_bytes_per_s,
        _ => report.iops,
    }
}
