//! Anything that a correct driver never does stops the queue, with a message, and nothing else.

use std::sync::Arc;

use fipsee_block::disk::AnyDisk;
use fipsee_serve::{Queue as _, Taken, Turn};
use fipsee_virtio::blk::server::GuestDiskQueue;

use crate::common::driver::DATA;
use crate::common::ram::{BASE, END};
use crate::common::{Driver, Fixture, HeldDisk, IN, Memory as _, OK, Options, Ram, memory_disk, readable, rings, writable};

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// Raw descriptors of the ring's table: address, length, flags, next.
fn put(driver: &Driver, table: u64, descriptors: &[(u64, u32, u16, u16)]) {
    for (index, (address, length_bytes, flags, next)) in (0..).zip(descriptors) {
        driver.put_descriptor(table, index, readable(*address, *length_bytes), *flags, *next);
    }
}

struct Case {
    what: &'static str,
    /// Part of the text.
    says: &'static str,
    /// The ring's table; chain 0 is offered.
    table: Vec<(u64, u32, u16, u16)>,
    /// An indirect table at `TABLE`.
    indirect: Vec<(u64, u32, u16, u16)>,
}

const HEADER: u64 = DATA;
const STATUS: u64 = DATA + 64;
const TABLE: u64 = DATA + 4096;

fn case(what: &'static str, says: &'static str, table: &[(u64, u32, u16, u16)], indirect: &[(u64, u32, u16, u16)]) -> Case {
    Case { what, says, table: table.to_vec(), indirect: indirect.to_vec() }
}

fn cases() -> Vec<Case> {
    let header = (HEADER, 16, NEXT, 1);
    let status = (STATUS, 1, WRITE, 0);
    let table = |length_bytes| (TABLE, length_bytes, INDIRECT, 0);
    vec![
        case("next outside the table", "number 16", &[(HEADER, 16, NEXT, 16), status], &[]),
        case("next far outside", "number 65535", &[(HEADER, 16, NEXT, 65535), status], &[]),
        case("a loop onto itself", "loop", &[(HEADER, 16, NEXT, 0)], &[]),
        case("a loop of two", "loop", &[header, (DATA, 8, NEXT, 0)], &[]),
        case("to read after to write", "after memory to write", &[header, (STATUS, 1, WRITE | NEXT, 2), (DATA, 8, 0, 0)], &[]),
        case("no status", "no status byte", &[header, (DATA, 512, 0, 0)], &[]),
        case("an empty status", "no status byte", &[header, (STATUS, 0, WRITE, 0)], &[]),
        case("a status outside memory", "status byte", &[header, (END, 1, WRITE, 0)], &[]),
        case("a status at the end of the address space", "status byte", &[header, (u64::MAX, 1, WRITE, 0)], &[]),
        case("a status behind it", "status byte", &[header, (u64::MAX - 1, 16, WRITE, 0)], &[]),
        case("no header", "header", &[status], &[]),
        case("a short header", "header", &[(HEADER, 15, NEXT, 1), status], &[]),
        case("a header outside memory", "header", &[(END, 16, NEXT, 1), status], &[]),
        case("a header before memory", "header", &[(BASE - 8, 16, NEXT, 1), status], &[]),
        case("a header that leaves memory", "header", &[(END - 8, 16, NEXT, 1), status], &[]),
        case("half a header outside", "header", &[(HEADER, 8, NEXT, 1), (END, 8, NEXT, 2), status], &[]),
        case("nothing at all", "header", &[(0, 0, 0, 0)], &[]),
        case("an empty table", "0 bytes", &[table(0)], &[]),
        case("half an entry", "24 bytes", &[table(24)], &[(HEADER, 16, NEXT, 1), status]),
        case("a huge table", "bytes, which is not", &[table(1025 * 16)], &[]),
        case("the longest table", "bytes, which is not", &[table(u32::MAX)], &[]),
        case("a table outside memory", "outside guest memory", &[(END, 32, INDIRECT, 0)], &[]),
        case("a table that leaves memory", "outside guest memory", &[(END - 16, 32, INDIRECT, 0)], &[]),
        case("a table around the address space", "outside guest memory", &[(u64::MAX - 15, 32, INDIRECT, 0)], &[]),
        case("a table with a next", "has a next one", &[(TABLE, 32, INDIRECT | NEXT, 1), status], &[header, status]),
        case("a nested table", "holds an indirect", &[table(32)], &[(HEADER, 16, NEXT, 1), (TABLE, 32, INDIRECT, 0)]),
        case("a loop in a table", "loop", &[table(32)], &[(HEADER, 16, NEXT, 1), (HEADER, 16, NEXT, 0)]),
        case("next outside an indirect table", "number 2", &[table(32)], &[(HEADER, 16, NEXT, 2), status]),
        case("the last entry of a table goes on", "number 2", &[table(32)], &[header, (STATUS, 1, WRITE | NEXT, 2)]),
        case("a table without status", "no status byte", &[table(16)], &[(HEADER, 16, 0, 0)]),
    ]
}

#[test]
fn a_malformed_chain_stops_the_queue_and_what_was_done_before_is_published() {
    for Case { what, says, table, indirect } in cases() {
        let mut fixture = Fixture::new(memory_disk(), &Options::default());
        fixture.driver.ram.write(HEADER, &Driver::header_bytes(IN, 0));
        // A good request from the end of the table, before and after the bad one.
        let good = 10;
        fixture.driver.put_descriptor(fixture.driver.descriptors, good, readable(HEADER, 16), NEXT, good + 1);
        fixture.driver.put_descriptor(fixture.driver.descriptors, good + 1, writable(DATA + 8192, 513), 0, 0);
        put(&fixture.driver, fixture.driver.descriptors, &table);
        put(&fixture.driver, TABLE, &indirect);
        for head in [good, 0, good] {
            fixture.driver.stage(head);
        }
        fixture.driver.publish();
        fixture.visit();
        assert!(fixture.fault().contains(says), "{what}: {}", fixture.fault());
        assert_eq!(fixture.driver.used_index(), 1, "{what}: the good one before is answered");
        assert_eq!(fixture.driver.ram.read(DATA + 8192 + 512, 1), [OK], "{what}");
        assert_eq!(rings(&fixture.error), 1, "{what}: the hypervisor is notified");
        assert!(!fixture.server.has_work() && !fixture.server.arm_and_work_remains(), "{what}: nothing remains to do");
        assert_eq!(fixture.visit(), 0, "{what}");
        assert_eq!(fixture.driver.used_index(), 1, "{what}: nothing else is taken");
    }
}

#[test]
fn an_impossible_available_ring_stops_the_queue() {
    let mut fixture = Fixture::new(memory_disk(), &Options::default());
    fixture.driver.stage(16);
    fixture.driver.publish();
    fixture.visit();
    assert!(fixture.fault().contains("names descriptor 16, and the queue has 16"), "{}", fixture.fault());

    let mut fixture = Fixture::new(memory_disk(), &Options::default());
    fixture.driver.ram.store(fixture.driver.available + 2, 17);
    assert!(fixture.server.has_work());
    fixture.visit();
    assert!(fixture.fault().contains("by 17 entries"), "{}", fixture.fault());

    // Backwards is a jump forwards.
    let mut fixture = Fixture::new(memory_disk(), &Options { start: 5, ..Options::default() });
    fixture.driver.ram.store(fixture.driver.available + 2, 4);
    fixture.visit();
    assert!(fixture.fault().contains("by 65535 entries"), "{}", fixture.fault());
    assert_eq!(rings(&fixture.error), 1);
}

/// A worker with a few queues visits none that is quiet.
#[test]
fn queue_with_a_fault_that_was_found_between_visits_is_not_quiet_until_a_visit_has_reported_it() {
    let mut fixture = Fixture::new(memory_disk(), &Options::default());
    fixture.driver.stage(16);
    fixture.driver.publish();
    fixture.visit();
    assert!(fixture.fault().contains("descriptor 16"), "{}", fixture.fault());
    let mut queue = GuestDiskQueue::new(fixture.server, Arc::new(AnyDisk::Memory(fixture.disk)));
    assert!(!queue.has_work() && !queue.is_quiet());
    assert_eq!(queue.visit(&mut fixture.engine, Turn::whole(false)), Taken::NOTHING);
    assert!(queue.is_quiet());
}

#[test]
fn indirect_descriptors_need_their_feature() {
    let mut fixture = Fixture::new(memory_disk(), &Options { features: 0, ..Options::default() });
    let head = fixture.driver.indirect_request(IN, 0, &[writable(DATA, 512)]);
    fixture.driver.offer(head);
    fixture.visit();
    assert!(fixture.fault().contains("not negotiated"), "{}", fixture.fault());
}

#[test]
fn a_chain_that_is_in_flight_cannot_be_made_available_again() {
    let mut fixture = Fixture::new(HeldDisk::new(), &Options::default());
    let head = fixture.begin(IN, 0, &[writable(DATA, 512)]);
    fixture.driver.offer(head);
    fixture.visit();
    assert!(fixture.fault().contains("made available again"), "{}", fixture.fault());
    // The disk finishes; the faulty guest is not notified.
    assert_eq!(fixture.server.in_flight(), 1);
    fixture.release(0);
    fixture.server.flush();
    assert_eq!((fixture.server.in_flight(), fixture.driver.used_index()), (0, 0));
}

#[test]
fn rings_outside_memory_or_misaligned_are_refused() {
    type Change = fn(&mut Driver);
    let cases: [(&str, Change, &str); 9] = [
        ("a table outside memory", |driver| driver.descriptors = END, "descriptor table"),
        ("a table that leaves memory", |driver| driver.descriptors = END - END % 16 - 16, "descriptor table"),
        ("an odd table", |driver| driver.descriptors += 8, "aligned to 16"),
        ("an available ring outside memory", |driver| driver.available = 0, "available ring"),
        ("an odd available ring", |driver| driver.available += 1, "aligned to 2"),
        ("a used ring outside memory", |driver| driver.used = u64::MAX - 3, "used ring"),
        ("an odd used ring", |driver| driver.used += 2, "aligned to 4"),
        ("a size that is no power of two", |driver| driver.size = 24, "24 descriptors"),
        ("no size", |driver| driver.size = 0, "0 descriptors"),
    ];
    for (what, change, says) in cases {
        let mut driver = Driver::new(Ram::new(), 16, true, 0);
        change(&mut driver);
        let size = driver.size;
        let refused = Fixture::serve(memory_disk(), &Options { size, ..Options::default() }, driver, |_| {});
        let text = refused.err().unwrap_or_else(|| panic!("{what} is served"));
        assert!(text.contains(says), "{what}: {text}");
    }
}
