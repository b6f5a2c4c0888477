//! Processes: one that does a job and may crash, and its second half.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::MemfdFlags;
use rustix::process::{Pid, Signal, WaitOptions};
use rustix::thread::CpuSet;

use super::Outcome;

type Report = Result<Outcome, String>;

/// Run `work` in a process of its own, at most for `limit`; what it reported, or what became of it.
///
/// A mechanism that crashes, hangs, or leaves threads and handlers behind spoils its own row only.
pub(super) fn run_alone(limit: Duration, work: impl FnOnce(&ReportWriter) -> Report) -> Report {
    let (reader, writer) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(|error| format!("cannot make a pipe: {error}"))?;
    let words = rustix::fs::memfd_create("fipsee-peers-stderr", MemfdFlags::CLOEXEC);
    let words = words.map_err(|error| format!("cannot make a memory file: {error}"))?;
    let writer = ReportWriter(File::from(writer));
    let child = fork(|| {
        // What a library prints would be in the middle of the table.
        let redirected = rustix::stdio::dup2_stdout(&words).and_then(|()| rustix::stdio::dup2_stderr(&words));
        let report = redirected.map_err(|error| format!("cannot redirect the output: {error}")).and_then(|()| work(&writer));
        writer.send(&report);
    })?;
    drop(writer);
    let report = listen(&reader, limit);
    // Its report is complete, or is not wanted any more.
    let _ = rustix::process::kill_process(child, Signal::KILL);
    let _ = rustix::process::waitpid(Some(child), WaitOptions::empty());
    report.map_err(|error| with_last_words(error, words))
}

/// Where reports go.
pub(super) struct ReportWriter(File);

impl ReportWriter {
    pub(super) fn send(&self, report: &Report) {
        if let Ok(mut line) = serde_json::to_vec(report) {
            line.push(b'\n');
            let _ = (&self.0).write_all(&line);
        }
    }
}

/// Run `work` in a forked process that is killed with this one.
pub fn fork(work: impl FnOnce()) -> Result<Pid, String> {
    let parent = rustix::process::getpid();
    // SAFETY: this process has one thread (tests: and others that hold no lock but malloc's, which fork takes), so the
    // child may do whatever this process might.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err(format!("cannot fork: {}", std::io::Error::last_os_error()));
    }
    if let Some(child) = Pid::from_raw(child) {
        return Ok(child);
    }
    let tied = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    if tied.is_ok() && rustix::process::getppid() == Some(parent) {
        let _ = std::panic::catch_unwind(AssertUnwindSafe(work));
    }
    // SAFETY: always allowed. Handlers of the parent's exit are not ours to run.
    unsafe { libc::_exit(0) }
}

/// Wait until `child` has ended.
pub fn wait_for(child: Pid) {
    let _ = rustix::process::waitpid(Some(child), WaitOptions::empty());
}

/// `work`, its panic as an error.
pub(super) fn caught<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    std::panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        Err(text.unwrap_or("it panicked").to_owned())
    })
}

/// Bind this thread to `cpus`.
pub fn bind_to(cpus: &[usize]) -> Result<(), String> {
    let mut set = CpuSet::new();
    for cpu in cpus {
        set.set(*cpu);
    }
    rustix::thread::sched_setaffinity(None, &set).map_err(|error| format!("cannot run on CPUs {cpus:?}: {error}"))
}

/// The first report of an error, or the report of success.
fn listen(reader: &OwnedFd, limit: Duration) -> Report {
    let until = Instant::now() + limit;
    let mut text = Vec::new();
    loop {
        let reports = text.split(|&byte| byte == b'\n').filter_map(|line| serde_json::from_slice::<Report>(line).ok());
        if let Some(report) = reports.into_iter().max_by_key(Result::is_err) {
            return report;
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(format!("not done after {} s: a message was lost, or the peer does not answer", limit.as_secs()));
        }
        let mut watched = [PollFd::new(reader, PollFlags::IN)];
        let timeout =
            Timespec { tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX), tv_nsec: i64::from(left.subsec_nanos()) };
        if !matches!(rustix::event::poll(&mut watched, Some(&timeout)), Ok(1..)) {
            continue;
        }
        let mut bytes = [0; 4096];
        match rustix::io::read(reader, &mut bytes) {
            Ok(0) => return Err("it died".to_owned()),
            Ok(count) => text.extend(&bytes[..count]),
            Err(error) => return Err(format!("cannot receive its report: {error}")),
        }
    }
}

/// `error`, and the last line that was printed, which may say why.
fn with_last_words(error: String, words: OwnedFd) -> String {
    let mut text = String::new();
    let mut file = File::from(words);
    let read = file.rewind().and_then(|()| file.read_to_string(&mut text));
    match text.lines().rev().find(|line| !line.trim().is_empty() && !line.contains("RUST_BACKTRACE")) {
        Some(last) if read.is_ok() && !last.contains(&error) => format!("{error} (it said: {})", last.trim()),
        _ => error,
    }
}
