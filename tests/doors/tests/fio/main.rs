//! The fio engine that ships, in the fio that is installed.

mod client;
mod death;
mod endurance;
mod jobs;
mod lies;
mod refusals;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use fipsee_doors::{Daemon, has_program, shipped, text_of};
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
    /// fio for the disks of `daemon`; `None`, said aloud, when something is missing.
    fn new(what: &str, daemon: &Daemon) -> Option<Self> {
        Self::at(what, &daemon.socket, &daemon.directory.path(""))
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

    /// Run a job that succeeds; its results, one of each process.
    #[track_caller]
    fn run(&self, options: &str) -> Vec<Value> {
        jobs_of(&mut self.job(options))
    }

    /// Run a job that fails; all it prints.
    #[track_caller]
    fn fail(&self, options: &str) -> String {
        let output = self.job(options).output().expect("fio starts");
        assert!(!output.status.success(), "{options}\n{}", text_of(&output));
        not_hung(&output, options);
        text_of(&output)
    }
}

/// `timeout` did not have to end it, nor did it crash.
#[track_caller]
fn not_hung(output: &Output, what: &str) {
    let text = text_of(output);
    let code = output.status.code().expect("fio is no victim of a signal");
    assert!(code != 124 && code < 128 && !text.contains("got signal"), "{what}\n{text}");
}

/// Run fio to its successful end; the results of its jobs.
#[track_caller]
fn jobs_of(command: &mut Command) -> Vec<Value> {
    let output = command.output().expect("fio starts");
    assert!(output.status.success(), "{command:?}\n{}", text_of(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    // Notes of fio stand before the JSON.
    let start = text.find('{').expect("fio prints JSON");
    let parsed: Value = serde_json::from_str(&text[start..]).expect("fio prints JSON");
    let jobs = parsed["jobs"].as_array().expect("fio lists its jobs").clone();
    assert!(!jobs.is_empty() && jobs.iter().all(|job| job["error"] == 0), "{text}");
    jobs
}

/// A number of fio's results: `read iops`.
#[track_caller]
fn number(job: &Value, path: &str) -> f64 {
    let found = path.split(' ').fold(job, |value, key| &value[key]);
    found.as_f64().unwrap_or_else(|| panic!("no {path} in {job}"))
}
