//! What is served is visible: descriptions of disks, the log, and totals that outlive clients.

use fipsee_block::client::AttachOptions;
use fipsee_testkit::{Daemon, Scratch, as_user, assert_says, eventually, is_root, skip};
use serde_json::{Value, json};

fn stat_of(daemon: &Daemon, disk: &str) -> Value {
    let stat = daemon.admin(&json!({ "method": "stat" }));
    let disks = stat["disks"].as_array().expect("a list");
    disks.iter().find(|described| described["disk"] == disk).expect("the disk").clone()
}

/// Of something counted.
fn counts(of: &Value) -> [u64; 6] {
    ["reads", "writes", "others", "errors", "read_bytes", "written_bytes"].map(|name| of[name].as_u64().expect("a number"))
}

#[test]
fn path_users_limits_and_wrapped_kinds_are_described_and_logged() {
    let dir = Scratch::new();
    let toml = "max_queues = 3\nmax_clients = 7\n\
        [[disk]]\nname = \"a\"\nspec = \"delay:1ms:error:every=1000000:file:{dir}/a.img,size=1M,direct=off\"\n\
        allow_uids = [4000]\nallow_gids = [6, 7]\n[[disk]]\nname = \"m\"\nspec = \"memory:1M\"\nallow_everyone = true\n";
    std::fs::write(dir.path("f.toml"), dir.fill(toml)).expect("a file");
    let daemon = Daemon::start_in(dir, &[], &["--config", "{dir}/f.toml"]);
    let info = |disk: &str| daemon.admin(&json!({ "method": "disk.info", "disk": disk }));
    let path = daemon.dir.path("a.img").display().to_string();
    let a = info("a");
    assert_eq!((&a["path"], &a["io"], &a["kinds"]), (&json!(path), &json!("cached"), &json!(["delay", "error", "file"])));
    assert_eq!(a["allow"], json!({ "everyone": false, "uids": [4000], "gids": [6, 7] }));
    assert_eq!((&a["limits"]["max_queues"], &a["limits"]["max_clients"]), (&json!(3), &json!(7)));
    for limit in ["max_depth", "max_pool_bytes", "max_memory_bytes"] {
        assert!(a["limits"][limit].as_u64().is_some_and(|value| value > 0), "{limit}: {a}");
    }
    let m = info("m");
    assert_eq!((&m["path"], &m["io"], &m["kinds"]), (&Value::Null, &Value::Null, &json!(["memory"])));
    assert_eq!(m["allow"]["everyone"], json!(true));
    let log = daemon.log();
    let line = log.lines().find(|line| line.contains("opened") && line.contains("disk=\"a\"")).expect("a line about it");
    assert_says(line, &["kind=\"delay:error:file\"", &format!("path=\"{path}\""), "io=\"cached\"", "allow_everyone=false"]);
    assert_says(line, &["allow_uids=[4000]", "allow_gids=[6, 7]"]);
}

#[test]
fn totals_of_disks_users_and_clients_outlive_the_clients() {
    let daemon = Daemon::start(&["--disk", "a=memory:1M", "--disk", "b=memory:1M"]);
    assert_eq!(counts(&stat_of(&daemon, "a")["totals"]), [0; 6]);
    let work = |queue_count: u16| {
        let options = AttachOptions { queue_count, ..Daemon::options("a") };
        let (disk, mut queues) = daemon.attach(&options).expect("attached");
        for queue in &mut queues {
            queue.flush(1).expect("room");
            assert_eq!(fipsee_testkit::finish_one(queue), fipsee_block::wire::Status::Ok);
        }
        (disk, queues)
    };
    let mut client = daemon.blocking("a");
    client.write_at(&[1; 4096], 0).expect("written");
    client.read_at(&mut [0; 8192], 0).expect("read");
    client.read_at(&mut [0; 512], 1 << 20).expect_err("beyond the end");
    let expected = [1, 1, 1, 1, 8192, 4096];
    eventually("they are counted", || counts(&stat_of(&daemon, "a")["totals"]) == expected);
    let attached = stat_of(&daemon, "a");
    let (pid, uid) = (std::process::id(), rustix::process::geteuid().as_raw());
    assert_eq!((&attached["clients"][0]["state"], &attached["clients"][0]["pid"]), (&json!("attached"), &json!(pid)));
    let number = attached["clients"][0]["client"].clone();
    drop(client);
    eventually("it is gone", || daemon.attached_count("a") == 0);
    let gone = stat_of(&daemon, "a");
    assert_eq!((counts(&gone["totals"]), &gone["totals"]["clients"]), (expected, &json!(1)));
    let one = &gone["clients"][0];
    assert_eq!((&one["state"], &one["client"], &one["uid"], counts(one)), (&json!("gone"), &number, &json!(uid), expected));
    drop(work(2));
    eventually("it is gone, too", || daemon.attached_count("a") == 0);
    let _present = work(1);
    let now = stat_of(&daemon, "a");
    let all = [1, 1, 4, 1, 8192, 4096];
    assert_eq!((counts(&now["totals"]), &now["totals"]["clients"]), (all, &json!(3)));
    assert_eq!((counts(&now["users"][0]), &now["users"][0]["uid"]), (all, &json!(uid)));
    let states: Vec<_> = now["clients"].as_array().expect("a list").iter().map(|client| client["state"].clone()).collect();
    assert_eq!(states, [json!("attached"), json!("gone"), json!("gone")], "the newest first");
    assert_eq!(counts(&stat_of(&daemon, "b")["totals"]), [0; 6], "another disk");
}

#[test]
fn clients_that_are_gone_are_listed_up_to_a_limit_and_counted_for_ever() {
    let daemon = Daemon::start(&["--disk", "a=memory:1M"]);
    for _ in 0..40 {
        daemon.blocking("a").write_at(&[1; 512], 0).expect("written");
    }
    eventually("all are gone", || daemon.attached_count("a") == 0);
    let stat = stat_of(&daemon, "a");
    assert_eq!((&stat["totals"]["clients"], &stat["totals"]["writes"]), (&json!(40), &json!(40)));
    assert_eq!(stat["clients"].as_array().map(Vec::len), Some(32));
}

#[test]
fn each_user_has_totals_of_its_own() {
    if !is_root() {
        return skip("attach as other users", "only root can become another user");
    }
    let daemon = Daemon::start(&["--disk", "a=memory:1M", "--allow-uid", "4000"]);
    for (uid, writes) in [(4000, 2), (0, 3), (4000, 5)] {
        let socket = daemon.socket();
        let attach = move || fipsee_block::client::Blocking::attach(&socket, &Daemon::options("a"));
        let mut client = as_user(uid, &[], attach).expect("attached");
        (0..writes).for_each(|_| client.write_at(&[1; 512], 0).expect("written"));
    }
    eventually("all are gone", || daemon.attached_count("a") == 0);
    let users = stat_of(&daemon, "a")["users"].clone();
    let writes = |index: usize| (users[index]["uid"].clone(), users[index]["clients"].clone(), users[index]["writes"].clone());
    assert_eq!([writes(0), writes(1)], [(json!(0), json!(1), json!(3)), (json!(4000), json!(2), json!(7))]);
}
