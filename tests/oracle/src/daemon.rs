//! The daemon under test: this program itself, or another binary.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Parser;
use fipsee_daemon::config::Arguments;
use fipsee_testkit::daemon::Launch;
use fipsee_testkit::{Daemon as Process, Scratch};
use serde_json::{Value, json};

use crate::interrupt;

/// Timeout of what should happen soon.
pub use fipsee_testkit::TIMEOUT as DEADLINE;

/// Which daemon.
#[derive(Clone, Debug)]
pub enum Program {
    /// This program; its hidden command `daemon` is one.
    Own(PathBuf),
    /// Another binary.
    Other(PathBuf),
}

/// Be a daemon with that command line, for the process that started this one.
///
/// # Errors
/// As the daemon says it.
pub fn serve(arguments: Vec<OsString>) -> Result<(), String> {
    die_with_parent();
    let all = std::iter::once(OsString::from("fipseed")).chain(arguments);
    fipsee_daemon::start(Arguments::parse_from(all))
}

/// A campaign that is itself killed leaves nothing behind.
pub fn die_with_parent() {
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
}

/// A daemon that serves disk `d`, and does not outlive us.
#[derive(Debug)]
pub struct Daemon {
    process: Process,
    spec: String,
}

impl Daemon {
    /// Serve `spec` as `d`, with sockets and log in `folder`.
    ///
    /// # Errors
    /// It does not come up; with its log.
    pub fn start(program: &Program, folder: &Path, spec: &str) -> Result<Self, String> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let program = match program {
            Program::Own(program) => vec![text(program), "daemon".to_owned()],
            Program::Other(program) => vec![text(program)],
        };
        let arguments = ["--disk", &format!("d={spec}"), "--vhost-user", "d={dir}/v"].map(str::to_owned).to_vec();
        // A SIGINT from the terminal is for us, and we end it.
        let launch = Launch { program, arguments, own_group: true };
        let mut process = Process::begin(Scratch::existing(folder), launch)?;
        process.await_ready(&mut interrupt::check)?;
        Ok(Self { process, spec: spec.to_owned() })
    }

    /// Where it listens.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.process.socket()
    }

    /// Where it listens for a hypervisor.
    #[must_use]
    pub fn vm_socket(&self) -> PathBuf {
        self.process.dir.path("v")
    }

    /// What it serves.
    #[must_use]
    pub fn spec(&self) -> &str {
        &self.spec
    }

    /// What it logged.
    #[must_use]
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// SIGKILL, and the next one at once; it may not be ready yet.
    ///
    /// # Errors
    /// It does not start.
    pub fn kill_and_restart(&mut self) -> Result<(), String> {
        self.process.kill_and_begin()
    }

    /// Ask the admin socket for a new size, a smaller one, too.
    ///
    /// # Errors
    /// The daemon's refusal.
    pub fn resize(&self, sector_count: u64) -> Result<(), String> {
        let size_bytes = sector_count * 512;
        self.ask(&json!({ "method": "disk.resize", "disk": "d", "size_bytes": size_bytes, "shrink": true, "force": true }))
            .map(drop)
    }

    fn ask(&self, request: &Value) -> Result<Value, String> {
        let answer = self.process.try_admin(request).map_err(|error| format!("the admin socket: {error}"))?;
        match answer.get("error").and_then(Value::as_str) {
            Some(refusal) => Err(refusal.to_owned()),
            None => Ok(answer),
        }
    }
}
