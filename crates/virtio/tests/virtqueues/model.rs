//! Random requests in random shapes against a model of the disk.

use crate::common::disks::DISK_BYTES;
use crate::common::driver::DATA;
use crate::common::{
    DISCARD, Driver, F_EVENT_IDX, F_FLUSH, F_INDIRECT, FLUSH, Fixture, IN, IOERR, Memory as _, OK, OUT, Options, Part, Random,
    WRITE_ZEROES, file_disk, memory_disk, readable, writable,
};
use fipsee_block::disk::Disk;

/// Sectors that are used: few, so that requests overlap.
const SECTORS: u64 = 64;

/// A request under construction.
struct Wanted {
    kind: u32,
    sector: u64,
    count: u64,
    /// The pieces of its bytes, in order.
    base: u64,
    head: u16,
    expected: Option<Vec<u8>>,
}

fn below(random: &mut Random, end: usize) -> usize {
    usize::try_from(random.below(end as u64)).expect("small")
}

/// Cut `length` bytes at `base` into pieces.
fn cut(random: &mut Random, base: u64, length: u32, make: fn(u64, u32) -> Part) -> Vec<Part> {
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < length {
        let rest = length - at;
        let piece = match random.below(4) {
            0 => rest,
            1 => u32::try_from(random.below(20) + 1).expect("small").min(rest),
            _ => u32::try_from(random.below(u64::from(rest)) + 1).expect("small"),
        };
        let piece = if pieces.len() == 5 { rest } else { piece };
        pieces.push(make(base + u64::from(at), piece));
        at += piece;
    }
    pieces
}

/// Lay a request out at `base`: header, data and status merged or apart, direct, indirect or both.
fn offer(random: &mut Random, driver: &mut Driver, wanted: &mut Wanted, payload: &[u8]) {
    let base = wanted.base + random.below(64);
    let header = Driver::header_bytes(wanted.kind, wanted.sector);
    let (readable_bytes, writable_bytes) = match wanted.kind {
        IN => (header.to_vec(), u32::try_from(wanted.count * 512).expect("small")),
        _ => ([&header[..], payload].concat(), 0),
    };
    driver.ram.write(base, &readable_bytes);
    let mut segments = cut(random, base, u32::try_from(readable_bytes.len()).expect("small"), readable);
    wanted.base = base + readable_bytes.len() as u64 + random.below(64);
    segments.extend(cut(random, wanted.base, writable_bytes + 1, writable));
    let table = wanted.base + u64::from(writable_bytes) + 100 + random.below(16);
    let direct = below(random, segments.len() + 1);
    wanted.head = match random.below(3) {
        0 => driver.chain(&segments),
        1 => driver.chain_with_table(&[], table, &segments),
        _ if direct < segments.len() => driver.chain_with_table(&segments[..direct], table, &segments[direct..]),
        _ => driver.chain(&segments),
    };
    driver.stage(wanted.head);
}

fn check<D: Disk>(disk: D, seed: u64, is_in_order: bool) {
    let mut random = Random(seed);
    let features = [0, F_EVENT_IDX, F_INDIRECT, F_EVENT_IDX | F_INDIRECT][below(&mut random, 4)] | F_INDIRECT | F_FLUSH;
    let start = u16::try_from(random.below(65536)).expect("small");
    let mut fixture = Fixture::new(disk, &Options { size: 256, features, start, ..Options::default() });
    let mut model = vec![0; usize::try_from(SECTORS * 512).expect("small")];
    for _ in 0..60 {
        let batch = if is_in_order { 1 + random.below(12) } else { 1 };
        let mut requests = Vec::new();
        for place in 0..batch {
            let kind = [IN, IN, OUT, OUT, FLUSH, DISCARD, WRITE_ZEROES][below(&mut random, 7)];
            let mut sector = random.below(SECTORS);
            let mut count = 1 + random.below((SECTORS - sector).min(16));
            if kind == DISCARD {
                // In file system blocks: a partial block may keep its contents.
                (sector, count) = (sector / 8 * 8, count.next_multiple_of(8).min(SECTORS - sector / 8 * 8));
            }
            let base = DATA + place * 0x1_0000;
            let mut wanted = Wanted { kind, sector, count, base, head: 0, expected: None };
            let range = usize::try_from(sector * 512).expect("small")..usize::try_from((sector + count) * 512).expect("small");
            let payload = match kind {
                OUT => random.bytes(range.len()),
                DISCARD | WRITE_ZEROES => {
                    [&sector.to_le_bytes()[..], &u32::try_from(count).expect("small").to_le_bytes(), &[0; 4]].concat()
                }
                _ => Vec::new(),
            };
            offer(&mut random, &mut fixture.driver, &mut wanted, &payload);
            match kind {
                IN => wanted.expected = Some(model[range].to_vec()),
                OUT => model[range].copy_from_slice(&payload),
                DISCARD | WRITE_ZEROES => model[range].fill(0),
                _ => {}
            }
            requests.push(wanted);
        }
        fixture.driver.publish();
        fixture.run();
        for _ in &requests {
            assert!(fixture.driver.take_used().is_some(), "seed {seed}: {}", fixture.fault());
        }
        for wanted in requests {
            assert_eq!(fixture.driver.status(wanted.head), OK, "seed {seed}");
            if let Some(expected) = wanted.expected {
                let read = fixture.driver.ram.read(wanted.base, expected.len());
                assert!(read == expected, "seed {seed}: sectors {} + {}", wanted.sector, wanted.count);
            }
        }
    }
    assert_eq!(fixture.counters.errors.get(), 0);
    assert_eq!(fixture.request(IN, DISK_BYTES / 512, &[writable(DATA, 512)]).0, IOERR);
}

#[test]
fn random_shapes_of_requests_do_what_the_model_does() {
    for seed in 0..100 {
        check(memory_disk(), seed, true);
    }
}

#[test]
fn random_shapes_of_requests_reach_a_file() {
    for seed in 0..10 {
        check(file_disk(), seed, false);
    }
}
