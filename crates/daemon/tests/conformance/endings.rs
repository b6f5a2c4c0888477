//! Section 4.3's ends of an attachment, and 4.7.

use std::os::fd::AsFd;

use fipsee_testkit::bytes::*;
use fipsee_testkit::{Daemon, eventually};
use rustix::fs::SealFlags;

use super::client::Client;

const DISKS: &[&str] = &["--disk", "a=delay:50ms:memory:1M,max=2M", "--workers", "1"];

/// Every published request is completed; then comes DETACHED, and every socket is closed.
#[track_caller]
fn assert_all_answered_then_over(client: &mut Client, tags: std::ops::Range<u16>) {
    let answer = client.control.receive().expect("DETACHED");
    assert_eq!(answer.bytes, control(DETACHED, 12));
    // Published before DETACHED was sent, so they are in the ring now.
    let mut found = Vec::new();
    while let Some(message) = client.try_message_on(0) {
        found.extend(super::client::entries(&message));
    }
    found.sort_unstable();
    assert!(found.iter().copied().eq(tags.map(|tag| (tag, 0))), "{found:?}");
    client.control.assert_closed();
    for queue in &client.queues {
        await_ring(&queue.doorbell);
        assert!(rings(&queue.doorbell).1, "a doorbell is open after the end");
    }
}

/// checks: R-4.7-1, R-4.3-17, R-4.3-20, R-4.5-8
#[test]
fn detach_answers_what_was_published_and_ends_every_socket() {
    let daemon = Daemon::start(DISKS);
    for count in [0, 1, 8] {
        let mut client = Client::attach(&daemon, &Wanted { depth: 8, queues: 2, ..Wanted::disk("a") });
        for tag in 0..count {
            client.publish(&transfer(WRITE, tag, 0, (0, 1, 0)));
        }
        client.control.send(&control(DETACH, 12), &[]);
        assert_all_answered_then_over(&mut client, 0..count);
    }
}

/// checks: R-4.3-1, R-4.3-17, R-4.3-20
#[test]
fn a_daemon_that_ends_in_order_detaches_its_clients_unasked() {
    let mut daemon = Daemon::start(DISKS);
    let (connected, greeted) = (Socket::connect(&daemon.socket()), super::client::greeted(&daemon));
    let mut client = Client::attach(&daemon, &Wanted { depth: 8, ..Wanted::disk("a") });
    for tag in 0..8 {
        client.publish(&transfer(WRITE, tag, 0, (0, 1, 0)));
    }
    daemon.signal_term();
    for control in [connected, greeted] {
        control.assert_refused(8, "in the handshake");
        control.assert_closed();
    }
    assert_all_answered_then_over(&mut client, 0..8);
    assert!(daemon.await_exit().success());
}

/// checks: R-4.3-18, R-4.3-20
#[test]
fn a_hang_up_ends_the_attachment_and_everything_of_it_is_let_go() {
    let daemon = Daemon::start(DISKS);
    let before = daemon.fd_count();
    for state in ["requests in flight", "requests and memory"] {
        let mut client = Client::attach(&daemon, &Wanted { depth: 8, ..Wanted::disk("a") });
        let file = memory_file(4096, SealFlags::SHRINK);
        let with_memory = state == "requests and memory";
        if with_memory {
            assert_eq!(client.control.ask(&register(1, 3, 4096), &[file.as_fd()]).kind(), REGISTERED);
        }
        for tag in 0..8 {
            client.publish(&transfer(WRITE, tag, 0, (0, 1, u16::from(with_memory))));
        }
        let Client { control, queues, .. } = client;
        drop(control);
        for queue in &queues {
            await_ring(&queue.doorbell);
            assert!(rings(&queue.doorbell).1, "{state}");
        }
        drop(queues);
        eventually("the client is detached", || daemon.attached_count("a") == 0);
        eventually("its descriptors are closed", || daemon.fd_count() == before);
    }
}

/// checks: R-4.3-14, R-6-1
#[test]
fn a_refusal_that_ends_the_attachment_ends_all_of_it() {
    let daemon = Daemon::start(DISKS);
    let mut client = Client::attach(&daemon, &Wanted { depth: 8, ..Wanted::disk("a") });
    client.publish(&transfer(WRITE, 1, 0, (0, 1, 0)));
    client.control.send(&hello(1, 1, 0), &[]);
    client.control.assert_refused(2, "HELLO, attached");
    client.control.assert_closed();
    until("the doorbell is closed", || rings(&client.queues[0].doorbell).1.then_some(()));
    eventually("the client is detached", || daemon.attached_count("a") == 0);
    // The region is not read any more.
    while client.try_message_on(0).is_some() {}
    client.publish(&flush(9));
    let mut other = Client::attach(&daemon, &Wanted::disk("a"));
    assert_eq!(other.ask(&flush(1)), 0);
    assert!(client.try_message_on(0).is_none());
}
