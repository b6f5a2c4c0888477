//! `fipsee serve` (hidden): the daemon, for tests and for machines where only this program is installed.

use crate::error::Error;

/// The command line of fipseed.
pub(crate) use fipsee_daemon::config::Arguments;

pub(crate) fn run(arguments: Arguments) -> Result<(), Error> {
    let outcome = fipsee_daemon::start(arguments);
    if outcome.is_err() {
        // In the format of the daemon's log.
        fipsee_daemon::end(outcome);
        std::process::exit(1);
    }
    Ok(())
}
