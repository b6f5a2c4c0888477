//! Locks that belong to an open file, and which process holds one that cannot be had.
//!
//! A lock of flock(2), and one of `F_OFD_SETLK`, ends when the open file does: when the last descriptor of it is closed, and
//! nothing in the kernel uses it any more. A process that was killed keeps its locks until then: requests in flight at a device
//! take their time.

use std::fs::{DirEntry, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{major, minor};
use rustix::io::Errno;

use crate::process::{is_ending, name_of};

/// How long a lock of a process that has ended, or is about to, is waited for: longer than a disk needs for what was in flight.
const GRACE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(5);
/// A holder that has shown no sign of its end for this long is taken to be running: see `is_ending`.
const ALIVE: Duration = Duration::from_millis(100);

/// Which kind of lock, as `/proc/locks` calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// Of flock(2).
    Flock,
    /// Of a range that begins at this byte, by an open file.
    OpenFile(i64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockError {
    /// By this process, as far as the kernel knows.
    Held(Option<u32>),
    /// The file cannot be locked at all.
    Failed(Errno),
}

/// Have `attempt` take a lock. A process that holds it and runs on is a refusal after a tenth of a second; one that is ending, is
/// gone or cannot be found gets five seconds. `holder` finds it.
///
/// # Errors
/// Which process holds it, or what `attempt` said apart from that.
pub fn take(mut attempt: impl FnMut() -> Result<(), Errno>, holder: impl Fn() -> Option<u32>) -> Result<(), LockError> {
    let deadline = Instant::now() + GRACE;
    let mut alive_since = None;
    loop {
        match attempt() {
            Ok(()) => return Ok(()),
            Err(Errno::AGAIN | Errno::ACCESS) => {}
            Err(errno) => return Err(LockError::Failed(errno)),
        }
        let found = holder();
        let now = Instant::now();
        alive_since = found.filter(|pid| !is_ending(*pid)).and(alive_since.or(Some(now)));
        if now > deadline || alive_since.is_some_and(|since| now.duration_since(since) > ALIVE) {
            return Err(LockError::Held(found));
        }
        std::thread::sleep(PAUSE); // tidy: allow sleep, nothing reports when a lock of a process that is gone ends
    }
}

/// The process that holds a lock of this kind on a file. `None`: it is gone or unknown.
pub fn holder(kind: LockKind, file: &Metadata) -> Option<u32> {
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let taker = taker(&locks, kind, file);
    // The process that took it need not be the one that has it: a descriptor goes from a daemon to the next, and a lock of an
    // open file names no process.
    taker.filter(|pid| Path::new("/proc").join(pid.to_string()).exists()).or_else(|| find_owner(kind, file))
}

/// Words about a holder, to follow "is in use".
pub fn describe(holder: Option<u32>) -> String {
    match holder {
        None => String::new(),
        Some(pid) if pid == std::process::id() => " by this very process".to_owned(),
        Some(pid) => format!(" by process {pid} ({})", name_of(pid).as_deref().unwrap_or("which is gone")),
    }
}

fn taker(locks: &str, kind: LockKind, file: &Metadata) -> Option<u32> {
    let takers = |place: &str| locks.lines().find_map(|line| lock_of(line, kind, place)?.parse().ok().filter(|pid| *pid > 0));
    let inode = format!(":{}", file.ino());
    let place = format!("{:02x}:{:02x}{inode}", major(file.dev()), minor(file.dev()));
    // Some file systems (btrfs) report another device to programs than to the kernel.
    takers(&place).or_else(|| takers(&inode))
}

/// The process in a line of `/proc/locks` or `/proc/PID/fdinfo/FD`, if it is about a lock of this kind at this place and not
/// about one that is waited for.
fn lock_of<'a>(line: &'a str, kind: LockKind, place: &str) -> Option<&'a str> {
    let (_, lock) = line.split_once(": ")?;
    let fields: Vec<_> = lock.split_whitespace().collect();
    let [name, _, _, process, found, start, ..] = fields[..] else { return None };
    let (wanted, wanted_start) = match kind {
        LockKind::Flock => ("FLOCK", 0),
        LockKind::OpenFile(start) => ("OFDLCK", start),
    };
    (name == wanted && start.parse() == Ok(wanted_start) && found.ends_with(place)).then_some(process)
}

/// The process with the open file that has the lock. Descriptors of other users' processes are not visible to all.
fn find_owner(kind: LockKind, file: &Metadata) -> Option<u32> {
    let place = format!(":{}", file.ino());
    let has_lock = |descriptor: DirEntry| {
        let shown = std::fs::read_to_string(descriptor.path()).unwrap_or_default();
        let mut locks = shown.lines().filter_map(|line| line.strip_prefix("lock:\t"));
        locks.any(|line| lock_of(line, kind, &place).is_some())
    };
    std::fs::read_dir("/proc").ok()?.flatten().find_map(|process| {
        let pid = process.file_name().to_str()?.parse().ok()?;
        std::fs::read_dir(process.path().join("fdinfo")).ok()?.flatten().any(has_lock).then_some(pid)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_lines_are_understood() {
        let line = "12: FLOCK  ADVISORY  WRITE 4711 fe:01:99 0 EOF";
        assert_eq!(lock_of(line, LockKind::Flock, "fe:01:99"), Some("4711"));
        assert_eq!(lock_of(line, LockKind::Flock, ":99"), Some("4711"));
        assert_eq!(lock_of(line, LockKind::Flock, ":9"), None, "another inode");
        assert_eq!(lock_of(line, LockKind::OpenFile(0), ":99"), None, "another kind");
        assert_eq!(
            lock_of("3: -> FLOCK  ADVISORY  WRITE 4711 fe:01:99 0 EOF", LockKind::Flock, ":99"),
            None,
            "one that is waited for"
        );
        let line = "7: OFDLCK ADVISORY  READ -1 00:2f:99 100 101";
        assert_eq!(lock_of(line, LockKind::OpenFile(100), ":99"), Some("-1"));
        assert_eq!(lock_of(line, LockKind::OpenFile(0), ":99"), None, "another range");
        assert_eq!(lock_of("", LockKind::Flock, ":99"), None);
        assert_eq!(lock_of("1: FLOCK", LockKind::Flock, ":99"), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel about processes")]
    fn file_of_the_right_device_goes_before_one_of_the_same_number() {
        let file = std::fs::metadata("/proc/self/exe").expect("a file");
        let device = format!("{:02x}:{:02x}", major(file.dev()), minor(file.dev()));
        let inode = file.ino();
        let locks =
            format!("1: FLOCK  ADVISORY  WRITE 7 ff:7f:{inode} 0 EOF\n2: FLOCK  ADVISORY  WRITE 8 {device}:{inode} 0 EOF\n");
        assert_eq!(taker(&locks, LockKind::Flock, &file), Some(8));
        assert_eq!(taker(&locks[..locks.find('\n').expect("two lines")], LockKind::Flock, &file), Some(7));
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel about processes")]
    fn a_live_holder_is_a_refusal_and_anything_else_is_waited_for() {
        let own = std::process::id();
        let mut attempts = 0;
        let mut refuse = || {
            attempts += 1;
            Err(Errno::AGAIN)
        };
        assert_eq!(take(&mut refuse, || Some(own)), Err(LockError::Held(Some(own))));
        assert!(attempts > 2, "one look may miss that it ends");
        for holder in [None, Some(u32::MAX)] {
            let mut left = 4;
            let free_at_last = || {
                left -= 1;
                if left > 0 { Err(Errno::AGAIN) } else { Ok(()) }
            };
            assert_eq!(take(free_at_last, || holder), Ok(()));
        }
        assert_eq!(take(|| Err(Errno::NOLCK), || None), Err(LockError::Failed(Errno::NOLCK)));
    }
}
