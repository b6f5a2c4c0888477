//! `fipseed` with one more service: the line that adds it is `Sums`.

use std::process::ExitCode;

use clap::Parser;
use fipsee_daemon::config::Arguments;
use fipsee_service::Sums;

fn main() -> ExitCode {
    match fipsee_daemon::start_with(Arguments::parse(), |workers| vec![Box::new(Sums(workers.to_vec()))]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
