//! `cargo xtask simulate`: lifetimes of clients and daemons in one thread, by seed (tests/simulate).

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::step::{self, Tally};
use crate::{cargo, end};

/// They take well under a minute on a machine that does nothing else.
const SEEDS_OF_A_TEST: &str = "60000";

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
    for (name, arguments) in [("lifetimes", &["--seeds", SEEDS_OF_A_TEST][..]), ("known-bad variants", &["--variants"])] {
        tally.check(&format!("tier 0 simulate: {name}"), || {
            let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
            let output = step::output(&mut program(root, &arguments));
            let last = output.text.trim_end().lines().last().unwrap_or_default().to_owned();
            if output.succeeded { Ok(last) } else { Err(output.text) }
        });
    }
}
