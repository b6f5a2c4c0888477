//! Coverage-guided fuzzing of every parser that reads a peer's bytes (`tests/fuzz`), by libFuzzer (`fuzz/`).

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::files::{self, empty_folder, list, list_ending, name_of, read_text};
use crate::setup::is_installed;
use crate::step::{self, Tally, last_lines};
use crate::{cargo, target};

const USAGE: &str = "\
usage: cargo xtask fuzz [TARGET]... [--executions N] [--keep]

  TARGET          a parser, as tests/fuzz/src/lib.rs names it; without one, all of them
  --executions N  inputs for each [default: 1000000]
  --keep          put what reached new code into the corpus, tests/fuzz/corpus, made as small as it can be

An input that makes a parser do what it must not is kept in target/fuzz/TARGET/, and its bytes are in what is printed.";

/// Inputs for each target by default.
const DEFAULT_EXECUTIONS: u64 = 1_000_000;
/// Inputs for each target in `cargo xtask test`: some seconds.
const SMOKE_EXECUTIONS: u64 = 40_000;
/// The triple is named so that the flags below are not those of build scripts.
const TRIPLE: &str = "x86_64-unknown-linux-gnu";
/// What the fuzzer is guided by: a counter for each edge, and the operands of comparisons. These are flags of LLVM that a stable
/// compiler takes; no nightly toolchain is needed.
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";
/// The same for C. Undefined behaviour ends the program: clang's run-time for it is not needed then.
const C_FLAGS: &str = "-O1 -g -fsanitize-coverage=inline-8bit-counters,pc-table,trace-cmp -fsanitize=undefined \
    -fsanitize-trap=undefined";
/// Longest input: a control message, a request with its table, a region's header with its table are shorter.
const MAX_INPUT_BYTES: &str = "-max_len=4352";

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    targets: Vec<String>,
    executions: u64,
    keep: bool,
}

impl Plan {
    fn parse(arguments: &[String]) -> Result<Option<Self>, String> {
        let mut plan = Self { targets: Vec::new(), executions: DEFAULT_EXECUTIONS, keep: false };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match argument.as_str() {
                "--help" | "-h" => return Ok(None),
                "--keep" => plan.keep = true,
                "--executions" => {
                    let number = rest.next().and_then(|number| number.parse().ok()).filter(|number| *number > 0);
                    plan.executions = number.ok_or("--executions takes a number of inputs, at least 1")?;
                }
                option if option.starts_with('-') => return Err(format!("no option '{option}'\n\n{USAGE}")),
                target => plan.targets.push(target.to_owned()),
            }
        }
        Ok(Some(plan))
    }
}

/// `cargo xtask fuzz`. `false`: only help was asked for.
pub(crate) fn command(root: &Path, arguments: &[String], tally: &mut Tally) -> Result<bool, String> {
    let Some(mut plan) = Plan::parse(arguments)? else {
        println!("{USAGE}");
        return Ok(false);
    };
    let known = targets(root);
    if let Some(unknown) = plan.targets.iter().find(|target| !known.contains(target)) {
        return Err(format!("no parser '{unknown}' is fuzzed; there are: {}", known.join(", ")));
    }
    if plan.targets.is_empty() {
        plan.targets = known;
    }
    run(root, &plan, tally);
    Ok(true)
}

/// A little of everything, from the corpus on: that the fuzzer works, and what is near.
pub(crate) fn smoke(root: &Path, tally: &mut Tally) {
    run(root, &Plan { targets: targets(root), executions: SMOKE_EXECUTIONS, keep: false }, tally);
}

/// Each target has a corpus, which the tests replay.
fn targets(root: &Path) -> Vec<String> {
    let files = list_ending(&root.join("tests/fuzz/corpus"), "hex");
    files.iter().map(|path| name_of(path).trim_end_matches(".hex").to_owned()).collect()
}

fn run(root: &Path, plan: &Plan, tally: &mut Tally) {
    if let Some(reason) = unable() {
        return tally.skip("tier 1 fuzz", &reason);
    }
    let mut built = false;
    tally.check("tier 1 fuzz, build", || {
        let outcome = build(root);
        built = outcome.is_ok();
        outcome
    });
    if !built {
        return;
    }
    // Each has one thread.
    let ended = step::side_by_side(plan.targets.iter().collect(), |target| {
        let mut tally = Tally::kept();
        tally.check(&format!("tier 1 fuzz {target}"), || fuzz(root, target, plan));
        tally
    });
    ended.into_iter().for_each(|one| tally.join(one));
}

fn unable() -> Option<String> {
    if cfg!(not(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))) {
        return Some(format!("the fuzzer is built for {TRIPLE}"));
    }
    let missing = ["clang", "clang++"].into_iter().find(|program| !is_installed(program))?;
    Some(format!("{missing} is not installed; run `cargo xtask setup` as root"))
}

/// Where the fuzzer is built, and what it finds is kept.
fn folder(root: &Path) -> PathBuf {
    target(root).join("fuzz")
}

fn build(root: &Path) -> Result<String, String> {
    let mut command = cargo(root);
    command.args(["build", "--release", "--manifest-path", "fuzz/Cargo.toml", "--target", TRIPLE]);
    command.arg("--target-dir").arg(folder(root));
    // The linker takes clang's counters for C and rustc's for Rust; both are LLVM's.
    let of_target = |name: &str| format!("{name}_{}", TRIPLE.replace('-', "_"));
    command.env("RUSTFLAGS", COVERAGE).env(of_target("CC"), "clang").env(of_target("CFLAGS"), C_FLAGS);
    step::succeed(&mut command)
}

/// Run the fuzzer on one target. What it says last is what went wrong.
fn fuzz(root: &Path, target: &str, plan: &Plan) -> Result<String, String> {
    let of_target = folder(root).join(target);
    let inputs = of_target.join("inputs");
    let packed = root.join("tests/fuzz/corpus").join(format!("{target}.hex"));
    unpack(&packed, &inputs)?;
    let fuzzer = || {
        // A hypervisor may give a socket that has no reader for its interrupts. Rust's own start of a program ignores the signal, libFuzzer's does not.
        let mut command = Command::new("env");
        command.arg("--ignore-signal=PIPE").arg(folder(root).join(TRIPLE).join("release/fipsee-fuzzer"));
        command.env("FIPSEE_FUZZ_TARGET", target).arg(MAX_INPUT_BYTES);
        command.arg(format!("-artifact_prefix={}/", of_target.display()));
        command
    };
    let mut command = fuzzer();
    command.env("FIPSEE_FUZZ_SEEDS", &inputs);
    // Slow machines run slow inputs: a minute is a hang. Its memory holds the corpus and a daemon's structures.
    command.args(["-timeout=60", "-rss_limit_mb=4096", "-use_value_profile=1", "-print_final_stats=1"]);
    let found = step::output(command.arg(format!("-runs={}", plan.executions)).arg(&inputs));
    if !found.succeeded {
        return Err(last_lines(&found.text));
    }
    let remark = format!("{} executions, {}", executed(&found.text), coverage(&found.text));
    if plan.keep {
        let smallest = of_target.join("smallest");
        empty_folder(&smallest)?;
        let merged = step::output(fuzzer().arg("-merge=1").arg(&smallest).arg(&inputs));
        if !merged.succeeded {
            return Err(last_lines(&merged.text));
        }
        let kept = pack(&smallest, &packed)?;
        return Ok(format!("{remark}, {kept} inputs kept"));
    }
    Ok(remark)
}

fn executed(text: &str) -> u64 {
    let count = text.lines().find_map(|line| line.split_once("stat::number_of_executed_units:"));
    count.and_then(|(_, count)| count.trim().parse().ok()).unwrap_or(0)
}

/// The last "cov: N ft: M" of libFuzzer's lines.
fn coverage(text: &str) -> String {
    let line = text.lines().rev().find_map(|line| line.split_once(" cov: ")).map_or("", |(_, rest)| rest);
    let edges = line.split_whitespace().next().unwrap_or("no");
    format!("{edges} edges")
}

/// One file for each line of hexadecimal digits; what an earlier run left beside them stays.
fn unpack(packed: &Path, inputs: &Path) -> Result<(), String> {
    for (index, line) in read_text(packed)?.lines().enumerate() {
        let bytes = from_hex(line).ok_or_else(|| format!("{}: line {} is not hexadecimal", packed.display(), index + 1))?;
        files::write(&inputs.join(format!("packed-{index:04}")), bytes)?;
    }
    Ok(())
}

/// All inputs of a folder in one text, as `tests/fuzz/src/corpus.rs` reads it; how many.
fn pack(folder: &Path, packed: &Path) -> Result<usize, String> {
    let mut inputs = list(folder)?.iter().map(|path| files::read(path)).collect::<Result<Vec<_>, _>>()?;
    inputs.retain(|input| !input.is_empty());
    inputs.sort_by_key(|input| (input.len(), input.clone()));
    let line = |input: &Vec<u8>| input.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n";
    let text: String = inputs.iter().map(line).collect();
    files::write(packed, text)?;
    Ok(inputs.len())
}

fn from_hex(line: &str) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let pair = |pair: &[u8]| match pair {
        [high, low] => u8::try_from(digit(high)? << 4 | digit(low)?).ok(),
        _ => None,
    };
    line.as_bytes().chunks(2).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Option<Plan>, String> {
        Plan::parse(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn command_line_says_what_is_to_be_fuzzed() {
        let plan = parse(&["control", "--executions", "7", "--keep"]).expect("sound").expect("a plan");
        assert_eq!(plan, Plan { targets: vec!["control".to_owned()], executions: 7, keep: true });
        assert!(parse(&["--executions"]).is_err() && parse(&["--executions", "0"]).is_err() && parse(&["--what"]).is_err());
        assert_eq!(parse(&["--help"]), Ok(None));
    }

    #[test]
    fn what_the_fuzzer_says_is_understood() {
        let text = "#8\tpulse  cov: 17 ft: 21 corp: 2/3b\n#9 DONE   cov: 18 ft: 22\nstat::number_of_executed_units: 9\n";
        assert_eq!((executed(text), coverage(text)), (9, "18 edges".to_owned()));
        assert_eq!(from_hex("00fF1a"), Some(vec![0, 255, 26]));
        assert_eq!(from_hex("0"), None);
        assert_eq!(from_hex("zz"), None);
    }
}
