//! A virtual machine that runs: what it says, how it ends, and that nothing of it stays.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// How often a process is asked whether it has ended, while it says nothing.
const LOOK: Duration = Duration::from_millis(50);

/// A guest that said that it failed should end soon; what is broken in it may keep it from that.
const GRACE: Duration = if cfg!(test) { Duration::from_millis(200) } else { Duration::from_secs(20) };

/// How a line of the guest's own reports begins.
const REPORT: &str = "fipsee-vm: ";

/// What the kernel says when something is wrong. Nothing of it may be on the console.
const ALARMS: [&str; 22] = [
    "BUG:",
    "kernel BUG",
    // What only the debug kernel says: about a piece of memory, a shift or an index, a list, locks.
    "] BUG ",
    "UBSAN:",
    "ODEBUG:",
    "non-static key",
    "turning off the locking correctness validator",
    "WARNING:",
    "Oops",
    "Kernel panic",
    "Call Trace",
    "blocked for more than",
    "soft lockup",
    "hard LOCKUP",
    "self-detected stall",
    "detected stalls",
    "I/O error",
    "EXT4-fs error",
    "EXT4-fs warning",
    "general protection",
    "unable to handle",
    "segfault",
];

/// Where a line came from: the console is the command's standard output, reports come on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    Console,
    Reports,
}

/// What is done when this process ends without having dropped this value: killed, or interrupted at the keyboard.
pub(super) struct CleanupGuard(Child);

impl CleanupGuard {
    /// Remove a folder.
    pub(super) fn remove(folder: &Path) -> Result<Self, String> {
        // Of the folder above it this was the last one, if no other run is there.
        Self::of("rm -r -f -- \"$1\"; rmdir -- \"${1%/*}\"", folder.as_os_str())
    }

    /// A shell waits for the end of a pipe; only this process holds its other end.
    fn of(command: &str, argument: &OsStr) -> Result<Self, String> {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("read -r line; {command}"), "sh"]).arg(argument);
        // A group of its own: what interrupts this process at the keyboard must not end that one.
        shell.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        shell.spawn().map(Self).map_err(|error| format!("cannot run {shell:?}: {error}"))
    }
}

impl Drop for CleanupGuard {
    fn drop(&mut self) {
        // If it has ended, something else has killed it.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process group that ends with this value, or with this process.
pub(super) struct Group {
    first: Child,
    /// Dropped after the group was killed.
    _guard: CleanupGuard,
}

impl Group {
    pub(super) fn spawn(command: &mut Command) -> Result<Self, String> {
        let mut first = command.process_group(0).spawn().map_err(|error| format!("cannot run {command:?}: {error}"))?;
        let group = OsString::from(format!("-{}", first.id()));
        match CleanupGuard::of("kill -s KILL -- \"$1\"", &group) {
            Ok(guard) => Ok(Self { first, _guard: guard }),
            Err(error) => {
                let _ = first.kill();
                let _ = first.wait();
                Err(error)
            }
        }
    }

    /// What was asked for as pipes, once.
    pub(super) fn pipes(&mut self) -> Option<(ChildStdin, ChildStdout)> {
        Some((self.first.stdin.take()?, self.first.stdout.take()?))
    }

    /// Of its first process.
    pub(super) fn id(&self) -> u32 {
        self.first.id()
    }

    /// Has its first process ended?
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.first.try_wait().ok().flatten()
    }

    /// User-mode Linux leaves processes behind when only its first one is killed.
    pub(super) fn kill(&self) {
        self.signal("KILL");
    }

    /// A group that is gone receives nothing, which is as well.
    pub(super) fn signal(&self, signal: &str) {
        let group = format!("-{}", self.first.id());
        let _ = Command::new("kill").args([&format!("-{signal}"), "--", &group]).stderr(Stdio::null()).status();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
        // It is killed, so this does not wait long.
        let _ = self.first.wait();
    }
}

/// What becomes of a machine after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    GoesOn,
    /// At once.
    IsKilled,
}

/// What is left of a machine that ended.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) console: Vec<String>,
    /// Reports of the guest, without their mark.
    pub(super) reports: Vec<String>,
    /// What the monitor itself said.
    pub(super) monitor: Vec<String>,
    /// How its process ended; `None` if it had to be killed.
    pub(super) status: Option<ExitStatus>,
    /// From its start to its end.
    pub(super) took: Duration,
    /// What the host could not do when the guest asked for it.
    pub(super) host_error: Option<String>,
}

/// Run a machine to its end, or until `limit` is over; `on_event` does what the guest asks for. What it says is written to
/// `console` as well, for those that watch.
pub(super) fn run(
    command: &mut Command,
    limit: Duration,
    console: &mut dyn Write,
    mut on_event: impl FnMut(&str) -> Result<Next, String>,
) -> Result<Outcome, String> {
    let mut group = Group::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()))?;
    let (sender, lines) = mpsc::channel();
    if let (Some(console), Some(reports)) = (group.first.stdout.take(), group.first.stderr.take()) {
        read_lines(console, From::Console, sender.clone());
        read_lines(reports, From::Reports, sender);
    }
    let mut outcome = Outcome::default();
    let started = Instant::now();
    let mut end = started + limit;
    loop {
        match lines.recv_timeout(LOOK) {
            Ok((From::Console, line)) => {
                // It is kept for the verdict in any case.
                let _ = writeln!(console, "{line}");
                outcome.console.push(line);
            }
            Ok((From::Reports, line)) => match line.strip_prefix(REPORT) {
                Some(report) => {
                    outcome.reports.push(report.to_owned());
                    if is_failure(report) {
                        end = end.min(Instant::now() + GRACE);
                    }
                    match report.strip_prefix("event ").map(|event| (event, on_event(event))) {
                        None | Some((_, Ok(Next::GoesOn))) => {}
                        Some((_, Ok(Next::IsKilled))) => group.kill(),
                        Some((event, Err(error))) => {
                            outcome.host_error = Some(format!("event '{event}': {error}"));
                            group.kill();
                        }
                    }
                }
                None => outcome.monitor.push(line),
            },
            // It will not say more, but has to end as well.
            Err(RecvTimeoutError::Disconnected) => thread::park_timeout(LOOK),
            Err(RecvTimeoutError::Timeout) => {}
        }
        outcome.status = group.ended();
        if outcome.status.is_some() || Instant::now() > end {
            outcome.took = started.elapsed();
            // Its last lines are in the pipes; they end when no process holds them open.
            group.kill();
            drain(&lines, &mut outcome);
            return Ok(outcome);
        }
    }
}

fn is_failure(report: &str) -> bool {
    report.starts_with("error") || report.starts_with("failed")
}

fn drain(lines: &Receiver<(From, String)>, outcome: &mut Outcome) {
    for (from, line) in lines {
        match (from, line.strip_prefix(REPORT)) {
            (From::Console, _) => outcome.console.push(line),
            (From::Reports, Some(report)) => outcome.reports.push(report.to_owned()),
            (From::Reports, None) => outcome.monitor.push(line),
        }
    }
}

fn read_lines(stream: impl Read + Send + 'static, from: From, lines: Sender<(From, String)>) {
    thread::spawn(move || {
        let mut stream = BufReader::new(stream);
        let mut bytes = Vec::new();
        while stream.read_until(b'\n', &mut bytes).is_ok_and(|length| length > 0) {
            let is_whole = bytes.ends_with(b"\n");
            let line = String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\r']).to_owned();
            // Half a number of a guest that was killed is another number.
            let is_report = from == From::Reports && line.starts_with(REPORT);
            if (is_report && !is_whole) || lines.send((from, line)).is_err() {
                break;
            }
            bytes.clear();
        }
    });
}

impl Outcome {
    /// Did the guest do what it was to do, and nothing else? `allowed` are alarms that this scenario provokes.
    pub(super) fn judge(&self, allowed: &[&str]) -> Result<(), String> {
        self.judge_so_far(allowed)?;
        let Some(status) = self.status else {
            return Err("the guest did not end in time: something hangs".to_owned());
        };
        if self.reports.iter().filter(|report| *report == "passed").count() != 1 {
            return Err(format!("the guest ended without a word on how the test went ({status})"));
        }
        if !status.success() {
            let signal = status.signal().map(|signal| format!(", signal {signal}")).unwrap_or_default();
            return Err(format!("the test passed, but the machine ended with {status}{signal}"));
        }
        Ok(())
    }

    /// Was all well until the machine was killed?
    pub(super) fn judge_killed(&self, allowed: &[&str]) -> Result<(), String> {
        /// `SIGKILL`
        const KILLED: i32 = 9;
        self.judge_so_far(allowed)?;
        match self.status {
            Some(status) if status.signal() == Some(KILLED) => Ok(()),
            Some(status) => Err(format!("the machine was to be killed, and ended before ({status})")),
            None => Err("the guest never came so far that it could be killed: something hangs".to_owned()),
        }
    }

    fn judge_so_far(&self, allowed: &[&str]) -> Result<(), String> {
        if let Some(error) = &self.host_error {
            return Err(error.clone());
        }
        let is_alarm = |line: &&String| ALARMS.iter().any(|alarm| line.contains(alarm) && !allowed.contains(alarm));
        if let Some(line) = self.console.iter().find(is_alarm) {
            return Err(format!("the guest's kernel says: {line}"));
        }
        if let Some(report) = self.reports.iter().find(|report| is_failure(report)) {
            return Err(format!("the guest says: {report}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// Run a shell script as a machine.
    fn machine(script: &str) -> Outcome {
        run(Command::new("sh").args(["-c", script]), Duration::from_secs(60), &mut io::sink(), |_| Ok(Next::GoesOn))
            .expect("there is a shell")
    }

    #[test]
    fn guest_that_passes_and_ends_well_passes() {
        let outcome = machine("echo booted; echo 'fipsee-vm: passed' >&2");
        assert_eq!(outcome.judge(&[]), Ok(()));
        assert_eq!((outcome.console, outcome.reports), (vec!["booted".to_owned()], vec!["passed".to_owned()]));
    }

    #[test]
    fn silent_end_bad_status_and_failure_fail() {
        for script in [
            "echo booted",
            "echo 'fipsee-vm: passed' >&2; exit 1",
            "echo 'fipsee-vm: passed' >&2; kill -SEGV $$",
            "echo 'fipsee-vm: failed: data' >&2; echo 'fipsee-vm: passed' >&2",
            "echo 'fipsee-vm: passed'",
        ] {
            assert!(machine(script).judge(&[]).is_err(), "{script}");
        }
    }

    #[test]
    fn every_alarm_on_the_console_fails_unless_the_scenario_provokes_it() {
        for alarm in ALARMS {
            let outcome = machine(&format!("echo '[ 1.0] x {alarm} y'; echo 'fipsee-vm: passed' >&2"));
            assert!(outcome.judge(&[]).is_err(), "{alarm}");
            let others: Vec<_> = ALARMS.into_iter().filter(|other| alarm.contains(other)).collect();
            assert_eq!(outcome.judge(&others), Ok(()), "{alarm}");
        }
    }

    #[test]
    fn guest_that_hangs_fails_and_nothing_of_it_stays() {
        // A process of its own keeps the console open: the run ends only if that one is killed as well.
        let mut command = Command::new("sh");
        command.args(["-c", "echo 'fipsee-vm: passed' >&2; sleep 1000 & wait"]);
        let outcome =
            run(&mut command, Duration::from_millis(300), &mut io::sink(), |_| Ok(Next::GoesOn)).expect("there is a shell");
        assert!(outcome.judge(&[]).expect_err("it hangs").contains("hangs"));
    }

    #[test]
    fn guest_that_fails_and_then_hangs_is_not_waited_for() {
        let script = "echo 'fipsee-vm: error: files are not what they were: ./one' >&2; sleep 1000";
        let outcome =
            run(Command::new("sh").args(["-c", script]), Duration::from_secs(1000), &mut io::sink(), |_| Ok(Next::GoesOn))
                .expect("a shell");
        assert!(outcome.judge(&[]).expect_err("it failed").contains("./one"));
        assert!(outcome.status.is_none(), "it had to be killed");
    }

    #[test]
    fn group_and_folder_end_with_this_process() {
        // When this process ends in whatever way, the other ends of these pipes close: no other process holds them.
        let mut group = Group::spawn(Command::new("sh").args(["-c", "sleep 60 & sleep 60; exit 0"])).expect("there is a shell");
        drop(group._guard.0.stdin.take());
        let status = group.first.wait().expect("it ends");
        assert_eq!(status.signal(), Some(9), "{status}");

        let folder = std::env::temp_dir().join(format!("fipsee-vm-will-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("below")).expect("a folder");
        let mut guard = CleanupGuard::remove(&folder).expect("there is a shell");
        drop(guard.0.stdin.take());
        guard.0.wait().expect("it ends");
        assert!(!folder.exists());
    }

    #[test]
    fn cleanup_guard_of_a_live_process_does_nothing() {
        let folder = std::env::temp_dir().join(format!("fipsee-vm-kept-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        drop(CleanupGuard::remove(&folder).expect("there is a shell"));
        assert!(folder.exists());
        std::fs::remove_dir(&folder).expect("it is there");
    }

    #[test]
    fn events_reach_the_host_and_its_failure_ends_the_guest() {
        let mut events = Vec::new();
        let script = "echo 'fipsee-vm: event one' >&2; echo 'fipsee-vm: passed' >&2";
        let run_with = |on_event: &mut dyn FnMut(&str) -> Result<Next, String>| {
            run(Command::new("sh").args(["-c", script]), Duration::from_secs(60), &mut io::sink(), on_event)
                .expect("there is a shell")
        };
        let outcome = run_with(&mut |event| {
            events.push(event.to_owned());
            Ok(Next::GoesOn)
        });
        assert_eq!((outcome.judge(&[]), events), (Ok(()), vec!["one".to_owned()]));
        let outcome = run_with(&mut |_| Err("no".to_owned()));
        assert!(outcome.judge(&[]).expect_err("the host failed").contains("event 'one': no"));
    }
    #[test]
    fn machine_is_killed_by_the_host_and_half_a_line_is_not_processed() {
        let script = "printf 'fipsee-vm: event kill\nfipsee-vm: event done 12' >&2; sleep 1000";
        let outcome =
            run(Command::new("sh").args(["-c", script]), Duration::from_secs(60), &mut io::sink(), |_| Ok(Next::IsKilled))
                .expect("there is a shell");
        assert_eq!((outcome.judge_killed(&[]), outcome.reports.as_slice()), (Ok(()), &["event kill".to_owned()][..]));
        assert!(machine("echo 'fipsee-vm: passed' >&2").judge_killed(&[]).is_err_and(|error| error.contains("ended before")));
    }
}
