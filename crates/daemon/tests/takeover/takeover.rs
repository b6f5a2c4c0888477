//! A new daemon takes over from a running one: no client sees an error, nothing is lost, nothing is done twice.

use std::convert::Infallible;

use fipsee_block::client::AttachOptions;
use fipsee_block::wire::Status;
use fipsee_ring::control::{Control, RefusalCode, VERSION};
use fipsee_ring::handshake::ask;
use fipsee_ring::seqpacket::Seqpacket;
use fipsee_testkit::load::Load;
use fipsee_testkit::takeover::pauses_us;
use fipsee_testkit::{CorrectClient, Daemon, Scratch, TIMEOUT, assert_says, eventually, finish_one, refusal_of, refused, stamp};
use serde_json::{Value, json};

/// checks: R-4.8-2
#[test]
fn clients_under_load_notice_nothing() {
    let mut daemon = Daemon::start(&["--disk", "m=memory:64M", "--disk", "f=file:{dir}/disk,size=64M", "--workers", "2"]);
    let loads = ["m", "f"].map(|disk| Load::start(&daemon, disk, 64));
    let rounds = std::env::var("FIPSEE_TAKEOVERS").ok().and_then(|count| count.parse().ok()).unwrap_or(20);
    for _ in 0..rounds {
        loads.iter().for_each(Load::await_progress);
        daemon.take_over();
    }
    loads.iter().for_each(Load::await_progress);
    loads.into_iter().for_each(|load| assert!(load.finish() > 0));
    let mut pauses = pauses_us(&daemon.log());
    assert_eq!(pauses.len(), rounds, "each is in the log: {}", daemon.log());
    pauses.sort_unstable();
    println!("{rounds} takeovers: the median pause is {} us, the longest {} us", pauses[rounds / 2], pauses[rounds - 1]);
}

const TWO_DISKS: &[&str] = &["--disk", "m=memory:16M,max=64M", "--disk", "f=file:{dir}/disk,size=16M"];

#[test]
fn content_size_and_numbers_of_a_memory_disk_survive() {
    let mut daemon = Daemon::start(TWO_DISKS);
    let mut client = daemon.blocking("m");
    client.write_at(&stamp(1 << 20, 7, 1), 1 << 20).expect("written");
    client.discard(1 << 20, 64 << 10).expect("discarded");
    let resized = daemon.admin(&json!({ "method": "disk.resize", "disk": "m", "size_bytes": 32 << 20 }));
    assert_eq!(resized["size_bytes"], 32 << 20);
    let before = daemon.admin(&json!({ "method": "stat" }))["queues"][0].clone();
    daemon.take_over();
    let after = daemon.admin(&json!({ "method": "stat" }))["queues"][0].clone();
    for name in ["disk", "client", "pid", "reads", "writes", "others", "written_bytes", "service_samples"] {
        assert_eq!(after[name], before[name], "{name}");
    }
    let mut expected = stamp(1 << 20, 7, 1);
    expected[..64 << 10].fill(0);
    let mut bytes = vec![0xff; 1 << 20];
    client.read_at(&mut bytes, 1 << 20).expect("read");
    assert!(bytes == expected, "the content is the same");
    // A new client finds the same content, at the present size.
    let mut late = daemon.blocking("m");
    assert_eq!(late.info().size_bytes(), 32 << 20);
    late.write_at(&stamp(4096, 9, 9), 31 << 20).expect("written");
    client.read_at(&mut bytes[..4096], 31 << 20).expect("within the size in its event");
    assert!(bytes[..4096] == stamp(4096, 9, 9));
    assert_eq!(daemon.attached_count("m"), 2);
    drop((client, late));
    eventually("both are gone", || daemon.attached_count("m") == 0);
}

#[test]
fn sleepers_are_woken_by_the_new_daemon_and_wake_it() {
    let mut daemon = Daemon::start(TWO_DISKS);
    let (disk, mut queue) = daemon.client(&Daemon::options("m"));
    let buffer = disk.allocate(4096).expect("a pool");
    let sleeps = |daemon: &Daemon| daemon.admin(&json!({ "method": "stat" }))["workers"][0]["sleeps"].as_u64().expect("a number");
    for round in 0..5_u64 {
        // Both sides sleep when the new daemon starts: the client waits for an event that only a resize causes.
        let size_bytes = (17 + round) << 20;
        let sleeper = std::thread::spawn(move || {
            let mut finished = 0;
            while queue.next_event().is_none() {
                finished += queue.wait_timeout(TIMEOUT, &mut |_| {}).expect("the daemon is there");
            }
            assert_eq!(finished, 0);
            queue
        });
        eventually("the old worker sleeps", || sleeps(&daemon) > 0);
        daemon.take_over();
        eventually("the new worker sleeps", || sleeps(&daemon) > 0);
        daemon.admin(&json!({ "method": "disk.resize", "disk": "m", "size_bytes": size_bytes }));
        queue = sleeper.join().expect("woken");
        queue.write(0, buffer.segment(0, 4096), false, round).expect("room");
        assert_eq!(finish_one(&mut queue), Status::Ok);
    }
}

/// checks: R-4.8-1, R-4.8-3
#[test]
fn memory_and_rights_of_clients_come_along() {
    let mut daemon = Daemon::start(&["--disk", "m=memory:16M", "--disk", "n=null:1M", "--workers", "3"]);
    let options = AttachOptions { queue_count: 4, exclusive: true, ..Daemon::options("m") };
    let (disk, mut queues) = daemon.attach(&options).expect("attached");
    let reader = AttachOptions { read_only: true, ..Daemon::options("n") };
    let (read_only, mut read_only_queue) = daemon.client(&reader);
    let memory = disk.create_memory(1 << 20).expect("registered");
    let gone = disk.create_memory(1 << 16).expect("registered");
    let own = memory.buffer(0, 1 << 20).expect("inside");
    let lost = gone.buffer(0, 4096).expect("inside");
    for round in 0..3_u64 {
        daemon.take_over();
        for (index, queue) in (0_u64..).zip(&mut queues) {
            own.fill(index * 4096, &stamp(4096, index, round));
            queue.write(index * 8, own.segment(index * 4096, 4096), false, 0).expect("room");
            assert_eq!(finish_one(queue), Status::Ok);
            own.fill(index * 4096, &[0; 4096]);
            queue.read(index * 8, own.segment(index * 4096, 4096), 0).expect("room");
            assert_eq!(finish_one(queue), Status::Ok);
            let mut bytes = vec![0; 4096];
            own.copy_to(index * 4096, &mut bytes);
            assert!(bytes == stamp(4096, index, round), "queue {index}");
        }
        assert_says(&refusal_of(daemon.attach(&Daemon::options("m")), RefusalCode::Busy), &["in use exclusively"]);
        let buffer = read_only.allocate(4096).expect("a pool");
        read_only_queue.write(0, buffer.segment(0, 4096), false, 0).expect("room");
        assert_eq!(finish_one(&mut read_only_queue), Status::ReadOnly, "its access mode is kept");
    }
    // The new daemon knows what was registered with the old one, and releases it.
    disk.unregister(&gone).expect("unregistered");
    queues[0].read(0, lost.segment(0, 4096), 0).expect("room");
    assert_eq!(finish_one(&mut queues[0]), Status::BadMemory);
    let again = disk.create_memory(1 << 16).expect("a free id");
    queues[0].read(0, again.buffer(0, 4096).expect("inside").segment(0, 4096), 0).expect("room");
    assert_eq!(finish_one(&mut queues[0]), Status::Ok);
    disk.detach(queues).expect("in order");
    eventually("the client is gone", || daemon.attached_count("m") == 0);
}

/// checks: R-4.8-4
#[test]
fn many_clients_and_unfinished_handshakes_come_along() {
    // One worker: each worker that serves a file disk has an io_uring, which is a descriptor.
    let mut daemon = Daemon::start(&["--disk", "m=memory:64M", "--disk", "f=file:{dir}/disk,size=64M"]);
    let mut correct_clients: Vec<CorrectClient> =
        (0..40).map(|index| CorrectClient::new(&daemon, if index % 2 == 0 { "m" } else { "f" })).collect();
    correct_clients.iter_mut().for_each(CorrectClient::check);
    let descriptors = daemon.fd_count();
    for _ in 0..3 {
        daemon.take_over();
        correct_clients.iter_mut().for_each(CorrectClient::check);
    }
    // WELCOME comes from another daemon than it connected to. If the machine stalls, its 5 s for HELLO may pass first: retry.
    let hello = Control::Hello { version_min: VERSION, version_max: VERSION, features: 0 };
    let mut silent = None;
    eventually("a silent connection is handed over", || {
        let connected = Seqpacket::connect(&daemon.socket()).expect("it listens");
        daemon.take_over();
        let answer = ask::<Infallible>(&connected, &hello, &[], "the greeting").map(|(answer, _)| answer);
        let is_greeted = matches!(answer, Ok(Control::Welcome { .. }));
        silent = is_greeted.then_some(connected);
        is_greeted
    });
    drop(silent);
    // An io_uring is created at the first request to a file.
    correct_clients.iter_mut().for_each(CorrectClient::check);
    // Descriptors that are handed over are closed with their client.
    eventually("as many descriptors as before", || daemon.fd_count() == descriptors);
    drop(correct_clients);
    eventually("all clients are gone", || daemon.attached_count("m") + daemon.attached_count("f") == 0);
    daemon.signal_term();
    assert!(daemon.await_exit().success());
    assert!(!daemon.socket().exists() && !daemon.dir.path("s.admin").exists(), "the last daemon removes what the first made");
}

#[test]
fn policy_of_notifications_that_was_switched_off_stays_off() {
    let dir = Scratch::new();
    let disk = |name| format!("[[disk]]\nname = \"{name}\"\nspec = \"memory:1M\"\nnotify = {{ max_rate = 2000 }}\n");
    std::fs::write(dir.path("f.toml"), disk("a") + &disk("b")).expect("a file");
    let mut daemon = Daemon::start_in(dir, &[], &["--config", "{dir}/f.toml"]);
    let _clients = ["a", "b"].map(|disk| CorrectClient::new(&daemon, disk));
    let policies = |daemon: &Daemon| {
        ["a", "b"].map(|disk| {
            let info = daemon.admin(&json!({ "method": "disk.info", "disk": disk }));
            let rate = |of: &Value| of["notify"]["max_rate"].clone();
            let clients = info["clients"].as_array().expect("a list");
            (rate(&info), clients.iter().map(|client| (client["client"].clone(), rate(client))).collect::<Vec<_>>())
        })
    };
    let set_off = |mut set: Value| {
        set["off"] = true.into();
        set["method"] = "notify.set".into();
        assert_eq!(daemon.admin(&set)["error"], Value::Null);
    };
    set_off(json!({ "disk": "a" }));
    // Of disk b, it is in force for later clients only.
    policies(&daemon)[1].1.iter().for_each(|(client, _)| set_off(json!({ "disk": "b", "client": client })));
    let before = policies(&daemon);
    assert!(before[0].0.is_null() && before[1].0 == 2000 && before[1].1.len() == 1, "{before:?}");
    assert!(before.iter().all(|(_, clients)| clients.iter().all(|(_, rate)| rate.is_null())), "{before:?}");
    for _ in 0..2 {
        daemon.take_over();
        assert_eq!(policies(&daemon), before);
    }
}

#[test]
fn a_file_is_locked_all_the_time() {
    let mut daemon = Daemon::start(TWO_DISKS);
    let _client = daemon.blocking("f");
    for _ in 0..3 {
        daemon.take_over();
        let text = refused(&["--disk", &format!("f=file:{}", daemon.dir.path("disk").display())]);
        assert_says(&text, &["is locked"]);
    }
}
