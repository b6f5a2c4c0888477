//! What the tests of shipped things share: the prefix `cargo xtask dist` filled, a daemon from it, a directory.
//!
//! `cargo xtask test` builds the prefix and names it in `FIPSEE_DIST`; without it each test skips itself with a reason.

pub mod c;
pub mod guide;
pub mod throwaway;

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use fipsee_ring::seqpacket::Seqpacket;

/// A bound against hanging; nothing is expected to take long.
pub const DEADLINE: Duration = Duration::from_secs(240);

/// Report to `cargo xtask test`, past libtest's capture, that a check could not run here.
pub fn skip(what: &str, reason: &str) {
    // Nothing else can be done about a closed standard error.
    let _ = writeln!(std::io::stderr(), "fipsee-skip: {what}: {reason}");
}

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

/// A directory that goes away with the test.
#[derive(Debug)]
pub struct Directory(PathBuf);

impl Directory {
    /// A fresh directory for the test `name`.
    #[must_use]
    #[expect(clippy::missing_panics_doc, reason = "a test that cannot begin fails")]
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("fipsee-acceptance-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).expect("a fresh directory");
        Self(path)
    }

    /// A path in it.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A child that does not outlive the test.
#[derive(Debug)]
pub struct Guard(pub Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The `fipseed` that ships, serving some disks in a directory of its own.
#[derive(Debug)]
pub struct Daemon {
    child: Guard,
    program: PathBuf,
    /// Where it listens.
    pub socket: PathBuf,
    arguments: Vec<String>,
    /// Its directory.
    pub directory: Directory,
}

impl Daemon {
    /// Serve `disks`; `DIR/` in their descriptions is the test's directory. `None`, with a message, when nothing was built.
    #[must_use]
    #[expect(clippy::missing_panics_doc, reason = "a test that cannot begin fails")]
    pub fn start(name: &str, disks: &[&str]) -> Option<Self> {
        let program = shipped(name, "bin/fipseed")?;
        let directory = Directory::new(name);
        let socket = directory.path("s");
        let place = directory.path("");
        let mut arguments = vec!["--log-level=error".to_owned(), format!("--listen={}", socket.display())];
        arguments.extend(disks.iter().map(|disk| format!("--disk={}", disk.replace("DIR/", &place.to_string_lossy()))));
        let child = Guard(Command::new(&program).args(&arguments).stdin(Stdio::null()).spawn().expect("fipseed starts"));
        let mut daemon = Self { child, program, socket, arguments, directory };
        daemon.wait_until_it_listens();
        Some(daemon)
    }

    fn wait_until_it_listens(&mut self) {
        let deadline = Instant::now() + DEADLINE;
        // The admin socket is made last: once it is there, all others are.
        let admin = self.socket.with_extension("admin");
        while UnixStream::connect(&admin).is_err() || Seqpacket::connect(&self.socket).is_err() {
            let ended = self.child.0.try_wait().expect("a child to ask");
            assert!(ended.is_none(), "the daemon ended: {ended:?}");
            assert!(Instant::now() < deadline, "the daemon does not listen");
            std::thread::yield_now();
        }
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.0.id()
    }

    /// Kill it.
    #[expect(clippy::missing_panics_doc, reason = "a test that cannot go on fails")]
    pub fn kill(&mut self) {
        self.child.0.kill().expect("the daemon is killed");
        self.child.0.wait().expect("the daemon is reaped");
    }

    /// Start it again after [`kill`](Self::kill).
    #[expect(clippy::missing_panics_doc, reason = "a test that cannot go on fails")]
    pub fn restart(&mut self) {
        let mut command = Command::new(&self.program);
        self.child = Guard(command.args(&self.arguments).stdin(Stdio::null()).spawn().expect("fipseed starts"));
        self.wait_until_it_listens();
    }
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
