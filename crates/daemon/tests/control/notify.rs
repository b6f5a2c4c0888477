//! Notification policies: set for a disk or a client, shown, kept by reloads and takeovers, and kept to.

use std::time::Instant;

use fipsee_block::client::AttachOptions;
use fipsee_block::wire::Status;
use fipsee_ring::wait::WaitMode;
use fipsee_testkit::{CorrectClient, Daemon, TIMEOUT, assert_says, finish_one};
use serde_json::{Value, json};

const CONFIGURED: &str = "[[disk]]\nname = \"a\"\nspec = \"memory:1M\"\nnotify = { max_rate = 2000, max_delay = \"50us\" }\n\
                          [[disk]]\nname = \"b\"\nspec = \"memory:1M\"\n";

fn set(daemon: &Daemon, params: &Value) -> Value {
    let mut request = params.clone();
    request["method"] = "notify.set".into();
    daemon.ask(&request)
}

fn info(daemon: &Daemon, disk: &str) -> Value {
    daemon.ask(&json!({ "method": "disk.info", "disk": disk }))
}

/// Rate, completions, delay.
fn policy(of: &Value) -> [Value; 3] {
    ["max_rate", "min_completions", "max_delay_us"].map(|key| of["notify"][key].clone())
}

#[test]
fn policy_is_set_and_shown_for_a_disk_and_for_one_client_and_survives_reload_and_takeover() {
    let mut daemon = Daemon::with_file(CONFIGURED);
    assert_eq!(policy(&info(&daemon, "a")), [json!(2000), Value::Null, json!(50)]);
    let mut clients = ["a", "b", "b"].map(|disk| CorrectClient::new(&daemon, disk));
    let set_b = set(&daemon, &json!({ "disk": "b", "min_completions": 8 }));
    assert_eq!(policy(&set_b["clients"][1]), [Value::Null, json!(8), Value::Null]);
    let second = set_b["clients"][1]["client"].clone();
    set(&daemon, &json!({ "disk": "b", "client": second, "auto": true, "max_rate": 70 }));
    let mut check = |daemon: &Daemon, when: &str| {
        let b = info(daemon, "b");
        assert_eq!(policy(&b), [Value::Null, json!(8), Value::Null], "{when}");
        assert_eq!(policy(&b["clients"][0]), policy(&b), "{when}");
        assert_eq!(
            (&b["clients"][1]["notify"]["auto"], &b["clients"][1]["notify"]["max_rate"]),
            (&json!(true), &json!(70)),
            "{when}"
        );
        assert_eq!(policy(&info(daemon, "a")["clients"][0]), [json!(2000), Value::Null, json!(50)], "{when}");
        let dump = daemon.ask(&json!({ "method": "config.dump" }));
        let text = dump["toml"].as_str().expect("a text");
        assert_says(text, &["notify = { max_rate = 2000, max_delay = \"50us\" }", "notify = { min_completions = 8 }"]);
        clients.iter_mut().for_each(CorrectClient::check);
    };
    check(&daemon, "at first");
    assert_eq!(daemon.ask(&json!({ "method": "reload" }))["changed"], json!([]));
    check(&daemon, "after a reload");
    daemon.take_over();
    check(&daemon, "after a takeover");
    drop(CorrectClient::new(&daemon, "b"));
    // The file is changed: disk a follows it, and of b what was set stays.
    daemon.dir.configure(
        &CONFIGURED.replace("max_rate = 2000, ", "").replace("name = \"b\"", "name = \"b\"\nnotify = { auto = true }"),
    );
    assert_eq!(daemon.ask(&json!({ "method": "reload" }))["changed"], json!(["disk 'a'"]));
    assert_eq!(policy(&info(&daemon, "a")["clients"][0]), [Value::Null, Value::Null, json!(50)]);
    assert_eq!(info(&daemon, "b")["notify"]["auto"], false);
    // What is set for the disk is in force for every client.
    let off = set(&daemon, &json!({ "disk": "b", "off": true }));
    assert_eq!((&off["notify"], &off["clients"][1]["notify"]), (&Value::Null, &Value::Null));
    clients.iter_mut().for_each(CorrectClient::check);
}

#[test]
fn impossible_policies_are_refused_and_change_nothing() {
    let daemon = Daemon::with_file(CONFIGURED);
    let refused = |params: Value, pieces: &[&str]| {
        let mut request = params;
        request["method"] = "notify.set".into();
        let answer = daemon.admin(&request);
        assert_says(answer["error"].as_str().unwrap_or_else(|| panic!("{request}: {answer}")), pieces);
    };
    refused(json!({ "disk": "a" }), &["nothing is set", "name a maximum rate"]);
    refused(json!({ "disk": "a", "max_rate": 0 }), &["a maximum rate of 0 is not possible", "use 1 to 10000000"]);
    refused(json!({ "disk": "a", "max_rate": 10_000_001 }), &["use 1 to 10000000"]);
    refused(json!({ "disk": "a", "min_completions": 0 }), &["use 1 to 4096"]);
    refused(json!({ "disk": "a", "max_delay_us": 0 }), &["use 1 us to 1 s"]);
    refused(json!({ "disk": "a", "max_delay_us": 1_000_001 }), &["use 1 us to 1 s"]);
    refused(json!({ "disk": "a", "auto": true, "min_completions": 4 }), &["leave out"]);
    refused(json!({ "disk": "a", "off": true, "max_rate": 9, "auto": true }), &["off contradicts max_rate, auto; leave"]);
    refused(json!({ "disk": "a", "client": 77, "off": true }), &["has no client 77", "fipsee info a"]);
    refused(json!({ "disk": "z", "off": true }), &["no disk 'z'"]);
    assert_eq!(policy(&info(&daemon, "a")), [json!(2000), Value::Null, json!(50)]);
    daemon.dir.configure(&CONFIGURED.replace("max_rate = 2000", "max_rate = 0"));
    let answer = daemon.admin(&json!({ "method": "reload" }));
    assert_says(answer["error"].as_str().expect("refused"), &["line 4", "notify", "use 1 to 10000000"]);
}

/// A client that sleeps for every answer, at a rate of notifications far below what it could have.
///
/// checks: R-2.4-7, R-2.4-8
#[test]
fn sleeping_client_gets_no_more_notifications_than_the_rate_and_every_answer() {
    const RATE: u64 = 500;
    let mut daemon = Daemon::with_file(CONFIGURED);
    let (disk, mut queue) = daemon.client(&AttachOptions { wait: WaitMode::Sleep, ..Daemon::options("b") });
    let buffer = disk.allocate(4096).expect("a pool");
    let mut request = |daemon: &Daemon, times: u32| {
        for _ in 0..times {
            queue.read(0, buffer.segment(0, 4096), 1).expect("room");
            assert_eq!(finish_one(&mut queue), Status::Ok);
        }
        let stat = daemon.ask(&json!({ "method": "stat" }));
        let of_queue = |key: &str| stat["queues"][0][key].as_u64().expect("a count");
        (of_queue("doorbells"), of_queue("suppressed"), of_queue("reads"))
    };
    let free = request(&daemon, 100);
    set(&daemon, &json!({ "disk": "b", "max_rate": RATE }));
    let (started, before) = (Instant::now(), request(&daemon, 1));
    // How many times it has to wait depends on the machine; in the end it has to.
    let mut after = request(&daemon, 200);
    while after.1 == before.1 && started.elapsed() < TIMEOUT {
        after = request(&daemon, 200);
    }
    let most = u64::try_from(started.elapsed().as_micros()).expect("short") * RATE / 1_000_000 + 1;
    assert!(after.0 - free.0 <= most + 1, "{} notifications, at most {most}", after.0 - free.0);
    assert!(after.1 > before.1, "some had to wait");
    // The counters and the policy go on in another process, and without a policy nothing waits.
    daemon.take_over();
    assert_eq!(request(&daemon, 1).2, after.2 + 1);
    set(&daemon, &json!({ "disk": "b", "off": true }));
    let off = request(&daemon, 1);
    assert_eq!(request(&daemon, 100).1, off.1);
    drop(disk);
}
