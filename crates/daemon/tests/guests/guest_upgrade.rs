//! A guest in user space moves to rings in its own memory, and back (docs/protocol.md section 9).

use fipsee_block::wire::{Operation, Status};
use fipsee_testkit::guest::device::{IN, OK, OUT, Options, UNSUPPORTED};
use fipsee_testkit::guest::machine::{Upgraded, attach_request, detach_request, query, start_guest, start_with, transfer};
use fipsee_testkit::guest::ring::{Incoming, Woken, plan, segment};
use fipsee_testkit::{CorrectClient, eventually, stamp};
use fipsee_virtio::blk::upgrade::wire::{self, DONE, Entry, FEATURES, INVALID, NO_ATTACHMENT, Reply};

/// checks: R-9.1-4, R-9.3-1
#[test]
fn guest_goes_over_to_rings_and_back_on_the_same_device() {
    let daemon = start_with(&["--disk", "d=memory:8M"]);
    let mut guest = start_guest(&daemon, "d", &Options::default());
    let offer = guest.ask(0, &query(0));
    assert_eq!(offer, Reply { max_queues: offer.max_queues, features: FEATURES, max_depth: 4096, ..Reply::of(DONE) });
    assert!(offer.max_queues >= 1);

    let data = guest.ram.allocate(8192, 4096);
    guest.ram.write(data, &stamp(4096, 1, 1));
    assert_eq!(guest.transfer(0, OUT, 8, (data, 4096)), OK, "a write over the virtqueue, before");

    let mut seen = Vec::new();
    for round in 2..5 {
        let mut up = Upgraded::attach(&mut guest, &[0], 16);
        assert!(!seen.contains(&up.attachment), "attachments are never used again");
        seen.push(up.attachment);
        assert_eq!(guest.ask(0, &query(0)).attachment, up.attachment);
        assert_eq!(transfer(&mut guest, &mut up, 0, Operation::Read, 8, (data + 4096, 4096)), Status::Ok);
        assert_eq!(guest.ram.read(data + 4096, 4096), stamp(4096, 1, round - 1), "the ring reads what the virtqueue wrote");
        guest.ram.write(data, &stamp(4096, 1, round));
        assert_eq!(transfer(&mut guest, &mut up, 0, Operation::Write, 8, (data, 4096)), Status::Ok);
        // The daemon may have rung for completions that were found before: for the first by the request it held, for the second by the next one.
        for _ in 0..3 {
            up.rings[0].hold_taken(up.attachment, &mut guest);
            assert!(!up.rings[0].disarm(&mut guest), "the attachment has not ended");
        }
        assert_eq!(guest.ask(0, &detach_request(up.attachment)), Reply::of(DONE));
        assert_eq!(up.rings[0].wait_for_doorbell(&mut guest), Woken::Ended, "the pending doorbell request comes back");
        assert_eq!(guest.transfer(0, IN, 8, (data + 4096, 4096)), OK);
        assert_eq!(guest.ram.read(data + 4096, 4096), stamp(4096, 1, round), "the virtqueue reads what the ring wrote");
        assert_eq!(guest.ask(0, &detach_request(up.attachment)).result, NO_ATTACHMENT, "it has ended");
        assert_eq!(guest.ask(0, &query(up.attachment)).result, NO_ATTACHMENT);
    }
}

/// checks: R-9.1-2, R-9.1-3, R-9.1-4, R-9.6-1
#[test]
fn upgrade_requests_that_are_not_allowed_change_nothing() {
    let daemon = start_with(&["--disk", "d=memory:8M", "--disk", "w=memory:8M"]);
    let mut correct_client = CorrectClient::new(&daemon, "w");
    let mut guest = start_guest(&daemon, "d", &Options { queues: 2, ..Options::default() });
    let good = [plan(&guest.ram, 16, 0), plan(&guest.ram, 16, 1)];
    let attach = attach_request(&good);
    for (what, upgrade_request, result, queue) in invalid_upgrade_requests(&attach, &good) {
        let reply = guest.ask_bytes(0, &upgrade_request);
        assert_eq!((reply.result, reply.queue), (result, queue), "{what}");
        assert_eq!(reply.attachment, 0, "{what}");
        correct_client.check();
    }
    assert_eq!(guest.ask(0, &query(0)).attachment, 0, "no attachment was made");
    let reply = guest.ask(1, &attach_request_of(&good));
    assert_eq!(reply.result, DONE, "the queues themselves were fine");
    assert_eq!(guest.ask(0, &attach_request_of(&good)).result, wire::NOT_NOW, "while one is in force");
    correct_client.check();
}

fn attach_request_of(entries: &[Entry]) -> wire::UpgradeRequest {
    wire::UpgradeRequest { operation: wire::Operation::Attach, attachment: 0, features: 0, queue: 0, entries: entries.to_vec() }
}

/// What is wrong, the bytes, the result, and the entry at fault.
fn invalid_upgrade_requests(attach: &[u8], good: &[Entry]) -> Vec<(String, Vec<u8>, u32, u32)> {
    let mut all = Vec::new();
    let mut add = |what: &str, at: usize, value: &[u8], result, queue| {
        let mut bytes = attach.to_vec();
        bytes[at..at + value.len()].copy_from_slice(value);
        all.push((what.to_owned(), bytes, result, queue));
    };
    add("magic", 0, b"fiUP", INVALID, 0);
    add("version 0", 4, &[0, 0], wire::BAD_VERSION, 0);
    add("version 2", 4, &[2, 0], wire::BAD_VERSION, 0);
    add("operation 0", 6, &[0, 0], INVALID, 0);
    add("operation 5", 6, &[5, 0], INVALID, 0);
    add("attach with an attachment", 8, &[1], INVALID, 0);
    add("features that were not offered", 16, &[2], INVALID, 0);
    add("the last of 64 features", 23, &[0x80], INVALID, 0);
    add("no queue", 24, &[0, 0], INVALID, 0);
    add("fewer queues than entries", 24, &[1, 0], INVALID, 0);
    add("more queues than entries", 24, &[3, 0], INVALID, 0);
    add("65 queues", 24, &[65, 0], INVALID, 0);
    add("a queue number", 26, &[1, 0], INVALID, 0);
    for at in [28, 45, 63] {
        add("reserved", at, &[1], INVALID, 0);
    }
    for place in 0..2_u32 {
        let at = |offset: usize| 64 * (1 + usize::try_from(place).expect("small")) + offset;
        for (what, offset) in [("request", 0), ("completion", 8), ("cold", 16)] {
            add(&format!("{what} misaligned"), at(offset), &[32], INVALID, place);
            add(&format!("{what} outside memory"), at(offset), &(64_u64 << 20).to_le_bytes(), INVALID, place);
            add(&format!("{what} across the end"), at(offset), &((64_u64 << 20) - 64).to_le_bytes(), INVALID, place);
            add(&format!("{what} wraps"), at(offset), &(u64::MAX - 63).to_le_bytes(), INVALID, place);
        }
        for (what, offset) in [("request", 24), ("completion", 28)] {
            for slots in [0_u32, 1, 3, 131_072, u32::MAX] {
                add(&format!("{what} slots {slots}"), at(offset), &slots.to_le_bytes(), INVALID, place);
            }
        }
        let entry = &good[usize::try_from(place).expect("small")];
        add("request start", at(32), &entry.request_slots.to_le_bytes(), INVALID, place);
        add("completion start", at(36), &entry.completion_slots.to_le_bytes(), INVALID, place);
        for depth in [0, entry.request_slots + 1, 4097, u32::MAX] {
            add(&format!("depth {depth}"), at(40), &depth.to_le_bytes(), INVALID, place);
        }
        for virtqueue in [2_u32, 15, 0xffff, 0x1_0000, u32::MAX] {
            add(&format!("virtqueue {virtqueue}"), at(44), &virtqueue.to_le_bytes(), INVALID, place);
        }
        add("reserved of an entry", at(48), &[1], INVALID, place);
        add("last reserved of an entry", at(63), &[1], INVALID, place);
    }
    add("both queues ring the same virtqueue", 128 + 44, &0_u32.to_le_bytes(), INVALID, 1);
    let doorbell = |queue, attachment| {
        wire::UpgradeRequest { operation: wire::Operation::Doorbell, attachment, features: 0, queue, entries: Vec::new() }
            .to_bytes()
    };
    all.push(("a doorbell of no attachment".to_owned(), doorbell(0, 77), NO_ATTACHMENT, 0));
    all.push(("detach of no attachment".to_owned(), detach_request(77).to_bytes(), NO_ATTACHMENT, 0));
    all.push(("query of no attachment".to_owned(), query(77).to_bytes(), NO_ATTACHMENT, 0));
    for length in [1, 63, 65, 127, 129, 192 + 64] {
        let mut bytes = attach.to_vec();
        bytes.resize(length, 0);
        all.push((format!("{length} bytes"), bytes, INVALID, 0));
    }
    let mut wishful = query(0).to_bytes();
    wishful[16] = 1;
    all.push(("features wanted by a query".to_owned(), wishful, INVALID, 0));
    let mut query = query(0).to_bytes();
    query.extend([0; 64]);
    all.push(("query with an entry".to_owned(), query, INVALID, 0));
    all
}

/// checks: R-9.2-4
#[test]
fn doorbell_requests_of_others_are_not_held() {
    let daemon = start_with(&["--disk", "d=memory:8M", "--disk", "w=memory:8M"]);
    let mut correct_client = CorrectClient::new(&daemon, "w");
    let mut guest = start_guest(&daemon, "d", &Options { queues: 2, ..Options::default() });
    let mut up = Upgraded::attach(&mut guest, &[1, 0], 16);
    let doorbell = |attachment, queue| wire::UpgradeRequest {
        operation: wire::Operation::Doorbell,
        attachment,
        features: 0,
        queue,
        entries: Vec::new(),
    };
    let attachment = up.attachment;
    assert_eq!(guest.ask(1, &doorbell(attachment, 1)).result, INVALID, "queue 1 rings virtqueue 0");
    assert_eq!(guest.ask(1, &doorbell(attachment, 2)).result, INVALID);
    assert_eq!(guest.ask(1, &doorbell(attachment + 1, 0)).result, NO_ATTACHMENT);
    up.rings[0].hold_pending(attachment, &mut guest);
    assert_eq!(guest.ask(1, &doorbell(attachment, 0)).result, INVALID, "one is pending");
    let data = guest.ram.allocate(4096, 4096);
    assert_eq!(transfer(&mut guest, &mut up, 0, Operation::Read, 0, (data, 4096)), Status::Ok, "the first still works");
    correct_client.check();
}

/// checks: R-9.1-1
#[test]
fn header_of_an_upgrade_request_holds_nothing_but_its_type() {
    let daemon = start_with(&["--disk", "d=memory:8M", "--disk", "w=memory:8M"]);
    let mut correct_client = CorrectClient::new(&daemon, "w");
    let mut guest = start_guest(&daemon, "d", &Options::default());
    let place = guest.ram.allocate(128, 64);
    guest.ram.write(place, &query(0).to_bytes());
    for (sector, expected) in [(0, DONE), (1, INVALID), (u64::MAX, INVALID)] {
        // The upgrade request in two pieces, the reply in three.
        let parts = [(place, 10), (place + 10, 54)].map(|(address, bytes)| (address, bytes, false));
        let reply = [(place + 64, 3), (place + 67, 60), (place + 127, 1)].map(|(address, bytes)| (address, bytes, true));
        let sent = guest.submit(0, wire::REQUEST_TYPE, sector, &[&parts[..], &reply[..]].concat());
        assert_eq!(guest.wait(sent), OK);
        let bytes = guest.ram.read(place + 64, 64);
        let reply = bytes.first_chunk().and_then(Reply::from_bytes).expect("a reply");
        assert_eq!(reply.result, expected, "sector {sector}");
    }
    correct_client.check();
}

#[test]
fn hundreds_of_upgrade_requests_are_all_answered() {
    let daemon = start_with(&["--disk", "d=memory:8M", "--disk", "w=memory:8M", "--workers", "2"]);
    let mut correct_client = CorrectClient::new(&daemon, "w");
    let mut guest = start_guest(&daemon, "d", &Options { queues: 2, size: 512, ..Options::default() });
    let entries = [plan(&guest.ram, 16, 0), plan(&guest.ram, 16, 1)];
    let mut in_force = 0;
    for round in 0..20 {
        correct_client.check();
        let mut sent = Vec::new();
        for number in 0..100 {
            let upgrade_request = match number % 4 {
                0 => attach_request(&entries),
                1 => detach_request(in_force).to_bytes(),
                2 => query(0).to_bytes(),
                _ => vec![number; 64],
            };
            sent.push((number % 4, guest.send_upgrade_request(usize::from(number % 2), &upgrade_request)));
        }
        let mut attached = 0;
        for (kind, one) in sent {
            guest.wait(one);
            let reply = guest.reply(one);
            match kind {
                0 if reply.result == DONE => (attached, in_force) = (attached + 1, reply.attachment),
                0 => assert_eq!(reply.result, wire::NOT_NOW),
                1 => assert!([DONE, NO_ATTACHMENT].contains(&reply.result)),
                2 => assert_eq!(reply.result, DONE),
                _ => assert_eq!(reply.result, INVALID),
            }
        }
        assert!(attached <= 2 && (round > 0 || attached >= 1), "{attached} attachments");
        let last = guest.ask(0, &query(0)).attachment;
        assert!(last == 0 || last == in_force);
    }
    correct_client.check();
}

/// checks: R-9.6-3
#[test]
fn broken_virtqueue_stops_its_own_ring_and_no_other() {
    let daemon = start_with(&["--disk", "d=memory:8M", "--disk", "w=memory:8M", "--workers", "1"]);
    let mut correct_client = CorrectClient::new(&daemon, "w");
    let mut guest = start_guest(&daemon, "d", &Options { queues: 2, ..Options::default() });
    let mut up = Upgraded::attach(&mut guest, &[0, 1], 16);
    let data = guest.ram.allocate(4096, 4096);
    guest.queues[0].make_available(0xffff);
    guest.queues[0].publish();
    eventually("the queue reports that it broke", || guest.queues[0].is_broken());
    up.rings[0].submit_one(Operation::Read, 1, 0, segment(data, 4096), &guest.queues[0]);
    guest.queues[0].kick();
    correct_client.check();
    assert_eq!(transfer(&mut guest, &mut up, 1, Operation::Read, 0, (data, 4096)), Status::Ok, "the other queue goes on");
    assert!(up.rings[0].reap().is_empty(), "no more requests are served");
    // With a request on a closed ring the worker must still be able to sleep.
    eventually("the worker sleeps", || fipsee_testkit::guest::machine::workers_sleep(&daemon));
    drop(guest);
    let mut guest = start_guest(&daemon, "d", &Options::default());
    let mut up = Upgraded::attach(&mut guest, &[0], 16);
    let data = guest.ram.allocate(4096, 4096);
    assert_eq!(transfer(&mut guest, &mut up, 0, Operation::Read, 0, (data, 4096)), Status::Ok);
    correct_client.check();
}

/// checks: R-9-1
#[test]
fn back_end_without_the_upgrade_says_unsupported() {
    // The daemon answers an unknown type beside the upgrade's as an older back end answers the upgrade's.
    let daemon = start_with(&["--disk", "d=null:8M"]);
    let mut guest = start_guest(&daemon, "d", &Options::default());
    let data = guest.ram.allocate(4096, 4096);
    let sent = guest.submit(0, wire::REQUEST_TYPE + 2, 0, &[(data, 64, false), (data + 64, 64, true)]);
    assert_eq!(guest.wait(sent), UNSUPPORTED);
}

/// checks: R-9.2-1
#[test]
fn segments_are_the_whole_of_guest_memory_and_nothing_else() {
    const MIB: u64 = 1 << 20;
    let high = (1 << 41) - MIB;
    let memory = vec![(0, 32 * MIB), (32 * MIB, MIB), (high, MIB), (1 << 41, MIB)];
    let daemon = start_with(&["--disk", "d=memory:8M"]);
    let mut guest = start_guest(&daemon, "d", &Options { memory, ..Options::default() });
    let mut up = Upgraded::attach(&mut guest, &[0], 16);
    for (what, address, bytes, expected) in [
        ("within the first region", 31 * MIB, MIB, Status::Ok),
        ("from one region into the next", 32 * MIB - 4096, 8192, Status::Ok),
        ("a sector on either side", 32 * MIB - 512, 1024, Status::Ok),
        ("beyond the end", 33 * MIB - 4096, 8192, Status::BadMemory),
        ("in a hole", 40 * MIB, 4096, Status::BadMemory),
        ("another id", 1 << 41, 4096, Status::Ok),
        ("up to the line between two ids", (1 << 41) - 4096, 4096, Status::Ok),
        ("across the line between two ids", (1 << 41) - 4096, 8192, Status::BadMemory),
        ("an id without memory", 5 << 41, 4096, Status::BadMemory),
        ("the last id", 0xffff << 41, 4096, Status::BadMemory),
    ] {
        let is_there = expected == Status::Ok;
        let pattern = stamp(usize::try_from(bytes).expect("small"), address % 1009, 1);
        if is_there {
            guest.ram.write(address, &pattern);
        }
        let length = u32::try_from(bytes).expect("small");
        assert_eq!(transfer(&mut guest, &mut up, 0, Operation::Write, 0, (address, length)), expected, "write: {what}");
        if is_there {
            guest.ram.write(address, &vec![0; pattern.len()]);
        }
        assert_eq!(transfer(&mut guest, &mut up, 0, Operation::Read, 0, (address, length)), expected, "read: {what}");
        if is_there {
            assert_eq!(guest.ram.read(address, pattern.len()), pattern, "{what}");
        }
    }
    // Block info and indirect tables across two regions, too.
    let border = 32 * MIB - 512;
    assert_eq!(transfer(&mut guest, &mut up, 0, Operation::GetInfo, 0, (border, 1024)), Status::Ok);
    let info = guest.ram.read(border, 64);
    assert_eq!(info[8..16], (8 * MIB / 512).to_le_bytes(), "sectors of the disk");
    let entries: Vec<u8> = (0..100).flat_map(|index| segment(MIB + 1024 * index, 512).to_word().to_le_bytes()).collect();
    guest.ram.write(border, &entries);
    let table = segment(border, 1024);
    let read = fipsee_block::wire::request_indirect(Operation::Read, 0, 7, 0, table, 100);
    up.rings[0].submit(&[read], &guest.queues[0]);
    assert_eq!(up.rings[0].wait(up.attachment, &mut guest), [Incoming::Answer(7, 0)]);
}

/// checks: R-9.2-1
#[test]
fn longest_table_may_cross_from_one_region_into_the_next() {
    const MIB: u64 = 1 << 20;
    for disk in ["d=memory:8M", "d=file:{dir}/f,size=8M"] {
        let daemon = start_with(&["--disk", disk]);
        let memory = (0..7).map(|place| (place * 32 * MIB, 32 * MIB)).collect();
        let mut guest = start_guest(&daemon, "d", &Options { memory, ..Options::default() });
        let mut up = Upgraded::attach(&mut guest, &[0], 16);
        let place = |index: u64| 32 * MIB * (1 + index % 6) - 512;
        let table = guest.ram.allocate(4096, 512);
        for (operation, byte) in [(Operation::Write, 0x5a), (Operation::Read, 0)] {
            for index in 0..6 {
                guest.ram.write(place(index), &[byte; 1024]);
            }
            let entries: Vec<u8> = (0..256).flat_map(|index| segment(place(index), 1024).to_word().to_le_bytes()).collect();
            guest.ram.write(table, &entries);
            let request = fipsee_block::wire::request_indirect(operation, 0, 7, 0, segment(table, 2048), 256);
            up.rings[0].submit(&[request], &guest.queues[0]);
            assert_eq!(up.rings[0].wait(up.attachment, &mut guest), [Incoming::Answer(7, 0)], "{disk}");
        }
        for index in 0..6 {
            assert_eq!(guest.ram.read(place(index), 1024), [0x5a; 1024]);
        }
    }
}

/// checks: R-9.2-5
#[test]
fn requests_on_rings_and_virtqueue_go_side_by_side() {
    let daemon = start_with(&["--disk", "d=memory:8M", "--workers", "2"]);
    let mut guest = start_guest(&daemon, "d", &Options { queues: 2, event_index: true, ..Options::default() });
    let mut up = Upgraded::attach(&mut guest, &[0, 1], 32);
    let data = guest.ram.allocate(4 * 4096, 4096);
    for round in 0..2000_u64 {
        let mut sent = Vec::new();
        for queue in 0..2_usize {
            let place = data + 4096 * queue as u64;
            guest.ram.write(place, &stamp(4096, queue as u64, round));
            let tag = u16::try_from(round % 1000).expect("small");
            up.rings[queue].submit_one(Operation::Write, tag, 8 * queue as u64, segment(place, 4096), &guest.queues[queue]);
            let other = data + 4096 * (2 + queue as u64);
            sent.push(guest.submit(queue, IN, 64, &[(other, 4096, true)]));
        }
        for (queue, sent) in sent.into_iter().enumerate() {
            let all = up.rings[queue].wait(up.attachment, &mut guest);
            assert!(matches!(all.as_slice(), [Incoming::Answer(_, 0)]), "{all:?}");
            assert_eq!(guest.wait(sent), OK);
        }
    }
    for queue in 0..2 {
        assert_eq!(guest.transfer(queue, IN, 8 * queue as u64, (data, 4096)), OK);
        assert_eq!(guest.ram.read(data, 4096), stamp(4096, queue as u64, 1999));
    }
}

/// checks: R-9.1-3, R-9.4-1
#[test]
fn stopped_doorbell_ends_the_attachment() {
    let daemon = start_with(&["--disk", "d=memory:8M", "--workers", "2"]);
    let mut guest = start_guest(&daemon, "d", &Options { queues: 2, ..Options::default() });
    for stopped in [0_usize, 1, 0] {
        let mut up = Upgraded::attach(&mut guest, &[0, 1], 16);
        for ring in &mut up.rings {
            ring.hold_taken(up.attachment, &mut guest);
        }
        guest.frontend.stop_vring(u32::try_from(stopped).expect("small")).expect("stopped");
        for ring in &mut up.rings {
            assert_eq!(ring.wait_for_doorbell(&mut guest), Woken::Ended, "both requests came back before the queue stopped");
        }
        let running = 1 - stopped;
        assert_eq!(guest.ask(running, &query(up.attachment)).result, NO_ATTACHMENT);
        // Its rings are closed: this request is not taken.
        up.rings[running].submit_one(Operation::Read, 1, 0, segment(0, 512), &guest.queues[running]);
        let reply = guest.ask(running, &attach_request_of(&[plan(&guest.ram, 16, u32::try_from(stopped).expect("small"))]));
        assert_eq!(reply.result, INVALID, "the virtqueue does not run");
        assert!(up.rings[running].reap().is_empty());
        guest.start_queue(stopped).expect("started again");
    }
    let data = guest.ram.allocate(4096, 4096);
    assert_eq!(guest.transfer(0, OUT, 0, (data, 4096)), OK);
}

/// checks: R-9.4-1
#[test]
fn memory_table_ends_the_attachment_only_if_its_rings_are_gone() {
    const MIB: u64 = 1 << 20;
    let daemon = start_with(&["--disk", "d=memory:8M"]);
    let mut guest = start_guest(&daemon, "d", &Options { memory: vec![(0, 32 * MIB), (64 * MIB, MIB)], ..Options::default() });
    let mut up = Upgraded::attach(&mut guest, &[0], 16);
    let data = guest.ram.allocate(4096, 4096);
    for round in 0..50 {
        guest.ram.write(data, &stamp(4096, 3, round));
        up.rings[0].submit_one(Operation::Write, 1, 0, segment(data, 4096), &guest.queues[0]);
        let pieces = if round % 2 == 0 { &guest.ram.pieces[..1] } else { &guest.ram.pieces[..] };
        guest.frontend.set_memory(pieces).expect("other memory");
        assert_eq!(up.rings[0].wait(up.attachment, &mut guest), [Incoming::Answer(1, 0)]);
        let expected = if round % 2 == 0 { Status::BadMemory } else { Status::Ok };
        assert_eq!(transfer(&mut guest, &mut up, 0, Operation::Read, 0, (64 * MIB, 4096)), expected, "the second region");
        assert_eq!(guest.transfer(0, IN, 0, (data, 4096)), OK);
        assert_eq!(guest.ram.read(data, 4096), stamp(4096, 3, round));
    }
    // A ring in the second region: without that region, the attachment ends and the virtqueue goes on.
    assert_eq!(guest.ask(0, &detach_request(up.attachment)).result, DONE);
    let entry = Entry { request_address: 64 * MIB, request_slots: 16, ..plan(&guest.ram, 16, 0) };
    let reply = guest.ask(0, &attach_request_of(&[entry]));
    assert_eq!(reply.result, DONE);
    let pieces = guest.ram.pieces[..1].to_vec();
    guest.frontend.set_memory(&pieces).expect("less memory");
    assert_eq!(guest.ask(0, &query(reply.attachment)).result, NO_ATTACHMENT);
    assert_eq!(guest.transfer(0, IN, 0, (data, 4096)), OK);
}

/// checks: R-9.6-2
#[test]
fn faulty_ring_costs_its_guest_only() {
    let daemon = start_with(&["--disk", "d=memory:8M", "--disk", "w=memory:8M"]);
    let mut correct_client = CorrectClient::new(&daemon, "w");
    let mut guest = start_guest(&daemon, "d", &Options::default());
    let up = Upgraded::attach(&mut guest, &[0], 4);
    let entry = up.rings[0].entry;
    let mut random = 0x1234_5678_9abc_def1_u64;
    for _ in 0..200 {
        // Every slot gets random bytes and the stamps of laps to come; the sleep flags change all the time.
        for slot in 0..u64::from(entry.request_slots) {
            let mut bytes = [0_u8; 64];
            for byte in &mut bytes {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                *byte = (random >> 56).to_le_bytes()[0];
            }
            bytes[0] %= 9;
            let stamp = 1 + u32::from(bytes[1]);
            bytes[60..].copy_from_slice(&stamp.to_le_bytes());
            guest.ram.write(entry.request_address + 64 * slot, &bytes);
        }
        guest.ram.write(entry.cold_address, &[1; 256]);
        guest.queues[0].kick();
        correct_client.check();
    }
    assert_eq!(guest.ask(0, &detach_request(up.attachment)).result, DONE, "the attachment can still be detached");
    let data = guest.ram.allocate(4096, 4096);
    assert_eq!(guest.transfer(0, OUT, 0, (data, 4096)), OK, "and its virtqueue works");
    correct_client.check();
}

/// checks: R-5.6-7
#[test]
fn attached_guest_is_notified_of_a_new_size() {
    let daemon = start_with(&["--disk", "d=memory:4M,max=16M"]);
    let mut guest = start_guest(&daemon, "d", &Options { queues: 2, ..Options::default() });
    let mut up = Upgraded::attach(&mut guest, &[0, 1], 16);
    let data = guest.ram.allocate(4096, 4096);
    let beyond = (4 << 20) / 512;
    assert_eq!(transfer(&mut guest, &mut up, 0, Operation::Read, beyond, (data, 4096)), Status::OutOfRange);
    let request = serde_json::json!({ "method": "disk.resize", "disk": "d", "size_bytes": 8 << 20 });
    let answer = daemon.admin(&request);
    assert!(answer.get("error").is_none(), "{answer}");
    for queue in 0..2 {
        let all = up.rings[queue].wait(up.attachment, &mut guest);
        assert_eq!(all, [Incoming::Resized((8 << 20) / 512)], "one event on each queue");
        let acknowledgement = fipsee_block::wire::request_ack_event(9, fipsee_block::wire::KIND_RESIZE);
        up.rings[queue].submit(&[acknowledgement], &guest.queues[queue]);
        assert_eq!(up.rings[queue].wait(up.attachment, &mut guest), [Incoming::Answer(9, 0)]);
    }
    assert_eq!(transfer(&mut guest, &mut up, 0, Operation::Read, beyond, (data, 4096)), Status::Ok);
}

/// checks: R-9.4-1
#[test]
fn next_guest_of_the_socket_finds_nothing_of_the_last() {
    let daemon = start_with(&["--disk", "d=memory:8M"]);
    let mut last = 0;
    for _ in 0..20 {
        let mut guest = start_guest(&daemon, "d", &Options::default());
        assert_eq!(guest.ask(0, &query(0)).attachment, 0);
        let mut up = Upgraded::attach(&mut guest, &[0], 16);
        assert_ne!(up.attachment, last);
        last = up.attachment;
        let data = guest.ram.allocate(4096, 4096);
        // The guest leaves with a request on the ring and a doorbell request in the queue.
        up.rings[0].hold_pending(last, &mut guest);
        up.rings[0].submit_one(Operation::Write, 1, 0, segment(data, 4096), &guest.queues[0]);
    }
    eventually("everything is released", || daemon.attached_count("d") == 0);
}
