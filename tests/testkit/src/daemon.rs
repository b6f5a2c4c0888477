//! The launcher of daemons: each is a process of its own, with a folder, a log, and an end.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use fipsee_block::client::{AttachOptions, Blocking, Disk, Error, Queue};
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

use crate::machine::{Share, share};
use crate::{Scratch, TIMEOUT, process, report};

/// Longest life of a daemon, in seconds. A lost wake-up would hang its test; each takes seconds.
static LONGEST_LIFE: AtomicU64 = AtomicU64::new(300);

/// This test's daemon works for that long.
pub fn works_for(time: Duration) {
    LONGEST_LIFE.fetch_add(time.as_secs(), Ordering::Relaxed);
}

/// The daemons that run now, and since when.
static RUNNING: Mutex<Vec<(Pid, Instant)>> = Mutex::new(Vec::new());

/// Turn a hang into a failure that names it, and leave no daemon behind.
fn bound_hangs() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::thread::spawn(|| {
            loop {
                std::thread::sleep(Duration::from_secs(1)); // tidy: allow sleep, it looks for what hangs for minutes
                let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
                let longest = Duration::from_secs(LONGEST_LIFE.load(Ordering::Relaxed));
                if running.iter().all(|(_, since)| since.elapsed() < longest) {
                    continue;
                }
                for (pid, _) in running.iter() {
                    let _ = rustix::process::kill_process(*pid, Signal::KILL);
                }
                report(&format!("a test hangs: its daemon has run for {longest:?}"));
                std::process::exit(101);
            }
        });
    });
}

/// `fipseed`, which cargo puts beside the folder of test programs.
pub fn program() -> PathBuf {
    let own = std::env::current_exe().expect("a running program");
    let folder = own.parent().expect("it is in a folder");
    let folder = if folder.ends_with("deps") { folder.parent().expect("within target") } else { folder };
    folder.join("fipseed")
}

/// What is started.
#[derive(Clone, Debug)]
pub struct Launch {
    /// A program that contains a daemon, and its arguments before the daemon's own.
    pub program: Vec<String>,
    /// Arguments beside where to listen: at `s` in the daemon's folder.
    pub arguments: Vec<String>,
    /// In a process group of its own, which a SIGINT from the terminal does not reach.
    pub own_group: bool,
    /// Ends with the thread that starts it, even if this process is killed.
    pub ends_with_us: bool,
}

impl Launch {
    /// `fipseed`, by way of `prefix`, with these arguments.
    fn fipseed(prefix: &[&str], arguments: &[&str]) -> Self {
        let words = |pieces: &[&str]| pieces.iter().map(|piece| (*piece).to_owned()).collect::<Vec<_>>();
        let program = [words(prefix), vec![program().to_string_lossy().into_owned()]].concat();
        Self { program, arguments: words(arguments), own_group: false, ends_with_us: false }
    }

    /// The process, whose standard error is `log` in `dir`. `{dir}` in an argument stands for that.
    fn spawn(&self, dir: &Scratch) -> Result<Child, String> {
        let log = File::options().create(true).append(true).open(dir.path("log"));
        let log = log.map_err(|error| format!("the daemon's log: {error}"))?;
        let mut words = self.program.iter().map(|word| dir.fill(word));
        let mut command = Command::new(words.next().ok_or("no program")?);
        command.args(words).arg("--listen").arg(dir.path("s")).args(self.arguments.iter().map(|word| dir.fill(word)));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).env_remove("FIPSEE_SOCKET");
        if self.own_group {
            command.process_group(0);
        }
        if self.ends_with_us {
            process::die_with_parent(&mut command);
        }
        let child = command.spawn().map_err(|error| format!("cannot start {command:?}: {error}; build it first"))?;
        RUNNING.lock().unwrap_or_else(PoisonError::into_inner).push((Pid::from_child(&child), Instant::now()));
        Ok(child)
    }
}

/// It was awaited, so its number may be given to another process.
fn forget(child: &Child) {
    let pid = Pid::from_child(child);
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner).retain(|(other, _)| *other != pid);
}

/// A running daemon; killed when dropped.
#[derive(Debug)]
pub struct Daemon {
    pub dir: Scratch,
    launch: Launch,
    child: Child,
    exited: Option<ExitStatus>,
    _share: Share,
}

impl Daemon {
    /// Start `fipseed` with these arguments and wait until it takes connections. `{dir}` stands for the test's directory.
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_in(Scratch::new(), &[], arguments)
    }

    /// As [`start`](Self::start), by way of a command line before the daemon's own, for example to lower a limit. With one worker, whatever
    /// the machine, unless the arguments or a file say something else.
    pub fn start_in(dir: Scratch, prefix: &[&str], arguments: &[&str]) -> Self {
        bound_hangs();
        let is_given = arguments.iter().any(|argument| argument.starts_with("--workers") || *argument == "--config");
        let workers: &[&str] = if is_given { &[] } else { &["--workers", "1"] };
        let launch = Launch::fipseed(prefix, &[arguments, workers].concat());
        Self::launch(dir, launch).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Start it with this configuration, which is the file `f.toml`.
    pub fn with_file(text: &str) -> Self {
        let dir = Scratch::new();
        dir.configure(text);
        Self::start_in(dir, &[], &["--config", "{dir}/f.toml"])
    }

    /// Start a daemon and wait until it takes connections.
    pub fn launch(dir: Scratch, launch: Launch) -> Result<Self, String> {
        let mut daemon = Self::begin(dir, launch)?;
        daemon.await_ready(&mut || Ok(()))?;
        Ok(daemon)
    }

    /// Start a daemon, which may not take connections yet.
    pub fn begin(dir: Scratch, launch: Launch) -> Result<Self, String> {
        let share = share();
        let child = launch.spawn(&dir)?;
        Ok(Self { dir, launch, child, exited: None, _share: share })
    }

    /// Wait until it takes connections, and has all that it opens at its start.
    pub fn await_ready(&mut self, goes_on: &mut dyn FnMut() -> Result<(), String>) -> Result<(), String> {
        let deadline = Instant::now() + TIMEOUT;
        // The admin socket is there before what answers on it, which comes last: only then is the number of descriptors final.
        while self.try_admin(&json!({ "method": "workers" })).is_err() {
            goes_on()?;
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("the daemon did not start, {status}: {}", self.log()));
            }
            if Instant::now() > deadline {
                return Err(format!("no daemon within {TIMEOUT:?}: {}", self.log()));
            }
            std::thread::sleep(Duration::from_millis(1)); // tidy: allow sleep, nothing notifies when a socket is there
        }
        Ok(())
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path("s")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path("log")).unwrap_or_default()
    }

    /// The process of the daemon itself, without the wrapper.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn kill_9(&mut self) {
        self.child.kill().expect("a child can be killed");
        self.exited = Some(self.child.wait().expect("a child can be awaited"));
        forget(&self.child);
    }

    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).expect("a child can be signalled");
    }

    /// Ask it to stop.
    pub fn signal_term(&self) {
        self.signal(Signal::TERM);
    }

    /// Stop it as a debugger does, and wait for each of its threads: one on another CPU stops a moment after the signal.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
        crate::eventually("every thread of the daemon is stopped", || process::is_stopped(self.pid()));
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child can be asked").is_some()
    }

    /// Wait until it is gone.
    pub fn await_exit(&mut self) -> ExitStatus {
        let status = process::exit_within(&mut self.child, 2 * TIMEOUT);
        let status = status.unwrap_or_else(|| panic!("the daemon does not stop: {}", self.log()));
        self.exited = Some(status);
        forget(&self.child);
        status
    }

    /// Start it again with the same arguments in the same directory.
    pub fn restart(&mut self) {
        assert!(self.exited.is_some(), "it still runs");
        self.start_again().and_then(|()| self.await_ready(&mut || Ok(()))).unwrap_or_else(|error| panic!("{error}"));
    }

    fn start_again(&mut self) -> Result<(), String> {
        self.child = self.launch.spawn(&self.dir)?;
        self.exited = None;
        Ok(())
    }

    /// SIGKILL, and the next one at once; it may not be ready yet.
    pub fn kill_and_begin(&mut self) -> Result<(), String> {
        self.kill_9();
        self.start_again()
    }

    /// Kill the daemon, and start another one in its place while the kernel still tears down the killed one.
    #[track_caller]
    pub fn kill_9_and_start_at_once(&mut self) {
        self.child.kill().expect("a child can be killed");
        let new = self.launch.spawn(&self.dir).expect("the next one");
        // Only now: a client that connected before might have found the old daemon's socket.
        self.child.wait().expect("a child can be awaited");
        self.replace(new);
        self.await_ready(&mut || Ok(())).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Have a new daemon with the same arguments take over from this one; `self` is the new daemon from then on.
    #[track_caller]
    pub fn take_over(&mut self) {
        self.try_take_over(&[]).unwrap_or_else(|text| panic!("the takeover was refused: {text}"));
    }

    /// As [`take_over`](Self::take_over), with `more` arguments; the new daemon's message if it fails.
    pub fn try_take_over(&mut self, more: &[&str]) -> Result<(), String> {
        let mut new = self.launch_takeover(more);
        let deadline = Instant::now() + TIMEOUT;
        while !self.has_ended() {
            if new.try_wait().expect("a child can be asked").is_some() {
                forget(&new);
                let log = self.log();
                let said = log.lines().rev().find(|line| line.starts_with("error: "));
                return Err(said.unwrap_or_default().to_owned());
            }
            assert!(Instant::now() < deadline, "no takeover within {TIMEOUT:?}: {}", self.log());
            std::thread::sleep(Duration::from_millis(1)); // tidy: allow sleep, two processes are waited for at once
        }
        self.replace(new);
        Ok(())
    }

    /// This process serves now; the previous one has been awaited.
    pub fn replace(&mut self, new: Child) {
        forget(&self.child);
        self.child = new;
        self.exited = None;
    }

    /// Start a new daemon that is to take over, with `more` arguments.
    pub fn launch_takeover(&self, more: &[&str]) -> Child {
        let mut launch = self.launch.clone();
        launch.arguments.extend(["--takeover"].iter().chain(more).map(|argument| (*argument).to_owned()));
        launch.spawn(&self.dir).expect("a new daemon")
    }

    /// As [`restart`](Self::restart), with one argument replaced.
    pub fn restart_with(&mut self, old: &str, new: &str) {
        self.replace_argument(old, new);
        self.restart();
    }

    /// For the daemons that are started from now on.
    pub fn replace_argument(&mut self, old: &str, new: &str) {
        for argument in &mut self.launch.arguments {
            *argument = argument.replace(old, new);
        }
    }

    pub fn options(name: &str) -> AttachOptions {
        AttachOptions::new(name)
    }

    pub fn attach(&self, options: &AttachOptions) -> Result<(Disk, Vec<Queue>), Error> {
        Disk::attach(&self.socket(), options)
    }

    /// Attach with one queue.
    pub fn client(&self, options: &AttachOptions) -> (Disk, Queue) {
        let (disk, mut queues) = self.attach(options).expect("attached");
        (disk, queues.pop().expect("one queue"))
    }

    pub fn blocking(&self, name: &str) -> Blocking {
        self.blocking_as(&Self::options(name))
    }

    pub fn blocking_as(&self, options: &AttachOptions) -> Blocking {
        Blocking::attach(&self.socket(), options).expect("attached")
    }

    /// One request to the admin socket: `method`, and its parameters beside it. Returns the result, or `{"error": message}`.
    pub fn admin(&self, request: &Value) -> Value {
        self.try_admin(request).unwrap_or_else(|error| panic!("the admin socket: {error}"))
    }

    /// As [`admin`](Self::admin), of a request that must succeed.
    #[track_caller]
    pub fn ask(&self, request: &Value) -> Value {
        let answer = self.admin(request);
        assert!(answer["error"].is_null(), "{request}: {answer}");
        answer
    }

    /// Of each worker.
    pub fn queue_counts(&self) -> Vec<u64> {
        let workers = self.ask(&json!({ "method": "workers" }));
        let count = |worker: &Value| worker["queues"].as_u64().expect("a number");
        workers["workers"].as_array().expect("a list").iter().map(count).collect()
    }

    /// As [`admin`](Self::admin), of a daemon that may be gone.
    pub fn try_admin(&self, request: &Value) -> std::io::Result<Value> {
        let mut answer = self.try_admin_answer(request)?;
        match answer.get_mut("result") {
            Some(result) => Ok(result.take()),
            None => Ok(json!({ "error": answer["error"]["message"] })),
        }
    }

    /// As [`admin`](Self::admin), with the whole answer.
    pub fn admin_answer(&self, request: &Value) -> Value {
        self.try_admin_answer(request).unwrap_or_else(|error| panic!("the admin socket: {error}"))
    }

    fn try_admin_answer(&self, request: &Value) -> std::io::Result<Value> {
        let mut stream = UnixStream::connect(fipsee_daemon::admin::admin_path(&self.socket()))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.write_all(json_rpc(request).as_bytes())?;
        let mut line = String::new();
        let mut reader = BufReader::new(&stream);
        reader.read_line(&mut line)?;
        // Until it has closed its end, this connection is among the daemon's descriptors.
        stream.shutdown(Shutdown::Write)?;
        if reader.read_line(&mut String::new())? > 0 {
            return Err(std::io::Error::other("more than one answer"));
        }
        Ok(serde_json::from_str(&line)?)
    }

    pub fn attached_count(&self, disk: &str) -> u64 {
        let info = self.admin(&json!({ "method": "disk.info", "disk": disk }));
        info["attached"].as_u64().unwrap_or_else(|| panic!("no count in {info}"))
    }

    pub fn fd_count(&self) -> usize {
        process::fd_count(self.pid())
    }
}

/// A line of JSON-RPC for `method` with the other members as its parameters.
pub fn json_rpc(request: &Value) -> String {
    let mut params = request.clone();
    let method = params.as_object_mut().and_then(|members| members.remove("method")).expect("a method");
    format!("{}\n", json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }))
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

/// Start a daemon that must refuse to run, and return its error output.
#[track_caller]
pub fn refused(arguments: &[&str]) -> String {
    refused_in(&Scratch::new(), &[], arguments)
}

#[track_caller]
pub fn refused_in(dir: &Scratch, prefix: &[&str], arguments: &[&str]) -> String {
    let _ = std::fs::remove_file(dir.path("log"));
    let mut child = process::Guard(Launch::fipseed(prefix, arguments).spawn(dir).expect("the daemon can be started"));
    let status = process::exit_within(&mut child.0, TIMEOUT);
    forget(&child.0);
    let text = std::fs::read_to_string(dir.path("log")).unwrap_or_default();
    let status = status.unwrap_or_else(|| panic!("it runs with {arguments:?}"));
    assert!(!status.success(), "it stopped without an error with {arguments:?}: {text}");
    assert!(text.contains("error: "), "no error in: {text}");
    text
}
