//! The admin socket: JSON-RPC 2.0, one object per line; many connections at a time, none of which waits for another.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use fipsee_daemon::admin::admin_path;
use fipsee_testkit::daemon::json_rpc;
use fipsee_testkit::takeover::FakeNew;
use fipsee_testkit::{CorrectClient, Daemon, Scratch, TIMEOUT, assert_says, eventually};
use rustix::process::Signal;
use serde_json::{Value, json};

/// The daemon closes a connection that is silent for 10 s: no test here takes so long.
fn connect(daemon: &Daemon) -> UnixStream {
    let stream = UnixStream::connect(admin_path(&daemon.socket())).expect("an admin socket");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a time");
    stream
}

fn next(reader: &mut impl BufRead) -> Value {
    let mut line = String::new();
    assert!(reader.read_line(&mut line).expect("it answers") > 0, "it has hung up");
    serde_json::from_str(&line).expect("JSON")
}

/// The answer to a line that is sent as it is.
fn answer_to(daemon: &Daemon, line: &[u8]) -> Value {
    let mut stream = connect(daemon);
    stream.write_all(line).expect("it reads");
    stream.shutdown(Shutdown::Write).expect("open");
    next(&mut BufReader::new(stream))
}

fn start() -> Daemon {
    Daemon::start(&["--disk", "a=memory:1M", "--disk", "b=null:1M"])
}

#[test]
fn answers_have_the_id_of_their_request_and_come_in_order() {
    let daemon = start();
    let mut stream = connect(&daemon);
    let mut lines = String::new();
    for id in [json!(7), json!("x"), json!(-1.5), json!(null)] {
        lines += &format!("{}\n", json!({ "jsonrpc": "2.0", "id": id, "method": "disk.list" }));
        // Nothing answers a notification, and nothing is done for it.
        lines += "{\"jsonrpc\":\"2.0\",\"method\":\"disk.remove\",\"params\":{\"disk\":\"b\"}}\n";
    }
    stream.write_all(lines.as_bytes()).expect("it reads");
    let mut reader = BufReader::new(stream);
    for id in [json!(7), json!("x"), json!(-1.5), json!(null)] {
        let answer = next(&mut reader);
        assert_eq!((&answer["jsonrpc"], &answer["id"]), (&json!("2.0"), &id), "{answer}");
        assert_eq!(answer["result"]["disks"].as_array().map(Vec::len), Some(2), "{answer}");
    }
}

#[test]
fn wrong_requests_get_the_codes_of_json_rpc() {
    let daemon = start();
    let long = format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"{}\"}}\n", "x".repeat(20_000));
    for (line, code, pieces) in [
        ("garbage\n", -32700, &["cannot understand the request"][..]),
        ("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"stat\"", -32700, &["EOF"]),
        ("[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"stat\"}]\n", -32600, &["batches", "a line of its own"]),
        ("{\"jsonrpc\":\"1.0\",\"id\":1,\"method\":\"stat\"}\n", -32600, &["\"2.0\""]),
        (&long, -32600, &["at most 16384 bytes"]),
        ("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"disk.eject\"}\n", -32601, &["disk.eject", "rpc.discover"]),
        (
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"disk.info\",\"params\":{\"name\":\"a\"}}\n",
            -32602,
            &["unknown field `name`"],
        ),
        ("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"disk.info\",\"params\":[\"a\"]}\n", -32602, &["by name"]),
        ("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"disk.info\",\"params\":{\"disk\":\"z\"}}\n", -32000, &["no disk 'z'"]),
    ] {
        let answer = answer_to(&daemon, line.as_bytes());
        assert_eq!(answer["error"]["code"], code, "{answer}");
        assert_says(answer["error"]["message"].as_str().expect("a text"), pieces);
    }
    // Without the line feed, too.
    assert!(answer_to(&daemon, b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"stat\"}")["result"].is_object());
    // A wrong line does not end its connection.
    let mut stream = connect(&daemon);
    stream.write_all(format!("\n{}", json_rpc(&json!({ "method": "stat" }))).as_bytes()).expect("it reads");
    let mut reader = BufReader::new(stream);
    assert_eq!(next(&mut reader)["error"]["code"], -32700);
    assert!(next(&mut reader)["result"]["uptime_s"].is_u64());
}

#[test]
fn program_of_an_earlier_version_gets_an_error_in_its_own_form() {
    let answer = answer_to(&start(), b"{\"request\":\"list\"}\n");
    assert_says(answer["error"].as_str().expect("a text"), &["JSON-RPC 2.0", "use fipsee of the daemon's version"]);
}

#[test]
fn the_schema_can_be_asked_for() {
    let document = start().admin(&json!({ "method": "rpc.discover" }));
    assert_eq!(document["openrpc"], "1.3.2");
    assert!(document["info"]["version"].is_string());
    let methods = document["methods"].as_array().expect("a list");
    let add = methods.iter().find(|method| method["name"] == "disk.add").expect("the method");
    let spec = add["params"].as_array().expect("a list").iter().find(|param| param["name"] == "spec").expect("a parameter");
    assert_eq!((&spec["required"], &spec["schema"]["type"]), (&json!(true), &json!("string")));
}

#[test]
fn silent_connections_and_slow_readers_hold_up_no_other() {
    let daemon = start();
    let _silent: Vec<UnixStream> = (0..30).map(|_| connect(&daemon)).collect();
    // One that asks and reads nothing: its answers fill the socket, and its thread waits.
    let mut slow = connect(&daemon);
    slow.set_nonblocking(true).expect("a socket");
    let ask = json_rpc(&json!({ "method": "rpc.discover" }));
    let deadline = Instant::now() + TIMEOUT;
    while slow.write_all(ask.as_bytes()).is_ok() {
        assert!(Instant::now() < deadline, "its requests are read, although it reads no answers");
    }
    let mut half = connect(&daemon);
    half.write_all(b"{\"jsonrpc\":").expect("it reads");
    for _ in 0..20 {
        assert_eq!(daemon.admin(&json!({ "method": "disk.list" }))["disks"].as_array().map(Vec::len), Some(2));
    }
    half.write_all(b"\"2.0\",\"id\":1,\"method\":\"stat\"}\n").expect("it reads");
    assert!(next(&mut BufReader::new(half))["result"].is_object());
}

#[test]
fn requests_of_many_connections_at_once_are_carried_out_one_by_one() {
    let daemon = start();
    let daemon = &daemon;
    let change = |number: usize| {
        let name = format!("n{number}");
        for _ in 0..20 {
            let added = daemon.admin(&json!({ "method": "disk.add", "spec": format!("{name}=null:1M") }));
            assert_eq!(added["disk"], name.as_str(), "{added}");
            let removed = daemon.admin(&json!({ "method": "disk.remove", "disk": name }));
            assert_eq!(removed["disk"], name.as_str(), "{removed}");
        }
    };
    std::thread::scope(|scope| (0..8).for_each(|number| drop(scope.spawn(move || change(number)))));
    assert_eq!(daemon.admin(&json!({ "method": "disk.list" }))["disks"].as_array().map(Vec::len), Some(2));
}

#[test]
fn connections_have_a_limit_and_say_so() {
    let daemon = start();
    let open: Vec<UnixStream> = (0..64).map(|_| connect(&daemon)).collect();
    let mut text = String::new();
    let _ = connect(&daemon).read_to_string(&mut text);
    assert_says(&text, &["-32000", "64 connections to the admin socket are open"]);
    drop(open);
    eventually("there is room again", || {
        daemon.try_admin(&json!({ "method": "stat" })).is_ok_and(|answer| answer["uptime_s"].is_u64())
    });
}

#[test]
fn descriptors_that_were_not_asked_for_are_closed() {
    let daemon = start();
    daemon.admin(&json!({ "method": "stat" }));
    let before = daemon.fd_count();
    let stream = connect(&daemon);
    let file = std::fs::File::open("/dev/null").expect("there");
    let line = json_rpc(&json!({ "method": "stat" }));
    let mut reader = BufReader::new(stream.try_clone().expect("a descriptor"));
    let send = |text: &str| fipsee_daemon::admin::send(&stream, text.as_bytes(), &[std::os::fd::AsFd::as_fd(&file)]);
    for _ in 0..20 {
        send(&line).expect("it reads");
        assert!(next(&mut reader)["result"].is_object());
    }
    eventually("only the connection is open", || daemon.fd_count() == before + 1);
    // More than it keeps for a request: it hangs up.
    while send(" ").is_ok() {}
    assert!(!reader.read_line(&mut String::new()).is_ok_and(|length| length > 0));
    drop((stream, reader));
    eventually("every descriptor is closed", || daemon.fd_count() == before);
}

#[test]
fn requests_during_a_takeover_are_answered_once_it_is_over() {
    let daemon = start();
    let mut correct_client = CorrectClient::new(&daemon, "a");
    let mut open = connect(&daemon);
    let mut reader = BufReader::new(open.try_clone().expect("a descriptor"));
    open.write_all(json_rpc(&json!({ "method": "stat" })).as_bytes()).expect("it reads");
    next(&mut reader);
    let fake = FakeNew::connect(&daemon);
    // An open connection gets a refusal, a new one waits for whichever daemon serves afterwards.
    open.write_all(json_rpc(&json!({ "method": "stat" })).as_bytes()).expect("it reads");
    let answer = next(&mut reader);
    assert_says(answer["error"]["message"].as_str().expect("refused"), &["another daemon is taking over"]);
    let mut waiting = connect(&daemon);
    waiting.write_all(json_rpc(&json!({ "method": "stat" })).as_bytes()).expect("it reads");
    drop(fake);
    assert!(next(&mut BufReader::new(waiting))["result"].is_object());
    open.write_all(json_rpc(&json!({ "method": "stat" })).as_bytes()).expect("it reads");
    assert!(next(&mut reader)["result"].is_object());
    correct_client.check();
}

#[test]
fn daemon_ends_although_a_takeover_is_under_way_and_a_reload_waits_for_it() {
    let dir = Scratch::new();
    std::fs::write(dir.path("f.toml"), "[[disk]]\nname = \"a\"\nspec = \"memory:1M\"\n").expect("a file");
    let mut daemon = Daemon::start_in(dir, &[], &["--config", "{dir}/f.toml"]);
    let _silent = connect(&daemon);
    let _fake = FakeNew::connect(&daemon);
    daemon.signal(Signal::HUP);
    daemon.signal_term();
    assert!(daemon.await_exit().success(), "{}", daemon.log());
    assert!(!admin_path(&daemon.socket()).exists());
}
