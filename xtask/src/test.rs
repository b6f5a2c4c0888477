//! Every tier this machine can run.

use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::thread;

use crate::dist::{self, Dist};
use crate::step::{self, Tally};
use crate::{cargo, ci, deb, setup, simulate, vm};

/// So many tests of a program run at a time.
const TESTS_PER_CPU: usize = 2;

/// How a test says, past the capture of its output, that a check could not run; see `fipsee_testkit::skip`.
const SKIP_MARK: &str = "fipsee-skip: ";

/// Setup, then every tier. The tests mostly wait: guests run beside them, and what compiles and computes in the time that both
/// leave. Most of what computes has one thread, so that something else must use the other CPU.
pub(crate) fn run(root: &Path, tally: &mut Tally) {
    let setup = setup::run();
    let dist = Dist::new(root);
    let (built, is_built) = mpsc::channel();
    let (prepared, is_prepared) = mpsc::channel();
    let (shipped, is_shipped) = mpsc::channel();
    thread::scope(|scope| {
        // They end with this closure, also when it panics: then no lane waits for them.
        let (built, shipped) = (built, shipped);
        let programs = dist.prefix.join("bin");
        let guests = scope.spawn(move || {
            let mut tally = Tally::kept();
            // A sender that is gone has panicked, which is reported below.
            if is_prepared.recv().is_ok() && is_shipped.recv().is_ok() {
                vm::tier(root, &programs, &mut tally);
            }
            tally
        });
        let compiles = scope.spawn(move || {
            let mut tally = Tally::beside();
            vm::prepare(root, &mut tally);
            let _ = prepared.send(());
            ci::read(root, &mut tally);
            ci::miri(root, &mut tally);
            tally
        });
        let computes = scope.spawn(move || {
            let mut tally = Tally::beside();
            ci::execute(root, &mut tally);
            if is_built.recv() == Ok(true) {
                simulate::tier(root, &mut tally);
            }
            tally
        });
        dist::run(&dist, tally);
        deb::run(&dist, tally);
        let is_built = build(root, &["--workspace"], tally);
        let _ = shipped.send(());
        // If the other thread has ended, its panic is reported below.
        let _ = built.send(is_built);
        ci::test_peers(root, tally);
        if is_built {
            vm::prepare_guide(root, tally);
            run_tests(test_command(root, &setup, &["--workspace"]).env(dist::DIST_VARIABLE, &dist.prefix), tally);
        }
        for (name, lane) in [("tier 1", compiles), ("tier 1", computes), ("tier 2", guests)] {
            match lane.join() {
                Ok(lane) => tally.join(lane),
                Err(_) => tally.check(name, || Err("what ran beside the tests panicked, as shown above".to_owned())),
            }
        }
    });
    tally.skip("tier 3 bench", "needs a quiet machine, run `cargo xtask bench` and `cargo xtask bench ipc`");
}

/// What a change must pass before each commit, in minutes: format, lints, the tests inside the crates, simulation, one guest.
pub(crate) fn fast(root: &Path, tally: &mut Tally) {
    let setup = setup::run();
    ci::format(root, tally);
    ci::clippy(root, tally);
    ci::tidy(root, tally);
    let inside = ["--workspace", "--lib", "--bins"];
    if build(root, &inside, tally) {
        run_tests(&mut test_command(root, &setup, &inside), tally);
        simulate::fast_tier(root, tally);
        vm::fast_tier(root, tally);
    }
}

/// Build the selected tests and all programs, in one profile, so that nothing is compiled twice.
fn build(root: &Path, selection: &[&str], tally: &mut Tally) -> bool {
    let failed = tally.count.failed;
    tally.check("tier 0 build", || {
        step::succeed(cargo(root).args(["test", "--no-run"]).args(selection))?;
        step::succeed(&mut programs(root))
    });
    tally.count.failed == failed
}

/// Build all programs as the tests have them.
pub(crate) fn programs(root: &Path) -> Command {
    let mut command = cargo(root);
    // Tests have dependencies of their own, for which others have more features. Cargo counts these only if it builds a test or
    // an example as well; without them everything would be compiled once more.
    command.args(["build", "--workspace", "--bins", "--example", "copy_blocks"]);
    command
}

fn test_command(root: &Path, setup: &setup::Setup, selection: &[&str]) -> Command {
    let mut command = cargo(root);
    command.args(["test", "--no-fail-fast"]).args(selection).env(setup::MISSING_VARIABLE, setup.missing.join(" "));
    // They wait for programs and clocks most of the time.
    command.env("RUST_TEST_THREADS", (TESTS_PER_CPU * step::cpus()).to_string());
    command
}

fn run_tests(command: &mut Command, tally: &mut Tally) {
    let mut skips = Vec::new();
    tally.tests("tier 0 cargo test", || {
        let output = step::output(command);
        skips = skip_lines(&output.text);
        step::note_test_programs(&output.text);
        output
    });
    for (name, reason) in &skips {
        tally.skip(&format!("tier 0 {name}"), reason);
        // A test that skips a check returns, so cargo counted it as passed.
        tally.count.passed = tally.count.passed.saturating_sub(1);
    }
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
    fn skip_of_a_test_keeps_its_name_and_reason() {
        let skips = skip_lines("test a ... ok\ntest b ... fipsee-skip: hugetlbfs: no huge pages: none configured\nok\n");
        assert_eq!(skips, [("hugetlbfs".to_owned(), "no huge pages: none configured".to_owned())]);
    }
}
