//! What old and new are compared under.

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fipsee::cpus::CpuChoice;
use fipsee::load::{self, count_f64};
use fipsee_ring::clock;
use serde_json::Value;

use crate::daemon::Daemon;
use crate::files::FilledFile;
use crate::generator;
use crate::matrix::{Cell, DEEP, SHALLOW};
use crate::place::Cpus;
use crate::service::MEMORY_BYTES;

const NULL_BYTES: u64 = 1 << 30;
/// Of the run, before it: what a queue learns at first is not what is compared.
const WARM_UP: f64 = 0.2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Medium {
    Null,
    Memory,
    File,
}

/// A disk and a load on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Workload {
    medium: Medium,
    pub(super) cell: Cell,
}

const WRITE_SHALLOW: Cell = Cell { write: true, ..SHALLOW };
const WRITE_DEEP: Cell = Cell { write: true, ..DEEP };

pub(super) const WORKLOADS: [Workload; 9] = [
    Workload { medium: Medium::Null, cell: SHALLOW },
    Workload { medium: Medium::Null, cell: DEEP },
    Workload { medium: Medium::Memory, cell: SHALLOW },
    Workload { medium: Medium::Memory, cell: DEEP },
    Workload { medium: Medium::File, cell: SHALLOW },
    Workload { medium: Medium::File, cell: DEEP },
    Workload { medium: Medium::File, cell: WRITE_SHALLOW },
    Workload { medium: Medium::File, cell: WRITE_DEEP },
    Workload { medium: Medium::File, cell: Cell { block_bytes: 512, ..WRITE_DEEP } },
];

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let medium = match self.medium {
            Medium::Null => "null",
            Medium::Memory => "memory",
            Medium::File => "file",
        };
        write!(f, "{medium}, {}", self.cell)
    }
}

impl Workload {
    pub(super) fn needs_file(self) -> bool {
        self.medium == Medium::File
    }

    /// The disk `d`.
    fn disk(self, file: Option<&FilledFile>) -> Result<String, String> {
        let path = file.map(FilledFile::path).map(Path::display);
        match (self.medium, path) {
            (Medium::Null, _) => Ok(format!("d=null:{NULL_BYTES}")),
            (Medium::Memory, _) => Ok(format!("d=memory:{MEMORY_BYTES}")),
            (Medium::File, Some(path)) if self.cell.block_bytes < 4096 => {
                Ok(format!("d=file:{path},block={}", self.cell.block_bytes))
            }
            (Medium::File, Some(path)) => Ok(format!("d=file:{path}")),
            (Medium::File, None) => Err(format!("{self} needs a file, and none was made")),
        }
    }

    /// Nanoseconds per request of a daemon that is started for this measurement alone: one at a time, the median latency;
    /// otherwise the time in which one more was finished.
    /// The load is that of `client`, a fipsee program, or this program's own.
    pub(super) fn measure(
        self,
        program: &Path,
        client: Option<&Path>,
        file: Option<&FilledFile>,
        seconds: f64,
        cpus: Cpus,
    ) -> Result<f64, String> {
        if let Some(file) = file.filter(|_| self.needs_file()) {
            file.settle()?;
        }
        let daemon =
            Daemon::start_program(program, &[self.disk(file)?], &["--workers", "1", "--cpus", &cpus.server.to_string()])?;
        let socket = daemon.socket();
        if self.medium == Medium::Memory {
            generator::fill(&socket, "d", MEMORY_BYTES)?;
        }
        if let Some(client) = client {
            return self.measure_by(client, &socket, seconds, cpus);
        }
        let mut settings = generator::settings(&socket, "d", self.cell, seconds, CpuChoice::List(vec![cpus.client]));
        settings.duration = Duration::from_secs_f64(seconds * WARM_UP);
        load::run(&settings).map_err(|error| error.to_string())?;
        settings.duration = Duration::from_secs_f64(seconds);
        let report = load::run(&settings).map_err(|error| error.to_string())?;
        if self.cell.depth > 1 {
            return Ok(1e9 / report.iops);
        }
        // Ticks: whole nanoseconds are nearly 1 % of a request to the null disk.
        let ticks = count_f64(report.latency.value_at_quantile(0.5));
        Ok(ticks * 1e9 / count_f64(clock::ticks_per_second()))
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
        let output =
            command.args(["--seconds", &seconds.to_string()]).output().map_err(|error| format!("cannot run it: {error}"))?;
        if !output.status.success() {
            return Err(format!("{}: {}", client.display(), String::from_utf8_lossy(&output.stderr).trim()));
        }
        let report: Value = serde_json::from_slice(&output.stdout).map_err(|error| format!("{}: {error}", client.display()))?;
        let figure = |key: &str| report[key].as_f64().ok_or_else(|| format!("{} reports no {key}", client.display()));
        if depth > 1 { Ok(1e9 / figure("iops")?) } else { figure("latency_ns_p50") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_has_its_own_name() {
        let mut names: Vec<String> = WORKLOADS.iter().map(Workload::to_string).collect();
        assert_eq!(names.last().map(String::as_str), Some("file, 512 B write QD64"));
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
