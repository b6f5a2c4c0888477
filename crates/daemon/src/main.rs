//! The `fipseed` program.

use std::process::ExitCode;

use clap::Parser;
use fipsee_daemon::config::Arguments;

fn main() -> ExitCode {
    match Arguments::parse().into_config().and_then(fipsee_daemon::run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
