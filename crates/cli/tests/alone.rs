//! `fipsee ping` and `fipsee demo`, which bring their own second process.

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;

use common::{DEADLINE, Directory, FIPSEE, Guard, assert_error, assert_keys, assert_success};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const PING_KEYS: [&str; 10] = [
    "queue",
    "cycles_per_message_mean",
    "cycles_per_batch_min",
    "cycles_per_batch_mean",
    "cycles_per_batch_p50",
    "cycles_per_batch_p99",
    "ns_per_batch_p50",
    "ns_per_message_mean",
    "batches",
    "tsc_hz",
];

fn ping(arguments: &[&str]) -> Vec<Value> {
    let output =
        Command::new(FIPSEE).args(["ping", "--json", "--seconds", "0.02"]).args(arguments).output().expect("fipsee runs");
    assert_success(&output);
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn ping_reports_every_size_with_units() {
    for how in [&["--queues", "1,2,64"][..], &["--queues", "1,2,64", "--threads"], &["--queues", "1,2,64", "--no-pause"]] {
        let sizes = ping(how);
        assert_eq!(sizes.iter().map(|size| size["queue"].as_u64()).collect::<Vec<_>>(), [Some(1), Some(2), Some(64)]);
        for size in &sizes {
            assert_keys(size, &PING_KEYS);
            let number = |key: &str| size[key].as_f64().expect("a number");
            assert!(number("batches") >= 1.0 && number("tsc_hz") > 1e6, "{size}");
            assert!(number("cycles_per_batch_min") <= number("cycles_per_batch_p50"), "{size}");
            assert!(number("cycles_per_batch_p50") <= number("cycles_per_batch_p99"), "{size}");
            let per_message = number("cycles_per_batch_mean") / number("queue");
            assert!((number("cycles_per_message_mean") - per_message).abs() < 1.0, "{size}");
        }
    }
    assert_eq!(ping(&["--queue", "8"]).len(), 1);
}

#[test]
fn ping_refuses_what_it_cannot_do() {
    let run = |arguments: &[&str]| Command::new(FIPSEE).arg("ping").args(arguments).output().expect("fipsee runs");
    assert_eq!(run(&["--queue", "65"]).status.code(), Some(2));
    assert_eq!(run(&["--seconds", "0"]).status.code(), Some(2));
    assert_error(&run(&["--cpus", "0,0"]), &["two different CPUs"]);
    assert_error(&run(&["--cpus", "0,1000"]), &["CPU 1000 is not one"]);
}

/// The children of a process.
fn children(pid: u32) -> Vec<Pid> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|word| Pid::from_raw(word.parse().ok()?)).collect()
}

fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

/// How a child of ours ended.
fn ending(child: &mut Guard) -> ExitStatus {
    wait_for("the process ends", || child.0.try_wait().expect("a child to ask"))
}

/// Has it ended? A process whose parent is gone may stay a zombie where nobody reaps it.
fn has_ended(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z') || rest.starts_with('X'))
}

fn start_ping() -> Guard {
    let mut command = Command::new(FIPSEE);
    command.args(["ping", "--queue", "1", "--seconds", "3600"]).stderr(Stdio::piped());
    Guard(command.spawn().expect("fipsee runs"))
}

/// The second process, once it has the memory of the rings: from there on nothing but the rings connects the two.
fn peer_at_work(ping: &Guard) -> Pid {
    let maps_rings = |pid: &Pid| {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", pid.as_raw_nonzero())).unwrap_or_default();
        maps.contains("memfd:fipsee-ping")
    };
    // Until it becomes another program, a child has the mappings of its parent.
    let is_peer = |pid: &Pid| {
        let command_line = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
        command_line.split(|byte| *byte == 0).any(|argument| argument == b"ping-peer")
    };
    wait_for("ping has a second process", || children(ping.0.id()).into_iter().find(|pid| is_peer(pid) && maps_rings(pid)))
}

#[test]
fn ping_ends_when_its_second_process_is_killed() {
    let mut ping = start_ping();
    let peer = peer_at_work(&ping);
    kill_process(peer, Signal::KILL).expect("it is killed");
    assert_eq!(ending(&mut ping).code(), Some(1));
}

#[test]
fn the_second_process_of_ping_ends_when_the_first_is_killed() {
    let ping = start_ping();
    let peer = peer_at_work(&ping);
    drop(ping);
    wait_for("the second process ends", || has_ended(peer).then_some(()));
}

/// The demo, started in a directory of ours for temporary files.
fn demo(temporary: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(FIPSEE);
    command.arg("demo").args(arguments).env("TMPDIR", temporary).stdout(Stdio::piped());
    command
}

fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_none())
}

#[test]
fn demo_verifies_data_prints_six_rows_and_leaves_nothing() {
    let directory = Directory::new("demo");
    let place = directory.path("");
    let output = demo(&place, &["--seconds", "0.02"]).output().expect("fipsee runs");
    assert_success(&output);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.contains("16 MiB of pseudo-random data") && text.contains("identical"), "{text}");
    for row in [
        "Fip-see      null",
        "Fip-see      memory",
        "Unix socket  null",
        "Unix socket  memory",
        "in-process   null",
        "in-process   memory",
    ] {
        let line = text.lines().find(|line| line.starts_with(row)).unwrap_or_else(|| panic!("row {row}: {text}"));
        assert!(line.contains(" ns") || line.contains(" us") || line.contains(" ms"), "{line}");
    }
    assert!(text.contains("fipseed --disk") && text.contains("fipsee bench"), "{text}");
    assert!(is_empty(&place), "the demo cleans up");
}

/// A demo whose daemon is at work, and that daemon.
fn start_demo(temporary: &Path) -> (Guard, Pid) {
    let mut demo = Guard(demo(temporary, &["--seconds", "3600"]).spawn().expect("fipsee runs"));
    let mut first_line = String::new();
    BufReader::new(demo.0.stdout.as_mut().expect("its output")).read_line(&mut first_line).expect("a line");
    assert!(first_line.starts_with("A daemon runs as process"), "{first_line}");
    let daemon = children(demo.0.id()).first().copied().expect("a second process");
    assert!(!is_empty(temporary), "the daemon has a directory");
    (demo, daemon)
}

#[test]
fn demo_that_is_killed_or_interrupted_leaves_no_daemon_and_no_directory() {
    for signal in [Signal::KILL, Signal::INT, Signal::TERM] {
        let directory = Directory::new(&format!("demo-{}", signal.as_raw()));
        let place = directory.path("");
        let (mut demo, daemon) = start_demo(&place);
        let pid = i32::try_from(demo.0.id()).ok().and_then(Pid::from_raw).expect("a process");
        kill_process(pid, signal).expect("a signal");
        ending(&mut demo);
        wait_for("the daemon ends", || has_ended(daemon).then_some(()));
        assert!(is_empty(&place), "signal {signal:?} leaves a directory");
    }
}

#[test]
fn demo_whose_daemon_is_killed_says_so_and_cleans_up() {
    let directory = Directory::new("demo-daemon");
    let place = directory.path("");
    let (mut demo, daemon) = start_demo(&place);
    kill_process(daemon, Signal::KILL).expect("it is killed");
    assert_eq!(ending(&mut demo).code(), Some(1));
    assert!(is_empty(&place));
}
