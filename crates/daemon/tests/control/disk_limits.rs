//! Limits that a disk has of its own: configured, set at run time, kept, and in force for programs and virtual machines.

use fipsee_block::client::AttachOptions;
use fipsee_ring::control::RefusalCode;
use fipsee_testkit::guest::device::Options;
use fipsee_testkit::guest::machine::{query, socket_of, start_guest, start_with};
use fipsee_testkit::hypervisor::{GET_QUEUE_NUM, Hypervisor, Ram};
use fipsee_testkit::{CorrectClient, Daemon, Scratch, assert_says, eventually, refusal_of, refused_in};
use serde_json::{Value, json};

const DISK: &str = "[[disk]]\nname = \"a\"\nspec = \"memory:1M\"\n";

#[track_caller]
fn set(daemon: &Daemon, limits: &Value) -> Value {
    let mut request = json!({ "method": "disk.set", "disk": "a" });
    request.as_object_mut().expect("an object").extend(limits.as_object().expect("an object").clone());
    daemon.ask(&request)
}

#[track_caller]
fn refused(daemon: &Daemon, request: &Value) -> String {
    let answer = daemon.admin(request);
    answer["error"].as_str().unwrap_or_else(|| panic!("{request}: {answer}")).to_owned()
}

fn own_limits(daemon: &Daemon) -> Value {
    daemon.ask(&json!({ "method": "disk.info", "disk": "a" }))["own_limits"].clone()
}

fn limits(clients: impl Into<Value>, queues: impl Into<Value>, depth: impl Into<Value>) -> Value {
    json!({ "max_clients": clients.into(), "max_queues": queues.into(), "max_depth": depth.into() })
}

/// What a client gets that wants eight queues of depth 200.
fn granted(daemon: &Daemon) -> (usize, usize) {
    let (_disk, queues) = daemon.attach(&AttachOptions { queue_count: 8, depth: 200, ..Daemon::options("a") }).expect("attached");
    (queues.len(), queues[0].depth())
}

#[test]
fn clients_beyond_the_limit_of_a_disk_are_refused_and_a_lower_one_ends_none() {
    let daemon = Daemon::with_file(&format!("{DISK}max_clients = 2\n{}", DISK.replace("\"a\"", "\"b\"")));
    let mut clients = vec![CorrectClient::new(&daemon, "a"), CorrectClient::new(&daemon, "a")];
    let text = refusal_of(daemon.attach(&Daemon::options("a")), RefusalCode::Limit);
    assert_says(&text, &["disk 'a' has its limit of 2 clients", "max_clients of the disk", "fipsee disk set a --max-clients"]);
    CorrectClient::new(&daemon, "b").check();
    set(&daemon, &json!({ "max_clients": 3 }));
    clients.push(CorrectClient::new(&daemon, "a"));
    set(&daemon, &json!({ "max_clients": 1 }));
    clients.iter_mut().for_each(CorrectClient::check);
    refusal_of(daemon.attach(&Daemon::options("a")), RefusalCode::Limit);
    clients.truncate(1);
    eventually("two are gone", || daemon.attached_count("a") == 1);
    refusal_of(daemon.attach(&Daemon::options("a")), RefusalCode::Limit);
    set(&daemon, &json!({ "max_clients": "off" }));
    clients.extend((0..4).map(|_| CorrectClient::new(&daemon, "a")));
    clients.iter_mut().for_each(CorrectClient::check);
}

#[test]
fn a_client_that_leaves_makes_room_for_one_that_waits() {
    let daemon = Daemon::start(&["--disk", "a=delay:20ms:memory:1M"]);
    set(&daemon, &json!({ "max_clients": 1 }));
    for _ in 0..10 {
        // Its request is still at the disk when it has hung up.
        let (disk, mut queue) = daemon.client(&Daemon::options("a"));
        queue.flush(1).expect("room");
        queue.submit();
        drop((disk, queue));
        drop(daemon.attach(&Daemon::options("a")).expect("there is room in a moment"));
        eventually("it is gone", || daemon.attached_count("a") == 0);
    }
}

#[test]
fn virtual_machines_count_and_get_queues_and_depth_within_the_limits() {
    let daemon = start_with(&["--disk", "a=memory:1M"]);
    let ram = Ram::new(1 << 20);
    let queues = || {
        let hypervisor = Hypervisor::connect(&socket_of(&daemon, "a"));
        hypervisor.negotiate(&ram);
        hypervisor.ask(GET_QUEUE_NUM, &[]).u64()
    };
    let gone = || eventually("the machine is gone", || daemon.attached_count("a") == 0);
    assert_eq!(queues(), 16);
    gone();
    set(&daemon, &limits(1, 3, 32));
    assert_eq!(queues(), 3);
    gone();
    let mut guest = start_guest(&daemon, "a", &Options::default());
    let offer = guest.ask(0, &query(0));
    assert_eq!((offer.max_queues, offer.max_depth), (3, 32));
    refusal_of(daemon.attach(&Daemon::options("a")), RefusalCode::Limit);
    drop(guest);
    gone();
    let mut client = CorrectClient::new(&daemon, "a");
    Hypervisor::connect(&socket_of(&daemon, "a")).assert_hung_up();
    let log = daemon.log();
    assert_says(&log, &["a hypervisor is refused", "disk 'a' has its limit of 1 clients"]);
    client.check();
}

#[test]
fn limits_survive_reloads_and_takeovers_and_are_gone_at_a_restart() {
    let file = format!("max_queues = 12\n{DISK}max_queues = 5\nmax_depth = 64\n");
    let mut daemon = Daemon::with_file(&file);
    assert_eq!((own_limits(&daemon), granted(&daemon)), (limits(Value::Null, 5, 64), (5, 64)));
    assert_says(&daemon.log(), &["max_queues=5", "max_depth=64"]);
    let info = set(&daemon, &json!({ "max_clients": 7, "max_depth": "off" }));
    assert_eq!((&info["limits"]["max_queues"], &info["limits"]["max_depth"]), (&json!(5), &json!(256)));
    daemon.ask(&json!({ "method": "disk.add", "spec": "b=memory:1M", "max_clients": 1 }));
    let mut client = CorrectClient::new(&daemon, "b");
    for round in 0..2 {
        assert_eq!((own_limits(&daemon), granted(&daemon)), (limits(7, 5, Value::Null), (5, 200)), "{round}");
        client.check();
        refusal_of(daemon.attach(&Daemon::options("b")), RefusalCode::Limit);
        daemon.take_over();
        assert_eq!(daemon.ask(&json!({ "method": "reload" }))["changed"], json!([]), "{round}");
    }
    let dump = daemon.ask(&json!({ "method": "config.dump" }))["toml"].as_str().expect("a text").to_owned();
    assert_says(&dump, &["max_clients = 7\nmax_queues = 5\n", "max_clients = 1\n"]);
    // The daemon's own limit is lowered below one that was set.
    daemon.dir.configure(&format!("max_queues = 4\nmax_clients = 6\n{DISK}"));
    daemon.ask(&json!({ "method": "reload" }));
    assert_eq!((own_limits(&daemon), granted(&daemon)), (limits(6, 4, Value::Null), (4, 200)));
    let dump = daemon.ask(&json!({ "method": "config.dump" }))["toml"].as_str().expect("a text").to_owned();
    std::fs::write(daemon.dir.path("dumped.toml"), dump).expect("a file");
    drop(client);
    daemon.signal_term();
    assert!(daemon.await_exit().success());
    daemon.restart_with("f.toml", "dumped.toml");
    assert_eq!(own_limits(&daemon), limits(6, 4, Value::Null));
    daemon.signal_term();
    assert!(daemon.await_exit().success());
    daemon.restart_with("dumped.toml", "f.toml");
    assert_eq!(own_limits(&daemon), limits(Value::Null, Value::Null, Value::Null));
}

#[test]
fn a_reload_changes_the_limits_of_a_disk_that_is_in_use() {
    let daemon = Daemon::with_file(DISK);
    let mut client = CorrectClient::new(&daemon, "a");
    daemon.dir.configure(&format!("{DISK}max_clients = 1\n"));
    assert_eq!(daemon.ask(&json!({ "method": "reload" }))["changed"], json!(["disk 'a'"]));
    refusal_of(daemon.attach(&Daemon::options("a")), RefusalCode::Limit);
    client.check();
}

#[test]
fn limits_of_0_and_above_the_daemons_are_refused() {
    let dir = Scratch::new();
    for (keys, pieces) in [
        ("max_clients = 0", &["line 4", "0 is not possible", "from 1 to"][..]),
        ("max_queues = 0", &["line 4", "0 is not possible", "from 1 to"]),
        ("max_depth = 0", &["line 4", "0 is not possible", "from 1 to"]),
        ("max_depth = \"64\"", &["line 4", "without quotes"]),
        ("max_queues = 17", &["disk 'a': max_queues 17", "above 16, which is the daemon's", "raise max_queues"]),
        ("max_depth = 257", &["disk 'a': max_depth 257", "above 256"]),
        ("max_clients = 4097", &["disk 'a': max_clients 4097", "above 4096"]),
    ] {
        dir.configure(&format!("{DISK}{keys}\n"));
        assert_says(&refused_in(&dir, &[], &["--config", "{dir}/f.toml"]), pieces);
    }
    let daemon = Daemon::with_file(DISK);
    for (limits, piece) in [
        (json!({ "max_queues": 17 }), "max_queues 17 of a disk is above 16"),
        (json!({ "max_queues": 0 }), "a limit is a number above 0, or \"off\""),
        (json!({ "max_depth": "none" }), "a limit is a number above 0, or \"off\""),
        (json!({}), "nothing is set"),
    ] {
        let mut request = json!({ "method": "disk.set", "disk": "a" });
        request.as_object_mut().expect("an object").extend(limits.as_object().expect("an object").clone());
        assert_says(&refused(&daemon, &request), &[piece]);
    }
    assert_says(
        &refused(&daemon, &json!({ "method": "disk.add", "spec": "b=null:1M", "max_depth": 1000 })),
        &["max_depth 1000 of a disk is above 256"],
    );
    assert_eq!(own_limits(&daemon), limits(Value::Null, Value::Null, Value::Null));
}
