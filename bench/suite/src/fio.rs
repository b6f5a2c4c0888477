//! fio, as the baseline and as the client of what it can reach.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::cost::children_time;
use crate::matrix::Cell;
use crate::server::find_program;

/// Requests that fio submits at a time where it keeps many in flight.
const BATCH: u32 = 16;

/// What fio measured.
#[derive(Debug, PartialEq)]
pub(crate) struct Report {
    pub(crate) iops: f64,
    pub(crate) latency_ns_p50: f64,
    pub(crate) latency_ns_p99: f64,
    pub(crate) requests: f64,
}

/// An installed fio.
#[derive(Clone, Debug)]
pub(crate) struct Fio {
    program: PathBuf,
    /// As it names itself, for example 3.33.
    pub(crate) version: String,
    /// Processor time of a run of one request, which is that of starting and ending.
    pub(crate) start_cost: Duration,
}

impl Fio {
    /// Find it; an error says what to do.
    pub(crate) fn find() -> Result<Self, String> {
        let program = find_program("fio")?;
        let output = Command::new(&program).arg("--version").output().map_err(|error| format!("cannot run fio: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text.trim().trim_start_matches("fio-").to_owned();
        let mut fio = Self { program, version, start_cost: Duration::ZERO };
        let before = children_time();
        let cell = Cell { block_bytes: 4096, write: false, depth: 1 };
        fio.start(&["--ioengine=null".to_owned(), "--size=1M".to_owned(), "--number_ios=1".to_owned()], cell, 0)?;
        fio.start_cost = children_time().saturating_sub(before);
        Ok(fio)
    }

    /// Run the requests of `cell` for `seconds` with `arguments` that name the engine and the disk, on CPU `cpu`.
    pub(crate) fn run(&self, arguments: &[String], cell: Cell, seconds: f64, cpu: usize) -> Result<Report, String> {
        // fio parses fractions of a second as 0.
        let mut arguments = arguments.to_vec();
        arguments.extend(["--time_based".to_owned(), format!("--runtime={}", seconds.ceil().max(1.0))]);
        parse(&self.start(&arguments, cell, cpu)?, cell.write)
    }

    fn start(&self, arguments: &[String], cell: Cell, cpu: usize) -> Result<String, String> {
        let mut command = Command::new(&self.program);
        command.args(["--name=bench", "--output-format=json", "--clocksource=cpu", "--norandommap=1"]);
        command.args(["--lat_percentiles=1", "--clat_percentiles=0", "--slat_percentiles=0"]);
        command.arg(format!("--rw={}", if cell.write { "randwrite" } else { "randread" }));
        command.arg(format!("--bs={}", cell.block_bytes)).arg(format!("--iodepth={}", cell.depth));
        if cell.depth > 1 {
            command.arg(format!("--iodepth_batch_submit={BATCH}")).arg("--iodepth_batch_complete_min=1");
            command.arg(format!("--iodepth_batch_complete_max={}", cell.depth));
        }
        command.arg(format!("--cpus_allowed={cpu}")).args(arguments).stdin(Stdio::null());
        let output = command.output().map_err(|error| format!("cannot run fio: {error}"))?;
        if !output.status.success() {
            let text = format!("{}{}", String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
            let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).take(3).collect();
            return Err(format!("fio failed: {}", lines.join("; ")));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// Read fio's JSON, before which some engines print a line of their own.
fn parse(text: &str, write: bool) -> Result<Report, String> {
    let json = text.find('{').map_or(text, |start| &text[start..]);
    let parsed: Value = serde_json::from_str(json).map_err(|error| format!("cannot read fio's answer: {error}"))?;
    let job = &parsed["jobs"][0];
    if job["error"].as_i64() != Some(0) {
        return Err(format!("fio's job failed with error {}", job["error"]));
    }
    let part = &job[if write { "write" } else { "read" }];
    let percentiles = &part["lat_ns"]["percentile"];
    let numbers = [&part["iops"], &percentiles["50.000000"], &percentiles["99.000000"], &part["total_ios"]];
    match numbers.map(Value::as_f64) {
        [Some(iops), Some(latency_ns_p50), Some(latency_ns_p99), Some(requests)] if iops > 0.0 => {
            Ok(Report { iops, latency_ns_p50, latency_ns_p99, requests })
        }
        _ => Err("fio's answer lacks iops or latencies; is it older than 3.0?".to_owned()),
    }
}

/// The arguments that have fio use the file at `path`.
pub(crate) fn on_file(engine: &str, path: &Path, direct: bool) -> Vec<String> {
    vec![format!("--ioengine={engine}"), format!("--filename={}", path.display()), format!("--direct={}", u8::from(direct))]
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &str = r#"fio: connected to NBD server
        {"jobs": [{"error": 0, "read": {"iops": 0.0, "total_ios": 0, "lat_ns": {}},
        "write": {"iops": 1234.5, "total_ios": 2469,
        "lat_ns": {"percentile": {"50.000000": 700, "99.000000": 900}}}}]}"#;

    #[test]
    fn answer_of_fio_is_read_behind_what_engines_print() {
        let expected = Report { iops: 1234.5, latency_ns_p50: 700.0, latency_ns_p99: 900.0, requests: 2469.0 };
        assert_eq!(parse(ANSWER, true), Ok(expected));
    }

    #[test]
    fn answers_without_figures_are_errors() {
        assert!(parse(ANSWER, false).is_err_and(|text| text.contains("lacks")), "nothing was read");
        assert!(parse(&ANSWER.replace("\"error\": 0", "\"error\": 5"), true).is_err_and(|text| text.contains("error 5")));
        assert!(parse("fio: engine not found", true).is_err());
    }
}
