//! `fipsee bench`: put load on a disk and report the results.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use fipsee_block::disk::spec::parse_size;
use fipsee_ring::clock;
use fipsee_ring::wait::WaitMode;
use serde_json::json;

use crate::claim;
use crate::cpus::CpuChoice;
use crate::load::{self, DataPath, Mix, Report, Settings};

/// Options of `fipsee bench`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The disk.
    disk: String,
    /// The kind of requests.
    #[arg(long, value_enum, default_value = "randread")]
    rw: Mix,
    /// Bytes of one request, for example 512, 4k, 1M.
    #[arg(long, value_parser = parse_size, default_value = "4k")]
    bs: u64,
    /// Requests outstanding per queue.
    #[arg(long, default_value_t = 64)]
    depth: u32,
    /// Queues, each on a thread of its own.
    #[arg(long, default_value_t = 1)]
    queues: u16,
    /// How long to run.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// How to wait for completions: adaptive, sleep, or never sleep and pause, spin, yield, umwait, tpause, monitorx
    /// between two looks.
    #[arg(long, default_value = "adaptive")]
    wait: WaitMode,
    /// The memory of the data.
    #[arg(long, value_enum, default_value = "memshare")]
    data_path: DataPath,
    /// CPUs to bind the queues' threads to, in turn, or auto: for each one near the daemon's worker [default: auto for one
    /// queue, else where the scheduler puts them].
    #[arg(long, value_name = "auto|LIST")]
    cpus: Option<CpuChoice>,
    /// Write recognisable data, check it at every read, and read everything back at the end.
    #[arg(long)]
    verify: bool,
    /// Use the disk from this offset on.
    #[arg(long, value_parser = parse_size, default_value = "0")]
    offset: u64,
    /// Use so much of the disk [default: all].
    #[arg(long, value_parser = parse_size, default_value = "0")]
    range: u64,
    /// Write even while another client may, or is the disk's sole writer.
    #[arg(long)]
    force: bool,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// Run it.
///
/// # Errors
/// An error that says what to do.
pub fn run(socket: &Path, options: &Options) -> Result<(), String> {
    if !(options.seconds > 0.0 && options.seconds < 1e6) {
        return Err(format!("--seconds {}: choose more than 0", options.seconds));
    }
    if options.verify && !options.rw.writes() {
        return Err("--verify needs a load that writes; use --rw randwrite, write or randrw".to_owned());
    }
    let default = if options.queues == 1 { CpuChoice::Auto } else { CpuChoice::List(Vec::new()) };
    let settings = Settings {
        socket: socket.to_owned(),
        disk: options.disk.clone(),
        claim: claim::of(options.force),
        mix: options.rw,
        block_bytes: options.bs,
        depth: options.depth,
        queues: options.queues,
        duration: Duration::from_secs_f64(options.seconds),
        wait: options.wait,
        data_path: options.data_path,
        cpus: options.cpus.clone().unwrap_or(default),
        verify: options.verify,
        range_bytes: (options.offset, options.range),
    };
    let report = load::run(&settings).map_err(|error| error.to_string())?;
    let text = if options.json { json_line(options, &report) } else { table(options, &report) };
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(format!("cannot print: {error}")),
        _ => Ok(()),
    }
}

fn sorted_intervals(report: &Report) -> Vec<f64> {
    let mut intervals = report.interval_iops.clone();
    intervals.sort_by(f64::total_cmp);
    intervals
}

fn json_line(options: &Options, report: &Report) -> String {
    let intervals = sorted_intervals(report);
    let value = json!({
        "disk": options.disk,
        "rw": format!("{:?}", options.rw).to_lowercase(),
        "block_bytes": options.bs,
        "depth": options.depth,
        "queues": options.queues,
        "requests": report.requests,
        "iops": report.iops,
        "iops_interval_min": intervals.first(),
        "iops_interval_median": intervals.get(intervals.len() / 2),
        "iops_interval_max": intervals.last(),
        "bandwidth_bytes_per_s": report.bandwidth_bytes_per_s,
        "latency_ns_p50": report.latency_ns(0.5),
        "latency_ns_p99": report.latency_ns(0.99),
        "latency_ns_p999": report.latency_ns(0.999),
        "latency_ns_mean": report.latency.mean() * 1e9 / load::count_f64(clock::ticks_per_second()),
        "latency_samples": report.latency.len(),
        "cpu_ns_per_io": report.cpu_ns_per_io,
        "verified_blocks": report.verified_blocks,
    });
    format!("{value}\n")
}

fn table(options: &Options, report: &Report) -> String {
    let mut lines = Vec::new();
    let intervals = sorted_intervals(report);
    let (least, most) = (intervals.first().copied().unwrap_or(0.0), intervals.last().copied().unwrap_or(0.0));
    lines.push(format!(
        "{}: {:?}, {} bytes, depth {}, {} queue(s)",
        options.disk, options.rw, options.bs, options.depth, options.queues
    ));
    lines.push(format!("  IOPS       {:>14.0}   tenths of the run: {least:.0} to {most:.0}", report.iops));
    lines.push(format!("  bandwidth  {:>11.1} MB/s", report.bandwidth_bytes_per_s / 1e6));
    let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|quantile| report.latency_ns(quantile));
    lines.push(format!("  latency    {p50:>11} ns p50   {p99} ns p99   {p999} ns p99.9   ({} sampled)", report.latency.len()));
    lines.push(format!("  CPU here   {:>11.0} ns per request", report.cpu_ns_per_io));
    if report.verified_blocks > 0 {
        lines.push(format!("  verified   {:>11} blocks, all as written", report.verified_blocks));
    }
    if most > 2.0 * least {
        lines.push("  note: the rate varied more than twofold; is something else running on this machine?".to_owned());
    }
    lines.push(String::new());
    lines.join("\n")
}
