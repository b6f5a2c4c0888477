//! The hypervisor logs writes to memory: guests are called back, and what is written to their rings is in the log.

mod common;
mod guest_common;

use std::os::fd::{AsFd, OwnedFd};

use fipsee_block::wire::{KIND_DETACH, Operation, Status, request_ack_event};
use fipsee_guest::device::{IN, OK, Options};
use fipsee_guest::ring::{Incoming, plan};
use fipsee_ring::region::Region;
use fipsee_virtio::upgrade::wire::{self, DONE, NOT_NOW};

use guest_common::{Upgraded, attach_question, detach_question, query, start_guest, start_with, transfer};

const PAGE_BYTES: u64 = 4096;

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
        assert!(!is_dirty(&log, data), "nothing was read into it");
        let entries = [plan(&guest.ram, 16, 0)];
        assert_eq!(guest.ask_bytes(0, &attach_question(&entries)).result, NOT_NOW);
        assert_eq!(guest.ask(0, &detach_question(up.attachment)).result, DONE);
        assert_eq!(guest.ask_bytes(0, &attach_question(&entries)).result, NOT_NOW);
        assert_eq!(guest.transfer(0, IN, 0, (data, 4096)), OK, "virtqueues go on");
        assert!(is_dirty(&log, data), "and what they read is logged");
        guest.set_logging(None).expect("no logging");
        let reply = guest.ask_bytes(0, &attach_question(&entries));
        assert_eq!(reply.result, DONE, "afterwards it may attach again");
        assert_eq!(guest.ask(0, &query(0)), wire::Reply { max_depth: 4096, ..reply });
    }
}

fn is_dirty(log: &Region, address: u64) -> bool {
    let page = address / PAGE_BYTES;
    let mut byte = [0];
    log.read(page / 8, &mut byte).expect("within the log");
    byte[0] >> (page % 8) & 1 != 0
}
