//! Upgrade requests go to the owner of the server, and are answered at once or later.

use crate::common::driver::DATA;
use crate::common::ram::END;
use crate::common::{Fixture, IN, IOERR, Memory as _, OK, Options, Part, Ram, UNSUPP, memory_disk, readable, writable};
use fipsee_block::disk::MemoryDisk;
use fipsee_virtio::blk::server::UpgradeToken;
use fipsee_virtio::blk::upgrade::wire::{DONE, Entry, INVALID, Operation, PART_BYTES, REQUEST_TYPE, Reply, UpgradeRequest};

fn fixture() -> Fixture<MemoryDisk> {
    Fixture::new(memory_disk(), &Options { takes_upgrade_requests: true, ..Options::default() })
}

/// An attach of this many queues, or a query if there is none.
fn upgrade_request(queues: u32) -> UpgradeRequest {
    let operation = if queues == 0 { Operation::Query } else { Operation::Attach };
    let entry = |virtqueue| Entry { request_slots: 64, completion_slots: 64, depth: 8, virtqueue, ..Entry::default() };
    let attachment = if queues == 0 { 7 } else { 0 };
    UpgradeRequest { operation, attachment, features: 0, queue: 0, entries: (0..queues).map(entry).collect() }
}

/// Offer an upgrade request and have it taken; returns its head and the request that the device received.
fn ask(fixture: &mut Fixture<MemoryDisk>, sector: u64, data: &[Part]) -> (u16, Vec<(UpgradeToken, UpgradeRequest)>) {
    let head = fixture.offer(REQUEST_TYPE, sector, data);
    fixture.run();
    (head, fixture.upgrade_requests.take())
}

/// The reply, as the guest reads it.
fn reply(fixture: &Fixture<MemoryDisk>) -> Reply {
    let bytes = fixture.driver.ram.read(DATA + 8192, PART_BYTES);
    Reply::from_bytes(bytes.as_slice().try_into().expect("64 bytes")).expect("a reply")
}

#[test]
fn without_a_device_the_request_is_unknown() {
    let mut fixture = Fixture::new(memory_disk(), &Options::default());
    assert_eq!(fixture.request(REQUEST_TYPE, 0, &[readable(DATA, 64), writable(DATA, 64)]), (UNSUPP, 0));
}

#[test]
fn an_upgrade_request_is_copied_whole_and_answered() {
    let mut fixture = fixture();
    for (queues, cut) in [(0, 64), (0, 1), (1, 100), (64, 65), (64, 4097)] {
        let asked = upgrade_request(queues);
        let (bytes, length) = (asked.to_bytes(), 64 + 64 * queues);
        fixture.driver.ram.write(DATA, &bytes);
        fixture.driver.ram.write(DATA + 8192, &[0; 80]);
        let room = [writable(DATA + 8192, 3), writable(DATA + 8192 + 3, 61)];
        let data = [readable(DATA, cut), readable(DATA + u64::from(cut), length - cut), room[0], room[1]];
        let (head, taken) = ask(&mut fixture, 0, &data);
        let [(token, upgrade_request)] = taken.as_slice() else { panic!("{taken:?}") };
        assert_eq!(upgrade_request, &asked);
        let answer = Reply { attachment: u64::from(cut), ..Reply::of(DONE) };
        assert!(fixture.server.answer_upgrade_request(*token, &answer));
        fixture.server.flush();
        assert_eq!((fixture.driver.take_used(), fixture.driver.status(head)), (Some((head, 65)), OK), "{length} bytes");
        assert_eq!((reply(&fixture), fixture.driver.ram.read(DATA + 8192 + 64, 1)), (answer, vec![0]));
    }
}

#[test]
fn a_malformed_upgrade_request_is_answered_without_the_device() {
    let mut fixture = fixture();
    for (what, sector, bytes) in
        [("a sector", 9, upgrade_request(0).to_bytes()), ("no magic", 0, vec![1; 64]), ("too short", 0, vec![1; 10])]
    {
        fixture.driver.ram.write(DATA, &bytes);
        let length = u32::try_from(bytes.len()).expect("small");
        let (head, taken) = ask(&mut fixture, sector, &[readable(DATA, length), writable(DATA + 8192, 64)]);
        assert_eq!((taken.len(), fixture.driver.take_used(), reply(&fixture).result), (0, Some((head, 65)), INVALID), "{what}");
    }
}

#[test]
fn upgrade_requests_that_cannot_be_answered_are_errors() {
    let mut fixture = fixture();
    fixture.driver.ram.write(DATA, &upgrade_request(0).to_bytes());
    for (what, data) in [
        ("no room for the reply", vec![readable(DATA, 64), writable(DATA, 63)]),
        ("no reply", vec![readable(DATA, 64)]),
        ("too long", vec![readable(DATA, 64 + 64 * 64 + 1), writable(DATA, 64)]),
        ("a request outside memory", vec![readable(END, 64), writable(DATA, 64)]),
    ] {
        assert_eq!(fixture.request(REQUEST_TYPE, 0, &data).0, IOERR, "{what}");
        assert_eq!(fixture.upgrade_requests.take(), [], "{what}");
    }
    let (head, taken) = ask(&mut fixture, 0, &[readable(DATA, 64), writable(END, 64)]);
    assert!(fixture.server.answer_upgrade_request(taken[0].0, &Reply::of(DONE)));
    fixture.server.flush();
    assert!(fixture.driver.take_used().is_some());
    assert_eq!(fixture.driver.status(head), IOERR, "the reply goes nowhere");
    assert_eq!(fixture.request(IN, 0, &[writable(DATA, 512)]).0, OK);
}

/// Make an upgrade request pending; returns its head and token.
fn hold_pending(fixture: &mut Fixture<MemoryDisk>) -> (u16, UpgradeToken) {
    fixture.driver.ram.write(DATA, &upgrade_request(0).to_bytes());
    let (head, taken) = ask(fixture, 0, &[readable(DATA, 64), writable(DATA + 8192, 64)]);
    (head, taken[0].0)
}

#[test]
fn a_pending_upgrade_request_does_not_hold_up_others_and_is_answered_once() {
    let mut fixture = fixture();
    let (head, token) = hold_pending(&mut fixture);
    assert_eq!((fixture.server.unanswered(), fixture.server.in_flight(), fixture.driver.take_used()), (1, 0, None));
    assert_eq!(fixture.request(IN, 0, &[writable(DATA, 512)]).0, OK);
    assert!(fixture.server.answer_upgrade_request(token, &Reply::of(3)));
    fixture.server.flush();
    assert_eq!(fixture.driver.take_used(), Some((head, 65)));
    assert_eq!((fixture.driver.status(head), reply(&fixture)), (OK, Reply::of(3)));
    assert!(!fixture.server.answer_upgrade_request(token, &Reply::of(4)), "it was answered");
    // The same head is used again: the old token does not match.
    let (again, other) = hold_pending(&mut fixture);
    assert_eq!(again, head);
    assert!(!fixture.server.answer_upgrade_request(token, &Reply::of(4)));
    assert!(fixture.server.answer_upgrade_request(other, &Reply::of(5)));
    fixture.server.flush();
    assert_eq!(fixture.driver.take_used(), Some((head, 65)));
}

#[test]
fn a_pending_upgrade_request_survives_a_new_memory_table_and_does_not_hold_up_the_end() {
    let mut fixture = fixture();
    let (head, token) = hold_pending(&mut fixture);
    let memory = fixture.driver.ram.map_again();
    fixture.server.set_memory(memory, fixture.driver.addresses()).expect("the same rings");
    assert!(fixture.server.answer_upgrade_request(token, &Reply::of(6)));
    fixture.server.flush();
    assert_eq!(fixture.driver.take_used(), Some((head, 65)));
    assert_eq!(reply(&fixture), Reply::of(6));
    let (_, _) = hold_pending(&mut fixture);
    assert_eq!(fixture.server.in_flight(), 0, "so it can be stopped");
    assert_eq!(fixture.server.stop(), 2);
}

#[test]
fn memory_without_the_rings_is_refused_and_the_old_one_goes_on() {
    let mut fixture = fixture();
    let other = Ram::of(vec![crate::common::ram::region(END + 4096, 1 << 20, 0)]);
    let text = fixture.server.set_memory(other.memory(), fixture.driver.addresses()).expect_err("no rings there");
    assert!(text.contains("descriptor table"), "{text}");
    assert_eq!(fixture.request(IN, 0, &[writable(DATA, 512)]).0, OK);
}
