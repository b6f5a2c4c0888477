//! The benchmark from end to end, as briefly as possible: it must run; its figures mean nothing.

use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use fipsee_testkit::process::Guard;
use fipsee_testkit::system::find_program;
use fipsee_testkit::{Scratch, eventually, skip};
use serde_json::Value;

/// The benchmark over what ships, its files in `directory`; `None`, with a message, when nothing was built.
fn bench(what: &str, directory: &Path) -> Option<Command> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let is_built = std::env::var_os("FIPSEE_DIST").is_some_and(|dist| root.join(dist).join("bin/fipseed").exists());
    if !is_built {
        skip(what, "needs what ships; run `cargo xtask test`");
        return None;
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_fipsee-bench"));
    command.current_dir(root).env("TMPDIR", directory).stdin(Stdio::null());
    command.arg("--results").arg(directory).arg("--file-directory").arg(directory);
    Some(command)
}

/// How it ended, and all that it printed.
fn run(command: &mut Command) -> (ExitStatus, String) {
    let output = command.output().expect("the benchmark starts");
    (output.status, [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat())
}

fn number(series: &[Value], candidate: &str, metric: &str) -> f64 {
    let found = series.iter().find(|one| one["candidate"] == candidate && one["metric"] == metric);
    found.and_then(|one| one["median"].as_f64()).unwrap_or_else(|| panic!("no {metric} of {candidate} in {series:#?}"))
}

#[test]
fn every_way_that_is_there_is_measured_and_nothing_is_left_behind() {
    let directory = Scratch::new();
    let Some(mut command) = bench("benchmark", &directory.0) else { return };
    command.args(["--quick", "--only=4 KiB read QD1", "--only=plain memcpy", "--only=one line"]);
    let (status, text) = run(&mut command);
    assert!(status.success(), "{text}");
    let lines = std::fs::read_to_string(directory.0.join("block-part.jsonl")).expect("results");
    assert_eq!(lines.lines().count(), 1, "one line per run");
    let run: Value = serde_json::from_str(&lines).expect("JSON");
    let series = run["series"].as_array().expect("series");
    let mut expected = vec!["in-process call, null disk", "in-process call, memory disk", "Rust library, null disk"];
    for (program, ways) in [
        ("fio", &["fio's null engine", "psync on tmpfs", "io_uring on tmpfs"][..]),
        ("qemu-storage-daemon", &["qemu vhost-user-blk, polling", "qemu vhost-user-blk, eventfd"]),
        ("nbdkit", &["nbdkit null"]),
    ] {
        expected.extend(if find_program(program).is_some() { ways } else { &[] });
    }
    for way in expected {
        let candidate = format!("{way}, 4 KiB read QD1");
        assert!(number(series, &candidate, "iops") > 0.0, "{candidate}\n{text}");
        assert!(number(series, &candidate, "latency_ns_p99") >= number(series, &candidate, "latency_ns_p50"), "{candidate}");
        if !way.starts_with("in-process") {
            assert!(number(series, &candidate, "cpu_ns_per_io") > 0.0, "{candidate}\n{text}");
        }
    }
    assert!(number(series, "plain memcpy loop", "bandwidth_bytes_per_s") > 0.0);
    for skip in run["skipped"].as_array().expect("skips") {
        assert!(skip["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{skip}");
    }
    let svg = std::fs::read_to_string(directory.0.join("block-part.svg")).expect("a plot");
    assert!(svg.contains("Rust library, null disk") && svg.trim_end().ends_with("</svg>"));
    let mut left: Vec<_> =
        std::fs::read_dir(&directory.0).expect("the directory").flatten().map(|entry| entry.file_name()).collect();
    left.retain(|name| !name.to_string_lossy().starts_with("block-part."));
    assert!(left.is_empty(), "left behind: {left:?}");
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("mounts");
    assert!(!mounts.contains(&*directory.0.to_string_lossy()), "a mount is left:\n{mounts}");
}

#[test]
fn nothing_to_measure_is_an_error() {
    let directory = Scratch::new();
    let Some(mut command) = bench("benchmark of nothing", &directory.0) else { return };
    let (status, text) = run(command.args(["--quick", "--only=no such candidate"]));
    assert!(!status.success() && text.contains("--only"), "{text}");
    assert_eq!(std::fs::read_dir(&directory.0).expect("the directory").count(), 0, "something is left behind");
}

/// The one line of results in `directory`, beside which nothing is left.
fn only_line(directory: &Path, file: &str, text: &str) -> Value {
    let lines = std::fs::read_to_string(directory.join(file)).unwrap_or_else(|error| panic!("no results: {error}\n{text}"));
    assert_eq!(lines.lines().count(), 1, "one line per run");
    assert_eq!(std::fs::read_dir(directory).expect("the directory").count(), 1, "something is left behind:\n{text}");
    serde_json::from_str(&lines).expect("JSON")
}

#[test]
fn the_end_of_either_side_and_the_pause_of_a_takeover_are_timed() {
    let directory = Scratch::new();
    let Some(mut command) = bench("benchmark of notices", &directory.0) else { return };
    let (status, text) = run(command.args(["notice", "--quick"]));
    assert!(status.success(), "{text}");
    let run = only_line(&directory.0, "notice-part.jsonl", &text);
    let series = run["series"].as_array().expect("series");
    for candidate in ["daemon killed: noticed, waiting by sleep", "client killed: everything of it is released"] {
        assert!(number(series, candidate, "ms") > 0.0, "{text}");
    }
    assert!(number(series, "takeover: longest time without an answer", "ms") > 0.0, "{text}");
    assert!(run["machine"]["others_percent"].is_number(), "{run}");
}

#[test]
fn the_report_s_server_and_ours_have_the_same_clients_and_a_greedy_user_is_measured_beside_others() {
    let directory = Scratch::new();
    let Some(mut command) = bench("benchmark of scale", &directory.0) else { return };
    command.args(["scale", "--quick"]).arg("--memory-directory").arg(&directory.0);
    let (status, text) = run(&mut command);
    assert!(status.success(), "{text}");
    let lines = std::fs::read_to_string(directory.0.join("scale-part.jsonl")).expect("results");
    let run: Value = serde_json::from_str(lines.trim()).expect("one line of JSON");
    let series = run["series"].as_array().expect("series");
    let has_compiler = find_program("cc").is_some();
    let servers =
        ["fipseed, one queue", "fipseed, a connection each", "fipseed, a connection and a thread each", "the report's server"];
    for server in &servers[..if has_compiler { 4 } else { 3 }] {
        let candidate = format!("{server}: 10 slots, 100 clients, 1000 requests, 1 MiB");
        let [max, mean, min] = ["max", "mean", "min"].map(|figure| number(series, &candidate, &format!("latency_us_{figure}")));
        assert!(max >= mean && mean >= min && min > 0.0, "{candidate}\n{text}");
        assert!(number(series, &candidate, "requests_per_s") > 0.0, "{candidate}\n{text}");
        let fairness = number(series, &candidate, "fairness_index");
        assert!((0.01..=1.000_001).contains(&fairness), "{candidate}: {fairness}");
    }
    for beside in ["1 user with 1 full queue", "1 user with 16 full queues", "2 users with 16 full queues"] {
        let candidate = format!("depth 1 beside {beside}");
        assert!(number(series, &candidate, "latency_ns_max") >= number(series, &candidate, "latency_ns_p50"), "{text}");
    }
    assert!(number(series, "others beside a greedy user with 16 full queues", "requests_per_s") > 0.0, "{text}");
    for workers in ["null disk, 4 KiB, QD1, 1 worker", "memory disk, 16 KiB, QD4, 2 workers"] {
        for how in ["measured", "simulated"] {
            let candidate = format!("{how}: {workers}, 4 clients");
            assert!(number(series, &candidate, "requests_per_s") > 0.0, "{candidate}\n{text}");
        }
    }
    let larger = series
        .iter()
        .filter(|one| one["candidate"].as_str().is_some_and(|name| name.starts_with("simulated: 4 CPUs, 10 clients")));
    assert_eq!(larger.count(), 1, "{text}");
    assert!(run["costs"][0]["at"][0]["visit_ns"].as_f64().is_some_and(|ns| ns > 0.0), "{}", run["costs"]);
    assert!(number(series, "open loop at half of depth times 1000 notifications/s", "notifications_per_s") > 0.0, "{text}");
    for policy in ["auto", "off", "min 32", "rate 5000"] {
        let candidate = format!("notify {policy}: memory disk, 4 KiB, QD8");
        let [rate, cpu] = ["requests_per_s", "cpu_ns_per_io"].map(|metric| number(series, &candidate, metric));
        assert!(rate > 0.0 && cpu > 0.0, "{candidate}\n{text}");
    }
    assert!(number(series, "limit of a disk: 1000 iops, 4 KiB, QD32", "requests_per_s") > 0.0, "{text}");
    if std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1) {
        for beside in ["alone", "beside 100 shared clients", "beside 100 clients of another daemon"] {
            let candidate = format!("dedicated null disk, 4 KiB, QD1, {beside}");
            assert!(number(series, &candidate, "service_ns_p999") >= number(series, &candidate, "service_ns_p50"), "{text}");
        }
    }
    for picture in ["scale-tables-part.svg", "scale-fairness-part.svg", "scale-workers-part.svg"] {
        let svg = std::fs::read_to_string(directory.0.join(picture)).expect(picture);
        assert!(svg.trim_end().ends_with("</svg>"), "{picture}");
    }
    let left = std::fs::read_dir(&directory.0).expect("the directory").flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name()).filter(|name| !name.to_string_lossy().starts_with("scale-")).collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

#[test]
fn frames_are_measured_beside_the_null_disk_and_the_kernel_and_their_stages_are_timed() {
    if std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() < 2) {
        return skip("benchmark of networks", "needs two CPUs, for ports and worker");
    }
    let directory = Scratch::new();
    let Some(mut command) = bench("benchmark of networks", &directory.0) else { return };
    command.args(["net", "--quick", "--only=two ports", "--only=null disk", "--only=round trip, 64 B", "--only=stages"]);
    command.args(["--only=copies", "--only=idle", "--only=misbehaviour", "--only=switch, 64 B"]);
    let (status, text) = run(&mut command);
    assert!(status.success(), "{text}");
    let run: Value = serde_json::from_str(std::fs::read_to_string(directory.0.join("net-part.jsonl")).expect("results").trim())
        .expect("one line");
    let series = run["series"].as_array().expect("series");
    assert!(number(series, "null disk QD1", "latency_ns_p50") > 0.0, "{text}");
    for size in ["64 B", "64 KiB"] {
        let [there, back, steps] = ["one way", "round trip", "four steps"].map(|exchange| {
            let candidate = format!("two ports, {exchange}, {size}");
            assert!(number(series, &candidate, "latency_ns_min") > 0.0, "{text}");
            number(series, &candidate, "latency_ns_p50")
        });
        assert!(there > 0.0 && back > 0.0 && steps > 0.0, "{text}");
        assert!(number(series, &format!("two ports, one-way rate, {size}"), "messages_per_s") > 0.0, "{text}");
    }
    let skipped: Vec<_> = run["skipped"].as_array().expect("skips").iter().map(|skip| &skip["candidate"]).collect();
    for way in ["TCP loopback", "veth, PACKET_MMAP", "veth, AF_XDP copy mode, two CPUs"]
        .into_iter()
        .filter(|way| !skipped.contains(&&Value::from(*way)))
    {
        assert!(number(series, &format!("{way}, round trip, 64 B"), "latency_ns_p50") > 0.0, "{text}");
    }
    let stage = "stage 2: it publishes, until the worker has the message";
    assert!(number(series, stage, "latency_ns_mean") > 0.0, "{text}");
    assert!(number(series, "frames of 9000 B, copied in and out", "bandwidth_bytes_per_s") > 0.0, "{text}");
    for beside in ["1000 idle ports", "a port that spoofs", "a port that never reads"] {
        assert!(number(series, &format!("pair beside {beside}"), "messages_per_s") > 0.0, "{text}");
    }
    let svg = std::fs::read_to_string(directory.0.join("net-part.svg")).expect("a picture");
    assert!(svg.contains("two ports") && svg.trim_end().ends_with("</svg>"));
    let left = std::fs::read_dir(&directory.0).expect("the directory").flatten();
    let left: Vec<_> =
        left.map(|entry| entry.file_name()).filter(|name| !name.to_string_lossy().starts_with("net-part.")).collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

#[test]
fn tcp_of_a_guest_is_measured_through_a_port_and_its_vector_tap() {
    let what = "benchmark of a guest's TCP";
    let xtask = Path::new(env!("CARGO_BIN_EXE_fipsee-bench")).with_file_name("xtask");
    if !xtask.exists() {
        return skip(what, "needs xtask, which prepares the guest; run `cargo xtask test`");
    }
    let directory = Scratch::new();
    let Some(mut command) = bench(what, &directory.0) else { return };
    let (status, text) = run(command.args(["net", "--quick", "--only=guest"]).env("FIPSEE_XTASK", xtask));
    assert!(status.success(), "{text}");
    let run = only_line(&directory.0, "net-part.jsonl", &text);
    if let Some(skipped) = run["skipped"].as_array().expect("skips").first() {
        return skip(what, skipped["reason"].as_str().filter(|reason| !reason.is_empty()).expect("a reason"));
    }
    let series = run["series"].as_array().expect("series");
    for way in ["vector TAP", "port"] {
        for place in ["beside the worker", "beside the guest"] {
            let of = |load: &str, metric| number(series, &format!("guest's TCP, {way}, {load}, program {place}"), metric);
            for load in ["from the guest", "to the guest"] {
                assert!(of(load, "bandwidth_bytes_per_s") > 0.0, "{text}");
            }
            assert!(of("round trip of 64 B", "latency_ns_p50") > 0.0, "{text}");
        }
    }
    assert!(run["claims"].as_array().is_some_and(|claims| claims.len() == 3), "{run}");
}

#[test]
fn faulty_clients_of_ports_are_measured_beside_a_pair_and_beside_the_client_of_a_disk() {
    let directory = Scratch::new();
    let Some(mut command) = bench("benchmark of faulty clients", &directory.0) else { return };
    let cases =
        ["slots of random bytes", "port: frames that are never taken", "port, beside a disk's client: addresses of others"];
    command.args(["hostile", "--quick", "--markdown"]).args(cases.map(|case| format!("--only={case}")));
    let (status, text) = run(&mut command);
    assert!(status.success(), "{text}");
    let run = only_line(&directory.0, "hostile-part.jsonl", &text);
    let series = run["series"].as_array().expect("series");
    for case in cases {
        for beside in ["alone", "beside the baseline", "beside the faulty peer"] {
            assert!(number(series, &format!("{case}: {beside}"), "iops") > 0.0, "{text}");
        }
        assert!(number(series, &format!("{case}: beside the faulty peer"), "released_ms") > 0.0, "{text}");
    }
    let shares = run["shares"].as_array().expect("shares");
    assert!(shares.len() == 3 && shares.iter().all(|share| share["of_baseline_own_cpu"].as_f64() > Some(0.0)), "{run}");
}

/// Processes whose parent is `pid`.
fn children(pid: u32) -> Vec<u32> {
    let is_child = |child: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
        parent == Some(pid)
    };
    let processes = std::fs::read_dir("/proc").expect("processes").flatten();
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_child).collect()
}

#[test]
fn servers_end_with_a_benchmark_that_is_killed() {
    let directory = Scratch::new();
    let Some(mut command) = bench("killed benchmark", &directory.0) else { return };
    command.args(["scale", "--only=limits", "--rounds=1000"]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut benchmark = Guard(command.spawn().expect("the benchmark starts"));
    let mut daemons = Vec::new();
    eventually("the benchmark has started a daemon", || {
        daemons = children(benchmark.0.id());
        daemons.retain(|pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "fipseed"));
        !daemons.is_empty()
    });
    benchmark.0.kill().expect("it is killed");
    benchmark.0.wait().expect("it ends");
    let has_ended = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "));
    eventually("its daemon has ended", || daemons.iter().all(has_ended));
}

/// Longer than a quick disk's requests take on a loaded machine.
const SLOW_US: u32 = 100_000;

#[test]
fn old_and_new_are_measured_in_pairs_in_alternating_order() {
    if std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() < 2) {
        return skip("benchmark of pairs", "needs two CPUs, for client and daemon");
    }
    let directory = Scratch::new();
    let Some(bench) = bench("benchmark of pairs", &directory.0) else { return };
    let root = bench.get_current_dir().expect("it is set").to_owned();
    let daemon = root.join(std::env::var_os("FIPSEE_DIST").expect("it is set")).join("bin/fipseed");
    // As new, the same daemon with a null disk that takes its time.
    let slow = Scratch::new();
    let script = format!(
        "#!/bin/sh\nfor word; do shift; case $word in d=null:*) word=d=delay:{SLOW_US}us:${{word#d=}};; esac; set -- \"$@\" \"$word\"; done\n\
         exec '{}' \"$@\"\n",
        daemon.display()
    );
    let new = slow.program("fipseed", slow.file("script", script));
    let mut command = Command::new(env!("CARGO_BIN_EXE_fipsee-bench"));
    command.current_dir(root).env("TMPDIR", &directory.0).stdin(Stdio::null()).arg("pairs").arg(&daemon).arg(&new);
    command.arg("--results").arg(&directory.0).arg("--directory").arg(&directory.0);
    command.args(["--names", "old", "new", "--pairs", "2", "--seconds", "0.02", "--only", "QD1"]);
    let (status, text) = run(&mut command);
    assert!(status.success(), "two pairs cannot show that anything is slower\n{text}");
    let run = only_line(&directory.0, "pairs-part.jsonl", &text);
    assert_eq!((&run["old"]["name"], &run["new"]["name"]), (&"old".into(), &"new".into()));
    assert_ne!(run["old"]["sha256"], run["new"]["sha256"], "different programs");
    assert_eq!(run["old"]["sha256"].as_str().map(str::len), Some(64), "{}", run["old"]);
    let workloads = run["workloads"].as_array().expect("workloads");
    let names: Vec<&str> = workloads.iter().filter_map(|one| one["workload"].as_str()).collect();
    let media = ["null", "memory", "file", "1000 idle, null", "300 clients, null", "vhost-user"];
    let mut expected: Vec<String> = media.iter().map(|medium| format!("{medium}, 4 KiB read QD1")).collect();
    expected.insert(3, "file, 4 KiB write QD1".to_owned());
    assert_eq!(names, expected);
    for pair in workloads[0]["pairs"].as_array().expect("pairs") {
        let [old_ns, new_ns] = ["old_ns", "new_ns"].map(|figure| pair[figure].as_f64().expect("a time"));
        assert!(new_ns >= f64::from(SLOW_US) * 1e3 && old_ns < new_ns, "which is new is known in either order: {pair}");
    }
    for one in workloads {
        let pairs = one["pairs"].as_array().expect("pairs");
        let order: Vec<_> = pairs.iter().map(|pair| pair["new_first"].as_bool()).collect();
        assert_eq!(order, [Some(false), Some(true)], "{one}");
        assert_eq!(one["verdict"], "undecided", "{one}");
        for figure in ["old_ns", "new_ns"] {
            assert!(pairs.iter().all(|pair| pair[figure].as_f64().is_some_and(|ns| ns > 0.0)), "{one}");
        }
        let floors = pairs.iter().flat_map(|pair| pair["floors_ns"].as_array().expect("floors"));
        assert_eq!(floors.filter(|floor| floor.as_f64().is_some_and(|ns| ns > 0.0)).count(), 6, "{one}");
    }
}

#[test]
fn small_writes_are_measured_where_the_device_takes_only_4_kib_and_the_loop_device_goes() {
    let directory = Scratch::new();
    let Some(mut command) = bench("benchmark of small writes", &directory.0) else { return };
    command.args(["small-writes", "--quick", "--markdown", "--only=Fip-see, 512 B, loop", "--only=Fip-see, 4096 B"]);
    command.arg("--memory-directory").arg(&directory.0);
    let (status, text) = run(&mut command);
    if let Some((_, reason)) = text.split_once("skipped: loop device") {
        let reason = reason.lines().next().unwrap_or_default();
        return skip("benchmark of small writes", &format!("loop device{reason}"));
    }
    assert!(status.success(), "{text}");
    let run = only_line(&directory.0, "small-writes-part.jsonl", &text);
    let direct: Vec<_> = run["places"].as_array().expect("places").iter().map(|place| place["direct_bytes"].as_u64()).collect();
    assert_eq!(direct, [Some(512), Some(4096)], "what the kernel says of the two devices\n{text}");
    let series = run["series"].as_array().expect("series");
    for candidate in
        ["512 B, loop device, 512 B sectors", "512 B, loop device, 4096 B sectors", "4096 B, loop device, 4096 B sectors"]
    {
        assert!(number(series, &format!("Fip-see, {candidate}"), "iops") > 0.0, "{text}");
    }
    assert!(text.contains("times as long as one of 4 KiB there"), "{text}");
    let devices = std::fs::read_dir("/sys/block").expect("block devices").flatten();
    let backing = devices.filter_map(|device| std::fs::read_to_string(device.path().join("loop/backing_file")).ok());
    let ours = directory.0.to_string_lossy().into_owned();
    assert_eq!(backing.filter(|file| file.contains(&ours)).count(), 0, "a loop device is left\n{text}");
}
