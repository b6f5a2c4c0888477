//! Tier 1: what a change must pass besides its tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::setup::is_installed;
use crate::step::{self, Tally};
use crate::{cargo, docs, fuzz, loom, models, tidy};

/// Run every check of tier 1.
pub(crate) fn run(root: &Path, tally: &mut Tally) {
    format(root, tally);
    clippy(root, tally);
    // As clients build it: without the serving side.
    tally.check("tier 1 clippy of the client of calls", || {
        let alone = ["clippy", "--package", "fipsee-call", "--lib", "--no-default-features", "--", "--deny", "warnings"];
        step::succeed(cargo(root).args(alone))
    });
    peers(root, tally);
    tidy(root, tally);
    loom::run(root, tally);
    models::run(root, tally);
    headers(root, tally);
    docs::run(root, tally);
    fuzz::smoke(root, tally);
    miri(root, tally);
}

pub(crate) fn format(root: &Path, tally: &mut Tally) {
    tally.check("tier 1 format", || step::succeed(cargo(root).args(["fmt", "--all", "--check"])));
}

pub(crate) fn clippy(root: &Path, tally: &mut Tally) {
    tally.check("tier 1 clippy", || {
        step::succeed(cargo(root).args(["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"]))
    });
}

/// Format and lints of the workspace that holds the peers of the benchmark; their crates are not needed for that.
fn peers(root: &Path, tally: &mut Tally) {
    const MANIFEST: [&str; 2] = ["--manifest-path", "bench/peers/Cargo.toml"];
    tally.check("tier 1 format of bench/peers", || step::succeed(cargo(root).arg("fmt").args(MANIFEST).arg("--check")));
    tally.check("tier 1 clippy of bench/peers", || {
        let mut command = cargo(root);
        command.arg("clippy").args(MANIFEST).args(["--no-default-features", "--all-targets", "--", "--deny", "warnings"]);
        step::succeed(&mut command)
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
        println!("warning: {warning}");
    }
}

/// How one header is compiled alone.
const HEADER_COMPILERS: [(&str, &str, &str); 4] =
    [("gcc", "c", "c11"), ("g++", "c++", "c++17"), ("clang", "c", "c11"), ("clang", "c++", "c++17")];

fn headers(root: &Path, tally: &mut Tally) {
    let headers = headers_in(&root.join("include"));
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

fn headers_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut headers: Vec<_> =
        entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "h")).collect();
    headers.sort();
    headers
}

/// Miri runs what needs no system call: the algorithm and the copies over plain memory.
fn miri(root: &Path, tally: &mut Tally) {
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
    tally.measure(NAME, || {
        let mut output = rustup(&[&MIRI_TEST[..], &["fipsee-ring", "--lib", "--test", "ring_over_heap"]].concat());
        // The runtime's other unsafe code is system calls, which Miri does not carry out.
        if output.succeeded {
            let of_serve = rustup(&[&MIRI_TEST[..], &["fipsee-serve", "--lib", "poll_set::"]].concat());
            output.succeeded = of_serve.succeeded && step::count_tests(&of_serve.text).passed > 0;
            output.text += &of_serve.text;
        }
        let mut counted = step::count_tests(&output.text);
        if output.succeeded && counted.passed > 0 {
            return (counted, Ok(format!("{} tests", counted.passed)));
        }
        counted.failed = counted.failed.max(1);
        (counted, Err(output.text))
    });
}
