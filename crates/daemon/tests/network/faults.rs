//! Faulty clients of a port beside a correct pair: the pair loses nothing, and what is refused is counted at the faulty port by its reason.

use std::sync::atomic::{AtomicBool, Ordering};

use fipsee_net::{AttachOptions, Port};
use fipsee_testkit::eventually;
use fipsee_testkit::faulty::fault::Until;
use fipsee_testkit::faulty::ports::{FAULTS, PortFault};

use super::{all_sent, frame, lan, mac, next, options, stat};

/// Set when dropped, so that a faulty client ends when a check of ours fails.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The next frame of the other one of the pair.
#[track_caller]
fn next_of(port: &mut Port, from: u8) -> Vec<u8> {
    loop {
        let frame = next(port);
        if frame[6..12] == mac(from).0 {
            return frame;
        }
    }
}

fn inject(fault: &PortFault) {
    let daemon = lan(1500, ["vlan = 10\nflood_limit = 1000", "vlan = 10", "vlan = 10"]);
    // Room for what the faulty one may send to both at once.
    let pair = |port| AttachOptions { depth: 256, ..options(port) };
    let mut b = Port::attach(&daemon.socket(), &pair("b")).expect("attached");
    let mut c = Port::attach(&daemon.socket(), &pair("c")).expect("attached");
    let descriptors = daemon.fd_count();
    let (stop, injected) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut rounds = 0;
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        let faulty = scope.spawn(|| {
            let _injected = StopAtEnd(&injected);
            let mut until = Until::times(fault.times, &stop);
            fault.inject(&daemon.socket(), "lan/a", [mac(1).0, mac(2).0], &mut until).map(|()| until.injected())
        });
        while !injected.load(Ordering::Relaxed) || rounds < 20 {
            let (there, back) = (frame(mac(2), mac(3), 700, rounds), frame(mac(3), mac(2), 50, rounds));
            b.send(&there).expect("sent");
            assert_eq!(next_of(&mut c, 2), there, "{}", fault.name);
            c.send(&back).expect("sent");
            assert_eq!(next_of(&mut b, 3), back, "{}", fault.name);
            // The faulty one gets frames, too.
            b.send(&frame(mac(2), mac(1), 300, rounds)).expect("sent");
            rounds += 1;
        }
        let count = faulty.join().expect("no panic").unwrap_or_else(|error| panic!("{}: {error}", fault.name));
        assert_eq!(count, fault.times, "{}: not injected to the end", fault.name);
    });
    all_sent(&mut b);
    all_sent(&mut c);
    let of_a = stat(&daemon, "a");
    let refused = of_a["refused"].as_object().expect("counts");
    for (reason, count) in refused {
        let count = count.as_u64().expect("a number");
        match fault.refused {
            Some("limited") if reason == "limited" => assert!((1..fault.times).contains(&count), "{}: {of_a}", fault.name),
            Some(expected) if reason == expected => assert_eq!(count, fault.times, "{}: {of_a}", fault.name),
            _ => assert_eq!(count, 0, "{}: {of_a}", fault.name),
        }
    }
    for port in ["b", "c"] {
        let of_port = stat(&daemon, port);
        assert_eq!(of_port["dropped"], 0, "{}: {of_port}", fault.name);
        let refused = of_port["refused"].as_object().expect("counts");
        assert!(refused.values().all(|count| count.as_u64() == Some(0)), "{}: {of_port}", fault.name);
    }
    assert_eq!((b.refused(), c.refused()), ((0, None), (0, None)), "{}", fault.name);
    eventually("its descriptors are closed", || daemon.fd_count() == descriptors);
    let log = daemon.log();
    assert!(log.lines().count() < 20 && !log.contains("ERROR") && !log.contains("panicked"), "{}: {log}", fault.name);
    // The next client finds the port as usable as before. Frames of the faulty one may be there still.
    while b.receive(&mut Vec::new()).expect("the daemon is there") {}
    let mut a = Port::attach(&daemon.socket(), &options("a")).expect("free");
    let sent = frame(mac(1), mac(2), 99, 1);
    a.send(&sent).expect("sent");
    assert_eq!(next_of(&mut b, 1).len(), sent.len());
}

#[test]
fn faulty_clients_pay_themselves_and_are_counted_by_reason() {
    FAULTS.iter().for_each(inject);
}

#[test]
fn the_correct_clients_that_faulty_ones_are_compared_with_get_what_they_ask_for() {
    let daemon = lan(1500, ["", "", ""]);
    let stop = AtomicBool::new(false);
    for fault in FAULTS {
        let baseline = fault.baseline.unwrap_or_else(|| panic!("{} has no baseline", fault.name));
        let mut until = Until::times(200, &stop);
        let outcome = baseline.inject_beside(&daemon.socket(), ["lan/a", "lan/b"], [mac(1).0, mac(2).0], &mut until);
        outcome.unwrap_or_else(|error| panic!("{}: {error}", baseline.name));
        eventually("its ports are free", || ["a", "b"].iter().all(|port| stat(&daemon, port).get("client").is_none()));
    }
    let of_a = stat(&daemon, "a");
    let refused = of_a["refused"].as_object().expect("counts");
    assert!(refused.values().all(|count| count.as_u64() == Some(0)), "{of_a}");
    assert!(of_a["sent"].as_u64() > Some(0) && of_a["received"].as_u64() > Some(0), "{of_a}");
}

#[test]
fn port_that_takes_no_frame_drops_its_own() {
    let deaf = FAULTS.iter().find(|fault| fault.name == "frames that are never taken").expect("a fault of this name");
    let daemon = lan(1500, ["", "", ""]);
    let mut b = Port::attach(&daemon.socket(), &options("b")).expect("attached");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        scope.spawn(|| deaf.inject(&daemon.socket(), "lan/a", [mac(1).0, mac(2).0], &mut Until::times(u64::MAX, &stop)));
        eventually("it is attached, and full", || {
            b.send(&frame(mac(2), mac(1), 300, 1)).expect("sent");
            all_sent(&mut b);
            while b.receive(&mut Vec::new()).expect("the daemon is there") {}
            stat(&daemon, "a")["dropped"].as_u64().is_some_and(|dropped| dropped > 0)
        });
    });
    assert_eq!(b.refused(), (0, None));
}
