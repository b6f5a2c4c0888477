//! Either side is killed with calls outstanding; the other gets a clear error and goes on.

use std::path::Path;
use std::time::Duration;

use fipsee_call::{Client, ConnectOptions, Error, Server, ServerOptions, WaitMode};
use fipsee_testkit::{Guard, TIMEOUT, await_word, child, eventually};

use crate::service::{Arithmetic, Operation, Request, Running, Socket, add, answer, ok, publish_calls};

/// The parent may go on.
fn say_ready() {
    println!("ready");
}

/// As a process of its own.
pub(crate) fn server() {
    let server = Server::<Arithmetic>::bind(child::socket()).expect("a server");
    let mut worker = server.worker().expect("a worker");
    say_ready();
    worker.serve(answer);
}

/// As a process of its own: takes calls out of the ring, and never answers.
pub(crate) fn mute_server() {
    let server = Server::<Arithmetic>::bind(child::socket()).expect("a server");
    let mut worker = server.worker().expect("a worker");
    say_ready();
    worker.serve(|_, _| {
        loop {
            std::thread::park();
        }
    });
}

/// As a process of its own.
pub(crate) fn client() {
    let mut client = Client::<Arithmetic>::connect(child::socket()).expect("connected");
    let mut taken = 0;
    say_ready();
    loop {
        while client.start(&add(1, 1)).is_ok() {}
        client.wait(&mut |_, _| taken += 1).expect("replies");
    }
}

/// Start a child and wait until it says that it is ready.
fn start(name: &str, socket: &Path) -> Guard {
    let mut child = Guard(child::command_at(name, socket).spawn().expect("another process"));
    await_word(&mut child.0, "ready");
    child
}

#[test]
fn a_killed_server_is_noticed_in_every_way_to_wait() {
    for wait in [WaitMode::Pause, WaitMode::Adaptive, WaitMode::Sleep] {
        let socket = Socket::new();
        let mut server = start("mute_server", &socket.0);
        let options = ConnectOptions { wait, ..Default::default() };
        let mut client = Client::<Arithmetic>::connect_with(&socket.0, &options).expect("connected");
        assert!(matches!(client.call_timeout(&add(1, 1), Duration::from_millis(10)), Err(Error::TimedOut(_))));
        let killer = std::thread::spawn(move || server.0.kill().expect("killed"));
        let outcome = client.wait_timeout(TIMEOUT, &mut |_, _| ());
        assert!(matches!(outcome, Err(Error::Disconnected)), "{wait:?}: {outcome:?}");
        killer.join().expect("no panic");
    }
}

#[test]
fn a_client_that_only_polls_notices_too() {
    let socket = Socket::new();
    let mut server = start("mute_server", &socket.0);
    let mut client = Client::<Arithmetic>::connect(&socket.0).expect("connected");
    client.start(&add(1, 1)).expect("room");
    client.submit();
    server.0.kill().expect("killed");
    eventually("the client notices", || matches!(client.poll(&mut |_, _| ()), Err(Error::Disconnected)));
}

/// checks: R-8.3-5
#[test]
fn after_a_server_was_killed_another_takes_its_socket_and_clients_connect_again() {
    let socket = Socket::new();
    let mut first = start("server", &socket.0);
    let mut client = Client::<Arithmetic>::connect(&socket.0).expect("connected");
    publish_calls(&mut client, 64);
    first.0.kill().expect("killed");
    first.0.wait().expect("its status");
    let mut taken = 0;
    let error = loop {
        match client.wait(&mut |reply, _| {
            assert_eq!(reply, ok(taken), "what was answered before the server died still counts");
            taken += 1;
        }) {
            Ok(0) => break Error::Disconnected,
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Disconnected), "{error}");
    let _second = start("server", &socket.0);
    let mut client = Client::<Arithmetic>::connect(&socket.0).expect("connected to the new one");
    assert_eq!(client.call(&add(2, 3)).expect("a reply"), ok(5));
}

#[test]
fn killed_clients_leave_nothing_behind_and_do_not_disturb_the_others() {
    let running = Running::start(ServerOptions { max_clients: 3, ..Default::default() }, 1);
    let mut client = running.client();
    for round in 0..10 {
        let mut victim = start("client", &running.socket.0);
        assert_eq!(client.call(&add(round, 1)).expect("a reply"), ok(round + 1));
        victim.0.kill().expect("killed");
        assert_eq!(client.call(&add(round, 2)).expect("a reply"), ok(round + 2));
    }
    // Places of the killed clients are free: with any of them held, the third client would not be let in.
    eventually("the killed clients are let go", || {
        let others: Vec<_> = (0..2).map(|_| Client::<Arithmetic>::connect(&running.socket.0)).collect();
        others.iter().all(Result::is_ok)
    });
}

#[test]
fn a_panicking_handler_ends_its_clients_with_a_reason() {
    let (_running, mut client) = Running::default_with_client();
    let error = client.call(&Request { operation: Operation::Panic, length_bytes: 0, a: 0, b: 0 }).expect_err("no reply");
    assert!(error.to_string().contains("is gone; connect again"), "{error}");
}

#[test]
fn a_server_that_is_dropped_hangs_up_on_all_clients() {
    let mut running = Running::default();
    let mut client = running.client();
    assert_eq!(client.call(&add(1, 1)).expect("a reply"), ok(2));
    running.abort();
    eventually("the hang-up is noticed", || matches!(client.call(&add(1, 1)), Err(Error::Disconnected)));
    running.stop();
}
