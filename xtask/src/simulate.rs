//! `cargo xtask simulate`: lifetimes of clients and daemons in one thread, by seed (tests/simulate).

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::step::{self, Tally};
use crate::{cargo, end};

/// They take well under a minute on a machine that does nothing else.
const SEEDS_OF_A_TEST: &str = "60000";
const SEEDS_OF_A_FAST_TEST: &str = "10000";

/// Optimised, as what ships: most of it is built already.
fn program(root: &Path, arguments: &[String]) -> Command {
    let mut command = cargo(root);
    command.args(["run", "--quiet", "--release", "--package", "fipsee-simulate", "--"]).args(arguments);
    command
}

pub(crate) fn run(root: &Path, arguments: &[String]) -> ExitCode {
    end(program(root, arguments))
}

/// A minute's worth, and what must be found.
pub(crate) fn tier(root: &Path, tally: &mut Tally) {
    play(root, &[("lifetimes", &["--seeds", SEEDS_OF_A_TEST]), ("known-bad variants", &["--variants"])], tally);
}

/// A few seconds' worth.
pub(crate) fn fast_tier(root: &Path, tally: &mut Tally) {
    play(root, &[("lifetimes", &["--seeds", SEEDS_OF_A_FAST_TEST])], tally);
}

fn play(root: &Path, steps: &[(&str, &[&str])], tally: &mut Tally) {
    for (name, arguments) in steps {
        tally.check(&format!("tier 0 simulate: {name}"), || {
            let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
            let output = step::output(&mut program(root, &arguments));
            let last = output.text.trim_end().lines().last().unwrap_or_default().to_owned();
            if output.succeeded { Ok(last) } else { Err(output.text) }
        });
    }
}
