//! The benchmarks behind every figure this project quotes: peers and ourselves interleaved in the same run, medians and
//! bests of several rounds, appended to `bench/results/` with the facts of the machine.

mod block;
mod daemon;
mod facts;
mod fio;
mod floor;
mod headline;
mod idle;
mod memcpy;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// Run a benchmark on a quiet machine.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Which one.
    #[arg(value_parser = ["block"], default_value = "block")]
    suite: String,
    /// Rounds; each round runs every candidate once, in rotating order.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Seconds per candidate and round.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Where to append the results.
    #[arg(long, default_value = "bench/results")]
    results: PathBuf,
    /// Where the file disk's file goes: a directory on ext4.
    #[arg(long, default_value = "target")]
    file_directory: PathBuf,
    /// Only candidates whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Renew the headline in this README from the run.
    #[arg(long, value_name = "README.md")]
    readme: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let settings = block::Settings {
        rounds: arguments.rounds.max(1),
        seconds: arguments.seconds,
        results: arguments.results,
        file_directory: arguments.file_directory,
        only: arguments.only,
        readme: arguments.readme,
    };
    match block::run(&settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
