//! `cargo xtask vm`: disks as guests see them, in virtual machines that need no hardware for it.

pub(crate) mod apt;
mod archive;
mod back_end;
pub(crate) mod bench;
mod debian;
mod dkms;
mod driver;
mod environment;
mod fault_proxy;
mod guide;
mod kept;
mod kill_cycles;
mod kills;
mod machine;
mod net;
mod packages;
mod programs;
mod qemu;
mod scenario;
mod system;
mod uml;
mod unready;
mod vectors;

use std::path::Path;

use crate::step::Tally;
use back_end::{PEERS, Peer};
use driver::DRIVERS;
use environment::{Choice, Environment};
use scenario::{Scenario, all};
use unready::Unready;

const USAGE: &str = "\
usage: cargo xtask vm [OPTION...] [NAME...]

Runs scenarios with names that begin with one of the NAMEs, or all; each with every peer and every driver.

  --list            names of scenarios, and what each is about
  --quick           only those that `cargo xtask test` runs
  --guide           none: makes what the guests of docs/guide boot from, for tests/acceptance
  --peer PEER       only with this back end: fipseed, qemu-storage-daemon
  --driver DRIVER   only with this driver in the guest: virtio_blk, fip_blk
  --seed N          other data, other places [default: 1]
  --set NAME=VALUE  instead of what the scenarios set; a longer run may take ten times as long
  --qemu PROGRAM    another qemu-system-x86_64
  --keep            leave logs, sockets and images, and say where";

/// What the command line asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Arguments {
    names: Vec<String>,
    help: bool,
    list: bool,
    quick: bool,
    guide: bool,
    keep: bool,
    peer: Option<String>,
    driver: Option<String>,
    qemu: Option<String>,
    settings: Vec<(String, String)>,
    seed: u64,
}

impl Arguments {
    fn parse(words: &[String]) -> Result<Self, String> {
        let mut arguments = Self { seed: 1, ..Self::default() };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().cloned().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--help" | "-h" => arguments.help = true,
                "--list" => arguments.list = true,
                "--quick" => arguments.quick = true,
                "--guide" => arguments.guide = true,
                "--keep" => arguments.keep = true,
                "--peer" => arguments.peer = Some(one_of(&value()?, &PEERS)?),
                "--driver" => arguments.driver = Some(one_of(&value()?, &DRIVERS)?),
                "--set" => arguments.settings.push(setting(&value()?)?),
                "--qemu" => arguments.qemu = Some(value()?),
                "--seed" => arguments.seed = value()?.parse().map_err(|_| "--seed needs a number".to_owned())?,
                option if option.starts_with('-') => return Err(format!("no option '{option}'")),
                name if all().iter().any(|scenario| scenario.name.starts_with(name)) => arguments.names.push(name.to_owned()),
                name => return Err(format!("no scenario begins with '{name}'; see cargo xtask vm --list")),
            }
        }
        Ok(arguments)
    }

    fn wants(&self, scenario: &Scenario) -> bool {
        let is_named = self.names.is_empty() || self.names.iter().any(|name| scenario.name.starts_with(name.as_str()));
        is_named && (scenario.quick || !self.quick)
    }
}

fn setting(word: &str) -> Result<(String, String), String> {
    let (name, value) = word.split_once('=').ok_or_else(|| format!("--set needs NAME=VALUE, not '{word}'"))?;
    if value.contains(char::is_whitespace) {
        return Err(format!("--set {name}: a word on a kernel's command line has no space"));
    }
    Ok((name.to_owned(), value.to_owned()))
}

fn one_of(word: &str, words: &[&str]) -> Result<String, String> {
    if words.contains(&word) { Ok(word.to_owned()) } else { Err(format!("'{word}' is none of {}", words.join(", "))) }
}

/// The command: has it run something? An error is a command line that makes no sense.
pub(crate) fn command(root: &Path, words: &[String], tally: &mut Tally) -> Result<bool, String> {
    let arguments = Arguments::parse(words).map_err(|error| format!("{error}\n\n{USAGE}"))?;
    if arguments.help {
        println!("{USAGE}");
        return Ok(false);
    }
    if arguments.list {
        for scenario in all() {
            println!("{:<20} {}", scenario.name, scenario.about);
        }
        return Ok(false);
    }
    if arguments.guide {
        prepare_guide(root, tally);
    } else {
        run(root, &Environment::new(root, arguments.qemu.as_deref()), &arguments, None, tally);
    }
    Ok(true)
}

/// Build what tier 2 needs, unless that is kept from an earlier time.
pub(crate) fn prepare(root: &Path, tally: &mut Tally) {
    tally.attempt("tier 2 vm, what guests run", || Environment::new(root, None).prepare().into());
}

/// Make what guests of the guide boot from.
pub(crate) fn prepare_guide(root: &Path, tally: &mut Tally) {
    tally.attempt("tier 0 guests of the guide", || guide::prepare(root).into());
}

/// Tier 2 of `cargo xtask test`, with the programs that ship; one scenario with QEMU's back end shows which side has failed.
pub(crate) fn tier(root: &Path, programs: &Path, tally: &mut Tally) {
    let quick = || Arguments { quick: true, seed: 1, ..Arguments::default() };
    let reference = || Arguments { peer: Some(PEERS[1].to_owned()), ..quick() };
    let (files, foreign) = (vec!["uml/files".to_owned()], vec!["uml/foreign".to_owned()]);
    let environment = Environment::new(root, None);
    let run = |arguments: &Arguments, tally: &mut Tally| run(root, &environment, arguments, Some(programs), tally);
    run(&Arguments { names: files, driver: Some(DRIVERS[0].to_owned()), ..reference() }, tally);
    run(&Arguments { names: foreign, ..reference() }, tally);
    run(&Arguments { peer: Some(PEERS[0].to_owned()), ..quick() }, tally);
}

/// One boot, with the driver of the rings and a daemon that is built here.
pub(crate) fn fast_tier(root: &Path, tally: &mut Tally) {
    let (peer, driver) = (Some(PEERS[0].to_owned()), Some(DRIVERS[1].to_owned()));
    let arguments = Arguments { names: vec!["uml/files".to_owned()], peer, driver, seed: 1, ..Arguments::default() };
    run(root, &Environment::new(root, None), &arguments, None, tally);
}

fn run(root: &Path, environment: &Environment, arguments: &Arguments, programs: Option<&Path>, tally: &mut Tally) {
    let scenarios = all();
    for peer_name in PEERS.iter().filter(|name| arguments.peer.as_ref().is_none_or(|wanted| wanted == *name)) {
        let peer = Peer::find(peer_name, root, programs);
        for driver in DRIVERS.iter().filter(|name| arguments.driver.as_ref().is_none_or(|wanted| wanted == *name)) {
            let is_about_these = |scenario: &&Scenario| scenario.only.includes(driver, peer_name);
            for scenario in scenarios.iter().filter(|scenario| arguments.wants(scenario)).filter(is_about_these) {
                let name = format!("tier 2 vm {} {driver} {peer_name}", scenario.name);
                let run = || {
                    let peer = peer.as_ref().map_err(Unready::clone)?;
                    let Arguments { seed, settings, keep, .. } = arguments;
                    environment.run(scenario, &Choice { peer, driver, seed: *seed, settings, keep: *keep })
                };
                tally.attempt(&name, || run().into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Arguments, String> {
        Arguments::parse(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn names_choose_by_their_beginning() {
        let arguments = parse(&["uml/fi", "qemu/fi", "--quick", "--seed", "7"]).expect("it makes sense");
        let chosen: Vec<_> =
            all().into_iter().filter(|scenario| arguments.wants(scenario)).map(|scenario| scenario.name).collect();
        assert_eq!((chosen, arguments.seed), (vec!["uml/files", "uml/fio", "qemu/files"], 7));
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for words in [&["none"][..], &["--what"], &["--peer", "none-such"], &["--seed"], &["--seed", "x"], &["--set", "x"]] {
            assert!(parse(words).is_err(), "{words:?}");
        }
    }
}
