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
mod pairs;
mod picture;
mod place;
mod server;
mod service;
mod small_writes;
mod table;
mod vm;
mod ways;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// Run a benchmark on a quiet machine.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    comparison: Option<Comparison>,
    /// Which one.
    #[arg(value_parser = ["block", "hostile", "small-writes"], default_value = "block")]
    suite: String,
    /// Rounds; each round runs every candidate once, in rotating order.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds per candidate and round; fio rounds up to whole ones.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Only what claims are about: of the matrix, 4 KiB reads.
    #[arg(long)]
    claims: bool,
    /// Instead of everything, the peers with different settings, to see which is best for each.
    #[arg(long)]
    tune: bool,
    /// One round of a fifth of a second, servers anywhere: does everything still run?
    #[arg(long, conflicts_with_all = ["rounds", "seconds"])]
    quick: bool,
    /// After hostile, print the table of docs/reliability.md as well; after small-writes, its table in Markdown.
    #[arg(long)]
    markdown: bool,
    /// Only candidates with this in their name; may be given several times.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Where to append the results and to draw the plot.
    #[arg(long, default_value = "bench/results")]
    results: PathBuf,
    /// Where the file disk's file goes: a directory on ext4.
    #[arg(long, default_value = "target")]
    file_directory: PathBuf,
    /// Where files in memory go: a directory on a tmpfs.
    #[arg(long, default_value = "/dev/shm")]
    memory_directory: PathBuf,
    /// Renew the headline in this README from the run.
    #[arg(long, value_name = "README.md")]
    readme: Option<PathBuf>,
    /// Be the neighbour of this name of a victim, until killed.
    #[arg(long, hide = true, requires = "socket")]
    neighbour: Option<String>,
    /// The daemon of the neighbour.
    #[arg(long, hide = true)]
    socket: Option<PathBuf>,
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

fn run(arguments: Arguments) -> Result<(), String> {
    match &arguments.comparison {
        Some(Comparison::Pairs(options)) => return pairs::run(options),
        Some(Comparison::Vm(options)) => return vm::run(options),
        None => {}
    }
    if let (Some(name), Some(socket)) = (&arguments.neighbour, &arguments.socket) {
        return hostile::be_neighbour(name, socket);
    }
    let (rounds, seconds) = if arguments.quick { (1, 0.2) } else { (arguments.rounds.max(1), arguments.seconds) };
    if !(seconds > 0.0 && seconds < 1e6) {
        return Err(format!("--seconds {seconds}: choose more than 0"));
    }
    if arguments.suite == "hostile" {
        let Arguments { results, only, quick, markdown, .. } = arguments;
        return hostile::run(hostile::Settings { rounds, seconds, results, only, quick, markdown });
    }
    if arguments.suite == "small-writes" {
        let Arguments { results, only, quick, markdown, file_directory, memory_directory, .. } = arguments;
        let settings =
            small_writes::Settings { rounds, seconds, results, only, quick, markdown, file_directory, memory_directory };
        return small_writes::run(settings);
    }
    block::run(block::Settings {
        rounds,
        seconds,
        results: arguments.results,
        file_directory: arguments.file_directory,
        memory_directory: arguments.memory_directory,
        only: arguments.only,
        claims: arguments.claims,
        tune: arguments.tune,
        places: !arguments.quick,
        readme: arguments.readme,
    })
}
