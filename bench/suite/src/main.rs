//! The benchmarks behind every figure this project quotes: peers and ourselves interleaved in the same run, medians and
//! bests of several rounds, appended to `bench/results/` with a description of the machine.

mod block;
mod claims;
mod cost;
mod daemon;
mod files;
mod fio;
mod generator;
mod headline;
mod hostile;
mod idle;
mod matrix;
mod memcpy;
mod net;
mod notice;
mod pairs;
mod parts;
mod picture;
mod place;
mod scale;
mod server;
mod service;
mod small_writes;
mod steady;
mod table;
mod vm;
mod ways;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use fipsee_measure::machine::stem;

/// Run a benchmark on a quiet machine.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    comparison: Option<Comparison>,
    /// Which one.
    #[arg(value_parser = ["block", "hostile", "net", "notice", "scale", "small-writes"], default_value = "block")]
    suite: String,
    #[command(flatten)]
    settings: Settings,
    /// Be the neighbour of this name of a victim, until killed.
    #[arg(long, hide = true, requires = "socket")]
    neighbour: Option<String>,
    /// The daemon of the neighbour.
    #[arg(long, hide = true)]
    socket: Option<PathBuf>,
    /// Where it runs.
    #[arg(long, hide = true)]
    cpu: Option<usize>,
}

// How to run. No comment for people: it would replace the program's.
#[derive(Clone, clap::Args)]
pub(crate) struct Settings {
    /// Rounds; each round runs every candidate once, in rotating order.
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: usize,
    /// Seconds per candidate and round; fio rounds up to whole ones.
    #[arg(long, default_value_t = 1.0)]
    pub(crate) seconds: f64,
    /// Of scale and net: begin no further round after this many minutes; what was measured until then is judged and kept. What is left of them after
    /// the last round goes to what is undecided in scale.
    #[arg(long)]
    pub(crate) minutes: Option<f64>,
    /// Only what claims are about: of the matrix, 4 KiB reads.
    #[arg(long)]
    pub(crate) claims: bool,
    /// Instead of everything, the peers with different settings, to see which is best for each.
    #[arg(long)]
    pub(crate) tune: bool,
    /// One round of a fifth of a second, servers anywhere: does everything still run?
    #[arg(long, conflicts_with_all = ["rounds", "seconds"])]
    pub(crate) quick: bool,
    /// After hostile, print the table of docs/reliability.md as well; after small-writes, its table in Markdown;
    /// after scale and net, the claims of docs/scale.md and docs/net-performance.md.
    #[arg(long)]
    pub(crate) markdown: bool,
    /// Only candidates with this in their name, of scale also a part (tables, fairness, workers, max-rate, auto, dedicated, limits), of net,
    /// too (paths, forwarding, copies, stages, idle, misbehaviour, guest); may be given several times.
    #[arg(long, value_name = "NAME")]
    pub(crate) only: Vec<String>,
    /// Where to append the results and to draw the plot.
    #[arg(long, default_value = "bench/results")]
    pub(crate) results: PathBuf,
    /// Where the file disk's file goes: a directory on ext4.
    #[arg(long, default_value = "target")]
    pub(crate) file_directory: PathBuf,
    /// Where files in memory go: a directory on a tmpfs.
    #[arg(long, default_value = "/dev/shm")]
    pub(crate) memory_directory: PathBuf,
    /// Renew the headline in this README from the run.
    #[arg(long, value_name = "README.md")]
    pub(crate) readme: Option<PathBuf>,
}

impl Settings {
    fn chooses(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| name.contains(part.as_str()))
    }

    /// Long enough, and of everything: only that may become what documents show.
    fn is_whole(&self) -> bool {
        self.only.is_empty() && !self.quick
    }

    /// Where the results of such a run go, and of all others.
    fn file(&self, suite: &str, judged: &Result<(), String>) -> PathBuf {
        self.results.join(stem(suite, self.is_whole(), judged)).with_extension("jsonl")
    }
}

#[derive(clap::Subcommand)]
enum Comparison {
    Pairs(pairs::Options),
    Vm(vm::Options),
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Before anything is measured: what takes half an hour must not be lost at its end.
fn check_results(folder: &Path) -> Result<(), String> {
    if folder.is_dir() {
        return Ok(());
    }
    Err(format!("--results {}: there is no such directory; make it, or run from the top of the repository", folder.display()))
}

fn run(arguments: Arguments) -> Result<(), String> {
    match &arguments.comparison {
        Some(Comparison::Pairs(options)) => return pairs::run(options),
        Some(Comparison::Vm(options)) => return vm::run(options),
        None => {}
    }
    if let (Some(name), Some(socket)) = (&arguments.neighbour, &arguments.socket) {
        return hostile::be_neighbour(name, socket, arguments.cpu);
    }
    let mut settings = arguments.settings;
    if settings.quick {
        (settings.rounds, settings.seconds) = (1, 0.2);
    }
    settings.rounds = settings.rounds.max(1);
    if !(settings.seconds > 0.0 && settings.seconds < 1e6) {
        return Err(format!("--seconds {}: choose more than 0", settings.seconds));
    }
    check_results(&settings.results)?;
    if let Some(minutes) = settings.minutes {
        if !["net", "scale"].contains(&arguments.suite.as_str()) {
            return Err(format!("--minutes is for scale and net; give {} fewer --rounds or --seconds", arguments.suite));
        }
        if minutes.is_nan() || minutes <= 0.0 {
            return Err(format!("--minutes {minutes}: choose more than 0"));
        }
    }
    match arguments.suite.as_str() {
        "hostile" => hostile::run(settings),
        "net" => net::run(&settings),
        "notice" => notice::run(&settings),
        "scale" => scale::run(&settings),
        "small-writes" => small_writes::run(settings),
        _ => block::run(settings),
    }
}
