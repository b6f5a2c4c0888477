//! Shared by the end-to-end tests: a daemon as a subprocess, correct clients, and readers of `/proc`.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use fipsee_block::client::{AttachOptions, Blocking, Buffer, Completion, Disk, Error, Queue};
use fipsee_block::wire::Status;
use fipsee_ring::control::RefusalCode;
use rustix::process::{Pid, Signal};
use serde_json::Value;

pub(crate) mod raw;
mod restart;
pub(crate) mod vm;

/// The longest wait for anything. A bound against hanging, not a claim about speed.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);

/// Report to `cargo xtask test`, past libtest's capture, that a check could not run here.
pub(crate) fn skip(what: &str, reason: &str) {
    skip_capture(&format!("fipsee-skip: {what}: {reason}"));
}

fn skip_capture(line: &str) {
    writeln!(std::io::stderr(), "{line}").expect("standard error is open");
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Poll until `condition` holds.
#[track_caller]
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {TIMEOUT:?}: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A directory that is removed with its content.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("fipseed-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a directory for the test's files");
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Longest run of a test binary. A lost wake-up would hang it; each takes seconds.
const BINARY_TIMEOUT: Duration = Duration::from_secs(300);

/// The daemons that run now.
static RUNNING: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// Turn a hang into a failure that names it, and leave no daemon behind.
fn bound_hangs() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::thread::spawn(|| {
            std::thread::sleep(BINARY_TIMEOUT);
            let pids = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
            for pid in pids.iter() {
                let _ = rustix::process::kill_process(*pid, Signal::KILL);
            }
            skip_capture(&format!("a test hangs: not finished within {BINARY_TIMEOUT:?}"));
            std::process::exit(101);
        });
    });
}

/// A running `fipseed`; killed when dropped.
pub(crate) struct Daemon {
    pub(crate) dir: Scratch,
    /// A command line before the daemon's own, for example to lower a limit.
    prefix: Vec<String>,
    arguments: Vec<String>,
    child: Child,
    exited: Option<ExitStatus>,
}

impl Daemon {
    /// Start with these arguments and wait until it takes connections. `{dir}` stands for the test's directory.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_in(Scratch::new(), &[], arguments)
    }

    pub(crate) fn start_in(dir: Scratch, prefix: &[&str], arguments: &[&str]) -> Self {
        let fill = |pieces: &[&str]| -> Vec<String> {
            pieces.iter().map(|piece| piece.replace("{dir}", dir.0.to_str().expect("an ordinary path"))).collect()
        };
        let (prefix, arguments) = (fill(prefix), fill(arguments));
        let child = launch(&dir, &prefix, &arguments);
        let mut daemon = Self { dir, prefix, arguments, child, exited: None };
        daemon.await_ready();
        daemon
    }

    fn await_ready(&mut self) {
        let admin = fipsee_daemon::admin::admin_path(&self.socket());
        let deadline = Instant::now() + TIMEOUT;
        // The admin socket comes last, so the client socket is there, too.
        while UnixStream::connect(&admin).is_err() {
            let exited = self.child.try_wait().expect("a child can be asked");
            assert!(exited.is_none(), "the daemon did not start: {}", self.log());
            assert!(Instant::now() < deadline, "no daemon within {TIMEOUT:?}: {}", self.log());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path("s")
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path("log")).unwrap_or_default()
    }

    /// The process of the daemon itself, without the wrapper.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn kill_9(&mut self) {
        self.child.kill().expect("a child can be killed");
        self.exited = Some(self.child.wait().expect("a child can be awaited"));
        forget(&self.child);
    }

    /// Ask it to stop.
    pub(crate) fn signal_term(&self) {
        let pid = Pid::from_child(&self.child);
        rustix::process::kill_process(pid, Signal::TERM).expect("a child can be signalled");
    }

    /// Wait until it is gone.
    pub(crate) fn await_exit(&mut self) -> ExitStatus {
        let deadline = Instant::now() + 2 * TIMEOUT;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child can be asked") {
                self.exited = Some(status);
                forget(&self.child);
                return status;
            }
            assert!(Instant::now() < deadline, "the daemon does not stop: {}", self.log());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Start it again with the same arguments in the same directory.
    pub(crate) fn restart(&mut self) {
        assert!(self.exited.is_some(), "it still runs");
        self.exited = None;
        self.child = launch(&self.dir, &self.prefix, &self.arguments);
        self.await_ready();
    }

    /// Have a new daemon with the same arguments take over from this one; `self` is the new daemon from then on.
    #[track_caller]
    pub(crate) fn take_over(&mut self) {
        self.try_take_over(&[]).unwrap_or_else(|text| panic!("the takeover was refused: {text}"));
    }

    /// As [`take_over`](Self::take_over), with `more` arguments; the new daemon's message if it fails.
    pub(crate) fn try_take_over(&mut self, more: &[&str]) -> Result<(), String> {
        let mut new = self.launch_takeover(more);
        let deadline = Instant::now() + TIMEOUT;
        while self.child.try_wait().expect("a child can be asked").is_none() {
            if new.try_wait().expect("a child can be asked").is_some() {
                forget(&new);
                let log = self.log();
                let said = log.lines().rev().find(|line| line.starts_with("error: "));
                return Err(said.unwrap_or_default().to_owned());
            }
            assert!(Instant::now() < deadline, "no takeover within {TIMEOUT:?}: {}", self.log());
            std::thread::sleep(Duration::from_millis(1));
        }
        self.replace(new);
        Ok(())
    }

    /// This process serves now; the previous one has been awaited.
    pub(crate) fn replace(&mut self, new: Child) {
        forget(&self.child);
        self.child = new;
        self.exited = None;
    }

    /// Start a new daemon that is to take over, with `more` arguments.
    pub(crate) fn launch_takeover(&self, more: &[&str]) -> Child {
        let more = ["--takeover"].iter().chain(more).map(|argument| argument.replace("{dir}", &self.dir.0.to_string_lossy()));
        let arguments: Vec<String> = self.arguments.iter().cloned().chain(more).collect();
        launch(&self.dir, &self.prefix, &arguments)
    }

    /// As [`restart`](Self::restart), with one argument replaced.
    pub(crate) fn restart_with(&mut self, old: &str, new: &str) {
        let dir = self.dir.0.to_str().expect("an ordinary path").to_owned();
        for argument in &mut self.arguments {
            *argument = argument.replace(&old.replace("{dir}", &dir), &new.replace("{dir}", &dir));
        }
        self.restart();
    }

    pub(crate) fn options(name: &str) -> AttachOptions {
        AttachOptions::new(name)
    }

    pub(crate) fn attach(&self, options: &AttachOptions) -> Result<(Disk, Vec<Queue>), Error> {
        Disk::attach(&self.socket(), options)
    }

    /// Attach with one queue.
    pub(crate) fn client(&self, options: &AttachOptions) -> (Disk, Queue) {
        let (disk, mut queues) = self.attach(options).expect("attached");
        (disk, queues.pop().expect("one queue"))
    }

    pub(crate) fn blocking(&self, name: &str) -> Blocking {
        Blocking::attach(&self.socket(), &Self::options(name)).expect("attached")
    }

    /// One request to the admin socket.
    pub(crate) fn admin(&self, request: &Value) -> Value {
        let mut stream = UnixStream::connect(fipsee_daemon::admin::admin_path(&self.socket())).expect("an admin socket");
        stream.write_all(format!("{request}\n").as_bytes()).expect("it reads");
        let mut line = String::new();
        let mut reader = BufReader::new(&stream);
        reader.read_line(&mut line).expect("it answers");
        // Until it has closed its end, this connection is among the daemon's descriptors.
        stream.shutdown(Shutdown::Write).expect("open");
        assert_eq!(reader.read_line(&mut String::new()).expect("end of file"), 0, "one answer");
        serde_json::from_str(&line).expect("JSON")
    }

    pub(crate) fn attached_count(&self, disk: &str) -> u64 {
        let info = self.admin(&serde_json::json!({ "request": "info", "disk": disk }));
        info["attached"].as_u64().unwrap_or_else(|| panic!("no count in {info}"))
    }

    pub(crate) fn fd_count(&self) -> usize {
        fd_count(self.pid())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.exited.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
            forget(&self.child);
        }
        if std::thread::panicking() {
            eprintln!("--- log of the daemon ---\n{}", self.log());
        }
    }
}

/// The daemon's program; `tests/hostile`, which uses this file as well, has one of its own.
const PROGRAM: Option<&str> = match option_env!("CARGO_BIN_EXE_fipseed") {
    Some(program) => Some(program),
    None => option_env!("CARGO_BIN_EXE_hostile-daemon"),
};

/// The command line of a daemon whose standard error is `log` in `dir`.
fn launch(dir: &Scratch, prefix: &[String], arguments: &[String]) -> Child {
    bound_hangs();
    let program = PROGRAM.expect("cargo names the programs of a test's package").to_owned();
    let mut words = prefix.iter().cloned().chain([program]);
    let log = File::options().create(true).append(true).open(dir.path("log")).expect("a log file");
    let mut command = Command::new(words.next().expect("a program"));
    command.args(words).arg("--listen").arg(dir.path("s")).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).env_remove("FIPSEE_SOCKET");
    let child = command.spawn().expect("the daemon can be started");
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner).push(Pid::from_child(&child));
    child
}

/// It was awaited, so its number may be given to another process.
fn forget(child: &Child) {
    let pid = Pid::from_child(child);
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner).retain(|other| *other != pid);
}

/// Start a daemon that must refuse to run, and return its error output.
#[track_caller]
pub(crate) fn refused(arguments: &[&str]) -> String {
    refused_in(&Scratch::new(), &[], arguments)
}

#[track_caller]
pub(crate) fn refused_in(dir: &Scratch, prefix: &[&str], arguments: &[&str]) -> String {
    let fill = |piece: &&str| piece.replace("{dir}", dir.0.to_str().expect("an ordinary path"));
    let prefix: Vec<String> = prefix.iter().map(fill).collect();
    let arguments: Vec<String> = arguments.iter().map(fill).collect();
    let _ = std::fs::remove_file(dir.path("log"));
    let mut child = launch(dir, &prefix, &arguments);
    let deadline = Instant::now() + TIMEOUT;
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child can be asked") {
            break status;
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            panic!("it runs with {arguments:?}");
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    forget(&child);
    let text = std::fs::read_to_string(dir.path("log")).unwrap_or_default();
    assert!(!status.success(), "it stopped without an error with {arguments:?}: {text}");
    assert!(text.contains("error: "), "no error in: {text}");
    text
}

/// `text` contains each of `pieces`.
#[track_caller]
pub(crate) fn assert_says(text: &str, pieces: &[&str]) {
    for piece in pieces {
        assert!(text.contains(piece), "'{piece}' is not in: {text}");
    }
}

/// The text of a refusal.
#[track_caller]
pub(crate) fn refusal_of<T>(result: Result<T, Error>, expected: RefusalCode) -> String {
    match result {
        Err(Error::Refused { code, text }) => {
            assert_eq!(code, expected, "{text}");
            text
        }
        Err(other) => panic!("not refused, but: {other}"),
        Ok(_) => panic!("not refused"),
    }
}

/// A correct client on a disk of its own, beside faulty ones.
pub(crate) struct CorrectClient {
    blocking: Blocking,
    offset_bytes: u64,
    round: u8,
}

/// Bytes that a correct client writes.
const CORRECT_CLIENT_BYTES: u16 = 16 << 10;

impl CorrectClient {
    pub(crate) fn new(daemon: &Daemon, disk: &str) -> Self {
        Self::try_new(daemon, disk).expect("attached")
    }

    pub(crate) fn try_new(daemon: &Daemon, disk: &str) -> Result<Self, Error> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let blocking = Blocking::attach(&daemon.socket(), &Daemon::options(disk))?;
        let places = blocking.info().size_bytes() / u64::from(CORRECT_CLIENT_BYTES);
        let offset_bytes = COUNT.fetch_add(1, Ordering::Relaxed) % places * u64::from(CORRECT_CLIENT_BYTES);
        let mut correct_client = Self { blocking, offset_bytes, round: 0 };
        correct_client.check();
        Ok(correct_client)
    }

    /// The client still works, and what it wrote before is intact.
    #[track_caller]
    pub(crate) fn check(&mut self) {
        let mut block = vec![0; usize::from(CORRECT_CLIENT_BYTES)];
        if self.round > 0 {
            self.blocking.read_at(&mut block, self.offset_bytes).expect("the correct client reads");
            assert!(block.iter().all(|byte| *byte == self.round), "the correct client lost data");
        }
        // Never 0, which is the content of an unwritten disk.
        self.round = self.round % u8::MAX + 1;
        block.fill(self.round);
        self.blocking.write_at(&block, self.offset_bytes).expect("the correct client writes");
        self.blocking.flush().expect("the correct client flushes");
    }
}

/// Wait for the completion of the only request outstanding.
#[track_caller]
pub(crate) fn finish_one(queue: &mut Queue) -> Status {
    let all = finish_all(queue).expect("connected");
    assert_eq!(all.len(), 1, "one request was outstanding");
    all[0].status
}

/// Wait until nothing is outstanding.
pub(crate) fn finish_all(queue: &mut Queue) -> Result<Vec<Completion>, Error> {
    let mut completions = Vec::new();
    queue.submit();
    while queue.outstanding() > 0 {
        queue.wait(&mut |completion| completions.push(completion))?;
    }
    Ok(completions)
}

/// Fill with a pattern of the block number and the version.
pub(crate) fn stamp(length_bytes: usize, place: u64, version: u64) -> Vec<u8> {
    let mut bytes = vec![0; length_bytes];
    for (index, chunk) in bytes.chunks_exact_mut(16).enumerate() {
        chunk[..8].copy_from_slice(&(place * 1_000_003 + index as u64).to_le_bytes());
        chunk[8..].copy_from_slice(&version.to_le_bytes());
    }
    bytes
}

pub(crate) fn bytes_of(buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(buffer.length_bytes()).expect("small")];
    buffer.copy_to(0, &mut bytes);
    bytes
}

/// Descriptors of an idle process: its last request may leave some open for a moment after the
/// answer (its copies of a client's ends, an admin connection), so the count must be stable first.
pub(crate) fn fd_count(pid: u32) -> usize {
    const EQUAL_LOOKS: u32 = 30;
    let count_now = || std::fs::read_dir(format!("/proc/{pid}/fd")).expect("a live process").count();
    let (mut count, mut looks) = (count_now(), 0);
    eventually("the number of descriptors is stable", || {
        let now = count_now();
        looks = if now == count { looks + 1 } else { 0 };
        count = now;
        looks >= EQUAL_LOOKS
    });
    count
}

pub(crate) fn mapping_count(pid: u32) -> usize {
    std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("a live process").lines().count()
}

pub(crate) fn resident_bytes(pid: u32) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).expect("a live process");
    let field = |index: usize| statm.split(' ').nth(index).and_then(|word| word.parse::<u64>().ok()).expect("a number");
    // Without the shared pages, which are those of channels.
    (field(1) - field(2)) * rustix::param::page_size() as u64
}

/// User and system time of a process, in clock ticks of 10 ms.
pub(crate) fn cpu_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a live process");
    let after_name = stat.rsplit_once(')').expect("a name").1;
    after_name.split_whitespace().skip(11).take(2).map(|word| word.parse::<u64>().expect("a number")).sum()
}

/// This test binary again, running its test `name` as a process of its own, against the daemon at `socket`.
pub(crate) fn child_process(name: &str, socket: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a running program"));
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]).env("FIPSEED_TEST_SOCKET", socket);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// The daemon's socket, in such a process.
pub(crate) fn socket_given() -> Option<PathBuf> {
    std::env::var_os("FIPSEED_TEST_SOCKET").map(PathBuf::from)
}

/// Wait until a child process prints a line that contains `word`.
pub(crate) fn await_word(child: &mut Child, word: &str) {
    let mut output = BufReader::new(child.stdout.as_mut().expect("its output is piped"));
    let mut line = String::new();
    while !line.contains(word) {
        line.clear();
        assert!(output.read_line(&mut line).expect("a pipe") > 0, "the child process ended without printing '{word}'");
    }
}
