//! The `fipseed` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    fipsee_daemon::program(&[])
}
