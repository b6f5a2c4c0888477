//! `cargo xtask bench pairs OLD NEW`: is the new daemon as fast as the old one?
//!
//! Old and new are measured one right after the other, by the same client unless each brings its own, and what is compared is the
//! ratio of the two: what the machine does from minute to minute falls out. What it does within a pair does not, so one line is
//! bounced before, between and after, and pairs during which that changed are left out.

mod report;
mod statistics;
mod workload;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fipsee_measure::cpus::Cpus;
use fipsee_measure::machine::{self, Run};
use fipsee_measure::results::append;
use fipsee_measure::statistics::States;
use fipsee_topology::bounce;
use serde_json::{Value, json};

use self::report::Measured;
use self::statistics::{LEAST_PAIRS, Pair, Summary};
use self::workload::{Side, WORKLOADS, Workload};
use crate::files::FilledFile;
use crate::{check_results, generator};

const FILE_MEBIBYTES: usize = 512;
const FLOOR_TIME: Duration = Duration::from_millis(30);
/// Beyond these, an interval that is still wide says that the machine is not quiet.
const MOST_PAIRS: usize = 60;

/// Compare two builds of fipseed, one right after the other, again and again.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The fipseed to compare with; `cargo xtask bench pairs` also takes a git revision, which it builds.
    old: PathBuf,
    /// The fipseed that may not be slower.
    new: PathBuf,
    /// Let `fipsee bench` of these two programs be the clients of disks, old and new, instead of this program for both.
    #[arg(long, num_args = 2, value_names = ["OLD", "NEW"])]
    clients: Vec<PathBuf>,
    /// Let the new daemon have everything on that an administrator may set: governor, notifications by `auto`, rates that are not reached, a weight,
    /// metrics. With one program as old and new: what that costs. Without typed calls.
    #[arg(long)]
    everything: bool,
    /// Only workloads with this in their name; may be given several times.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Seconds per measurement.
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Pairs of each workload at most; fewer when the interval is narrow enough.
    #[arg(long, default_value_t = MOST_PAIRS)]
    pairs: usize,
    /// Where the file of file disks goes: a folder on a disk [default: the one for temporary files].
    #[arg(long)]
    directory: Option<PathBuf>,
    /// Where to append the results.
    #[arg(long, default_value = "bench/results")]
    results: PathBuf,
    /// What the two are called in the results: revisions.
    #[arg(long, hide = true, num_args = 2, value_names = ["OLD", "NEW"])]
    names: Vec<String>,
}

/// Measure, print, keep; an error when something is slower.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    if !(options.seconds > 0.0 && options.seconds < 1e6) {
        return Err(format!("--seconds {}: choose more than 0", options.seconds));
    }
    check_results(&options.results)?;
    let run = Run::begin_in_sight();
    let (old, new) = (identity(&options.old, options.names.first())?, identity(&options.new, options.names.get(1))?);
    let clients = options.clients.iter().map(|client| identity(client, None)).collect::<Result<Vec<_>, _>>()?;
    if old["sha256"] == new["sha256"] && !options.everything {
        println!("old and new are the same file: what differs is the error of the measurement");
    }
    let workloads: Vec<Workload> = WORKLOADS.into_iter().filter(|workload| options.chooses(*workload)).collect();
    let (workloads, left_out): (Vec<_>, Vec<_>) = workloads.into_iter().partition(|workload| options.has_driver(*workload));
    for workload in &left_out {
        println!("{workload} ... left out: it needs the program latency beside each fipseed; name git revisions");
    }
    let is_whole = workloads.len() == WORKLOADS.len() && options.pairs >= MOST_PAIRS && !options.everything;
    if workloads.is_empty() {
        return Err("--only leaves nothing to measure, or nothing that can be".to_owned());
    }
    let file = if workloads.iter().any(|workload| workload.needs_file()) { Some(options.make_file()?) } else { None };
    let file_system = file.as_ref().map(|file| generator::file_system(file.path()));
    let (measured, states) = measure(options, workloads, file.as_ref())?;
    let (machine, _) = run.end();
    println!("{}", report::table(&measured, states));
    if let Some(boundary_ns) = states.border {
        println!("the machine was in two states: one line bounced took less than {boundary_ns:.0} ns (near), or more (far)");
    }
    let entry = json!({
        "suite": "pairs",
        "machine": machine,
        "old": old,
        "new": new,
        "clients": clients,
        "new_has_everything_on": options.everything,
        "seconds": options.seconds,
        "file_system": file_system,
        "state_boundary_ns": states.border,
        "workloads": report::to_json(&measured, states),
    });
    append(&options.results.join(if is_whole { "pairs.jsonl" } else { "pairs-part.jsonl" }), &entry)?;
    report::judge(&measured, states).map(|text| println!("{text}"))
}

impl Options {
    fn chooses(&self, workload: Workload) -> bool {
        let is_meant = self.only.is_empty() || self.only.iter().any(|part| workload.to_string().contains(part));
        is_meant && !(self.everything && workload.is_of_calls())
    }

    /// Does each build bring the program that this workload needs beside its daemon, if any?
    fn has_driver(&self, workload: Workload) -> bool {
        [&self.old, &self.new].iter().all(|daemon| workload.driver(daemon).is_none_or(|driver| driver.is_file()))
    }

    fn make_file(&self) -> Result<FilledFile, String> {
        let directory = self.directory.clone().unwrap_or_else(std::env::temp_dir);
        if self.directory.is_none() && ["tmpfs", "ramfs"].contains(&generator::file_system(&directory).as_str()) {
            return Err(format!("{} is in memory; name a folder on a disk with --directory", directory.display()));
        }
        let name = format!("fipsee-bench-pairs-{}.img", std::process::id());
        FilledFile::create(directory.join(name), FILE_MEBIBYTES)
    }
}

/// Pair after pair of all workloads that need more, in turn, so that each sees the machine at many times.
fn measure(options: &Options, workloads: Vec<Workload>, file: Option<&FilledFile>) -> Result<(Vec<Measured>, States), String> {
    let mut measured: Vec<Measured> = workloads.into_iter().map(|workload| Measured { workload, pairs: Vec::new() }).collect();
    let mut states = States::with_border(None);
    for round in 0..options.pairs {
        let needs_more = |one: &Measured| {
            let estimate = Summary::of(&one.pairs, states).estimate;
            one.pairs.len() < LEAST_PAIRS || !estimate.is_some_and(|estimate| estimate.is_narrow())
        };
        let open: Vec<usize> = (0..measured.len()).filter(|index| needs_more(&measured[*index])).collect();
        if open.is_empty() {
            break;
        }
        for index in &open {
            let pair = measure_pair(options, measured[*index].workload, file, !round.is_multiple_of(2))?;
            measured[*index].pairs.push(pair);
        }
        states = States::of(measured.iter().flat_map(|one| &one.pairs).flat_map(|pair| pair.floors_ns));
        let _ = writeln!(std::io::stderr(), "pair {} of {} workloads", round + 1, open.len());
    }
    Ok((measured, states))
}

fn measure_pair(options: &Options, workload: Workload, file: Option<&FilledFile>, new_first: bool) -> Result<Pair, String> {
    let cpus = Cpus::choose();
    let floor = || {
        let bounced = cpus.pair().and_then(|pair| bounce::round_trip_ns(pair, FLOOR_TIME));
        bounced.ok_or("this needs two CPUs, one for the client and one for the daemon")
    };
    let time = |side: Side<'_>| {
        let explain = |error| format!("{workload}, {}: {error}", side.program.display());
        workload.measure(side, file, options.seconds, cpus).map_err(explain)
    };
    let client = |index| options.clients.get(index).map(PathBuf::as_path);
    let old = Side { program: &options.old, client: client(0), everything: false };
    let new = Side { program: &options.new, client: client(1), everything: options.everything };
    let [first, second] = if new_first { [new, old] } else { [old, new] };
    let before = floor()?;
    let first_ns = time(first)?;
    let between = floor()?;
    let second_ns = time(second)?;
    Ok(Pair::of(new_first, [first_ns, second_ns], [before, between, floor()?]))
}

/// Which build it is: its revision if that is known, and its contents.
fn identity(program: &Path, name: Option<&String>) -> Result<Value, String> {
    if !program.is_file() {
        return Err(format!("there is no program at {}; build it first", program.display()));
    }
    let text = program.to_string_lossy();
    let line = machine::first_line("sha256sum", &[&text]);
    let sum = line.trim_start_matches('\\').split(' ').next().unwrap_or_default();
    Ok(json!({ "name": name.map_or(program.file_name().unwrap_or_default().to_string_lossy(), Into::into), "sha256": sum }))
}
