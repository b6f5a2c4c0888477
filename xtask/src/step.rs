//! One line per step, what failed in full, and the count at the end.

use std::fmt;
use std::io::{self, Read, Write};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// What took how many seconds: steps, and the programs of `cargo test`.
static STEPS: Mutex<Vec<(f64, String)>> = Mutex::new(Vec::new());
static TEST_PROGRAMS: Mutex<Vec<(f64, String)>> = Mutex::new(Vec::new());

/// Tests and checks so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

/// How a step went that can also be impossible here.
pub(crate) enum Attempt {
    /// With what to say of it.
    Passed(String),
    /// With the reason.
    Skipped(String),
    /// With all that is known.
    Failed(String),
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

impl Tally {
    /// One line for something that cannot run here, and why.
    pub(crate) fn skip(&mut self, name: &str, reason: &str) {
        println!("{name} ... skipped: {reason}");
        self.skipped += 1;
    }

    /// Run a step; `run` gives what to say of success, or what went wrong, in full.
    pub(crate) fn check(&mut self, name: &str, run: impl FnOnce() -> Result<String, String>) {
        self.measure(name, || match run() {
            Ok(remark) => (Self { passed: 1, ..Self::default() }, Ok(remark)),
            Err(text) => (Self { failed: 1, ..Self::default() }, Err(text)),
        });
    }

    /// Run a step that may find out on its way that it cannot.
    pub(crate) fn attempt(&mut self, name: &str, run: impl FnOnce() -> Attempt) {
        self.measure(name, || match run() {
            Attempt::Passed(remark) => (Self { passed: 1, ..Self::default() }, Ok(remark)),
            Attempt::Failed(text) => (Self { failed: 1, ..Self::default() }, Err(text)),
            Attempt::Skipped(reason) => (Self { skipped: 1, ..Self::default() }, Ok(reason)),
        });
    }

    /// Run a step that counts for itself.
    pub(crate) fn measure(&mut self, name: &str, run: impl FnOnce() -> (Self, Result<String, String>)) {
        print!("{name} ... ");
        // A line that is not shown yet is all that is lost.
        let _ = io::stdout().flush();
        let started = Instant::now();
        let (counted, outcome) = run();
        let elapsed = started.elapsed();
        let seconds = elapsed.as_secs();
        STEPS.lock().unwrap_or_else(PoisonError::into_inner).push((elapsed.as_secs_f64(), name.to_owned()));
        match outcome {
            Ok(remark) if counted.skipped > 0 && counted.passed == 0 => println!("skipped: {remark}"),
            Ok(remark) if remark.is_empty() => println!("passed ({seconds} s)"),
            Ok(remark) => println!("passed ({remark}, {seconds} s)"),
            Err(text) => println!("FAILED ({seconds} s)\n{}\n{name}: failed as shown above", text.trim_end()),
        }
        self.passed += counted.passed;
        self.failed += counted.failed;
        self.skipped += counted.skipped;
    }
}

/// What a command printed on both streams, and whether it succeeded.
pub(crate) struct Output {
    pub(crate) succeeded: bool,
    pub(crate) text: String,
}

/// Run `command` to its end, its two output streams as one.
pub(crate) fn output(command: &mut Command) -> Output {
    let mut run = || -> io::Result<Output> {
        let (mut reader, writer) = io::pipe()?;
        let mut child = command.stdin(std::process::Stdio::null()).stdout(writer.try_clone()?).stderr(writer).spawn()?;
        // The command holds the last writing ends but the child's; without them the pipe ends when the child does.
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes)?;
        Ok(Output { succeeded: child.wait()?.success(), text: String::from_utf8_lossy(&bytes).into_owned() })
    };
    run().unwrap_or_else(|error| Output { succeeded: false, text: format!("cannot run {command:?}: {error}") })
}

/// Run `command`; its output is the error when it fails.
pub(crate) fn succeed(command: &mut Command) -> Result<String, String> {
    let output = output(command);
    if output.succeeded { Ok(String::new()) } else { Err(format!("{command:?}\n{}", output.text)) }
}

/// Note how long each program of a `cargo test` took, by what it printed.
pub(crate) fn note_test_programs(text: &str) {
    TEST_PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner).extend(times_of_programs(text));
}

fn times_of_programs(text: &str) -> Vec<(f64, String)> {
    let mut program = "";
    let mut times = Vec::new();
    for line in text.lines().map(str::trim_start) {
        if let Some(name) = line.strip_prefix("Running ").or_else(|| line.strip_prefix("Doc-tests ")) {
            program = name;
        } else if let Some((_, seconds)) = line.split_once("; finished in ")
            && let Ok(seconds) = seconds.trim_end().trim_end_matches('s').parse()
        {
            // "tests/name.rs (target/debug/deps/package_name-hash)"
            let (source, path) = program.split_once(" (").unwrap_or((program, ""));
            let file = path.rsplit('/').next().unwrap_or_default();
            let crate_name = file.rsplit_once('-').map_or(file, |(name, _)| name);
            times.push((seconds, format!("{source} {crate_name}").trim_end().to_owned()));
        }
    }
    times
}

/// The time of each tier, the ten slowest steps and the ten slowest programs of `cargo test`.
pub(crate) fn print_times() {
    let take = |times: &Mutex<Vec<(f64, String)>>| std::mem::take(&mut *times.lock().unwrap_or_else(PoisonError::into_inner));
    let (steps, programs) = (take(&STEPS), take(&TEST_PROGRAMS));
    let mut tiers: Vec<(f64, String)> = Vec::new();
    for (seconds, name) in &steps {
        let words: Vec<&str> = name.split(' ').collect();
        let tier = if words[0] == "tier" { words[..words.len().min(2)].join(" ") } else { words[0].to_owned() };
        match tiers.iter_mut().find(|(_, known)| *known == tier) {
            Some((sum, _)) => *sum += seconds,
            None => tiers.push((*seconds, tier)),
        }
    }
    println!("\nseconds by tier");
    print_rows(&tiers);
    for (title, mut times) in [("slowest steps", steps), ("slowest test programs", programs)] {
        times.sort_by(|one, other| other.0.total_cmp(&one.0));
        times.truncate(10);
        println!("{title}");
        print_rows(&times);
    }
}

fn print_rows(times: &[(f64, String)]) {
    for (seconds, name) in times {
        println!("{seconds:8.1}  {name}");
    }
}

/// Sum the results that `cargo test` printed.
pub(crate) fn count_tests(text: &str) -> Tally {
    let mut tally = Tally::default();
    for line in text.lines().filter_map(|line| line.split_once("test result: ")) {
        for part in line.1.split([';', '.']) {
            let mut words = part.split_whitespace();
            let (Some(count), Some(what)) = (words.next().and_then(|word| word.parse::<u64>().ok()), words.next()) else {
                continue;
            };
            match what {
                "passed" => tally.passed += count,
                "failed" => tally.failed += count,
                "ignored" => tally.skipped += count,
                _ => {}
            }
        }
    }
    tally
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_all_test_programs_are_summed() {
        let text = "running 2 tests\ntest result: ok. 412 passed; 0 failed; 2 ignored; 0 measured; 7 filtered out; \
                    finished in 0.51s\n\ntest result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out\n";
        assert_eq!(count_tests(text), Tally { passed: 415, failed: 1, skipped: 2 });
        assert_eq!(count_tests("error: could not compile"), Tally::default());
    }

    #[test]
    fn test_programs_are_named_with_their_times() {
        let text = "     Running unittests src/lib.rs (target/debug/deps/fipsee_ring-0af6)\ntest result: ok. 1 passed; 0 failed; \
                    0 ignored; 0 measured; 0 filtered out; finished in 0.51s\n   Doc-tests fipsee_ring\ntest result: ok. 0 passed; \
                    0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 12.00s\n";
        let expected = [(0.51, "unittests src/lib.rs fipsee_ring".to_owned()), (12.0, "fipsee_ring".to_owned())];
        assert_eq!(times_of_programs(text), expected);
    }

    #[test]
    fn step_that_cannot_run_is_neither_passed_nor_failed() {
        let mut tally = Tally::default();
        tally.attempt("a", || Attempt::Skipped("no such machine".to_owned()));
        tally.attempt("b", || Attempt::Passed(String::new()));
        tally.attempt("c", || Attempt::Failed("broken".to_owned()));
        assert_eq!(tally, Tally { passed: 1, failed: 1, skipped: 1 });
    }

    #[test]
    fn both_streams_of_a_command_are_kept() {
        let output = output(Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"]));
        assert!(!output.succeeded);
        assert_eq!(output.text, "out\nerr\n");
    }

    #[test]
    fn missing_program_is_a_failure_that_names_it() {
        let text = succeed(&mut Command::new("no-such-program-here")).expect_err("it cannot run");
        assert!(text.contains("no-such-program-here"), "{text}");
    }

    #[test]
    fn tally_ends_as_the_last_line_of_a_run() {
        assert_eq!(Tally { passed: 3, failed: 0, skipped: 2 }.to_string(), "3 passed, 0 failed, 2 skipped");
    }
}
