//! Tier 1: what a change must pass besides its tests.

use std::path::Path;
use std::process::Command;

use crate::files::list_ending;
use crate::setup::is_installed;
use crate::step::{self, Tally};
use crate::{cargo, docs, fuzz, loom, models, target, tidy};

/// Folder of the workspace that holds the peers of the benchmark; their crates are not needed for its lints and tests.
const PEERS: &str = "bench/peers/Cargo.toml";
const DENY_WARNINGS: [&str; 3] = ["--", "--deny", "warnings"];

/// Run every check of tier 1.
pub(crate) fn run(root: &Path, tally: &mut Tally) {
    read(root, tally);
    miri(root, tally);
    execute(root, tally);
}

/// The checks that read the sources.
pub(crate) fn read(root: &Path, tally: &mut Tally) {
    format(root, tally);
    clippy(root, tally);
    // As clients build it: without the serving side.
    let client = ["clippy", "--package", "fipsee-call", "--lib", "--no-default-features"];
    tally.check("tier 1 clippy of the client of calls", || step::succeed(beside_tests(root).args(client).args(DENY_WARNINGS)));
    tally.check("tier 1 format of bench/peers", || step::succeed(peers(root, "fmt").arg("--check")));
    tally.check("tier 1 clippy of bench/peers", || {
        let mut clippy = peers(root, "clippy");
        clippy.env("CARGO_TARGET_DIR", target(root).join("check"));
        step::succeed(clippy.args(["--no-default-features", "--all-targets"]).args(DENY_WARNINGS))
    });
    tidy(root, tally);
    headers(root, tally);
    docs::run(root, tally);
}

/// Those that execute what they have built: models, variants, random inputs.
pub(crate) fn execute(root: &Path, tally: &mut Tally) {
    loom::run(root, tally);
    models::run(root, tally);
    fuzz::smoke(root, tally);
}

/// Cargo in a folder of its own: tests run cargo, too, and would wait until this one has ended.
pub(crate) fn beside_tests(root: &Path) -> Command {
    let mut command = cargo(root);
    command.env("CARGO_TARGET_DIR", target(root).join("check"));
    command
}

/// With the profile of our tests, and without the flags of the benchmark, so that dependencies are built once.
fn peers(root: &Path, what: &str) -> Command {
    let mut command = cargo(root);
    let optimised = ["ring", "topology"].map(|name| format!("package.fipsee-{name}.opt-level=1"));
    for setting in ["debug='line-tables-only'", "lto='off'"].map(str::to_owned).into_iter().chain(optimised) {
        command.arg("--config").arg(format!("profile.dev.{setting}"));
    }
    command.args([what, "--manifest-path", PEERS]);
    command
}

/// The harness of the benchmark, which is a workspace of its own.
pub(crate) fn test_peers(root: &Path, tally: &mut Tally) {
    let mut test = peers(root, "test");
    test.env("CARGO_TARGET_DIR", target(root)).arg("--no-default-features");
    tally.tests("tier 0 bench/peers", || step::output(&mut test));
}

pub(crate) fn format(root: &Path, tally: &mut Tally) {
    tally.check("tier 1 format", || step::succeed(cargo(root).args(["fmt", "--all", "--check"])));
}

pub(crate) fn clippy(root: &Path, tally: &mut Tally) {
    tally.check("tier 1 clippy", || {
        step::succeed(beside_tests(root).args(["clippy", "--workspace", "--all-targets"]).args(DENY_WARNINGS))
    });
}

/// The project's own rules.
pub(crate) fn tidy(root: &Path, tally: &mut Tally) {
    let mut warnings = Vec::new();
    tally.check("tier 1 tidy", || {
        let report = tidy::run(root)?;
        warnings = report.warnings;
        match report.errors.len() {
            0 => Ok(format!("{} files", report.file_count)),
            count => Err(format!("{}\n{count} rules broken", report.errors.join("\n"))),
        }
    });
    for warning in &warnings {
        tally.say(&format!("warning: {warning}\n"));
    }
}

/// How one header is compiled alone.
const HEADER_COMPILERS: [(&str, &str, &str); 4] =
    [("gcc", "c", "c11"), ("g++", "c++", "c++17"), ("clang", "c", "c11"), ("clang", "c++", "c++17")];

fn headers(root: &Path, tally: &mut Tally) {
    let headers = list_ending(&root.join("include"), "h");
    if headers.is_empty() {
        return tally.skip("tier 1 C headers", "include/ holds no headers");
    }
    for (compiler, language, standard) in HEADER_COMPILERS {
        let name = format!("tier 1 C headers, {compiler} as {standard}");
        if !is_installed(compiler) {
            tally.skip(&name, &format!("{compiler} is not installed; run `cargo xtask setup` as root"));
            continue;
        }
        tally.check(&name, || {
            for header in &headers {
                let mut command = Command::new(compiler);
                command.args(["-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-x", language]);
                // Included alone into nothing: given as the main file, its unused inline functions would be warned of.
                step::succeed(command.arg(format!("-std={standard}")).arg("-include").arg(header).arg("/dev/null"))?;
            }
            Ok(format!("{} headers", headers.len()))
        });
    }
}

/// Miri runs what needs no system call: the algorithm and the copies over plain memory.
pub(crate) fn miri(root: &Path, tally: &mut Tally) {
    const NAME: &str = "tier 1 miri";
    let rustup = |arguments: &[&str]| {
        let mut command = Command::new("rustup");
        // The toolchain that runs us must not choose the one we ask for.
        command.current_dir(root).env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO").env_remove("RUSTC");
        step::output(command.args(arguments))
    };
    if !is_installed("rustup") || !rustup(&["run", "nightly", "rustc", "--version"]).succeeded {
        return tally.skip(NAME, "needs the nightly toolchain: rustup toolchain install nightly");
    }
    let is_there = || rustup(&["run", "nightly", "cargo", "miri", "--version"]).succeeded;
    let add = || rustup(&["component", "add", "miri", "rust-src", "--toolchain", "nightly"]).succeeded;
    let is_usable = is_there() || (add() && is_there());
    if !is_usable {
        return tally.skip(NAME, "its component cannot be added: rustup component add miri rust-src --toolchain nightly");
    }
    const MIRI_TEST: [&str; 6] = ["run", "nightly", "cargo", "miri", "test", "-p"];
    tally.tests(NAME, || {
        let mut output = rustup(&[&MIRI_TEST[..], &["fipsee-ring", "--lib", "--test", "ring_over_heap"]].concat());
        // The runtime's other unsafe code is system calls, which Miri does not carry out.
        if output.succeeded {
            let of_serve = rustup(&[&MIRI_TEST[..], &["fipsee-serve", "--lib", "poll_set::"]].concat());
            output.succeeded = of_serve.succeeded && step::count_tests(&of_serve.text).passed > 0;
            output.text += &of_serve.text;
        }
        output
    });
}
