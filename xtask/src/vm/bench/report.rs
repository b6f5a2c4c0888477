//! A run for people, and for machines as a line of JSON.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use super::claims::Claim;
use super::plan::{BLOCKS, DEPTHS, DEVICES, Load};
use super::results::{Figures, Results, median};
use super::{Arguments, DAEMON, GUEST, PEER};
use crate::step;

/// What machine a figure comes from: without it, it says nothing.
pub(super) struct Machine {
    pub(super) date: String,
    pub(super) revision: String,
    pub(super) cpu: String,
    pub(super) kernel: String,
    /// Of all CPUs' time, by the host, while it was measured.
    pub(super) stolen_percent: Option<f64>,
    facts: Vec<(&'static str, String)>,
}

/// Of this machine, now.
pub(super) fn machine(root: &Path) -> Machine {
    let first_line = |program: &str, arguments: &[&str]| {
        let output = step::output(Command::new(program).args(arguments).current_dir(root));
        output.text.lines().next().unwrap_or("unknown").to_owned()
    };
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'));
        line.map_or("unknown", str::trim).to_owned()
    };
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    Machine {
        date: first_line("date", &["-u", "+%Y-%m-%dT%H:%M:%SZ"]),
        revision: first_line("git", &["describe", "--always", "--dirty", "--abbrev=12"]),
        cpu: field("model name"),
        kernel: first_line("uname", &["-r"]),
        stolen_percent: None,
        facts: vec![
            ("cpu_family", field("cpu family")),
            ("cpu_model", field("model\t")),
            ("cpu_mhz", field("cpu MHz")),
            ("cpus", cpus.to_string()),
            ("load_average_at_start", load.split(' ').next().unwrap_or("unknown").to_owned()),
            ("qemu", first_line("qemu-storage-daemon", &["--version"])),
        ],
    }
}

/// Tables: requests per second of everything, latency one at a time, processor time.
pub(super) fn print(results: &Results) {
    for (block, write) in BLOCKS.into_iter().flat_map(|block| [(block, false), (block, true)]) {
        print!("{}", rates(results, block, write));
    }
    print!("{}", latencies(results));
    for watch in &results.watches {
        let words: Vec<String> = watch.percent.iter().map(|(role, percent)| format!("{role} {percent:.2} %")).collect();
        println!("CPU, {}: {}", watch.name, words.join(", "));
    }
    for (label, turns) in results.wakes() {
        let device = DEVICES.iter().find(|device| device.label == label).map_or(label, |device| device.name);
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
            if DEPTHS.into_iter().any(|depth| results.median(of_depth(depth), |figures| figures.iops).is_some()) {
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
            let iops = results.median(Load { depth, ..load }, |figures| figures.iops);
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
            let value = results.median(load, figure);
            let _ = write!(text, "{:>8}", value.map_or_else(|| "-".to_owned(), |value| format!("{value:.0}")));
        }
        text.push('\n');
    }
    text.push('\n');
    text
}

/// Append the run to `stem`.jsonl.
pub(super) fn append(
    stem: &Path,
    arguments: &Arguments,
    machine: &Machine,
    results: &Results,
    claims: &[Claim],
) -> Result<(), String> {
    let path = stem.with_extension("jsonl");
    let line = json_line(arguments, machine, results, claims);
    let written = File::options().create(true).append(true).open(&path).and_then(|mut file| writeln!(file, "{line}"));
    written.map_err(|error| format!("cannot append to {}: {error}", path.display()))
}

fn json_line(arguments: &Arguments, machine: &Machine, results: &Results, claims: &[Claim]) -> String {
    let claims = claims.iter().map(|claim| {
        let holds = claim.holds().map_or_else(|| "null".to_owned(), |holds| holds.to_string());
        let value = claim.value.map_or_else(|| "null".to_owned(), number);
        object(&[
            ("at_most", claim.at_most.to_string()),
            ("claim", string(claim.text)),
            ("holds", holds),
            ("limit", number(claim.limit)),
            ("value", value),
        ])
    });
    let mut facts = vec![("cpu", string(&machine.cpu)), ("date", string(&machine.date)), ("kernel", string(&machine.kernel))];
    facts.push(("revision", string(&machine.revision)));
    facts.extend(machine.facts.iter().map(|(name, value)| (*name, string(value))));
    facts.push(("stolen_percent", machine.stolen_percent.map_or_else(|| "null".to_owned(), number)));
    let watches = results.watches.iter().map(|watch| {
        let mut fields = vec![("while", string(&watch.name))];
        fields.extend([GUEST, DAEMON, PEER].into_iter().filter_map(|role| {
            let percent = results.percent(&watch.name, role)?;
            Some((role, number(percent)))
        }));
        object(&fields)
    });
    let wakes = results.wakes().map(|(label, turns)| object(&[("device", string(label)), ("ns", numbers(&turns))]));
    object(&[
        ("suite", string("vm")),
        ("rounds", arguments.extent.rounds.to_string()),
        ("ms", arguments.extent.ms.to_string()),
        ("guest", string(arguments.machine.word())),
        ("driver_arguments", string(&arguments.driver)),
        ("daemon_arguments", list(arguments.daemon.iter().map(|word| string(word)))),
        ("machine", object(&facts)),
        ("series", list(results.series().map(|(load, rounds)| json_of_series(load, &rounds)))),
        ("cpu_percent", list(watches)),
        ("first_after_idle", list(wakes)),
        ("claims", list(claims)),
    ])
}

fn json_of_series(load: &Load, rounds: &[Figures]) -> String {
    let of = |figure: fn(&Figures) -> f64| numbers(&rounds.iter().map(figure).collect::<Vec<_>>());
    object(&[
        ("device", string(load.device.label)),
        ("block_bytes", load.block.to_string()),
        ("operation", string(if load.write { "write" } else { "read" })),
        ("depth", load.depth.to_string()),
        ("polled", load.polled.to_string()),
        ("iostats", load.iostats.to_string()),
        ("iops", of(|figures| figures.iops)),
        ("latency_ns_p50", of(|figures| figures.p50_ns)),
        ("latency_ns_p99", of(|figures| figures.p99_ns)),
        ("latency_ns_mean", of(|figures| figures.mean_ns)),
    ])
}

fn string(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            character if character.is_control() => quoted.push(' '),
            character => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

/// Three digits behind the point are more than any figure here means; what is no number is null.
fn number(value: f64) -> String {
    if !value.is_finite() {
        return "null".to_owned();
    }
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn numbers(values: &[f64]) -> String {
    list(values.iter().copied().map(number))
}

fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(","))
}

fn object(fields: &[(&str, String)]) -> String {
    let fields: Vec<String> = fields.iter().map(|(name, value)| format!("{}:{value}", string(name))).collect();
    format!("{{{}}}", fields.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_what_json_is() {
        assert_eq!(string("a \"b\" \\ \t"), r#""a \"b\" \\  ""#);
        assert_eq!([1.0, 0.25, f64::NAN, 1_234_567.0, 0.0].map(number), ["1", "0.25", "null", "1234567", "0"]);
        let list = list([object(&[("a", number(1.5))]), string("x")].into_iter());
        assert_eq!(list, r#"[{"a":1.5},"x"]"#);
    }

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
}
