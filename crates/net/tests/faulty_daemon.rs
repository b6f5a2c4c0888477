//! Clients of ports beside a daemon that the test is: faulty ones, which end the attachment, and what a correct one may do at any moment.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use fipsee_net::frame::Mac;
use fipsee_net::wire::{
    Event, Filled, FilledPacked, Offload, PROFILE, PackedBuffer, PackedFrame, PortInfo, Post, Returned, SendPacked, Small,
    Status, compressed,
};
use fipsee_net::{AttachOptions, Error, NetError, Port};
use fipsee_ring::channel::RegionLayout;
use fipsee_ring::control::Control;
use fipsee_ring::handshake::Grant;
use fipsee_ring::seqpacket::{Seqpacket, socket_address};
use fipsee_ring::{Message, clock};
use fipsee_testkit::{Scratch, TIMEOUT, eventually};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

fn info() -> PortInfo {
    PortInfo::new(Mac([2, 0, 0, 0, 0, 1]), 1500, 0, 1)
}

/// The client's port, and the daemon's ends of its queues, with its connection; or why there is none.
type Attempt<T = Port> = (Result<T, Error>, JoinHandle<(Grant, Seqpacket)>);

/// A daemon that grants this.
fn attach(info: [u8; 64], queues: u16, pool_bytes: u64) -> Attempt {
    let (pairs, daemon) = attach_pairs(info, queues, pool_bytes);
    (pairs.map(|mut pairs| pairs.pop().expect("one")), daemon)
}

fn attach_pairs(info: [u8; 64], queues: u16, pool_bytes: u64) -> Attempt<Vec<Port>> {
    attach_with(AttachOptions { pairs: queues.div_ceil(2), ..AttachOptions::new("lan/a") }, info, (queues, pool_bytes))
}

fn attach_with(options: AttachOptions, info: [u8; 64], (queues, pool_bytes): (u16, u64)) -> Attempt<Vec<Port>> {
    let dir = Scratch::new();
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket");
    rustix::net::bind(&socket, &socket_address(&dir.path("s")).expect("short")).expect("bound");
    rustix::net::listen(&socket, 1).expect("listens");
    let thread = thread::spawn(move || {
        let control = Seqpacket::from_fd(rustix::net::accept(&socket).expect("a client"));
        control.receive(TIMEOUT).expect("HELLO");
        let welcome = Control::Welcome { version: 1, max_queues: 4, max_depth: 256, features: 0, max_pool_bytes: 1 << 20 };
        control.send(&welcome.encode(), &[]).expect("sent");
        control.receive(TIMEOUT).expect("ATTACH");
        let grant = Grant::new(RegionLayout::plan(&PROFILE, queues, 8, pool_bytes, 1), |_| {}).expect("memory");
        control.send(&grant.attached(info).encode(), &grant.descriptors()).expect("sent");
        (grant, control)
    });
    (Port::attach_pairs(&dir.path("s"), &options), thread)
}

/// checks: R-10.2-1
#[test]
fn port_information_outside_the_table_is_a_fault() {
    let with = |change: &dyn Fn(&mut PortInfo)| {
        let mut changed = info();
        change(&mut changed);
        changed.to_bytes()
    };
    let wrong = [
        with(&|info| info.mac[0] = 1),
        with(&|info| info.mtu = 67),
        with(&|info| (info.mtu, info.max_frame_bytes) = (9001, 9019)),
        with(&|info| info.max_frame_bytes = 1519),
        with(&|info| info.offloads = 1),
        with(&|info| info.vlan = 4095),
        with(&|info| info.pairs = 0),
        with(&|info| info.pairs = 2),
        with(&|info| info.reserved[10] = 1),
    ];
    for info in wrong {
        let (port, daemon) = attach(info, 2, 1 << 20);
        assert!(matches!(port, Err(Error::Fault(_))), "{info:?}: {port:?}");
        daemon.join().expect("no panic");
    }
    let (port, daemon) = attach(info().to_bytes(), 1, 1 << 20);
    assert!(matches!(port, Err(Error::Fault(_))), "half a pair: {port:?}");
    daemon.join().expect("no panic");
    let (port, daemon) = attach(info().to_bytes(), 2, 0);
    assert!(matches!(port, Err(Error::Service(NetError::PoolTooSmall { .. }))), "no pool: {port:?}");
    daemon.join().expect("no panic");
    let (port, daemon) = attach(info().to_bytes(), 2, 1 << 20);
    assert_eq!(port.expect("a correct one").info(), info());
    daemon.join().expect("no panic");
}

#[test]
fn answers_that_no_daemon_gives_end_the_attachment() {
    let small = |length, tag| Small { length_bytes: length, ..Small::new(2, tag, &[0; 56]) }.to_message();
    let filled = |change: &dyn Fn(&mut Filled)| {
        let mut filled = Filled::new(100, &[0]);
        change(&mut filled);
        filled.to_message()
    };
    let returned = |change: &dyn Fn(&mut Returned)| {
        let mut returned = Returned::new(&[(0, Status::BadMemory)]);
        change(&mut returned);
        returned.to_message()
    };
    let packed = |frames: &[(u16, u16)], change: &dyn Fn(&mut FilledPacked)| {
        let frames: Vec<PackedBuffer> =
            frames.iter().map(|(tag, length_bytes)| PackedBuffer { tag: *tag, length_bytes: *length_bytes }).collect();
        let mut packed = FilledPacked::new(&frames);
        change(&mut packed);
        packed.to_message()
    };
    let wrong = [
        packed(&[(0, 64), (1, 64)], &|packed| packed.count = 0),
        packed(&[(0, 64), (1, 64)], &|packed| packed.count = 15),
        packed(&[(0, 64), (1, 64)], &|packed| packed.count = 255),
        packed(&[(0, 64), (1, 64)], &|packed| packed.reserved = 1),
        packed(&[(0, 64), (1, 64), (0, 64)], &|_| {}),
        packed(&[(0, 64), (8, 64)], &|_| {}),
        packed(&[(u16::MAX, 64)], &|_| {}),
        packed(&[(0, 64), (1, 13)], &|_| {}),
        packed(&[(0, 64), (1, 0)], &|_| {}),
        packed(&[(0, 64), (1, 1519)], &|_| {}),
        packed(&[(0, u16::MAX)], &|_| {}),
        small(57, 0),
        small(13, 0),
        small(20, 8),
        small(20, u16::MAX),
        filled(&|filled| filled.count = 0),
        filled(&|filled| filled.count = 21),
        filled(&|filled| filled.count = 2),
        filled(&|filled| filled.length_bytes = 1537),
        filled(&|filled| filled.length_bytes = u32::MAX),
        filled(&|filled| filled.length_bytes = 0),
        filled(&|filled| filled.length_bytes = 13),
        filled(&|filled| filled.tags[0] = 8),
        filled(&|filled| filled.reserved = 1),
        filled(&|filled| filled.reserved_too = 1),
        filled(&|filled| filled.offload = Offload { flags: 1, ..Offload::default() }),
        // It leaves nothing to be done, but no offload is in force.
        filled(&|filled| filled.offload = Offload { checksum_offset: 1, ..Offload::default() }),
        filled(&|filled| (filled.count, filled.length_bytes, filled.tags[1]) = (2, 1600, 0)),
        filled(&|filled| filled.kind = 3),
        filled(&|filled| filled.kind = 6),
        // No addresses came before it.
        compressed(5, 0, &[0; 64]),
        returned(&|returned| returned.count = 0),
        returned(&|returned| returned.count = 15),
        returned(&|returned| returned.reserved = 1),
        returned(&|returned| returned.entries[0].tag = 8),
        returned(&|returned| returned.entries[0].status = 1000),
        returned(&|returned| returned.entries[0].status = 0),
        Returned::new(&[(0, Status::BadMemory), (1, Status::Ok)]).to_message(),
    ];
    // By copying, and by holding.
    for (index, (message, holds)) in wrong.iter().flat_map(|message| [(message, false), (message, true)]).enumerate() {
        let (port, daemon) = attach(info().to_bytes(), 2, 1 << 20);
        let (mut port, (mut grant, control)) = (port.expect("attached"), daemon.join().expect("no panic"));
        grant.queues[1].completions.publish(message);
        let found = if holds { port.take().map(|_| ()) } else { port.receive(&mut Vec::new()).map(|_| ()) };
        assert!(matches!(found, Err(Error::Fault(_))), "message {index}: {found:?}");
        eventually("the client hangs up", || control.is_hung_up());
    }
}

#[test]
fn answer_to_a_frame_that_was_not_sent_ends_the_attachment() {
    let (port, daemon) = attach(info().to_bytes(), 2, 1 << 20);
    let (mut port, (mut grant, control)) = (port.expect("attached"), daemon.join().expect("no panic"));
    grant.queues[0].completions.publish(&Returned::new(&[(0, Status::Ok)]).to_message());
    let found = port.reap();
    assert!(matches!(found, Err(Error::Fault(_))), "{found:?}");
    eventually("the client hangs up", || control.is_hung_up());
    assert!(control.as_fd().try_clone_to_owned().is_ok());
}

#[test]
fn answer_to_a_frame_that_was_not_submitted_yet_is_a_fault() {
    for length in [20, 100] {
        let (port, daemon) = attach(info().to_bytes(), 2, 1 << 20);
        let (mut port, (mut grant, control)) = (port.expect("attached"), daemon.join().expect("no panic"));
        port.stage(&vec![2; length]).expect("staged");
        grant.queues[0].completions.publish(&Returned::new(&[(0, Status::Ok)]).to_message());
        let found = port.reap();
        assert!(matches!(found, Err(Error::Fault(_))), "{found:?}");
        eventually("the client hangs up", || control.is_hung_up());
    }
    // Of one that was, it is none.
    let (port, daemon) = attach(info().to_bytes(), 2, 1 << 20);
    let (mut port, (mut grant, _control)) = (port.expect("attached"), daemon.join().expect("no panic"));
    port.send(&[2; 100]).expect("sent");
    grant.queues[0].completions.publish(&Returned::new(&[(0, Status::Ok)]).to_message());
    assert_eq!(port.reap().expect("given back"), 1);
}

#[test]
fn answer_to_a_frame_of_a_burst_that_was_not_submitted_yet_is_a_fault() {
    for staged in [2, 6, 8] {
        let (port, daemon) = attach(info().to_bytes(), 2, 1 << 20);
        let (mut port, (mut grant, _control)) = (port.expect("attached"), daemon.join().expect("no panic"));
        (0..staged).for_each(|_| port.stage(&[2; 100]).expect("staged"));
        // Those of a full message are submitted.
        grant.queues[0].completions.publish(&Returned::new(&[(staged - 1, Status::Ok)]).to_message());
        let found = port.reap();
        assert!(matches!(found, Err(Error::Fault(_))), "{staged}: {found:?}");
    }
}

/// checks: R-10.3-18
#[test]
fn burst_is_sent_in_full_messages_and_a_frame_alone_in_its_own() {
    let (port, daemon) = attach(info().to_bytes(), 2, 1 << 20);
    let (mut port, (mut grant, _control)) = (port.expect("attached"), daemon.join().expect("no panic"));
    let sent: Vec<Vec<u8>> = [20, 100, 56, 1514, 57, 36, 200, 14]
        .map(|length| (0..length).map(|at| u8::try_from(at % 251).expect("small")).collect())
        .into();
    sent.iter().for_each(|frame| port.stage(frame).expect("staged"));
    assert_eq!(port.unsent(), 8);
    port.submit();
    let (mut message, mut found) = (Message::ZERO, Vec::new());
    for count in [7, 1] {
        assert!(grant.queues[0].requests.receive(&mut message));
        let packed = SendPacked::of(&message);
        assert_eq!((packed.operation, packed.count, packed.memory), (9, count, 0));
        found.extend(packed.named().expect("frames").to_vec());
    }
    for (PackedFrame { length_bytes, offset_bytes, .. }, sent) in found.iter().zip(&sent) {
        let mut bytes = vec![0; usize::from(*length_bytes)];
        grant.region.read(grant.layout.pool_offset_bytes + u64::from(*offset_bytes), &mut bytes).expect("within the pool");
        assert_eq!(bytes, *sent);
    }
    let given_back: Vec<_> = found.iter().map(|frame| (frame.tag, Status::Ok)).collect();
    grant.queues[0].completions.publish(&Returned::new(&given_back).to_message());
    assert_eq!(port.reap().expect("given back"), 8);
    port.send(&[2; 100]).expect("sent");
    assert!(grant.queues[0].requests.receive(&mut message) && !grant.queues[0].requests.has_message());
    assert_eq!(message.to_bytes()[..2], [1, 36]);
    port.send(&[2; 20]).expect("sent");
    assert!(grant.queues[0].requests.receive(&mut message));
    assert_eq!(message.to_bytes()[..2], [2, 20]);
}

/// checks: R-10.3-20
#[test]
fn frame_is_sent_without_its_addresses_if_the_message_with_one_before_it_had_them() {
    let (port, daemon) = attach(info().to_bytes(), 2, 1 << 20);
    let (mut port, (mut grant, _control)) = (port.expect("attached"), daemon.join().expect("no panic"));
    let frame = |to: u8, length: usize| [vec![to; 12], vec![9; length - 12]].concat();
    let (mut message, mut given_back) = (Message::ZERO, Vec::new());
    let mut sent = |port: &mut Port, frames: &[Vec<u8>]| {
        frames.iter().for_each(|frame| port.stage(frame).expect("staged"));
        port.submit();
        assert!(grant.queues[0].requests.receive(&mut message) && !grant.queues[0].requests.has_message());
        let bytes = message.to_bytes();
        let tags = if bytes[0] == 9 { (0..bytes[1].into()).map(|at: usize| bytes[4 + 8 * at]).collect() } else { vec![bytes[2]] };
        given_back.extend(tags.iter().map(|tag| (u16::from(*tag), Status::Ok)));
        if given_back.len() > 4 {
            grant.queues[0].completions.publish(&Returned::new(&std::mem::take(&mut given_back)).to_message());
            port.reap().expect("given back");
        }
        if bytes[0] == 9 {
            let frame = &SendPacked::of(&message).frames[0];
            let mut bytes = vec![0; usize::from(frame.length_bytes)];
            grant.region.read(grant.layout.pool_offset_bytes + u64::from(frame.offset_bytes), &mut bytes).expect("in the pool");
            assert_eq!(bytes, frames[0]);
        }
        if bytes[0] == 10 {
            let length = usize::from(bytes[1]);
            assert_eq!((length, &bytes[4..length - 8]), (frames[0].len(), &frames[0][12..]));
        }
        bytes[0]
    };
    assert_eq!([57, 57, 68, 69, 60].map(|length| sent(&mut port, &[frame(2, length)])), [1, 10, 10, 1, 10]);
    // Others than the last, and what has no need of it.
    assert_eq!(
        [(4, 60), (2, 60), (2, 60), (2, 56), (2, 14)].map(|(to, length)| sent(&mut port, &[frame(to, length)])),
        [1, 1, 10, 2, 2]
    );
    assert_eq!([(6, 56), (6, 57)].map(|(to, length)| sent(&mut port, &[frame(to, length)])), [2, 10]);
    // One that was to go alone goes with another one after all, and changes nothing.
    assert_eq!(sent(&mut port, &[frame(8, 60), frame(8, 60)]), 9);
    assert_eq!(sent(&mut port, &[frame(6, 60), frame(6, 70)]), 9);
    assert_eq!([(8, 60), (8, 60)].map(|(to, length)| sent(&mut port, &[frame(to, length)])), [1, 10]);
}

/// checks: R-10.4-11
#[test]
fn frame_without_addresses_has_those_of_the_last_short_one_that_came_alone() {
    let (port, daemon) = attach(info().to_bytes(), 2, 1 << 20);
    let (mut port, (mut grant, _control)) = (port.expect("attached"), daemon.join().expect("no panic"));
    let (mut message, mut posted) = (Message::ZERO, Vec::new());
    let frame = |from: u8, length: usize| [vec![from; 12], (12..).take(length - 12).collect()].concat();
    for (kind, from, length) in
        [(1, 2, 60), (5, 2, 60), (2, 4, 20), (5, 4, 68), (1, 6, 69), (5, 4, 57), (4, 8, 60), (5, 4, 64), (1, 8, 68), (5, 8, 63)]
    {
        while grant.queues[1].requests.receive(&mut message) {
            let post = Post::of(&message);
            posted.extend(post.buffers[..usize::from(post.count)].to_vec());
        }
        for holds in [false, true] {
            let buffer = posted.remove(0);
            let expected = frame(from, length);
            if kind == 1 || kind == 4 {
                let place = grant.layout.pool_offset_bytes + u64::from(buffer.offset_bytes);
                grant.region.write(place, &expected).expect("within the pool");
            }
            let length_bytes = u16::try_from(length).expect("short");
            grant.queues[1].completions.publish(&match kind {
                1 => Filled::new(length_bytes.into(), &[buffer.tag]).to_message(),
                2 => Small::new(2, buffer.tag, &expected).to_message(),
                4 => FilledPacked::new(&[PackedBuffer { tag: buffer.tag, length_bytes }]).to_message(),
                _ => compressed(5, buffer.tag, &expected),
            });
            let mut found = Vec::new();
            if holds {
                found = port.take().expect("a frame").expect("a frame").to_vec().expect("its bytes");
            } else {
                assert!(port.receive(&mut found).expect("a frame"));
            }
            assert_eq!(found, expected, "kind {kind}");
        }
        port.post_returned();
    }
    // As much as fits.
    let buffer = posted.remove(0);
    grant.queues[1].completions.publish(&compressed(5, buffer.tag, &frame(8, 64)));
    let mut into = [0; 21];
    assert_eq!(port.receive_into(&mut into).expect("a frame"), Some(64));
    assert_eq!(into, frame(8, 64)[..21]);
    // One that a message does not hold.
    let buffer = posted.remove(0);
    grant.queues[1]
        .completions
        .publish(&Small { length_bytes: 69, ..Small::of(&compressed(5, buffer.tag, &frame(8, 64))) }.to_message());
    assert!(matches!(port.receive(&mut Vec::new()), Err(Error::Fault(_))));
    // One that its buffer does not hold.
    for (length, is_fault) in [(64, false), (65, true)] {
        let options = AttachOptions { buffer_bytes: Some(64), ..AttachOptions::new("lan/a") };
        let (ports, daemon) = attach_with(options, info().to_bytes(), (2, 1 << 20));
        let (mut port, (mut grant, _control)) = (ports.expect("attached").remove(0), daemon.join().expect("no panic"));
        grant.queues[1].completions.publish(&Small::new(2, 0, &frame(8, 20)).to_message());
        grant.queues[1].completions.publish(&compressed(5, 1, &frame(8, length)));
        assert!(port.receive(&mut Vec::new()).expect("a frame"));
        assert_eq!(matches!(port.receive(&mut Vec::new()), Err(Error::Fault(_))), is_fault, "{length} bytes");
    }
}

#[test]
fn frames_of_a_message_are_received_one_by_one_and_before_what_came_later() {
    let (port, daemon) = attach(info().to_bytes(), 2, 1 << 20);
    let (mut port, (mut grant, _control)) = (port.expect("attached"), daemon.join().expect("no panic"));
    let (mut message, mut posted) = (Message::ZERO, Vec::new());
    while grant.queues[1].requests.receive(&mut message) {
        let post = Post::of(&message);
        posted.extend(post.buffers[..usize::from(post.count)].to_vec());
    }
    let mut frames = Vec::new();
    for (number, buffer) in (60..).zip(&posted[..3]) {
        let bytes = vec![number; usize::from(number)];
        grant.region.write(grant.layout.pool_offset_bytes + u64::from(buffer.offset_bytes), &bytes).expect("within the pool");
        frames.push(PackedBuffer { tag: buffer.tag, length_bytes: number.into() });
    }
    grant.queues[1].completions.publish(&FilledPacked::new(&frames).to_message());
    grant.queues[1].completions.publish(&Small::new(2, posted[3].tag, &[9; 20]).to_message());
    let mut found = Vec::new();
    assert!(port.receive(&mut found).expect("a frame") && found == [60; 60]);
    // The rest of the message is there: a program must not wait.
    assert!(port.arm().expect("the daemon is there"));
    port.woken().expect("frames are there");
    assert_eq!(port.take().expect("a frame").expect("a frame").to_vec().expect("its bytes"), [61; 61]);
    let mut into = [0; 10];
    assert_eq!((port.receive_into(&mut into).expect("a frame"), into), (Some(62), [62; 10]));
    assert!(port.receive(&mut found).expect("a frame") && found == [9; 20]);
    assert!(!port.receive(&mut found).expect("nothing more"));
}

#[test]
fn buffers_are_posted_once_and_a_refused_one_is_reported() {
    let (port, daemon) = attach(info().to_bytes(), 2, 1 << 20);
    let (mut port, (mut grant, _control)) = (port.expect("attached"), daemon.join().expect("no panic"));
    assert_eq!(posted(&mut grant), (0..8).collect::<Vec<u16>>(), "as many as the depth");
    grant.queues[1].completions.publish(&Returned::new(&[(3, Status::BadMemory)]).to_message());
    let refused = port.receive(&mut Vec::new());
    assert!(matches!(refused, Err(Error::Service(NetError::NotPosted(Status::BadMemory)))), "{refused:?}");
    assert!(!port.receive(&mut Vec::new()).expect("nothing is there"));
    assert_eq!(posted(&mut grant), [3], "it is posted again");
}

#[test]
fn frame_behind_events_comes_by_the_same_look() {
    for events in 1..=3 {
        let (port, daemon) = attach(info().to_bytes(), 2, 1 << 20);
        let (mut port, (mut grant, _control)) = (port.expect("attached"), daemon.join().expect("no panic"));
        for event in 0..events {
            grant.queues[1].completions.publish(&Event::new(event % 2 == 1, Mac(info().mac), info().mtu).to_message());
        }
        grant.queues[1].completions.publish(&Small::new(2, 0, &[7; 20]).to_message());
        let mut frame = Vec::new();
        assert!(port.receive(&mut frame).expect("the daemon is there"), "behind {events} events");
        assert_eq!((frame, port.changes(), port.is_up()), (vec![7; 20], events, events % 2 == 0));
        assert!(!port.receive(&mut Vec::new()).expect("the daemon is there"));
    }
}

/// What a client submitted is sent before its attachment ends if it detaches. If it hangs up it may be lost.
#[test]
fn last_of_two_pairs_detaches_also_if_both_are_closed_at_once() {
    for round in 0..400 {
        let (pairs, daemon) = attach_pairs(PortInfo { pairs: 2, ..info() }.to_bytes(), 4, 1 << 20);
        let (pairs, (_grant, control)) = (pairs.expect("attached"), daemon.join().expect("no panic"));
        // They go on closer to each other than a barrier that sleeps lets them.
        let (ready, count) = (AtomicUsize::new(0), pairs.len());
        let packets = thread::scope(|scope| {
            let closing = pairs.into_iter().map(|pair| {
                scope.spawn(|| {
                    ready.fetch_add(1, Ordering::AcqRel);
                    while ready.load(Ordering::Acquire) < count {
                        std::hint::spin_loop();
                    }
                    pair.close()
                })
            });
            let closing: Vec<_> = closing.collect();
            let mut packets = Vec::new();
            while let Ok(packet) = control.receive(TIMEOUT) {
                packets.push(Control::decode(&packet.bytes));
                control.send(&Control::Detached.encode(), &[]).expect("sent");
            }
            closing.into_iter().for_each(|pair| pair.join().expect("no panic").expect("closed"));
            packets
        });
        assert_eq!(packets, [Ok(Control::Detach)], "round {round}");
    }
}

/// All transmit buffers are on their way.
fn fill(port: &mut Port) {
    while port.send(&[2; 20]).is_ok() {}
}

#[test]
fn buffer_that_comes_back_while_the_port_is_armed_is_reported() {
    let (port, daemon) = attach(info().to_bytes(), 2, 1 << 20);
    let (mut port, (mut grant, _control)) = (port.expect("attached"), daemon.join().expect("no panic"));
    assert!(!port.arm().expect("the daemon is there"), "nothing came");
    fill(&mut port);
    assert!(!port.arm().expect("the daemon is there"), "nothing came");
    grant.queues[0].completions.publish(&Returned::new(&[(0, Status::Ok)]).to_message());
    assert!(port.arm().expect("the daemon is there"), "a caller would wait for what has come");
    port.send(&[2; 20]).expect("there is room for one");
    grant.queues[1].completions.publish(&Small::new(2, 0, &[7; 20]).to_message());
    assert!(port.arm().expect("the daemon is there"), "a frame came");
}

/// The tags of buffers that are posted.
fn posted(grant: &mut Grant) -> Vec<u16> {
    let (mut message, mut tags) = (Message::ZERO, Vec::new());
    while grant.queues[1].requests.receive(&mut message) {
        let post = Post::of(&message);
        tags.extend(post.buffers[..usize::from(post.count)].iter().map(|buffer| buffer.tag));
    }
    tags
}

#[test]
fn buffers_of_frames_that_another_thread_drops_are_posted_by_one_that_waits() {
    let (port, daemon) = attach(info().to_bytes(), 2, 1 << 20);
    let (mut port, (mut grant, _control)) = (port.expect("attached"), daemon.join().expect("no panic"));
    assert_eq!(posted(&mut grant).len(), 8);
    (0..8).for_each(|tag| grant.queues[1].completions.publish(&Small::new(2, tag, &[7; 20]).to_message()));
    let mut frames = Vec::new();
    assert_eq!(port.take_batch(&mut frames, 9).expect("the daemon is there"), 8);
    // By the program's own call.
    frames.truncate(6);
    port.post_returned();
    assert_eq!(posted(&mut grant), [6, 7]);
    // By a wait that has begun before.
    let came = thread::scope(|scope| {
        let waits = scope.spawn(|| port.wait_frame(Some(clock::ticks() + clock::duration_to_ticks(TIMEOUT))));
        eventually("it sleeps", || grant.queues[1].completions.reader_needs_doorbell());
        frames.truncate(2);
        let mut tags = Vec::new();
        eventually("they are posted", || {
            tags.extend(posted(&mut grant));
            tags.len() == 4
        });
        grant.queues[1].completions.publish(&Small::new(2, tags[0], &[8; 20]).to_message());
        grant.queues[1].client_doorbell.ring();
        waits.join().expect("no panic")
    });
    assert_eq!(came.expect("the daemon is there").map(|frame| frame.to_vec().expect("mapped")), Some(vec![8; 20]));
}
