//! `--background`: the same program again, in a session of its own; this one waits until the disk is mounted.

use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::process::Stdio;

use rustix::fs::{Mode, OFlags};

use super::log;
use crate::error::Error;
use crate::{output, process};

/// The variable that the second process has.
const SECOND: &str = "FIPSEE_MOUNTS_IN_BACKGROUND";

/// Is this the second process?
pub(super) fn is_second() -> bool {
    std::env::var_os(SECOND).is_some()
}

/// Start the second process, with the same command line, and print its message once it has mounted.
pub(super) fn start() -> Result<(), Error> {
    let mut command = process::this_program();
    command.args(std::env::args_os().skip(1)).env(SECOND, "1");
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut child = child.map_err(|error| Error::io("start the process that serves", &error))?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        let read = BufReader::new(stdout).read_line(&mut line);
        read.map_err(|error| Error::io("receive from the process that serves", &error))?;
    }
    if line.is_empty() {
        // It has reported its error on the shared standard error.
        let _ = child.wait();
        std::process::exit(1);
    }
    output::print(&line)
}

/// In the second process, at its start.
pub(super) fn leave_session() {
    // This process leads no group, so this cannot fail; if it did, signals of the terminal would reach it.
    let _ = rustix::process::setsid();
    // Its executable, /proc/self/exe, gives no useful name.
    let _ = rustix::thread::set_name(c"fipsee");
}

/// In the second process, once it has mounted and reported that: release everything that it inherited.
pub(super) fn release_inherited() -> Result<(), Error> {
    log::use_system_log();
    let null = rustix::fs::open("/dev/null", OFlags::RDWR, Mode::empty());
    let null = null.map_err(|error| Error::io("open /dev/null", &error.into()))?;
    let redirected = rustix::stdio::dup2_stdout(null.as_fd()).and_then(|()| rustix::stdio::dup2_stderr(null.as_fd()));
    redirected.map_err(|error| Error::io("redirect standard output", &error.into()))?;
    rustix::process::chdir("/").map_err(|error| Error::io("change to /", &error.into()))
}
