//! `cargo xtask`: everything that is done to this repository besides compiling it. No dependencies, so that it
//! builds in a second on a clean clone.

mod ci;
mod deb;
mod dist;
mod docs;
mod endure;
mod files;
mod fuzz;
mod ipc;
mod loom;
mod models;
mod pairs;
mod setup;
mod simulate;
mod step;
mod test;
mod tidy;
mod vm;

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use step::Tally;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  setup   install what the tests need (as root, on Debian), or say what to install
  test    setup, then every tier this machine can run; ends with the times of the slowest, and 'N passed, N failed, N skipped'
  test --fast   format, clippy, tidy, the tests inside the crates, simulation, one virtual machine: before each commit
  dist    build everything that ships into target/dist, laid out as below /usr
  deb     dist, then Debian packages of it into target/debian
  ci      tier 1: format, clippy, tidy, loom, models, C headers, documentation, fuzzing for a moment, Miri
  docs    every document and reference as one site in target/docs, its links checked; tier 1 does it, too
  tidy    the project's own rules, file by file
  fuzz    every parser of a peer's bytes under a coverage-guided fuzzer; `fuzz --help` says more
  loom    the ring under the model checker, and its known-bad variants, which must fail
  models  the models in docs/models under spin, and their broken variants, which must fail
  vm      disks in virtual machines; `vm --list` and `vm --help` say more
  endure  kill daemon and clients 500 times and more under load, and compare; `endure oracle`: requests that overlap;
          `endure net`: host stacks (iperf3, ssh, ping) over TAP devices beside ports at full load, for ten minutes or `--minutes N`;
          `endure --help` and `endure oracle --help` say more
  simulate   clients and daemons by seed, with every kind of fault, in one thread; `simulate --help` says more
  bench   setup, dist, then the benchmarks, on a quiet machine; arguments go to fipsee-bench
  bench ipc   messages between two CPUs, ours and others, on a quiet machine; `bench ipc --help` says more
  bench hostile   what each fault of a client, guest or port costs a correct client, on a quiet machine; `bench --help` says more
  bench net       frames between programs through the switch, beside the kernel's sockets and dpdk-testpmd, and TCP of a guest beside its
                  vector TAP, on a quiet machine
  bench notice    how soon each side notices the other's end, and the pause of a takeover, on a quiet machine; `bench --help` says more
  bench pairs OLD NEW   is the new daemon slower than the old one? programs or git revisions; `bench pairs --help`
  bench scale     10 to 1000 clients beside the server of a report, fair shares, larger machines, on a quiet machine
  bench small-writes    512 B writes beside fio's, and what they cost where the device takes only 4 KiB, on a quiet machine
  bench vm    disks as a guest's kernel sees them, on a quiet machine; `bench vm --help` says more";

/// Exit code for a command line that makes no sense, or asks for what is not there.
const USAGE_ERROR: u8 = 2;

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1);
    let command = arguments.next().unwrap_or_default();
    let rest: Vec<String> = arguments.collect();
    let is_fast = command == "test" && rest == ["--fast"];
    if !["bench", "endure", "fuzz", "simulate", "vm"].contains(&command.as_str()) && !rest.is_empty() && !is_fast {
        let takes = if command == "test" { "only --fast" } else { "no arguments" };
        return refuse(&format!("'cargo xtask {command}' takes {takes}\n\n{USAGE}"));
    }
    let root = root();
    let (mut tally, started) = (Tally::default(), Instant::now());
    match command.as_str() {
        "setup" => {
            return if setup::run().missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
        "test" if is_fast => test::fast(&root, &mut tally),
        "test" => test::run(&root, &mut tally),
        "dist" => dist::run(&dist::Dist::new(&root), &mut tally),
        "deb" => {
            let dist = dist::Dist::new(&root);
            dist::run(&dist, &mut tally);
            deb::run(&dist, &mut tally);
        }
        "ci" => ci::run(&root, &mut tally),
        "docs" => docs::run(&root, &mut tally),
        "tidy" => ci::tidy(&root, &mut tally),
        "fuzz" | "vm" => {
            let run = if command == "fuzz" { fuzz::command } else { vm::command };
            match run(&root, &rest, &mut tally) {
                Ok(true) => {}
                Ok(false) => return ExitCode::SUCCESS,
                Err(error) => return refuse(&error),
            }
        }
        "loom" => loom::run(&root, &mut tally),
        "models" => models::run(&root, &mut tally),
        "bench" => {
            return match rest.split_first() {
                Some((suite, rest)) if suite == "ipc" => ipc::run(&root, rest),
                Some((suite, rest)) if suite == "pairs" => pairs::run(&root, rest),
                Some((suite, rest)) if suite == "vm" => vm::bench::run(&root, rest),
                Some((suite, rest)) if suite == vm::bench::BOOT => vm::bench::boot(&root, rest),
                Some((suite, rest)) if suite == vm::bench::net::PREPARE => vm::bench::net::prepare(&root, rest),
                _ => bench(&root, &rest),
            };
        }
        "endure" => return endure::run(&root, &rest),
        "simulate" => return simulate::run(&root, &rest),
        "help" | "--help" | "-h" => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        other => return refuse(&format!("no command '{other}'\n\n{USAGE}")),
    }
    if command == "test" {
        step::print_times(started);
    }
    println!("{}", tally.count);
    if tally.count.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn refuse(error: &str) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::from(USAGE_ERROR)
}

/// The repository this tool was built from.
fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

/// Cargo's folder for what it builds.
fn target(root: &Path) -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |path| root.join(path))
}

/// The cargo that runs us.
fn cargo(root: &Path) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    command
}

/// Run a command that says all there is to say.
fn end(mut command: Command) -> ExitCode {
    match command.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: cannot run cargo: {error}");
            ExitCode::FAILURE
        }
    }
}

fn bench(root: &Path, arguments: &[String]) -> ExitCode {
    if !root.join("bench/suite/Cargo.toml").exists() {
        return refuse("this checkout has no benchmark suite (bench/suite, package fipsee-bench)");
    }
    // Help and usage errors need nothing that ships.
    let measures = !arguments.iter().any(|argument| ["--help", "-h", "--version", "-V"].contains(&argument.as_str()));
    let mut command = cargo(root);
    command.args(["run", "--profile", dist::PROFILE, "--package", "fipsee-bench", "--"]).args(arguments);
    if let Ok(program) = env::current_exe() {
        command.env(vm::bench::XTASK_VARIABLE, program);
    }
    if measures && env::var_os(dist::DIST_VARIABLE).is_none() {
        setup::run();
        let dist = dist::Dist::new(root);
        let mut tally = Tally::default();
        dist::run(&dist, &mut tally);
        if tally.count.failed > 0 {
            eprintln!("error: what is to be measured cannot be built, as shown above");
            return ExitCode::FAILURE;
        }
        command.env(dist::DIST_VARIABLE, &dist.prefix);
    }
    end(command)
}
