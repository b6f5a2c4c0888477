//! A daemon in a second process, and the program under test.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use fipsee_block::client::{AttachOptions, Blocking, Disk};
use serde_json::Value;

/// A bound against hanging; nothing is expected to take long.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

/// The program under test.
pub(crate) const FIPSEE: &str = env!("CARGO_BIN_EXE_fipsee");

/// A directory that is removed with the test.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("fipsee-test-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).expect("a fresh directory");
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A file with this content.
    pub(crate) fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).expect("a file is written");
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A child that does not outlive the test.
pub(crate) struct Guard(pub(crate) Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `fipsee serve` with some disks.
pub(crate) struct Daemon {
    child: Guard,
    pub(crate) socket: PathBuf,
    arguments: Vec<String>,
    pub(crate) directory: Directory,
}

impl Daemon {
    /// Serve `disks`; `DIR` in their descriptions is the test's directory.
    pub(crate) fn start(name: &str, disks: &[&str]) -> Self {
        let directory = Directory::new(name);
        let socket = directory.path("s");
        let place = directory.path("");
        let mut arguments = vec!["serve".to_owned(), "--log-level=error".to_owned(), format!("--listen={}", socket.display())];
        arguments.extend(disks.iter().map(|disk| format!("--disk={}", disk.replace("DIR/", &place.to_string_lossy()))));
        let child = Guard(spawn_daemon(&arguments));
        let mut daemon = Self { child, socket, arguments, directory };
        daemon.wait_until_it_listens();
        daemon
    }

    fn wait_until_it_listens(&mut self) {
        let deadline = Instant::now() + DEADLINE;
        // Any name will do: a refusal is an answer.
        let listens = |socket: &Path| {
            let answer = Disk::attach(socket, &AttachOptions::new("no-such-disk"));
            matches!(answer, Err(fipsee_block::client::Error::Refused { .. }))
        };
        while !listens(&self.socket) {
            let ended = self.child.0.try_wait().expect("a child to ask");
            assert!(ended.is_none(), "the daemon ended: {ended:?}");
            assert!(Instant::now() < deadline, "the daemon does not listen");
            std::thread::yield_now();
        }
    }

    /// Kill it without warning and start it again.
    pub(crate) fn kill_and_restart(&mut self) {
        self.kill();
        self.child = Guard(spawn_daemon(&self.arguments));
        self.wait_until_it_listens();
    }

    pub(crate) fn kill(&mut self) {
        self.child.0.kill().expect("the daemon is killed");
        self.child.0.wait().expect("the daemon is reaped");
    }

    /// The program under test, connected to this daemon.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(FIPSEE);
        command.arg("--connect").arg(&self.socket).args(arguments).stdin(Stdio::null());
        command
    }

    /// Run it to its end.
    pub(crate) fn fipsee(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("fipsee runs")
    }

    /// Run it with this standard input.
    pub(crate) fn fipsee_with_input(&self, arguments: &[&str], input: &[u8]) -> Output {
        let mut command = self.command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("fipsee runs");
        let mut stdin = child.stdin.take().expect("its standard input");
        // It may stop reading with an error of its own.
        let _ = stdin.write_all(input);
        drop(stdin);
        child.wait_with_output().expect("fipsee ends")
    }

    pub(crate) fn attach(&self, disk: &str) -> Blocking {
        self.attach_as(&AttachOptions::new(disk))
    }

    pub(crate) fn attach_as(&self, options: &AttachOptions) -> Blocking {
        Blocking::attach(&self.socket, options).expect("a client attaches")
    }
}

fn spawn_daemon(arguments: &[String]) -> Child {
    Command::new(FIPSEE).args(arguments).stdin(Stdio::null()).spawn().expect("the daemon starts")
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
