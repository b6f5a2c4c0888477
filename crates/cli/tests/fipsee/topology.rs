//! `fipsee topology`, and the commands that use it.

use std::path::Path;
use std::process::{Command, Output};

use fipsee_testkit::Scratch;
use fipsee_topology::pin;
use serde_json::Value;

use crate::program::{FIPSEE, Fipsee, assert_error, assert_keys, assert_success, json, serve};

fn topology(arguments: &[&str]) -> Output {
    Command::new(FIPSEE).arg("topology").args(arguments).output().expect("fipsee runs")
}

fn has_two_cpus() -> bool {
    let has_two = pin::allowed().is_some_and(|cpus| cpus.len() > 1);
    if !has_two {
        eprintln!("fipsee-skip: costs between CPUs: there is one CPU to be used here");
    }
    has_two
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[test]
fn both_directions_are_measured_kept_and_found_again() {
    if !has_two_cpus() {
        return;
    }
    let first = json(&topology(&["--json", "--measure"]));
    assert_keys(
        &first,
        &[
            "model",
            "online",
            "offline",
            "usable",
            "cpus",
            "measurement",
            "choices",
            "workers",
            "unbound_workers",
            "polls",
            "notes",
        ],
    );
    assert_eq!(first["measurement"]["source"], "measured now");
    let costs = list(&first["measurement"]["costs"]);
    for cost in costs {
        assert!(cost["median_ticks"].as_f64().is_some_and(|ticks| ticks > 0.0), "{cost}");
        let is_back = |other: &&Value| other["from"] == cost["to"] && other["to"] == cost["from"];
        assert_eq!(costs.iter().filter(is_back).count(), 1, "{cost}");
    }
    assert_eq!(list(&first["workers"]).len(), 1);
    let choices = list(&first["choices"]);
    assert!(!choices.is_empty(), "{first}");
    for class in choices {
        let keys = ["between", "ownership", "stores", "touch", "burst_prefetch", "take", "word", "is_measured", "why"];
        assert_keys(class, &[&keys[..], &["floor_ticks", "milliseconds", "trials"]].concat());
        let is_measured = class["is_measured"].as_bool().expect("a flag");
        assert_eq!(list(&class["trials"]).is_empty(), !is_measured, "{class}");
        assert!(class["milliseconds"].as_f64().is_some_and(|time| time > 0.0), "{class}");
    }
    let second = json(&topology(&["--json", "--no-measure"]));
    assert!(second["measurement"]["source"].as_str().is_some_and(|source| source.ends_with("fipsee/topology.json")), "{second}");
    assert_eq!(list(&second["measurement"]["costs"]).len(), costs.len());
    assert_eq!(list(&second["choices"]).len(), choices.len());
    let is_noted =
        list(&first["notes"]).iter().any(|note| note.as_str().is_some_and(|note| note.contains("without optimisation")));
    // Tests are built like this; releases are not.
    assert_eq!(is_noted, cfg!(debug_assertions), "{first}");
    if !cfg!(debug_assertions) {
        assert!(choices.iter().zip(list(&second["choices"])).all(|(first, second)| first["word"] == second["word"]), "{second}");
    }
}

#[test]
fn costs_are_drawn_as_svg_and_other_endings_are_refused_before_anything_is_measured() {
    if !has_two_cpus() {
        return;
    }
    let directory = Scratch::new();
    let path = directory.path("map.svg");
    assert_success(&topology(&["--plot", path.to_str().expect("an ordinary path")]));
    let svg = std::fs::read_to_string(&path).expect("it was drawn");
    assert!(svg.starts_with("<svg") && svg.contains("Moving a modified cache line"), "{svg}");
    assert_error(&topology(&["--plot", "map.jpg"]), &["map.jpg", "let the name end in .svg"]);
    assert!(!Path::new("map.jpg").exists());
}

/// Two sockets of one core of two threads each; the last CPU is not allowed.
fn recorded(directory: &Scratch) -> String {
    let root = directory.path("machine");
    let put = |path: &str, content: &str| {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().expect("below the root")).expect("a folder");
        std::fs::write(path, content).expect("a file");
    };
    put("sys/devices/system/cpu/online", "0-3\n");
    put("sys/devices/system/cpu/present", "0-5\n");
    put("proc/self/status", "Cpus_allowed_list:\t0-2\n");
    put("proc/cpuinfo", "model name\t: A recorded CPU\n");
    for cpu in 0..4 {
        let socket = cpu / 2;
        let pair = if socket == 0 { "0-1\n" } else { "2-3\n" };
        put(&format!("sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list"), pair);
        put(&format!("sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"), &format!("{socket}\n"));
        put(&format!("sys/devices/system/node/node{socket}/cpulist"), pair);
    }
    root.to_str().expect("an ordinary path").to_owned()
}

#[test]
fn a_recorded_machine_is_described_and_planned_for() {
    let directory = Scratch::new();
    let root = recorded(&directory);
    let output = topology(&["--root", &root, "--workers", "5"]);
    assert_success(&output);
    let said = String::from_utf8(output.stdout).expect("text");
    for part in [
        "A recorded CPU: CPUs 0-3 online, 4-5 offline; this process may use 0-2",
        "socket 1:",
        "NUMA node 1:",
        "threads of one core:        0-1  2-3",
        "was not measured",
        "worker 0 on CPU 1: node 0, socket 0",
        "worker 1 on CPU 2: node 1, socket 1",
        "note: unknown: the last-level cache of CPUs 0-3",
        "note: 5 workers are too many for 3 CPUs",
    ] {
        assert!(said.contains(part), "'{part}' is not in:\n{said}");
    }
    let plan = json(&topology(&["--root", &root, "--json"]));
    assert_eq!((&plan["measurement"], &plan["usable"], &plan["offline"]), (&Value::Null, &"0-2".into(), &"4-5".into()));
}

#[test]
fn what_cannot_be_is_refused_in_words() {
    assert_error(&topology(&["--root", "/no/such/place"]), &["/no/such/place", "name one that holds sys and proc"]);
    for wrong in
        [&["--workers", "0"][..], &["--measure", "--no-measure"], &["--full", "--no-measure"], &["--root", "/", "--measure"]]
    {
        assert_eq!(topology(wrong).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn bench_and_ping_take_auto_and_lists_and_nothing_else() {
    let daemon = serve(&["a=memory:1M"]);
    let bench = |cpus: &str| {
        daemon.fipsee(&["bench", "a", "--seconds", "0.05", "--depth", "4", "--queues", "2", "--json", "--cpus", cpus])
    };
    let first = pin::allowed().expect("some")[0].to_string();
    for cpus in ["auto", &first] {
        assert!(json(&bench(cpus))["requests"].as_u64().is_some_and(|count| count > 0));
    }
    let wrong = bench("fastest");
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("neither auto nor a list of CPUs"));
    let ping = Command::new(FIPSEE).args(["ping", "--queue", "1", "--seconds", "0.02", "--cpus", "auto"]).output();
    assert_success(&ping.expect("fipsee runs"));
}
