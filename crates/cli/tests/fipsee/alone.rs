//! `fipsee ping` and `fipsee demo`, which bring their own second process.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use fipsee_testkit::{Guard, Scratch, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::program::{FIPSEE, assert_error, assert_success, ending, pid};

const PING_KEYS: [&str; 10] = [
    "design",
    "wait",
    "pause",
    "cycles_per_message",
    "ns_per_message",
    "messages",
    "messages_per_second",
    "rounds",
    "tsc_hz",
    "cycles_per_message_min",
];
const BURST_KEYS: [&str; 10] = [
    "queue",
    "batches",
    "hold_ticks",
    "cycles_per_message_mean",
    "cycles_per_batch_min",
    "cycles_per_batch_mean",
    "cycles_per_batch_p50",
    "cycles_per_batch_p99",
    "cycles_per_batch_p999",
    "ns_per_batch_p50",
];

fn run_ping(arguments: &[&str]) -> Output {
    Command::new(FIPSEE).args(["ping", "--seconds", "0.02"]).args(arguments).output().expect("fipsee runs")
}

fn ping(arguments: &[&str]) -> Vec<Value> {
    let output = run_ping(&[arguments, &["--json"]].concat());
    assert_success(&output);
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn number(object: &Value, key: &str) -> f64 {
    object[key].as_f64().unwrap_or_else(|| panic!("{key} is a number: {object}"))
}

fn assert_burst(burst: &Value) {
    let keys = burst.as_object().expect("an object");
    for key in PING_KEYS.iter().chain(&BURST_KEYS) {
        assert!(keys.contains_key(*key), "{key}: {burst}");
    }
    assert!(number(burst, "batches") >= 1.0 && number(burst, "tsc_hz") > 1e6, "{burst}");
    assert!(number(burst, "messages") == number(burst, "batches") * number(burst, "queue"), "{burst}");
    let batch = ["min", "p50", "p99", "p999"].map(|name| number(burst, &format!("cycles_per_batch_{name}")));
    assert!(batch.is_sorted() && batch[0] > 0.0, "{burst}");
    let per_message = number(burst, "cycles_per_batch_mean") / number(burst, "queue");
    assert!((number(burst, "cycles_per_message_mean") - per_message).abs() < 1.0, "{burst}");
}

#[test]
fn ping_reports_every_size_with_units() {
    for how in [&[][..], &["--threads"], &["--no-pause"], &["--design", "bare"], &["--design", "classic"], &["--rounds", "2"]] {
        let sizes = ping(&[&["--queues", "1,2,64"], how].concat());
        assert_eq!(sizes.iter().map(|size| size["queue"].as_u64()).collect::<Vec<_>>(), [Some(1), Some(2), Some(64)]);
        sizes.iter().for_each(assert_burst);
    }
    for queue in ["8", "1000", "4096"] {
        ping(&["--queue", queue]).iter().for_each(assert_burst);
    }
    for how in [["--design", "one-line"], ["--design", "two-lines"], ["--first-look", "40,80"]] {
        ping(&[&["--queue", "1"], &how[..]].concat()).iter().for_each(assert_burst);
    }
}

#[test]
fn ping_waits_as_requested() {
    for wait in ["poll", "adaptive", "sleep"] {
        let sizes = ping(&["--queues", "1,8", "--wait", wait]);
        sizes.iter().for_each(assert_burst);
        assert!(sizes.iter().all(|size| size["wait"] == wait));
    }
}

#[test]
fn ping_streams_through_rings_of_every_size() {
    for how in [&[][..], &["--threads"], &["--wait", "sleep"], &["--design", "bare"], &["--design", "classic", "--no-pause"]] {
        let slots = ping(&[&["--stream", "--slots", "2,64,1024"], how].concat());
        assert_eq!(slots.iter().map(|line| line["slots"].as_u64()).collect::<Vec<_>>(), [Some(2), Some(64), Some(1024)]);
        for line in &slots {
            let cycles = number(line, "cycles_per_message");
            assert!(cycles > 0.0 && number(line, "messages") >= 4096.0 && number(line, "gigabytes_per_second") > 0.0, "{line}");
            assert!(number(line, "messages_per_second") * cycles < 2.0 * number(line, "tsc_hz"), "{line}");
        }
    }
}

#[test]
fn ping_works_where_both_sides_share_one_cpu() {
    let cpus = rustix::thread::sched_getaffinity(None).expect("the CPUs of this process");
    let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|cpu| cpus.is_set(*cpu)).expect("a CPU");
    for how in [["--queues", "1,8"], ["--design", "one-line"], ["--design", "classic"], ["--stream", "--slots=64"]] {
        let mut command = Command::new("taskset");
        command.args(["-c", &first.to_string(), FIPSEE, "ping", "--json", "--seconds", "0.02"]).args(how);
        let Ok(output) = command.output() else {
            return writeln!(std::io::stderr(), "fipsee-skip: ping on one CPU: taskset is missing; install util-linux")
                .expect("standard error is open");
        };
        assert_success(&output);
        assert!(!output.stdout.is_empty());
    }
}

#[test]
fn ping_compares_in_turn_and_says_of_each_claim_whether_it_holds() {
    let objects = ping(&["--compare", "--rounds", "2"]);
    let (claims, lines): (Vec<_>, Vec<_>) = objects.iter().partition(|object| object.get("claim").is_some());
    // Of each state that the machine was in.
    let measured = |line: &&Value| (line["design"].to_string(), line["queue"].as_u64(), line["slots"].as_u64());
    let distinct = lines.iter().map(measured).collect::<std::collections::HashSet<_>>();
    assert_eq!(distinct.len(), 38, "four rings at nine tasks, two floors at one: {distinct:?}");
    assert_eq!(lines.iter().map(|line| number(line, "rounds")).sum::<f64>(), 76.0);
    assert!(lines.iter().all(|line| number(&line["one_line_cycles"], "median") > 0.0));
    assert!(lines.iter().all(|line| line["state"].is_null() == line["near_below_cycles"].is_null()));
    let classic = lines.iter().filter(|line| line["design"] == "classic").collect::<Vec<_>>();
    assert!(classic.len() >= 9 && classic.iter().all(|line| number(&line["ratio_to_classic"], "median") == 1.0));
    assert!(lines.iter().filter(|line| line.get("ratio_to_one_line").is_some()).all(|line| line["queue"] == 1));
    assert!(claims.len() >= 10, "{claims:?}");
    for claim in claims {
        let holds = claim["value"].as_f64().map(|value| value <= number(claim, "limit"));
        assert_eq!(claim["holds"].as_bool(), holds, "{claim}");
    }
    let text = String::from_utf8(run_ping(&["--compare", "--rounds", "1"]).stdout).expect("text");
    assert!(text.contains("classic ring") && (text.contains("holds") || text.contains("does not hold")), "{text}");
}

#[test]
fn ping_ablates_one_choice_at_a_time() {
    let lines = ping(&["--ablate", "--rounds", "1"]);
    let changes = lines.iter().filter_map(|line| line["change"].as_str()).collect::<std::collections::HashSet<_>>();
    assert!(changes.contains("no prefetch") && changes.contains("first look at once"), "{changes:?}");
    for line in &lines {
        assert_eq!(line["design"], "channel");
        assert!(number(&line["ratio_to_channel"], "median") > 0.0, "{line}");
    }
}

#[test]
fn ping_draws_what_it_measured() {
    let directory = Scratch::new();
    for how in [["--queues", "1,4"], ["--stream", "--slots=64,256"]] {
        let picture = directory.path("ping.svg");
        assert_success(&run_ping(&[&how[..], &["--plot", picture.to_str().expect("a path")]].concat()));
        let text = std::fs::read_to_string(&picture).expect("a picture");
        assert!(text.starts_with("<svg") && text.contains("Cycles per message"), "{text}");
    }
    assert_error(&run_ping(&["--plot", "ping.jpg"]), &["ping.jpg", "end in .svg"]);
}

#[test]
fn ping_measures_every_way_to_wait_or_says_why_not() {
    let output = Command::new(FIPSEE).args(["ping", "--waits", "--json"]).output().expect("fipsee runs");
    assert_success(&output);
    let text = String::from_utf8(output.stdout).expect("text");
    let ways: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let names: Vec<_> = ways.iter().filter_map(|way| way["wait"].as_str()).collect();
    assert_eq!(names, ["adaptive", "pause", "spin", "yield", "sleep", "umwait", "tpause", "monitorx"]);
    for way in &ways {
        if let Some(reason) = way["unavailable"].as_str() {
            assert!(reason.contains("CPUID leaf"), "{way}");
            continue;
        }
        let number = |key: &str| way[key].as_f64().expect("a number");
        assert!(number("round_trip_cycles_p50") > 0.0 && number("round_trips") > 0.0, "{way}");
        assert!(number("round_trip_cycles_p50") <= number("round_trip_cycles_p99"), "{way}");
        let wakeups = way["wakeups"].as_array().expect("a list");
        assert_eq!(wakeups.iter().filter_map(|wakeup| wakeup["silence_us"].as_u64()).collect::<Vec<_>>(), [1, 50, 1000, 100_000]);
        // A clock not shared by the two sides would show here.
        assert!(wakeups.iter().all(|wakeup| (2..1_000_000_000).contains(&wakeup["ns_p50"].as_u64().expect("ns"))), "{way}");
        assert!((0.0..=101.0).contains(&number("idle_cpu_percent")), "{way}");
    }
    let usage = |name| ways.iter().find(|way| way["wait"] == name).and_then(|way| way["idle_cpu_percent"].as_f64()).expect(name);
    assert!(usage("sleep") < usage("pause") && usage("adaptive") < usage("pause"), "sleeping uses less than polling");
}

#[test]
fn ping_refuses_what_it_cannot_do() {
    assert_eq!(run_ping(&["--queue", "4097"]).status.code(), Some(2));
    assert_eq!(run_ping(&["--stream", "--slots", "100"]).status.code(), Some(2));
    assert_eq!(run_ping(&["--slots", "64"]).status.code(), Some(2));
    assert_eq!(run_ping(&["--wait", "doze"]).status.code(), Some(2));
    let seconds = Command::new(FIPSEE).args(["ping", "--seconds", "0"]).output().expect("fipsee runs");
    assert_eq!(seconds.status.code(), Some(2));
    assert_error(&run_ping(&["--cpus", "0,0"]), &["two different CPUs"]);
    assert_error(&run_ping(&["--cpus", "0,1000"]), &["CPU 1000 is not one"]);
    assert_error(&run_ping(&["--design", "one-line", "--queue", "2"]), &["holds one message"]);
    assert_error(&run_ping(&["--design", "one-line", "--stream"]), &["no streams"]);
    assert_error(&run_ping(&["--first-look", "7"]), &["takes two delays"]);
    assert_eq!(run_ping(&["--waits", "--queue", "1"]).status.code(), Some(2));
}

/// The children of a process.
fn children(pid: u32) -> Vec<Pid> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|word| Pid::from_raw(word.parse().ok()?)).collect()
}

/// Has it ended? A process whose parent is gone may stay a zombie if no process reaps it.
fn has_ended(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z') || rest.starts_with('X'))
}

fn start_ping(how: &[&str]) -> Guard {
    let mut command = Command::new(FIPSEE);
    command.args(["ping", "--seconds", "3600"]).args(how).stderr(Stdio::piped());
    Guard(command.spawn().expect("fipsee runs"))
}

/// The second process, once it has the memory of the rings: from then on only the rings connect the two.
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
    let ways = [&["--queue", "1"][..], &["--queue", "1", "--wait", "sleep"], &["--design", "classic"], &["--stream"]];
    for how in ways {
        let mut ping = start_ping(how);
        let peer = peer_at_work(&ping);
        kill_process(peer, Signal::KILL).expect("it is killed");
        assert_eq!(ending(&mut ping).code(), Some(1), "{how:?}");
        let mut text = String::new();
        ping.0.stderr.take().expect("its errors").read_to_string(&mut text).expect("text");
        assert!(text.contains("the answering side is gone") && text.contains("signal: 9"), "{how:?}: {text}");
    }
}

#[test]
fn the_second_process_of_ping_ends_when_the_first_is_killed() {
    let ping = start_ping(&["--queue", "1"]);
    let peer = peer_at_work(&ping);
    drop(ping);
    wait_for("the second process ends", || has_ended(peer).then_some(()));
}

/// The demo, started with its own directory for temporary files. It can be interrupted, even where the tests run in the
/// background of a shell, which has what it starts there ignore SIGINT.
fn demo(temporary: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", FIPSEE, "demo"]).args(arguments).env("TMPDIR", temporary).stdout(Stdio::piped());
    command
}

fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_none())
}

#[test]
fn demo_verifies_data_prints_six_rows_and_leaves_nothing() {
    let directory = Scratch::new();
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
        let directory = Scratch::new();
        let place = directory.path("");
        let (mut demo, daemon) = start_demo(&place);
        kill_process(pid(&demo), signal).expect("a signal");
        ending(&mut demo);
        wait_for("the daemon ends", || has_ended(daemon).then_some(()));
        assert!(is_empty(&place), "signal {signal:?} leaves a directory");
    }
}

#[test]
fn demo_whose_daemon_is_killed_says_so_and_cleans_up() {
    let directory = Scratch::new();
    let place = directory.path("");
    let (mut demo, daemon) = start_demo(&place);
    kill_process(daemon, Signal::KILL).expect("it is killed");
    assert_eq!(ending(&mut demo).code(), Some(1));
    assert!(is_empty(&place));
}
