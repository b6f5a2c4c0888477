//! Calls between correct clients and servers.

use std::sync::mpsc;
use std::time::Duration;

use fipsee_call::raw::RawClient;
use fipsee_call::{CallError, Client, ConnectOptions, Error, Served, Server, ServerOptions, Service, WaitMode};
use fipsee_ring::tuning::{Choices, Ownership, Touch};
use fipsee_testkit::TIMEOUT;

use crate::service::{Arithmetic, Operation, Request, Running, Socket, add, answer, ok, publish_calls, serving};

#[test]
fn a_call_returns_its_reply() {
    let (running, mut client) = Running::default_with_client();
    for a in 0..1000 {
        assert_eq!(client.call(&add(a, 7)).expect("a reply"), ok(a + 7));
    }
    drop(client);
    running.stop();
}

/// Choices that no family has are advised to the client, which applies them; calls work with them.
#[test]
fn a_server_advises_its_clients_of_its_choices() {
    let odd = Choices::NONE.with_ownership(Ownership::LockedAhead).with_touch(Touch::Never).with_burst_prefetch(false);
    let odd = odd.as_measured();
    let running = Running::start(ServerOptions { choices: odd, ..Default::default() }, 1);
    let client = RawClient::connect(&running.socket.0, Arithmetic::NAME, &ConnectOptions::default()).expect("connected");
    let applied = client.choices();
    assert_eq!((applied.ownership(), applied.touch()), (odd.ownership(), odd.touch()));
    assert_eq!((applied.burst_prefetch(), applied.is_measured()), (Some(false), true));
    drop(client);
    let mut client = running.client();
    assert_eq!(client.call(&add(1, 7)).expect("a reply"), ok(8));
    drop(client);
    running.stop();
}

struct Empty;
impl Service for Empty {
    const NAME: &str = "test.empty/1";
    type Request = ();
    type Reply = ();
}

struct Widest;
impl Service for Widest {
    const NAME: &str = "test.widest/1";
    type Request = [u8; 60];
    type Reply = [u8; 60];
}

fn serve_in_background<S: Service<Request: Send, Reply: Send> + 'static>(
    socket: &Socket,
    handler: impl Fn(S::Request) -> S::Reply + Send + 'static,
) -> (fipsee_call::Stopper, std::thread::JoinHandle<()>) {
    let server = Server::<S>::bind(&socket.0).expect("a server");
    let stopper = server.stopper();
    (stopper, std::thread::spawn(move || server.serve(|request, _| handler(request)).expect("a worker")))
}

#[test]
fn values_have_0_to_60_bytes() {
    let socket = Socket::new();
    let (stopper, thread) = serve_in_background::<Empty>(&socket, |()| ());
    let mut client = Client::<Empty>::connect(&socket.0).expect("connected");
    client.call(&()).expect("a reply");
    stopper.stop();
    thread.join().expect("in order");

    let (stopper, thread) = serve_in_background::<Widest>(&socket, |bytes| bytes.map(|byte| !byte));
    let mut client = Client::<Widest>::connect(&socket.0).expect("connected");
    let request = std::array::from_fn(|index| u8::try_from(index).expect("60 values"));
    assert_eq!(client.call(&request).expect("a reply"), request.map(|byte| !byte));
    stopper.stop();
    thread.join().expect("in order");
}

/// checks: R-8.3-2, R-2.3-1
#[test]
fn replies_come_in_the_order_of_their_calls_and_no_more_than_the_depth_are_outstanding() {
    let running = Running::default();
    let options = ConnectOptions { depth: 24, ..Default::default() };
    let mut client = Client::<Arithmetic>::connect_with(&running.socket.0, &options).expect("connected");
    assert_eq!(client.depth(), 24);
    let (mut started, mut taken) = (0, 0);
    while taken < 20_000 {
        while client.start(&add(started, 1)).is_ok() {
            started += 1;
        }
        assert_eq!(started - taken, 24, "calls outstanding");
        assert!(matches!(client.start(&add(0, 0)), Err(Error::Full)));
        let count = client.wait(&mut |reply, _| {
            taken += 1;
            assert_eq!(reply, ok(taken));
        });
        assert!(count.expect("replies") >= 1);
    }
}

#[test]
fn a_call_beside_started_calls_is_refused_and_costs_nothing() {
    let (_running, mut client) = Running::default_with_client();
    client.start(&add(1, 1)).expect("room");
    assert!(matches!(client.call(&add(5, 5)), Err(Error::Service(CallError::RepliesDue { outstanding: 1 }))));
    let mut replies = Vec::new();
    client.wait(&mut |reply, _| replies.push(reply)).expect("a reply");
    assert_eq!((replies, client.outstanding()), (vec![ok(2)], 0));
    assert_eq!(client.call(&add(5, 5)).expect("a reply"), ok(10));
    assert_eq!(client.wait(&mut |_, _| ()).expect("nothing outstanding"), 0);
}

/// checks: R-8.4-2
#[test]
fn each_outstanding_call_has_payloads_of_its_own() {
    let running = Running::with_payloads();
    let options = ConnectOptions { depth: 8, ..Default::default() };
    let mut client = Client::<Arithmetic>::connect_with(&running.socket.0, &options).expect("connected");
    assert_eq!(client.request_payload().expect("free").length_bytes(), 1024, "rounded up");
    for round in 0..100_u8 {
        for index in 0..4_u8 {
            client.request_payload().expect("free").write(0, &[round, index, 1]).expect("3 bytes fit");
            client.start(&Request { operation: Operation::Sum, length_bytes: 3, a: 0, b: 0 }).expect("room");
            client.start(&Request { operation: Operation::Fill, length_bytes: 4096, a: index.into(), b: 0 }).expect("room");
        }
        assert!(matches!(client.request_payload(), Err(Error::Full)), "its place is in use");
        let mut count = 0_u8;
        while count < 8 {
            client
                .wait(&mut |reply, payload| {
                    let index = count / 2;
                    if count.is_multiple_of(2) {
                        assert_eq!(reply, ok(u64::from(round) + u64::from(index) + 1));
                    } else {
                        let mut bytes = [0xff; 4096];
                        payload.read(0, &mut bytes).expect("as long as the payload");
                        assert_eq!((reply, bytes), (ok(index.into()), [index; 4096]));
                    }
                    count += 1;
                })
                .expect("replies");
        }
    }
}

/// checks: R-8.4-1
#[test]
fn bytes_beyond_a_payload_are_an_error_on_both_sides() {
    let running = Running::with_payloads();
    let mut client = running.client();
    let payload = client.request_payload().expect("free");
    for (offset, length) in [(1024, 1), (0, 1025), (1, 1024), (usize::MAX, 1)] {
        assert!(
            matches!(payload.write(offset, &vec![0; length]), Err(Error::Service(CallError::OutsidePayload { .. }))),
            "{length} at {offset}"
        );
        assert!(
            matches!(payload.read(offset, &mut vec![0; length]), Err(Error::Service(CallError::OutsidePayload { .. }))),
            "{length} at {offset}"
        );
    }
    payload.write(1023, &[1]).expect("the last byte");
    payload.write_value(8, &[1_u64, 2]).expect("in the middle");
    assert_eq!(payload.read_value::<[u64; 2]>(8).expect("in the middle"), [1, 2]);
    for length_bytes in [1025, u32::MAX] {
        let reply = client.call(&Request { operation: Operation::Sum, length_bytes, a: 0, b: 0 }).expect("a reply");
        assert!(!reply.is_ok, "the handler rejects {length_bytes} bytes");
    }
    let none = Running::default();
    let mut client = Client::<Arithmetic>::connect(&none.socket.0).expect("connected");
    assert!(client.request_payload().expect("free").pointer().is_err());
    assert!(!client.call(&Request { operation: Operation::Sum, length_bytes: 1, a: 0, b: 0 }).expect("a reply").is_ok);
}

#[test]
fn every_way_to_wait_works_on_both_sides() {
    for (server_wait, client_wait) in [
        (WaitMode::Sleep, WaitMode::Sleep),
        (WaitMode::Sleep, WaitMode::Pause),
        (WaitMode::Pause, WaitMode::Sleep),
        (WaitMode::Adaptive, WaitMode::Adaptive),
    ] {
        let running = Running::start(ServerOptions { wait: server_wait, look: Duration::ZERO, ..Default::default() }, 1);
        let options = ConnectOptions { wait: client_wait, look: Duration::ZERO, ..Default::default() };
        let mut client = Client::<Arithmetic>::connect_with(&running.socket.0, &options).expect("connected");
        for a in 0..2000 {
            assert_eq!(client.call(&add(a, a)).expect("a reply"), ok(2 * a));
        }
        running.stop();
    }
}

/// What is lost waits for ever.
#[test]
fn no_reply_is_lost_whatever_holds_its_notification_back() {
    for policy in ["max_rate=2000", "auto", "min_completions=4,max_delay_us=200"] {
        let notify = Some(policy.parse().expect("possible"));
        let running = Running::start(ServerOptions { wait: WaitMode::Sleep, notify, ..Default::default() }, 1);
        let options = ConnectOptions { wait: WaitMode::Sleep, ..Default::default() };
        let mut clients = [(); 2].map(|()| Client::<Arithmetic>::connect_with(&running.socket.0, &options).expect("connected"));
        for a in 0..100 {
            for client in &mut clients {
                assert_eq!(client.call(&add(a, a)).expect("a reply"), ok(2 * a), "{policy}");
            }
        }
        for client in &mut clients {
            (0..8).for_each(|a| client.start(&add(a, a)).expect("room"));
            while client.outstanding() > 0 {
                client.wait(&mut |_, _| {}).expect("replies");
            }
        }
        running.stop();
    }
}

#[test]
fn more_clients_and_workers_than_processors_all_get_their_replies() {
    let running = Running::start(ServerOptions::default(), 3);
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let socket = &running.socket.0;
            scope.spawn(move || {
                let mut client = Client::<Arithmetic>::connect(socket).expect("connected");
                for a in 0..3000 {
                    assert_eq!(client.call(&add(a, thread)).expect("a reply"), ok(a + thread));
                }
                let mut sum = 0;
                for a in 0..64 {
                    client.start(&add(a, thread)).expect("room");
                }
                while client.outstanding() > 0 {
                    client.wait(&mut |reply, _| sum += reply.value).expect("replies");
                }
                assert_eq!(sum, 64 * 63 / 2 + 64 * thread);
            });
        }
    });
    running.stop();
}

/// The worker's behaviour does not depend on the scheduler: everything is published before it begins.
#[test]
fn no_client_waits_for_more_than_a_turn_of_each_other() {
    let (socket, _server, mut worker) = serving();
    let deep = ConnectOptions { depth: 256, ..Default::default() };
    let mut clients: Vec<_> = (0..3).map(|_| Client::<Arithmetic>::connect_with(&socket.0, &deep).expect("connected")).collect();
    for client in &mut clients {
        // Now the worker knows of it.
        client.start(&add(0, 0)).expect("room");
        client.submit();
        assert_eq!(worker.serve_one(TIMEOUT, answer), Served::Call);
        assert_eq!(client.wait(&mut |_, _| ()).expect("a reply"), 1);
    }
    for (client, count) in clients.iter_mut().zip([200, 200, 5]) {
        publish_calls(client, count);
    }
    let mut order = Vec::new();
    while order.len() < 200 + 200 + 5 {
        let served = worker.serve_one(TIMEOUT, |request, call| {
            order.push(call.client);
            answer(request, call)
        });
        assert_eq!(served, Served::Call);
    }
    let waited = |client: u64| {
        let turns = order.split(|served| *served == client);
        turns.map(<[u64]>::len).take(order.iter().filter(|served| **served == client).count()).max()
    };
    for client in 1..=3 {
        assert!(waited(client).expect("it was served") <= 2 * 16, "client {client} waited for {:?}", waited(client));
    }
    for client in &mut clients {
        let mut count = 0;
        while client.outstanding() > 0 {
            count += client.wait(&mut |_, _| ()).expect("replies");
        }
        assert!(count == 200 || count == 5);
    }
}

/// A client that was idle for long is looked at less often, but never forgotten: its call comes while the worker is awake, so
/// that no doorbell rings.
#[test]
fn a_call_of_a_client_that_was_idle_for_long_keeps_the_worker_from_sleeping() {
    let socket = Socket::new();
    let options = ServerOptions { wait: WaitMode::Sleep, ..Default::default() };
    let server = Server::<Arithmetic>::bind_with(&socket.0, options).expect("a server");
    let mut worker = server.worker().expect("a worker");
    let [mut busy, mut idle] = [(), ()].map(|()| Client::<Arithmetic>::connect(&socket.0).expect("connected"));
    let mut call = |client: &mut Client<Arithmetic>| {
        client.start(&add(1, 1)).expect("room");
        client.submit();
        assert_eq!(worker.serve_one(Duration::from_secs(5), answer), Served::Call, "it sleeps while a call waits");
        assert_eq!(client.wait(&mut |_, _| ()).expect("a reply"), 1);
    };
    for round in 0..20 {
        call(&mut idle);
        // More visits, of 16 calls, than make a client cold, and another number of them each time.
        for _ in 0..16 * (1100 + round) {
            call(&mut busy);
        }
    }
}

#[test]
fn a_call_that_timed_out_is_still_answered() {
    let (socket, _server, mut worker) = serving();
    let mut client = Client::<Arithmetic>::connect(&socket.0).expect("connected");
    assert!(matches!(client.call_timeout(&add(1, 2), Duration::from_millis(20)), Err(Error::TimedOut(_))));
    assert!(matches!(client.call(&add(3, 4)), Err(Error::Service(CallError::RepliesDue { outstanding: 1 }))));
    assert_eq!(client.wait_timeout(Duration::from_millis(20), &mut |_, _| ()).expect("no worker serves"), 0);
    assert_eq!(worker.serve_one(TIMEOUT, answer), Served::Call);
    assert_eq!(worker.serve_one(Duration::from_millis(1), answer), Served::TimedOut);
    let mut replies = Vec::new();
    client.wait(&mut |reply, _| replies.push(reply)).expect("the late reply");
    assert_eq!(replies, [ok(3)]);
}

#[test]
fn a_stopped_server_answers_what_was_published_and_lets_its_clients_go() {
    let (ready, go) = mpsc::channel();
    let socket = Socket::new();
    let server = Server::<Arithmetic>::bind(&socket.0).expect("a server");
    let stopper = server.stopper();
    let mut worker = server.worker().expect("a worker");
    let mut client = Client::<Arithmetic>::connect(&socket.0).expect("connected");
    publish_calls(&mut client, 64);
    let thread = std::thread::spawn(move || {
        go.recv().expect("the signal to go");
        worker.serve(answer);
    });
    stopper.stop();
    ready.send(()).expect("the worker waits");
    let mut values = Vec::new();
    while client.outstanding() > 0 {
        client.wait(&mut |reply, _| values.push(reply.value)).expect("replies to the end");
    }
    assert_eq!(values, (0..64).collect::<Vec<_>>());
    thread.join().expect("serve returns");
    assert!(matches!(client.call(&add(1, 1)), Err(Error::Disconnected)));
    drop(server);
    let refused = Client::<Arithmetic>::connect(&socket.0).map(|_| ());
    assert!(matches!(refused, Err(Error::Connect { .. })), "{refused:?}");
}

#[test]
fn event_loops_sleep_on_the_descriptor() {
    use rustix::event::{PollFd, PollFlags};
    let (_running, mut client) = Running::default_with_client();
    let mut taken = 0_u64;
    for round in 0..2000 {
        client.start(&add(round, 0)).expect("room");
        loop {
            client
                .poll(&mut |reply, _| {
                    assert_eq!(reply, ok(taken));
                    taken += 1;
                })
                .expect("the server runs");
            if client.outstanding() == 0 {
                break;
            }
            if !client.arm_and_reply_is_there() {
                rustix::event::poll(&mut [PollFd::new(&client, PollFlags::IN)], None).expect("a valid descriptor");
            }
            client.woken().expect("the server runs");
        }
    }
    assert_eq!(taken, 2000);
}
