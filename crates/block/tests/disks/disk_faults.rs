//! Faults of a disk are recorded: injected errors, a truncated file, requests that take too long.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fipsee_block::disk::faults::Fault;
use fipsee_block::disk::{AnyDisk, Disk, Faults, Ticket};
use fipsee_block::wire::{Operation, SECTOR_BYTES, Status};
use fipsee_ring::clock;
use fipsee_serve::Engine as _;
use fipsee_testkit::{Scratch, Worker, request};
use rustix::io::Errno;

use crate::open;

fn faults_of(disk: &AnyDisk) -> Arc<Faults> {
    Arc::clone(disk.faults().expect("it can fail"))
}

fn drained(faults: &Faults) -> Vec<(Fault, &'static str, Option<u64>, u64)> {
    faults.drain().map(|report| (report.fault, report.operation, report.sector, report.count)).collect()
}

#[test]
fn injected_error_is_recorded_with_its_errno_wherever_it_was_injected() {
    let scratch = Scratch::new();
    let file = format!("file:{},size=1M", scratch.path("disk").display());
    for below in ["memory:1M".to_owned(), file.clone(), format!("delay:1us:{file}"), format!("powercut:{file}")] {
        let disk = open(&format!("a=error:op=write+flush,sectors=8-15,errno=ENOSPC:{below}"));
        let (faults, mut worker) = (faults_of(&disk), Worker::new());
        assert_eq!(worker.write(&disk, 0, &[1; 512]), Status::Ok);
        assert_eq!(drained(&faults), []);
        assert_eq!(worker.write(&disk, 10, &[1; 1024]), Status::NoSpace);
        assert_eq!(worker.write(&disk, 12, &[1; 512]), Status::NoSpace);
        assert_eq!(drained(&faults), [(Fault::Failed(Some(Errno::NOSPC)), "write", Some(10), 2)], "{below}");
        drop(disk);
        // Another wrapper passes it on.
        let disk = open(&format!("a=delay:1us:powercut:error:op=flush:{below}"));
        assert_eq!(worker.do_range(&disk, Operation::Flush, 0, 0), Status::IoError, "{below}");
        let faults = faults_of(&disk);
        assert_eq!(drained(&faults), [(Fault::Failed(Some(Errno::IO)), "flush", None, 1)], "{below}");
        assert_eq!(faults.path().is_some(), below.contains("file:"));
    }
    assert!(open("a=memory:1M").faults().is_none() && open("a=null:1M").faults().is_none());
}

#[test]
fn truncated_file_is_recorded_as_that_and_its_path_is_known() {
    let scratch = Scratch::new();
    let path = scratch.path("disk");
    for direct in ["off", "auto"] {
        let _ = std::fs::remove_file(&path);
        let disk = open(&format!("a=file:{},size=64K,direct={direct}", path.display()));
        let (faults, mut worker) = (faults_of(&disk), Worker::new());
        assert_eq!(faults.path(), Some(path.as_path()));
        std::fs::File::options().write(true).open(&path).expect("open").set_len(8192).expect("cut");
        assert_eq!(worker.read(&disk, 0, 8192), Ok(vec![0; 8192]));
        assert_eq!(drained(&faults), []);
        assert_eq!(worker.read(&disk, 0, 65536), Err(Status::IoError));
        assert_eq!(drained(&faults), [(Fault::Failed(None), "read", Some(16), 1)], "{direct}: where the file ends");
        assert_eq!(worker.read(&disk, 64, 4096), Err(Status::IoError));
        assert_eq!(drained(&faults), [(Fault::Failed(None), "read", Some(64), 1)], "{direct}");
        assert_eq!(faults.counts().map(|(_, count)| count).sum::<u64>(), 2);
        std::fs::File::options().write(true).open(&path).expect("open").set_len(10000).expect("within a sector");
        assert_eq!(worker.read(&disk, 0, 65536), Err(Status::IoError), "{direct}");
    }
}

#[test]
fn requests_in_flight_for_too_long_are_recorded_once_and_when_they_end() {
    const DELAY: Duration = Duration::from_millis(400);
    let scratch = Scratch::new();
    let file = format!("file:{},size=1M", scratch.path("disk").display());
    for below in ["memory:1M".to_owned(), file.clone(), format!("error:sectors=9-9:{file}")] {
        // The delay is a step of a step, whose ticket is not the request's.
        let disk = open(&format!("a=powercut:delay:400ms:{below}"));
        let (faults, mut worker) = (faults_of(&disk), Worker::new());
        worker.engine.set_stall_limit(DELAY / 4);
        assert_eq!(worker.engine.time_to_look(), None, "nothing is in flight");
        let span = worker.span(0, SECTOR_BYTES);
        let ticket = |tag| Ticket { queue: 2, tag, started_ticks: clock::ticks() };
        for tag in [1, 2] {
            let read = request(Operation::Read, 7 + u64::from(tag), 1);
            worker.begin(&disk, &read, &[span], ticket(tag));
        }
        worker.engine.flush();
        assert!(worker.engine.time_to_look().is_some_and(|pause| pause < DELAY));
        while faults.stalled_now() < 2 {
            worker.engine.look_for_stalled();
            assert_eq!(worker.engine.in_flight(), 2, "they stay in flight for long enough to be seen");
        }
        (0..1000).for_each(|_| worker.engine.look_for_stalled());
        let mut reports = drained(&faults);
        assert!(matches!(reports.pop(), Some((Fault::Stalled(age), "read", Some(8), 2)) if age >= DELAY / 4), "{below}");
        assert_eq!(reports, []);
        worker.wait(2, |_, _| {});
        assert_eq!(faults.stalled_now(), 0);
        let ended = drained(&faults).into_iter().filter(|(fault, ..)| matches!(fault, Fault::Ended(_))).collect::<Vec<_>>();
        assert!(matches!(ended[..], [(Fault::Ended(duration), "read", Some(8 | 9), 2)] if duration >= DELAY), "{ended:?}");
    }
}

#[test]
fn polling_finds_stalled_requests_without_being_asked_to_look() {
    const LIMIT: Duration = Duration::from_millis(1);
    // Between two polls a worker that yields may wait for a time slice of every other thread.
    const MOST_POLLS: u32 = 64;
    let disk = open("a=delay:100ms:null:1M");
    let (faults, mut worker) = (faults_of(&disk), Worker::new());
    worker.engine.set_stall_limit(LIMIT);
    let span = worker.span(0, SECTOR_BYTES);
    let mut reports = Vec::new();
    // Under load this thread may not run while a request is in flight; in one of several attempts it does.
    for _ in 0..100 {
        let ticket = Ticket { queue: 0, tag: 0, started_ticks: clock::ticks() };
        worker.begin(&disk, &request(Operation::Read, 0, 1), &[span], ticket);
        let (begun, mut late_polls) = (Instant::now(), 0);
        loop {
            let is_late = begun.elapsed() > 2 * LIMIT;
            if worker.engine.poll(usize::MAX, &mut |_, status| assert_eq!(status, Status::Ok)) > 0 {
                break;
            }
            late_polls += u32::from(is_late && faults.stalled_now() == 0);
            assert!(late_polls < MOST_POLLS, "it is found in few polls");
        }
        reports = drained(&faults);
        if !reports.is_empty() {
            break;
        }
    }
    assert!(matches!(reports[..], [(Fault::Stalled(_), ..), (Fault::Ended(_), ..)]), "{reports:?}");
}
