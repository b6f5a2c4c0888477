//! `fipsee ping --report`: the tables of the Fip-see report as a page.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use fipsee_testkit::{Guard, Scratch, eventually};
use fipsee_topology::pin;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;

use crate::program::{FIPSEE, assert_error, assert_keys, assert_success, text};

const FILES: [&str; 4] = ["report.json", "report.md", "sizes.svg", "waits.svg"];
/// The picture of the machine's lines, with two CPUs.
const LINES_PICTURE: &str = "figure-6.svg";
const QUICK_S: &str = "2";

fn report(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(FIPSEE);
    command.args(["ping", "--report-seconds", QUICK_S, "--report"]).arg(directory).args(arguments);
    command.output().expect("fipsee runs")
}

fn names(directory: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(directory).expect("a directory");
    entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

fn expected_names() -> BTreeSet<String> {
    let has_two = pin::allowed().is_some_and(|cpus| cpus.len() > 1);
    FILES.into_iter().chain(has_two.then_some(LINES_PICTURE)).map(str::to_owned).collect()
}

fn figures(directory: &Path) -> Value {
    let text = std::fs::read_to_string(directory.join("report.json")).expect("figures");
    serde_json::from_str(&text).expect("JSON")
}

fn page(directory: &Path) -> String {
    std::fs::read_to_string(directory.join("report.md")).expect("a page")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("a list: {value}"))
}

fn number(object: &Value, key: &str) -> f64 {
    object[key].as_f64().unwrap_or_else(|| panic!("{key} is a number: {object}"))
}

/// A row has sound figures, or says why it has none.
fn assert_row(row: &Value) {
    assert_keys(row, &["design", "queue", "pause", "caller_wait", "answerer_wait"]);
    if let Some(reason) = row["unavailable"].as_str() {
        assert!(reason.contains("CPUID leaf") || reason.contains("no doorbell"), "{row}");
        return;
    }
    let [min, p50, p99] = ["min", "p50", "p99"].map(|name| number(row, &format!("cycles_per_batch_{name}")));
    let half_a_step = 13.0_f64.max(p50 / 100.0) * 2.0; // The median is interpolated within the counter's step.
    assert!(min > 0.0 && min <= p50 + half_a_step && p50 <= p99 + half_a_step, "{row}");
    assert!(number(row, "cycles_per_batch_mean") >= min && number(row, "batches") >= 1.0, "{row}");
    assert!(number(row, "cycles_per_message") <= p50, "{row}");
    assert!(!list(&row["rounds"]).is_empty(), "{row}");
}

fn designs<'a>(rows: &'a [Value], design: &str) -> Vec<&'a Value> {
    rows.iter().filter(|row| row["design"] == design).collect()
}

fn assert_tables(figures: &Value) {
    let tables = list(&figures["tables"]);
    assert_eq!(tables.iter().map(|table| table["table"].as_u64()).collect::<Vec<_>>(), (1..=7).map(Some).collect::<Vec<_>>());
    for table in tables {
        assert_keys(table, &["title", "in_the_report"]);
        let is_of_states = table["table"] == 2;
        list(&table["rows"]).iter().filter(|_| !is_of_states).for_each(assert_row);
    }
    for (index, queues, pause) in [(0, &[1, 2, 4, 8, 16, 32, 64][..], true), (4, &[1], false), (5, &[2, 4, 8, 16, 32, 64], false)]
    {
        for design in ["channel", "classic"] {
            let rows = designs(list(&tables[index]["rows"]), design);
            assert_eq!(rows.iter().map(|row| row["queue"].as_u64().unwrap_or(0)).collect::<Vec<_>>(), queues, "{design}");
            assert!(rows.iter().all(|row| row["pause"] == pause && number(row, "cycles_per_batch_p50") > 0.0), "{design}");
            assert!(rows.iter().all(|row| number(&row["in_the_report"], "median") > 0.0), "{design}");
        }
        assert_eq!(designs(list(&tables[index]["rows"]), "one-line").len(), queues.len(), "a floor for each size");
    }
    // One of tables 3 and 4 has figures, the other gives the reason: turbo is on or off.
    let with_reason: Vec<&Value> = [&tables[2], &tables[3]].into_iter().filter(|table| !table["missing"].is_null()).collect();
    assert!(with_reason.len() == 1 && list(&with_reason[0]["rows"]).is_empty(), "{with_reason:?}");
    for table in [&tables[2], &tables[3], &tables[6]].into_iter().filter(|table| table["missing"].is_null()) {
        let rows = designs(list(&table["rows"]), "channel");
        let ways: Vec<_> = rows.iter().filter_map(|row| row["answerer_wait"].as_str()).collect();
        assert_eq!(ways, ["adaptive", "pause", "spin", "yield", "sleep", "umwait", "tpause", "monitorx"]);
        let caller = if table["table"] == 7 { "spin" } else { "pause" };
        assert!(rows.iter().all(|row| row["caller_wait"] == caller), "{table}");
        if table["table"] != 7 {
            let wake_ups = list(&table["wake_ups"]);
            assert!(!wake_ups.is_empty() && wake_ups.iter().all(|row| number(row, "ns_p50") > 0.0), "{wake_ups:?}");
        }
    }
}

#[test]
fn the_page_has_every_table_and_figure_and_replaces_an_earlier_one_only() {
    let directory = Scratch::new();
    let place = directory.path("page");
    let output = report(&place, &[]);
    assert_success(&output);
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{}\n", place.join("report.md").display()));
    assert_eq!(names(&place), expected_names());
    let figures = figures(&place);
    assert_tables(&figures);
    assert_eq!(list(&figures["waits"]).len(), 3 * 64, "each way beside each, by three designs");
    list(&figures["waits"]).iter().for_each(assert_row);
    let page = page(&place);
    for number in 1..=7 {
        assert_eq!(page.matches(&format!("\n## Table {number}: ")).count(), 1, "table {number}");
    }
    for part in
        ["## The machine", "## One side waits differently", "## Pairs of CPUs", "## Figure 6", "quote none of its figures"]
    {
        assert!(page.contains(part), "{part}");
    }
    for name in names(&place).iter().filter(|name| name.ends_with(".svg")) {
        let picture = std::fs::read_to_string(place.join(name)).expect("a picture");
        assert!(picture.starts_with("<svg") && page.contains(&format!("]({name})")), "{name}");
    }
    // The planned measurements fit into the given time.
    let measured = ["waits", "pairs"].map(|key| list(&figures[key]).iter().filter(|row| row["design"] != "one-line").count());
    let measured = u32::try_from(measured.iter().sum::<usize>()).expect("few");
    let planned = number(&figures, "rounds") * number(&figures, "seconds_per_measurement") * f64::from(measured);
    assert!(planned > 0.0 && planned <= QUICK_S.parse().expect("a number"), "{planned}");

    std::fs::write(place.join("notes.txt"), "mine").expect("a file");
    let old = std::fs::read_to_string(place.join("report.json")).expect("figures");
    assert_success(&report(&place, &[]));
    assert_ne!(old, std::fs::read_to_string(place.join("report.json")).expect("figures"));
    let mut expected = expected_names();
    expected.insert("notes.txt".to_owned());
    assert_eq!(names(&place), expected, "what is not the report's stays");
}

#[test]
fn pairs_are_measured_both_ways_beside_the_floor_of_their_rounds() {
    if pin::allowed().is_none_or(|cpus| cpus.len() < 2) {
        return eprintln!("fipsee-skip: pairs of CPUs: there is one CPU to be used here");
    }
    let directory = Scratch::new();
    let place = directory.path("page");
    std::fs::create_dir(&place).expect("an empty directory is good");
    assert_success(&report(&place, &[]));
    let figures = figures(&place);
    let pairs = list(&figures["pairs"]);
    pairs.iter().for_each(assert_row);
    for row in designs(pairs, "channel") {
        let back = serde_json::json!([row["cpus"][1], row["cpus"][0]]);
        let is_back = |other: &&&Value| other["cpus"] == back && other["queue"] == row["queue"];
        assert_eq!(designs(pairs, "channel").iter().filter(is_back).count(), 1, "{row}");
        assert_keys(row, &["ratio_to_classic", "ratio_to_one_line"]);
        assert!(list(&row["rounds"]).iter().all(|round| number(round, "one_line_cycles") > 0.0), "{row}");
    }
    assert!(!list(&figures["figure_6"]["costs"]).is_empty());
}

#[test]
fn on_one_cpu_there_are_tables_and_a_sentence_instead_of_pairs() {
    let directory = Scratch::new();
    let place = directory.path("page");
    let cpu = pin::allowed().expect("some")[0].to_string();
    let mut command = Command::new("taskset");
    command.args(["-c", &cpu, FIPSEE, "ping", "--report-seconds", QUICK_S, "--report"]).arg(&place);
    let Ok(output) = command.output() else {
        return eprintln!("fipsee-skip: the report on one CPU: taskset is missing; install util-linux");
    };
    assert_success(&output);
    assert_eq!(names(&place), FILES.map(str::to_owned).into(), "no figure 6");
    let page = page(&place);
    assert!(page.contains("This process may use one CPU") && page.contains("there is one CPU to be used here"), "{page}");
    let figures = figures(&place);
    assert_tables(&figures);
    assert!(list(&figures["pairs"]).is_empty() && figures["figure_6"]["missing"].is_string());
}

#[test]
fn a_directory_with_something_else_is_refused_before_anything_is_measured() {
    let directory = Scratch::new();
    let other = directory.path("other");
    std::fs::create_dir(&other).expect("a directory");
    std::fs::write(other.join("thesis.txt"), "mine").expect("a file");
    assert_error(&report(&other, &[]), &["thesis.txt and no earlier report", "name a directory that is new"]);
    // A file of that name is no report.
    std::fs::write(other.join("report.json"), "{\"report\": \"mine\"}").expect("a file");
    assert_error(&report(&other, &[]), &["no earlier report"]);
    assert_eq!(names(&other), ["report.json", "thesis.txt"].map(str::to_owned).into());
    let file = directory.file("file", b"mine");
    assert_error(&report(&file, &[]), &["is no directory"]);
    assert_error(&report(&directory.path("no/such/place"), &[]), &["cannot create", "check the name"]);
    let fresh = directory.path("fresh");
    assert_error(&report(&fresh, &["--cpus", "0,0"]), &["two different CPUs"]);
    assert!(!fresh.exists(), "nothing was measured, nothing is left");
}

#[test]
fn the_report_cannot_be_combined_with_other_modes() {
    let directory = Scratch::new();
    let place = text(&directory.path("page"));
    for other in [
        &["--queue", "1"][..],
        &["--queues", "1,2"],
        &["--stream"],
        &["--design", "bare"],
        &["--wait", "pause"],
        &["--first-look", "1,2"],
        &["--no-pause"],
        &["--threads"],
        &["--waits"],
        &["--seconds", "1"],
        &["--rounds", "2"],
        &["--compare"],
        &["--ablate"],
        &["--json"],
        &["--plot", "a.svg"],
    ] {
        let output = Command::new(FIPSEE).args(["ping", "--report", &place]).args(other).output().expect("fipsee runs");
        assert_eq!(output.status.code(), Some(2), "{other:?}");
    }
    let alone = Command::new(FIPSEE).args(["ping", "--report-seconds", "1"]).output().expect("fipsee runs");
    assert_eq!(alone.status.code(), Some(2), "a time for no report");
    assert!(!Path::new(&place).exists());
}

/// A report that is being measured: its second process is there.
fn start(directory: &Path) -> Guard {
    let mut command = Command::new(FIPSEE);
    command.args(["ping", "--report-seconds", "600", "--report"]).arg(directory).stdout(Stdio::null()).stderr(Stdio::piped());
    command.process_group(0);
    let guard = Guard(command.spawn().expect("fipsee runs"));
    let children = PathBuf::from(format!("/proc/{0}/task/{0}/children", guard.0.id()));
    eventually("a second process is there", || !std::fs::read_to_string(&children).unwrap_or_default().is_empty());
    guard
}

fn stop(mut guard: Guard, signal: Signal) -> String {
    let pid = i32::try_from(guard.0.id()).ok().and_then(Pid::from_raw).expect("a process");
    // Ctrl-C goes to both processes, other signals to the first one only.
    let sent = if signal == Signal::INT { kill_process_group(pid, signal) } else { kill_process(pid, signal) };
    sent.expect("a signal");
    let mut said = String::new();
    guard.0.stderr.take().expect("its errors").read_to_string(&mut said).expect("text");
    assert_eq!(guard.0.wait().expect("it ends").code(), Some(1), "{said}");
    said
}

#[test]
fn a_report_that_is_stopped_leaves_nothing_behind_and_an_earlier_one_as_it_was() {
    let directory = Scratch::new();
    for signal in [Signal::INT, Signal::TERM] {
        let place = directory.path("page");
        let said = stop(start(&place), signal);
        assert!(said.contains("stopped by a signal; nothing was written to"), "{said}");
        assert!(!place.exists(), "a directory that it made itself goes");
    }
    let earlier = directory.path("earlier");
    assert_success(&report(&earlier, &[]));
    let (files, page_before) = (names(&earlier), page(&earlier));
    stop(start(&earlier), Signal::INT);
    assert_eq!((names(&earlier), page(&earlier)), (files, page_before));
}

#[test]
fn a_report_whose_second_process_dies_says_so_and_leaves_nothing_behind() {
    let directory = Scratch::new();
    let place = directory.path("page");
    let mut guard = start(&place);
    let children = format!("/proc/{0}/task/{0}/children", guard.0.id());
    eventually("it ends without a second process", || {
        // It may be the one that sleeps or one that polls. Another may take its place before the signal arrives.
        let text = std::fs::read_to_string(&children).unwrap_or_default();
        if let Some(child) = text.split_whitespace().next().and_then(|word| Pid::from_raw(word.parse().ok()?)) {
            let _ = kill_process(child, Signal::KILL);
        }
        guard.0.try_wait().expect("a child to ask").is_some()
    });
    let mut said = String::new();
    guard.0.stderr.take().expect("its errors").read_to_string(&mut said).expect("text");
    assert!(said.contains("error: ") && said.contains("the answering "), "{said}");
    assert!(!place.exists());
}
