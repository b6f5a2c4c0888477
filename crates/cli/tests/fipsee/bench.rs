//! `fipsee bench` says what ran.

use std::io::Read;
use std::process::Stdio;

use fipsee_testkit::{Daemon, Guard, wait_for};
use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::program::{Fipsee, assert_success, ending, errors_of, json, pid, serve};

#[test]
fn bench_reports_the_queues_and_the_depth_that_were_granted() {
    let daemon = serve(&["n=null:64M"]);
    let arguments = ["bench", "n", "--queues", "100", "--depth", "100000", "--bs", "512", "--seconds", "0.05"];
    for more in [&["--data-path=memshare"][..], &["--data-path=pool"]] {
        let output = daemon.fipsee(&[&arguments, more, &["--json"]].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let note = "note: the daemon grants a client 16 queues, not 100 (max_queues) and \
                    256 requests in flight per queue, not 100000 (max_depth)\n";
        assert_eq!(said, note);
        let report = json(&output);
        assert_eq!((&report["queues"], &report["depth"]), (&Value::from(16), &Value::from(256)), "{report}");
    }
    let shown = daemon.fipsee(&arguments);
    assert_success(&shown);
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(text.starts_with("n: randread, 512 B each, 16 queues of depth 256, "), "{text}");
    assert!(text.contains("iB/s\n") && text.contains("p99.9 "), "{text}");
    let granted = daemon.fipsee(&["bench", "n", "--queues", "2", "--depth", "7", "--seconds", "0.05"]);
    assert_success(&granted);
    assert!(granted.stderr.is_empty(), "nothing to note: {}", String::from_utf8_lossy(&granted.stderr));
}

#[test]
fn a_load_is_named_as_its_option() {
    let daemon = serve(&["m=memory:1M"]);
    for name in ["randread", "randwrite", "read", "write", "randrw"] {
        let arguments = ["bench", "m", "--rw", name, "--depth", "4", "--seconds", "0.02"];
        assert_eq!(json(&daemon.fipsee(&[&arguments[..], &["--json"]].concat()))["rw"], name);
        let shown = daemon.fipsee(&arguments);
        assert_success(&shown);
        let text = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(text.starts_with(&format!("m: {name}, 4 KiB each, 1 queue of depth 4, ")), "{text}");
    }
}

#[test]
fn what_cannot_run_is_refused_in_a_sentence() {
    let daemon = serve(&["n=null:1M", "r=memory:1M,ro"]);
    for (arguments, code, sentence) in [
        ("n --depth=0", 2, "with none there is no load; write 1 or more"),
        ("n --queues=0", 2, "with none there is no load; write 1 or more"),
        ("n --queues=70000", 2, "write a whole number from 1 to 65535"),
        ("n --depth -1", 2, "write a whole number from 1 to 4294967295"),
        ("n --bs=0", 2, "requests of 0 bytes move nothing"),
        ("n --bs -4k", 2, "'-4k' is negative; write a size without a sign"),
        ("n --seconds=0", 2, "write a number of seconds above 0"),
        ("n --seconds -3", 2, "write a number of seconds above 0"),
        ("n --seconds abc", 2, "write a number of seconds above 0"),
        ("n --bs 100", 1, "is no multiple of the 512 bytes of a block of disk 'n'; use --bs 512"),
        ("n --bs 1000", 1, "use --bs 512 or 1K"),
        ("n --bs 1G", 1, "--bs 1G is longer than the longest request of disk 'n'; use --bs 16M at most"),
        ("n --offset 1T", 1, "--offset 1T is not on disk 'n', which has 1M"),
        ("n --offset 5000", 1, "--offset 5000 is no multiple of --bs 4K; use --offset 4K or 8K"),
        ("n --offset 512K --range 1T", 1, "--range 1T goes beyond the end of disk 'n'; use --range 512K at most"),
        ("n --bs 32K", 1, "1 x 64 requests (--queues, --depth) of 32K do not fit into 1M; use --depth 32 at most"),
        ("n --bs 512K --queues 4", 1, "use a smaller --bs, or a larger disk"),
        ("n --cpus 1000", 1, "CPU 1000 is not one that this process may use; choose from "),
        ("r --rw write", 1, "disk 'r' is exported for reading only; use --rw randread or read, or serve it without ro"),
    ] {
        let words: Vec<&str> = ["bench"].into_iter().chain(arguments.split(' ')).collect();
        let output = daemon.fipsee(&words);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments}: {text}");
        assert!(text.contains(sentence), "{arguments}: {text}");
    }
}

/// A load for an hour, which has begun.
fn start_bench(daemon: &Daemon, arguments: &[&str]) -> Guard {
    let mut command = daemon.command(&[&["bench", "n", "--seconds", "3600"], arguments].concat());
    let bench = Guard(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("fipsee runs"));
    wait_for("requests arrive", || {
        let stat = json(&daemon.fipsee(&["stat", "--json"]));
        stat["queues"][0]["reads"].as_u64().filter(|reads| *reads > 0)
    });
    bench
}

#[test]
fn an_interrupted_bench_prints_what_it_measured() {
    let daemon = serve(&["n=null:64M"]);
    for (signal, code, more) in [(Signal::INT, 130, &["--json"][..]), (Signal::TERM, 143, &[])] {
        let mut bench = start_bench(&daemon, more);
        kill_process(pid(&bench), signal).expect("a signal");
        let mut shown = String::new();
        bench.0.stdout.take().expect("its output").read_to_string(&mut shown).expect("text");
        assert_eq!(ending(&mut bench).code(), Some(code));
        let said = errors_of(&mut bench);
        assert!(said.starts_with("error: interrupted: this is what ") && said.ends_with(" of 3600 s measured\n"), "{said}");
        if more.is_empty() {
            assert!(shown.contains("IOPS") && shown.contains("p50"), "{shown}");
        } else {
            let report: Value = serde_json::from_str(&shown).expect("JSON");
            assert!(report["requests"].as_u64() > Some(0) && report["iops"].as_f64() > Some(0.0), "{report}");
            assert!(report["seconds"].as_f64() < Some(3600.0), "{report}");
        }
    }
}

#[test]
fn bench_reports_the_wake_ups_of_its_queues() {
    let daemon = serve(&["n=null:64M"]);
    let report = json(&daemon.fipsee(&["bench", "n", "--depth", "1", "--wait", "sleep", "--seconds", "0.05", "--json"]));
    let [doorbells, suppressed, wakeups, spurious] =
        ["doorbells", "suppressed", "wakeups", "spurious"].map(|name| report[name].as_u64().expect("a count"));
    assert!(wakeups > 0 && spurious <= wakeups, "it sleeps for each completion: {report}");
    assert!(doorbells <= report["requests"].as_u64().expect("a count") && suppressed == 0, "without a policy: {report}");
}
