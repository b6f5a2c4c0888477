//! Rates of ports and of their clients: frames and their bytes, set and configured, kept; and what a port that waits for one costs others.

use fipsee_net::{AttachOptions, Error, Port};
use fipsee_testkit::rates::{assert_limited, assert_unlimited, limit_of, limit_request, rates_of, set_limit};
use fipsee_testkit::{Daemon, Scratch, assert_says, eventually, refused_in};
use serde_json::{Value, json};

use super::{all_sent, assert_nothing, attach, frame, lan, mac, next, options, stat, with_file};

/// Frames that are sent at once: more than any burst here, so that a rate holds some back on a slow machine, too.
const AT_ONCE: usize = 16;

/// Send so many frames to port b, which gets each.
#[track_caller]
fn exchange(from: &mut Port, source: u8, b: &mut Port, count: u64, length: usize) {
    let mut expected = (0..count).map(|seed| frame(mac(source), mac(2), length, seed)).peekable();
    while expected.peek().is_some() {
        let batch: Vec<_> = expected.by_ref().take(AT_ONCE).collect();
        batch.iter().for_each(|frame| from.send(frame).expect("sent"));
        batch.iter().for_each(|frame| assert_eq!(next(b), *frame));
    }
    all_sent(from);
}

fn client_of(daemon: &Daemon, port: &str) -> u64 {
    stat(daemon, port)["client"].as_u64().expect("a client")
}

#[test]
fn rate_of_a_client_holds_for_its_port_alone_also_after_a_takeover_and_a_reload() {
    let mut daemon = lan(1500, ["", "", ""]);
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|port| attach(&daemon.socket(), port));
    let client = client_of(&daemon, "a");
    let set = set_limit(&daemon, &json!({ "client": client, "iops": 1000, "weight": 50 }));
    assert_eq!((&set["of_port"], set.get("of_disk"), &set["weight"]), (&"lan/a".into(), None, &50.into()));
    for when in ["before", "after a takeover", "after a reload"] {
        assert_limited(100, 1000, (5, 1), || exchange(&mut a, 1, &mut b, 100, 60));
        assert_unlimited(&daemon, || exchange(&mut c, 3, &mut b, 1000, 60));
        let of_client = limit_of(&daemon, "client", client);
        assert_eq!((&of_client["iops"], &of_client["of_port"]), (&1000.into(), &"lan/a".into()), "{when}");
        match when {
            "before" => daemon.take_over(),
            _ => _ = daemon.ask(&json!({ "method": "reload" })),
        }
    }
    // It ends with the client.
    drop(a);
    eventually("the port is free", || stat(&daemon, "a").get("client").is_none());
    let mut a = attach(&daemon.socket(), "a");
    assert_unlimited(&daemon, || exchange(&mut a, 1, &mut b, 1000, 60));
}

#[test]
fn full_ring_that_waits_for_its_rate_loses_nothing_and_blocks_no_other_port() {
    let daemon = lan(1500, ["", "", ""]);
    let [mut a, mut c] = ["a", "c"].map(|port| attach(&daemon.socket(), port));
    // Room for what comes at once in the end.
    let mut b = Port::attach(&daemon.socket(), &AttachOptions { depth: 256, ..options("b") }).expect("attached");
    let client = client_of(&daemon, "a");
    set_limit(&daemon, &json!({ "client": client, "iops": 1 }));
    exchange(&mut a, 1, &mut b, 1, 60);
    let mut published = 0;
    let full = loop {
        match a.send(&frame(mac(1), mac(2), 200, published)) {
            Ok(()) => published += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, Error::Full) && published >= 63, "{full:?} after {published}");
    eventually("it waits for its rate", || limit_of(&daemon, "client", client)["throttled"].as_u64() > Some(0));
    let sent = || stat(&daemon, "a")["sent"].as_u64().expect("a count");
    let mut passed = 0;
    for seed in 0..1000 {
        c.send(&frame(mac(3), mac(2), 60, seed)).expect("sent");
        let mut received = next(&mut b);
        // On a slow machine the rate lets some pass meanwhile.
        while received == frame(mac(1), mac(2), 200, passed) {
            passed += 1;
            received = next(&mut b);
        }
        assert_eq!(received, frame(mac(3), mac(2), 60, seed));
    }
    all_sent(&mut c);
    assert!(sent() < published, "the other port overtook what was published before");
    set_limit(&daemon, &json!({ "client": client, "iops": "off" }));
    for seed in passed..published {
        assert_eq!(next(&mut b), frame(mac(1), mac(2), 200, seed));
    }
    all_sent(&mut a);
    assert_eq!((a.refused(), sent(), &stat(&daemon, "b")["dropped"]), ((0, None), published + 1, &0.into()));
}

#[test]
fn limit_of_a_user_holds_for_all_its_ports_and_names_their_clients() {
    let daemon = lan(1500, ["", "", ""]);
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|port| attach(&daemon.socket(), port));
    let user = rustix::process::getuid().as_raw();
    set_limit(&daemon, &json!({ "user": user, "iops": 1000, "burst_ms": 10 }));
    assert_limited(200, 1000, (10, 1), || {
        exchange(&mut a, 1, &mut b, 100, 60);
        exchange(&mut c, 3, &mut b, 100, 60);
    });
    let of_user = limit_of(&daemon, "user", user);
    let clients = ["a", "b", "c"].map(|port| client_of(&daemon, port));
    assert_eq!(of_user["clients"], json!(clients));
    assert!(of_user["throttled"].as_u64() > Some(0), "{of_user}");
}

#[test]
fn rates_of_a_port_are_configured_set_and_kept_and_apply_to_whatever_has_it() {
    let text = "[[network]]\nname = \"lan\"\n[[network.port]]\nname = \"a\"\nmac = \"02:00:00:00:00:01\"\niops = 1000\nburst = \"5ms\"\n\
                [[network.port]]\nname = \"b\"\nmac = \"02:00:00:00:00:02\"\n";
    let mut daemon = with_file(text);
    let mut b = attach(&daemon.socket(), "b");
    // What its client has used counts for the next one.
    assert_limited(100, 1000, (5, 1), || {
        for _ in 0..4 {
            exchange(&mut attach(&daemon.socket(), "a"), 1, &mut b, 25, 60);
            eventually("the port is free", || stat(&daemon, "a").get("client").is_none());
        }
    });
    assert!(stat(&daemon, "a")["throttled"].as_u64() > Some(0));
    let mut a = attach(&daemon.socket(), "a");
    assert_eq!(limit_of(&daemon, "port", "lan/b"), Value::Null, "not limited, not listed");
    // A reload changes them at once, and nothing needs a restart for that.
    daemon.dir.configure(&text.replace("iops = 1000", "iops = 2000"));
    let outcome = daemon.ask(&json!({ "method": "reload" }));
    assert_eq!((&outcome["changed"], &outcome["needs_restart"]), (&json!(["port 'lan/a'"]), &json!([])));
    assert_limited(200, 2000, (10, 1), || exchange(&mut a, 1, &mut b, 200, 60));
    // Bytes of frames, however short: 64 of them are a block of 4096.
    let set = set_limit(&daemon, &json!({ "port": "lan/a", "iops": "off", "bytes_per_second": 1 << 20, "burst_ms": 10 }));
    assert_eq!(
        (rates_of(&set), &set["clients"]),
        ([&Value::Null, &json!(1 << 20), &json!(10)], &json!([client_of(&daemon, "a")]))
    );
    let burst = (1 << 20) / 100;
    assert_limited(100 * 1500, 1 << 20, (burst, 2 * 1500), || exchange(&mut a, 1, &mut b, 100, 1500));
    for _ in 0..2 {
        daemon.take_over();
        assert_eq!(daemon.ask(&json!({ "method": "reload" }))["changed"], json!([]));
        assert_eq!(rates_of(&limit_of(&daemon, "port", "lan/a")), [&Value::Null, &json!(1 << 20), &json!(10)]);
        assert_limited(50 * 1500, 1 << 20, (burst, 2 * 1500), || exchange(&mut a, 1, &mut b, 50, 1500));
    }
    let dump = daemon.ask(&json!({ "method": "config.dump" }))["toml"].as_str().expect("a text").to_owned();
    assert_says(&dump, &["bytes_per_second = 1048576\n", "burst = \"10ms\"\n"]);
    set_limit(&daemon, &json!({ "port": "lan/a", "bytes_per_second": "off" }));
    assert_unlimited(&daemon, || exchange(&mut a, 1, &mut b, 1000, 1500));
}

#[test]
fn every_port_of_a_group_of_virtual_machines_is_a_member() {
    let dir = Scratch::new();
    let text = "[[network]]\nname = \"lan\"\n[[network.port]]\nname = \"vm\"\nvhost_user = \"{dir}/vm\"\n\
                [[network.port]]\nname = \"b\"\n[[group]]\nname = \"vms\"\niops = 1000\nmachines = [\"lan/vm\"]\n";
    for (wrong, pieces) in [
        ("lan/b", ["no port 'lan/b' with vhost_user is defined", "there are: lan/vm"]),
        ("vm", ["no disk 'vm' is defined", "there is none"]),
    ] {
        dir.configure(&text.replace("[\"lan/vm\"]", &format!("[\"{wrong}\"]")));
        assert_says(&refused_in(&dir, &[], &["--config", "{dir}/f.toml"]), &pieces);
    }
    let daemon = with_file(text);
    assert_eq!(limit_of(&daemon, "group", "vms")["iops"], 1000);
    let dump = daemon.ask(&json!({ "method": "config.dump" }))["toml"].as_str().expect("a text").to_owned();
    assert_says(&dump, &["machines = [\"lan/vm\"]"]);
}

#[test]
fn what_cannot_be_a_limit_of_a_port_is_refused_with_what_to_write() {
    let dir = Scratch::new();
    let of_port = |keys: &str| format!("[[network]]\nname = \"lan\"\n[[network.port]]\nname = \"a\"\n{keys}\n");
    for (keys, pieces) in [
        ("iops = 0", &["line 5", "port 'a': ", "iops: 0 is not possible"][..]),
        ("burst = \"10ms\"", &["port 'a': ", "a burst belongs to iops or bytes_per_second"]),
        ("weight = 5", &["unknown key 'weight'"]),
    ] {
        dir.configure(&of_port(keys));
        assert_says(&refused_in(&dir, &[], &["--config", "{dir}/f.toml"]), pieces);
    }
    let daemon = with_file(&of_port(""));
    let port = Port::attach(&daemon.socket(), &options("a")).expect("attached");
    let client = client_of(&daemon, "a");
    for (wrong, pieces) in [
        (json!({ "port": "lan/z", "iops": 5 }), ["no port 'lan/z' here", "fipsee net stat"]),
        (json!({ "port": "lan/a", "weight": 5 }), ["a port has no weight", "name a user"]),
        (json!({ "port": "lan/a", "dedicated": true }), ["a port has no worker of its own", "a client"]),
        (json!({ "port": "lan/a", "iops": 50, "burst_ms": 10 }), ["less than one request", "write at least 20 ms"]),
        (json!({ "client": client, "dedicated": true }), ["has port 'lan/a'", "one worker serves all ports of a network"]),
        (json!({ "client": 99, "iops": 5 }), ["no client 99 is attached", "fipsee net info"]),
    ] {
        assert_says(daemon.admin(&limit_request(&wrong))["error"].as_str().expect("refused"), &pieces);
    }
    drop(port);
    assert_eq!(limit_of(&daemon, "port", "lan/a"), Value::Null);
    let mut alone = attach(&daemon.socket(), "a");
    assert_nothing(&mut alone);
}
