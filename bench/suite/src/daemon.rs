//! A daemon of our own for the duration of a benchmark.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running fipseed with its own directory; stopped and removed on drop.
pub(crate) struct Daemon {
    child: Child,
    directory: PathBuf,
    /// What started it.
    command: Command,
}

impl Daemon {
    /// Start the `fipseed` that ships, or else the one that was built beside this program, with its disk `n` for hypervisors.
    pub(crate) fn start(disks: &[String], more: &[&str]) -> Result<Self, String> {
        let vhost_user = format!("n={}", vhost_user(&Self::directory_to_be()).display());
        // Every way to a disk has it open at the same time, and some claim what they may write.
        let disks: Vec<String> = disks.iter().map(|disk| format!("{disk},shared")).collect();
        Self::start_program(&Self::shipped()?, &disks, &[more, &["--vhost-user", &vhost_user]].concat())
    }

    /// The `fipseed` that ships, or else the one that was built beside this program.
    pub(crate) fn shipped() -> Result<PathBuf, String> {
        match std::env::var_os("FIPSEE_DIST") {
            Some(dist) => Ok(Path::new(&dist).join("bin/fipseed")),
            None => Ok(std::env::current_exe().map_err(|error| error.to_string())?.with_file_name("fipseed")),
        }
    }

    /// Start this `fipseed`.
    pub(crate) fn start_program(program: &Path, disks: &[String], more: &[&str]) -> Result<Self, String> {
        let directory = Self::directory_to_be();
        std::fs::create_dir_all(&directory).map_err(|error| format!("cannot create {}: {error}", directory.display()))?;
        let mut command = Command::new(program);
        command.arg("--listen").arg(directory.join("s")).args(["--log-level", "error"]).args(more).stdin(Stdio::null());
        for disk in disks {
            command.args(["--disk", disk]);
        }
        let child = command.spawn().map_err(|error| format!("cannot start {}: {error}; build it first", program.display()))?;
        let mut daemon = Self { child, directory, command };
        let deadline = Instant::now() + Duration::from_secs(10);
        // The last socket that it makes: those of hypervisors come after the clients'.
        let admin = daemon.directory.join("s.admin");
        while UnixStream::connect(&admin).is_err() {
            if Instant::now() > deadline || daemon.child.try_wait().is_ok_and(|ended| ended.is_some()) {
                return Err("the daemon did not come up; its message is above".to_owned());
            }
            std::thread::yield_now();
        }
        Ok(daemon)
    }

    /// Have a second one take over, and wait for the first to end.
    pub(crate) fn take_over(&mut self) -> Result<(), String> {
        let next = self.command.arg("--takeover").spawn().map_err(|error| format!("cannot start the next daemon: {error}"))?;
        let ended = std::mem::replace(&mut self.child, next).wait().map_err(|error| error.to_string())?;
        if ended.success() { Ok(()) } else { Err(format!("the daemon ended with {ended}; its message is above")) }
    }

    /// Kill it.
    pub(crate) fn kill(&mut self) -> Result<(), String> {
        self.child.kill().map_err(|error| format!("cannot kill the daemon: {error}"))
    }

    /// The directory of whichever daemon this process starts: one at a time.
    pub(crate) fn directory_to_be() -> PathBuf {
        std::env::temp_dir().join(format!("fipsee-bench-{}", std::process::id()))
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.join("s")
    }

    /// Where hypervisors find the disk `n`, one at a time.
    pub(crate) fn vhost_user(&self) -> PathBuf {
        vhost_user(&self.directory)
    }

    /// A directory that is kept as long as the daemon.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Processor time used so far, and voluntary context switches: each is one time a thread went to sleep.
    pub(crate) fn usage(&self) -> Result<(Duration, u64), String> {
        let tasks = PathBuf::from(format!("/proc/{}/task", self.child.id()));
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

fn vhost_user(directory: &Path) -> PathBuf {
    directory.join("v")
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
