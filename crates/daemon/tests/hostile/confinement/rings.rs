//! The kernel rings that interrupt virtual machines are created before the daemon gives up the right to create any. When none is
//! left, machines are interrupted without one.

use std::path::Path;

use fipsee_testkit::guest::device::{Guest, IN, OK, OUT, Options};
use fipsee_testkit::{CorrectClient, Daemon, Scratch, assert_says};
use serde_json::json;

/// Kernel rings that the daemon has.
fn rings(daemon: &Daemon) -> usize {
    let open = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).expect("a live process");
    let targets = open.filter_map(|entry| std::fs::read_link(entry.expect("an entry").path()).ok());
    targets.filter(|target| target.to_string_lossy().contains("[io_uring]")).count()
}

/// A guest that sleeps until each of its requests is done; it hangs without an interrupt.
#[track_caller]
fn check(guest: &mut Guest, address: u64) {
    for sector in 0..8 {
        for kind in [OUT, IN] {
            assert_eq!(guest.transfer(0, kind, 8 * sector, (address, 4096)), OK);
        }
    }
}

fn boot(socket: &Path) -> (Guest, u64) {
    let guest = Guest::start(socket, &Options::default()).expect("the device takes a guest");
    let data = guest.ram.allocate(4096, 4096);
    (guest, data)
}

/// A daemon whose disk `a` has the socket `vm`, and which grants so many queues; `w` is the correct client's.
fn start(max_queues: u32, prefix: &[&str]) -> Daemon {
    let dir = Scratch::new();
    let socket = dir.path("vm");
    let disk = |name: &str| format!("[[disk]]\nname = \"{name}\"\nspec = \"memory:4M\"\nshared = true\n");
    let text = format!("max_queues = {max_queues}\n{}{}vhost_user = \"{}\"\n", disk("w"), disk("a"), socket.display());
    std::fs::write(dir.path("f.toml"), text).expect("a file");
    Daemon::start_in(dir, prefix, &["--config", "{dir}/f.toml", "--workers", "1", "--wait", "sleep"])
}

#[test]
fn a_machine_for_which_no_ring_is_left_is_interrupted_all_the_same() {
    let daemon = start(1, &[]);
    let mut correct_client = CorrectClient::new(&daemon, "w");
    let before = rings(&daemon);
    assert_eq!(before, 2, "the worker's, and one for the queue of the configured socket: {}", daemon.log());
    let later = daemon.dir.path("later");
    let answer = daemon.admin(&json!({ "method": "disk.attach", "disk": "a", "vhost_user": later }));
    assert!(answer["error"].is_null(), "{answer}");
    // None is left for the second.
    let mut machines = [boot(&daemon.dir.path("vm")), boot(&later)];
    for round in 0..3 {
        for (guest, data) in &mut machines {
            check(guest, *data);
        }
        correct_client.check();
        assert_eq!(rings(&daemon), before, "rings in round {round}: {}", daemon.log());
    }
    // The machine that has the ring releases it, and the ring serves the next.
    let [first, mut second] = machines;
    drop(first);
    let (mut next, data) = boot(&daemon.dir.path("vm"));
    check(&mut next, data);
    check(&mut second.0, second.1);
    correct_client.check();
    assert_eq!(rings(&daemon), before, "{}", daemon.log());
}

#[test]
fn fewer_rings_than_machines_may_need_are_a_line_in_the_log() {
    let daemon = start(64, &["prlimit", "--nofile=256:256"]);
    assert_says(
        &daemon.log(),
        &["fewer kernel rings for interrupts than virtual machines may need; raise LimitNOFILE=", "wanted=64 count=32"],
    );
    let mut correct_client = CorrectClient::new(&daemon, "w");
    let (mut guest, data) = boot(&daemon.dir.path("vm"));
    check(&mut guest, data);
    correct_client.check();
}
