//! fio as the yardstick of the file disk.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// What fio measured.
pub(crate) struct Fio {
    pub(crate) iops: f64,
    pub(crate) latency_ns_p50: f64,
}

/// Random reads of `path` with io_uring and O_DIRECT on CPU 0; `None` when there is no fio.
pub(crate) fn run(path: &Path, block_bytes: u64, depth: u32, seconds: f64) -> Result<Option<Fio>, String> {
    let mut command = Command::new("fio");
    command.args([
        "--name=yardstick",
        "--ioengine=io_uring",
        "--direct=1",
        "--rw=randread",
        "--time_based",
        "--output-format=json",
    ]);
    command.args(["--cpus_allowed=0", "--lat_percentiles=1", "--clat_percentiles=0"]);
    // fio parses fractions of a second as 0.
    command
        .arg(format!("--runtime={}", seconds.ceil().max(1.0)))
        .arg(format!("--bs={block_bytes}"))
        .arg(format!("--iodepth={depth}"));
    let output = match command.arg(format!("--filename={}", path.display())).output() {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("cannot run fio: {error}")),
    };
    if !output.status.success() {
        return Err(format!("fio failed: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let parsed: Value = serde_json::from_slice(&output.stdout).map_err(|error| format!("cannot read fio's answer: {error}"))?;
    let read = &parsed["jobs"][0]["read"];
    match (read["iops"].as_f64(), read["lat_ns"]["percentile"]["50.000000"].as_f64()) {
        (Some(iops), Some(latency_ns_p50)) => Ok(Some(Fio { iops, latency_ns_p50 })),
        _ => Err("fio's answer lacks iops or latencies; is it older than 3.0?".to_owned()),
    }
}
