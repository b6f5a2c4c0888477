//! Clients of ours that are programs of their own: the C library's and Python's.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::{Measured, Site, Way};
use crate::matrix::Cell;
use crate::place;

/// A program that measures on its own and prints JSON.
struct Program {
    /// The program and its first arguments.
    start: Vec<PathBuf>,
    environment: Vec<(&'static str, PathBuf)>,
    arguments: fn(Cell, f64) -> Vec<String>,
    read: fn(&Value, Cell, f64) -> Option<Measured>,
    cpu: usize,
    daemon_pid: u32,
}

impl Way for Program {
    fn measure(&mut self, cell: Cell, seconds: f64) -> Result<Measured, String> {
        let (program, first) = self.start.split_first().ok_or("no program")?;
        let name = program.display();
        let mut command = Command::new(program);
        command.args(first).args((self.arguments)(cell, seconds)).envs(self.environment.iter().cloned()).stdin(Stdio::null());
        let output = place::on(self.cpu, || command.output().map_err(|error| format!("cannot run {name}: {error}")))?;
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{name} failed: {}", errors.trim().lines().last().unwrap_or("it does not say why")));
        }
        let answer = serde_json::from_str(text.trim()).ok().and_then(|answer| (self.read)(&answer, cell, seconds));
        answer.ok_or_else(|| format!("{name} printed no figures: {}", text.trim()))
    }

    fn servers(&self) -> Vec<u32> {
        vec![self.daemon_pid]
    }
}

/// `fipsee-bench-c`, over libfipsee.so.
pub(super) fn c_library(site: &Site, disk: &str) -> Result<Box<dyn Way>, String> {
    let program = site.shipped("libexec/fipsee-bench-c")?;
    let dist = site.dist.as_deref().unwrap_or(Path::new(""));
    Ok(Box::new(Program {
        start: vec![program, site.socket.clone(), disk.into()],
        environment: vec![("LD_LIBRARY_PATH", dist.join("lib"))],
        arguments: |cell, seconds| {
            let operation = cell.operation();
            vec![cell.depth.to_string(), seconds.to_string(), cell.block_bytes.to_string(), operation.to_owned()]
        },
        read: |answer, _, seconds| {
            let [iops, p50, p99] = ["iops", "p50_ns", "p99_ns"].map(|key| answer[key].as_f64());
            Some(Measured { iops, latency_ns: Some((p50?, p99?)), requests: Some(iops? * seconds) })
        },
        cpu: site.cpus.client,
        daemon_pid: site.daemon_pid,
    }))
}

/// `bench/python/bench.py`, which measures batches and single reads in one go.
pub(super) fn python(site: &Site) -> Result<Box<dyn Way>, String> {
    let script = PathBuf::from("bench/python/bench.py");
    if !script.exists() {
        return Err(format!("there is no {}; run from the top of a checkout that has it", script.display()));
    }
    // `cargo xtask dist` puts a virtual environment that has the module beside the prefix.
    let interpreter = site.shipped("../python-venv/bin/python3")?;
    Ok(Box::new(Program {
        start: vec![interpreter, script, site.socket.clone(), "n".into()],
        environment: Vec::new(),
        arguments: |_, seconds| vec![seconds.to_string()],
        read: read_python,
        cpu: site.cpus.client,
        daemon_pid: site.daemon_pid,
    }))
}

/// Batches are what many in flight are in Python; single reads are one at a time. Its processor time goes to both.
fn read_python(answer: &Value, cell: Cell, _: f64) -> Option<Measured> {
    let [iops, p50, p99] = ["batch_iops", "single_p50_ns", "single_p99_ns"].map(|key| answer[key].as_f64());
    if cell.depth > 1 {
        return Some(Measured { iops: Some(iops?), latency_ns: None, requests: None });
    }
    Some(Measured { iops: None, latency_ns: Some((p50?, p99?)), requests: None })
}

#[cfg(test)]
mod tests {
    use fipsee_measure::cpus::Cpus;
    use serde_json::json;

    use super::*;
    use crate::matrix::{DEEP, SHALLOW};

    #[test]
    fn python_gives_batches_and_single_reads() {
        let answer = json!({ "batch_iops": 2e6, "single_p50_ns": 900, "single_p99_ns": 1500 });
        let single = read_python(&answer, SHALLOW, 1.0).expect("figures");
        assert_eq!((single.iops, single.latency_ns), (None, Some((900.0, 1500.0))));
        let batch = read_python(&answer, DEEP, 1.0).expect("figures");
        assert_eq!((batch.iops, batch.latency_ns), (Some(2e6), None));
        assert!(read_python(&json!({ "batch_iops": 1.0 }), SHALLOW, 1.0).is_none());
    }

    #[test]
    fn program_that_fails_says_why() {
        let mut program = Program {
            start: vec!["sh".into(), "-c".into(), "echo no disk >&2; exit 1".into()],
            environment: Vec::new(),
            arguments: |_, _| Vec::new(),
            read: |_, _, _| None,
            cpu: Cpus::choose().client,
            daemon_pid: std::process::id(),
        };
        assert!(program.measure(SHALLOW, 1.0).is_err_and(|text| text.contains("no disk")));
        program.start[2] = "echo nonsense".into();
        assert!(program.measure(SHALLOW, 1.0).is_err_and(|text| text.contains("nonsense")));
    }
}
