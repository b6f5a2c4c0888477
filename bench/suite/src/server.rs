//! Programs that serve a disk for the duration of the benchmark.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fipsee_testkit::process::{die_with_parent, exit_within};
use fipsee_testkit::system;
use rustix::process::{Pid, Signal, kill_process};

/// A machine that needs longer to start a program hangs.
const START_DEADLINE: Duration = Duration::from_secs(30);
const STOP_DEADLINE: Duration = Duration::from_secs(10);

/// A running server; stopped on drop.
pub(crate) struct Server {
    child: Child,
    log: PathBuf,
    /// A file that it serves through FUSE: must be no mount any more when it has ended.
    mount: Option<PathBuf>,
}

impl Server {
    /// Start `command` and wait until `is_ready`. It ends with the calling thread at the latest. What it prints goes to `log`, and into the error when it ends too early.
    pub(crate) fn start(mut command: Command, log: &Path, is_ready: impl Fn() -> bool) -> Result<Self, String> {
        let name = command.get_program().to_string_lossy().into_owned();
        let file = std::fs::File::create(log).map_err(|error| format!("cannot create {}: {error}", log.display()))?;
        let errors = file.try_clone().map_err(|error| error.to_string())?;
        command.stdin(Stdio::null()).stdout(file).stderr(errors);
        let child = die_with_parent(&mut command).spawn().map_err(|error| format!("cannot start {name}: {error}"))?;
        let mut server = Self { child, log: log.to_owned(), mount: None };
        let deadline = Instant::now() + START_DEADLINE;
        while !is_ready() {
            let ended = server.child.try_wait().map_err(|error| error.to_string())?;
            if ended.is_some() || Instant::now() > deadline {
                return Err(server.explain(format!("{name} does not become ready")));
            }
            std::thread::sleep(Duration::from_millis(5)); // tidy: allow sleep, another program's start has no event
        }
        Ok(server)
    }

    /// Its file `path` is a FUSE mount, which must not outlive it.
    pub(crate) fn mounted_on(mut self, path: &Path) -> Self {
        self.mount = Some(path.to_owned());
        self
    }

    /// Add to an error what the server has to do with it, if it has ended.
    pub(crate) fn explain(&mut self, error: String) -> String {
        let Ok(Some(status)) = self.child.try_wait() else { return error };
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let words: Vec<&str> = text.split_whitespace().collect();
        format!("{error}; the server ended with {status}: {}", words.join(" "))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        if exit_within(&mut self.child, STOP_DEADLINE).is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if let Some(path) = self.mount.as_ref().filter(|path| is_mounted(path)) {
            let _ = Command::new("fusermount3").arg("-uz").arg(path).stdin(Stdio::null()).status();
        }
    }
}

/// Is something mounted on `path`?
pub(crate) fn is_mounted(path: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(1).is_some_and(|place| Path::new(place) == path))
}

/// Where `program` is.
pub(crate) fn find_program(program: &str) -> Result<PathBuf, String> {
    system::find_program(program).ok_or_else(|| format!("{program} is not installed; run `cargo xtask setup` as root"))
}

#[cfg(test)]
mod tests {
    use fipsee_testkit::Scratch;

    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn server_that_ends_too_early_says_why() {
        let folder = Scratch::new();
        let error = Server::start(shell("echo out of disks >&2; exit 3"), &folder.path("log"), || false).err();
        let error = error.expect("it cannot become ready");
        assert!(error.contains("out of disks") && error.contains('3'), "{error}");
    }

    #[test]
    fn server_is_stopped_with_its_owner() {
        let folder = Scratch::new();
        let flag = folder.path("flag");
        let script = format!("trap 'exit 0' TERM; touch {}; while :; do sleep 0.01; done", flag.display());
        let server = Server::start(shell(&script), &folder.path("log"), || flag.exists()).expect("a server");
        let pid = server.pid();
        drop(server);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn missing_program_says_how_to_get_it() {
        assert!(find_program("sh").is_ok());
        assert!(find_program("no-such-program-here").is_err_and(|text| text.contains("cargo xtask setup")));
    }
}
