//! Every tier this machine can run.

use std::path::Path;

use crate::dist::{self, Dist};
use crate::step::{self, Tally};
use crate::{cargo, ci, deb, setup, simulate, vm};

/// How a test says, past the capture of its output, that a check could not run; see `fipsee_testkit::skip`.
const SKIP_MARK: &str = "fipsee-skip: ";

/// Setup, then every tier.
pub(crate) fn run(root: &Path, tally: &mut Tally) {
    let setup = setup::run();
    let dist = Dist::new(root);
    dist::run(&dist, tally);
    deb::run(&dist, tally);
    let mut skips = Vec::new();
    tally.measure("tier 0 cargo test", || {
        let mut command = cargo(root);
        command.args(["test", "--workspace", "--no-fail-fast"]);
        command.env(setup::MISSING_VARIABLE, setup.missing.join(" ")).env(dist::DIST_VARIABLE, &dist.prefix);
        let output = step::output(&mut command);
        skips = skip_lines(&output.text);
        step::note_test_programs(&output.text);
        let counted = step::count_tests(&output.text);
        judge_tests(counted, output.succeeded, output.text)
    });
    for (name, reason) in &skips {
        tally.skip(&format!("tier 0 {name}"), reason);
        // It ended well, so cargo counted it as passed.
        tally.passed = tally.passed.saturating_sub(1);
    }
    simulate::tier(root, tally);
    // A workspace of its own. Without the crates it compares us to, which are for the benchmark.
    tally.measure("tier 0 bench/peers", || {
        let mut command = cargo(root);
        command.args(["test", "--no-default-features", "--manifest-path", "bench/peers/Cargo.toml"]);
        let output = step::output(&mut command);
        judge_tests(step::count_tests(&output.text), output.succeeded, output.text)
    });
    ci::run(root, tally);
    vm::tier(root, &dist.prefix.join("bin"), tally);
    tally.skip("tier 3 bench", "needs a quiet machine, run `cargo xtask bench` and `cargo xtask bench ipc`");
}

/// What a change must pass before each commit, in minutes: format, lints, the tests inside the crates, simulation, one guest.
pub(crate) fn fast(root: &Path, tally: &mut Tally) {
    let setup = setup::run();
    ci::format(root, tally);
    ci::clippy(root, tally);
    ci::tidy(root, tally);
    tally.measure("tier 0 cargo test --lib", || {
        let mut command = cargo(root);
        command.args(["test", "--workspace", "--lib", "--bins", "--no-fail-fast"]);
        let output = step::output(command.env(setup::MISSING_VARIABLE, setup.missing.join(" ")));
        step::note_test_programs(&output.text);
        judge_tests(step::count_tests(&output.text), output.succeeded, output.text)
    });
    simulate::fast_tier(root, tally);
    vm::fast_tier(root, tally);
}

fn judge_tests(mut counted: Tally, succeeded: bool, text: String) -> (Tally, Result<String, String>) {
    if succeeded && counted.failed == 0 && counted.passed > 0 {
        let remark = format!("{} tests", counted.passed);
        return (counted, Ok(remark));
    }
    counted.failed = counted.failed.max(1);
    (counted, Err(text))
}

fn skip_lines(text: &str) -> Vec<(String, String)> {
    let line = |line: &str| {
        let (_, skip) = line.split_once(SKIP_MARK)?;
        let (name, reason) = skip.split_once(": ").unwrap_or((skip, "no reason given"));
        Some((name.to_owned(), reason.to_owned()))
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_do_not_compile_or_do_not_exist_are_a_failure() {
        let (counted, outcome) = judge_tests(Tally::default(), false, "error: could not compile".to_owned());
        assert_eq!((counted.failed, outcome.is_err()), (1, true));
        let (counted, outcome) = judge_tests(Tally::default(), true, String::new());
        assert_eq!((counted.failed, outcome.is_err()), (1, true));
        let passed = Tally { passed: 5, failed: 0, skipped: 0 };
        assert_eq!(judge_tests(passed, true, String::new()), (passed, Ok("5 tests".to_owned())));
        assert_eq!(judge_tests(passed, false, String::new()).0.failed, 1);
    }

    #[test]
    fn skip_of_a_test_keeps_its_name_and_reason() {
        let skips = skip_lines("test a ... ok\ntest b ... fipsee-skip: hugetlbfs: no huge pages: none configured\nok\n");
        assert_eq!(skips, [("hugetlbfs".to_owned(), "no huge pages: none configured".to_owned())]);
    }
}
