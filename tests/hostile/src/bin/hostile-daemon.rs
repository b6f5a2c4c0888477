//! `fipseed`, for the tests and measurements of this package: cargo does not build another package's program.

use std::process::ExitCode;

use clap::Parser;
use fipsee_daemon::config::Arguments;

fn main() -> ExitCode {
    match fipsee_daemon::start(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
