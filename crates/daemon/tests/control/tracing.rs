//! The tracing scripts that ship: what they use is in the program, and they show what happens where the kernel lets bpftrace run.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use fipsee_testkit::process::Guard;
use fipsee_testkit::{Daemon, assert_says, eventually, skip};
use serde_json::json;

use crate::metrics::is_missing;

const SCRIPTS: [(&str, &str); 2] = [
    ("client-latency.bt", include_str!("../../../../packaging/bpftrace/client-latency.bt")),
    ("worker-wakes.bt", include_str!("../../../../packaging/bpftrace/worker-wakes.bt")),
];
const INSTALLED: &str = "/usr/bin/fipseed";

/// The probes of the program, with the fewest arguments that a place of theirs has.
fn probes() -> BTreeMap<String, usize> {
    let output = Command::new("readelf").args(["--notes", env!("CARGO_BIN_EXE_fipseed")]).output().expect("readelf");
    let (text, mut probes) = (String::from_utf8_lossy(&output.stdout).into_owned(), BTreeMap::new());
    for note in text.split("Provider: fipsee\n").skip(1) {
        let field = |name: &str| note.lines().find_map(|line| line.trim().strip_prefix(name)).unwrap_or_default().trim();
        let count = field("Arguments:").split_whitespace().count();
        let fewest = probes.entry(field("Name:").to_owned()).or_insert(count);
        *fewest = count.min(*fewest);
    }
    probes
}

/// The probes that a script uses, with the number of arguments that it needs.
fn used(script: &str) -> Vec<(String, usize)> {
    let beginning = format!("usdt:{INSTALLED}:fipsee:");
    let blocks = script.split(&beginning).skip(1);
    let needed = |block: &str| {
        let (name, body) = block.split_once('\n').expect("a block");
        let most = (0..10).rev().find(|index| body.contains(&format!("arg{index}")));
        (name.to_owned(), most.map_or(0, |most| most + 1))
    };
    blocks.map(needed).collect()
}

#[test]
fn probes_of_the_scripts_are_in_the_program() {
    if is_missing("readelf") {
        return skip("the probes of the program", "there is no readelf");
    }
    let probes = probes();
    let all = ["attach", "complete", "detach", "doorbell", "publish", "sleep", "submit", "take", "visit", "wake"];
    assert_eq!(probes.keys().map(String::as_str).collect::<Vec<_>>(), all);
    let guide = include_str!("../../../../docs/guide/tracing.md");
    for (name, count) in &probes {
        let line = guide.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
        let line = line.unwrap_or_else(|| panic!("docs/guide/tracing.md has no {name}"));
        let arguments = line.split('|').nth(3).expect("a column").split('`').skip(1).step_by(2).count();
        assert_eq!(arguments, *count, "{line}");
    }
    for (script, text) in SCRIPTS {
        let used = used(text);
        assert!(used.len() >= 3, "{script}: {used:?}");
        for (probe, arguments) in used {
            let there = probes.get(&probe).copied();
            assert!(there.is_some_and(|there| there >= arguments), "{script} needs {arguments} of {probe}, of {there:?}");
        }
    }
}

/// What a script prints about a daemon that does this work; `None` if bpftrace cannot run here.
fn trace((name, text): (&str, &str), work: impl FnOnce(&Daemon)) -> Option<String> {
    let mut daemon = Daemon::start(&["--disk", "m=memory:1M", "--disk", "f=file:{dir}/f,size=1M"]);
    let folder = daemon.dir.path("");
    let path = |name: &str| folder.join(name);
    std::fs::write(path(name), text.replace(INSTALLED, env!("CARGO_BIN_EXE_fipseed"))).expect("a file");
    let file = |name: &str| std::fs::File::create(path(name)).expect("a file");
    let mut command = Command::new("bpftrace");
    // Tests beside this one have daemons of the same program.
    command
        .args(["-B", "none", "-p", &daemon.pid().to_string()])
        .arg(path(name))
        .stdin(Stdio::null())
        .stdout(file("traced"))
        .stderr(file("errors"));
    let mut tracer = Guard(command.spawn().expect("bpftrace"));
    let traced = || std::fs::read_to_string(path("traced")).expect("a file");
    let mut has_ended = false;
    eventually("it traces, or cannot", || {
        has_ended = tracer.0.try_wait().expect("a child can be asked").is_some();
        has_ended || traced().contains("Ctrl-C ends it")
    });
    if has_ended {
        let errors = std::fs::read_to_string(path("errors")).expect("a file");
        skip(name, errors.lines().rfind(|line| !line.starts_with("WARNING")).unwrap_or("bpftrace cannot run"));
        return None;
    }
    work(&daemon);
    // It also ends with the process that it traces. Debian's bpftrace (0.17) can lose a signal: it looks for one only if that
    // interrupts its wait for events.
    daemon.signal_term();
    assert!(daemon.await_exit().success(), "{}", daemon.log());
    eventually("it ends", || tracer.0.try_wait().expect("a child can be asked").is_some());
    Some(traced())
}

#[test]
fn scripts_show_latencies_and_reasons_to_wake() {
    if is_missing("bpftrace") {
        return skip("the tracing scripts", "there is no bpftrace");
    }
    let [latency, wakes] = SCRIPTS;
    let mut numbers = Vec::new();
    let traced = trace(latency, |daemon| {
        let mut clients = ["m", "f"].map(|disk| daemon.blocking(disk));
        let stat = daemon.admin(&json!({ "method": "stat" }));
        numbers = [0, 1].map(|disk| stat["disks"][disk]["clients"][0]["client"].clone()).to_vec();
        for client in &mut clients {
            (0..20).for_each(|_| client.write_at(&[1; 512], 0).expect("written"));
        }
    });
    let Some(traced) = traced else { return };
    let [memory, file] = [&numbers[0], &numbers[1]];
    assert_says(&traced, &[&format!("@visit_us[{memory}]"), &format!("@visit_us[{file}]"), &format!("@disk_us[{file}]")]);
    assert!(!traced.contains(&format!("@disk_us[{memory}]")), "{traced}");
    let mut number = json!(null);
    let traced = trace(wakes, |daemon| {
        let slept = || daemon.admin(&json!({ "method": "stat" }))["workers"][0]["sleeps"].as_u64().expect("a number");
        let mut client = daemon.blocking("m");
        number = daemon.admin(&json!({ "method": "stat" }))["disks"][0]["clients"][0]["client"].clone();
        let mut before = 0;
        for _ in 0..5 {
            eventually("the worker sleeps again", || slept() > before);
            before = slept();
            client.write_at(&[1; 512], 0).expect("written");
        }
    });
    let traced = traced.expect("it has run before");
    assert_says(&traced, &["@wakes[fip-worker-0, command]", "@wakes[fip-worker-0, doorbell]", "@slept_us[fip-worker-0]"]);
    assert_says(&traced, &[&format!("@doorbells[{number}, 0]")]);
}
