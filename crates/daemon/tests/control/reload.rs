//! The configuration is read again while clients are served.

use fipsee_block::client::{AttachOptions, Disk};
use fipsee_ring::control::RefusalCode;
use fipsee_testkit::{CorrectClient, Daemon, Scratch, assert_says, eventually, refusal_of, refused_in};
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

const TWO_DISKS: &str =
    "[[disk]]\nname = \"a\"\nspec = \"memory:1M\"\n[[disk]]\nname = \"b\"\nspec = \"file:{dir}/b.img,size=1M\"\n";

fn reload(daemon: &Daemon, text: &str) -> Value {
    daemon.dir.configure(text);
    daemon.admin(&json!({ "method": "reload" }))
}

fn disks(daemon: &Daemon) -> Vec<String> {
    let list = daemon.admin(&json!({ "method": "disk.list" }));
    let name = |disk: &Value| disk["disk"].as_str().expect("a name").to_owned();
    list["disks"].as_array().expect("a list").iter().map(name).collect()
}

fn outcome(added: &[&str], removed: &[&str], changed: &[&str], needs_restart: &[&str]) -> Value {
    json!({ "added": added, "removed": removed, "changed": changed, "needs_restart": needs_restart })
}

#[test]
fn added_disk_is_served_and_removed_disk_is_closed_while_others_work() {
    let daemon = Daemon::with_file(TWO_DISKS);
    let mut correct_client = CorrectClient::new(&daemon, "a");
    // The first file disk in use makes the worker create a kernel ring, which stays.
    drop(CorrectClient::new(&daemon, "b"));
    eventually("the client of b is gone", || daemon.attached_count("b") == 0);
    let descriptors = daemon.fd_count();
    let three = format!("{TWO_DISKS}[[disk]]\nname = \"c\"\nspec = \"file:{{dir}}/c.img,size=2M\"\n");
    assert_eq!(reload(&daemon, &three), outcome(&["c"], &[], &[], &[]));
    assert_eq!(disks(&daemon), ["a", "b", "c"]);
    CorrectClient::new(&daemon, "c").check();
    correct_client.check();
    assert_eq!(reload(&daemon, &three), outcome(&[], &[], &[], &[]), "the same file again");
    eventually("the client of c is gone", || daemon.attached_count("c") == 0);
    assert_eq!(reload(&daemon, TWO_DISKS), outcome(&[], &["c"], &[], &[]));
    let text = refusal_of(daemon.attach(&AttachOptions::new("c")), RefusalCode::UnknownName);
    assert_says(&text, &["no disk 'c' that user", "`fipsee ls` lists those"]);
    eventually("the removed disk is closed", || daemon.fd_count() == descriptors);
    // Its lock is released, too.
    assert_eq!(reload(&daemon, &three), outcome(&["c"], &[], &[], &[]));
    correct_client.check();
}

#[test]
fn disk_in_use_is_not_removed_and_nothing_else_of_that_file_happens() {
    let daemon = Daemon::with_file(TWO_DISKS);
    let mut correct_client = CorrectClient::new(&daemon, "b");
    let file = "log_level = \"error\"\n[[disk]]\nname = \"c\"\nspec = \"memory:1M\"\n";
    let answer = reload(&daemon, file);
    let text = answer["error"].as_str().expect("an error");
    assert_says(text, &["disk 'b'", "in use by process", &std::process::id().to_string(), "end that, or keep the disk"]);
    assert_eq!(disks(&daemon), ["a", "b"]);
    // Disk a, which was unused, had been closed to new clients for a moment.
    CorrectClient::new(&daemon, "a").check();
    correct_client.check();
    drop(correct_client);
    eventually("the client of b is gone", || daemon.attached_count("b") == 0);
    eventually("the client of a is gone", || daemon.attached_count("a") == 0);
    assert_eq!(reload(&daemon, file), outcome(&["c"], &["a", "b"], &["log_level"], &[]));
    assert_eq!(disks(&daemon), ["c"]);
}

#[test]
fn broken_file_changes_nothing_and_says_where() {
    let daemon = Daemon::with_file(TWO_DISKS);
    let mut correct_client = CorrectClient::new(&daemon, "a");
    let with = |line: &str| format!("{line}\n{TWO_DISKS}");
    for (file, pieces) in [
        ("workers = 1\n[[disk]\n".to_owned(), ["f.toml", "line 2, column"]),
        (with("log_levle = \"info\""), ["line 1, column 1", "log_levle"]),
        (with("log_level = \"loud\""), ["line 1, column 13", "unknown log level 'loud'"]),
        (with("wait = \"nap\""), ["line 1, column 8", "unknown wait mode 'nap'"]),
        (
            format!("{TWO_DISKS}\n[[disk]]\nname = \"x\"\nspec = \"tape:1M\"\n"),
            ["f.toml: line 10, column 8: disk 'x'", "unknown kind 'tape'"],
        ),
        (format!("{TWO_DISKS}{TWO_DISKS}"), ["disk 'a'", "is defined twice"]),
        (String::new(), ["no disk to serve", "name one"]),
        // Opened disks are closed again when a later one cannot be opened.
        (
            format!(
                "{TWO_DISKS}[[disk]]\nname = \"c\"\nspec = \"memory:1M\"\n[[disk]]\nname = \"d\"\nspec = \"file:{{dir}}/none\"\n"
            ),
            ["disk 'd'", "none"],
        ),
    ] {
        let answer = reload(&daemon, &file);
        assert_says(answer["error"].as_str().unwrap_or_else(|| panic!("{file} was taken: {answer}")), &pieces);
        assert_eq!(disks(&daemon), ["a", "b"], "{file}");
        correct_client.check();
    }
    let log = daemon.log();
    assert_says(&log, &["not reloaded; everything stays as it was", "line 1, column 8", "unknown kind 'tape'"]);
    assert_eq!(reload(&daemon, TWO_DISKS), outcome(&[], &[], &[], &[]));
}

#[test]
fn what_needs_a_restart_is_named_and_the_rest_takes_effect() {
    let daemon = Daemon::with_file(TWO_DISKS);
    let file = "workers = 2\nlook_us = 77\nlisten = \"/nowhere\"\nlog_format = \"json\"\nwait = \"sleep\"\ncpus = [0]\nmax_clients = 2\n\
                [[disk]]\nname = \"a\"\nspec = \"memory:2M\"\nallow_uids = [4711]\n[[disk]]\nname = \"b\"\nspec = \"file:{dir}/b.img,size=1M\"\n";
    // The test's own --listen overrides the file's.
    let restart = ["workers", "cpus", "wait", "look_us", "log_format", "disk 'a'"];
    let answer = reload(&daemon, file);
    assert_eq!(answer, outcome(&[], &[], &["max_clients", "disk 'a'"], &restart));
    assert_eq!(daemon.admin(&json!({ "method": "disk.info", "disk": "a" }))["size_bytes"], 1 << 20);
    assert_eq!(reload(&daemon, file), outcome(&[], &[], &[], &restart), "as long as it is not restarted");
    assert_says(&daemon.log(), &["needs a restart", "workers"]);
    let _both = [CorrectClient::new(&daemon, "a"), CorrectClient::new(&daemon, "b")];
    let text = refusal_of(Disk::attach(&daemon.socket(), &AttachOptions::new("a")), RefusalCode::Limit);
    assert_says(&text, &["its limit of 2 clients"]);
}

#[test]
fn limits_of_a_client_are_those_it_was_greeted_with() {
    let daemon = Daemon::with_file(TWO_DISKS);
    let attach = |queues: u16| {
        let options = AttachOptions { queue_count: queues, ..AttachOptions::new("a") };
        daemon.attach(&options).expect("attached").1.len()
    };
    assert_eq!(attach(8), 8);
    let file = format!("max_queues = 3\n{TWO_DISKS}");
    assert_eq!(reload(&daemon, &file), outcome(&[], &[], &["max_queues"], &[]));
    assert_eq!(attach(8), 3);
}

#[test]
fn sighup_reloads_and_changes_the_level_of_the_log() {
    let mut daemon = Daemon::with_file(&format!("log_level = \"error\"\n{TWO_DISKS}"));
    let hang_up = |daemon: &Daemon| {
        let pid = Pid::from_raw(i32::try_from(daemon.pid()).expect("a pid")).expect("not 0");
        rustix::process::kill_process(pid, Signal::HUP).expect("a child can be signalled");
    };
    drop(CorrectClient::new(&daemon, "a"));
    assert_eq!(daemon.log(), "", "below the level");
    daemon.dir.configure(&format!("log_level = \"debug\"\n{TWO_DISKS}"));
    // A silent connection to the admin socket does not delay it.
    let _silent =
        std::os::unix::net::UnixStream::connect(fipsee_daemon::admin::admin_path(&daemon.socket())).expect("it listens");
    hang_up(&daemon);
    eventually("the reload is in the log", || daemon.log().contains("reloaded"));
    drop(CorrectClient::new(&daemon, "a"));
    eventually("clients are in the log", || daemon.log().contains("attached"));
    daemon.dir.configure("broken");
    hang_up(&daemon);
    eventually("the reason is in the log", || daemon.log().contains("not reloaded") && daemon.log().contains("line 1, column"));
    CorrectClient::new(&daemon, "b").check();
    daemon.signal_term();
    assert!(daemon.await_exit().success());
}

#[test]
fn daemon_without_a_file_has_nothing_to_reload() {
    let daemon = Daemon::start(&["--disk", "a=memory:1M"]);
    let answer = daemon.admin(&json!({ "method": "reload" }));
    assert_says(answer["error"].as_str().unwrap_or_default(), &["no configuration file", "--config FILE.toml"]);
}

#[test]
fn configuration_is_checked_without_opening_anything() {
    let dir = Scratch::new();
    dir.configure(TWO_DISKS);
    let check = || {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_fipseed"));
        command.arg("--config").arg(dir.path("f.toml")).arg("--check-config").output().expect("it runs")
    };
    let output = check();
    assert!(output.status.success());
    assert_says(&String::from_utf8_lossy(&output.stdout), &["the configuration is sound", "2 disks"]);
    assert!(!dir.path("b.img").exists());
    dir.configure("workers = 2\n");
    assert_says(&refused_in(&dir, &[], &["--config", "{dir}/f.toml", "--check-config"]), &["no disk to serve"]);
}
