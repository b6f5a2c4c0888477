//! Other processes, as far as `/proc` shows them: is one ending, and what is it called?
//!
//! A process that was killed ends at its own pace: its memory is unmapped, and its files are closed, long after kill(2) has
//! returned. Until then its locks are held, and the start of the next daemon must not take them for those of a running one.

use std::path::Path;

/// Bit 8 of the masks in `/proc/PID/status`: SIGKILL is number 9, and the mask begins with number 1.
const KILLED: u64 = 1 << 8;
const SIGKILL: u32 = 9;
/// Fields of `/proc/PID/stat`, counted from the state, which follows the name (proc_pid_stat(5)).
const FLAGS_FIELD: usize = 6;
const EXIT_CODE_FIELD: usize = 49;
/// `PF_EXITING` of the kernel: the task is in do_exit.
const EXITING: u32 = 0x4;

/// Is this process gone, or about to be: a zombie, exiting, ended by SIGKILL, or with that signal pending for it or for any
/// of its threads? To a caller that may not trace the process the kernel does not show what ended it. Then a thread that has
/// taken the signal off its mask shows nothing until it begins to exit, and waits for requests in flight first: such a caller
/// asks again a little later.
pub fn is_ending(pid: u32) -> bool {
    let process = Path::new("/proc").join(pid.to_string());
    let Ok(stat) = std::fs::read_to_string(process.join("stat")) else { return true };
    let Ok(threads) = std::fs::read_dir(process.join("task")) else { return true };
    // A single thread that exits is no sign: that happens all the time.
    is_exiting(&stat)
        || threads
            .flatten()
            .any(|thread| std::fs::read_to_string(thread.path().join("status")).is_ok_and(|text| is_killed(&text)))
}

pub fn name_of(pid: u32) -> Option<String> {
    let name = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("comm")).ok()?;
    Some(name.trim_end().to_owned())
}

/// From `/proc/PID/stat`: the state, the flags and, from kill(2) on, the signal that ends the process. The name may hold
/// anything, closing brackets too.
fn is_exiting(stat: &str) -> bool {
    let Some((_, fields)) = stat.rsplit_once(')') else { return false };
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let number = |position: usize| fields.get(position)?.parse::<u32>().ok();
    matches!(fields.first(), Some(&("Z" | "X" | "x")))
        || number(FLAGS_FIELD).is_some_and(|flags| flags & EXITING != 0)
        || number(EXIT_CODE_FIELD) == Some(SIGKILL)
}

/// From `/proc/PID/status`: signals pending for the thread, and for the whole process.
fn is_killed(status: &str) -> bool {
    status.lines().filter_map(|line| line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))).any(|mask| {
        let mask = u64::from_str_radix(mask.trim(), 16);
        mask.is_ok_and(|mask| mask & KILLED != 0)
    })
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel about processes")]
    fn a_stopped_process_is_not_ending_until_it_is_killed() {
        let mut child = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().expect("a process");
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("stopped");
        assert!(!is_ending(child.id()));
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
        // From the moment that kill(2) returns, until it is waited for, and afterwards.
        assert!((0..200).all(|_| is_ending(child.id())));
        child.wait().expect("its end");
        assert!(is_ending(child.id()), "gone");
        assert_eq!(name_of(child.id()), None);
    }

    #[test]
    fn flags_are_found_behind_any_name() {
        let stat = |name: &str, state: &str, flags: u32| format!("71 ({name}) {state} 1 71 71 0 -1 {flags} 103 0 0");
        for name in ["a", "a b", ") Z 1 2", ":-) 4 4 4 4 4 4 4"] {
            assert!(!is_exiting(&stat(name, "S", 0x0040_0040)), "{name}");
            assert!(is_exiting(&stat(name, "S", 0x0040_0044)), "{name}");
            assert!(is_exiting(&stat(name, "Z", 0)) && is_exiting(&stat(name, "X", 0)), "{name}");
        }
        assert!(!is_exiting("") && !is_exiting("71 (a) S 1"));
        // Ten fields from the state on in `stat` above, then those up to the exit code.
        let ended_by = |code: u32| format!("{}{} {code}", stat("a", "S", 0), " 0".repeat(EXIT_CODE_FIELD - 10));
        assert!(is_exiting(&ended_by(9)) && !is_exiting(&ended_by(0)) && !is_exiting(&ended_by(19)), "19: stopped");
    }

    #[test]
    fn sigkill_is_found_in_both_masks_and_other_signals_are_not() {
        let status =
            |own: &str, shared: &str| format!("Name:\ta\nSigPnd:\t{own}\nShdPnd:\t{shared}\nSigBlk:\tffffffffffffffff\n");
        let (none, kill, others) = ("0000000000000000", "0000000000000100", "fffffffffffffeff");
        assert!(is_killed(&status(kill, none)) && is_killed(&status(none, kill)));
        assert!(!is_killed(&status(none, none)) && !is_killed(&status(others, others)));
    }
}
