//! The control socket: whole messages with their descriptors, and errors that say what to do.

use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use fipsee_ring::control::{Control, MAX_DESCRIPTORS, MAX_MESSAGE_BYTES};
use fipsee_ring::doorbell::{EventDoorbell, SocketDoorbell};
use fipsee_ring::seqpacket::{MAX_SOCKET_PATH_BYTES, Packet, Seqpacket, socket_address};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

const TIMEOUT: Duration = Duration::from_secs(10);

fn pair() -> (Seqpacket, Seqpacket) {
    let (one, other) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket pair");
    (Seqpacket::from_fd(one), Seqpacket::from_fd(other))
}

#[test]
fn messages_keep_their_boundaries_and_their_order() {
    let (client, daemon) = pair();
    assert!(daemon.try_receive().expect("an open socket").is_none(), "nothing was sent");
    let hello = Control::Hello { version_min: 1, version_max: 1, features: 0 };
    client.send(&hello.encode(), &[]).expect("room");
    client.send(&Control::Detach.encode(), &[]).expect("room");
    for expected in [hello, Control::Detach] {
        let packet = daemon.receive(TIMEOUT).expect("a message");
        assert_eq!(Control::decode(&packet.bytes), Ok(expected));
        assert!(packet.descriptors.is_empty());
    }
}

#[test]
fn what_was_sent_before_a_hang_up_is_received_before_its_end() {
    let ends_after_one = |client: &Seqpacket, receive: &dyn Fn() -> Option<Packet>| {
        assert_eq!(receive().map(|packet| packet.bytes).as_deref(), Some(&b"refused"[..]));
        assert_eq!(client.receive(TIMEOUT).expect_err("the end").kind(), ErrorKind::UnexpectedEof);
    };
    let (client, daemon) = pair();
    client.send(b"unread, so that the kernel reports a reset", &[]).expect("room");
    daemon.send(b"refused", &[]).expect("room");
    drop(daemon);
    ends_after_one(&client, &|| client.try_receive().expect("no end yet"));
    // The end may come while a read looks into the queue.
    let (give, take) = std::sync::mpsc::channel::<Seqpacket>();
    let hang_up = std::thread::spawn(move || {
        for daemon in take {
            daemon.send(b"refused", &[]).expect("room");
        }
    });
    for _ in 0..20_000 {
        let (client, daemon) = pair();
        give.send(daemon).expect("the thread waits");
        ends_after_one(&client, &|| (0..).find_map(|_| client.try_receive().expect("no end yet")));
    }
    drop(give);
    hang_up.join().expect("nothing failed");
}

#[test]
fn packet_of_no_bytes_is_the_end_whatever_follows_it() {
    let (client, daemon) = pair();
    client.send(b"", &[]).expect("room");
    client.send(&Control::Detach.encode(), &[]).expect("room");
    assert_eq!(daemon.receive(TIMEOUT).expect_err("the end").kind(), ErrorKind::UnexpectedEof);
}

#[test]
fn descriptors_arrive_and_are_the_ones_sent() {
    let (client, daemon) = pair();
    let doorbells: Vec<_> = (0..MAX_DESCRIPTORS).map(|_| EventDoorbell::new().expect("an eventfd")).collect();
    let descriptors: Vec<BorrowedFd<'_>> = doorbells.iter().map(AsFd::as_fd).collect();
    daemon.send(b"doorbells", &descriptors).expect("room");
    let packet = client.receive(TIMEOUT).expect("a message");
    assert_eq!((packet.bytes.as_slice(), packet.descriptors.len()), (&b"doorbells"[..], MAX_DESCRIPTORS));
    for (number, (sent, received)) in (1_u8..).zip(doorbells.iter().zip(packet.descriptors)) {
        let flags = rustix::io::fcntl_getfd(&received).expect("an open descriptor");
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC), "a child would inherit it");
        for _ in 0..number {
            EventDoorbell::from_fd(received.try_clone().expect("dup")).ring();
        }
        let mut count = [0; 8];
        rustix::io::read(sent, &mut count).expect("the same eventfd rang");
        assert_eq!(u64::from_ne_bytes(count), u64::from(number));
    }
}

#[test]
fn more_descriptors_than_a_message_carries_are_refused_before_sending() {
    let (client, daemon) = pair();
    let doorbell = EventDoorbell::new().expect("an eventfd");
    let error = client.send(b"doorbells", &[doorbell.as_fd(); 2 * MAX_DESCRIPTORS]).expect_err("twice too many");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(daemon.try_receive().expect("an open socket").is_none(), "nothing was sent");
}

#[test]
fn oversized_message_is_refused_and_the_next_is_read() {
    let (client, daemon) = pair();
    client.send(&[1; MAX_MESSAGE_BYTES + 1], &[]).expect("the kernel takes it");
    client.send(&[2; MAX_MESSAGE_BYTES], &[]).expect("room");
    let error = daemon.receive(TIMEOUT).expect_err("too long");
    assert_eq!(error.kind(), ErrorKind::InvalidData);
    assert!(error.to_string().contains("longer than the protocol allows"), "{error}");
    assert_eq!(daemon.receive(TIMEOUT).expect("the longest message").bytes, [2; MAX_MESSAGE_BYTES]);
}

#[test]
fn hang_up_is_noticed_on_both_ends_after_the_last_message() {
    for swap in [false, true] {
        let (one, other) = pair();
        let (leaver, stayer) = if swap { (other, one) } else { (one, other) };
        assert!(!stayer.is_hung_up());
        leaver.send(b"last words", &[]).expect("room");
        drop(leaver);
        assert!(stayer.is_hung_up());
        assert_eq!(stayer.receive(TIMEOUT).expect("what was sent before").bytes, b"last words");
        assert_eq!(stayer.receive(TIMEOUT).expect_err("gone").kind(), ErrorKind::UnexpectedEof);
        assert_eq!(stayer.send(b"anyone?", &[]).expect_err("gone").kind(), ErrorKind::BrokenPipe, "and no SIGPIPE");
    }
}

#[test]
fn silent_peer_is_a_timeout() {
    let (client, _daemon) = pair();
    assert_eq!(client.receive(Duration::from_millis(5)).expect_err("nothing is sent").kind(), ErrorKind::TimedOut);
}

#[test]
fn peer_that_does_not_read_does_not_block_the_sender() {
    let (client, _daemon) = pair();
    let refused = (0..100_000).find_map(|_| client.send(&[0; MAX_MESSAGE_BYTES], &[]).err());
    assert_eq!(refused.expect("a socket has an end").kind(), ErrorKind::WouldBlock);
}

#[test]
fn too_long_socket_path_is_named_with_its_limit() {
    assert!(socket_address(Path::new(&"a".repeat(MAX_SOCKET_PATH_BYTES))).is_ok(), "the longest path");
    let path = "a".repeat(MAX_SOCKET_PATH_BYTES + 1);
    for error in [
        socket_address(Path::new(&path)).expect_err("one byte too long"),
        Seqpacket::connect(Path::new(&path)).expect_err("one byte too long"),
    ] {
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(text.contains("108 bytes") && text.contains("at most 107") && text.contains("shorter"), "{text}");
    }
}

#[test]
fn connecting_where_nothing_listens_says_so() {
    let folder = std::env::temp_dir().join(format!("fipsee-test-{}", std::process::id()));
    let error = Seqpacket::connect(&folder.join("none")).expect_err("no such socket");
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

/// Readable now?
fn is_rung(doorbell: &SocketDoorbell) -> bool {
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut [rustix::event::PollFd::new(doorbell, rustix::event::PollFlags::IN)], Some(&now)).expect("polled")
        > 0
}

/// A peer that rings faster than its rings are taken must not keep us from looking at the ring.
#[test]
fn doorbell_that_rings_without_end_is_drained_in_bounds() {
    let (theirs, ours) = SocketDoorbell::pair().expect("a doorbell");
    for _ in 0..200 {
        theirs.ring();
    }
    assert!(ours.drain() && is_rung(&ours), "two hundred rings are taken at once");
    let drains = (1..100).find(|_| ours.drain() && !is_rung(&ours));
    assert!(drains.is_some(), "what is left is never taken");
    drop(theirs);
    assert!(!ours.drain(), "the peer is gone");
}
