//! `cargo xtask endure`: the long form of what tests/durability, tests/oracle and the fio engine's tests do for a moment.

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::{cargo, dist, end};

/// Kills when `--kills` does not say how many; as `fipsee-endure` has it.
const DEFAULT_KILLS: &str = "500";

pub(crate) fn run(root: &Path, arguments: &[String]) -> ExitCode {
    if let Some((first, rest)) = arguments.split_first()
        && first == "oracle"
    {
        let everything = ["all".to_owned()];
        return end(oracle(root, if rest.is_empty() { &everything } else { rest }));
    }
    if let Some((first, rest)) = arguments.split_first()
        && first == "net"
    {
        return match net(root, rest) {
            Ok(command) => end(command),
            Err(reason) => {
                eprintln!("error: {reason}");
                ExitCode::FAILURE
            }
        };
    }
    let mut library = cargo(root);
    library.args(["run", "--package", "fipsee-durability", "--", "run"]).args(arguments);
    let is_chosen = |option: &str| arguments.iter().any(|argument| argument.starts_with(option));
    if is_chosen("--help") || is_chosen("-h") {
        return end(library);
    }
    let outcome = end(library);
    // A choice of campaigns leaves fio out.
    if outcome != ExitCode::SUCCESS || ["--way", "--storage", "--kill="].into_iter().any(is_chosen) || chooses_a_victim(arguments)
    {
        return outcome;
    }
    let compared = end(oracle(root, &["all".to_owned()]));
    if compared != ExitCode::SUCCESS {
        return compared;
    }
    let prefix = dist::Dist::new(root).prefix;
    if std::env::var_os(dist::DIST_VARIABLE).is_none() && !prefix.join("lib/fio/fipsee.so").exists() {
        println!("fio was not tried: its engine is not built; run `cargo xtask dist` first");
        return outcome;
    }
    let mut fio = cargo(root);
    fio.args([
        "test",
        "--package",
        "fipsee-acceptance",
        "--test",
        "fio",
        "--",
        "fio_goes_on",
        "fio_was_killed",
        "jobs_that_overlap",
        "--nocapture",
    ]);
    fio.env("FIPSEE_ENDURE_KILLS", kills(arguments));
    if std::env::var_os(dist::DIST_VARIABLE).is_none() {
        fio.env(dist::DIST_VARIABLE, prefix);
    }
    end(fio)
}

/// Stacks of the host over TAP devices for `--minutes N`, beside ports at full load.
fn net(root: &Path, arguments: &[String]) -> Result<Command, String> {
    const USAGE: &str =
        "usage: cargo xtask endure net [--minutes N]    (1 to 1440, default 10); docs/reliability.md says what it does";
    let minutes =
        value_of(arguments, "--minutes").filter(|minutes| minutes.parse().is_ok_and(|minutes| (1..=1440).contains(&minutes)));
    if minutes.is_none() && !arguments.is_empty() {
        return Err(USAGE.to_owned());
    }
    let mut command = cargo(root);
    command.args(["test", "--package", "fipsee-daemon", "--test", "network", "--", "tap_long", "--ignored", "--nocapture"]);
    minutes.iter().for_each(|minutes| _ = command.env("FIPSEE_ENDURE_MINUTES", minutes));
    Ok(command)
}

/// Of `--option value` or `--option=value`.
fn value_of<'a>(arguments: &'a [String], option: &str) -> Option<&'a str> {
    let after = arguments.iter().position(|argument| argument == option).and_then(|place| arguments.get(place + 1));
    let joined = || arguments.iter().find_map(|argument| argument.strip_prefix(option)?.strip_prefix('='));
    after.map(String::as_str).or_else(joined)
}

/// Optimised: it makes and compares every byte.
fn oracle(root: &Path, arguments: &[String]) -> Command {
    let mut command = cargo(root);
    command.args(["run", "--release", "--package", "fipsee-oracle", "--"]).args(arguments);
    if std::env::var_os(dist::DIST_VARIABLE).is_none() {
        command.env(dist::DIST_VARIABLE, dist::Dist::new(root).prefix);
    }
    command
}

fn chooses_a_victim(arguments: &[String]) -> bool {
    arguments.iter().any(|argument| argument == "--kill")
}

fn kills(arguments: &[String]) -> String {
    value_of(arguments, "--kills").unwrap_or(DEFAULT_KILLS).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_kills_is_found_in_either_form() {
        let of = |words: &[&str]| kills(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!((of(&["--kills", "7"]), of(&["--seed=3", "--kills=8"]), of(&[])), ("7".into(), "8".into(), "500".into()));
    }
}
