//! `cargo xtask bench vm`: the guest's driver beside the kernel's own and beside no back end at all, in one guest.

mod boot;
mod claims;
mod guest;
mod plan;
mod plot;
mod report;
mod results;
#[path = "../../../../bench/suite/src/steal.rs"]
mod steal;
mod watch;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::environment::two_cpus;
use crate::dist::{DIST_VARIABLE, PROFILE};
use crate::{cargo, setup, step};
use boot::Site;
use guest::Machine;
use plan::Extent;
use steal::Steal;

/// The watched processes.
const GUEST: &str = "guest";
const DAEMON: &str = "fipseed";
const PEER: &str = "qemu-storage-daemon";

const USAGE: &str = "\
usage: cargo xtask bench vm [OPTION...]

Boots a machine with the disks of every kind at once, and loads one after the other from within its kernel.

  --rounds N    each round has every load once, in another order [default: 7]
  --ms N        of each load in a round [default: 50]
  --machine M   uml, or qemu: two CPUs, PCI and MSI-X, but every instruction translated, so no claims [default: uml]
  --claims      only what claims are about: 4 KiB reads, 1 and 64 at a time
  --quick       one short round of that: does everything still run? Its results are thrown away
  --results FOLDER    where to append the results and to draw the plot [default: bench/results]
  --driver WORDS      arguments of fip_blk, with commas between them
  --daemon WORD       an argument of fipseed; may be repeated";

#[derive(Debug, PartialEq, Eq)]
struct Arguments {
    help: bool,
    quick: bool,
    machine: Machine,
    extent: Extent,
    results: PathBuf,
    driver: String,
    daemon: Vec<String>,
}

impl Arguments {
    fn parse(words: &[String]) -> Result<Self, String> {
        let extent = Extent { rounds: 7, ms: 50, claims_only: false, idle_seconds: 10, wakes: 21 };
        let mut arguments = Self {
            help: false,
            quick: false,
            machine: Machine::Uml,
            extent,
            results: "bench/results".into(),
            driver: String::new(),
            daemon: Vec::new(),
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().cloned().ok_or_else(|| format!("{word} needs a value"));
            let number = |text: String| {
                let number = text.parse().ok().filter(|number| (1..=10_000).contains(number));
                number.ok_or_else(|| format!("{word} needs a number from 1 to 10000"))
            };
            match word.as_str() {
                "--help" | "-h" => arguments.help = true,
                "--quick" => arguments.quick = true,
                "--machine" => arguments.machine = Machine::from_word(&value()?).ok_or("--machine needs uml or qemu")?,
                "--claims" => arguments.extent.claims_only = true,
                "--rounds" => arguments.extent.rounds = number(value()?)?,
                "--ms" => arguments.extent.ms = number(value()?)?,
                "--results" => arguments.results = value()?.into(),
                "--driver" => arguments.driver = value()?,
                "--daemon" => arguments.daemon.push(value()?),
                other => return Err(format!("no option '{other}'")),
            }
        }
        if arguments.quick {
            arguments.extent = Extent { rounds: 1, ms: 5, claims_only: true, idle_seconds: 1, wakes: 2 };
        }
        Ok(arguments)
    }

    /// Only an unchanged run may become what the documents show.
    fn is_whole(&self) -> bool {
        !self.quick && !self.extent.claims_only && self.driver.is_empty() && self.daemon.is_empty()
    }

    /// The file, without ending, that results are appended to.
    fn stem(&self) -> &'static str {
        match (self.machine, self.is_whole()) {
            (Machine::Uml, true) => "vm",
            (Machine::Qemu, true) => "vm-qemu",
            (_, false) => "vm-part",
        }
    }
}

/// The command.
pub(crate) fn run(root: &Path, words: &[String]) -> ExitCode {
    let arguments = match Arguments::parse(words) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("error: {error}\n\n{USAGE}");
            return ExitCode::from(crate::USAGE_ERROR);
        }
    };
    if arguments.help {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    if std::env::var_os(DIST_VARIABLE).is_none() {
        setup::run();
    }
    match measure(root, &arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(root: &Path, arguments: &Arguments) -> Result<(), String> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |path| root.join(path));
    let programs = programs(root, &target)?;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let cpus = two_cpus(&status);
    if cpus.is_none() {
        println!("bench vm ... one CPU for guest and back ends: nothing that polls is fast here");
    }
    let mut machine = report::machine(root);
    let steal = Steal::begin();
    let site = Site {
        root,
        cache: &target.join("vm"),
        programs: &programs,
        machine: arguments.machine,
        cpus,
        driver_arguments: &arguments.driver,
        daemon_arguments: &arguments.daemon,
    };
    let results = boot::run(&site, &plan::write(arguments.extent))?;
    let claims = if arguments.machine == Machine::Uml { claims::all(&results) } else { Vec::new() };
    report::print(&results);
    machine.stolen_percent = Steal::end(steal.as_ref());
    claims.iter().for_each(claims::Claim::print);
    if arguments.quick {
        return Ok(());
    }
    let stem = root.join(&arguments.results).join(arguments.stem());
    report::append(&stem, arguments, &machine, &results, &claims)?;
    println!("{}", plot::write(&stem, &results, &machine, arguments.extent)?);
    Ok(())
}

/// What ships, or what is built now.
fn programs(root: &Path, target: &Path) -> Result<PathBuf, String> {
    if let Some(prefix) = std::env::var_os(DIST_VARIABLE) {
        return Ok(root.join(prefix).join("bin"));
    }
    step::succeed(cargo(root).args(["build", "--quiet", "--profile", PROFILE, "--package", "fipsee-daemon"]))?;
    Ok(target.join(PROFILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Arguments, String> {
        Arguments::parse(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn only_an_unchanged_run_is_whole() {
        assert!(parse(&["--rounds", "3"]).expect("it makes sense").is_whole());
        for words in [&["--claims"][..], &["--quick"], &["--driver", "spin_us=0"], &["--daemon", "--wait=sleep"]] {
            assert!(!parse(words).expect("it makes sense").is_whole(), "{words:?}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for words in [&["--what"][..], &["--rounds"], &["--machine", "x"], &["--rounds", "0"], &["--ms", "x"]] {
            assert!(parse(words).is_err(), "{words:?}");
        }
    }
}
