//! Sockets for virtual machines come and go: at the start, by hand, with the configuration, at the end.

use std::path::Path;

use fipsee_testkit::hypervisor::*;
use fipsee_testkit::{Daemon, Scratch, assert_says, eventually, refused};
use serde_json::{Value, json};

const A: &[&str] = &["--disk", "a=memory:1M", "--disk", "b=memory:1M"];

fn attach(daemon: &Daemon, disk: &str, path: &Path) -> Value {
    daemon.admin(&json!({ "method": "disk.attach", "disk": disk, "vhost_user": path }))
}

fn detach(daemon: &Daemon, path: &Path) -> Value {
    daemon.admin(&json!({ "method": "disk.detach", "vhost_user": path }))
}

fn error(answer: &Value) -> &str {
    answer["error"].as_str().unwrap_or_else(|| panic!("no error: {answer}"))
}

#[test]
fn a_socket_is_attached_and_detached_while_the_daemon_runs() {
    let daemon = Daemon::start(A);
    let path = daemon.dir.path("a.sock");
    let descriptors = daemon.fd_count();
    for _ in 0..3 {
        assert_eq!(attach(&daemon, "a", &path)["vhost_user"], json!([path]));
        let mut vm = Vm::boot(&path);
        vm.check();
        assert_says(error(&detach(&daemon, &path)), &["is in use by process", &std::process::id().to_string(), "end that first"]);
        vm.check();
        drop(vm);
        eventually("no client is attached", || daemon.attached_count("a") == 0);
        assert_eq!(detach(&daemon, &path)["vhost_user"], json!([]));
        assert!(!path.exists());
    }
    assert_eq!(daemon.fd_count(), descriptors);
}

#[test]
fn what_cannot_be_attached_or_detached_is_said_with_the_reason() {
    let daemon = Daemon::start(A);
    let [path, file] = ["a.sock", "file"].map(|name| daemon.dir.path(name));
    std::fs::write(&file, "").expect("a file");
    attach(&daemon, "a", &path);
    for (disk, path, pieces) in [
        ("c", daemon.dir.path("c.sock"), ["no disk 'c' here", "a, b"]),
        ("b", path.clone(), ["disk 'b'", "is the vhost-user socket of disk 'a' already"]),
        ("b", file, ["exists and is not a socket", "choose another path"]),
        ("b", daemon.dir.path(""), ["is a folder", "name a socket in it"]),
        ("b", daemon.socket(), ["another server already listens", "this very process"]),
        ("b", "b.sock".into(), ["b.sock is no absolute path", ""]),
        ("b", daemon.dir.path(&"x".repeat(200)), ["a Unix socket path holds at most", "choose a shorter one"]),
    ] {
        assert_says(error(&attach(&daemon, disk, &path)), &pieces);
    }
    assert_says(
        error(&detach(&daemon, Path::new("/nowhere"))),
        &["no vhost-user socket /nowhere here", "there are:", "a.sock", "`fipsee info DISK`"],
    );
    Vm::boot(&path).check();
}

#[test]
fn what_is_wrong_at_the_start_is_said_with_what_to_do() {
    let disk = ["--disk", "a=memory:1M"];
    for (option, pieces) in [
        ("a", ["there is no '='", "write DISK=PATH"]),
        ("a=", ["the path is missing", "write DISK=PATH"]),
        ("b=/x", ["no disk 'b' is defined", "there are: a"]),
        ("a=/proc/x", ["disk 'a'", "choose another path"]),
    ] {
        assert_says(&refused(&[&disk[..], &["--vhost-user", option]].concat()), &pieces);
    }
    let twice = ["--vhost-user", "a={dir}/x", "--vhost-user", "a={dir}/x"];
    assert_says(&refused(&[&disk[..], &twice].concat()), &["is given twice", "each disk and each port needs its own"]);
}

#[test]
fn a_daemon_takes_over_what_a_killed_one_left_and_leaves_nothing_itself() {
    let mut daemon = Daemon::start(&[A, &["--vhost-user", "a={dir}/a.sock"]].concat());
    let path = daemon.dir.path("a.sock");
    let vm = Vm::boot(&path);
    daemon.kill_9();
    vm.hypervisor.assert_hung_up();
    assert!(path.exists());
    daemon.restart();
    assert_says(&daemon.log(), &["taking over the vhost-user socket of a daemon that is gone"]);
    let mut vm = Vm::boot(&path);
    vm.check();
    daemon.signal_term();
    assert!(daemon.await_exit().success(), "{}", daemon.log());
    vm.hypervisor.assert_hung_up();
    assert!(!path.exists());
}

fn file(dir: &Scratch, disks: &[(&str, Option<&str>)]) {
    let disk = |(name, socket): &(&str, Option<&str>)| {
        let socket = socket.map(|socket| format!("vhost_user = \"{}\"\n", dir.path(socket).display()));
        format!("[[disk]]\nname = \"{name}\"\nspec = \"memory:1M\"\n{}", socket.unwrap_or_default())
    };
    std::fs::write(dir.path("f.toml"), disks.iter().map(disk).collect::<String>()).expect("a file");
}

fn reload(daemon: &Daemon, disks: &[(&str, Option<&str>)]) -> Value {
    file(&daemon.dir, disks);
    daemon.admin(&json!({ "method": "reload" }))
}

#[test]
fn a_reload_adds_moves_and_removes_sockets_and_leaves_those_that_stay_alone() {
    let dir = Scratch::new();
    file(&dir, &[("a", Some("a.sock")), ("b", Some("b.sock"))]);
    let daemon = Daemon::start_in(dir, &[], &["--config", "{dir}/f.toml"]);
    let path = |name: &str| daemon.dir.path(name);
    let outcome = |added: &[&str], removed: &[&str], changed: &[&str]| json!({ "added": added, "removed": removed, "changed": changed, "needs_restart": [] });
    let mut vm = Vm::boot(&path("a.sock"));
    attach(&daemon, "b", &path("by-hand.sock"));
    let moved = [("a", Some("a.sock")), ("b", Some("moved.sock")), ("c", Some("c.sock"))];
    assert_eq!(reload(&daemon, &moved), outcome(&["c"], &[], &["disk 'b'"]));
    assert!(!path("b.sock").exists());
    for socket in ["moved.sock", "by-hand.sock", "c.sock"] {
        Vm::boot(&path(socket)).check();
        // Before that, the next machine at another socket of the same disk would write beside it, and be refused.
        eventually("the machine is gone", || daemon.attached_count("b") + daemon.attached_count("c") == 0);
    }
    vm.check();
    assert_eq!(reload(&daemon, &[("a", Some("a.sock")), ("b", None)]), outcome(&[], &["c"], &["disk 'b'"]));
    assert!(!path("moved.sock").exists() && !path("c.sock").exists());
    Vm::boot(&path("by-hand.sock")).check();
    eventually("no client is attached", || daemon.attached_count("b") == 0);
    assert_eq!(reload(&daemon, &[("a", Some("a.sock"))]), outcome(&[], &["b"], &[]));
    assert!(!path("by-hand.sock").exists(), "it is removed with its disk");
    vm.check();
}

#[test]
fn a_reload_that_cannot_be_done_wholly_changes_no_socket() {
    let dir = Scratch::new();
    file(&dir, &[("a", Some("a.sock")), ("b", Some("b.sock"))]);
    let daemon = Daemon::start_in(dir, &[], &["--config", "{dir}/f.toml"]);
    let path = |name: &str| daemon.dir.path(name);
    let mut vm = Vm::boot(&path("a.sock"));
    // In use: neither its path nor the other's changes.
    let answer = reload(&daemon, &[("a", Some("x.sock")), ("b", Some("y.sock"))]);
    assert_says(
        error(&answer),
        &["the vhost-user socket", "a.sock of disk 'a' is in use by process", &std::process::id().to_string()],
    );
    let answer = reload(&daemon, &[("b", Some("b.sock"))]);
    assert_says(error(&answer), &["disk 'a'", "in use by process"]);
    // Impossible: a file exists at the path.
    std::fs::write(path("file"), "").expect("a file");
    let answer = reload(&daemon, &[("a", Some("a.sock")), ("b", Some("file")), ("c", Some("c.sock"))]);
    assert_says(error(&answer), &["disk 'b'", "exists and is not a socket"]);
    assert!(!path("x.sock").exists() && !path("y.sock").exists() && !path("c.sock").exists());
    vm.check();
    Vm::boot(&path("b.sock")).check();
}
