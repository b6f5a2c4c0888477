//! The fio engine that ships, in the fio that is installed.

mod client;
mod death;
mod endurance;
mod faults;
mod jobs;
mod killed;
mod overlap;
mod refusals;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use fipsee_acceptance::{Daemon, Guard, has_program, shipped, text_of};
use rustix::process::{Pid, Signal};
use serde_json::Value;

/// Ends a fio that hangs, so that the test fails with its output.
const TIMEOUT: [&str; 2] = ["--kill-after=10", "240"];

/// fio with the engine, and where its jobs may leave files.
struct Fio {
    engine: PathBuf,
    socket: PathBuf,
    directory: PathBuf,
}

impl Fio {
    /// fio for the disks of `daemon`; `None`, with a message, when something is missing.
    fn new(what: &str, daemon: &Daemon) -> Option<Self> {
        Self::at(what, &daemon.socket(), &daemon.dir.path(""))
    }

    fn at(what: &str, socket: &Path, directory: &Path) -> Option<Self> {
        let engine = shipped(what, "lib/fio/fipsee.so")?;
        has_program(what, "fio").then(|| Self { engine, socket: socket.to_owned(), directory: directory.to_owned() })
    }

    fn command(&self) -> Command {
        let mut command = Command::new("timeout");
        command.args(TIMEOUT).arg("fio").current_dir(&self.directory).stdin(Stdio::null());
        command.env("FIPSEE_SOCKET", &self.socket).env("FIPSEE_ENGINE", &self.engine);
        command
    }

    /// One job, in the words of a command line.
    fn job(&self, options: &str) -> Command {
        let mut command = self.command();
        command.args(["--output-format=json", "--name=test"]).arg(format!("--ioengine=external:{}", self.engine.display()));
        command.args(options.split_whitespace().map(|option| format!("--{option}")));
        command
    }

    /// Start `command`. Its output goes to files: a pipe would stay open as long as any process of a hung fio runs.
    #[track_caller]
    fn start(&self, command: &mut Command) -> Running {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let file = |name: &str| self.directory.join(format!("{name}-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        let (stdout, stderr) = (file("stdout"), file("stderr"));
        let open = |path: &Path| fs::File::create(path).expect("a file in the test's directory");
        let child = command.stdout(open(&stdout)).stderr(open(&stderr)).spawn().expect("fio starts");
        Running { child: Guard(child), stdout, stderr }
    }

    #[track_caller]
    fn output(&self, command: &mut Command) -> Output {
        self.start(command).end()
    }

    /// Run `command` to its successful end; the results of its jobs.
    #[track_caller]
    fn jobs_of(&self, command: &mut Command) -> Vec<Value> {
        let output = self.output(command);
        assert!(output.status.success(), "{command:?}\n{}", text_of(&output));
        let text = String::from_utf8_lossy(&output.stdout);
        // Notes of fio come before the JSON.
        let start = text.find('{').expect("fio prints JSON");
        let parsed: Value = serde_json::from_str(&text[start..]).expect("fio prints JSON");
        let jobs = parsed["jobs"].as_array().expect("fio lists its jobs").clone();
        assert!(!jobs.is_empty() && jobs.iter().all(|job| job["error"] == 0), "{text}");
        jobs
    }

    /// Run a job that succeeds; its results, one of each process.
    #[track_caller]
    fn run(&self, options: &str) -> Vec<Value> {
        self.jobs_of(&mut self.job(options))
    }

    /// Run a job that fails; all it prints.
    #[track_caller]
    fn fail(&self, options: &str) -> String {
        let output = self.output(&mut self.job(options));
        assert!(!output.status.success(), "{options}\n{}", text_of(&output));
        not_hung(&output, options);
        text_of(&output)
    }
}

impl Drop for Fio {
    /// End what a hung fio leaves: its jobs are sessions of their own, and known by our socket in their environment.
    fn drop(&mut self) {
        let mark = format!("FIPSEE_SOCKET={}\0", self.socket.display());
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw) else {
                continue;
            };
            let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
            if environment.windows(mark.len()).any(|window| window == mark.as_bytes()) {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
    }
}

/// A fio that runs.
struct Running {
    child: Guard,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Running {
    fn has_ended(&mut self) -> bool {
        self.child.0.try_wait().expect("a child to ask").is_some()
    }

    /// Wait for its end, or for `timeout` to bring it about.
    fn end(mut self) -> Output {
        let status = self.child.0.wait().expect("a child to wait for");
        let read = |path: &Path| fs::read(path).expect("what fio printed");
        Output { status, stdout: read(&self.stdout), stderr: read(&self.stderr) }
    }
}

/// `timeout` did not have to end it, nor did it crash.
#[track_caller]
fn not_hung(output: &Output, what: &str) {
    let text = text_of(output);
    let code = output.status.code().expect("fio is no victim of a signal");
    assert!(code != 124 && code < 128 && !text.contains("got signal"), "{what}\n{text}");
}

/// A number of fio's results: `read iops`.
#[track_caller]
fn number(job: &Value, path: &str) -> f64 {
    let found = path.split(' ').fold(job, |value, key| &value[key]);
    found.as_f64().unwrap_or_else(|| panic!("no {path} in {job}"))
}
