//! Clients that break the protocol of the control socket lose at most their connection; everything of theirs is released,
//! and others are not affected.

use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fipsee_block::wire::{Operation, Segment, Status, request_one_segment};
use fipsee_ring::control::{ACCESS_READ, ACCESS_WRITE, Control, Refusal, RefusalCode};
use fipsee_ring::seqpacket::Seqpacket;
use fipsee_testkit::raw::{
    BOTH, HELLO, RawClient, assert_closed, attach_message, connect, receive, receive_refusal, say, sealed_memory,
};
use fipsee_testkit::{CorrectClient, Daemon, assert_says, eventually};
use rustix::fs::SealFlags;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

/// A daemon with a correct client, and the number of its descriptors with no other client.
fn daemon_and_correct_client() -> (Daemon, CorrectClient, usize) {
    let daemon = Daemon::start(&["--disk", "a=memory:16M", "--disk", "x=memory:1M,exclusive"]);
    let correct_client = CorrectClient::new(&daemon, "a");
    // A second client attaches and detaches, so that everything made at first use exists.
    drop(CorrectClient::new(&daemon, "x"));
    eventually("the client is gone", || daemon.attached_count("x") == 0);
    let fd_count = daemon.fd_count();
    (daemon, correct_client, fd_count)
}

/// The daemon is as before the hostile client connected.
#[track_caller]
fn assert_unharmed(daemon: &Daemon, correct_client: &mut CorrectClient, fd_count: usize) {
    correct_client.check();
    eventually("the exclusive disk is free", || daemon.attached_count("x") == 0);
    eventually("every descriptor is closed", || daemon.fd_count() == fd_count);
    drop(CorrectClient::new(daemon, "x"));
    eventually("the client is gone", || daemon.attached_count("x") == 0);
}

/// checks: R-6-3
#[test]
fn half_a_handshake_leaves_nothing_behind() {
    let (daemon, mut correct_client, fd_count) = daemon_and_correct_client();
    for message_count in 0..=2 {
        let control = connect(&daemon);
        let messages = [HELLO, attach_message("x", 16, 64, 0)];
        for message in &messages[..message_count] {
            say(&control, message, &[]);
        }
        drop(control);
    }
    assert_unharmed(&daemon, &mut correct_client, fd_count);
}

#[test]
fn detach_said_twice_gives_the_place_back() {
    let (daemon, mut correct_client, fd_count) = daemon_and_correct_client();
    for _ in 0..20 {
        let client = RawClient::attach(&daemon, &attach_message("x", 2, 4, 0));
        say(&client.control, &Control::Detach, &[]);
        // The first may be answered, and the connection closed, before this is sent.
        let _ = client.control.send(&Control::Detach.encode(), &[]);
        drop(client);
        eventually("the disk is free", || daemon.attached_count("x") == 0);
    }
    assert_unharmed(&daemon, &mut correct_client, fd_count);
}

#[test]
fn unregister_said_in_a_burst_counts_once() {
    let (daemon, mut correct_client, fd_count) = daemon_and_correct_client();
    for _ in 0..20 {
        let client = RawClient::attach(&daemon, &attach_message("x", 1, 4, 0));
        let file = client.register_new(1, BOTH, 4096);
        for _ in 0..8 {
            say(&client.control, &Control::Unregister { region: 1 }, &[]);
        }
        let answers: Vec<Control> = (0..8).map(|_| receive(&client.control).0).collect();
        let taken = answers.iter().filter(|answer| **answer == Control::Unregistered { region: 1 }).count();
        let refused =
            answers.iter().filter(|answer| matches!(answer, Control::Refused(Refusal { code: RefusalCode::BadMemory, .. })));
        assert_eq!((taken, refused.count()), (1, 7), "{answers:?}");
        assert_eq!(client.register(1, BOTH, 4096, &file), Control::Registered { region: 1 });
        drop(client);
        eventually("the disk is free", || daemon.attached_count("x") == 0);
    }
    assert_unharmed(&daemon, &mut correct_client, fd_count);
}

#[test]
fn id_that_is_still_being_unregistered_cannot_be_registered() {
    let (daemon, mut correct_client, fd_count) = daemon_and_correct_client();
    let client = RawClient::attach(&daemon, &attach_message("x", 1, 4, 0));
    let file = client.register_new(1, BOTH, 4096);
    for _ in 0..50 {
        // Both are often in the socket before the daemon reads it.
        say(&client.control, &Control::Unregister { region: 1 }, &[]);
        say(&client.control, &Control::Register { region: 1, access: BOTH, length_bytes: 4096 }, &[file.as_fd()]);
        let mut answers = [receive(&client.control).0, receive(&client.control).0];
        answers.sort_by_key(|answer| matches!(answer, Control::Unregistered { .. }));
        match &answers {
            [Control::Registered { region: 1 }, Control::Unregistered { region: 1 }] => {}
            [Control::Refused(Refusal { code: RefusalCode::BadMemory, text }), Control::Unregistered { region: 1 }] => {
                assert_says(text, &["region id 1 is in use"]);
                assert_eq!(client.register(1, BOTH, 4096, &file), Control::Registered { region: 1 });
            }
            other => panic!("{other:?}"),
        }
    }
    drop(client);
    assert_unharmed(&daemon, &mut correct_client, fd_count);
}

/// Send with more descriptors than the protocol's own code would.
fn send_with_descriptors(control: &impl AsFd, bytes: &[u8], files: &[OwnedFd]) {
    let mut space = [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let borrowed: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&borrowed)), "room for 253");
    rustix::net::sendmsg(control, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::empty()).expect("sent");
}

/// checks: R-4.1-6, R-4.2-5, R-4.3-11
#[test]
fn unrequested_descriptors_are_closed() {
    let (daemon, mut correct_client, fd_count) = daemon_and_correct_client();
    let files = |count: usize| -> Vec<OwnedFd> { (0..count).map(|_| sealed_memory(4096, SealFlags::SHRINK)).collect() };
    for (count, what) in
        [(1, "only REGISTER carries a descriptor"), (129, "only REGISTER carries"), (253, "descriptors did not fit")]
    {
        let control = connect(&daemon);
        send_with_descriptors(&control, &HELLO.encode(), &files(count));
        assert_says(&receive_refusal(&control, RefusalCode::Malformed), &[what]);
        assert_closed(&control);
    }
    let client = RawClient::attach(&daemon, &attach_message("x", 1, 4, 0));
    let with_client = daemon.fd_count();
    let register = Control::Register { region: 1, access: BOTH, length_bytes: 4096 }.encode();
    for count in [0, 2, 100] {
        match count {
            0 => client.control.send(&register, &[]).expect("sent"),
            _ => send_with_descriptors(&client.control, &register, &files(count)),
        }
        let text = receive_refusal(&client.control, RefusalCode::BadMemory);
        assert_says(&text, &["exactly one descriptor, the memory file"]);
    }
    assert_eq!(daemon.fd_count(), with_client, "all of them are closed");
    drop(client);
    assert_unharmed(&daemon, &mut correct_client, fd_count);
}

/// checks: R-4.3-9, R-4.3-11, R-4.6-1
#[test]
fn memory_that_cannot_be_used_is_refused_and_the_attachment_survives() {
    let (daemon, mut correct_client, fd_count) = daemon_and_correct_client();
    let mut client = RawClient::attach(&daemon, &attach_message("x", 1, 4, 0));
    let good = client.register_new(5, BOTH, 8192);
    let plain_path = daemon.dir.path("plain");
    std::fs::File::create(&plain_path).and_then(|mut file| file.write_all(&[0; 4096])).expect("a file");
    let plain = OwnedFd::from(std::fs::File::options().read(true).write(true).open(&plain_path).expect("a file"));
    let (none, shrink) = (SealFlags::empty(), SealFlags::SHRINK);
    for (id, access, length_bytes, file, what) in [
        (1, BOTH, 4096, plain, "not a memory file (memfd_create) that allows sealing"),
        (1, BOTH, 4096, sealed_memory(4096, none), "can be shrunk; seal it with F_SEAL_SHRINK"),
        (1, BOTH, 4096, sealed_memory(4096, SealFlags::GROW), "can be shrunk"),
        (1, ACCESS_WRITE, 4096, sealed_memory(4096, shrink | SealFlags::WRITE), "sealed against writing"),
        (1, BOTH, 4096, sealed_memory(4096, shrink | SealFlags::FUTURE_WRITE), "sealed against writing"),
        (1, BOTH, 8192, sealed_memory(4096, shrink), "outside a region of 4096 bytes"),
        (1, BOTH, 0, sealed_memory(4096, shrink), "0 bytes cannot be registered in one piece; a region has 1 to"),
        (1, BOTH, u64::MAX, sealed_memory(4096, shrink), "cannot be registered in one piece"),
        (1, BOTH, 1 << 30, sealed_memory(4096, shrink), "outside a region of 4096 bytes"),
        (0, BOTH, 4096, sealed_memory(4096, shrink), "region id 0 is in use or not in 1..64"),
        (64, BOTH, 4096, sealed_memory(4096, shrink), "region id 64 is in use or not in 1..64"),
        (u16::MAX, BOTH, 4096, sealed_memory(4096, shrink), "not in 1..64; choose a free one"),
        (5, BOTH, 4096, sealed_memory(4096, shrink), "region id 5 is in use"),
        (1, 0, 4096, sealed_memory(4096, shrink), "access 0x0 is neither reading nor writing"),
        (1, 4, 4096, sealed_memory(4096, shrink), "access 0x4 is neither reading nor writing"),
    ] {
        match client.register(id, access, length_bytes, &file) {
            Control::Refused(Refusal { code: RefusalCode::BadMemory, text }) => assert_says(&text, &[what]),
            other => panic!("id {id}, access {access}, {length_bytes} bytes: {other:?} instead of '{what}'"),
        }
    }
    match client.register(1, BOTH, 1 << 41, &good) {
        Control::Refused(Refusal { code: RefusalCode::Limit, text }) => {
            assert_says(&text, &["8192 bytes are registered", "max_memory_bytes"])
        }
        other => panic!("more memory than a client may register: {other:?}"),
    }
    for region in [0, 1, 63, 64, u16::MAX] {
        say(&client.control, &Control::Unregister { region }, &[]);
        let text = receive_refusal(&client.control, RefusalCode::BadMemory);
        assert_says(&text, &[&format!("there is no registered region {region}")]);
    }
    let segment = Segment { offset_sectors: 0, length_sectors: 16, region: 5 };
    assert_eq!(client.ask(&request_one_segment(Operation::Write, 0, 1, 0, segment)), Status::Ok);
    let read_only = sealed_memory(4096, shrink | SealFlags::WRITE);
    assert_eq!(client.register(6, ACCESS_READ, 4096, &read_only), Control::Registered { region: 6 });
    drop((client, good));
    assert_unharmed(&daemon, &mut correct_client, fd_count);
}

/// checks: R-4.3-16
#[test]
fn client_that_does_not_take_its_answers_loses_its_connection() {
    let (daemon, mut correct_client, fd_count) = daemon_and_correct_client();
    let client = RawClient::attach(&daemon, &attach_message("x", 1, 4, 0));
    // Each is answered, and no answer is read, until the socket is full and the daemon gives up.
    let packet = Control::Unregister { region: 9 }.encode();
    eventually("the daemon closes", || {
        while client.control.send(&packet, &[]).is_ok() {}
        client.control.is_hung_up() || daemon.attached_count("x") == 0
    });
    correct_client.check();
    drop(client);
    assert_unharmed(&daemon, &mut correct_client, fd_count);
}

#[test]
fn client_that_floods_the_control_socket_keeps_no_other_from_attaching() {
    let (daemon, mut correct_client, fd_count) = daemon_and_correct_client();
    let client = RawClient::attach(&daemon, &attach_message("x", 1, 4, 0));
    let control = Arc::new(client.control);
    let stop = Arc::new(AtomicBool::new(false));
    let flood = |work: fn(&Seqpacket)| {
        let (control, stop) = (Arc::clone(&control), Arc::clone(&stop));
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                work(&control);
            }
        })
    };
    let packet = |control: &Seqpacket| drop(control.send(&Control::Unregister { region: 9 }.encode(), &[]));
    let answers = |control: &Seqpacket| drop(control.try_receive());
    let threads = [flood(packet), flood(packet), flood(answers), flood(answers)];
    for _ in 0..200 {
        drop(daemon.attach(&Daemon::options("a")).expect("attached"));
    }
    stop.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    drop(control);
    correct_client.check();
    eventually("the others are gone", || daemon.attached_count("a") == 1);
    drop(client.queues);
    drop(client.region);
    assert_unharmed(&daemon, &mut correct_client, fd_count);
}
