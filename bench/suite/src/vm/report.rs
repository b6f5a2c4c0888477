//! A run for people, and for machines as a line of JSON.

use std::fmt::Write as _;

use fipsee_measure::claim::{self, Claim};
use fipsee_measure::machine::{first_line, of_revision};
use fipsee_measure::plot::curves::{self, Curve, Panel};
use fipsee_measure::plot::{BASELINE, OURS, RGBColor, THEIRS, duration, rate};
use fipsee_measure::statistics::median;
use serde_json::{Value, json};

use super::Options;
use super::plan::{BLOCKS, DEPTHS, DEVICES, Extent, FIP, HOST, Load, QEMU, VIRTIO, WATCH_BESIDE, WATCH_IDLE};
use super::results::{Figures, Results};

/// Tables: requests per second of everything, latency one at a time, processor time.
pub(super) fn print(results: &Results) {
    for (block, write) in BLOCKS.into_iter().flat_map(|block| [(block, false), (block, true)]) {
        print!("{}", rates(results, block, write));
    }
    print!("{}", latencies(results));
    results.causes.print();
    for watch in results.watches.iter().filter(|watch| [WATCH_IDLE, WATCH_BESIDE].contains(&watch.name.as_str())) {
        let words: Vec<String> = watch.percent.iter().map(|(role, percent)| format!("{role} {percent:.2} %")).collect();
        println!("CPU, {}: {}", watch.name, words.join(", "));
    }
    for (label, turns) in results.wakes.iter() {
        let turns: Vec<f64> = turns.copied().collect();
        let device = DEVICES.iter().find(|device| device.label == *label).map_or(*label, |device| device.name);
        let best = turns.iter().copied().fold(f64::INFINITY, f64::min);
        let middle = median(turns).unwrap_or_default();
        println!("first read after idling, {device}: median {:.1} us, best {:.1} us", middle / 1e3, best / 1e3);
    }
    println!();
}

fn name(load: &Load) -> String {
    let polled = if load.polled { ", polled" } else { "" };
    let iostats = if load.iostats { "" } else { ", no iostats" };
    format!("{}{polled}{iostats}", load.device.name)
}

/// Every way a device was used under one load, in the order of tables.
fn variants(results: &Results, block: u32, write: bool) -> Vec<Load> {
    let mut variants = Vec::new();
    for device in DEVICES {
        for (iostats, polled) in [(true, false), (true, true), (false, false), (false, true)] {
            let of_depth = |depth| Load { block, write, polled, iostats, ..Load::reads(device, depth) };
            if DEPTHS.into_iter().any(|depth| results.loads.median(&of_depth(depth), |figures| figures.iops).is_some()) {
                variants.push(of_depth(1));
            }
        }
    }
    variants
}

fn rates(results: &Results, block: u32, write: bool) -> String {
    let variants = variants(results, block, write);
    if variants.is_empty() {
        return String::new();
    }
    let what = if write { "writes" } else { "reads" };
    let title = format!("{block} B random {what}, thousands per second");
    let mut text = format!("{title:<54}");
    // Writing into a string does not fail, here and below.
    for depth in DEPTHS {
        let _ = write!(text, "{:>8}", format!("QD{depth}"));
    }
    text.push('\n');
    for load in variants {
        let _ = write!(text, "{:<54}", name(&load));
        for depth in DEPTHS {
            let iops = results.loads.median(&Load { depth, ..load }, |figures| figures.iops);
            let _ = write!(text, "{:>8}", iops.map_or_else(|| "-".to_owned(), |iops| format!("{:.0}", iops / 1e3)));
        }
        text.push('\n');
    }
    text.push('\n');
    text
}

fn latencies(results: &Results) -> String {
    let mut text = format!("{:<54}{:>8}{:>8}{:>8}\n", "4096 B random reads, QD1, ns", "p50", "p99", "mean");
    for load in variants(results, 4096, false) {
        let figures: [fn(&Figures) -> f64; 3] = [|of| of.p50_ns, |of| of.p99_ns, |of| of.mean_ns];
        let _ = write!(text, "{:<54}", name(&load));
        for figure in figures {
            let value = results.loads.median(&load, figure);
            let _ = write!(text, "{:>8}", value.map_or_else(|| "-".to_owned(), |value| format!("{value:.0}")));
        }
        text.push('\n');
    }
    text.push('\n');
    text
}

/// The run for machines.
pub(super) fn to_json(options: &Options, machine: &Value, results: &Results, claims: &[Claim]) -> Value {
    let mut machine = machine.clone();
    machine["qemu"] = first_line("qemu-storage-daemon", &["--version"]).into();
    let watches = results.watches.iter().map(|watch| {
        let mut json = json!({ "while": watch.name });
        watch.percent.iter().for_each(|(role, percent)| json[role] = (*percent).into());
        json
    });
    let wakes = results.wakes.iter().map(|(label, turns)| json!({ "device": label, "ns": turns.collect::<Vec<_>>() }));
    json!({
        "suite": "vm",
        "rounds": options.extent().rounds,
        "ms": options.extent().ms,
        "guest": options.machine,
        "driver_arguments": options.driver,
        "daemon_arguments": options.daemon,
        "machine": machine,
        "series": results.loads.iter().map(|(load, rounds)| json_of_series(load, &rounds.collect::<Vec<_>>())).collect::<Vec<_>>(),
        "cpu_percent": watches.collect::<Vec<_>>(),
        "causes": results.causes.to_json(),
        "first_after_idle": wakes.collect::<Vec<_>>(),
        "claims": claim::to_json(claims),
    })
}

fn json_of_series(load: &Load, rounds: &[&Figures]) -> Value {
    let of = |figure: fn(&Figures) -> f64| rounds.iter().map(|figures| figure(figures)).collect::<Vec<_>>();
    json!({
        "device": load.device.label,
        "block_bytes": load.block,
        "operation": if load.write { "write" } else { "read" },
        "depth": load.depth,
        "polled": load.polled,
        "iostats": load.iostats,
        "iops": of(|figures| figures.iops),
        "latency_ns_p50": of(|figures| figures.p50_ns),
        "latency_ns_p99": of(|figures| figures.p99_ns),
        "latency_ns_mean": of(|figures| figures.mean_ns),
    })
}

/// A curve of the picture: its load at each depth, whether it is dashed.
const CURVES: [(Load, &str, RGBColor, bool); 6] = [
    (Load::reads(FIP, 1), "fip_blk", OURS, false),
    (Load::reads(FIP, 1).polled(), "fip_blk, polled", OURS, true),
    (Load::reads(HOST, 1), "null_blk in the guest (irqmode=0)", BASELINE, false),
    (Load::reads(HOST, 1).polled(), "the same, polled", BASELINE, true),
    (Load::reads(VIRTIO, 1), "virtio_blk, fipseed", THEIRS, false),
    (Load::reads(QEMU, 1), "virtio_blk, qemu-storage-daemon", THEIRS, true),
];

/// 4 KiB reads of null disks, requests per second and latency over the number in flight.
pub(super) fn draw(results: &Results, machine: &Value, extent: Extent) -> Result<String, String> {
    let panel = |title: &str, name, figure: fn(&Figures) -> f64, label| Panel {
        title: title.to_owned(),
        names: ["requests in flight", name],
        is_logarithmic: [true, true],
        curves: CURVES
            .iter()
            .map(|&(load, name, color, is_dashed)| {
                let at = |depth: u32| Some((f64::from(depth), results.loads.median(&Load { depth, ..load }, figure)?));
                Curve { is_dashed, ..Curve::new(name, color, DEPTHS.into_iter().filter_map(at).collect()) }
            })
            .collect(),
        label,
    };
    let panels = [
        panel("Requests per second. Up is better.", "requests per second", |figures| figures.iops, rate as fn(f64) -> String),
        panel("Latency of a request, p50. Down is better.", "latency", |figures| figures.p50_ns, duration),
    ];
    let foot = [
        format!(
            "Medians of {} rounds of {} ms each, every disk in one boot of user-mode Linux 6.1 with one CPU; back ends on another CPU.",
            extent.rounds, extent.ms
        ),
        of_revision(machine),
    ];
    curves::draw(&panels, &["A guest reads 4 KiB at random from a null disk, from within its kernel"], &foot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_show_medians_and_what_is_missing() {
        let mut results = Results::default();
        for (round, iops) in [(0, 5_000), (1, 7_000), (2, 9_000)] {
            let fields = "block=4096 write=0 depth=64 polled=0 requests=1 errors=0 unpolled=0 mean_ns=1 p50_ns=2 p99_ns=3";
            results.take(&format!("run {round} fnull {fields} iops={iops}")).expect("a report");
        }
        let text = rates(&results, 4096, false);
        let line = text.lines().find(|line| line.starts_with("fip_blk, fipseed")).expect("its line");
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words, ["fip_blk,", "fipseed", "-", "-", "-", "-", "-", "-", "7", "-"]);
        assert_eq!(rates(&results, 512, true), "");
    }

    #[test]
    fn picture_has_every_curve() {
        let mut results = Results::default();
        for (label, polled) in [("fnull", 0), ("fnull", 1), ("host", 0), ("host", 1), ("vnull", 0), ("qemu", 0)] {
            for depth in DEPTHS {
                let fields = format!("block=4096 write=0 depth={depth} polled={polled} requests=1 errors=0 unpolled=0");
                results.take(&format!("run 0 {label} {fields} iops=5000 mean_ns=1 p50_ns=1500 p99_ns=1")).expect("a report");
            }
        }
        let extent = Extent { rounds: 1, ms: 1, claims_only: false, several_cpus: false, idle_seconds: 1, wakes: 1 };
        let svg = draw(&results, &json!({ "cpu": "A CPU" }), extent).expect("a picture");
        for words in CURVES.iter().map(|(_, name, ..)| *name).chain(["A CPU", "1 rounds of 1 ms", "requests in flight"]) {
            assert!(svg.contains(words), "{words} is missing");
        }
    }
}
