//! Clients and daemons that end, and what becomes of ports and frames.

use fipsee_net::{Error, Port};
use fipsee_ring::control::RefusalCode;
use fipsee_testkit::{assert_says, await_word, child, eventually, wait_for};

use super::{all_sent, assert_nothing, attach, frame, lan, mac, next, options, stat};

/// checks: R-10.1-3
#[test]
fn port_has_one_client_at_a_time_and_the_next_after_it() {
    let daemon = lan(1500, ["", "", ""]);
    let mut b = attach(&daemon.socket(), "b");
    for round in 0..20 {
        // The daemon may not have noticed yet that the last one hung up.
        let mut a = wait_for("the port is free", || Port::attach(&daemon.socket(), &options("a")).ok());
        let second = Port::attach(&daemon.socket(), &options("a"));
        assert!(matches!(&second, Err(Error::Refused { code: RefusalCode::Busy, .. })), "{second:?}");
        let sent = frame(mac(1), mac(2), 500, round);
        a.send(&sent).expect("sent");
        assert_eq!(next(&mut b), sent);
        // In order, or by hanging up.
        if round % 2 == 0 {
            a.detach().expect("detached")
        } else {
            drop(a)
        }
        b.send(&frame(mac(2), mac(1), 500, round)).expect("no client is there, which is no error");
        all_sent(&mut b);
    }
    assert_eq!(b.refused(), (0, None));
}

#[test]
fn what_was_submitted_before_detaching_is_sent() {
    let daemon = lan(1500, ["", "", ""]);
    let mut b = attach(&daemon.socket(), "b");
    for round in 0..20 {
        let mut a = attach(&daemon.socket(), "a");
        (0..40).for_each(|seed| a.stage(&frame(mac(1), mac(2), 200, 100 * round + seed)).expect("staged"));
        a.detach().expect("detached");
        for seed in 0..40 {
            assert_eq!(next(&mut b), frame(mac(1), mac(2), 200, 100 * round + seed));
        }
    }
}

/// As a process of its own.
pub(crate) fn port_that_floods_until_it_is_killed() {
    let mut a = attach(&child::socket(), "a");
    println!("floods");
    for seed in 0.. {
        while a.send(&frame(mac(1), mac(2), 1000, seed)).is_err() {}
    }
}

#[test]
fn killed_port_is_free_again_and_the_others_go_on() {
    let daemon = lan(1500, ["", "", ""]);
    let (mut b, mut c) = (attach(&daemon.socket(), "b"), attach(&daemon.socket(), "c"));
    let fd_count = daemon.fd_count();
    for round in 0..10 {
        let mut child = child::command_at("port_that_floods_until_it_is_killed", &daemon.socket()).spawn().expect("a process");
        await_word(&mut child, "floods");
        next(&mut b);
        let sent = frame(mac(3), mac(2), 64, round);
        c.send(&sent).expect("sent");
        eventually("a frame of another port comes through", || {
            next(&mut b) == sent || {
                c.send(&sent).expect("sent");
                false
            }
        });
        child.kill().expect("killed");
        child.wait().expect("gone");
        let mut a = None;
        eventually("the port is free", || {
            a = Port::attach(&daemon.socket(), &options("a")).ok();
            a.is_some()
        });
        let mut a = a.expect("attached");
        while b.receive(&mut Vec::new()).expect("the daemon is there") {}
        let sent = frame(mac(1), mac(2), 300, round);
        a.send(&sent).expect("sent");
        eventually("the new client's frame", || next(&mut b) == sent);
        a.detach().expect("detached");
        eventually("it is gone", || stat(&daemon, "a").get("client").is_none());
        // The connection of the last request of ours may be there for a moment.
        eventually("descriptors of a client that was killed are closed", || daemon.fd_count() == fd_count);
    }
}

#[test]
fn client_notices_that_the_daemon_is_gone() {
    let mut daemon = lan(1500, ["", "", ""]);
    let mut a = attach(&daemon.socket(), "a");
    daemon.kill_9();
    let mut found = Vec::new();
    assert!(matches!(a.wait(None, &mut found), Err(Error::Disconnected)));
}

#[test]
fn takeover_with_another_vlan_than_a_client_was_told_is_refused() {
    let mut daemon = lan(1500, ["vlan = 10", "", ""]);
    let a = attach(&daemon.socket(), "a");
    let port = "[[network]]\nname = \"lan\"\n[[network.port]]\nname = \"a\"\nmac = \"02:00:00:00:00:01\"\n";
    for vlan in ["vlan = 11\n", ""] {
        daemon.dir.configure(&format!("{port}{vlan}"));
        let refused = daemon.try_take_over(&[]).expect_err("refused");
        assert_says(&refused, &["its port 'lan/a' has another MAC address, MTU or VLAN here"]);
    }
    daemon.dir.configure(&format!("{port}vlan = 10\n"));
    daemon.take_over();
    a.detach().expect("detached");
}

/// checks: R-10.7-4
#[test]
fn no_frame_is_lost_by_a_takeover() {
    let mut daemon = lan(1500, ["", "any_source = true", ""]);
    let (mut a, mut b, mut c) = (attach(&daemon.socket(), "a"), attach(&daemon.socket(), "b"), attach(&daemon.socket(), "c"));
    for round in 0..5_u64 {
        let seeds = |part: u64| (100 * round + 10 * part)..(100 * round + 10 * part + 10);
        // Every second one goes without its addresses.
        let sent = |seed: u64| {
            let length_bytes = if seed.is_multiple_of(2) { 60 + seed % 1000 } else { 57 + seed % 12 };
            frame(mac(1), mac(2), usize::try_from(length_bytes).expect("small"), seed)
        };
        let send = |a: &mut Port, seed: u64| a.send(&sent(seed)).expect("sent");
        // Buffers are filled before, during and after it: a message with four is taken in part.
        seeds(0).for_each(|seed| send(&mut a, seed));
        let next_daemon = daemon.launch_takeover(&[]);
        seeds(1).for_each(|seed| send(&mut a, seed));
        eventually("the old daemon ends", || daemon.has_ended());
        daemon.replace(next_daemon);
        seeds(2).for_each(|seed| send(&mut a, seed));
        all_sent(&mut a);
        for seed in seeds(0).chain(seeds(1)).chain(seeds(2)) {
            assert_eq!(next(&mut b), sent(seed), "frame {seed}");
        }
        b.send(&frame(mac(2), mac(3), 64, round)).expect("sent");
        assert_eq!(next(&mut c), frame(mac(2), mac(3), 64, round));
        let second = Port::attach(&daemon.socket(), &options("a"));
        assert!(matches!(&second, Err(Error::Refused { code: RefusalCode::Busy, .. })), "{second:?}");
    }
    assert_nothing(&mut b);
    assert_eq!(a.refused(), (0, None));
}
