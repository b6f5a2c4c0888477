//! One line per step, what failed in full, and the count at the end.

use std::fmt;
use std::io::{self, Read, Write};
use std::num::NonZero;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

/// What took how many seconds: steps, and the programs of `cargo test`.
static STEPS: Mutex<Vec<(f64, String)>> = Mutex::new(Vec::new());
static TEST_PROGRAMS: Mutex<Vec<(f64, String)>> = Mutex::new(Vec::new());

/// Tests and checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

impl Count {
    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// How many CPUs this process may use.
pub(crate) fn cpus() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// What `run` gives for each of `items`, in their order; as many at a time as there are CPUs.
pub(crate) fn side_by_side<T: Send, R: Send>(items: Vec<T>, run: impl Fn(T) -> R + Sync) -> Vec<R> {
    let (items, results) = (Mutex::new(items.into_iter().enumerate()), Mutex::new(Vec::new()));
    let next = || items.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread::scope(|scope| {
        for _ in 0..cpus() {
            scope.spawn(|| {
                while let Some((index, item)) = next() {
                    let result = run(item);
                    results.lock().unwrap_or_else(PoisonError::into_inner).push((index, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// How a step went.
pub(crate) enum Attempt {
    /// With what to say of it.
    Passed(String),
    /// With the reason.
    Skipped(String),
    /// With all that is known.
    Failed(String),
}

/// Steps so far.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) count: Count,
    /// Lines of steps that run beside others, whose lines they would be amid.
    kept: Option<String>,
}

impl Tally {
    /// For steps that run beside others: nothing is printed before they end.
    pub(crate) fn kept() -> Self {
        Self { kept: Some(String::new()), ..Self::default() }
    }

    /// Likewise, and what this thread starts gets only the time that others leave.
    pub(crate) fn beside() -> Self {
        // A thread's children inherit its scheduling class. Without the program they disturb a little more.
        let thread = std::fs::read_link("/proc/thread-self").unwrap_or_default();
        let thread = thread.file_name().unwrap_or_default().to_owned();
        let _ = output(Command::new("chrt").args(["--idle", "--pid", "0"]).arg(thread));
        Self::kept()
    }

    /// Take over what ran beside.
    pub(crate) fn join(&mut self, other: Self) {
        self.say(&other.kept.unwrap_or_default());
        self.count.add(other.count);
    }

    /// Print, now or later.
    pub(crate) fn say(&mut self, text: &str) {
        match &mut self.kept {
            Some(kept) => kept.push_str(text),
            None => {
                print!("{text}");
                // What is not shown yet is all that is lost.
                let _ = io::stdout().flush();
            }
        }
    }

    /// One line for something that cannot run here, and why.
    pub(crate) fn skip(&mut self, name: &str, reason: &str) {
        self.say(&format!("{name} ... skipped: {reason}\n"));
        self.count.skipped += 1;
    }

    /// Run a step; `run` gives what to say of success, or what went wrong, in full.
    pub(crate) fn check(&mut self, name: &str, run: impl FnOnce() -> Result<String, String>) {
        self.attempt(name, || run().map_or_else(Attempt::Failed, Attempt::Passed));
    }

    /// Run a step that may find out on its way that it cannot.
    pub(crate) fn attempt(&mut self, name: &str, run: impl FnOnce() -> Attempt) {
        self.measure(name, || {
            let attempt = run();
            let count = match &attempt {
                Attempt::Passed(_) => Count { passed: 1, ..Count::default() },
                Attempt::Skipped(_) => Count { skipped: 1, ..Count::default() },
                Attempt::Failed(_) => Count { failed: 1, ..Count::default() },
            };
            (count, attempt)
        });
    }

    /// Run a step that is `cargo test`: each test counts, and there must be some.
    pub(crate) fn tests(&mut self, name: &str, run: impl FnOnce() -> Output) {
        self.measure(name, || judge_tests(run()));
    }

    fn measure(&mut self, name: &str, run: impl FnOnce() -> (Count, Attempt)) {
        self.say(&format!("{name} ... "));
        let started = Instant::now();
        let (count, attempt) = run();
        let elapsed = started.elapsed();
        let seconds = elapsed.as_secs();
        STEPS.lock().unwrap_or_else(PoisonError::into_inner).push((elapsed.as_secs_f64(), name.to_owned()));
        self.say(&match attempt {
            Attempt::Skipped(reason) => format!("skipped: {reason}\n"),
            Attempt::Passed(remark) if remark.is_empty() => format!("passed ({seconds} s)\n"),
            Attempt::Passed(remark) => format!("passed ({remark}, {seconds} s)\n"),
            Attempt::Failed(text) => format!("FAILED ({seconds} s)\n{}\n{name}: failed as shown above\n", text.trim_end()),
        });
        self.count.add(count);
    }
}

fn judge_tests(output: Output) -> (Count, Attempt) {
    let mut count = count_tests(&output.text);
    if output.succeeded && count.failed == 0 && count.passed > 0 {
        return (count, Attempt::Passed(format!("{} tests", count.passed)));
    }
    count.failed = count.failed.max(1);
    (count, Attempt::Failed(output.text))
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
        let mut text = String::from_utf8_lossy(&bytes).into_owned();
        let status = child.wait()?;
        // A program that a signal ends does not say so itself.
        if status.signal().is_some() {
            text.push_str(&format!("\n{status}\n"));
        }
        Ok(Output { succeeded: status.success(), text })
    };
    run().unwrap_or_else(|error| Output { succeeded: false, text: format!("cannot run {command:?}: {error}") })
}

/// Run `command`; its output is the error when it fails.
pub(crate) fn succeed(command: &mut Command) -> Result<String, String> {
    print(command).map(|_| String::new())
}

/// What a command that must succeed printed.
pub(crate) fn print(command: &mut Command) -> Result<String, String> {
    let output = output(command);
    if output.succeeded { Ok(output.text.trim().to_owned()) } else { Err(format!("{command:?}\n{}", output.text)) }
}

/// The end of what a long command said, and its first line, which names the command.
pub(crate) fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let (head, tail) = (lines.first().copied().unwrap_or_default(), lines.len().saturating_sub(60));
    format!("{head}\n...\n{}", lines[tail..].join("\n"))
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
pub(crate) fn print_times(started: Instant) {
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
    println!("\n{} seconds; by tier, of which some ran beside others", started.elapsed().as_secs());
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
pub(crate) fn count_tests(text: &str) -> Count {
    let mut tally = Count::default();
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
    fn what_runs_side_by_side_keeps_its_order() {
        let items: Vec<usize> = (0..100).collect();
        assert_eq!(side_by_side(items.clone(), |item| 2 * item), items.iter().map(|item| 2 * item).collect::<Vec<_>>());
        assert!(side_by_side(Vec::<()>::new(), |()| ()).is_empty());
    }

    #[test]
    fn results_of_all_test_programs_are_summed() {
        let text = "running 2 tests\ntest result: ok. 412 passed; 0 failed; 2 ignored; 0 measured; 7 filtered out; \
                    finished in 0.51s\n\ntest result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out\n";
        assert_eq!(count_tests(text), Count { passed: 415, failed: 1, skipped: 2 });
        assert_eq!(count_tests("error: could not compile"), Count::default());
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
        tally.check("b", || Ok(String::new()));
        tally.check("c", || Err("broken".to_owned()));
        assert_eq!(tally.count, Count { passed: 1, failed: 1, skipped: 1 });
    }

    #[test]
    fn steps_beside_others_are_counted_and_shown_when_they_have_ended() {
        let (mut tally, mut beside) = (Tally::default(), Tally { kept: Some(String::new()), ..Tally::default() });
        beside.check("a", || Ok("well".to_owned()));
        beside.skip("b", "no such machine");
        assert_eq!(beside.kept.as_deref(), Some("a ... passed (well, 0 s)\nb ... skipped: no such machine\n"));
        tally.join(beside);
        assert_eq!(tally.count, Count { passed: 1, failed: 0, skipped: 1 });
    }

    #[test]
    fn tests_that_do_not_compile_or_do_not_exist_are_a_failure() {
        let judged = |succeeded, text: &str| {
            let (count, attempt) = judge_tests(Output { succeeded, text: text.to_owned() });
            (count.failed, matches!(attempt, Attempt::Passed(_)))
        };
        assert_eq!(judged(false, "error: could not compile"), (1, false));
        assert_eq!(judged(true, ""), (1, false));
        assert_eq!(judged(true, "test result: ok. 5 passed; 0 failed"), (0, true));
        assert_eq!(judged(false, "test result: ok. 5 passed; 0 failed"), (1, false));
    }

    #[test]
    fn both_streams_of_a_command_are_kept() {
        let output = output(Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"]));
        assert!(!output.succeeded);
        assert_eq!(output.text, "out\nerr\n");
    }

    #[test]
    fn long_output_is_cut_in_the_middle() {
        let text: Vec<String> = (0..100).map(|line| line.to_string()).collect();
        let cut = last_lines(&text.join("\n"));
        assert!(cut.starts_with("0\n...\n40\n") && cut.ends_with("\n99"), "{cut}");
    }

    #[test]
    fn missing_program_is_a_failure_that_names_it() {
        let text = succeed(&mut Command::new("no-such-program-here")).expect_err("it cannot run");
        assert!(text.contains("no-such-program-here"), "{text}");
    }

    #[test]
    fn tally_ends_as_the_last_line_of_a_run() {
        assert_eq!(Count { passed: 3, failed: 0, skipped: 2 }.to_string(), "3 passed, 0 failed, 2 skipped");
    }
}
