//! Processes: what the kernel says about them, and their ends.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use rustix::process::{Gid, Signal, Uid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, set_capabilities, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use crate::eventually;

/// Descriptors of an idle process: its last request may leave some open for a moment after the
/// answer (its copies of a client's ends, an admin connection), so the count must be stable first.
pub fn fd_count(pid: u32) -> usize {
    const EQUAL_LOOKS: u32 = 30;
    let count_now = || std::fs::read_dir(format!("/proc/{pid}/fd")).expect("a live process").count();
    let (mut count, mut looks) = (count_now(), 0);
    eventually("the number of descriptors is stable", || {
        let now = count_now();
        looks = if now == count { looks + 1 } else { 0 };
        count = now;
        looks >= EQUAL_LOOKS
    });
    count
}

pub fn mapping_count(pid: u32) -> usize {
    std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("a live process").lines().count()
}

pub fn resident_bytes(pid: u32) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).expect("a live process");
    let field = |index: usize| statm.split(' ').nth(index).and_then(|word| word.parse::<u64>().ok()).expect("a number");
    // Without the shared pages, which are those of channels.
    (field(1) - field(2)) * rustix::param::page_size() as u64
}

/// Processor time, user and system, of all threads of a process, ended ones too; `None`: it is gone.
pub fn process_time(pid: u32) -> Option<Duration> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?);
    Some(clock_gettime(ClockId::pid_cpu_clock_id(pid).ok()?).ok()?.into())
}

/// Does every thread of a process have this state, by its letter? With `name`, only those whose names begin so.
pub fn threads_are(pid: u32, name: &str, state: char) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("a live process");
    let stats = threads.flatten().filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok());
    let parts = stats.filter_map(|stat| {
        let (before, after) = stat.rsplit_once(") ")?;
        Some((before.split_once('(')?.1.to_owned(), after.chars().next()?))
    });
    parts.filter(|(thread, _)| thread.starts_with(name)).all(|(_, now)| now == state)
}

/// A stopped process runs on until its main thread, and then each other thread, handles the signal.
pub fn is_stopped(pid: u32) -> bool {
    threads_are(pid, "", 'T')
}

/// Wait until a child process has ended; `None`: it does not.
pub fn exit_within(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let mut status = None;
    crate::holds_within(limit, || {
        status = child.try_wait().expect("a child can be asked");
        status.is_some()
    });
    status
}

/// Do something from a thread as this user, whose primary group has the same number. Only root can.
pub fn as_user<T: Send + 'static>(id: u32, groups: &[u32], act: impl FnOnce() -> T + Send + 'static) -> T {
    as_user_of_group((id, id), groups, act)
}

/// Do something from a thread with this user and primary group, which its connections keep. Only root can.
pub fn as_user_of_group<T: Send + 'static>(
    (user, group): (u32, u32),
    groups: &[u32],
    act: impl FnOnce() -> T + Send + 'static,
) -> T {
    let groups: Vec<Gid> = groups.iter().map(|group| Gid::from_raw(*group)).collect();
    let change = move || {
        set_thread_groups(&groups).expect("root may");
        let (group, user) = (Gid::from_raw(group), Uid::from_raw(user));
        set_thread_res_gid(group, group, group).expect("root may");
        set_thread_res_uid(user, user, user).expect("root may");
        act()
    };
    std::thread::spawn(change).join().expect("a thread")
}

/// Give up what root may do beyond others, in this thread alone.
pub fn drop_capabilities() {
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none }).expect("giving up is allowed");
}

/// A process that is killed when dropped.
#[derive(Debug)]
pub struct Guard(pub Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Have what `command` starts end with the thread that starts it, even if this process is killed.
pub fn die_with_parent(command: &mut Command) -> &mut Command {
    let parent = rustix::process::getpid();
    let tie = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
        // The parent may have died before that.
        if rustix::process::getppid() == Some(parent) { Ok(()) } else { Err(std::io::ErrorKind::Interrupted.into()) }
    };
    // SAFETY: the closure makes two system calls and allocates nothing.
    unsafe { command.pre_exec(tie) }
}

/// Wait until a child process prints a line that contains `word`.
pub fn await_word(child: &mut Child, word: &str) {
    let mut output = BufReader::new(child.stdout.as_mut().expect("its output is piped"));
    let mut line = String::new();
    while !line.contains(word) {
        line.clear();
        assert!(output.read_line(&mut line).expect("a pipe") > 0, "the child process ended without printing '{word}'");
    }
}
