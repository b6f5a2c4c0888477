//! `fipsee bench`: put load on a disk and report the results.

use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use fipsee::claim;
use fipsee::cpus::CpuChoice;
use fipsee::load::{self, DataPath, Mix, Report, Settings, count_f64};
use fipsee_block::disk::spec::parse_size;
use fipsee_ring::clock;
use fipsee_ring::notify::Policy;
use fipsee_ring::wait::WaitMode;
use serde_json::json;

use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::{output, units};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The disk.
    disk: String,
    /// The kind of requests.
    #[arg(long, value_enum, default_value = "randread")]
    rw: Mix,
    /// Bytes of one request, for example 512, 4k, 1M.
    #[arg(long, value_parser = parse_block_size, default_value = "4k")]
    bs: u64,
    /// Requests outstanding per queue; the daemon grants up to its max_depth.
    #[arg(long, value_parser = parse_count::<u32>, default_value = "64")]
    depth: u32,
    /// Queues, each on a thread of its own; the daemon grants up to its max_queues.
    #[arg(long, value_parser = parse_count::<u16>, default_value = "1")]
    queues: u16,
    /// How long to run; Ctrl-C ends it early and prints what was measured.
    #[arg(long, value_parser = units::parse_seconds, default_value = "3")]
    seconds: Duration,
    /// How to wait for completions: adaptive, sleep, or never sleep and pause, spin, yield, umwait, tpause, monitorx
    /// between two looks.
    #[arg(long, default_value = "adaptive")]
    wait: WaitMode,
    /// When a sleeping daemon is woken for requests: auto, max_rate=N, min_completions=N, max_delay_us=N, with commas between
    /// them; completions are requests here [default: at once].
    #[arg(long, value_name = "POLICY")]
    notify: Option<Policy>,
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
    /// Print one JSON object instead of text; queues and depth are those granted.
    #[arg(long)]
    json: bool,
}

fn parse_block_size(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        0 => Err("requests of 0 bytes move nothing; write for example 512, 4k or 1M".to_owned()),
        length_bytes => Ok(length_bytes),
    }
}

fn parse_count<T: FromStr + Default + PartialEq>(text: &str) -> Result<T, String> {
    match text.parse() {
        Ok(count) if count == T::default() => Err("with none there is no load; write 1 or more".to_owned()),
        Ok(count) => Ok(count),
        Err(_) => Err(format!("write a whole number from 1 to {}", u128::MAX >> (128 - 8 * size_of::<T>()))),
    }
}

pub(crate) fn run(socket: &Path, arguments: &Arguments) -> Result<(), Error> {
    if arguments.verify && !arguments.rw.writes() {
        return Err("--verify needs a load that writes; use --rw randwrite, write or randrw".into());
    }
    arguments.cpus.iter().try_for_each(CpuChoice::check)?;
    let default = if arguments.queues == 1 { CpuChoice::Auto } else { CpuChoice::List(Vec::new()) };
    let settings = Settings {
        socket: socket.to_owned(),
        disk: arguments.disk.clone(),
        claim: claim::of(arguments.force),
        mix: arguments.rw,
        block_bytes: arguments.bs,
        depth: arguments.depth,
        queues: arguments.queues,
        duration: arguments.seconds,
        wait: arguments.wait,
        notify: arguments.notify,
        data_path: arguments.data_path,
        cpus: arguments.cpus.clone().unwrap_or(default),
        verify: arguments.verify,
        range_bytes: (arguments.offset, arguments.range),
    };
    let verify = arguments.verify;
    let note = move || {
        if verify {
            eprintln!("note: interrupted; reading back what was written. A second signal ends it at once");
        }
    };
    let interrupt = Interrupt::watch(note, || {})?;
    let report = load::run_until(&settings, &|| interrupt.signal().is_some()).map_err(|error| error.to_string())?;
    if let Some(note) = granted_less(arguments, &report) {
        eprintln!("note: {note}");
    }
    output::print(&if arguments.json { json_line(arguments, &report) } else { text(arguments, &report) })?;
    let (ran, wanted) = (report.elapsed.as_secs_f64(), arguments.seconds.as_secs_f64());
    match interrupt.signal().filter(|_| ran < wanted) {
        Some(signal) => Err(Error::interrupted(signal, format_args!("this is what {ran:.1} of {wanted} s measured"))),
        None => Ok(()),
    }
}

/// Says so when the daemon's limits are below what was asked for.
fn granted_less(arguments: &Arguments, report: &Report) -> Option<String> {
    let limits = [
        ("queues", u64::from(arguments.queues), report.queues as u64, "max_queues"),
        ("requests in flight per queue", arguments.depth.into(), report.depth as u64, "max_depth"),
    ];
    let lower = limits.iter().filter(|(_, asked, granted, _)| granted < asked);
    let lower: Vec<_> = lower.map(|(what, asked, granted, limit)| format!("{granted} {what}, not {asked} ({limit})")).collect();
    (!lower.is_empty()).then(|| format!("the daemon grants a client {}", lower.join(" and ")))
}

fn sorted_intervals(report: &Report) -> Vec<f64> {
    let mut intervals = report.interval_iops.clone();
    intervals.sort_by(f64::total_cmp);
    intervals
}

/// The load as the option names it.
fn name_of(mix: Mix) -> String {
    mix.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

fn json_line(arguments: &Arguments, report: &Report) -> String {
    let intervals = sorted_intervals(report);
    let value = json!({
        "disk": arguments.disk,
        "rw": name_of(arguments.rw),
        "block_bytes": arguments.bs,
        "depth": report.depth,
        "queues": report.queues,
        "seconds": report.elapsed.as_secs_f64(),
        "requests": report.requests,
        "iops": report.iops,
        "iops_interval_min": intervals.first(),
        "iops_interval_median": intervals.get(intervals.len() / 2),
        "iops_interval_max": intervals.last(),
        "bandwidth_bytes_per_s": report.bandwidth_bytes_per_s,
        "latency_ns_p50": report.latency_ns(0.5),
        "latency_ns_p99": report.latency_ns(0.99),
        "latency_ns_p999": report.latency_ns(0.999),
        "latency_ns_mean": report.latency.mean() * 1e9 / count_f64(clock::ticks_per_second()),
        "latency_samples": report.latency.len(),
        "cpu_ns_per_io": report.cpu_ns_per_io,
        "doorbells": report.doorbells.doorbells,
        "suppressed": report.doorbells.suppressed,
        "wakeups": report.doorbells.wakeups,
        "spurious": report.doorbells.spurious,
        "verified_blocks": report.verified_blocks,
    });
    format!("{value}\n")
}

fn text(arguments: &Arguments, report: &Report) -> String {
    let intervals = sorted_intervals(report);
    let (least, most) = (intervals.first().copied().unwrap_or(0.0), intervals.last().copied().unwrap_or(0.0));
    let [least_shown, most_shown, iops] = [least, most, report.iops].map(units::count);
    let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|quantile| units::nanoseconds(report.latency_ns(quantile)));
    let cpu = Duration::from_secs_f64(report.cpu_ns_per_io / 1e9).as_nanos();
    let mut lines = vec![
        format!(
            "{}: {}, {} each, {} queue{} of depth {}, {:.1} s",
            arguments.disk,
            name_of(arguments.rw),
            units::bytes(arguments.bs),
            report.queues,
            if report.queues == 1 { "" } else { "s" },
            report.depth,
            report.elapsed.as_secs_f64()
        ),
        format!("  IOPS       {iops}, in tenths of the run {least_shown} to {most_shown}"),
        format!("  bandwidth  {}", units::byte_rate(report.bandwidth_bytes_per_s)),
        format!("  latency    p50 {p50}, p99 {p99}, p99.9 {p999} ({} sampled)", report.latency.len()),
        format!("  CPU here   {} per request", units::nanoseconds(u64::try_from(cpu).unwrap_or(u64::MAX))),
    ];
    if report.verified_blocks > 0 {
        lines.push(format!("  verified   {} blocks, all as written", report.verified_blocks));
    }
    if most > 2.0 * least {
        lines.push("  note: the rate varied more than twofold; is something else running on this machine?".to_owned());
    }
    lines.push(String::new());
    lines.join("\n")
}
