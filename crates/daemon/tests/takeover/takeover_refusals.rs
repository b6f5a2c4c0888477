//! A takeover that either side refuses, or that a faulty peer breaks: the reason is reported, and the old daemon goes on.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::time::{Duration, Instant};

use fipsee_testkit::daemon::program;
use fipsee_testkit::load::Load;
use fipsee_testkit::takeover::between::forward;
use fipsee_testkit::takeover::{FakeNew, takeover_request};
use fipsee_testkit::{CorrectClient, Daemon, Scratch, TIMEOUT, as_user, assert_says, eventually, is_root, refused_in, skip};

const DISKS: [&str; 4] = ["--disk", "m=memory:16M", "--disk", "f=file:{dir}/disk,size=16M"];

/// The error of a new daemon with these arguments. The old one goes on with its clients.
#[track_caller]
fn refusal(daemon: &Daemon, correct_client: &mut CorrectClient, arguments: &[&str]) -> String {
    let arguments: Vec<&str> = ["--takeover"].iter().chain(arguments).copied().collect();
    let text = refused_in(&daemon.dir, &[], &arguments);
    correct_client.check();
    CorrectClient::new(daemon, "f").check();
    text
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let daemon = Daemon::start(&DISKS);
    let mut correct_client = CorrectClient::new(&daemon, "m");
    let with = |disks: &[&str]| disks.iter().flat_map(|disk| ["--disk".to_owned(), (*disk).to_owned()]).collect::<Vec<_>>();
    std::fs::write(daemon.dir.path("other"), vec![0; 16 << 20]).expect("a file");
    let file = "f=file:{dir}/disk,size=16M";
    for (disks, pieces) in [
        (["m=memory:16M", "x=null:1M"], ["disk 'f'", "missing here"]),
        (["m=memory:8M", file], ["disk 'm'", "16777216 bytes in the running daemon and 8388608 here"]),
        (["m=memory:32M", file], ["disk 'm'", "16777216 bytes in the running daemon and 33554432 here"]),
        (["m=memory:16M,max=64M", file], ["disk 'm'", "leave its size, max= and huge as they are"]),
        (["m=memory:16M,block=4096", file], ["disk 'm'", "its block size would change from 512 to 4096"]),
        (["m=memory:16M,ro", file], ["disk 'm'", "what it can do"]),
        (["m=null:16M", file], ["disk 'm'", "of kind memory in the running daemon and null here"]),
        (["m=memory:16M", "f=file:{dir}/other"], ["disk 'f'", "not the file that the running daemon serves"]),
        (["m=memory:16M", "f=file:{dir}/none,size=16M"], ["disk 'f'", "cannot be looked at"]),
        (["m=memory:16M", "f=file:{dir}/disk,size=8M"], ["disk 'f'", "more than size=8388608"]),
        (["m=memory:16M", "f=file:{dir}/disk,ro"], ["disk 'f'", "as far as ro goes"]),
    ] {
        let arguments = with(&disks);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        assert_says(&refusal(&daemon, &mut correct_client, &arguments), &pieces);
    }
    let all = |more: &[&'static str]| DISKS.iter().chain(more).copied().collect::<Vec<_>>();
    let _second = CorrectClient::new(&daemon, "m");
    let text = refusal(&daemon, &mut correct_client, &all(&["--max-clients", "1"]));
    assert_says(&text, &["2 clients are connected and max_clients is 1 here"]);
    let text = refusal(&daemon, &mut correct_client, &all(&["--vhost-user", "m={dir}/vm"]));
    assert_says(&text, &["does not serve disk 'm' at", "/vm"]);
    // After all of this a takeover is still possible.
    let mut daemon = daemon;
    daemon.take_over();
    correct_client.check();
}

#[test]
fn there_must_be_a_daemon() {
    let text = refused_in(&Scratch::new(), &[], &["--takeover", "--disk", "m=memory:1M"]);
    assert_says(&text, &["no daemon to take over from at", "start without --takeover"]);
}

#[test]
fn another_user_is_told_who_may_take_over() {
    if !is_root() {
        return skip("takeover by another user", "only root can become another user");
    }
    let daemon = Daemon::start(&DISKS);
    // Where that user may start it from.
    let copy = daemon.dir.program("fipseed", program());
    let mut second = Command::new(copy);
    second.args(["--takeover", "--disk", "m=memory:16M", "--listen"]).arg(daemon.socket());
    let output = as_user(4000, &[], move || second.output()).expect("it can be started");
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_says(&text, &["this user may not open", "only root and the daemon's own user may take over"]);
    CorrectClient::new(&daemon, "m").check();
}

#[test]
fn memory_that_cannot_be_handed_over_is_named() {
    let daemon = Daemon::start(&["--disk", "m=memory:16M,thp"]);
    let mut correct_client = CorrectClient::new(&daemon, "m");
    let text = refused_in(&daemon.dir, &[], &["--takeover", "--disk", "m=memory:16M,thp"]);
    assert_says(&text, &["the running daemon refuses: disk 'm'", "cannot be handed over", "stop and start"]);
    correct_client.check();
}

#[test]
fn requests_that_a_disk_does_not_finish_in_time_stay_where_they_are() {
    let daemon = Daemon::start(&DISKS);
    let load = Load::start(&daemon, "f", 64);
    // With a timeout of zero, something is in flight now and then; the old daemon must go on.
    let mut refusals = 0;
    let deadline = Instant::now() + TIMEOUT;
    let mut daemon = daemon;
    while refusals < 3 && Instant::now() < deadline {
        load.await_progress();
        match daemon.try_take_over(&["--takeover-wait-ms", "0"]) {
            Ok(()) => {}
            Err(text) => {
                assert_says(&text, &["requests are still in flight at a disk after 0 ms", "--takeover-wait-ms"]);
                refusals += 1;
            }
        }
    }
    load.await_progress();
    load.finish();
}

#[test]
fn another_version_is_refused() {
    let daemon = Daemon::start(&DISKS);
    let answer = daemon.admin(&serde_json::json!({ "method": "takeover", "version": 99, "wait_ms": 100 }));
    assert_says(answer["error"].as_str().expect("refused"), &["hands over by version 10, and 99 is asked for"]);
    CorrectClient::new(&daemon, "m").check();
}

/// What a new daemon says when the running one answers so at its admin socket, with a line.
fn refusal_of_answer(answer: &'static [u8]) -> String {
    let dir = Scratch::new();
    let admin = UnixListener::bind(fipsee_daemon::admin::admin_path(&dir.path("s"))).expect("a free path");
    let old = std::thread::spawn(move || {
        let (stream, _) = admin.accept().expect("the new daemon comes");
        let mut request = String::new();
        BufReader::new(&stream).read_line(&mut request).expect("it asks");
        let (ours, line) = UnixStream::pair().expect("descriptors");
        forward(&stream.try_clone().expect("a descriptor").into(), answer, &[line.into()]);
        // The line is open until the new daemon has ended: what ends it is the answer.
        let _ = BufReader::new(&stream).read_line(&mut String::new());
        drop(ours);
        request
    });
    let text = refused_in(&dir, &[], &["--takeover", "--disk", "m=memory:1M"]);
    assert_says(&old.join().expect("it has answered"), &["\"method\":\"takeover\"", "\"version\":10"]);
    text
}

#[test]
fn an_old_daemon_of_another_version_is_named_by_the_new_one() {
    let newer = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"takeover\":11}}\n";
    let text = refusal_of_answer(newer);
    assert_says(&text, &["version 11", "takes over by version 10", "stop it and start this one without --takeover"]);
    // So says a daemon of version 11 that is asked for version 10.
    let refuses = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":-32000,\"message\":\"it hands over by version 11, and 10 is asked for; \
                    stop it and start the other\"}}\n";
    let text = refusal_of_answer(refuses);
    assert_says(&text, &["the running daemon refuses: it hands over by version 11", "stop it and start the other"]);
    // So says one before JSON-RPC.
    let text = refusal_of_answer(b"{\"error\":\"cannot understand the request: missing field `request` at line 1 column 80\"}\n");
    assert_says(&text, &["the running daemon is of an older version", "stop it and start this one without --takeover"]);
}

#[test]
fn a_daemon_before_json_rpc_that_asks_gets_an_error_that_it_prints() {
    let daemon = Daemon::start(&DISKS);
    let mut stream = UnixStream::connect(fipsee_daemon::admin::admin_path(&daemon.socket())).expect("an admin socket");
    stream.write_all(b"{\"request\":\"takeover\",\"version\":6,\"wait_ms\":1}\n").expect("it reads");
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).expect("it answers");
    let answer: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    assert_says(answer["error"].as_str().expect("a text, as it was then"), &["JSON-RPC 2.0", "stop it and start the new one"]);
    CorrectClient::new(&daemon, "m").check();
}

#[test]
fn only_root_and_the_daemons_user_may_ask() {
    if !is_root() {
        return skip("who may take over", "only root can be another user");
    }
    let daemon = Daemon::start(&DISKS);
    let admin = fipsee_daemon::admin::admin_path(&daemon.socket());
    // A user who may administer, as the group in the packages, may not do this.
    for path in [&daemon.dir.0, &admin] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).expect("ours");
    }
    let asked = std::thread::spawn(move || {
        let user = rustix::process::Uid::from_raw(65534);
        // For this thread alone: the kernel takes its credentials when it connects.
        rustix::thread::set_thread_res_uid(user, user, user).expect("root may");
        let mut stream = UnixStream::connect(&admin).expect("it listens");
        stream.write_all(takeover_request(1).as_bytes()).expect("it reads");
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).expect("it answers");
        answer
    });
    assert_says(&asked.join().expect("answered"), &["only root and user 0 may take over, not user 65534"]);
    CorrectClient::new(&daemon, "m").check();
}

/// Everything that the old daemon sends, up to the point where it waits for an answer.
fn receive_until(fake: &FakeNew, last: &str) -> Vec<OwnedFd> {
    let mut held = Vec::new();
    loop {
        let (packet, descriptors) = fake.receive().unwrap_or_else(|| panic!("it ended before {last}"));
        held.extend(descriptors);
        if packet["packet"] == last {
            return held;
        }
    }
}

#[test]
fn faulty_new_daemons_change_nothing() {
    let daemon = Daemon::start(&DISKS);
    let load = Load::start(&daemon, "m", 64);
    let other = Load::start(&daemon, "f", 8);
    let huge = vec![0xff; 60_000];
    let more = b"{\"packet\":\"taken\",\"but\":\"not all\"}";
    let junk: [&[u8]; 6] = [b"", b"garbage", b"{\"packet\":\"took\"}", b"{\"packet\":\"prepared\"", more, &huge];
    for junk in junk {
        let fake = FakeNew::connect(&daemon);
        let _held = receive_until(&fake, "prepare");
        fake.send(junk);
        assert_eq!(fake.last_packet().as_deref(), Some("refused"), "{}", daemon.log());
        load.await_progress();
        let fake = FakeNew::connect(&daemon);
        let _held = receive_until(&fake, "prepare");
        fake.send(b"{\"packet\":\"prepared\"}");
        let _clients = receive_until(&fake, "end");
        fake.send(junk);
        assert_eq!(fake.last_packet().as_deref(), Some("refused"), "{}", daemon.log());
        load.await_progress();
        other.await_progress();
    }
    // Answers that come too early or in place of others.
    for (before, word) in [("prepare", "taken"), ("end", "prepared")] {
        let fake = FakeNew::connect(&daemon);
        if before == "end" {
            let _held = receive_until(&fake, "prepare");
            fake.send(b"{\"packet\":\"prepared\"}");
        }
        let _held = receive_until(&fake, before);
        fake.send(format!("{{\"packet\":\"{word}\"}}").as_bytes());
        assert_eq!(fake.last_packet().as_deref(), Some("refused"), "{}", daemon.log());
        load.await_progress();
    }
    load.finish();
    other.finish();
}

#[test]
fn hang_up_at_any_step_changes_nothing() {
    let daemon = Daemon::start(&DISKS);
    let load = Load::start(&daemon, "f", 32);
    for steps in 0..20 {
        let fake = FakeNew::connect(&daemon);
        for _ in 0..steps {
            let Some((packet, _)) = fake.receive() else { break };
            match packet["packet"].as_str() {
                Some("prepare") => fake.send(b"{\"packet\":\"prepared\"}"),
                Some("end") => break,
                _ => {}
            }
        }
        drop(fake);
        load.await_progress();
    }
    load.finish();
    let mut daemon = daemon;
    daemon.take_over();
}

#[test]
fn silence_has_a_deadline_and_what_comes_late_is_ignored() {
    let daemon = Daemon::start(&DISKS);
    let load = Load::start(&daemon, "m", 16);
    let fake = FakeNew::connect(&daemon);
    let _held = receive_until(&fake, "prepare");
    fake.send(b"{\"packet\":\"prepared\"}");
    let _clients = receive_until(&fake, "end");
    // The new daemon has everything, and sends nothing.
    let (packet, _) = fake.receive().expect("the old daemon speaks first");
    assert_says(packet["reason"].as_str().expect("refused"), &["in time"]);
    load.await_progress();
    assert!(!fake.try_send(b"{\"packet\":\"taken\"}"), "too late: the send fails");
    load.await_progress();
    load.finish();
}

#[test]
fn silence_while_clients_are_served_costs_them_nothing() {
    let daemon = Daemon::start(&DISKS);
    let load = Load::start(&daemon, "m", 16);
    let fake = FakeNew::connect(&daemon);
    let before = Instant::now();
    eventually("the takeover is given up", || {
        load.await_progress();
        daemon.log().contains("not handed over")
    });
    assert!(before.elapsed() > Duration::from_secs(5), "the new daemon had its time");
    drop(fake);
    load.finish();
}
