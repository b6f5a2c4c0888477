//! Disks that misbehave do so as configured, and no worse.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fipsee_block::disk::{AnyDisk, Ticket};
use fipsee_block::wire::{Operation, SECTOR_BYTES, Status};
use fipsee_serve::Engine as _;
use fipsee_testkit::packets::is_readable;
use fipsee_testkit::{Random, Scratch, Worker, request};

use crate::open;

const SECTORS: u64 = 64;

/// A sector that names itself and its version.
fn sector(number: u64, version: u64) -> Vec<u8> {
    [number.to_le_bytes(), version.to_le_bytes()].concat().repeat(32)
}

fn sectors(first: u64, count: u64, version: u64) -> Vec<u8> {
    (first..first + count).flat_map(|number| sector(number, version)).collect()
}

/// The version of a sector; it must be whole.
#[track_caller]
fn version_of(number: u64, bytes: &[u8]) -> u64 {
    let version = u64::from_le_bytes(bytes[8..16].try_into().expect("8 bytes"));
    assert!(version == 0 || bytes == sector(number, version), "sector {number} is torn inside");
    version
}

#[test]
fn delayed_request_is_done_at_the_end_of_its_delay_and_blocks_no_other() {
    let mut worker = Worker::new();
    let slow = open("a=delay:300ms:memory:1M");
    let span = worker.span(0, SECTOR_BYTES);
    worker.memory.write(0, &sector(0, 1)).expect("fits");
    let ticket = Ticket { queue: 3, tag: 9, started_ticks: 5 };
    let started = Instant::now();
    worker.begin(&slow, &request(Operation::Write, 0, 1), &[span], ticket);
    assert_eq!(worker.engine.in_flight(), 1);
    // Other requests continue: one without delay ends first. The slow one's data is read when it starts, not before.
    assert_eq!(worker.do_range(&open("b=memory:1M"), Operation::WriteZeroes, 0, 1), Status::Ok);
    assert_eq!(worker.engine.poll(usize::MAX, &mut |_, _| {}), 0);
    worker.memory.write(0, &sector(0, 2)).expect("fits");
    worker.wait(1, |got, status| assert_eq!((got, status), (ticket, Status::Ok)));
    assert!(started.elapsed() >= Duration::from_millis(300), "after {:?}", started.elapsed());
    assert_eq!(worker.engine.in_flight(), 0);
    let AnyDisk::Wrapped(_) = slow else { panic!("a delay") };
    assert_eq!(version_of(0, &worker.read(&slow, 0, 512).expect("read")), 2);
}

#[test]
fn engine_sleeps_until_a_delay_ends() {
    let mut worker = Worker::new();
    let slow = open("a=delay:20ms:null:1M");
    let ticket = Ticket { queue: 3, tag: 9, started_ticks: 5 };
    worker.begin(&slow, &request(Operation::Flush, 0, 0), &[], ticket);
    worker.engine.flush();
    assert!(!worker.engine.has_unsent());
    assert!(is_readable(worker.engine.as_fd().expect("a ring"), Duration::from_secs(30)), "the descriptor becomes readable");
    worker.wait(1, |got, status| assert_eq!((got, status), (ticket, Status::Ok)));
}

#[test]
fn chosen_requests_fail_and_are_not_carried_out() {
    let mut worker = Worker::new();
    let disk = open("a=error:op=write,every=3,after=1,sectors=8-15,errno=ENOSPC:memory:1M");
    let mut outcomes = Vec::new();
    for version in 1..=8 {
        outcomes.push(worker.write(&disk, 15, &sectors(15, 2, version)));
        assert_eq!(worker.write(&disk, 16, &sector(16, version)), Status::Ok, "outside of the range");
        assert_eq!(worker.do_range(&disk, Operation::Flush, 0, 0), Status::Ok, "another operation");
    }
    let (ok, full) = (Status::Ok, Status::NoSpace);
    assert_eq!(outcomes, [ok, ok, ok, full, ok, ok, full, ok]);
    assert_eq!(version_of(15, &worker.read(&disk, 15, 512).expect("read")), 8);
    let disk = open("a=error:op=read+flush:memory:1M");
    assert_eq!(worker.read(&disk, 0, 512), Err(Status::IoError));
    assert_eq!(worker.do_range(&disk, Operation::Flush, 0, 0), Status::IoError);
    assert_eq!(worker.do_range(&disk, Operation::Discard, 0, 1), Status::Ok);
}

/// What a power cut may leave in each sector: the version that is durable, and those written after it.
#[derive(Default)]
struct Model {
    durable: BTreeMap<u64, u64>,
    volatile: BTreeMap<u64, Vec<u64>>,
}

impl Model {
    fn write(&mut self, first: u64, count: u64, version: u64, fua: bool) {
        for number in first..first + count {
            self.volatile.entry(number).or_default().push(version);
            if fua {
                self.harden(number);
            }
        }
    }

    fn harden(&mut self, number: u64) {
        if let Some(newest) = self.volatile.remove(&number).and_then(|versions| versions.last().copied()) {
            self.durable.insert(number, newest);
        }
    }

    fn flush(&mut self) {
        (0..SECTORS).for_each(|number| self.harden(number));
    }

    fn newest(&self, number: u64) -> u64 {
        let volatile = self.volatile.get(&number).and_then(|versions| versions.last());
        volatile.or_else(|| self.durable.get(&number)).copied().unwrap_or(0)
    }

    /// Number of unflushed sectors that survived, and that did not, of those that differ.
    fn check(&self, after: &[u8], survive_percent: u64) -> (usize, usize) {
        let (mut survived, mut lost) = (0, 0);
        for (number, bytes) in (0..SECTORS).zip(after.chunks(512)) {
            let found = version_of(number, bytes);
            let durable = self.durable.get(&number).copied().unwrap_or(0);
            let volatile = self.volatile.get(&number).cloned().unwrap_or_default();
            assert!(found == durable || volatile.contains(&found), "sector {number} has {found}, not {durable} or {volatile:?}");
            if survive_percent == 0 {
                assert_eq!(found, durable, "sector {number} was not flushed and is there");
            }
            survived += usize::from(found != durable);
            lost += usize::from(found == durable && !volatile.is_empty());
        }
        (survived, lost)
    }
}

/// Random requests, then a power cut: the contents of the file.
fn cut_power(survive_percent: u64, below: &str, seed: u64) -> (usize, usize) {
    let scratch = Scratch::new();
    let path = scratch.path("disk");
    let disk = open(&format!(
        "a=powercut:survive={survive_percent},seed={seed}:{below}file:{},size={}",
        path.display(),
        SECTORS * SECTOR_BYTES
    ));
    let (mut worker, mut random, mut model) = (Worker::new(), Random(seed), Model::default());
    for version in 1..=60 {
        let first = random.below(SECTORS);
        let count = 1 + random.below((SECTORS - first).min(16));
        let fua = random.below(6) == 0;
        worker.memory.write(0, &sectors(first, count, version)).expect("fits");
        let span = worker.span(0, count * SECTOR_BYTES);
        let write = fipsee_block::request::Request { fua, ..request(Operation::Write, first, count) };
        assert_eq!(worker.finish(&disk, &write, &[span]), Status::Ok);
        model.write(first, count, version, fua);
        if random.below(10) == 0 {
            assert_eq!(worker.do_range(&disk, Operation::Flush, 0, 0), Status::Ok);
            model.flush();
        }
        let number = random.below(SECTORS);
        let found = version_of(number, &worker.read(&disk, number, 512).expect("read"));
        assert_eq!(found, model.newest(number), "sector {number} before the cut");
    }
    // The wrapper's memory does not reach the file when dropped: that is the cut.
    drop(disk);
    model.check(&std::fs::read(&path).expect("the file"), survive_percent)
}

/// checks: R-5.4-3
#[test]
fn power_cut_keeps_what_was_flushed_and_loses_the_rest() {
    let mut lost = 0;
    for seed in 0..8 {
        lost += cut_power(0, if seed % 2 == 0 { "" } else { "delay:1us+100us:" }, seed).1;
    }
    assert!(lost > 30, "the test cuts when there is data to lose: {lost}");
}

#[test]
fn power_cut_that_tears_keeps_what_was_flushed_and_some_of_the_rest() {
    let (mut survived, mut lost) = (0, 0);
    for seed in 0..8 {
        let outcome = cut_power(50, if seed % 2 == 0 { "" } else { "delay:1us+100us:" }, seed);
        (survived, lost) = (survived + outcome.0, lost + outcome.1);
    }
    assert!(survived > 30 && lost > 30, "{survived} sectors survived, {lost} did not");
    assert_eq!(cut_power(50, "", 7), cut_power(50, "", 7), "the seed says which");
}

#[test]
fn full_cache_is_written_back_and_a_failed_write_back_is_reported_and_repeated() {
    let mut worker = Worker::new();
    let scratch = Scratch::new();
    let path = scratch.path("disk");
    let disk = open(&format!("a=powercut:cache=4K:file:{},size=64K", path.display()));
    assert_eq!(worker.write(&disk, 0, &sectors(0, 8, 1)), Status::Ok);
    assert_eq!(version_of(0, &std::fs::read(&path).expect("the file")[..512]), 0);
    assert_eq!(worker.write(&disk, 8, &sector(8, 1)), Status::Ok);
    assert_eq!(std::fs::read(&path).expect("the file")[..9 * 512], sectors(0, 9, 1));
    let disk = open("a=powercut:error:op=write,every=2:memory:64K");
    assert_eq!(worker.write(&disk, 0, &sector(0, 1)), Status::Ok);
    assert_eq!(worker.write(&disk, 9, &sector(9, 1)), Status::Ok);
    assert_eq!(worker.do_range(&disk, Operation::Flush, 0, 0), Status::IoError);
    assert_eq!(version_of(9, &worker.read(&disk, 9, 512).expect("read")), 1, "it is still there");
    assert_eq!(worker.do_range(&disk, Operation::Flush, 0, 0), Status::IoError);
}
