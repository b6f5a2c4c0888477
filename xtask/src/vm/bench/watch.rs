//! Processor time of the guest and its back ends while something else, or nothing, goes on, and their writes: to doorbells.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use super::exits::Trace;
use super::{DAEMON, GUEST, PEER};
use crate::step;

/// The nanoseconds of CPU time that each has used, and its calls of write(2).
type Times = Vec<(&'static str, u64, u64)>;

/// Does what the guest's events say.
pub(super) struct Watcher {
    /// Part of the command line of every watched process.
    mark: PathBuf,
    /// The guest's program.
    guest: &'static str,
    /// For the guest, and for its back ends.
    cpus: Option<(usize, usize)>,
    /// Of a machine whose accesses to devices can be traced.
    trace: Option<Trace>,
    begun: Option<(String, Instant, Times)>,
    /// `cpu WATCH ROLE=PERCENT...`, `writes WATCH ROLE=COUNT...`, `exits WATCH CAUSE=COUNT...`
    pub(super) reports: Vec<String>,
}

/// A process by its place in `/proc`.
struct Process {
    group: u32,
    /// On a CPU, in nanoseconds.
    time_ns: u64,
    writes: u64,
    command: String,
}

impl Watcher {
    pub(super) fn new(mark: &Path, guest: &'static str, cpus: Option<(usize, usize)>, trace: Option<Trace>) -> Self {
        Self { mark: mark.to_owned(), guest, cpus, trace, begun: None, reports: Vec::new() }
    }

    pub(super) fn on_event(&mut self, event: &str) -> Result<(), String> {
        let now = Instant::now();
        if let Some(change) = event.strip_prefix("cpu ") {
            return self.confine(change.ends_with(" 0"));
        }
        let times = self.times()?;
        match event.split_once(' ') {
            Some(("watch", name)) => {
                self.trace.iter_mut().try_for_each(Trace::begin)?;
                self.begun = Some((name.to_owned(), now, times));
            }
            Some(("unwatch", name)) => {
                let begun = self.begun.take().filter(|(begun, ..)| begun == name);
                let (name, since, before) = begun.ok_or_else(|| format!("'{name}' is not being watched"))?;
                let passed_ns = (now - since).as_secs_f64() * 1e9;
                let (mut percent, mut written) = (String::new(), String::new());
                for (role, time_ns, writes) in times {
                    let earlier = before.iter().find(|(name, ..)| *name == role);
                    let (time_before, writes_before) = earlier.map_or((0, 0), |(_, time_ns, writes)| (*time_ns, *writes));
                    percent += &format!(" {role}={}", 100.0 * to_f64(time_ns.saturating_sub(time_before)) / passed_ns);
                    written += &format!(" {role}={}", writes.saturating_sub(writes_before));
                }
                self.reports.extend([format!("cpu {name}{percent}"), format!("writes {name}{written}")]);
                if let Some(counts) = self.trace.as_ref().map(Trace::end).transpose()?.flatten() {
                    self.reports.push(format!("exits {name}{counts}"));
                }
            }
            _ => return Err("the plan has no such event".to_owned()),
        }
        Ok(())
    }

    /// A guest that has one CPU left gets one of the host's, so that its back ends have the other to themselves.
    fn confine(&self, has_one: bool) -> Result<(), String> {
        let Some((guest, back_ends)) = self.cpus else { return Ok(()) };
        let cpus = if has_one { guest.to_string() } else { format!("{guest},{back_ends}") };
        let leader = self.group_of(&processes(), self.guest)?.to_string();
        step::succeed(Command::new("taskset").args(["--all-tasks", "--pid", "--cpu-list", &cpus, &leader])).map(drop)
    }

    fn group_of(&self, processes: &[Process], program: &str) -> Result<u32, String> {
        let mark = self.mark.display().to_string();
        let is_it = |process: &&Process| {
            let first = process.command.split('\0').next().unwrap_or_default();
            process.command.contains(&mark) && Path::new(first).file_name().is_some_and(|name| name == program)
        };
        let found = processes.iter().find(is_it).map(|process| process.group);
        found.ok_or_else(|| format!("no process {program} is to be found in /proc"))
    }

    /// What each has used so far, with all the processes of its group: user-mode Linux is several.
    fn times(&self) -> Result<Times, String> {
        let processes = processes();
        let of = |(role, program)| {
            let group = self.group_of(&processes, program)?;
            let of_group = || processes.iter().filter(|process| process.group == group);
            Ok((role, of_group().map(|process| process.time_ns).sum(), of_group().map(|process| process.writes).sum()))
        };
        [(GUEST, self.guest), (DAEMON, DAEMON), (PEER, PEER)].into_iter().map(of).collect()
    }
}

#[expect(clippy::cast_precision_loss, reason = "nanoseconds of minutes")]
const fn to_f64(ns: u64) -> f64 {
    ns as f64
}

fn processes() -> Vec<Process> {
    process_ids().filter_map(process).collect()
}

fn process_ids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_string_lossy().parse().ok())
}

/// `None` if it is gone meanwhile.
fn process(id: u32) -> Option<Process> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let command = fs::read(format!("/proc/{id}/cmdline")).ok()?;
    let threads = fs::read_dir(format!("/proc/{id}/task")).ok()?.flatten();
    let time_of = |thread: fs::DirEntry| -> Option<u64> {
        fs::read_to_string(thread.path().join("schedstat")).ok()?.split(' ').next()?.parse().ok()
    };
    Some(Process {
        group: group(&stat)?,
        time_ns: threads.filter_map(time_of).sum(),
        writes: fs::read_to_string(format!("/proc/{id}/io")).map_or(0, |text| writes(&text)),
        command: String::from_utf8_lossy(&command).into_owned(),
    })
}

/// Calls of write(2) and its siblings in what `/proc/ID/io` says.
fn writes(io: &str) -> u64 {
    io.lines().find_map(|line| line.strip_prefix("syscw: ")?.parse().ok()).unwrap_or(0)
}

/// The process group in what `/proc/ID/stat` says; the name before it may hold anything.
fn group(stat: &str) -> Option<u32> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_is_found_behind_any_name() {
        assert_eq!(group("12 (a) b (c) S 1 34 34 0 -1"), Some(34));
        assert_eq!(group("12"), None);
    }

    #[test]
    fn time_of_this_process_is_counted() {
        let own = std::process::id();
        let before = process(own).expect("we are there").time_ns;
        // Its clock stops until the kernel looks at it.
        while process(own).expect("we are there").time_ns == before {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn calls_of_write_are_found() {
        assert_eq!(writes("rchar: 7\nwchar: 8\nsyscr: 9\nsyscw: 10\nread_bytes: 0\n"), 10);
        assert_eq!(writes(""), 0);
    }

    #[test]
    fn watch_that_did_not_begin_does_not_end() {
        let mut watcher = Watcher::new(Path::new("/nowhere"), "linux", None, None);
        assert!(watcher.on_event("watch idle").is_err_and(|error| error.contains("no process")));
    }
}
