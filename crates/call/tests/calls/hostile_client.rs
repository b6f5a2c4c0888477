//! Faulty clients lose their own channel, with a reason; a client beside them notices nothing.

use std::convert::Infallible;
use std::os::fd::AsFd;
use std::time::Duration;

use fipsee_call::{CallError, Client, Error, PROFILE, SERVICE_CALLS, Served, Server, ServerOptions, Service};
use fipsee_ring::Message;
use fipsee_ring::control::{Control, Refusal, RefusalCode, Wanted};
use fipsee_ring::handshake::{self, AttachedChannel};
use fipsee_ring::region::Region;
use fipsee_ring::seqpacket::Seqpacket;
use fipsee_testkit::{TIMEOUT, eventually};

use crate::service::{Arithmetic, Operation, Request, Running, Socket, add, answer, ok, publish_calls, serving};

fn wanted() -> Wanted {
    let name = Arithmetic::NAME.to_owned();
    Wanted { service: SERVICE_CALLS, queue_count: 1, depth: 16, flags: 0, pool_bytes: 0, name }
}

fn attach(running: &Running) -> AttachedChannel {
    handshake::attach::<Infallible>(&running.socket.0, 0, &PROFILE, wanted()).expect("attached")
}

/// What the server says when it closes the connection.
fn last_words(control: &Seqpacket) -> (RefusalCode, String) {
    let packet = control.receive(TIMEOUT).expect("a refusal");
    match Control::decode(&packet.bytes).expect("a control message") {
        Control::Refused(Refusal { code, text }) => (code, text),
        other => panic!("{other:?} is no refusal"),
    }
}

#[track_caller]
fn assert_refusal((code, text): &(RefusalCode, String), expected: RefusalCode, words: &str) {
    assert!(*code == expected && text.contains(words), "{code:?} {text}");
}

fn is_closed(control: &Seqpacket) -> bool {
    control.receive(TIMEOUT).is_err_and(|error| error.kind() == std::io::ErrorKind::UnexpectedEof)
}

fn refusal(running: &Running, wanted: Wanted) -> (RefusalCode, String) {
    match handshake::attach::<Infallible>(&running.socket.0, 0, &PROFILE, wanted) {
        Err(fipsee_ring::error::Error::Refused { code, text }) => (code, text),
        other => panic!("{other:?} is no refusal"),
    }
}

/// checks: R-8.1-1, R-8.1-2, R-8.1-3, R-4.3-6
#[test]
fn what_a_client_may_not_attach_to_is_refused_with_the_reason() {
    let running = Running::default();
    for (wanted, code, words) in [
        (
            Wanted { name: "test.arithmetic/2".to_owned(), ..wanted() },
            RefusalCode::UnknownName,
            "serves 'test.arithmetic/1', not",
        ),
        (Wanted { service: 1, ..wanted() }, RefusalCode::Malformed, "this server takes calls"),
        (Wanted { service: 77, ..wanted() }, RefusalCode::Malformed, "this server takes calls"),
        (Wanted { flags: 1, ..wanted() }, RefusalCode::Malformed, "unknown service or flag"),
        (Wanted { queue_count: 0, ..wanted() }, RefusalCode::Malformed, "no queue"),
        (Wanted { depth: 0, ..wanted() }, RefusalCode::Malformed, "depth 0"),
    ] {
        let (found, text) = refusal(&running, wanted.clone());
        assert!(found == code && text.contains(words), "{wanted:?}: {found:?} {text}");
    }
    let attached = handshake::attach::<Infallible>(
        &running.socket.0,
        0,
        &PROFILE,
        Wanted { queue_count: 64, depth: u32::MAX, pool_bytes: 1 << 40, ..wanted() },
    );
    let attached = attached.expect("more than the server gives is capped");
    assert_eq!((attached.queues.len(), attached.layout.queues[0].depth, attached.layout.pool_bytes), (1, 256, 0));
}

#[test]
fn only_users_that_may_call_are_let_in() {
    let options = ServerOptions { allow: Some(Box::new(|user| user.uid == u32::MAX - 1)), ..Default::default() };
    let running = Running::start(options, 1);
    assert_refusal(&refusal(&running, wanted()), RefusalCode::NotAllowed, "may not call");
}

#[test]
fn one_client_more_than_the_limit_is_refused_until_one_leaves() {
    let running = Running::start(ServerOptions { max_clients: 2, ..Default::default() }, 1);
    let (first, _second) = (attach(&running), attach(&running));
    assert_refusal(&refusal(&running, wanted()), RefusalCode::Limit, "limit of 2 clients");
    drop(first);
    eventually("the place is free again", || handshake::attach::<Infallible>(&running.socket.0, 0, &PROFILE, wanted()).is_ok());
}

#[test]
fn control_messages_that_are_wrong_end_the_connection() {
    let (running, mut client) = Running::default_with_client();
    let hello = Control::Hello { version_min: 1, version_max: 1, features: 0 }.encode();
    let mut unknown = hello.clone();
    unknown[4] = 99;
    let attach_first = Control::Attach(wanted());
    for bytes in [&hello[..1], &hello[..23], &unknown, &[0xff; 512], &[0; 600], &attach_first.encode(), &Control::Detach.encode()]
    {
        let control = Seqpacket::connect(&running.socket.0).expect("connected");
        control.send(bytes, &[]).expect("sent");
        assert_eq!(last_words(&control).0, RefusalCode::Malformed, "{} bytes", bytes.len());
        assert!(is_closed(&control), "{} bytes", bytes.len());
        assert_eq!(client.call(&add(1, 1)).expect("a reply"), ok(2));
    }
    let control = Seqpacket::connect(&running.socket.0).expect("connected");
    let old = Control::Hello { version_min: 7, version_max: 9, features: 0 };
    control.send(&old.encode(), &[]).expect("sent");
    assert_eq!(last_words(&control).0, RefusalCode::Version);
}

/// checks: R-8.1-4
#[test]
fn memory_of_the_client_is_not_taken_and_the_channel_goes_on() {
    let running = Running::default();
    let mut attached = attach(&running);
    let memory = Region::create("test-memory", 4096).expect("memory");
    let register = Control::Register { region: 1, access: 3, length_bytes: 4096 };
    attached.control.send(&register.encode(), &[memory.as_fd()]).expect("sent");
    assert_refusal(&last_words(&attached.control), RefusalCode::BadMemory, "takes no memory");
    publish(&mut attached, &[0, 0, 0, 0]);
    let queue = &mut attached.queues[0];
    let mut reply = Message::ZERO;
    eventually("the call is answered", || queue.completions.receive(&mut reply));
    assert_eq!(reply.word(1), 1, "the handler was content");
    attached.control.send(&Control::Hello { version_min: 1, version_max: 1, features: 0 }.encode(), &[]).expect("sent");
    assert_eq!(last_words(&attached.control).0, RefusalCode::Malformed, "but a second HELLO ends it");
}

/// checks: R-8.3-5
#[test]
fn a_client_that_detaches_gets_its_replies_first() {
    let running = Running::default();
    let mut attached = attach(&running);
    for _ in 0..16 {
        publish(&mut attached, &[0, 0, 0, 0]);
    }
    attached.control.send(&Control::Detach.encode(), &[]).expect("sent");
    let packet = attached.control.receive(TIMEOUT).expect("an answer");
    assert_eq!(Control::decode(&packet.bytes), Ok(Control::Detached));
    assert!(is_closed(&attached.control));
    let mut reply = Message::ZERO;
    assert_eq!((0..17).filter(|_| attached.queues[0].completions.receive(&mut reply)).count(), 16);
}

fn publish(attached: &mut AttachedChannel, start: &[u8]) {
    let mut payload = [0; 60];
    payload[..start.len()].copy_from_slice(start);
    let queue = &mut attached.queues[0];
    queue.requests.publish(&Message::from_payload(&payload)).expect("room");
    if queue.requests.reader_needs_doorbell() {
        queue.daemon_doorbell.ring();
    }
}

/// checks: R-8.3-3
#[test]
fn bytes_that_are_no_request_close_the_channel_with_a_reason() {
    let (running, mut client) = Running::default_with_client();
    for operation in [[5, 0, 0, 0], [0, 0, 0, 1], [0xff; 4]] {
        let mut faulty = attach(&running);
        publish(&mut faulty, &operation);
        assert_refusal(&last_words(&faulty.control), RefusalCode::Malformed, "no request of this service");
        assert!(is_closed(&faulty.control));
        assert!(!faulty.queues[0].completions.has_message(), "and is not answered");
        assert_eq!(client.call(&add(1, 1)).expect("a reply"), ok(2));
    }
}

/// checks: R-8.3-1
#[test]
fn bytes_beyond_a_request_are_ignored_and_those_beyond_a_reply_are_zero() {
    let running = Running::default();
    let mut attached = attach(&running);
    let mut payload = [0xee; 60];
    payload[..24].fill(0);
    publish(&mut attached, &payload);
    let mut reply = Message::ZERO;
    eventually("the call is answered", || attached.queues[0].completions.receive(&mut reply));
    let bytes = reply.to_bytes();
    assert_eq!(bytes[8], 1, "the handler was content");
    assert_eq!(bytes[16..60], [0; 44]);
}

/// The same fault through the library: a client whose types differ in more than their size.
struct MismatchedService;

impl Service for MismatchedService {
    const NAME: &str = Arithmetic::NAME;
    type Request = [u64; 3];
    type Reply = [u64; 2];
}

#[test]
fn the_library_reports_why_its_channel_was_closed() {
    for wait in [fipsee_call::WaitMode::Pause, fipsee_call::WaitMode::Sleep] {
        let running = Running::default();
        let options = fipsee_call::ConnectOptions { wait, ..Default::default() };
        let mut client = Client::<MismatchedService>::connect_with(&running.socket.0, &options).expect("the sizes agree");
        let error = client.call(&[u64::MAX; 3]).expect_err("no reply");
        assert!(matches!(&error, Error::Refused { text, .. } if text.contains("no request of this service")), "{error}");
        let again = client.call_timeout(&[0; 3], TIMEOUT);
        assert!(matches!(again, Err(Error::Disconnected | Error::Service(CallError::RepliesDue { .. }))), "{again:?}");
    }
}

#[test]
fn a_client_that_publishes_more_than_its_depth_and_takes_no_reply_harms_itself_only() {
    let running = Running::with_payloads();
    let mut client = running.client();
    let mut flooder = attach(&running);
    for round in 0..2000 {
        for _ in 0..32 {
            publish(&mut flooder, &[2, 0, 0, 0, 0, 16]);
            flooder.queues[0].requests.answered();
        }
        assert_eq!(client.call(&add(round, 1)).expect("a reply"), ok(round + 1));
    }
}

#[test]
fn a_client_that_leaves_while_its_calls_are_published_is_forgotten() {
    let (socket, _server, mut worker) = serving();
    let mut client = Client::<Arithmetic>::connect(&socket.0).expect("connected");
    publish_calls(&mut client, 64);
    assert_eq!(worker.serve_one(TIMEOUT, answer), Served::Call);
    drop(client);
    eventually("its calls are dropped", || worker.serve_one(Duration::from_millis(20), answer) == Served::TimedOut);
    let mut next = Client::<Arithmetic>::connect(&socket.0).expect("connected");
    next.start(&Request { operation: Operation::WhoAmI, length_bytes: 0, a: 0, b: 0 }).expect("room");
    next.submit();
    assert_eq!(worker.serve_one(TIMEOUT, answer), Served::Call);
    let mut client_id = 0;
    next.wait(&mut |reply, _| client_id = reply.value).expect("a reply");
    assert_eq!(client_id, 2, "a client of its own");
}

#[test]
fn a_socket_that_is_served_or_no_socket_is_not_taken() {
    let running = Running::default();
    let error = Server::<Arithmetic>::bind(&running.socket.0).map(|_| ()).expect_err("it is served");
    assert!(error.to_string().contains("another server already listens"), "{error}");
    let file = Socket::new();
    std::fs::write(&file.0, "precious").expect("a file");
    let error = Server::<Arithmetic>::bind(&file.0).map(|_| ()).expect_err("it is a file");
    assert!(error.to_string().contains("is not a socket"), "{error}");
    let long = std::env::temp_dir().join("x".repeat(120));
    let error = Server::<Arithmetic>::bind(&long).map(|_| ()).expect_err("it is too long");
    assert!(error.to_string().contains("at most 107"), "{error}");
    let options = || ServerOptions { request_payload_bytes: 1 << 24, ..Default::default() };
    let error = Server::<Arithmetic>::bind_with(&Socket::new().0, options()).map(|_| ()).expect_err("4 GiB a client");
    assert!(error.to_string().contains("choose a smaller depth or payload"), "{error}");
}

#[test]
fn a_client_that_sends_nothing_is_dropped() {
    let running = Running::default();
    let control = Seqpacket::connect(&running.socket.0).expect("connected");
    assert_refusal(&last_words(&control), RefusalCode::Malformed, "nothing was said");
    assert!(is_closed(&control));
}
