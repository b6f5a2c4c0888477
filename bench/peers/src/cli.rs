//! The command line, and the rounds.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use fipsee_measure::machine::{Run, stem};

use crate::harness::job::{self, Runner};
use crate::harness::{BURST, Plan};
use crate::mechanisms::{self, Entry, Kind};
use crate::report;
use crate::results::{Measure, Results, STREAM_SLOTS};

/// Measure every way to carry 60-byte messages between two processes, on a quiet machine
#[derive(Parser)]
#[command(name = "cargo xtask bench ipc")]
struct Arguments {
    /// Rounds; each measures every mechanism once, in rotating order
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Three short rounds: does everything still run?
    #[arg(long, conflicts_with = "rounds")]
    quick: bool,
    /// Only mechanisms with this in their name, and Fip-see's ring; may be given several times
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Print the results as JSON instead of the table
    #[arg(long)]
    json: bool,
    /// List the mechanisms, and what to install for those that are not built
    #[arg(long)]
    list: bool,
    /// Where to append the results and to draw the plot
    #[arg(long, value_name = "FOLDER", default_value = "bench/results")]
    results: PathBuf,
}

/// The program.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// `false`: a mechanism failed, and the table says which.
fn run(arguments: &Arguments) -> Result<bool, String> {
    let entries = chosen(&arguments.only)?;
    if arguments.list {
        return list(&entries);
    }
    let cpus = job::choose_cpus()?;
    let started = std::time::Instant::now();
    let rounds = if arguments.quick { 3 } else { usize::from(arguments.rounds) };
    let run = Run::begin();
    let mut results = Results::default();
    for round in 0..rounds {
        for measure in Measure::all() {
            measure_all(&entries, measure, round, cpus, arguments.quick, &mut results);
        }
        eprintln!("round {} of {rounds}: {} s", round + 1, started.elapsed().as_secs());
    }
    let (machine, noise) = run.end();
    let judged = noise.judge(&results.quoted());
    let is_whole = !arguments.quick && arguments.only.is_empty();
    let run = report::Run { entries, results, machine, rounds, cpus };
    let stem = arguments.results.join(stem("ipc", is_whole, &judged));
    let succeeded = report::write(&run, &stem, arguments.json)?;
    if is_whole { judged.map(|()| succeeded) } else { Ok(succeeded) }
}

fn chosen(only: &[String]) -> Result<Vec<Entry>, String> {
    let mut entries = mechanisms::all();
    let known: Vec<_> = entries.iter().map(|entry| entry.name).collect();
    let matches = |name: &str, wanted: &String| name.to_lowercase().contains(&wanted.to_lowercase());
    if let Some(unknown) = only.iter().find(|wanted| !known.iter().any(|name| matches(name, wanted))) {
        return Err(format!("no mechanism's name contains '{unknown}'; there are: {}", known.join(", ")));
    }
    if !only.is_empty() {
        entries.retain(|entry| entry.name == mechanisms::names::RING || only.iter().any(|wanted| matches(entry.name, wanted)));
    }
    Ok(entries)
}

fn list(entries: &[Entry]) -> Result<bool, String> {
    let mut out = std::io::stdout().lock();
    for entry in entries {
        let remark = entry.missing.map(|what_to_do| format!(": not built: {what_to_do}")).unwrap_or_default();
        writeln!(out, "{}{remark}", entry.name).map_err(|error| format!("cannot print: {error}"))?;
    }
    Ok(true)
}

fn measure_all(entries: &[Entry], measure: Measure, round: usize, cpus: [usize; 2], quick: bool, results: &mut Results) {
    let runner_of = |entry: &Entry| match measure {
        Measure::RoundTrip => entry.call,
        Measure::Burst => entry.burst,
        Measure::Stream { slots, .. } => entry.stream.filter(|_| entry.chooses_slots == slots.is_some()),
    };
    let mut jobs: Vec<(&Entry, Runner)> = entries.iter().filter_map(|entry| Some((entry, runner_of(entry)?))).collect();
    if jobs.is_empty() {
        return;
    }
    let first = round % jobs.len();
    jobs.rotate_left(first);
    for (entry, runner) in jobs {
        results.add(entry, measure, round, runner(&plan(measure, entry.kind, cpus, quick)));
    }
}

/// Calls before those that are measured, at least: Fip-see's pacing settles within 5000 exchanges.
const LEAST_WARM_UP_CALLS: u64 = 8000;

/// Enough for a median that repeats, few enough for a round of some seconds: a message through the kernel takes microseconds.
fn plan(measure: Measure, kind: Kind, cpus: [usize; 2], quick: bool) -> Plan {
    let (round_trips, bursts, messages) = match kind {
        Kind::Ours | Kind::Baseline => (30_000, 3000, 2_000_000),
        Kind::Ring => (20_000, 1500, 500_000),
        Kind::Library => (10_000, 500, 200_000),
        Kind::Kernel => (1500, 150, 20_000),
    };
    let (burst, slots, exchanges) = match measure {
        Measure::RoundTrip => (1, 64, round_trips),
        Measure::Burst => (BURST, 64, bursts),
        Measure::Stream { batch, slots } => (batch, slots.unwrap_or(STREAM_SLOTS[0]), messages / batch as u64),
    };
    let exchanges = if quick { exchanges / 4 } else { exchanges };
    let calls_fast = measure == Measure::RoundTrip && kind != Kind::Kernel;
    let warm_up = (exchanges / 8).max(if calls_fast { LEAST_WARM_UP_CALLS } else { 0 });
    Plan { cpus, slots, burst, warm_up, exchanges }
}
