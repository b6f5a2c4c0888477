//! The daemon under test: this program itself, or another binary; its log, and the admin socket.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;
use fipsee_daemon::admin::admin_path;
use fipsee_daemon::config::Arguments;
use serde_json::{Value, json};

use crate::interrupt;

/// Timeout of what should happen soon.
pub const DEADLINE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(1);

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
    program: Program,
    folder: PathBuf,
    spec: String,
    child: Option<Child>,
}

impl Daemon {
    /// Serve `spec` as `d`, with sockets and log in `folder`.
    ///
    /// # Errors
    /// It does not come up; with its log.
    pub fn start(program: &Program, folder: &Path, spec: &str) -> Result<Self, String> {
        let mut daemon = Self { program: program.clone(), folder: folder.to_owned(), spec: spec.to_owned(), child: None };
        daemon.spawn()?;
        daemon.wait_until_it_listens()?;
        Ok(daemon)
    }

    /// Where it listens.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.join("s")
    }

    /// Where it listens for a hypervisor.
    #[must_use]
    pub fn vm_socket(&self) -> PathBuf {
        self.folder.join("v")
    }

    /// What it serves.
    #[must_use]
    pub fn spec(&self) -> &str {
        &self.spec
    }

    /// What it logged.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    fn spawn(&mut self) -> Result<(), String> {
        let log = std::fs::File::options().create(true).append(true).open(self.folder.join("log"));
        let log = log.map_err(|error| format!("the daemon's log: {error}"))?;
        let mut command = match &self.program {
            Program::Own(program) => {
                let mut command = Command::new(program);
                command.arg("daemon");
                command
            }
            Program::Other(program) => Command::new(program),
        };
        command.arg("--listen").arg(self.socket()).arg("--disk").arg(format!("d={}", self.spec));
        command.arg("--vhost-user").arg(format!("d={}", self.vm_socket().display()));
        // A group of its own: a SIGINT from the terminal is for us, and we end it.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.child = Some(command.spawn().map_err(|error| format!("{command:?} does not start: {error}"))?);
        Ok(())
    }

    fn wait_until_it_listens(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + DEADLINE;
        // The admin socket is made last: once it is there, all others are.
        while UnixStream::connect(admin_path(&self.socket())).is_err() {
            interrupt::check()?;
            let ended = self.child.as_mut().map(Child::try_wait);
            if let Some(Ok(Some(status))) = ended {
                return Err(format!("the daemon ended with {status}:\n{}", self.log()));
            }
            if Instant::now() > deadline {
                return Err(format!("the daemon does not listen:\n{}", self.log()));
            }
            std::thread::sleep(PAUSE); // tidy: allow sleep, nothing notifies when a socket is there
        }
        Ok(())
    }

    /// SIGKILL, and the next one at once; it may not be ready yet.
    ///
    /// # Errors
    /// It does not start.
    pub fn kill_and_restart(&mut self) -> Result<(), String> {
        self.end();
        self.spawn()
    }

    fn end(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Ask the admin socket for a new size. Shrinking is requested as such, for daemons that require it.
    ///
    /// # Errors
    /// The daemon's refusal.
    pub fn resize(&self, sector_count: u64) -> Result<(), String> {
        let plain = json!({ "request": "resize", "disk": "d", "size_bytes": sector_count * 512 });
        let mut forced = plain.clone();
        forced["shrink"] = Value::Bool(true);
        forced["force"] = Value::Bool(true);
        match self.ask(&forced) {
            Err(refusal) if refusal.contains("unknown field") => self.ask(&plain).map(drop),
            answer => answer.map(drop),
        }
    }

    fn ask(&self, request: &Value) -> Result<Value, String> {
        let exchange = || -> std::io::Result<String> {
            let mut stream = UnixStream::connect(admin_path(&self.socket()))?;
            stream.set_read_timeout(Some(DEADLINE))?;
            stream.write_all(format!("{request}\n").as_bytes())?;
            let mut line = String::new();
            BufReader::new(stream).read_line(&mut line)?;
            Ok(line)
        };
        let line = exchange().map_err(|error| format!("the admin socket: {error}"))?;
        let answer: Value = serde_json::from_str(&line).map_err(|error| format!("the admin socket: {error}"))?;
        match answer.get("error").and_then(Value::as_str) {
            Some(refusal) => Err(refusal.to_owned()),
            None => Ok(answer),
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.end();
    }
}
