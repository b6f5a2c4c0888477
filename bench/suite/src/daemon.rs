//! A daemon of our own for the duration of a benchmark.

use std::path::{Path, PathBuf};
use std::time::Duration;

use fipsee_testkit::daemon::{Launch, program};
use fipsee_testkit::{Daemon as Process, Scratch};
use rustix::process::Signal;
use serde_json::Value;

/// A running fipseed with its own directory; stopped and removed on drop.
pub(crate) struct Daemon(Process);

impl Daemon {
    /// Start the `fipseed` that ships, or else the one that was built beside this program, with its disk `n` for hypervisors.
    pub(crate) fn start(disks: &[String], more: &[&str]) -> Result<Self, String> {
        // Every way to a disk has it open at the same time, and some claim what they may write.
        let disks: Vec<String> = disks.iter().map(|disk| format!("{disk},shared")).collect();
        Self::start_program(&Self::shipped()?, &disks, &[more, &["--vhost-user", "n={dir}/v"]].concat())
    }

    /// The `fipseed` that ships, or else the one that was built beside this program.
    pub(crate) fn shipped() -> Result<PathBuf, String> {
        Ok(std::env::var_os("FIPSEE_DIST").map_or_else(program, |dist| Path::new(&dist).join("bin/fipseed")))
    }

    /// Start this `fipseed`.
    pub(crate) fn start_program(program: &Path, disks: &[String], more: &[&str]) -> Result<Self, String> {
        Self::start_through(&[], program, disks, more)
    }

    /// Start this `fipseed` by way of a command line before its own.
    pub(crate) fn start_through(prefix: &[String], program: &Path, disks: &[String], more: &[&str]) -> Result<Self, String> {
        let mut arguments: Vec<String> = ["--log-level", "error"].iter().chain(more).map(|word| (*word).to_owned()).collect();
        arguments.extend(disks.iter().flat_map(|disk| ["--disk".to_owned(), disk.clone()]));
        let program = [prefix, &[program.to_string_lossy().into_owned()]].concat();
        Process::launch(Scratch::new(), Launch { program, arguments, own_group: false, ends_with_us: true }).map(Self)
    }

    /// Have a second one take over, and wait for the first to end.
    pub(crate) fn take_over(&mut self) -> Result<(), String> {
        self.0.try_take_over(&[])
    }

    /// One request to the admin socket: `method`, and its parameters beside it.
    pub(crate) fn ask(&self, request: &Value) -> Result<Value, String> {
        let answer = self.0.try_admin(request).map_err(|error| format!("the admin socket: {error}"))?;
        if answer["error"].is_null() { Ok(answer) } else { Err(format!("{request}: {}", answer["error"])) }
    }

    /// Kill it, and do not wait for its end.
    pub(crate) fn kill(&self) {
        self.0.signal(Signal::KILL);
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.0.socket()
    }

    /// Where hypervisors find the disk `n`, one at a time.
    pub(crate) fn vhost_user(&self) -> PathBuf {
        self.0.dir.path("v")
    }

    /// A directory that is kept as long as the daemon.
    pub(crate) fn directory(&self) -> &Path {
        &self.0.dir.0
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// Processor time used so far, and voluntary context switches: each is one time a thread went to sleep.
    pub(crate) fn usage(&self) -> Result<(Duration, u64), String> {
        let tasks = PathBuf::from(format!("/proc/{}/task", self.pid()));
        let (mut ticks, mut sleeps) = (0, 0);
        for task in std::fs::read_dir(&tasks).map_err(|error| error.to_string())?.flatten() {
            let stat = read(&task.path().join("stat"))?;
            let fields: Vec<u64> =
                stat.rsplit(')').next().unwrap_or_default().split_whitespace().map(|field| field.parse().unwrap_or(0)).collect();
            ticks += fields.get(11).copied().unwrap_or(0) + fields.get(12).copied().unwrap_or(0);
            let status = read(&task.path().join("status"))?;
            let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            sleeps += line.and_then(|count| count.trim().parse::<u64>().ok()).unwrap_or(0);
        }
        // USER_HZ is 100 on every Linux.
        Ok((Duration::from_millis(ticks * 10), sleeps))
    }
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

impl Drop for Daemon {
    /// In order, so that its disks are closed as its users close them.
    fn drop(&mut self) {
        self.0.signal_term();
        self.0.await_exit();
    }
}
