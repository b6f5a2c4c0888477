//! Ports of virtual machines: a machine in user space, and faults of its driver and hypervisor.

use std::path::PathBuf;

use fipsee_net::{Error, Port};
use fipsee_testkit::guest::device::{EVENT_INDEX, INDIRECT};
use fipsee_testkit::guest::frontend::{Request, memory_table};
use fipsee_testkit::guest::net::{
    CONTROL, HEADER_BYTES, IN_ORDER, LEAVES_OFFLOADS, MERGEABLE, NetGuest, NetOptions, PAIRS, TAKES_OFFLOADS,
};
use fipsee_testkit::guest::ram::Piece;
use fipsee_testkit::packets::is_readable;
use fipsee_testkit::{Daemon, TIMEOUT, assert_says};
use serde_json::json;

use super::{all_sent, assert_nothing, attach, frame, lan_at, mac, next, offloads, options, stat};

pub(super) const MTU: u16 = 9000;

/// Ports `a` of a program, `b` and `c` of virtual machines.
fn daemon() -> Daemon {
    lan_at(1, MTU, ["", "vhost_user = \"{dir}/b.vm\"", "vhost_user = \"{dir}/c.vm\""])
}

pub(super) fn path(daemon: &Daemon, port: &str) -> PathBuf {
    daemon.socket().with_file_name(format!("{port}.vm"))
}

pub(super) fn start(daemon: &Daemon, port: &str, options: &NetOptions) -> NetGuest {
    NetGuest::start(&path(daemon, port), options).unwrap_or_else(|error| panic!("the machine of {port}: {error}"))
}

pub(super) fn exchange(program: &mut Port, machine: &mut NetGuest, length: usize, seed: u64) {
    exchange_with(program, (machine, 2), length, seed);
}

/// Likewise with the machine that has the address of this number.
pub(super) fn exchange_with(program: &mut Port, (machine, number): (&mut NetGuest, u8), length: usize, seed: u64) {
    let (there, back) = (frame(mac(1), mac(number), length, seed), frame(mac(number), mac(1), length, seed + 50));
    program.send(&there).expect("sent");
    assert_eq!(machine.next(0), there, "{length} bytes to the machine");
    machine.send(0, &back);
    assert_eq!(next(program), back, "{length} bytes from the machine");
}

#[test]
fn frames_of_every_length_go_to_and_from_a_machine_whatever_its_driver_takes() {
    let daemon = daemon();
    let mut a = attach(&daemon.socket(), "a");
    let all = MERGEABLE | EVENT_INDEX | INDIRECT;
    for (features, buffer_bytes, size) in
        [(all, 2048, 64), (all | IN_ORDER, 256, 64), (IN_ORDER, 9100, 16), (MERGEABLE, 9100, 8), (EVENT_INDEX, 12000, 64)]
    {
        let options = NetOptions { features, buffer_bytes, size, ..NetOptions::default() };
        let mut b = start(&daemon, "b", &options);
        for (seed, length) in (0..).zip([14, 35, 36, 37, 55, 56, 57, 60, 64, 127, 244, 245, 1514, 2036, 2037, 4096, 9013, 9014]) {
            exchange(&mut a, &mut b, length, seed);
        }
        for piece_bytes in [1, 13, 14, 56, 100] {
            let sent = frame(mac(2), mac(1), 180.min(piece_bytes * usize::from(size - 1)).max(14), 9);
            if sent.len().div_ceil(piece_bytes) < usize::from(size) {
                b.send_in_pieces(0, &sent, piece_bytes);
                assert_eq!(next(&mut a), sent, "in pieces of {piece_bytes}");
            }
        }
        b.wait_sent(0);
        drop(b);
    }
    assert_eq!(stat(&daemon, "b")["dropped"], 0);
    assert_eq!(a.refused(), (0, None));
}

#[test]
fn driver_that_sleeps_until_it_gets_its_buffer_back_is_interrupted_although_it_sends_nothing_more() {
    let daemon = daemon();
    let mut a = attach(&daemon.socket(), "a");
    for features in [MERGEABLE, MERGEABLE | EVENT_INDEX | INDIRECT] {
        let mut b = start(&daemon, "b", &NetOptions { features, ..NetOptions::default() });
        for seed in 0..50 {
            let _ = rustix::io::read(b.queues[1].interrupt(), &mut [0; 8]);
            assert!(!b.queues[1].ask_interrupt(&b.ram), "all buffers are back");
            let sent = frame(mac(2), mac(1), 100, seed);
            b.send(0, &sent);
            assert_eq!(next(&mut a), sent);
            assert!(is_readable(b.queues[1].interrupt(), TIMEOUT), "no interrupt for frame {seed}");
            b.wait_sent(0);
        }
    }
}

#[test]
fn driver_that_has_frames_used_in_order_gets_one_entry_for_several() {
    let daemon = daemon();
    let mut a = attach(&daemon.socket(), "a");
    let options = NetOptions { features: IN_ORDER | MERGEABLE, ..NetOptions::default() };
    let mut b = start(&daemon, "b", &options);
    // More than once around the ring.
    for round in 0..20 {
        let frames: Vec<_> = (0..7).map(|seed| frame(mac(2), mac(1), 60, 7 * round + seed)).collect();
        let (mut heads, first) = (Vec::new(), b.queues[1].next_used);
        for sent in &frames {
            let place = b.place(1, b.queues[1].next_head());
            b.ram.write(place, &[&[0; HEADER_BYTES], &sent[..]].concat());
            heads.push(b.queues[1].stage(&[(place, 72, false)]));
        }
        b.queues[1].publish();
        frames.iter().for_each(|sent| assert_eq!(&next(&mut a), sent));
        b.wait_sent(0);
        let entry = b.ram.read(b.queues[1].used + 4 + 8 * u64::from(first % options.size), 8);
        assert_eq!(entry, [u32::from(heads[6]).to_le_bytes(), [0; 4]].concat(), "it names the last");
    }
}

/// A daemon that was killed may have held its interrupt back.
#[test]
fn driver_that_waits_for_its_buffers_is_interrupted_when_another_daemon_serves_it() {
    let daemon = daemon();
    let b = start(&daemon, "b", &NetOptions::default());
    assert!(is_readable(b.queues[1].interrupt(), TIMEOUT), "no interrupt");
}

#[test]
fn two_machines_exchange_frames_by_several_pairs() {
    let daemon = daemon();
    let pairs = NetOptions { pairs: 3, features: PAIRS | MERGEABLE | EVENT_INDEX, ..NetOptions::default() };
    let (mut b, mut c) = (start(&daemon, "b", &pairs), start(&daemon, "c", &NetOptions::default()));
    let mut used = [0; 3];
    for number in 0..24_u8 {
        // The flow is by the addresses of IPv4, too.
        let flow = |from, to| {
            let mut sent = frame(mac(from), mac(to), 200, number.into());
            sent[12..15].copy_from_slice(&[8, 0, 0x45]);
            sent[26..34].copy_from_slice(&[10, 0, 0, from, 10, 0, number, to]);
            sent
        };
        let (there, back) = (flow(2, 3), flow(3, 2));
        b.send(usize::from(number % 3), &there);
        assert_eq!(c.next(0), there);
        c.send(0, &back);
        let pair = loop {
            if let Some(pair) = (0..3).find(|pair| b.receive(*pair).is_some_and(|frame| frame == back)) {
                break pair;
            }
            std::thread::yield_now();
        };
        used[pair] += 1;
    }
    assert!(used.iter().all(|count| *count > 0), "flows are spread: {used:?}");
}

#[test]
fn driver_that_sends_commands_begins_with_one_pair_and_chooses_how_many() {
    const PAIRS_SET: [u8; 2] = [4, 0];
    let daemon = daemon();
    // As many as the daemon offers: the control queue is behind them.
    let features = PAIRS | CONTROL | MERGEABLE;
    let mut a = attach(&daemon.socket(), "a");
    let mut probe = start(&daemon, "b", &NetOptions::default());
    let pairs = u16::try_from(probe.frontend.get(Request::GetQueueNum).expect("answered")).expect("few");
    drop(probe);
    let mut b = start(&daemon, "b", &NetOptions { pairs, features, size: 16, ..NetOptions::default() });
    let pairs_used = |a: &mut Port, b: &mut NetGuest| {
        let mut used = std::collections::BTreeSet::new();
        for number in 0..40 {
            let mut sent = frame(mac(1), mac(2), 100, 1);
            sent[12..15].copy_from_slice(&[8, 0, 0x45]);
            sent[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, number, 2]);
            a.send(&sent).expect("sent");
            all_sent(a);
            used.extend((0..usize::from(pairs)).filter(|pair| b.receive(*pair).is_some()));
        }
        used.len()
    };
    assert_eq!(pairs_used(&mut a, &mut b), 1);
    assert_eq!(b.command(&[&PAIRS_SET[..], &pairs.to_le_bytes()].concat()), 0);
    assert_eq!(pairs_used(&mut a, &mut b), usize::from(pairs));
    assert_eq!(b.command(&[&PAIRS_SET[..], &[1, 0]].concat()), 0);
    assert_eq!(pairs_used(&mut a, &mut b), 1);
    for wrong in [&[][..], &[4], &[4, 0], &[4, 0, 0, 0], &[4, 0, 99, 0], &[4, 0, 1], &[0, 0, 1], &[77, 0], &[3, 0, 0]] {
        assert_eq!(b.command(&[wrong, &[]].concat()), 1, "{wrong:?}");
    }
    // The driver has announced itself.
    assert_eq!(b.command(&[3, 0]), 0);
    assert_eq!(stat(&daemon, "b")["dropped"], 0);
}

#[test]
fn machine_that_posts_nothing_loses_frames_which_are_counted_and_goes_on() {
    let daemon = daemon();
    let (mut a, mut c) = (attach(&daemon.socket(), "a"), start(&daemon, "c", &NetOptions { size: 8, ..NetOptions::default() }));
    for seed in 0..20 {
        a.send(&frame(mac(1), mac(3), 100, seed)).expect("sent");
    }
    all_sent(&mut a);
    assert_eq!(stat(&daemon, "c")["dropped"], 12);
    for seed in 0..8 {
        assert_eq!(c.next(0), frame(mac(1), mac(3), 100, seed));
    }
    // 8 buffers of 2 KiB: a frame that fills them all, and no room for the next.
    a.send(&frame(mac(1), mac(3), 9014, 1)).expect("sent");
    a.send(&frame(mac(1), mac(3), 9014, 2)).expect("sent");
    all_sent(&mut a);
    assert_eq!(c.next(0), frame(mac(1), mac(3), 9014, 1));
    assert_eq!(stat(&daemon, "c")["dropped"], 13);
}

#[test]
fn checksums_and_segments_are_carried_to_a_machine_that_takes_them_and_done_for_others() {
    const SEGMENT: u16 = 1448;
    let daemon = lan_at(1, 1500, ["", "vhost_user = \"{dir}/b.vm\"", "vhost_user = \"{dir}/c.vm\""]);
    let features = MERGEABLE | LEAVES_OFFLOADS | TAKES_OFFLOADS;
    let mut b = start(&daemon, "b", &NetOptions { features, ..NetOptions::default() });
    let mut c = start(&daemon, "c", &NetOptions { features, size: 128, buffer_bytes: 1536, ..NetOptions::default() });
    let mut a = attach(&daemon.socket(), "a");
    // From port b.
    let tcp = |to, payload| {
        let mut sent = offloads::tcp(to, payload, 1);
        sent[11] = 2;
        sent
    };
    let checksum = [1, 0, 0, 0, 0, 0, 34, 0, 16, 0, 0, 0];
    let [low, high] = SEGMENT.to_le_bytes();
    let segments = [1, 1, 54, 0, low, high, 34, 0, 16, 0, 0, 0];
    b.send_with(0, &checksum, &tcp(3, 100), 4096);
    assert_eq!((c.next(0), &c.header[..10]), (tcp(3, 100), &checksum[..10]));
    for payload in [1449, 30_000, 65_535 - 40] {
        b.send_with(0, &segments, &tcp(3, payload), 4096);
        assert_eq!((c.next(0), &c.header[..10]), (tcp(3, payload), &segments[..10]), "{payload}");
        b.send_with(0, &segments, &tcp(1, payload), 4096);
        let mut received = Vec::new();
        while received.len() < payload {
            let segment = next(&mut a);
            offloads::assert_complete(&segment);
            received.extend_from_slice(&segment[54..]);
        }
        assert_eq!(received, tcp(1, payload)[54..]);
    }
    // Headers that are not true: counted, and the next one goes.
    b.send_with(0, &[1, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0], &tcp(3, 100), 4096);
    b.send_with(0, &[0, 77, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0], &tcp(3, 100), 4096);
    b.send_with(0, &[1, 1, 0, 0, 0, 0, 34, 0, 16, 0, 0, 0], &tcp(3, 100), 4096);
    b.wait_sent(0);
    let refused = stat(&daemon, "b")["refused"].clone();
    assert_eq!((&refused["bad_offload"], &refused["unsupported"]), (&json!(2), &json!(1)), "{refused}");
    b.send_with(0, &checksum, &tcp(3, 200), 4096);
    assert_eq!(c.next(0), tcp(3, 200));
}

/// More descriptors than are looked at for a frame.
const MANY: &str = "a buffer of empty descriptors";
/// What a driver may do wrong with a chain of the queue of this number.
const FAULTS: [(&str, usize); 13] = [
    ("a loop", 1),
    ("a header that is too short", 1),
    ("a descriptor that is not there", 1),
    ("more entries than the queue has", 1),
    ("memory to read after memory to write", 1),
    ("an indirect table of 17 bytes", 1),
    ("a loop", 0),
    ("a buffer that is no memory", 0),
    ("an empty buffer", 0),
    (MANY, 0),
    ("a descriptor that is not there", 0),
    ("more entries than the queue has", 0),
    ("a buffer to read", 0),
];

fn do_wrong(guest: &mut NetGuest, what: &str, index: usize) {
    const NEXT: u16 = 1;
    const WRITE: u16 = 2;
    const INDIRECT_TABLE: u16 = 4;
    let flags = if index == 0 { WRITE } else { 0 };
    let place = guest.place(index, 0);
    let queue = &mut guest.queues[index];
    match what {
        "a loop" => queue.put_descriptor(0, place, 64, flags | NEXT, 0),
        "a header that is too short" => queue.put_descriptor(0, place, 11, 0, 0),
        "memory to read after memory to write" => {
            queue.put_descriptor(0, place, 64, WRITE | NEXT, 1);
            queue.put_descriptor(1, place, 64, 0, 0);
        }
        "an indirect table of 17 bytes" => queue.put_descriptor(0, place, 17, INDIRECT_TABLE, 0),
        "a buffer that is no memory" => queue.put_descriptor(0, 1 << 40, 64, WRITE, 0),
        "an empty buffer" => queue.put_descriptor(0, place, 0, WRITE, 0),
        // They take no room, and are looked at all the same.
        MANY => {
            let last = queue.size - 1;
            (0..last).for_each(|index| queue.put_descriptor(index, place, 0, WRITE | NEXT, index + 1));
            queue.put_descriptor(last, place, 64, WRITE, 0);
        }
        "a buffer to read" => queue.put_descriptor(0, place, 64, 0, 0),
        _ => {}
    }
    match what {
        "a descriptor that is not there" => queue.make_available(queue.size),
        "more entries than the queue has" => (0..=queue.size).for_each(|_| queue.make_available(0)),
        _ => queue.make_available(0),
    }
    queue.publish();
    queue.kick();
}

#[test]
fn queue_whose_driver_breaks_the_rules_stops_and_nothing_else_does() {
    let daemon = daemon();
    let (mut a, mut c) = (attach(&daemon.socket(), "a"), start(&daemon, "c", &NetOptions::default()));
    for (what, index) in FAULTS {
        let size = if what == MANY { 256 } else { 16 };
        let mut b = start(&daemon, "b", &NetOptions { size, ..NetOptions::default() });
        exchange(&mut a, &mut b, 100, 1);
        b.wait_sent(0);
        if index == 0 {
            // Its buffers are used up: the next is the wrong one.
            let mut seed = 0;
            while b.queues[0].used_index(&b.ram) != b.queues[0].next_available {
                seed += 1;
                a.send(&frame(mac(1), mac(2), 100, seed)).expect("sent");
                all_sent(&mut a);
            }
        }
        do_wrong(&mut b, what, index);
        if index == 0 {
            a.send(&frame(mac(1), mac(2), 100, 7)).expect("sent");
            all_sent(&mut a);
        }
        let deadline = std::time::Instant::now() + TIMEOUT;
        while !b.queues[index].is_broken() {
            assert!(std::time::Instant::now() < deadline, "queue {index} goes on after {what}");
            std::thread::yield_now();
        }
        // The other direction goes on, and so does everything else.
        if index == 0 {
            b.send(0, &frame(mac(2), mac(1), 100, 8));
            assert_eq!(next(&mut a), frame(mac(2), mac(1), 100, 8), "after {what}");
        } else {
            a.send(&frame(mac(1), mac(2), 100, 8)).expect("sent");
            assert_eq!(b.next(0), frame(mac(1), mac(2), 100, 8), "after {what}");
        }
        a.send(&frame(mac(1), mac(3), 100, 9)).expect("sent");
        assert_eq!(c.next(0), frame(mac(1), mac(3), 100, 9), "after {what}");
        assert!(!b.frontend.is_hung_up(), "after {what}");
    }
    let broke = daemon.log().matches("a virtqueue broke and is not served until it is reset").count();
    assert!(broke > 0, "{}", daemon.log());
    assert_says(&daemon.log(), &["port=\"lan/b\""]);
    assert!(!daemon.log().contains("disk="), "there is none: {}", daemon.log());
}

#[test]
fn frame_whose_memory_or_header_is_wrong_is_counted_and_the_next_one_goes() {
    let daemon = daemon();
    let size = 256;
    let (mut a, mut b) = (attach(&daemon.socket(), "a"), start(&daemon, "b", &NetOptions { size, ..NetOptions::default() }));
    let place = b.place(1, 40);
    // Outside memory; no whole Ethernet header; longer than the MTU allows; another source; more descriptors than are looked at for a frame.
    b.send_parts(0, &[(place, 12, false), (1 << 40, 100, false)]);
    b.send_parts(0, &[(place, 12 + 13, false)]);
    b.send_parts(0, &[(place, 12 + 9019, false)]);
    b.send(0, &frame(mac(1), mac(1), 100, 1));
    b.send_in_pieces(0, &frame(mac(2), mac(1), 150, 1), 1);
    b.wait_sent(0);
    let refused = stat(&daemon, "b")["refused"].clone();
    let counts = ["bad_memory", "too_short", "too_long", "wrong_source", "invalid"].map(|name| refused[name].as_u64());
    assert_eq!(counts, [Some(1); 5], "{refused}");
    assert_nothing(&mut a);
    exchange(&mut a, &mut b, 100, 1);
}

#[test]
fn port_of_a_machine_is_for_it_alone_and_one_machine_at_a_time_has_it() {
    let daemon = daemon();
    let refused = Port::attach(&daemon.socket(), &options("b")).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(refused.contains("is for the virtual machine at its vhost-user socket"), "{refused}");
    let mut a = attach(&daemon.socket(), "a");
    let mut b = start(&daemon, "b", &NetOptions::default());
    exchange(&mut a, &mut b, 100, 1);
    assert!(matches!(Port::attach(&daemon.socket(), &options("b")), Err(Error::Refused { .. })));
    drop(b);
    exchange(&mut a, &mut start(&daemon, "b", &NetOptions::default()), 100, 2);
}

#[test]
fn machine_connects_again_to_a_daemon_that_was_killed_or_taken_over_from() {
    let mut daemon = daemon();
    let mut b = start(&daemon, "b", &NetOptions::default());
    let mut c = start(&daemon, "c", &NetOptions { features: MERGEABLE, ..NetOptions::default() });
    for round in 0..4 {
        for seed in 0..30 {
            b.send(0, &frame(mac(2), mac(3), 300, seed));
            assert_eq!(c.next(0), frame(mac(2), mac(3), 300, seed));
            c.send(0, &frame(mac(3), mac(2), 2000, seed));
            assert_eq!(b.next(0), frame(mac(3), mac(2), 2000, seed));
        }
        b.wait_sent(0);
        c.wait_sent(0);
        if round % 2 == 0 {
            daemon.kill_9();
            daemon.restart();
        } else {
            daemon.take_over();
        }
        for machine in [&mut b, &mut c] {
            assert!(is_readable(machine.frontend.socket(), TIMEOUT));
            machine.reconnect().expect("the daemon is there");
        }
    }
}

#[test]
fn hypervisor_announces_its_machine_and_asks_for_no_greater_mtu() {
    let daemon = daemon();
    let (mut a, mut b) = (attach(&daemon.socket(), "a"), start(&daemon, "b", &NetOptions::default()));
    let address = mac(2).0;
    b.frontend.set(Request::SendRarp, &[&address[..], &[0, 0]].concat(), &[]).expect("sent");
    let announced = next(&mut a);
    assert_eq!(announced[..14], [&[0xff; 6][..], &address, &[0x80, 0x35]].concat());
    assert_eq!((&announced[20..22], &announced[22..28], &announced[32..38]), (&[0, 3][..], &address[..], &address[..]));
    b.frontend.set(Request::NetSetMtu, &u64::from(MTU).to_le_bytes(), &[]).expect("that of the network");
    assert!(b.frontend.set(Request::NetSetMtu, &u64::from(MTU + 1).to_le_bytes(), &[]).is_err());
    let config = b.frontend.call(Request::GetConfig, &[&[0; 4][..], &12_u32.to_le_bytes(), &[0; 16]].concat(), &[]);
    assert!(config.is_err(), "the connection is closed");
}

#[test]
fn hypervisor_may_repeat_each_change_of_memory_as_for_every_pair_of_queues() {
    let daemon = daemon();
    let (mut a, mut b) = (attach(&daemon.socket(), "a"), start(&daemon, "b", &NetOptions::default()));
    let more = Piece::new(1 << 40, 1 << 20);
    let (place, sent) = (b.place(1, 40), frame(mac(2), mac(1), 100, 1));
    more.region.write(0, &sent).expect("within it");
    let in_it = [(place, 12, false), (more.guest_address, 100, false)];
    let described = memory_table(&[(more.guest_address, more.region.length_bytes())]);
    for seed in 0..3 {
        for _ in 0..2 {
            b.frontend.set(Request::AddMemReg, &described, &[more.file()]).expect("it is there");
            b.send_parts(0, &in_it);
            assert_eq!(next(&mut a), sent);
            exchange(&mut a, &mut b, 100, seed);
        }
        for _ in 0..2 {
            b.frontend.set(Request::RemMemReg, &described, &[]).expect("it is gone");
            b.send_parts(0, &in_it);
            b.wait_sent(0);
            exchange(&mut a, &mut b, 100, seed);
        }
    }
    assert_eq!(stat(&daemon, "b")["refused"]["bad_memory"], 6);
    // Another one at that place is no repetition.
    b.frontend.set(Request::AddMemReg, &described, &[more.file()]).expect("it is there");
    let shorter = memory_table(&[(more.guest_address, 4096)]);
    assert!(b.frontend.set(Request::AddMemReg, &shorter, &[more.file()]).is_err());
}

#[test]
fn pages_that_a_frame_writes_are_logged() {
    const PAGE: usize = 4096;
    let daemon = daemon();
    let (mut a, mut b) = (attach(&daemon.socket(), "a"), start(&daemon, "b", &NetOptions::default()));
    let pages = (64 << 20) / PAGE;
    let log = fipsee_ring::region::Region::create("log", (pages / 8) as u64).expect("memory");
    let file = std::os::fd::AsFd::as_fd(&log).try_clone_to_owned().expect("a descriptor");
    b.log(&file, log.length_bytes()).expect("logged");
    let mut before = vec![0; pages / 8];
    log.read(0, &mut before).expect("its length");
    // What is written by the head that is next, and the used ring.
    a.send(&frame(mac(1), mac(2), 5000, 1)).expect("sent");
    assert_eq!(b.next(0), frame(mac(1), mac(2), 5000, 1));
    let mut after = vec![0; pages / 8];
    log.read(0, &mut after).expect("its length");
    let is_marked = |address: u64| {
        let page = usize::try_from(address).expect("small") / PAGE;
        after[page / 8] & 1 << (page % 8) != 0
    };
    let places = [0, 1, 2].map(|head| b.place(0, head));
    assert!(places.into_iter().all(is_marked) && is_marked(b.queues[0].used), "the frame's buffers and the used ring");
    assert!(!is_marked(b.place(0, 5)), "a buffer that holds no frame");
}

#[test]
fn views_name_what_has_the_port() {
    let daemon = daemon();
    let b = start(&daemon, "b", &NetOptions::default());
    assert_eq!(stat(&daemon, "b")["holder"], "virtual machine");
    assert_eq!(stat(&daemon, "c")["holder"], serde_json::Value::Null);
    let dumped = daemon.ask(&json!({ "method": "config.dump" })).to_string();
    assert!(dumped.contains("b.vm"), "{dumped}");
    drop(b);
}
