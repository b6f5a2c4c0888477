//! Clients that break the rules, with messages by hand: each is answered, pays itself, and harms no other.

use std::convert::Infallible;
use std::os::fd::AsFd;
use std::path::Path;

use fipsee_net::wire::{
    Filled, KIND_RECEIVED, KIND_RECEIVED_SMALL, KIND_RETURNED, OPERATION_SEND, OPERATION_SEND_SMALL, Offload, PROFILE, Post,
    PostedBuffer, Returned, SERVICE_NET, Send, Small, Status,
};
use fipsee_ring::channel::ClientQueue;
use fipsee_ring::control::{ACCESS_READ, Control, RefusalCode, Wanted};
use fipsee_ring::error::Error;
use fipsee_ring::handshake::{AttachedChannel, ask, attach};
use fipsee_ring::region::Region;
use fipsee_ring::{Message, clock};
use fipsee_testkit::TIMEOUT;
use fipsee_testkit::random::Random;

use super::{all_sent, assert_nothing, frame, lan, mac, next, stat};

pub(super) const POOL_BYTES: u64 = 1 << 20;

fn wanted(name: &str) -> Wanted {
    let (service, depth, pool_bytes) = (SERVICE_NET, 64, POOL_BYTES);
    Wanted { service, queue_count: 2, depth, flags: 0, pool_bytes, name: name.to_owned() }
}

pub(super) fn by_hand(socket: &Path, name: &str) -> AttachedChannel {
    attach::<Infallible>(socket, 0, &PROFILE, wanted(name)).expect("attached")
}

pub(super) fn publish(queue: &mut ClientQueue, message: &Message) {
    queue.requests.publish(message).expect("a free slot");
    if queue.requests.reader_needs_doorbell() {
        queue.daemon_doorbell.ring();
    }
}

/// The next message, which is an answer to one call.
#[track_caller]
pub(super) fn answer(queue: &mut ClientQueue) -> Message {
    let (mut message, deadline) = (Message::ZERO, clock::ticks() + clock::duration_to_ticks(TIMEOUT));
    while !queue.completions.receive(&mut message) {
        assert!(clock::ticks() < deadline, "no answer");
        std::thread::yield_now();
    }
    queue.requests.answered();
    message
}

/// The status of the next message, which gives back this tag alone.
#[track_caller]
fn status(queue: &mut ClientQueue, tag: u16) -> Status {
    let message = answer(queue);
    let returned = Returned::of(&message);
    assert_eq!((returned.kind, returned.count, returned.reserved, returned.entries[0].tag), (KIND_RETURNED, 1, 0, tag));
    Status::from_wire(returned.entries[0].status).expect("a status")
}

/// A frame of 100 bytes from `a` to `b`, as far as the message says.
fn send(tag: u16) -> Send {
    let mut first = [0; 36];
    first.copy_from_slice(&frame(mac(1), mac(2), 36, 1));
    let (operation, memory, offload) = (OPERATION_SEND, 0, Offload::default());
    Send { operation, first_bytes: 36, tag, offset_bytes: 4096, rest_bytes: 64, memory, offload, first, stamp: 0 }
}

/// What is wrong, and the status that it must have.
fn wrong_frames() -> Vec<(Message, Status)> {
    let sent = send(7);
    let with = |change: &dyn Fn(&mut Send)| {
        let mut changed = sent;
        change(&mut changed);
        changed.to_message()
    };
    let small = |length: usize, change: &dyn Fn(&mut Small)| {
        let mut small = Small::new(OPERATION_SEND_SMALL, 7, &frame(mac(1), mac(2), 56, 1)[..length]);
        change(&mut small);
        small.to_message()
    };
    let pool = u32::try_from(POOL_BYTES).expect("small");
    let tagged = |first: &mut [u8; 36]| first[12..16].copy_from_slice(&[0x81, 0, 0, 5]);
    vec![
        (with(&|send| send.first_bytes = 13), Status::TooShort),
        (with(&|send| send.first_bytes = 0), Status::TooShort),
        (with(&|send| send.first_bytes = 37), Status::Invalid),
        (with(&|send| send.first_bytes = 255), Status::Invalid),
        (with(&|send| send.rest_bytes = 1479), Status::TooLong),
        (with(&|send| send.rest_bytes = u32::MAX), Status::TooLong),
        (with(&|send| send.offset_bytes = pool - 63), Status::BadMemory),
        (with(&|send| send.offset_bytes = u32::MAX), Status::BadMemory),
        (with(&|send| send.memory = 1), Status::BadMemory),
        (with(&|send| send.memory = u16::MAX), Status::BadMemory),
        (with(&|send| send.operation = 0), Status::Unsupported),
        (with(&|send| send.operation = 11), Status::Unsupported),
        (with(&|send| send.offload.flags = 1), Status::Unsupported),
        (with(&|send| send.offload.segment_bytes = 1448), Status::Unsupported),
        (with(&|send| send.first[11] = 2), Status::WrongSource),
        (with(&|send| send.first[11] = 9), Status::WrongSource),
        (with(&|send| send.first[6] = 1), Status::WrongSource),
        (with(&|send| tagged(&mut send.first)), Status::WrongVlan),
        (
            with(&|send| {
                tagged(&mut send.first);
                send.first_bytes = 17;
            }),
            Status::TooShort,
        ),
        (small(13, &|_| {}), Status::TooShort),
        (small(0, &|_| {}), Status::TooShort),
        (small(56, &|small| small.length_bytes = 57), Status::Invalid),
        (small(56, &|small| small.bytes[11] = 3), Status::WrongSource),
    ]
}

/// checks: R-10.3-1, R-10.3-2, R-10.3-3, R-10.3-4, R-10.3-5, R-10.3-6, R-10.3-7, R-10.3-8, R-10.3-9, R-10.3-10, R-10.3-21
#[test]
fn wrong_frames_are_answered_with_what_is_wrong_and_go_to_nobody() {
    let daemon = lan(1500, ["", "", ""]);
    let mut b = super::attach(&daemon.socket(), "b");
    let mut channel = by_hand(&daemon.socket(), "lan/a");
    let rest = frame(mac(1), mac(2), 100, 1)[36..].to_vec();
    channel.region.write(channel.layout.pool_offset_bytes + 4096, &rest).expect("within the pool");
    let wrong = wrong_frames();
    for (index, (message, expected)) in wrong.iter().enumerate() {
        publish(&mut channel.queues[0], message);
        assert_eq!(status(&mut channel.queues[0], 7), *expected, "message {index}");
        assert_nothing(&mut b);
        // A correct one comes through as before.
        publish(&mut channel.queues[0], &send(8).to_message());
        assert_eq!(status(&mut channel.queues[0], 8), Status::Ok);
        assert_eq!(next(&mut b)[36..], rest, "after message {index}");
    }
    let of_a = stat(&daemon, "a");
    let refused: u64 = of_a["refused"].as_object().expect("counts").values().filter_map(serde_json::Value::as_u64).sum();
    assert_eq!((refused, of_a["sent"].as_u64()), (wrong.len() as u64, Some(wrong.len() as u64)), "{of_a}");
    assert_eq!(of_a["refused"]["wrong_source"], 4, "{of_a}");
}

/// checks: R-10.3-11
#[test]
fn broadcasts_beyond_the_limit_are_refused() {
    let daemon = lan(1500, ["flood_limit = 10", "", ""]);
    let (mut a, mut b) = (super::attach(&daemon.socket(), "a"), super::attach(&daemon.socket(), "b"));
    for seed in 0..200 {
        a.send(&frame(mac(1), fipsee_net::frame::Mac::BROADCAST, 100, seed)).expect("sent");
        all_sent(&mut a);
    }
    let (refused, status) = a.refused();
    assert!((1..200).contains(&refused) && status == Some(Status::Limited), "{refused} refused, {status:?}");
    next(&mut b);
    assert_eq!(stat(&daemon, "a")["refused"]["limited"], refused);
}

fn buffer(tag: u16, offset_bytes: u32, length_bytes: u32) -> PostedBuffer {
    PostedBuffer { tag, memory: 0, offset_bytes, length_bytes }
}

/// checks: R-10.4-5, R-10.4-6, R-10.4-7, R-10.4-8
#[test]
fn wrong_buffers_are_given_back_and_the_next_ones_are_used() {
    let daemon = lan(1500, ["", "", ""]);
    let mut b = super::attach(&daemon.socket(), "b");
    let mut channel = by_hand(&daemon.socket(), "lan/a");
    let (receive, pool) = (&mut channel.queues[1], u32::try_from(POOL_BYTES).expect("small"));
    let mut other_memory = buffer(3, 0, 2048);
    other_memory.memory = 1;
    let mut reserved = Post::new(&[buffer(3, 0, 2048)]);
    reserved.reserved_end[1] = 1;
    let count = |count| Post { count, ..Post::new(&[buffer(3, 0, 2048)]) };
    let wrong = [
        (Post::new(&[buffer(3, pool - 2047, 2048)]), Status::BadMemory),
        (Post::new(&[buffer(3, u32::MAX, u32::MAX)]), Status::BadMemory),
        (Post::new(&[buffer(3, 0, 0)]), Status::BadMemory),
        (Post::new(&[other_memory]), Status::BadMemory),
        (count(0), Status::Invalid),
        (count(5), Status::Invalid),
        (reserved, Status::Invalid),
        (Post { operation: 1, reserved: 3, ..Post::new(&[buffer(9, 0, 2048)]) }, Status::Unsupported),
    ];
    for (seed, (post, expected)) in (0..).zip(wrong) {
        publish(receive, &post.to_message());
        publish(receive, &Post::new(&[buffer(4, 8192, 2048)]).to_message());
        let sent = frame(mac(2), mac(1), 1000, seed);
        b.send(&sent).expect("sent");
        assert_eq!(status(receive, 3), expected, "{post:?}");
        let filled = Filled::of(&answer(receive));
        assert_eq!((filled.kind, filled.count, filled.length_bytes, filled.tags[0]), (KIND_RECEIVED, 1, 1000, 4));
        let mut found = vec![0; 1000];
        channel.region.read(channel.layout.pool_offset_bytes + 8192, &mut found).expect("within the pool");
        assert_eq!(found, sent);
    }
    // Twice the same, overlapping as well: two frames in one place.
    publish(receive, &Post::new(&[buffer(5, 0, 2048)]).to_message());
    publish(receive, &Post::new(&[buffer(5, 0, 2048)]).to_message());
    for seed in 0..2 {
        b.send(&frame(mac(2), mac(1), 500, seed)).expect("sent");
        let filled = Filled::of(&answer(receive));
        assert_eq!((filled.kind, filled.tags[0]), (KIND_RECEIVED, 5));
    }
    // Too small ones: 20 of them hold less than the frame.
    (0..24).for_each(|tag| publish(receive, &Post::new(&[buffer(tag, 64 * u32::from(tag), 64)]).to_message()));
    b.send(&frame(mac(2), mac(1), 1500, 1)).expect("sent");
    all_sent(&mut b);
    let mut given_back = Vec::new();
    while given_back.len() < 20 {
        let returned = Returned::of(&answer(receive));
        for entry in &returned.entries[..usize::from(returned.count)] {
            assert_eq!((returned.kind, Status::from_wire(entry.status)), (KIND_RETURNED, Some(Status::TooSmall)));
            given_back.push(entry.tag);
        }
    }
    assert_eq!(given_back, (0..20).collect::<Vec<u16>>());
    b.send(&frame(mac(2), mac(1), 50, 1)).expect("sent");
    let small = Small::of(&answer(receive));
    assert_eq!((small.operation, small.length_bytes, small.tag), (KIND_RECEIVED_SMALL, 50, 20));
}

/// checks: R-10.4-5
#[test]
fn buffers_that_hold_a_frame_only_with_the_21st_are_given_back() {
    let daemon = lan(1500, ["", "", ""]);
    let mut b = super::attach(&daemon.socket(), "b");
    let mut channel = by_hand(&daemon.socket(), "lan/a");
    let receive = &mut channel.queues[1];
    for first in 0..6 {
        let buffers: Vec<_> = (4 * first..4 * first + 4).map(|tag| buffer(tag, 64 * u32::from(tag), 64)).collect();
        let post = Post::new(&buffers).to_message();
        receive.requests.publish_several(&post, 4).expect("a free slot");
    }
    // Three are left of the first message: after five more there are 23, and 22 would be enough.
    b.send(&frame(mac(2), mac(1), 56, 1)).expect("sent");
    assert_eq!(Small::of(&answer(receive)).tag, 0);
    b.send(&frame(mac(2), mac(1), 1400, 2)).expect("sent");
    all_sent(&mut b);
    let mut given_back = Vec::new();
    while given_back.len() < 20 {
        let returned = Returned::of(&answer(receive));
        assert_eq!(returned.kind, KIND_RETURNED);
        for entry in &returned.entries[..usize::from(returned.count)] {
            assert_eq!(Status::from_wire(entry.status), Some(Status::TooSmall));
            given_back.push(entry.tag);
        }
    }
    assert_eq!(given_back, (1..21).collect::<Vec<u16>>());
    assert_eq!(stat(&daemon, "a")["dropped"], 1);
    // The other three are there for the next frame.
    let sent = frame(mac(2), mac(1), 190, 3);
    b.send(&sent).expect("sent");
    let filled = Filled::of(&answer(receive));
    assert_eq!((filled.kind, filled.count, filled.tags[..3].to_vec()), (KIND_RECEIVED, 3, vec![21, 22, 23]));
    let mut found = vec![0; 190];
    channel.region.read(channel.layout.pool_offset_bytes + 64 * 21, &mut found).expect("within the pool");
    assert_eq!(found, sent);
}

/// A port that publishes whatever comes to mind, in both rings and far beyond its depth, while two others exchange frames.
#[test]
fn garbage_in_rings_harms_nobody_else() {
    let daemon = lan(1500, ["", "", ""]);
    let (mut b, mut c) = (super::attach(&daemon.socket(), "b"), super::attach(&daemon.socket(), "c"));
    let channel = by_hand(&daemon.socket(), "lan/a");
    let mut random = Random(7);
    let geometry = channel.layout.queues.clone();
    let mut writers: Vec<_> = geometry
        .iter()
        .map(|queue| {
            let tuning = queue.tuning();
            let ring = queue.request_ring(&channel.region, &tuning).expect("it fits");
            fipsee_ring::ring::Writer::new(ring, fipsee_ring::ring::Cursor::at_start(queue.request_start), &tuning)
        })
        .collect();
    for round in 0..2000 {
        for writer in &mut writers {
            let mut message = Message::ZERO;
            (0..8).for_each(|word| message.set_word(word, random.number()));
            // As a rule a known operation.
            if random.percent(80) {
                message.set_word(0, message.word(0) & !0xff | (1 + random.below(3)));
                if random.percent(25) {
                    message.set_word(0, message.word(0) & !0xffff | 9 | random.below(9) << 8);
                }
            }
            writer.publish(&message);
        }
        channel.queues[0].daemon_doorbell.ring();
        let sent = frame(mac(2), mac(3), 60 + usize::try_from(round % 1400).expect("small"), round);
        b.send(&sent).expect("sent");
        assert_eq!(next(&mut c), sent);
    }
    drop(channel);
    let mut a =
        fipsee_testkit::wait_for("the port is free", || fipsee_net::Port::attach(&daemon.socket(), &super::options("a")).ok());
    a.send(&frame(mac(1), mac(2), 99, 1)).expect("sent");
    assert_eq!(next(&mut b), frame(mac(1), mac(2), 99, 1));
}

/// checks: R-10.1-1, R-10.1-2, R-10.1-4
#[test]
fn what_a_network_does_not_have_is_refused() {
    let daemon = lan(1500, ["", "", ""]);
    for (code, wanted) in [
        (RefusalCode::UnknownName, wanted("lan/d")),
        (RefusalCode::UnknownName, wanted("wan/a")),
        (RefusalCode::UnknownName, wanted("lan")),
        (RefusalCode::UnknownName, wanted("lan/a/b")),
        (RefusalCode::Malformed, Wanted { queue_count: 3, ..wanted("lan/a") }),
        (RefusalCode::Malformed, Wanted { queue_count: 0, ..wanted("lan/a") }),
        (RefusalCode::Malformed, Wanted { depth: 0, ..wanted("lan/a") }),
    ] {
        let refused = attach::<Infallible>(&daemon.socket(), 0, &PROFILE, wanted);
        assert!(matches!(&refused, Err(Error::Refused { code: found, .. }) if *found == code), "{refused:?}");
    }
    let mut channel = by_hand(&daemon.socket(), "lan/a");
    let memory = Region::create("memory", 4096).expect("memory");
    let register = Control::Register { region: 1, access: ACCESS_READ, length_bytes: 4096 };
    let refused = ask::<Infallible>(&channel.control, &register, &[memory.as_fd()], "REGISTER");
    assert!(matches!(refused, Err(Error::Refused { code: RefusalCode::BadMemory, .. })), "{refused:?}");
    publish(&mut channel.queues[0], &send(1).to_message());
    assert_eq!(status(&mut channel.queues[0], 1), Status::Ok, "the attachment stays");
}
