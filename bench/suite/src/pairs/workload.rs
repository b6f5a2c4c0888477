//! What old and new are compared under.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use fipsee::cpus::CpuChoice;
use fipsee::load::{self, count_f64};
use fipsee_measure::cpus::Cpus;
use fipsee_measure::statistics;
use fipsee_ring::clock;
use fipsee_ring::wait::WaitMode;
use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::daemon::Daemon;
use crate::files::FilledFile;
use crate::matrix::{Cell, DEEP, SHALLOW};
use crate::place;
use crate::scale::crowd::{Crowd, ORDINARY, attach_to};
use crate::service::MEMORY_BYTES;
use crate::ways::vhost;
use crate::{generator, idle};

const NULL_BYTES: u64 = 1 << 30;
/// Clients that are attached and silent.
const IDLE_CLIENTS: usize = 1000;
/// Clients that are all active.
const MANY_CLIENTS: usize = 300;
/// A daemon that answers none of them for so long answers none at all.
const MOST_SILENT: Duration = Duration::from_secs(10);
/// Of the run, before it: what a queue learns at first is not what is compared.
const WARM_UP: f64 = 0.2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Medium {
    Null,
    Memory,
    File,
    /// The null disk, beside idle clients.
    BesideIdle,
    /// The null disk, by many clients that one thread drives.
    ManyClients,
    /// The null disk, as a vhost-user-blk device.
    VhostUser,
    /// No disk: typed calls, `depth` of them started together.
    Calls,
}

/// A disk and a load on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Workload {
    medium: Medium,
    pub(super) cell: Cell,
}

const WRITE_SHALLOW: Cell = Cell { write: true, ..SHALLOW };
const WRITE_DEEP: Cell = Cell { write: true, ..DEEP };

pub(super) const WORKLOADS: [Workload; 15] = [
    Workload { medium: Medium::Null, cell: SHALLOW },
    Workload { medium: Medium::Null, cell: DEEP },
    Workload { medium: Medium::Memory, cell: SHALLOW },
    Workload { medium: Medium::Memory, cell: DEEP },
    Workload { medium: Medium::File, cell: SHALLOW },
    Workload { medium: Medium::File, cell: DEEP },
    Workload { medium: Medium::File, cell: WRITE_SHALLOW },
    Workload { medium: Medium::File, cell: WRITE_DEEP },
    Workload { medium: Medium::File, cell: Cell { block_bytes: 512, ..WRITE_DEEP } },
    Workload { medium: Medium::BesideIdle, cell: SHALLOW },
    Workload { medium: Medium::ManyClients, cell: SHALLOW },
    Workload { medium: Medium::VhostUser, cell: SHALLOW },
    Workload { medium: Medium::VhostUser, cell: DEEP },
    Workload { medium: Medium::Calls, cell: SHALLOW },
    Workload { medium: Medium::Calls, cell: DEEP },
];

/// One of the two that are compared.
#[derive(Clone, Copy, Debug)]
pub(super) struct Side<'a> {
    pub(super) program: &'a Path,
    /// A fipsee program whose load it is, instead of this program's own.
    pub(super) client: Option<&'a Path>,
    /// Is everything on that an administrator may set?
    pub(super) everything: bool,
}

/// Rates that no disk here reaches.
const BEYOND_IOPS: u64 = 1_000_000_000;
const BEYOND_BYTES: u64 = 1 << 40;

/// Notifications as the load needs them, rates of the disk and of its user, and a weight.
fn set_everything(daemon: &Daemon) -> Result<(), String> {
    let user = rustix::process::geteuid().as_raw();
    let requests = [
        json!({ "method": "notify.set", "disk": "d", "auto": true }),
        json!({ "method": "limit.set", "disk": "d", "iops": BEYOND_IOPS, "bytes_per_second": BEYOND_BYTES }),
        json!({ "method": "limit.set", "user": user, "iops": BEYOND_IOPS, "bytes_per_second": BEYOND_BYTES, "weight": 200 }),
    ];
    requests.iter().try_for_each(|request| daemon.ask(request).map(drop))
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let medium = match self.medium {
            Medium::Null => "null",
            Medium::Memory => "memory",
            Medium::File => "file",
            Medium::BesideIdle => "1000 idle, null",
            Medium::ManyClients => "300 clients, null",
            Medium::VhostUser => "vhost-user",
            Medium::Calls if self.cell.depth == 1 => return f.write_str("typed call"),
            Medium::Calls => return write!(f, "typed calls, batches of {}", self.cell.depth),
        };
        write!(f, "{medium}, {}", self.cell)
    }
}

impl Workload {
    pub(super) fn needs_file(self) -> bool {
        self.medium == Medium::File
    }

    pub(super) fn is_of_calls(self) -> bool {
        self.medium == Medium::Calls
    }

    /// The program that a build brings for this beside its daemon, where that does not do.
    pub(super) fn driver(self, daemon: &Path) -> Option<PathBuf> {
        self.is_of_calls().then(|| daemon.with_file_name("latency"))
    }

    /// The disk `d`.
    fn disk(self, file: Option<&FilledFile>) -> Result<String, String> {
        let path = file.map(FilledFile::path).map(Path::display);
        match (self.medium, path) {
            (Medium::Memory, _) => Ok(format!("d=memory:{MEMORY_BYTES}")),
            (Medium::File, Some(path)) if self.cell.block_bytes < 4096 => {
                Ok(format!("d=file:{path},block={}", self.cell.block_bytes))
            }
            (Medium::File, Some(path)) => Ok(format!("d=file:{path}")),
            (Medium::File, None) => Err(format!("{self} needs a file, and none was made")),
            _ => Ok(format!("d=null:{NULL_BYTES}")),
        }
    }

    /// Nanoseconds per request of a daemon that is started for this measurement alone: one at a time, the median latency;
    /// otherwise the time in which one more was finished.
    pub(super) fn measure(self, side: Side<'_>, file: Option<&FilledFile>, seconds: f64, cpus: Cpus) -> Result<f64, String> {
        let Side { program, client, everything } = side;
        if let Some(driver) = self.driver(program) {
            return self.measure_calls(&driver, seconds, cpus);
        }
        if let Some(file) = file.filter(|_| self.needs_file()) {
            file.settle()?;
        }
        let server = cpus.server.to_string();
        let for_machines: &[&str] = if self.medium == Medium::VhostUser { &["--vhost-user", "d={dir}/vm"] } else { &[] };
        // A range of one: the governor runs, and has no choice.
        let workers = if everything { "1..1" } else { "1" };
        let mut more = [&["--workers", workers, "--cpus", &server], for_machines].concat();
        if everything {
            more.extend(["--metrics", "{dir}/metrics"]);
        }
        let daemon = Daemon::start_program(program, &[self.disk(file)?], &more)?;
        if everything {
            set_everything(&daemon)?;
        }
        let socket = daemon.socket();
        if self.medium == Medium::VhostUser {
            return self.measure_device(&daemon.directory().join("vm"), seconds, cpus);
        }
        if self.medium == Medium::ManyClients {
            return measure_crowd(&socket, seconds, cpus);
        }
        if self.medium == Medium::Memory {
            generator::fill(&socket, "d", MEMORY_BYTES)?;
        }
        let idle_clients = if self.medium == Medium::BesideIdle { IDLE_CLIENTS } else { 0 };
        let _idle = idle::attach(&socket, "d", idle_clients).map_err(|error| format!("{idle_clients} idle clients: {error}"))?;
        if let Some(client) = client {
            return self.measure_by(client, &socket, seconds, cpus);
        }
        let mut settings = generator::settings(&socket, "d", self.cell, seconds, CpuChoice::List(vec![cpus.client]));
        settings.duration = Duration::from_secs_f64(seconds * WARM_UP);
        load::run(&settings).map_err(|error| error.to_string())?;
        settings.duration = Duration::from_secs_f64(seconds);
        let report = load::run(&settings).map_err(|error| error.to_string())?;
        self.time_ns(report.iops, &report.latency)
    }

    fn time_ns(self, iops: f64, ticks: &Histogram<u64>) -> Result<f64, String> {
        if self.cell.depth > 1 {
            return Ok(1e9 / iops);
        }
        let counts: Vec<_> = ticks.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())).collect();
        median_ns(&counts)
    }

    /// The load of libblkio's client.
    fn measure_device(self, device: &Path, seconds: f64, cpus: Cpus) -> Result<f64, String> {
        let run = |seconds| vhost::load(device, true, NULL_BYTES, self.cell, Duration::from_secs_f64(seconds));
        let seen = place::on(cpus.client, || run(seconds * WARM_UP).and_then(|_| run(seconds)).map_err(|e| e.to_string()));
        let vhost::Seen { iops, ticks, .. } = seen.map_err(|error| format!("libblkio: {error}"))?;
        self.time_ns(iops, &ticks)
    }

    /// `latency` is both ends, each in a process of its own.
    fn measure_calls(self, latency: &Path, seconds: f64, cpus: Cpus) -> Result<f64, String> {
        let mut command = Command::new(latency);
        command.args([seconds.to_string(), self.cell.depth.to_string(), "counts".to_owned()]);
        let text = place::on_both(cpus, || printed_by(&mut command))?;
        let counts: Option<Vec<(u64, u64)>> = text.lines().map(|line| line.split_once(' ').and_then(pair_of_numbers)).collect();
        let counts = counts.ok_or_else(|| format!("{} prints no ticks with their counts: {text:.200}", latency.display()))?;
        Ok(median_ns(&counts)? / f64::from(self.cell.depth))
    }

    /// As `measure`, by `fipsee bench` of another build.
    fn measure_by(self, client: &Path, socket: &Path, seconds: f64, cpus: Cpus) -> Result<f64, String> {
        let Cell { write, depth, block_bytes, .. } = self.cell;
        let mut command = Command::new(client);
        command
            .args(["bench", "d", "--json", "--connect"])
            .arg(socket)
            .args(["--rw", if write { "randwrite" } else { "randread" }]);
        let cpu = cpus.client.to_string();
        let numbers = [("--depth", depth.to_string()), ("--bs", block_bytes.to_string()), ("--cpus", cpu)];
        for (option, value) in &numbers {
            command.args([option, value.as_str()]);
        }
        let text = printed_by(command.args(["--seconds", &seconds.to_string()]))?;
        let report: Value = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", client.display()))?;
        // Its median latency moves in steps. The median of the rates of ten parts of the time does not.
        let key = if depth > 1 { "iops" } else { "iops_interval_median" };
        report[key].as_f64().map(|iops| 1e9 / iops).ok_or_else(|| format!("{} reports no {key}", client.display()))
    }
}

/// Nanoseconds in which one more request was finished.
fn measure_crowd(socket: &Path, seconds: f64, cpus: Cpus) -> Result<f64, String> {
    place::on(cpus.client, || {
        let mut crowd = Crowd::new();
        let user = rustix::process::geteuid().as_raw();
        for _ in 0..MANY_CLIENTS {
            crowd.join_with(attach_to(socket, "d", user, ORDINARY, WaitMode::Adaptive)?, ORDINARY);
        }
        crowd.run(Duration::from_secs_f64(seconds * WARM_UP))?;
        let (mut elapsed, mut completed) = (0.0, 0);
        // A disk may take longer for a request than this time.
        while completed == 0 {
            if elapsed > MOST_SILENT.as_secs_f64() {
                let silent = format!("none of {MANY_CLIENTS} clients had an answer in {MOST_SILENT:?}");
                return Err(format!("{silent}: start that fipseed with a null disk by hand, and read what it logs"));
            }
            let (more, counts) = crowd.run(Duration::from_secs_f64(seconds))?;
            elapsed += more;
            completed += counts.iter().sum::<u64>();
        }
        Ok(1e9 * elapsed / count_f64(completed))
    })
}

fn median_ns(counts: &[(u64, u64)]) -> Result<f64, String> {
    let counts: Vec<(f64, u64)> = counts.iter().map(|(ticks, count)| (count_f64(*ticks), *count)).collect();
    let ticks = statistics::within_step(&counts).ok_or("no request was timed; choose longer --seconds")?;
    Ok(ticks * 1e9 / count_f64(clock::ticks_per_second()))
}

fn pair_of_numbers((first, second): (&str, &str)) -> Option<(u64, u64)> {
    Some((first.parse().ok()?, second.parse().ok()?))
}

/// What a program prints that succeeds.
fn printed_by(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("cannot run {name}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_has_its_own_name() {
        let mut names: Vec<String> = WORKLOADS.iter().map(Workload::to_string).collect();
        assert_eq!(names.last().map(String::as_str), Some("typed calls, batches of 64"));
        names.sort();
        names.dedup();
        assert_eq!(names.len(), WORKLOADS.len(), "{names:?}");
    }

    #[test]
    fn blocks_below_a_page_are_asked_for() {
        let path = std::env::temp_dir().join(format!("fipsee-bench-workload-{}", std::process::id()));
        let file = FilledFile::create(path.clone(), 1).expect("a file");
        let of = |cell| Workload { medium: Medium::File, cell }.disk(Some(&file));
        assert_eq!(of(DEEP), Ok(format!("d=file:{}", path.display())));
        assert_eq!(of(Cell { block_bytes: 512, ..DEEP }), Ok(format!("d=file:{},block=512", path.display())));
        assert!(WORKLOADS[8].disk(None).is_err_and(|text| text.contains("needs a file")));
    }
}
