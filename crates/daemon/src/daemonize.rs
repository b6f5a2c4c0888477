//! The moment from which the daemon serves, for the process that started it: `--ready-fd` and `--daemonize`.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Command, Stdio};

use rustix::io::FdFlags;
use rustix::pipe::PipeFlags;

const LINE: &[u8] = b"ready\n";

/// The descriptor at which the start is awaited. At most one line is written; its end without that is a failed start.
pub(crate) struct Ready(Cell<Option<File>>);

impl Ready {
    pub(crate) fn new(descriptor: Option<OwnedFd>) -> Self {
        Self(Cell::new(descriptor.map(File::from)))
    }

    /// The daemon serves.
    pub(crate) fn notify(&self) {
        if let Some(mut file) = self.0.take()
            && let Err(error) = file.write_all(LINE)
        {
            tracing::warn!(%error, "nothing waits at the descriptor of --ready-fd");
        }
    }
}

/// Start the daemon with the same arguments in a session of its own, wait until it serves, and print its process.
///
/// # Errors
/// There is no such process, or it ended without a word. Its own error is on our standard error, which it shares, and ends this
/// process, too.
pub(crate) fn start() -> Result<(), String> {
    let begun = begin().map_err(|error| format!("cannot start the daemon in the background: {error}"))?;
    let (mut child, mut ready) = begun;
    let mut line = Vec::new();
    let _ = ready.read_to_end(&mut line);
    if line == LINE {
        println!("{}", child.id());
        return Ok(());
    }
    match child.wait() {
        Ok(status) if status.code().is_some() => std::process::exit(1),
        Ok(status) => Err(format!("the daemon ended before it served: {status}")),
        Err(error) => Err(format!("the daemon does not serve, and its end is not known: {error}")),
    }
}

fn begin() -> io::Result<(std::process::Child, File)> {
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    // The child inherits it.
    rustix::io::fcntl_setfd(&write, FdFlags::empty())?;
    let words = std::env::args_os().skip(1).filter(|word| word != "--daemonize");
    let mut command = Command::new(std::env::current_exe()?);
    command.args(words).args(["--new-session", "--ready-fd"]).arg(write.as_raw_fd().to_string());
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
    Ok((child, File::from(read)))
}
