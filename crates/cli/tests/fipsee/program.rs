//! The program under test, and a daemon that it serves or talks to.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, ExitStatus, Output, Stdio};

use fipsee_testkit::daemon::Launch;
use fipsee_testkit::{Daemon, Guard, Scratch, wait_for};
use rustix::process::Pid;
use serde_json::Value;

/// The program under test.
pub(crate) const FIPSEE: &str = env!("CARGO_BIN_EXE_fipsee");

/// `fipsee serve` with these disks; `{dir}` in their descriptions is the daemon's directory.
pub(crate) fn serve(disks: &[&str]) -> Daemon {
    let program = [FIPSEE, "serve", "--log-level=error"].map(str::to_owned).to_vec();
    let arguments = disks.iter().map(|disk| format!("--disk={disk}")).collect();
    Daemon::launch(Scratch::new(), Launch { program, arguments, own_group: false, ends_with_us: false })
        .expect("the daemon listens")
}

/// The program under test, connected to a daemon.
pub(crate) trait Fipsee {
    fn command(&self, arguments: &[&str]) -> Command;

    /// Run it to its end.
    fn fipsee(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("fipsee runs")
    }

    /// Run it with this standard input.
    fn fipsee_with_input(&self, arguments: &[&str], input: &[u8]) -> Output {
        let mut command = self.command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("fipsee runs");
        let mut stdin = child.stdin.take().expect("its standard input");
        // It may stop reading with an error of its own.
        let _ = stdin.write_all(input);
        drop(stdin);
        child.wait_with_output().expect("fipsee ends")
    }
}

impl Fipsee for Daemon {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(FIPSEE);
        command.arg("--connect").arg(self.socket()).args(arguments).stdin(Stdio::null());
        command
    }
}

/// The exit status of a child.
pub(crate) fn ending(child: &mut Guard) -> ExitStatus {
    wait_for("the process ends", || child.0.try_wait().expect("a child to ask"))
}

pub(crate) fn pid(child: &Guard) -> Pid {
    i32::try_from(child.0.id()).ok().and_then(Pid::from_raw).expect("a process")
}

/// The rest of what a child says on standard error.
pub(crate) fn errors_of(child: &mut Guard) -> String {
    let mut text = String::new();
    child.0.stderr.take().expect("its standard error").read_to_string(&mut text).expect("text");
    text
}

/// Bytes of which no two sectors are alike.
pub(crate) fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut step = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut bytes: Vec<u8> = std::iter::repeat_with(&mut step).take(length.div_ceil(8)).flatten().collect();
    bytes.truncate(length);
    bytes
}

#[track_caller]
pub(crate) fn assert_success(output: &Output) {
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
}

/// The program must have failed with exit code 1 and one line that contains all of `parts`.
#[track_caller]
pub(crate) fn assert_error(output: &Output, parts: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let errors: Vec<_> = text.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "one line of error: {text}");
    assert!(text.lines().all(|line| line.starts_with("error: ") || line.starts_with("note: ")), "nothing else: {text}");
    for part in parts {
        assert!(errors[0].contains(part), "'{part}' in: {text}");
    }
}

/// Standard output as one JSON value.
#[track_caller]
pub(crate) fn json(output: &Output) -> Value {
    assert_success(output);
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Every one of `keys` is there and not null.
#[track_caller]
pub(crate) fn assert_keys(value: &Value, keys: &[&str]) {
    for key in keys {
        assert!(value.get(key).is_some_and(|found| !found.is_null()), "key {key} in {value}");
    }
}

pub(crate) fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
