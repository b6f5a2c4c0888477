//! Faulty servers: the client finds out, or is at worst given a wrong reply of the right type.

use std::os::fd::{AsFd, OwnedFd};
use std::thread::JoinHandle;

use fipsee_call::{CallError, Client, Error, PROFILE, Server, ServerOptions, Service, ServiceInfo};
use fipsee_ring::Message;
use fipsee_ring::channel::RegionLayout;
use fipsee_ring::control::{Control, RefusalCode};
use fipsee_ring::handshake::Grant;
use fipsee_ring::seqpacket::Seqpacket;
use fipsee_serve::unix::listener::Listener;
use fipsee_testkit::{TIMEOUT, eventually};
use rustix::event::{PollFd, PollFlags};
use rustix::net::SocketType;
use zerocopy::IntoBytes;

use crate::service::{Arithmetic, Reply, Socket, add, ok};

const INFO: ServiceInfo = ServiceInfo { request_bytes: 24, reply_bytes: 16, request_payload_bytes: 64, reply_payload_bytes: 128 };

/// A server that greets, and leaves the rest of the conversation to `act`.
fn faulty_server(act: impl FnOnce(Seqpacket) + Send + 'static) -> (Socket, JoinHandle<()>) {
    let socket = Socket::new();
    let listener = Listener::bind(&socket.0, SocketType::SEQPACKET, 0o600).expect("a socket");
    let thread = std::thread::spawn(move || {
        rustix::event::poll(&mut [PollFd::new(listener.socket(), PollFlags::IN)], None).expect("a client");
        let accepted: OwnedFd = rustix::net::accept(listener.socket()).expect("a client");
        let control = Seqpacket::from_fd(accepted);
        control.receive(TIMEOUT).expect("HELLO");
        let welcome = Control::Welcome { version: 1, max_queues: 1, max_depth: 256, features: 0, max_pool_bytes: 1 << 20 };
        control.send(&welcome.encode(), &[]).expect("sent");
        control.receive(TIMEOUT).expect("ATTACH");
        act(control);
    });
    (socket, thread)
}

fn grant(queue_count: u16, pool_bytes: u64) -> Grant {
    Grant::new(RegionLayout::plan(&PROFILE, queue_count, 4, pool_bytes, 1), |_| {}).expect("memory")
}

fn send_attached(control: &Seqpacket, grant: &Grant, info: &[u8; 64]) {
    control.send(&grant.attached(*info).encode(), &grant.descriptors()).expect("sent");
}

/// How connecting to such a server fails.
fn failure(act: impl FnOnce(Seqpacket) + Send + 'static) -> Error {
    let (socket, thread) = faulty_server(act);
    let error = Client::<Arithmetic>::connect(&socket.0).map(|_| ()).expect_err("a fault");
    thread.join().expect("no panic");
    error
}

/// checks: R-8.2-1, R-8.2-2
#[test]
fn other_sizes_than_ours_are_reported_as_such_not_as_a_fault() {
    let failure_with = |info: ServiceInfo| {
        failure(move |control| {
            send_attached(&control, &grant(1, 4096), &info.to_bytes());
        })
    };
    let error = failure_with(ServiceInfo { request_bytes: 32, ..INFO });
    assert!(error.to_string().contains("a request has 32 bytes at the server and 24 here"), "{error}");
    let error = failure_with(ServiceInfo { reply_bytes: 8, ..INFO });
    assert!(error.to_string().contains("a reply has 8 bytes at the server and 16 here"), "{error}");
    for info in [
        ServiceInfo { request_bytes: 61, ..INFO },
        ServiceInfo { reply_bytes: u32::MAX, ..INFO },
        ServiceInfo { reply_payload_bytes: 65, ..INFO },
        // Four calls of it do not fit the pool of one page.
        ServiceInfo { request_payload_bytes: 4096, ..INFO },
        ServiceInfo { request_payload_bytes: 1 << 30, reply_payload_bytes: 1 << 30, ..INFO },
    ] {
        let error = failure_with(info);
        assert!(matches!(error, Error::Fault(_)), "{info:?}: {error}");
    }
}

/// checks: R-8.2-1
#[test]
fn reserved_bytes_of_the_service_information_must_be_0() {
    let error = failure(|control| {
        let mut info = INFO.to_bytes();
        info[63] = 1;
        send_attached(&control, &grant(1, 4096), &info);
    });
    assert!(error.to_string().contains("reserved field at byte 60"), "{error}");
}

#[test]
fn more_than_one_queue_and_missing_descriptors_are_faults() {
    let error = failure(|control| {
        send_attached(&control, &grant(2, 4096), &INFO.to_bytes());
    });
    assert!(error.to_string().contains("2 queues"), "{error}");
    let error = failure(|control| {
        let grant = grant(1, 4096);
        control.send(&grant.attached(INFO.to_bytes()).encode(), &[grant.region.as_fd()]).expect("sent");
    });
    assert!(error.to_string().contains("1 descriptors"), "{error}");
}

#[test]
fn truncated_answers_and_silence_are_errors() {
    let error = failure(|control| {
        let grant = grant(1, 4096);
        control.send(&grant.attached(INFO.to_bytes()).encode()[..40], &[]).expect("sent");
    });
    assert!(matches!(error, Error::Malformed(_)), "{error}");
    let error = failure(drop);
    assert!(matches!(error, Error::Disconnected), "{error}");
    let error = failure(|control| control.send(&Control::Detached.encode(), &[]).expect("sent"));
    assert!(matches!(error, Error::Disconnected), "{error}");
}

/// A server that grants and then answers the first call with `replies`.
fn answering(replies: Vec<Message>) -> (Socket, JoinHandle<()>) {
    faulty_server(move |control| {
        let mut grant = grant(1, 4096);
        send_attached(&control, &grant, &INFO.to_bytes());
        let mut queue = grant.queues.pop().expect("one queue");
        let mut request = Message::ZERO;
        eventually("a call comes", || queue.requests.receive(&mut request));
        for reply in &replies {
            queue.completions.publish(reply);
        }
        queue.client_doorbell.ring();
        // Until the client is gone.
        let _ = control.receive(TIMEOUT);
    })
}

fn message(bytes: &[u8]) -> Message {
    let mut payload = [0; 60];
    payload[..bytes.len()].copy_from_slice(bytes);
    Message::from_payload(&payload)
}

/// checks: R-8.3-4
#[test]
fn a_reply_that_is_no_value_closes_the_channel() {
    let mut reply = [0; 16];
    reply[8] = 2;
    let (socket, thread) = answering(vec![message(&reply)]);
    let mut client = Client::<Arithmetic>::connect(&socket.0).expect("connected");
    let error = client.call(&add(1, 1)).expect_err("2 is no boolean");
    assert!(error.to_string().contains("a reply that begins"), "{error}");
    assert!(matches!(client.call(&add(1, 1)), Err(Error::Disconnected)), "nothing more is sent or taken");
    drop(client);
    thread.join().expect("the server sees the hang-up");
}

#[test]
fn replies_without_calls_are_not_taken_until_a_call() {
    let replies: Vec<Message> = (0..3).map(|value| message(ok(value).as_bytes())).collect();
    let (socket, thread) = answering(replies);
    let mut client = Client::<Arithmetic>::connect(&socket.0).expect("connected");
    assert_eq!(client.call(&add(1, 1)).expect("a reply"), ok(0));
    let mut taken: Vec<Reply> = Vec::new();
    assert_eq!(client.poll(&mut |reply, _| taken.push(reply)).expect("nothing is outstanding"), 0);
    assert_eq!(client.wait(&mut |reply, _| taken.push(reply)).expect("nothing is outstanding"), 0);
    assert!(taken.is_empty());
    drop(client);
    thread.join().expect("in order");
}

/// checks: R-8.3-1
#[test]
fn bytes_beyond_a_reply_are_ignored() {
    let mut payload = [0xee; 60];
    payload[..16].copy_from_slice(ok(7).as_bytes());
    let (socket, thread) = answering(vec![Message::from_payload(&payload)]);
    let mut client = Client::<Arithmetic>::connect(&socket.0).expect("connected");
    assert_eq!(client.call(&add(1, 1)).expect("a reply"), ok(7));
    drop(client);
    thread.join().expect("in order");
}

/// Same name, other types.
struct Wider;

impl Service for Wider {
    const NAME: &str = Arithmetic::NAME;
    type Request = [u8; 25];
    type Reply = [u8; 16];
}

#[test]
fn a_real_server_with_other_types_under_the_same_name_is_noticed() {
    let socket = Socket::new();
    let server = Server::<Wider>::bind_with(&socket.0, ServerOptions::default()).expect("a server");
    let _worker = server.worker().expect("a worker");
    let error = Client::<Arithmetic>::connect(&socket.0).map(|_| ()).expect_err("other types");
    assert!(
        matches!(error, Error::Service(CallError::OtherTypes { what: "a request", theirs_bytes: 25, ours_bytes: 24 })),
        "{error}"
    );
}

#[test]
fn a_name_that_is_no_name_is_refused_before_anything_is_sent() {
    struct Nameless;
    impl Service for Nameless {
        const NAME: &str = "";
        type Request = ();
        type Reply = ();
    }
    let error = Client::<Nameless>::connect("/nowhere").map(|_| ()).expect_err("no name");
    assert!(matches!(&error, Error::Refused { code: RefusalCode::UnknownName, .. }), "{error}");
    let error = Client::<Arithmetic>::connect("/nowhere/socket").map(|_| ()).expect_err("no socket");
    assert!(error.to_string().contains("no server at /nowhere/socket"), "{error}");
}
