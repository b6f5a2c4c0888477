//! A faulty peer or a baseline, in a process of its own.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use fipsee_testkit::faulty::fault::Until;
use fipsee_testkit::process::{Guard, die_with_parent};

use super::injected::Injected;
use crate::place::bind_to;

/// Longer than this nothing is waited for.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Refusals that a neighbour takes before it gives up.
const MOST_FAILURES: u32 = 1000;

/// A running one; killed when dropped.
pub(crate) struct Neighbour(Guard);

impl Neighbour {
    /// Start it, and wait until it is about to begin.
    pub(crate) fn start(fault: Injected, socket: &Path, cpu: usize) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.args(["hostile", "--neighbour", fault.name(), "--cpu", &cpu.to_string(), "--socket"]).arg(socket);
        let child = die_with_parent(command.stdout(Stdio::piped())).spawn();
        let mut neighbour = Self(Guard(child.map_err(|error| format!("cannot start this program again: {error}"))?));
        let mut line = String::new();
        let said = neighbour.0.0.stdout.as_mut().map(|out| BufReader::new(out).read_line(&mut line));
        if !matches!(said, Some(Ok(1..))) {
            return Err(format!("{}: it ended before it began", fault.name()));
        }
        Ok(neighbour)
    }

    /// It must still be there when the measurement is over.
    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.0.0.try_wait(), Ok(None))
    }

    /// Kill it; when that was asked for.
    pub(crate) fn kill(mut self) -> Instant {
        let _ = self.0.0.kill();
        Instant::now()
    }
}

/// Be a neighbour: begin again whenever the daemon has closed the channel, until killed.
pub(crate) fn be_neighbour(name: &str, socket: &Path, cpu: Option<usize>) -> Result<(), String> {
    cpu.into_iter().for_each(bind_to);
    let fault = Injected::find(name).ok_or_else(|| format!("no fault '{name}'"))?;
    println!("begin");
    let stop = AtomicBool::new(false);
    let mut failures = 0;
    loop {
        match fault.inject(socket, &mut Until::times(u64::MAX, &stop)) {
            Ok(()) => {}
            // A peer that connects again faster than the daemon releases its last connection may be refused now and then.
            Err(_) if failures < MOST_FAILURES => failures += 1,
            Err(error) => return Err(format!("{name}: {error}")),
        }
    }
}

/// Descriptors and mappings of the daemon.
pub(crate) fn holdings(pid: u32) -> Result<(usize, usize), String> {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).map_err(|error| format!("the daemon is gone: {error}"))?;
    let mapped = std::fs::read_to_string(format!("/proc/{pid}/maps")).map_err(|error| format!("the daemon is gone: {error}"))?;
    Ok((open.count(), mapped.lines().filter(|line| line.contains("memfd:fipsee")).count()))
}

/// Wait until the daemon holds no more than it did; how many milliseconds that took.
pub(crate) fn await_release(pid: u32, before: (usize, usize), since: Instant) -> Result<f64, String> {
    loop {
        let now = holdings(pid)?;
        let elapsed = since.elapsed();
        if now.0 <= before.0 && now.1 <= before.1 {
            return Ok(elapsed.as_secs_f64() * 1e3);
        }
        if elapsed > TIMEOUT {
            return Err(format!("after {TIMEOUT:?} the daemon still holds {now:?} descriptors and mappings, {before:?} before"));
        }
    }
}
