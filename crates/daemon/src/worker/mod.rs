//! What the daemon's workers serve: disks, to clients and to virtual machines. The workers themselves are in `fipsee_serve`.

mod engine;

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub(crate) use fipsee_block::disk::Engine as DiskEngine;
use fipsee_block::server::DiskQueue;
use fipsee_block::wire::BlockInfo;
use fipsee_serve::{NotQuiesced, When, Which};
use fipsee_virtio::blk::server::GuestDiskQueue;
use nix::time::{ClockId, clock_gettime};

pub(crate) use self::engine::{make_rings_for_machines, spawn, start_engines};
use crate::export::Export;

pub(crate) type Command = fipsee_serve::Command<DiskEngine>;
pub(crate) type WorkerHandle = fipsee_serve::WorkerHandle<DiskEngine>;

/// Announce a disk's new size to every client of the export.
pub(crate) fn announce_resize(export: &Export, info: BlockInfo) -> [Command; 2] {
    let (disk, same) = (Arc::clone(&export.disk), Arc::clone(&export.disk));
    let (all, now) = (Which::All, When::Now);
    [
        Command::change(all, now, move |queue: &mut DiskQueue| queue.announce_resize(&disk, &info)),
        Command::change(all, now, move |queue: &mut GuestDiskQueue| queue.announce_resize(&same, &info)),
    ]
}

pub(crate) fn why_not_quiesced(error: NotQuiesced, timeout: Duration) -> String {
    match error {
        NotQuiesced::InFlight => format!(
            "requests are still in flight at a disk after {} ms; try again when it is less busy, or with a longer --takeover-wait-ms",
            timeout.as_millis()
        ),
        NotQuiesced::NoAnswer(index) => format!("worker {index} does not answer; the machine is overloaded"),
    }
}

/// The processor time that a worker has taken, in user and kernel mode; `None` before its thread runs.
pub(crate) fn cpu_time(worker: &WorkerHandle) -> Option<Duration> {
    let now = clock_gettime(cpu_clock_of(thread_of(worker)?)).ok()?;
    Some(now.into())
}

fn thread_of(worker: &WorkerHandle) -> Option<i32> {
    Some(worker.counters.thread.load(Ordering::Relaxed)).filter(|thread| *thread != 0)
}

/// For how long a worker could have run, but another thread had its CPU. The file stays open: opening it for each sample was a third of the
/// daemon's processor time in the seconds after a load (docs/scale.md).
#[derive(Debug, Default)]
pub(crate) struct WaitedForCpu {
    file: Option<File>,
    seen: Duration,
}

impl WaitedForCpu {
    /// Since it was last asked; none, if the kernel does not count that.
    pub(crate) fn since(&mut self, worker: &WorkerHandle) -> Duration {
        let now = self.now(thread_of(worker)).unwrap_or(self.seen);
        now.saturating_sub(std::mem::replace(&mut self.seen, now))
    }

    /// The second number of `schedstat`, in nanoseconds (Documentation/scheduler/sched-stats.rst).
    fn now(&mut self, thread: Option<i32>) -> Option<Duration> {
        if self.file.is_none() {
            self.file = File::open(format!("/proc/self/task/{}/schedstat", thread?)).ok();
        }
        let mut text = [0; SCHEDSTAT_BYTES];
        let mut file = self.file.as_ref()?;
        file.rewind().ok()?;
        let count = file.read(&mut text).ok()?;
        let text = str::from_utf8(text.get(..count)?).ok()?;
        Some(Duration::from_nanos(text.split_ascii_whitespace().nth(1)?.parse().ok()?))
    }
}

/// Three numbers of at most 20 digits.
const SCHEDSTAT_BYTES: usize = 64;

/// The clock of a thread, as pthread_getcpuclockid(3) makes it from the kernel's number of the thread: of one thread (4), by the
/// scheduler's count (2).
const fn cpu_clock_of(thread: i32) -> ClockId {
    ClockId::from_raw(!thread << 3 | 4 | 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_of_this_thread_is_found_by_its_number() {
        let own = || clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a clock");
        let before = own();
        let by_number = clock_gettime(cpu_clock_of(rustix::thread::gettid().as_raw_pid())).expect("a clock");
        assert!(before <= by_number && by_number <= own());
    }

    #[test]
    fn what_this_thread_waited_for_its_cpu_is_found_again_and_again() {
        let (mut waited, own) = (WaitedForCpu::default(), Some(rustix::thread::gettid().as_raw_pid()));
        assert_eq!(waited.now(None), None, "it does not run yet");
        let first = waited.now(own).expect("the kernel counts it");
        assert!(waited.now(own) >= Some(first));
    }
}
