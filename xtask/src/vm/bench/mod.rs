//! `cargo xtask bench vm`: the suite plans, judges and draws (`bench/suite/src/vm`); here is what boots the guest, carries out the
//! plan and writes down what came of it.

mod boot;
mod exits;
mod guest;
pub(crate) mod net;
mod watch;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::environment::two_cpus;
use crate::dist::{DIST_VARIABLE, PROFILE};
use crate::{cargo, end, setup, step};
use boot::Site;
use guest::Machine;

/// The watched processes.
const GUEST: &str = "guest";
const DAEMON: &str = "fipseed";
const PEER: &str = "qemu-storage-daemon";

/// By which the suite finds this program again.
pub(crate) const XTASK_VARIABLE: &str = "FIPSEE_XTASK";
/// What it asks for.
pub(crate) const BOOT: &str = "boot-vm";

/// The suite with `arguments`, which calls [`boot()`].
pub(crate) fn run(root: &Path, arguments: &[String]) -> ExitCode {
    let asks = arguments.iter().any(|argument| ["--help", "-h"].contains(&argument.as_str()));
    if !asks && std::env::var_os(DIST_VARIABLE).is_none() {
        setup::run();
    }
    let mut command = cargo(root);
    command.args(["run", "--release", "--quiet", "--package", "fipsee-bench", "--", "vm"]).args(arguments);
    if let Ok(program) = std::env::current_exe() {
        command.env(XTASK_VARIABLE, program);
    }
    end(command)
}

/// `PLAN OUT MACHINE DRIVER DAEMON...`: carry out the plan in one guest, and write its reports to OUT, one a line.
pub(crate) fn boot(root: &Path, words: &[String]) -> ExitCode {
    match try_boot(root, words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn try_boot(root: &Path, words: &[String]) -> Result<(), String> {
    let [plan, out, machine, driver_arguments, daemon_arguments @ ..] = words else {
        return Err(format!("bench {BOOT} is for the benchmark suite; use bench vm"));
    };
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |path| root.join(path));
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let cpus = two_cpus(&status);
    if cpus.is_none() {
        println!("bench vm ... one CPU for guest and back ends: nothing that polls is fast here");
    }
    let site = Site {
        root,
        cache: &target.join("vm"),
        programs: &programs(root, &target)?,
        machine: Machine::from_word(machine).ok_or_else(|| format!("no machine '{machine}'; choose uml or qemu"))?,
        cpus,
        driver_arguments,
        daemon_arguments,
    };
    let plan = fs::read_to_string(plan).map_err(|error| format!("cannot read {plan}: {error}"))?;
    let reports = boot::run(&site, &plan)?;
    fs::write(out, reports.join("\n")).map_err(|error| format!("cannot write {out}: {error}"))
}

/// What ships, or what is built now.
fn programs(root: &Path, target: &Path) -> Result<PathBuf, String> {
    if let Some(prefix) = std::env::var_os(DIST_VARIABLE) {
        return Ok(root.join(prefix).join("bin"));
    }
    step::succeed(cargo(root).args(["build", "--quiet", "--profile", PROFILE, "--package", "fipsee-daemon"]))?;
    Ok(target.join(PROFILE))
}
