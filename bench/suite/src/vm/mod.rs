//! `cargo xtask bench vm`: the guest's driver beside the kernel's own and beside no back end at all, in one guest, which
//! `xtask/src/vm/bench` boots.

mod causes;
mod claims;
mod exits;
mod plan;
mod report;
mod results;

use std::path::{Path, PathBuf};
use std::process::Command;

use fipsee_measure::machine::{Run, stem};
use fipsee_measure::results::append;
use fipsee_measure::{claim, plot};

use self::plan::{Extent, FIP, Load};
use self::results::Results;
use crate::check_results;

/// The watched processes.
const GUEST: &str = "guest";
const DAEMON: &str = "fipseed";
const PEER: &str = "qemu-storage-daemon";

/// Boot a machine with the disks of every kind at once, and load one after the other from within its kernel.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Each round has every load once, in another order.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Milliseconds of each load in a round.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    ms: u32,
    /// uml, or qemu: two CPUs, PCI and MSI-X, but every instruction translated, so that nothing is claimed but counts of exits.
    #[arg(long, default_value = "uml", value_parser = ["uml", "qemu"])]
    machine: String,
    /// Only what claims are about: 4 KiB reads, 1 and 64 at a time.
    #[arg(long)]
    claims: bool,
    /// One short round of that: does everything still run? Its results are thrown away.
    #[arg(long)]
    quick: bool,
    /// Where to append the results and to draw the plot.
    #[arg(long, value_name = "FOLDER", default_value = "bench/results")]
    results: PathBuf,
    /// Arguments of fip_blk, with commas between them.
    #[arg(long, value_name = "WORDS", default_value = "")]
    driver: String,
    /// An argument of fipseed; may be repeated.
    #[arg(long, value_name = "WORD", allow_hyphen_values = true)]
    daemon: Vec<String>,
}

impl Options {
    fn extent(&self) -> Extent {
        let several_cpus = self.machine == "qemu";
        if self.quick {
            return Extent { rounds: 1, ms: 5, claims_only: true, several_cpus, idle_seconds: 1, wakes: 2 };
        }
        Extent { rounds: self.rounds, ms: self.ms, claims_only: self.claims, several_cpus, idle_seconds: 10, wakes: 21 }
    }

    /// Only an unchanged run may become what the documents show.
    fn is_whole(&self) -> bool {
        !self.quick && !self.claims && self.driver.is_empty() && self.daemon.is_empty()
    }
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    check_results(&options.results)?;
    let run = Run::begin();
    let results = Results::of(&boot(options)?)?;
    let (machine, noise) = run.end();
    let claims = if options.machine == "uml" { claims::all(&results) } else { claims::of_exits(&results) };
    report::print(&results);
    print!("{}", claim::table(&claims));
    if options.quick {
        return Ok(());
    }
    let quoted = [1, 64].map(|depth| {
        let rounds = results.loads.of(&Load::reads(FIP, depth)).map(|figures| figures.iops).collect();
        (format!("{}, {depth} in flight, requests per second", FIP.name), rounds)
    });
    let judged = noise.judge(&quoted);
    let suite = if options.machine == "uml" { "vm" } else { "vm-qemu" };
    let stem = options.results.join(stem(suite, options.is_whole(), &judged));
    append(&stem.with_extension("jsonl"), &report::to_json(options, &machine, &results, &claims))?;
    let svg = stem.with_extension("svg");
    plot::save(&svg, &report::draw(&results, &machine, options.extent())?)?;
    println!("plot: {}", svg.display());
    if options.is_whole() { judged } else { Ok(()) }
}

/// What the guest reports of the plan.
fn boot(options: &Options) -> Result<String, String> {
    let xtask =
        std::env::var_os("FIPSEE_XTASK").ok_or("FIPSEE_XTASK is not set; run `cargo xtask bench vm`, which boots the guest")?;
    let folder = std::env::temp_dir().join(format!("fipsee-bench-plan-{}", std::process::id()));
    let failed = |path: &Path, error: std::io::Error| format!("cannot use {}: {error}", path.display());
    std::fs::create_dir(&folder).map_err(|error| failed(&folder, error))?;
    let (plan, reports) = (folder.join("plan"), folder.join("reports"));
    let booted = std::fs::write(&plan, plan::write(options.extent())).map_err(|error| failed(&plan, error)).and_then(|()| {
        let mut command = Command::new(&xtask);
        command
            .args(["bench", "boot-vm"])
            .args([&plan, &reports])
            .args([&options.machine, &options.driver])
            .args(&options.daemon);
        let status = command.status().map_err(|error| failed(Path::new(&xtask), error))?;
        if !status.success() {
            return Err("the guest did not carry out the plan; the reason is above".to_owned());
        }
        std::fs::read_to_string(&reports).map_err(|error| failed(&reports, error))
    });
    let _ = std::fs::remove_dir_all(&folder);
    booted
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn parse(words: &[&str]) -> Result<Options, clap::Error> {
        Line::try_parse_from([&["bench"], words].concat()).map(|line| line.options)
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
