//! `cargo xtask simulate`: lifetimes of clients and daemons in one thread, by seed (tests/simulate).

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::step::{self, Tally};
use crate::{cargo, end, target};

/// They take well under a minute on a machine that does nothing else.
const SEEDS_OF_A_TEST: &str = "60000";
const SEEDS_OF_A_FAST_TEST: &str = "10000";

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
    play(root, "lifetimes", &["--seeds", SEEDS_OF_A_TEST], tally);
    play(root, "workers that follow the load", &["--follow", TIMES_OF_A_TEST], tally);
    play(root, "known-bad variants", &["--variants"], tally);
}

/// A few seconds' worth.
pub(crate) fn fast_tier(root: &Path, tally: &mut Tally) {
    play(root, "lifetimes", &["--seeds", SEEDS_OF_A_FAST_TEST], tally);
}

fn play(root: &Path, name: &str, arguments: &[&str], tally: &mut Tally) {
    tally.check(&format!("tier 0 simulate: {name}"), || {
        let output = step::output(Command::new(target(root).join("debug/fipsee-simulate")).current_dir(root).args(arguments));
        let last = output.text.trim_end().lines().last().unwrap_or_default().to_owned();
        if output.succeeded { Ok(last) } else { Err(output.text) }
    });
}
