//! What the tests of shipped things share: the prefix `cargo xtask dist` filled, a daemon from it, a directory.
//!
//! `cargo xtask test` builds the prefix and names it in `FIPSEE_DIST`; without it each test skips itself with a reason.

pub mod c;
pub mod guests;
pub mod guide;
pub mod throwaway;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use fipsee_testkit::daemon::Launch;

pub use fipsee_testkit::process::exit_within;
pub use fipsee_testkit::{Daemon, Guard, Scratch, eventually, skip, wait_for};

/// A bound against hanging; nothing is expected to take long.
pub const DEADLINE: Duration = Duration::from_secs(240);

/// What ships at `path` below the prefix, for the test `what`; `None`, with a message, when it was not built.
#[must_use]
pub fn shipped(what: &str, path: &str) -> Option<PathBuf> {
    let Some(prefix) = std::env::var_os("FIPSEE_DIST") else {
        skip(what, "needs what ships; run `cargo xtask test`, or `cargo xtask dist` and set FIPSEE_DIST=target/dist");
        return None;
    };
    // Tests run in their package's folder; the variable counts from the top of the repository.
    let found = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(prefix);
    // Only up to the prefix: a virtual environment is known by the link that leads to its interpreter.
    let found = found.canonicalize().unwrap_or(found).join(path);
    if !found.exists() {
        skip(what, &format!("{path} was not built; `cargo xtask dist` says why"));
        return None;
    }
    Some(found)
}

/// Is `program` here? With a message when not: `cargo xtask setup` installs it.
#[must_use]
pub fn has_program(what: &str, program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let is_there = folders.any(|folder| folder.join(program).is_file());
    if !is_there {
        skip(what, &format!("{program} is not installed; run `cargo xtask setup` as root"));
    }
    is_there
}

/// The `fipseed` that ships, serving some disks in a directory of its own, `{dir}` in their descriptions. `None`, with a message
/// about the test `what`, when nothing was built.
#[must_use]
pub fn serve(what: &str, disks: &[&str]) -> Option<Daemon> {
    launch(what, Scratch::new(), disks.iter().map(|disk| format!("--disk={disk}")).collect())
}

/// Likewise, with this configuration file.
#[must_use]
pub fn serve_file(what: &str, file: &str) -> Option<Daemon> {
    let dir = Scratch::new();
    dir.configure(file);
    launch(what, dir, vec!["--config".to_owned(), "{dir}/f.toml".to_owned()])
}

fn launch(what: &str, dir: Scratch, arguments: Vec<String>) -> Option<Daemon> {
    let program = vec![shipped(what, "bin/fipseed")?.to_string_lossy().into_owned(), "--log-level=error".to_owned()];
    Some(Daemon::launch(dir, Launch { program, arguments, own_group: false, ends_with_us: false }).expect("fipseed starts"))
}

/// Both streams of a program that ran to its end, for messages of failed tests.
#[must_use]
pub fn text_of(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr))
}

/// Run a command to its end; its output in full when it fails.
///
/// # Panics
/// When it cannot be started or fails.
pub fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    assert!(output.status.success(), "{command:?}\n{}", text_of(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
