//! The hypervisor logs writes to memory: guests are called back, and writes to their rings are in the log.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};

use fipsee_block::wire::{KIND_DETACH, Operation, Status, request_ack_event};
use fipsee_ring::region::Region;
use fipsee_testkit::guest::device::{IN, OK, Options};
use fipsee_testkit::guest::load::{GuestLoad, Way};
use fipsee_testkit::guest::machine::{Upgraded, attach_request, detach_request, query, start_guest, start_with, transfer};
use fipsee_testkit::guest::ring::{Incoming, plan};
use fipsee_virtio::blk::upgrade::wire::{self, DONE, FEATURES, NOT_NOW};

const PAGE_BYTES: u64 = 4096;

/// checks: R-9.3-2, R-9.5-1, R-5.3-25, R-5.6-2
#[test]
fn migration_calls_the_guest_back_and_logs_what_is_written() {
    for disk in ["d=memory:8M", "d=file:{dir}/f,size=8M"] {
        let daemon = start_with(&["--disk", disk, "--workers", "2"]);
        let mut guest = start_guest(&daemon, "d", &Options { queues: 2, ..Options::default() });
        let mut up = Upgraded::attach(&mut guest, &[0, 1], 16);
        let data = guest.ram.allocate(PAGE_BYTES, PAGE_BYTES);
        assert_eq!(transfer(&mut guest, &mut up, 1, Operation::Write, 0, (data, 4096)), Status::Ok);
        let log = Region::create("dirty-log", 64 << 10).expect("memory for a log");
        let file: OwnedFd = log.as_fd().try_clone_to_owned().expect("a descriptor");
        guest.set_logging(Some((&file, 64 << 10))).expect("logging");
        for queue in 0..2 {
            assert_eq!(up.rings[queue].wait(up.attachment, &mut guest), [Incoming::Detach]);
            assert_eq!(transfer(&mut guest, &mut up, queue, Operation::Read, 0, (data, 4096)), Status::Detached);
            up.rings[queue].submit(&[request_ack_event(9, KIND_DETACH)], &guest.queues[queue]);
            assert_eq!(up.rings[queue].wait(up.attachment, &mut guest), [Incoming::Answer(9, 0)]);
            assert!(is_dirty(&log, up.rings[queue].entry.completion_address), "the completion ring of queue {queue}");
            assert!(is_dirty(&log, up.rings[queue].entry.cold_address), "its sleep flags");
        }
        assert!(!is_dirty(&log, data), "no request read into it");
        let entries = [plan(&guest.ram, 16, 0)];
        assert_eq!(guest.ask_bytes(0, &attach_request(&entries)).result, NOT_NOW);
        assert_eq!(guest.ask(0, &detach_request(up.attachment)).result, DONE);
        assert_eq!(guest.ask_bytes(0, &attach_request(&entries)).result, NOT_NOW);
        assert_eq!(guest.transfer(0, IN, 0, (data, 4096)), OK, "virtqueues go on");
        assert!(is_dirty(&log, data), "and their reads are logged");
        guest.set_logging(None).expect("no logging");
        let reply = guest.ask_bytes(0, &attach_request(&entries));
        assert_eq!(reply.result, DONE, "the guest may attach again");
        assert_eq!(guest.ask(0, &query(0)), wire::Reply { features: FEATURES, max_depth: 4096, ..reply });
    }
}

/// The marked pages; their marks are cleared.
fn take_dirty(log: &Region) -> BTreeSet<u64> {
    let mut bytes = vec![0; 64 << 10];
    log.read(0, &mut bytes).expect("all of the log");
    log.write(0, &vec![0; bytes.len()]).expect("all of the log");
    let bits = |(place, byte): (u64, &u8)| {
        (0..8).filter(move |bit| byte >> bit & 1 != 0).map(move |bit| 8 * place + bit).collect::<Vec<_>>()
    };
    (0..).zip(&bytes).flat_map(bits).collect()
}

#[test]
fn migration_goes_on_with_the_daemon_that_takes_over() {
    let mut daemon = start_with(&["--disk", "d=memory:8M", "--disk", "w=memory:8M", "--workers", "2"]);
    let load = GuestLoad::start(&daemon, "w", &Options { size: 256, ..Options::default() }, Way::Ring, 16);
    let mut guest = start_guest(&daemon, "d", &Options { queues: 2, ..Options::default() });
    let mut up = Upgraded::attach(&mut guest, &[1], 16);
    let data = guest.ram.allocate(PAGE_BYTES, PAGE_BYTES);
    let log = Region::create("dirty-log", 64 << 10).expect("memory for a log");
    let file: OwnedFd = log.as_fd().try_clone_to_owned().expect("a descriptor");
    guest.set_logging(Some((&file, 64 << 10))).expect("logging");
    // The guest was called back by one daemon, and attaches again at another.
    daemon.take_over();
    load.await_progress();
    assert_eq!(up.rings[0].wait(up.attachment, &mut guest), [Incoming::Detach]);
    assert_eq!(transfer(&mut guest, &mut up, 0, Operation::Read, 0, (data, 4096)), Status::Detached);
    assert!(is_dirty(&log, up.rings[0].entry.completion_address), "what the new daemon wrote to the ring");
    up.rings[0].submit(&[request_ack_event(9, KIND_DETACH)], &guest.queues[1]);
    assert_eq!(up.rings[0].wait(up.attachment, &mut guest), [Incoming::Answer(9, 0)]);
    assert_eq!(guest.ask(0, &detach_request(up.attachment)).result, DONE);
    for _ in 0..3 {
        take_dirty(&log);
        daemon.take_over();
        load.await_progress();
        let entries = [plan(&guest.ram, 16, 1)];
        assert_eq!(guest.ask_bytes(0, &attach_request(&entries)).result, NOT_NOW, "the new daemon knows of the migration");
        take_dirty(&log);
        let (fresh, head) = (guest.ram.allocate(PAGE_BYTES, PAGE_BYTES), guest.queues[0].next_head());
        assert_eq!(guest.transfer(0, IN, 0, (fresh, 4096)), OK);
        let status = guest.place(0, head);
        let expected = [fresh, guest.queues[0].used, status].map(|address| address / PAGE_BYTES);
        let mut dirty = take_dirty(&log);
        // A worker that goes to sleep meanwhile asks for kicks in the other queue's used ring, too.
        dirty.remove(&(guest.queues[1].used / PAGE_BYTES));
        assert_eq!(dirty, BTreeSet::from(expected), "data, used ring and status only");
    }
    guest.set_logging(None).expect("no logging");
    assert_eq!(guest.ask_bytes(0, &attach_request(&[plan(&guest.ram, 16, 1)])).result, DONE);
    load.finish();
}

fn is_dirty(log: &Region, address: u64) -> bool {
    let page = address / PAGE_BYTES;
    let mut byte = [0];
    log.read(page / 8, &mut byte).expect("within the log");
    byte[0] >> (page % 8) & 1 != 0
}
