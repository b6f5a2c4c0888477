//! Every operation of virtio-blk, over a real virtqueue.

use crate::common::disks::DISK_BYTES;
use crate::common::driver::DATA;
use crate::common::ram::{BASE, END, SECOND};
use crate::common::{
    DISCARD, Driver, FLUSH, Fixture, GET_ID, HeldDisk, IN, IOERR, Memory as _, OK, OUT, Options, Part, Random, UNSUPP,
    WRITE_ZEROES, memory_disk, readable, writable,
};
use fipsee_block::wire::Operation;

const SECTORS: u64 = DISK_BYTES / 512;

#[test]
fn what_was_written_is_read_through_direct_and_indirect_descriptors() {
    let mut fixture = Fixture::new(memory_disk(), &Options::default());
    let bytes = Random(1).bytes(4096);
    fixture.driver.ram.write(DATA, &bytes);
    assert_eq!(fixture.request(OUT, 8, &[readable(DATA, 4096)]), (OK, 1));
    assert_eq!(fixture.request(IN, 8, &[writable(DATA + 8192, 4096)]), (OK, 4097));
    assert_eq!(fixture.driver.ram.read(DATA + 8192, 4096), bytes);
    let head = fixture.driver.indirect_request(IN, 9, &[writable(DATA + 16384, 512), writable(DATA + 32768, 1024)]);
    assert_eq!(fixture.round(head), (OK, 1537));
    assert_eq!(fixture.driver.ram.read(DATA + 16384, 512), bytes[512..1024]);
    assert_eq!(fixture.driver.ram.read(DATA + 32768, 1024), bytes[1024..2048]);
    let counters = &fixture.counters;
    assert_eq!((counters.reads.get(), counters.writes.get(), counters.errors.get()), (2, 1, 0));
    assert_eq!((counters.read_bytes.get(), counters.written_bytes.get()), (4096 + 1536, 4096));
}

#[test]
fn a_chain_is_cut_anywhere() {
    let mut fixture = Fixture::new(memory_disk(), &Options { size: 64, ..Options::default() });
    let bytes = Random(3).bytes(1024);
    // Header, data and status in one piece of memory each way, cut at every place into two descriptors.
    for cut in 1..16 + 1024_u32 {
        let base = DATA + 4096 + 3;
        fixture.driver.ram.write(base, &Driver::header_bytes(OUT, 4));
        fixture.driver.ram.write(base + 16, &bytes);
        let status = writable(DATA, 1);
        let head = fixture.driver.chain(&[readable(base, cut), readable(base + u64::from(cut), 1040 - cut), status]);
        assert_eq!(fixture.round(head), (OK, 1), "write cut at {cut}");
    }
    for cut in 1..=1024_u32 {
        let header = DATA;
        fixture.driver.ram.write(header, &Driver::header_bytes(IN, 4));
        let base = DATA + 4096 + 5;
        fixture.driver.ram.write(base, &[0; 1025]);
        let data = [writable(base, cut), writable(base + u64::from(cut), 1025 - cut)];
        let head = fixture.driver.chain(&[readable(header, 7), readable(header + 7, 9), data[0], data[1]]);
        assert_eq!(fixture.round(head), (OK, 1025), "read cut at {cut}");
        assert_eq!(fixture.driver.ram.read(base, 1024), bytes);
    }
    // Empty descriptors are ignored.
    let head = fixture.driver.chain(&[
        readable(DATA, 0),
        readable(DATA, 16),
        writable(DATA + 64, 0),
        writable(DATA + 64, 513),
        writable(0, 0),
    ]);
    assert_eq!(fixture.round(head), (OK, 513));
}

#[test]
fn a_chain_may_end_in_a_table_at_any_address() {
    let mut fixture = Fixture::new(memory_disk(), &Options::default());
    fixture.driver.ram.write(DATA, &Driver::header_bytes(IN, 0));
    // Aligned, odd, and across two regions.
    for table in [DATA + 4096, DATA + 4096 + 3, SECOND - 16, SECOND - 9] {
        let head = fixture.driver.chain_with_table(
            &[readable(DATA, 10)],
            table,
            &[readable(DATA + 10, 6), writable(DATA + 8192, 512), writable(DATA + 16384, 1)],
        );
        assert_eq!(fixture.round(head), (OK, 513), "{table:#x}");
    }
}

#[test]
fn data_header_and_status_may_cross_regions() {
    let mut fixture = Fixture::new(memory_disk(), &Options::default());
    let bytes = Random(4).bytes(4096);
    fixture.driver.ram.write(SECOND - 1000, &bytes);
    assert_eq!(fixture.request(OUT, 0, &[readable(SECOND - 1000, 4096)]), (OK, 1));
    assert_eq!(fixture.request(IN, 0, &[writable(SECOND - 3000, 4096)]), (OK, 4097));
    assert_eq!(fixture.driver.ram.read(SECOND - 3000, 4096), bytes);
    fixture.driver.ram.write(SECOND - 5, &Driver::header_bytes(IN, 1));
    let head = fixture.driver.chain(&[readable(SECOND - 5, 16), writable(END - 513, 513)]);
    assert_eq!(fixture.round(head), (OK, 513));
    assert_eq!(fixture.driver.ram.read(END - 513, 512), bytes[512..1024]);
}

#[test]
fn requests_that_cannot_be_served_fail_alone() {
    let mut fixture = Fixture::new(memory_disk(), &Options { size: 512, ..Options::default() });
    let sector = |count: u32| writable(DATA, count * 512);
    let cases: Vec<(&str, u32, u64, Vec<Part>)> = vec![
        ("at the end", IN, SECTORS, vec![sector(1)]),
        ("across the end", IN, SECTORS - 1, vec![sector(2)]),
        ("far beyond the end", IN, u64::MAX, vec![sector(1)]),
        ("no data", IN, 0, vec![]),
        ("no data to write", OUT, 0, vec![]),
        ("no whole sector", IN, 0, vec![writable(DATA, 100)]),
        ("no whole sectors", IN, 0, vec![sector(1), writable(DATA, 1)]),
        ("data outside memory", IN, 0, vec![writable(END, 512)]),
        ("data behind memory", IN, 0, vec![writable(END - 256, 512)]),
        ("data before memory", IN, 0, vec![writable(BASE - 256, 512)]),
        ("data around the address space", IN, 0, vec![writable(u64::MAX - 255, 512)]),
        ("too many pieces", IN, 0, (0..257).map(|piece| writable(DATA + 1024 * piece, 512)).collect()),
        ("too much", IN, 0, (0..33).map(|_| writable(DATA, 1 << 19)).collect()),
        ("a range beyond the end", DISCARD, 0, vec![range(&fixture.driver, SECTORS, 1, 0)]),
        ("an empty range", DISCARD, 0, vec![range(&fixture.driver, 0, 0, 0)]),
        ("a long range", WRITE_ZEROES, 0, vec![range(&fixture.driver, 0, u32::MAX, 0)]),
        ("half a range", DISCARD, 0, vec![readable(DATA, 8)]),
        ("no range", DISCARD, 0, vec![]),
        ("too many ranges", DISCARD, 0, vec![readable(DATA, 80)]),
        ("two ranges to zero", WRITE_ZEROES, 0, vec![readable(DATA, 32)]),
        ("a range outside memory", DISCARD, 0, vec![readable(END, 16)]),
        ("a serial number outside memory", GET_ID, 0, vec![writable(END, 20)]),
    ];
    let count = cases.len() as u64;
    for (what, kind, at, data) in cases {
        let (status, used) = fixture.request(kind, at, &data);
        assert_eq!(status, IOERR, "{what}");
        assert!(used <= 1, "{what}");
    }
    assert_eq!(fixture.counters.errors.get(), count);
    for (what, kind, data) in [
        ("an unknown type", 77, vec![]),
        ("a SCSI command", 2, vec![writable(DATA, 64)]),
        ("an upgrade request", 0x4649_5030, vec![readable(DATA, 64), writable(DATA, 64)]),
        ("a discard that unmaps", DISCARD, vec![range(&fixture.driver, 0, 1, 1)]),
        ("an unknown flag", WRITE_ZEROES, vec![range(&fixture.driver, 0, 1, 2)]),
    ] {
        assert_eq!(fixture.request(kind, 0, &data).0, UNSUPP, "{what}");
    }
    assert_eq!(fixture.request(IN, 0, &[sector(1)]), (OK, 513), "all others go on");
    assert_eq!(fixture.server.queue.fault(), None);
}

/// A range at an address of its own.
fn range(driver: &Driver, sector: u64, count: u32, flags: u32) -> Part {
    let place = DATA + (1 << 20) + (sector ^ u64::from(count) ^ u64::from(flags) << 8) % 1024 * 16;
    let bytes = [&sector.to_le_bytes()[..], &count.to_le_bytes(), &flags.to_le_bytes()].concat();
    driver.ram.write(place, &bytes);
    readable(place, 16)
}

#[test]
fn discard_takes_several_ranges_and_write_zeroes_zeroes() {
    let mut fixture = Fixture::new(memory_disk(), &Options::default());
    fixture.driver.ram.write(DATA, &[7; 16384]);
    assert_eq!(fixture.request(OUT, 0, &[readable(DATA, 16384)]), (OK, 1));
    let ranges = [range(&fixture.driver, 0, 2, 0), range(&fixture.driver, 4, 1, 0)];
    assert_eq!(fixture.request(DISCARD, 0, &ranges), (OK, 1));
    let zeroed = [range(&fixture.driver, 10, 3, 1)];
    assert_eq!(fixture.request(WRITE_ZEROES, 0, &zeroed), (OK, 1));
    assert_eq!(fixture.request(IN, 0, &[writable(DATA, 16384)]), (OK, 16385));
    let read = fixture.driver.ram.read(DATA, 16384);
    for (sector, bytes) in read.chunks(512).enumerate() {
        let expected = if matches!(sector, 0 | 1 | 4 | 10..13) { 0 } else { 7 };
        assert!(bytes.iter().all(|byte| *byte == expected), "sector {sector}");
    }
    // One bad range of several: none is begun.
    let ranges = [range(&fixture.driver, 20, 1, 0), range(&fixture.driver, SECTORS, 1, 0)];
    assert_eq!(fixture.request(DISCARD, 0, &ranges).0, IOERR);
    assert_eq!(fixture.request(IN, 20, &[writable(DATA, 512)]), (OK, 513));
    assert_eq!(fixture.driver.ram.read(DATA, 512), [7; 512]);
}

#[test]
fn the_serial_number_is_padded_and_cut() {
    let mut fixture = Fixture::new(memory_disk(), &Options::default());
    fixture.driver.ram.write(DATA, &[9; 64]);
    assert_eq!(fixture.request(GET_ID, 0, &[writable(DATA, 20)]), (OK, 21));
    assert_eq!(fixture.driver.ram.read(DATA, 21), b"fipsee-test\0\0\0\0\0\0\0\0\0\x09");
    assert_eq!(fixture.request(GET_ID, 0, &[writable(DATA + 64, 4), writable(DATA + 96, 2)]), (OK, 7));
    assert_eq!(
        (fixture.driver.ram.read(DATA + 64, 4), fixture.driver.ram.read(DATA + 96, 2)),
        (b"fips".to_vec(), b"ee".to_vec())
    );
    assert_eq!(fixture.request(GET_ID, 0, &[writable(DATA, 64)]), (OK, 20), "the bytes in between are not claimed to be written");
}

#[test]
fn a_read_only_device_refuses_what_writes() {
    let mut fixture = Fixture::new(memory_disk(), &Options { read_only: true, ..Options::default() });
    assert_eq!(fixture.request(OUT, 0, &[readable(DATA, 512)]).0, IOERR);
    for kind in [DISCARD, WRITE_ZEROES] {
        let ranges = [range(&fixture.driver, 0, 1, 0)];
        assert_eq!(fixture.request(kind, 0, &ranges).0, IOERR);
    }
    assert_eq!(fixture.request(IN, 0, &[writable(DATA, 512)]), (OK, 513));
    assert_eq!(fixture.request(FLUSH, 0, &[]), (OK, 1));
}

#[test]
fn a_resized_disk_is_checked_against_its_new_size() {
    let mut fixture = Fixture::new(memory_disk(), &Options::default());
    let mut info = fipsee_block::disk::Disk::info(&fixture.disk);
    info.sector_count = 8;
    fixture.server.set_info(&info);
    assert_eq!(fixture.request(IN, 8, &[writable(DATA, 512)]).0, IOERR);
    assert_eq!(fixture.request(IN, 7, &[writable(DATA, 512)]).0, OK);
}

/// Release one held request of the disk and report it.
fn release(fixture: &mut Fixture<HeldDisk>) {
    fixture.release(0);
    fixture.server.flush();
}

#[test]
fn write_through_makes_every_write_durable_before_it_is_answered() {
    use std::sync::atomic::Ordering::Relaxed;
    let mut fixture = Fixture::new(HeldDisk::new(), &Options::default());
    fixture.writeback.store(false, Relaxed);
    let head = fixture.begin(OUT, 3, &[readable(DATA, 512)]);
    assert_eq!(fixture.disk.seen(), [(Operation::Write, 3, true)], "by FUA where the disk has it");
    release(&mut fixture);
    assert_eq!(fixture.driver.take_used(), Some((head, 1)));
    fixture.writeback.store(true, Relaxed);
    let head = fixture.begin(OUT, 4, &[readable(DATA, 512)]);
    assert_eq!(fixture.disk.seen()[1], (Operation::Write, 4, false));
    release(&mut fixture);
    assert_eq!(fixture.driver.take_used(), Some((head, 1)));
}

#[test]
fn a_driver_that_cannot_flush_relies_on_every_write() {
    let mut fixture = Fixture::new(HeldDisk::new(), &Options { features: 0, ..Options::default() });
    fixture.begin(OUT, 3, &[readable(DATA, 512)]);
    assert_eq!(fixture.disk.seen(), [(Operation::Write, 3, true)]);
}

#[test]
fn without_fua_a_flush_follows_the_write() {
    for at_once in [false, true] {
        let mut disk = HeldDisk::new().without_fua();
        disk.at_once = at_once;
        let mut fixture = Fixture::new(disk, &Options { features: 0, ..Options::default() });
        let head = fixture.begin(OUT, 3, &[readable(DATA, 512)]);
        assert_eq!(fixture.disk.seen(), [(Operation::Write, 3, false)]);
        if !at_once {
            release(&mut fixture);
        }
        assert_eq!((fixture.driver.take_used(), fixture.server.in_flight()), (None, 1), "written, and not durable");
        assert!(fixture.server.has_work() && fixture.server.arm_and_work_remains());
        fixture.visit();
        assert_eq!(fixture.disk.seen()[1].0, Operation::Flush);
        if !at_once {
            assert_eq!((fixture.driver.take_used(), fixture.server.in_flight()), (None, 1));
            release(&mut fixture);
        }
        assert_eq!((fixture.driver.take_used(), fixture.server.in_flight()), (Some((head, 1)), 0));
        assert_eq!(fixture.driver.status(head), OK);
        assert!(!fixture.server.has_work());
    }
}

#[test]
fn a_request_of_several_ranges_is_answered_when_the_last_is_done() {
    let mut fixture = Fixture::new(HeldDisk::new(), &Options::default());
    let ranges = [range(&fixture.driver, 0, 1, 0), range(&fixture.driver, 5, 1, 0), range(&fixture.driver, 9, 1, 0)];
    let head = fixture.begin(DISCARD, 0, &ranges);
    assert_eq!((fixture.disk.held(), fixture.server.in_flight()), (3, 3));
    for left in (0..3).rev() {
        assert_eq!(fixture.driver.take_used(), None);
        release(&mut fixture);
        assert_eq!(fixture.server.in_flight(), left);
    }
    assert_eq!(fixture.driver.take_used(), Some((head, 1)));
    assert_eq!(fixture.driver.status(head), OK);
}
