//! One line per step, what failed in full, and the count at the end.

use std::fmt;
use std::io::{self, Read, Write};
use std::process::Command;
use std::time::Instant;

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
        let seconds = started.elapsed().as_secs();
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
