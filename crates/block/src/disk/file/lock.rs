//! The locks of a disk's file: one of flock(2) against other daemons, and locks of ranges, as QEMU and others take them, against
//! all other programs that write images.
//!
//! Both belong to the open file, pass with it to a daemon that takes over, and end when the kernel has finished requests in
//! flight.

use std::fs::{File, Metadata};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::Path;

use fipsee_ring::held::{self, LockError, LockKind};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::FileOptions;
use super::mode::{NFS_MAGIC, magic_of};

const EVERYTHING: Range<i64> = 0..i64::MAX;
/// QEMU's bytes: a read lock of byte 100 + N means "this process does N", of byte 200 + N "no other process may do N". 0:
/// consistent read, 1: write, 2: write the same again, 3: resize. We read, and no other process may write or resize.
const OF_READERS: [Range<i64>; 4] = [0..101, 104..200, 201..202, 203..i64::MAX];
/// The locks of writers.
const OF_QEMU_WRITERS: Range<i64> = 101..104;

/// Lock the file for as long as it is open: many daemons may serve it for reading, or one for writing.
pub(super) fn lock(options: &FileOptions, file: &File) -> Result<(), String> {
    let path = options.path.display();
    lock_against_daemons(&options.path, file, options.read_only)?.map_err(|errno| {
        format!("{path} cannot be locked ({errno}); its file system must support flock(2), or another daemon could serve it too")
    })?;
    lock_against_others(&options.path, file, options.read_only)
}

/// Lock a file that is no disk, for as long as it is open, before it is overwritten: not while a daemon serves it or another
/// program has locked it. A file system without locks has none to respect.
///
/// # Errors
/// The program that uses the file.
pub fn lock_to_overwrite(path: &Path, file: &File) -> Result<(), String> {
    let _ = lock_against_daemons(path, file, false)?;
    lock_against_others(path, file, false)
}

/// The same before it is read as a whole: programs that only read it, too, do no harm.
///
/// # Errors
/// The program that may write the file.
pub fn lock_to_copy(path: &Path, file: &File) -> Result<(), String> {
    let _ = lock_against_daemons(path, file, true)?;
    lock_against_others(path, file, true)
}

/// flock(2): an error inside, if the file system has none.
fn lock_against_daemons(path: &Path, file: &File, read_only: bool) -> Result<Result<(), Errno>, String> {
    let path = path.display();
    let metadata = file.metadata().map_err(|error| format!("{path}: {error}"))?;
    let how = if read_only { FlockOperation::NonBlockingLockShared } else { FlockOperation::NonBlockingLockExclusive };
    match held::take(|| rustix::fs::flock(file, how), || held::holder(LockKind::Flock, &metadata)) {
        Ok(()) => Ok(Ok(())),
        Err(LockError::Failed(errno)) => Ok(Err(errno)),
        Err(LockError::Held(pid)) => Err(format!(
            "{path} is in use{}: it is locked with flock(2), and one writer or many readers (ro) may have it; stop the other one",
            describe(pid)
        )),
    }
}

/// Locks of ranges with fcntl(2).
fn lock_against_others(path: &Path, file: &File, read_only: bool) -> Result<(), String> {
    // On NFS flock(2) is a lock of the whole range at the server: our two locks would exclude each other.
    if magic_of(file) == NFS_MAGIC {
        return Ok(());
    }
    let path = path.display();
    let metadata = file.metadata().map_err(|error| format!("{path}: {error}"))?;
    let ranges = held::take(|| lock_ranges(file, read_only), || range_holder(file, &metadata, read_only));
    match ranges {
        Err(LockError::Held(pid)) => Err(format!(
            "{path} is in use{}: parts of it are locked with fcntl(2), as QEMU does with its images; stop that program (`lslocks` and `fuser \
             -v {path}` show it): a file that something else writes is not supported",
            describe(pid)
        )),
        // Without such locks on this file system, other processes cannot have any either.
        Err(LockError::Failed(_)) | Ok(()) => Ok(()),
    }
}

fn describe(holder: Option<u32>) -> String {
    let another = if holder == Some(std::process::id()) { ", as another disk" } else { "" };
    held::describe(holder) + another
}

/// All or nothing. Lock first and check then, as QEMU does: of two at the same time, at least one sees the other.
fn lock_ranges(file: &File, read_only: bool) -> Result<(), Errno> {
    if !read_only {
        return change(file, libc::F_WRLCK, EVERYTHING);
    }
    let locked = OF_READERS.into_iter().try_for_each(|range| change(file, libc::F_RDLCK, range));
    let locked = locked.and_then(|()| match conflict(file, libc::F_WRLCK, OF_QEMU_WRITERS) {
        Some(_) => Err(Errno::AGAIN),
        None => Ok(()),
    });
    locked.inspect_err(|_| {
        let _ = change(file, libc::F_UNLCK, EVERYTHING);
    })
}

/// The process that holds the conflicting lock. The kernel names it for a lock of a process, but not for one of an open file.
fn range_holder(file: &File, metadata: &Metadata, read_only: bool) -> Option<u32> {
    let found = if read_only {
        let of_others = OF_READERS.into_iter().find_map(|range| conflict(file, libc::F_RDLCK, range));
        of_others.or_else(|| conflict(file, libc::F_WRLCK, OF_QEMU_WRITERS))
    } else {
        conflict(file, libc::F_WRLCK, EVERYTHING)
    };
    let lock = found?;
    let process = u32::try_from(lock.l_pid).ok().filter(|pid| *pid > 0);
    process.or_else(|| held::holder(LockKind::OpenFile(lock.l_start), metadata))
}

fn change(file: &File, kind: i32, range: Range<i64>) -> Result<(), Errno> {
    let lock = request(kind, range);
    // SAFETY: the descriptor is open, and the kernel only reads the structure, which is whole.
    let outcome = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    let errno = || Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO);
    if outcome == 0 { Ok(()) } else { Err(errno()) }
}

/// The first lock of another holder that conflicts with such a lock.
fn conflict(file: &File, kind: i32, range: Range<i64>) -> Option<libc::flock> {
    let mut lock = request(kind, range);
    // SAFETY: the descriptor is open, and the kernel reads and writes the structure, which is whole and ours alone.
    let outcome = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    (outcome == 0 && i32::from(lock.l_type) != libc::F_UNLCK).then_some(lock)
}

fn request(kind: i32, range: Range<i64>) -> libc::flock {
    // A length of 0 is to the end, wherever that will be.
    let length = if range.end == i64::MAX { 0 } else { range.end - range.start };
    libc::flock {
        l_type: i16::try_from(kind).unwrap_or_default(),
        l_whence: i16::try_from(libc::SEEK_SET).unwrap_or_default(),
        l_start: range.start,
        l_len: length,
        // It must be 0 in a request about an open file.
        l_pid: 0,
    }
}
