//! The demo's second process: the daemon, and beside it a plain Unix socket server for comparison.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;
use fipsee_block::client::{AttachOptions, Disk};
use rustix::process::{Pid, Signal};

use super::{MEMORY_BYTES, NULL_BYTES, unix};
use crate::error::Error;
use crate::process;

/// How long the daemon may take to listen; it takes milliseconds unless the machine is very busy.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Between two attempts to attach to a daemon that does not listen yet.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(2);
/// How long the daemon may take to end when asked to.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The command line that `demo` gives to its second process.
#[derive(Debug, clap::Args)]
pub(crate) struct DaemonArguments {
    #[arg(long)]
    parent: i32,
    /// A directory to make, to listen in, and to remove in the end.
    #[arg(long)]
    directory: PathBuf,
}

fn socket_in(directory: &Path) -> PathBuf {
    directory.join("fipsee.sock")
}

fn unix_socket_in(directory: &Path) -> PathBuf {
    directory.join("plain.sock")
}

pub(crate) fn run_daemon(arguments: &DaemonArguments) -> Result<(), Error> {
    process::die_with_parent(arguments.parent, Signal::TERM)?;
    let directory = &arguments.directory;
    let made = DirBuilder::new().mode(0o700).create(directory);
    made.map_err(|error| Error::io(format_args!("make {}", directory.display()), &error))?;
    let served = serve_in(directory);
    // Also after a kill of the first process: SIGTERM follows, and the daemon has drained.
    let _ = std::fs::remove_dir_all(directory);
    served
}

fn serve_in(directory: &Path) -> Result<(), Error> {
    unix::serve(&unix_socket_in(directory))?;
    let command_line = [
        "fipseed".into(),
        "--listen".into(),
        socket_in(directory).into_os_string(),
        format!("--disk=null=null:{NULL_BYTES}").into(),
        format!("--disk=memory=memory:{MEMORY_BYTES}").into(),
        "--log-level=warn".into(),
    ];
    let arguments = fipsee_daemon::config::Arguments::try_parse_from(command_line);
    let arguments = arguments.map_err(|error| format!("fipseed's command line has changed ({error}); report this"))?;
    Ok(arguments.into_config().and_then(fipsee_daemon::run)?)
}

/// The second process, as the first sees it. Dropping it ends the process and removes its directory.
pub(super) struct Daemon {
    child: Child,
    directory: PathBuf,
    socket: PathBuf,
    unix_socket: PathBuf,
}

impl Daemon {
    /// Start it and wait until it listens.
    pub(super) fn start() -> Result<Self, Error> {
        let nanoseconds = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.subsec_nanos());
        let name = format!("fipsee-demo-{}-{nanoseconds}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let mut command = process::again("demo-daemon");
        command.arg("--directory").arg(&directory).stdin(Stdio::null());
        // A group of its own: Ctrl-C ends this process only, and the daemon then cleans up and ends.
        command.process_group(0);
        let child = command.spawn().map_err(|error| Error::io("start the daemon's process", &error))?;
        let (socket, unix_socket) = (socket_in(&directory), unix_socket_in(&directory));
        let mut daemon = Self { child, directory, socket, unix_socket };
        daemon.wait_until_it_listens()?;
        Ok(daemon)
    }

    fn wait_until_it_listens(&mut self) -> Result<(), Error> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let refused = match Disk::attach(&self.socket, &AttachOptions::new("memory")) {
                Ok((disk, queues)) => return Ok(disk.detach(queues)?),
                Err(error) => error,
            };
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("the daemon's process ended at once ({status}); see its message above").into());
            }
            if Instant::now() > deadline {
                return Err(Error::at("the daemon's process does not listen", refused));
            }
            std::thread::sleep(ATTEMPT_PAUSE); // tidy: allow sleep, the pause between attempts to connect
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(super) fn unix_socket(&self) -> &Path {
        &self.unix_socket
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let (Ok(None), Some(pid)) = (self.child.try_wait(), pid) {
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
        let deadline = Instant::now() + STOP_TIMEOUT;
        while let Ok(None) = self.child.try_wait() {
            if Instant::now() > deadline {
                let _ = self.child.kill();
                let _ = self.child.wait();
                break;
            }
            std::thread::sleep(ATTEMPT_PAUSE); // tidy: allow sleep, the pause between looks at a process that ends
        }
        // The daemon removes its directory itself unless it was killed.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
