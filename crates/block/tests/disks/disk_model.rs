//! Every kind of disk against an array of bytes: random requests, several in flight, in pieces, aligned and not.

use std::path::Path;

use fipsee_block::disk::{AnyDisk, Disk, Submitted, Ticket};
use fipsee_block::request::Request;
use fipsee_block::wire::{BlockInfo, Operation, SECTOR_BYTES, Status};
use fipsee_ring::memory::Span;
use fipsee_serve::Engine as _;
use fipsee_testkit::{Random, Scratch, Worker, skip};

use crate::open;

const DISK_BYTES: u64 = 6 << 20;
/// Client memory of one request in flight, and how many of them.
const AREA_BYTES: u64 = 2 << 20;
const DEPTH: usize = 8;

struct Pending {
    request: Request,
    spans: Vec<(u64, u64)>,
    expected: Option<Vec<u8>>,
}

struct Model {
    bytes: Vec<u8>,
    random: Random,
    block_bytes: u64,
}

impl Model {
    /// A range of whole blocks that overlaps none of `others`.
    fn pick_range(&mut self, others: &[Pending]) -> Option<(u64, u64)> {
        let blocks = DISK_BYTES / self.block_bytes;
        let longest = if self.random.below(8) == 0 { (1 << 20) / self.block_bytes } else { 40 };
        let count = 1 + self.random.below(longest);
        // Mostly close together, so that requests share pages.
        let place = if self.random.below(3) == 0 { blocks - count } else { 256.min(blocks - count) };
        let sectors = self.block_bytes / SECTOR_BYTES;
        let (start, length) = (self.random.below(place + 1) * sectors, count * sectors);
        let meets = |other: &Request| {
            start < other.sector + other.length_sectors && other.sector < start + length && other.length_sectors > 0
        };
        others.iter().all(|other| !meets(&other.request)).then_some((start, length))
    }

    /// Pieces of client memory in area `index` that hold `length_bytes` together.
    fn pick_spans(&mut self, index: usize, length_bytes: u64) -> Vec<(u64, u64)> {
        let mut place = index as u64 * AREA_BYTES + [0, 0, 512, 4, 1, 256][usize::try_from(self.random.below(6)).expect("small")];
        let mut rest = length_bytes / SECTOR_BYTES;
        let mut spans = Vec::new();
        while rest > 0 {
            let piece = if spans.len() < 30 && self.random.below(2) == 0 { 1 + self.random.below(rest) } else { rest };
            spans.push((place, piece * SECTOR_BYTES));
            place += (piece + self.random.below(4)) * SECTOR_BYTES;
            rest -= piece;
        }
        spans
    }

    /// In a discarded range, each sector is zeroes or unchanged.
    fn settle_discard(&mut self, worker: &mut Worker, disk: &AnyDisk, pending: &Pending) {
        let request = pending.request;
        let start = usize::try_from(request.offset_bytes()).expect("small");
        let length = usize::try_from(request.length_bytes()).expect("small");
        let got = worker.read(disk, request.sector, length).expect("read");
        let old = pending.expected.as_ref().expect("kept");
        for (index, (got, old)) in got.chunks(512).zip(old.chunks(512)).enumerate() {
            assert!(got == old || got.iter().all(|byte| *byte == 0), "{request:?}: sector {index} of it is neither");
        }
        self.bytes[start..start + length].copy_from_slice(&got);
    }

    fn make(&mut self, worker: &Worker, index: usize, others: &[Pending]) -> Option<Pending> {
        let operation = match self.random.below(20) {
            0..8 => Operation::Write,
            8..15 => Operation::Read,
            15..17 => Operation::Discard,
            17..19 => Operation::WriteZeroes,
            _ => Operation::Flush,
        };
        let tag = u16::try_from(index).expect("small");
        let (fua, unmap) = (self.random.below(8) == 0, self.random.below(2) == 0);
        let mut request = Request { operation, tag, fua: false, unmap: false, sector: 0, length_sectors: 0, aux: 0 };
        let (mut spans, mut expected) = (Vec::new(), None);
        if operation != Operation::Flush {
            (request.sector, request.length_sectors) = self.pick_range(others)?;
            let start = usize::try_from(request.offset_bytes()).expect("small");
            let length = usize::try_from(request.length_bytes()).expect("small");
            let bytes = &mut self.bytes[start..start + length];
            match operation {
                Operation::Read => expected = Some(bytes.to_vec()),
                Operation::Write => {
                    self.random.fill(bytes);
                    request.fua = fua;
                }
                // The rest of the old contents is read afterwards.
                Operation::Discard => expected = Some(bytes.to_vec()),
                _ => {
                    bytes.fill(0);
                    (request.fua, request.unmap) = (fua, unmap);
                }
            }
            if matches!(operation, Operation::Read | Operation::Write) {
                spans = self.pick_spans(index, request.length_bytes());
            }
            if operation == Operation::Write {
                let mut from = start;
                for &(offset, length) in &spans {
                    let to = from + usize::try_from(length).expect("small");
                    worker.memory.write(offset, &self.bytes[from..to]).expect("fits");
                    from = to;
                }
            }
        }
        Some(Pending { request, spans, expected })
    }
}

fn check_disk(disk: &AnyDisk, block_bytes: u64, seed: u64, rounds: u32) -> Model {
    let info = disk.info();
    assert_eq!((u64::from(info.block_bytes), info.size_bytes()), (block_bytes, DISK_BYTES));
    BlockInfo::from_bytes(&info.to_bytes()).expect("a description that clients accept");
    let bytes = vec![0; usize::try_from(DISK_BYTES).expect("small")];
    let mut model = Model { bytes, random: Random(seed), block_bytes };
    let mut worker = Worker::new();
    for round in 0..rounds {
        let mut batch: Vec<Pending> = Vec::new();
        let mut expected_reports = 0;
        for index in 0..DEPTH {
            let Some(pending) = model.make(&worker, index, &batch) else {
                continue;
            };
            let spans: Vec<Span> = pending.spans.iter().map(|&(offset, length)| worker.span(offset, length)).collect();
            let ticket = Ticket { queue: round, tag: pending.request.tag, started_ticks: 0 };
            // SAFETY: the worker's memory outlives its engine's requests: each batch is waited for.
            match unsafe { disk.submit(&pending.request, &spans, ticket, &mut worker.engine) } {
                Submitted::Done(status) => assert_eq!(status, Status::Ok, "{:?}", pending.request),
                Submitted::Pending => expected_reports += 1,
            }
            batch.push(pending);
            if model.random.below(3) == 0 {
                worker.engine.flush();
            }
        }
        assert_eq!(worker.engine.in_flight(), expected_reports);
        worker.wait(expected_reports, |ticket, status| {
            assert_eq!(ticket.queue, round);
            assert_eq!(status, Status::Ok, "tag {}", ticket.tag);
        });
        for pending in &batch {
            match pending.request.operation {
                Operation::Discard => model.settle_discard(&mut worker, disk, pending),
                _ => check_read(&worker, pending, seed, round),
            }
        }
    }
    let step = 1 << 20;
    for start in (0..usize::try_from(DISK_BYTES).expect("small")).step_by(step) {
        let got = worker.read(disk, start as u64 / SECTOR_BYTES, step).expect("read");
        assert!(got == model.bytes[start..start + step], "seed {seed}: the MiB at {start} differs");
    }
    model
}

fn check_read(worker: &Worker, pending: &Pending, seed: u64, round: u32) {
    let Some(expected) = &pending.expected else {
        return;
    };
    let mut from = 0;
    for &(offset, length) in &pending.spans {
        let mut got = vec![0; usize::try_from(length).expect("small")];
        worker.memory.read(offset, &mut got).expect("fits");
        let wanted = &expected[from..from + got.len()];
        if let Some(at) = got.iter().zip(wanted).position(|(a, b)| a != b) {
            panic!("seed {seed}, round {round}: {:?} differs at byte {}", pending.request, from + at);
        }
        from += got.len();
    }
}

fn check_file(parent: &Path, options: &str, block_bytes: u64, seed: u64) {
    let scratch = Scratch::within(parent);
    let path = scratch.path("disk=a:1");
    let disk = open(&format!("d=file:{},size=6M,block={block_bytes}{options}", path.display()));
    let model = check_disk(&disk, block_bytes, seed, 150);
    drop(disk);
    assert!(std::fs::read(&path).expect("the file") == model.bytes, "the file differs from what the disk returned");
}

#[test]
fn memory_disk_equals_array() {
    for (seed, options) in ["", ",thp", ",max=16M", ",lock"].into_iter().enumerate() {
        for block in [512, 4096] {
            if options == ",lock" && !can_lock() {
                skip("memory,lock", "RLIMIT_MEMLOCK is below 8 MiB and the test is not root");
                continue;
            }
            check_disk(&open(&format!("m=memory:6M,block={block}{options}")), block, seed as u64, 150);
        }
    }
}

fn can_lock() -> bool {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    rustix::process::getuid().is_root() || limit.is_none_or(|bytes| bytes >= 8 << 20)
}

#[test]
fn file_disk_equals_array_with_512_byte_blocks() {
    check_file(&std::env::temp_dir(), "", 512, 11);
}

#[test]
fn file_disk_equals_array_with_4096_byte_blocks() {
    check_file(&std::env::temp_dir(), "", 4096, 12);
}

#[test]
fn file_disk_equals_array_through_the_page_cache() {
    check_file(&std::env::temp_dir(), ",direct=off", 512, 13);
}

#[test]
fn file_disk_equals_array_on_tmpfs() {
    let shm = Path::new("/dev/shm");
    if rustix::fs::statfs(shm).map_or(true, |stat| stat.f_type != 0x0102_1994) {
        skip("file disk on tmpfs", "/dev/shm is not a tmpfs here");
        return;
    }
    check_file(shm, "", 512, 14);
    check_file(shm, "", 4096, 15);
}

#[test]
fn wrapped_disks_equal_array() {
    let wrappers = [
        "delay:10us+200us,seed=1:",
        "error:every=1,op=read,sectors=100000000-100000001:",
        "powercut:",
        "powercut:survive=20,seed=2,cache=256K:",
        "powercut:cache=256K:delay:20us+50us:",
        "delay:5us:powercut:survive=1,seed=3:delay:10us:",
    ];
    for (seed, wrapper) in (20..).zip(wrappers) {
        for block in [512, 4096] {
            check_disk(&open(&format!("w={wrapper}memory:6M,block={block}")), block, seed, 25);
        }
        let scratch = Scratch::new();
        check_disk(&open(&format!("w={wrapper}file:{},size=6M", scratch.path("disk").display())), 512, seed, 10);
    }
}
