//! Errors and stalls of a disk: workers record them without waiting, and a thread that may wait drains them into the log.
//!
//! A worker only counts, stores the first fault since the last drain in a slot for it, and rings a doorbell once. Of many
//! errors the log names one, with their number.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fipsee_ring::doorbell::EventDoorbell;
use fipsee_serve::uring;
use rustix::io::Errno;

use crate::wire::Operation;

/// The operations of a disk, by their names in messages.
pub(super) const OPERATIONS: [(&str, Operation); 5] = [
    ("read", Operation::Read),
    ("write", Operation::Write),
    ("flush", Operation::Flush),
    ("discard", Operation::Discard),
    ("write-zeroes", Operation::WriteZeroes),
];

macro_rules! errnos {
    ($($name:ident)+) => { &[$((Errno::$name, concat!("E", stringify!($name)))),+] };
}

/// Errors by name. Others have their number.
const ERRNO_NAMES: &[(Errno, &str)] = errnos! {
    ACCESS AGAIN BADF BUSY DQUOT FBIG ILSEQ INTR INVAL IO NODATA NODEV NOLINK NOMEDIUM NOMEM NOSPC NXIO OPNOTSUPP PERM REMOTEIO
    ROFS STALE TIMEDOUT TXTBSY
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A request failed; `None`: the file ended before the disk does.
    Failed(Option<Errno>),
    /// A request is in flight for this time.
    Stalled(Duration),
    /// A request that was reported as stalled has ended after this time.
    Ended(Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    pub fault: Fault,
    pub operation: &'static str,
    /// The sector; none for a flush.
    pub sector: Option<u64>,
    pub count: u64,
}

/// The operation that a request waits for, and the record for a stall.
#[derive(Clone, Debug)]
pub struct Awaited {
    pub(super) faults: Arc<Faults>,
    pub(super) operation: Operation,
    pub(super) sector: u64,
}

impl uring::Awaited for Awaited {
    fn stalled(&self, age: Duration) {
        self.faults.stalled(self.operation, self.sector, age);
    }

    fn stall_ended(&self, age: Duration) {
        self.faults.stall_ended(self.operation, self.sector, age);
    }
}

const EMPTY: u8 = 0;
const BEING_WRITTEN: u8 = 1;
const FULL: u8 = 2;

/// One kind of fault: how many since the last drain, and the first of them.
#[derive(Debug, Default)]
struct FaultCounter {
    count: AtomicU64,
    state: AtomicU8,
    operation: AtomicU8,
    sector: AtomicU64,
    detail: AtomicU64,
}

impl FaultCounter {
    fn put(&self, operation: u8, sector: u64, detail: u64) {
        // Counted before the slot is read, and the slot is freed before the count is taken: at least one of the two is seen.
        self.count.fetch_add(1, Ordering::SeqCst);
        let claimed = self.state.compare_exchange(EMPTY, BEING_WRITTEN, Ordering::SeqCst, Ordering::SeqCst);
        if claimed.is_ok() {
            self.operation.store(operation, Ordering::Relaxed);
            self.sector.store(sector, Ordering::Relaxed);
            self.detail.store(detail, Ordering::Relaxed);
            self.state.store(FULL, Ordering::Release);
        }
    }

    /// Operation, sector and detail of the first, and how many there were.
    fn take(&self) -> Option<(u8, u64, u64, u64)> {
        if self.state.load(Ordering::Acquire) != FULL {
            return None;
        }
        let operation = self.operation.load(Ordering::Relaxed);
        let (sector, detail) = (self.sector.load(Ordering::Relaxed), self.detail.load(Ordering::Relaxed));
        self.state.store(EMPTY, Ordering::SeqCst);
        // A fault in between is counted now and found in the slot the next time, with later ones.
        let count = self.count.swap(0, Ordering::SeqCst);
        (count > 0).then_some((operation, sector, detail, count))
    }
}

/// The faults of one disk. Any thread may record; one drains.
#[derive(Debug, Default)]
pub struct Faults {
    path: Option<PathBuf>,
    /// Requests that failed since the disk was opened, in the order of [`OPERATIONS`].
    failed: [AtomicU64; OPERATIONS.len()],
    stalled: AtomicU64,
    failures: FaultCounter,
    stalls: FaultCounter,
    ends: FaultCounter,
    /// There is something to drain, and the doorbell was rung for it.
    is_pending: AtomicBool,
    doorbell: OnceLock<EventDoorbell>,
}

impl Faults {
    /// None yet. `path`: the disk's path, if it has one.
    pub fn new(path: Option<&Path>) -> Self {
        Self { path: path.map(Path::to_owned), ..Self::default() }
    }

    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Ring this doorbell from now on when there is something to drain; at once, if there is.
    pub fn ring_at(&self, doorbell: &EventDoorbell) {
        let _ = self.doorbell.set(doorbell.clone());
        if self.is_pending.load(Ordering::Acquire) {
            doorbell.ring();
        }
    }

    #[cold]
    pub fn failed(&self, operation: Operation, sector: u64, errno: Option<Errno>) {
        self.failed[usize::from(index_of(operation))].fetch_add(1, Ordering::Relaxed);
        self.put(&self.failures, operation, sector, errno.map_or(0, |errno| u64::from(errno.raw_os_error().unsigned_abs())));
    }

    #[cold]
    pub(super) fn stalled(&self, operation: Operation, sector: u64, age: Duration) {
        self.stalled.fetch_add(1, Ordering::Relaxed);
        self.put(&self.stalls, operation, sector, nanoseconds(age));
    }

    #[cold]
    pub(super) fn stall_ended(&self, operation: Operation, sector: u64, duration: Duration) {
        self.stalled.fetch_sub(1, Ordering::Relaxed);
        self.put(&self.ends, operation, sector, nanoseconds(duration));
    }

    fn put(&self, channel: &FaultCounter, operation: Operation, sector: u64, detail: u64) {
        channel.put(index_of(operation), sector, detail);
        if !self.is_pending.swap(true, Ordering::AcqRel)
            && let Some(doorbell) = self.doorbell.get()
        {
            doorbell.ring();
        }
    }

    pub fn is_pending(&self) -> bool {
        self.is_pending.load(Ordering::Acquire)
    }

    /// The faults since the last drain: at most one report of each kind.
    pub fn drain(&self) -> impl Iterator<Item = Report> {
        self.is_pending.swap(false, Ordering::AcqRel);
        let failed = |detail| Fault::Failed(errno_of(detail));
        let reports = [
            self.failures.take().map(|taken| report(taken, failed)),
            self.stalls.take().map(|taken| report(taken, |ns| Fault::Stalled(Duration::from_nanos(ns)))),
            self.ends.take().map(|taken| report(taken, |ns| Fault::Ended(Duration::from_nanos(ns)))),
        ];
        reports.into_iter().flatten()
    }

    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        OPERATIONS.iter().zip(&self.failed).map(|((name, _), count)| (*name, count.load(Ordering::Relaxed)))
    }

    /// Requests that are now in flight for too long.
    pub fn stalled_now(&self) -> u64 {
        self.stalled.load(Ordering::Relaxed)
    }
}

fn report((operation, sector, detail, count): (u8, u64, u64, u64), fault: impl Fn(u64) -> Fault) -> Report {
    let (operation, what) = OPERATIONS[usize::from(operation) % OPERATIONS.len()];
    Report { fault: fault(detail), operation, sector: (what != Operation::Flush).then_some(sector), count }
}

/// Other operations cannot fail at a disk.
fn index_of(operation: Operation) -> u8 {
    let found = OPERATIONS.iter().position(|(_, other)| *other == operation);
    found.and_then(|index| u8::try_from(index).ok()).unwrap_or(0)
}

fn errno_of(detail: u64) -> Option<Errno> {
    i32::try_from(detail).ok().filter(|number| *number > 0).map(Errno::from_raw_os_error)
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

pub fn errno_name(errno: Errno) -> Cow<'static, str> {
    let known = ERRNO_NAMES.iter().find(|(known, _)| *known == errno);
    known.map_or_else(|| format!("errno {}", errno.raw_os_error()).into(), |(_, name)| (*name).into())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustix::event::{PollFd, PollFlags, Timespec};

    use super::*;

    fn is_ringing(doorbell: &EventDoorbell) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut [PollFd::new(doorbell, PollFlags::IN)], Some(&now)).expect("poll") > 0
    }

    fn quiet(doorbell: &EventDoorbell) {
        rustix::io::read(doorbell, &mut [0; 8]).expect("it rang");
    }

    #[test]
    fn doorbell_rings_once_for_each_drain_and_for_faults_before_it_was_set() {
        let (faults, doorbell) = (Faults::new(None), EventDoorbell::new().expect("a doorbell"));
        faults.failed(Operation::Read, 0, None);
        faults.ring_at(&doorbell);
        assert!(is_ringing(&doorbell));
        quiet(&doorbell);
        faults.failed(Operation::Read, 0, None);
        assert!(!is_ringing(&doorbell), "it has rung, and no drain has followed");
        assert_eq!(faults.drain().map(|report| report.count).sum::<u64>(), 2);
        faults.failed(Operation::Read, 0, None);
        assert!(is_ringing(&doorbell) && faults.is_pending());
    }

    #[test]
    fn nothing_is_lost_between_threads() {
        const EACH: u64 = 20_000;
        let faults = Arc::new(Faults::new(None));
        let recorders: Vec<_> = (0..4)
            .map(|sector| {
                let faults = Arc::clone(&faults);
                std::thread::spawn(move || (0..EACH).for_each(|_| faults.failed(Operation::Read, sector, Some(Errno::IO))))
            })
            .collect();
        let mut seen = 0;
        let mut drain = || {
            for report in faults.drain() {
                assert_eq!((report.fault, report.operation), (Fault::Failed(Some(Errno::IO)), "read"));
                assert!(report.sector.is_some_and(|sector| sector < 4));
                seen += report.count;
            }
        };
        while !recorders.iter().all(std::thread::JoinHandle::is_finished) {
            drain();
        }
        recorders.into_iter().for_each(|recorder| recorder.join().expect("a recorder"));
        // The last may have been counted before its slot was free.
        faults.failed(Operation::Read, 0, Some(Errno::IO));
        drain();
        faults.failed(Operation::Read, 0, Some(Errno::IO));
        drain();
        assert_eq!(seen, 4 * EACH + 2);
    }

    #[test]
    fn errors_have_names_or_at_least_numbers() {
        assert_eq!(errno_name(Errno::IO), "EIO");
        assert_eq!(errno_name(Errno::NOSPC), "ENOSPC");
        assert_eq!(errno_name(Errno::from_raw_os_error(133)), "errno 133");
    }
}
