//! During live migration, the log has exactly the pages that we wrote to.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::common::driver::DATA;
use crate::common::ram::{BASE, END, SECOND};
use crate::common::{
    Driver, FLUSH, Fixture, GET_ID, HeldDisk, IN, IOERR, OK, OUT, Options, Ram, memory_disk, readable, writable,
};
use fipsee_block::disk::Disk;
use fipsee_virtio::core::memory::DirtyLog;
use rustix::fs::MemfdFlags;

/// The log as the hypervisor keeps it; it begins in the middle of its file.
struct Log {
    file: OwnedFd,
    log: Arc<DirtyLog>,
}

const OFFSET: u64 = 24;
const LENGTH: u64 = END / 4096 / 8 + 1;
/// The used ring is logged here, though it is elsewhere.
const USED_LOG: u64 = BASE + (2 << 20) + 0x100;

impl Log {
    fn new() -> Self {
        let file = rustix::fs::memfd_create("test-log", MemfdFlags::CLOEXEC).expect("memfd");
        rustix::fs::ftruncate(&file, OFFSET + LENGTH).expect("ftruncate");
        let log = DirtyLog::map(file.try_clone().expect("a descriptor"), LENGTH, OFFSET).expect("a log");
        Self { file, log: Arc::new(log) }
    }

    /// The pages logged since the last call.
    fn take(&self) -> BTreeSet<u64> {
        let mut bytes = vec![0; usize::try_from(LENGTH).expect("small")];
        rustix::io::pread(&self.file, &mut bytes[..], OFFSET).expect("read");
        rustix::io::pwrite(&self.file, &vec![0; bytes.len()], OFFSET).expect("clear");
        let is_set = |page: &u64| bytes[usize::try_from(page / 8).expect("small")] >> (page % 8) & 1 == 1;
        (0..LENGTH * 8).filter(is_set).collect()
    }
}

fn pages(ranges: &[(u64, u64)]) -> BTreeSet<u64> {
    ranges.iter().flat_map(|(address, length)| address / 4096..=(address + length - 1) / 4096).collect()
}

fn fixture<D: Disk>(disk: D, log: &Log) -> Fixture<D> {
    Fixture::with(disk, &Options::default(), Ram::new(), |setup| {
        setup.queue.log = Some(Arc::clone(&log.log));
        setup.queue.used_log_address = Some(USED_LOG);
    })
}

/// The pages of the used ring, as far as they are written.
const USED: (u64, u64) = (USED_LOG, 4 + 16 * 8 + 2);

#[test]
fn every_request_logs_what_it_wrote_and_no_more() {
    let log = Log::new();
    let mut fixture = fixture(memory_disk(), &log);
    assert_eq!(log.take(), pages(&[USED]), "kicks were refused");
    for (what, kind, data, written) in [
        ("a write", OUT, vec![readable(DATA, 8192)], vec![]),
        ("a flush", FLUSH, vec![], vec![]),
        ("a read", IN, vec![writable(DATA, 4096)], vec![(DATA, 4096)]),
        ("an odd read", IN, vec![writable(DATA + 4095, 512)], vec![(DATA + 4095, 512)]),
        (
            "a read of pieces",
            IN,
            vec![writable(DATA + 8192, 1), writable(SECOND - 100, 511)],
            vec![(DATA + 8192, 1), (SECOND - 100, 511)],
        ),
        ("a serial number", GET_ID, vec![writable(DATA + 4090, 4096)], vec![(DATA + 4090, 20)]),
        ("a failed write", OUT, vec![readable(DATA, 100)], vec![]),
        ("a failed read", IN, vec![writable(DATA, 100)], vec![]),
    ] {
        let head = fixture.driver.request(kind, 0, &data);
        let status = fixture.driver.status_address(head);
        fixture.round(head);
        let mut expected = written.clone();
        expected.extend([(status, 1), USED]);
        assert_eq!(log.take(), pages(&expected), "{what}");
    }
}

#[test]
fn requests_in_flight_when_logging_begins_are_logged() {
    let log = Log::new();
    let mut fixture = Fixture::new(HeldDisk::new(), &Options::default());
    let head = fixture.begin(IN, 0, &[writable(DATA, 8192)]);
    fixture.server.set_log(Some(Arc::clone(&log.log)), Some(USED_LOG));
    assert_eq!(log.take(), pages(&[USED]), "flags and event index were written");
    fixture.release(0);
    // Before the completion is visible, all but the used ring is logged.
    assert_eq!(log.take(), pages(&[(DATA, 8192), (fixture.driver.status_address(head), 1)]));
    fixture.server.flush();
    assert_eq!(log.take(), pages(&[USED]));
    fixture.server.set_log(None, None);
    fixture.disk.at_once = true;
    fixture.begin(IN, 0, &[writable(DATA, 8192)]);
    assert_eq!(log.take(), BTreeSet::new(), "it is over");
}

#[test]
fn without_an_address_for_it_the_used_ring_is_not_logged() {
    let log = Log::new();
    let mut fixture =
        Fixture::with(memory_disk(), &Options::default(), Ram::new(), |setup| setup.queue.log = Some(Arc::clone(&log.log)));
    let head = fixture.driver.request(IN, 0, &[writable(DATA, 512)]);
    let status = fixture.driver.status_address(head);
    assert_eq!(fixture.round(head).0, OK);
    assert!(!fixture.server.arm_and_work_remains());
    assert_eq!(log.take(), pages(&[(DATA, 512), (status, 1)]));
}

#[test]
fn a_log_that_is_too_short_is_not_overrun() {
    let file = rustix::fs::memfd_create("test-log", MemfdFlags::CLOEXEC).expect("memfd");
    rustix::fs::ftruncate(&file, 4096).expect("ftruncate");
    let log = DirtyLog::map(file.try_clone().expect("a descriptor"), 33, 0).expect("a log");
    log.mark(32 * 8 * 4096, 1 << 40);
    log.mark(u64::MAX - 1, 2);
    log.mark(u64::MAX, 2);
    log.mark(0, 0);
    let mut bytes = [0; 64];
    rustix::io::pread(&file, &mut bytes, 0).expect("read");
    let mut expected = [0; 64];
    expected[32] = 0xff;
    assert_eq!(bytes, expected);
    assert!(DirtyLog::map(file, 4097, 0).is_err());
}

#[test]
fn the_indices_of_the_used_ring_are_logged_where_they_are() {
    // A used ring of several pages: 1024 entries of 8 bytes.
    let log = Log::new();
    let driver = Driver::new(Ram::new(), 1024, true, 700);
    let options = Options { size: 1024, start: 700, ..Options::default() };
    let mut fixture = Fixture::serve(memory_disk(), &options, driver, |setup| {
        setup.queue.log = Some(Arc::clone(&log.log));
        setup.queue.used_log_address = Some(BASE);
    })
    .expect("good rings");
    log.take();
    let head = fixture.driver.request(IN, 0, &[writable(DATA, 100)]);
    let status = fixture.driver.status_address(head);
    assert_eq!(fixture.round(head).0, IOERR);
    assert_eq!(log.take(), pages(&[(status, 1), (BASE, 4), (BASE + 4 + 700 * 8, 8), (BASE + 4 + 1024 * 8, 2)]));
}
