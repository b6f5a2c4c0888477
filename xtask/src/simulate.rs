//! `cargo xtask simulate`: lifetimes of clients and daemons in one thread, by seed (tests/simulate).

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::step::{self, Tally};
use crate::{cargo, end, target};

/// About a minute on two CPUs that do nothing else.
const SEEDS_OF_A_TEST: usize = 60_000;
const SEEDS_OF_A_FAST_TEST: usize = 10_000;

/// From one client to many and back.
const TIMES_OF_A_TEST: &str = "2";

/// Optimised: for campaigns.
pub(crate) fn run(root: &Path, arguments: &[String]) -> ExitCode {
    let mut command = cargo(root);
    command.args(["run", "--quiet", "--release", "--package", "fipsee-simulate", "--"]).args(arguments);
    end(command)
}

/// A minute's worth, and what must be found, by the program that was built with the tests.
pub(crate) fn tier(root: &Path, tally: &mut Tally) {
    lifetimes(root, SEEDS_OF_A_TEST, tally);
    play(root, "workers that follow the load", &["--follow", TIMES_OF_A_TEST], tally);
    play(root, "known-bad variants", &["--variants"], tally);
}

/// A few seconds' worth.
pub(crate) fn fast_tier(root: &Path, tally: &mut Tally) {
    lifetimes(root, SEEDS_OF_A_FAST_TEST, tally);
}

/// As many processes as CPUs, as one plays in one thread.
fn lifetimes(root: &Path, seeds: usize, tally: &mut Tally) {
    tally.check("tier 0 simulate: lifetimes", || {
        let cpus = step::cpus();
        let parts = (0..cpus).map(|part| format!("{}..{}", seeds * part / cpus, seeds * (part + 1) / cpus));
        let ended = step::side_by_side(parts.collect(), |part| simulate(root, &["--seeds", &part]));
        ended.into_iter().collect::<Result<Vec<_>, _>>().map(|remarks| remarks.join("; "))
    });
}

fn play(root: &Path, name: &str, arguments: &[&str], tally: &mut Tally) {
    tally.check(&format!("tier 0 simulate: {name}"), || simulate(root, arguments));
}

/// Gives its last line, or all lines if it failed.
fn simulate(root: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = step::output(Command::new(target(root).join("debug/fipsee-simulate")).current_dir(root).args(arguments));
    let last = output.text.trim_end().lines().last().unwrap_or_default().to_owned();
    if output.succeeded { Ok(last) } else { Err(output.text) }
}
