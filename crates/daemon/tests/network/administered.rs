//! Ports that an administrator changes, and what clients ask of them: the link, groups, the MTU, limits, IP addresses.

use fipsee_net::frame::Mac;
use fipsee_net::wire::{CHECKSUM_VALID, OFFLOADS, Offload, Status};
use fipsee_net::{AttachOptions, Error, Port, ReconnectPolicy};
use fipsee_ring::control::RefusalCode;
use fipsee_testkit::{Daemon, assert_says, eventually};
use serde_json::{Value, json};

use super::{all_sent, assert_nothing, attach, frame, lan, mac, next, options, stat};

/// Look for events until the port has had so many.
#[track_caller]
fn after_changes(port: &mut Port, count: u64) -> bool {
    eventually("an event", || {
        assert!(!port.receive(&mut Vec::new()).expect("the daemon is there"), "a frame");
        port.changes() >= count
    });
    port.is_up()
}

fn set(daemon: &Daemon, port: &str, down: bool) -> Value {
    daemon.ask(&json!({ "method": "net.set", "port": port, "down": down }))
}

/// checks: R-10.8-1, R-10.8-2
#[test]
fn client_is_told_that_its_port_is_down_and_up() {
    let daemon = lan(1500, ["", "down = true", ""]);
    let (mut a, mut b) = (attach(&daemon.socket(), "a"), attach(&daemon.socket(), "b"));
    assert!(a.is_up() && !after_changes(&mut b, 1), "from the start, by the configuration");
    let set = |port: &str, down: bool| set(&daemon, port, down);
    assert_eq!(set("lan/b", false)["link"], "up");
    assert!(after_changes(&mut b, 2));
    b.send(&frame(mac(2), mac(1), 100, 1)).expect("sent");
    assert_eq!(next(&mut a), frame(mac(2), mac(1), 100, 1));
    for round in 0..20 {
        assert_eq!(set("lan/a", true)["link"], "down");
        assert!(!after_changes(&mut a, 2 * round + 1));
        a.send(&frame(mac(1), mac(2), 100, round)).expect("sent");
        b.send(&frame(mac(2), mac(1), 100, round)).expect("sent");
        all_sent(&mut a);
        all_sent(&mut b);
        assert_nothing(&mut a);
        assert_nothing(&mut b);
        assert_eq!(a.refused(), (round + 1, Some(Status::Down)));
        set("lan/a", false);
        assert!(after_changes(&mut a, 2 * round + 2));
    }
    assert_eq!(b.refused(), (0, None));
    // The last event is acknowledged: the next change is reported at once, whatever follows it.
    all_sent(&mut a);
    // Changes that come together are reported once.
    for _ in 0..5 {
        set("lan/a", true);
        set("lan/a", false);
    }
    let mut changes = 0;
    eventually("the newest state", || {
        a.receive(&mut Vec::new()).expect("the daemon is there");
        changes = a.changes();
        a.is_up() && changes > 40
    });
    assert!(changes <= 43, "{changes}");
    let dump = daemon.ask(&json!({ "method": "config.dump" }));
    set("lan/a", true);
    let after = daemon.ask(&json!({ "method": "config.dump" }));
    assert!(!dump["toml"].as_str().is_some_and(|toml| toml.contains("down = true")), "{dump}");
    assert!(after["toml"].as_str().is_some_and(|toml| toml.contains("down = true")), "{after}");
    assert_eq!((&stat(&daemon, "a")["link"], &stat(&daemon, "a")["refused"]["down"]), (&"down".into(), &20.into()));
}

/// checks: R-10.8-1, R-10.8-3
#[test]
fn client_is_notified_of_another_address_and_mtu() {
    let mut daemon = lan(1500, ["", "", ""]);
    let (mut a, mut b) = (attach(&daemon.socket(), "a"), attach(&daemon.socket(), "b"));
    let address = |port: &str, mac: &str| json!({ "method": "net.set", "port": port, "mac": mac });
    let mtu = |mtu: u32| json!({ "method": "net.set_mtu", "network": "lan", "mtu": mtu });
    for (wrong, words) in [
        (address("lan/a", "02:00:00:00:00:02"), "port 'lan/b' has the MAC address 02:00:00:00:00:02"),
        (address("lan/a", "01:00:00:00:00:02"), "is the address of no port"),
        (address("lan/a", "2"), "'2' is no MAC address"),
        (address("lan/x", "02:00:00:00:00:09"), "no port 'lan/x'"),
        (json!({ "method": "net.set", "port": "lan/a" }), "give down or mac"),
        (mtu(1501), "68 to 1500 are possible"),
        (mtu(67), "68 to 1500 are possible"),
    ] {
        assert_says(&daemon.admin(&wrong)["error"].to_string(), &[words]);
    }
    assert_eq!(daemon.ask(&address("lan/a", "02:00:00:00:00:09"))["mac"], "02:00:00:00:00:09");
    assert!(after_changes(&mut a, 1));
    assert_eq!((a.mac(), a.mtu(), a.info().mtu, b.changes()), (mac(9), 1500, 1500, 0));
    let exchange = |a: &mut Port, b: &mut Port, refused| {
        a.send(&frame(mac(1), mac(2), 100, 1)).expect("sent");
        a.send(&frame(mac(9), mac(2), 100, 2)).expect("sent");
        b.send(&frame(mac(2), mac(1), 100, 3)).expect("sent");
        b.send(&frame(mac(2), mac(9), 100, 4)).expect("sent");
        assert_eq!((next(b), next(a)), (frame(mac(9), mac(2), 100, 2), frame(mac(2), mac(9), 100, 4)));
        all_sent(a);
        assert_eq!((a.refused(), b.refused()), ((refused, Some(Status::WrongSource)), (0, None)));
    };
    exchange(&mut a, &mut b, 1);
    daemon.ask(&mtu(1400));
    assert!(after_changes(&mut a, 2) && after_changes(&mut b, 1));
    assert_eq!((a.mac(), a.mtu(), a.info().mtu, b.mac(), b.mtu()), (mac(9), 1400, 1500, mac(2), 1400));
    // One that attaches has buffers for what is configured, and is notified at once.
    let mut c = attach(&daemon.socket(), "c");
    assert!(after_changes(&mut c, 1));
    assert_eq!((c.mtu(), c.info().mtu), (1400, 1500));
    drop(c);
    let refused = Port::attach(&daemon.socket(), &AttachOptions { least_mtu: Some(1401), ..options("c") });
    assert!(matches!(refused, Err(Error::Refused { code: RefusalCode::Limit, .. })), "{refused:?}");
    // A takeover keeps both, and a restart forgets them.
    for _ in 0..2 {
        for length in [1415, 1414] {
            b.send(&frame(mac(2), mac(9), length, 5)).expect("sent");
        }
        assert_eq!(next(&mut a), frame(mac(2), mac(9), 1414, 5));
        all_sent(&mut b);
        daemon.take_over();
    }
    assert_eq!(b.refused(), (2, Some(Status::TooLong)));
    assert_eq!((a.changes(), b.changes(), &stat(&daemon, "a")["mac"]), (2, 1, &"02:00:00:00:00:09".into()));
    let dump = daemon.ask(&json!({ "method": "config.dump" }))["toml"].to_string();
    assert!(dump.contains("02:00:00:00:00:09") && dump.contains("mtu = 1400"), "{dump}");
    daemon.ask(&mtu(1500));
    assert!(after_changes(&mut a, 3) && after_changes(&mut b, 2));
    b.send(&frame(mac(2), mac(9), 1514, 6)).expect("sent");
    assert_eq!(next(&mut a), frame(mac(2), mac(9), 1514, 6));
    daemon.kill_9();
    daemon.restart();
    Port::reconnect(std::slice::from_mut(&mut a), &ReconnectPolicy::FOR_EVER, &mut |_| {}).expect("attached again");
    assert_eq!((a.mac(), a.changes()), (mac(1), 0));
}

#[test]
fn client_names_groups() {
    let daemon = lan(1500, ["", "", "allmulti = true"]);
    let ports = ["a", "b", "c"].map(|port| attach(&daemon.socket(), port));
    let [mut a, mut b, mut c] = ports;
    let (group, other) = (Mac([0x33, 0x33, 0, 0, 0, 1]), Mac([0x33, 0x33, 0xff, 0, 0, 2]));
    for port in [&mut b, &mut c] {
        port.join(group).expect("asked");
        all_sent(port);
        assert_eq!(port.refused(), (0, None));
    }
    let of_group = frame(mac(1), group, 60, 2);
    for sent in [frame(mac(1), other, 60, 1), of_group.clone()] {
        a.send(&sent).expect("sent");
    }
    assert_eq!((next(&mut b), next(&mut c), next(&mut c)), (of_group.clone(), frame(mac(1), other, 60, 1), of_group.clone()));
    assert_nothing(&mut b);
    assert_eq!((&stat(&daemon, "b")["groups"], stat(&daemon, "a").get("groups")), (&1.into(), None));
    b.leave(group).expect("asked");
    all_sent(&mut b);
    a.send(&of_group).expect("sent");
    all_sent(&mut a);
    assert_nothing(&mut b);
    b.all_groups(true).expect("asked");
    b.join(mac(9)).expect("asked");
    all_sent(&mut b);
    assert_eq!(b.refused(), (1, Some(Status::Invalid)), "of no group");
    a.send(&of_group).expect("sent");
    assert_eq!(next(&mut b), of_group);
}

/// checks: R-10.1-1
#[test]
fn client_that_needs_a_greater_mtu_is_refused() {
    let daemon = lan(1500, ["", "", ""]);
    let with = |least_mtu| Port::attach(&daemon.socket(), &AttachOptions { least_mtu: Some(least_mtu), ..options("a") });
    let refused = with(1501);
    let expected =
        "the network of port 'lan/a' has an MTU of 1500, and the client needs 1501; raise mtu in the daemon's configuration";
    assert!(matches!(&refused, Err(Error::Refused { code: RefusalCode::Limit, text, .. }) if text == expected), "{refused:?}");
    drop(with(1500).expect("attached"));
}

/// checks: R-10.3-15, R-10.7-5
#[test]
fn port_with_ip_addresses_sends_with_no_other() {
    let keys = "ips = [\"10.0.0.1\", \"2001:db8::1\"]";
    let daemon = lan(1500, [keys, "", ""]);
    let (mut a, mut b) = (attach(&daemon.socket(), "a"), attach(&daemon.socket(), "b"));
    let ethernet = |ether_type: [u8; 2], packet: &[u8], length: usize| {
        let mut frame = [&mac(2).0[..], &mac(1).0, &ether_type, packet].concat();
        frame.resize(length.max(frame.len()), 7);
        frame
    };
    let v4 = |last: u8| [&[0x45, 0, 0, 60, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, last][..], &[10, 0, 0, 9]].concat();
    let advertised = |last: u8| {
        let address = |last: u8| [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
        let header = [&[0x60, 0, 0, 0, 0, 24, 58, 255][..], &address(1), &address(9)].concat();
        [&header[..], &[136, 0, 0, 0, 0, 0, 0, 0], &address(last)].concat()
    };
    // In the message wholly, in its first bytes, and behind these.
    for length in [40, 56, 57, 200, 1514] {
        for (right, wrong) in [
            (ethernet([8, 0], &v4(1), length), ethernet([8, 0], &v4(2), length)),
            (ethernet([0x86, 0xdd], &advertised(1), length), ethernet([0x86, 0xdd], &advertised(2), length)),
        ] {
            a.send(&wrong).expect("sent");
            a.send(&right).expect("sent");
            assert_eq!(next(&mut b), right);
        }
    }
    all_sent(&mut a);
    assert_eq!((a.refused(), &stat(&daemon, "a")["refused"]["wrong_ip"]), ((10, Some(Status::WrongIp)), &10.into()));
}

/// Rings of a client are another daemon's until that has given up: nothing may be published there because a port is in another state.
#[test]
fn takeover_with_a_port_in_another_state_is_refused_and_loses_nothing() {
    let mut daemon = lan(1500, ["", "", ""]);
    let (mut a, mut b) = (attach(&daemon.socket(), "a"), attach(&daemon.socket(), "b"));
    let file = |keys: &str| {
        let port =
            |name, number, keys| format!("[[network.port]]\nname = \"{name}\"\nmac = \"02:00:00:00:00:0{number}\"\n{keys}\n");
        format!("[[network]]\nname = \"lan\"\n{}{}{}", port("a", 1, keys), port("b", 2, ""), port("c", 3, ""))
    };
    daemon.dir.configure(&file("down = true"));
    let refused = daemon.try_take_over(&[]).expect_err("refused");
    assert_says(&refused, &["its port 'lan/a' is down here; set it there first (fipsee net set lan/a --down)"]);
    b.send(&frame(mac(2), mac(1), 100, 1)).expect("sent");
    assert_eq!((next(&mut a), a.changes(), a.is_up()), (frame(mac(2), mac(1), 100, 1), 0, true));
    // What an administrator has set goes along, whatever is configured.
    set(&daemon, "lan/a", true);
    assert!(!after_changes(&mut a, 1));
    daemon.dir.configure(&file(""));
    daemon.take_over();
    assert_eq!((&stat(&daemon, "a")["link"], a.changes()), (&"down".into(), 1));
}

/// Two ports are connected by a program, which passes on what comes to either at the other.
///
/// checks: R-10.7-7
#[test]
fn loop_between_two_ports_is_found_and_one_of_them_is_blocked() {
    let daemon = lan(1500, ["", "any_source = true", "any_source = true"]);
    let (mut a, mut b, mut c) = (attach(&daemon.socket(), "a"), attach(&daemon.socket(), "b"), attach(&daemon.socket(), "c"));
    let station = [&Mac::BROADCAST.0[..], &mac(9).0, &[8, 0], &[7; 40]].concat();
    let pass_on = |from: &mut Port, to: &mut Port| {
        let mut frame = Vec::new();
        if from.receive(&mut frame).expect("the daemon is there") {
            to.send(&frame).expect("there are few frames");
        }
    };
    b.send(&station).expect("sent");
    c.send(&station).expect("sent");
    let blocked = || ["b", "c"].map(|port| stat(&daemon, port)["link"] == "blocked");
    let mut seen = [false; 2];
    eventually("one is blocked", || {
        for _ in 0..1000 {
            pass_on(&mut b, &mut c);
            pass_on(&mut c, &mut b);
        }
        seen = blocked();
        seen.contains(&true)
    });
    assert_ne!(seen, [true; 2], "one is enough");
    eventually("it is logged", || daemon.log().contains("it is blocked for 10 seconds"));
    // No frame goes around any more; the others go on.
    [&mut b, &mut c].into_iter().for_each(all_sent);
    while a.receive(&mut Vec::new()).expect("the daemon is there") {}
    let open = if seen[0] { &mut c } else { &mut b };
    while open.receive(&mut Vec::new()).expect("the daemon is there") {}
    let sent = frame(open.mac(), mac(1), 100, 1);
    open.send(&sent).expect("sent");
    assert_eq!(next(&mut a), sent);
}

/// checks: R-10.8-3, R-10.9-2
#[test]
fn takeover_keeps_events_groups_and_offloads() {
    let mut daemon = lan(1500, ["", "", ""]);
    let with = |port| Port::attach(&daemon.socket(), &AttachOptions { offloads: OFFLOADS, ..options(port) }).expect("attached");
    let (mut a, mut b) = (with("a"), with("b"));
    let (group, other) = (Mac([0x33, 0x33, 0, 0, 0, 1]), Mac([0x33, 0x33, 0xff, 0, 0, 2]));
    b.join(group).expect("asked");
    all_sent(&mut b);
    set(&daemon, "lan/b", true);
    daemon.take_over();
    assert_eq!((&stat(&daemon, "b")["link"], &stat(&daemon, "b")["groups"]), (&"down".into(), &1.into()));
    set(&daemon, "lan/b", false);
    // The first is not acknowledged yet: the second follows it, from the other daemon. One look may find both.
    assert!(after_changes(&mut b, 2));
    assert_eq!(b.changes(), 2);
    let (offload, sent) = (Offload { flags: CHECKSUM_VALID, ..Offload::NONE }, frame(mac(1), mac(2), 100, 1));
    a.send(&frame(mac(1), other, 60, 1)).expect("sent");
    a.stage_offloaded(&sent, offload).expect("staged");
    a.send(&frame(mac(1), group, 60, 2)).expect("sent");
    assert_eq!((next(&mut b), b.received_offload()), (sent, offload), "nothing of the other group");
    assert_eq!(next(&mut b), frame(mac(1), group, 60, 2));
    assert_eq!((a.refused(), b.refused()), ((0, None), (0, None)));
}
