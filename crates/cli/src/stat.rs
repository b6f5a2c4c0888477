//! `fipsee stat`: the counters of queues and workers, once or repeatedly with rates.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::error::Error;
use crate::output::{self, Table};
use crate::{admin, units};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Print JSON, one object per line: {"uptime_s", "workers": [...], "disks": [...], "queues": [...]}
    #[arg(long)]
    json: bool,
    /// Repeat after so many seconds, with rates over that time
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    interval: Option<Duration>,
    /// With --interval: stop after so many repetitions [default: never]
    #[arg(long, value_name = "N", requires = "interval")]
    count: Option<u64>,
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| *seconds > 0.0);
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or_else(|| format!("'{text}' is no time; write seconds above 0, for example 0.5"))
}

/// Counters of a queue that become rates: key, key of the rate, heading, are they bytes?
const COUNTERS: [(&str, &str, &str, bool); 6] = [
    ("reads", "reads_per_s", "READS", false),
    ("writes", "writes_per_s", "WRITES", false),
    ("others", "others_per_s", "OTHERS", false),
    ("errors", "errors_per_s", "ERRORS", false),
    ("read_bytes", "read_bytes_per_s", "READ", true),
    ("written_bytes", "written_bytes_per_s", "WRITTEN", true),
];

pub(crate) fn run(socket: &Path, arguments: &Arguments) -> Result<(), Error> {
    let ask = || admin::ask(socket, "stat", &json!({}));
    let (mut before, mut asked) = (ask()?, Instant::now());
    let Some(interval) = arguments.interval else {
        return if arguments.json { output::print_json(&before) } else { output::print(&render_totals(&before)) };
    };
    let mut left = arguments.count.unwrap_or(u64::MAX);
    while left > 0 {
        std::thread::sleep(interval); // tidy: allow sleep, the time between two looks is what the caller asked for
        let (mut now, asked_now) = (ask()?, Instant::now());
        add_rates(&before, &mut now, (asked_now - asked).as_secs_f64());
        if arguments.json {
            output::print_json(&now)?
        } else {
            output::print(&render_rates(&now))?
        }
        (before, asked) = (now, asked_now);
        left -= 1;
    }
    Ok(())
}

/// A queue's name for as long as its client is attached.
fn identity(queue: &Value) -> (u64, u64) {
    (admin::number(queue, "client"), admin::number(queue, "queue"))
}

/// Put rates beside the counters of `now`. A new queue started from 0.
fn add_rates(before: &Value, now: &mut Value, seconds: f64) {
    let old = admin::list(before, "queues");
    let queues = now.get_mut("queues").and_then(Value::as_array_mut);
    for queue in queues.into_iter().flatten() {
        let known = old.iter().find(|other| identity(other) == identity(queue));
        let mut rates = Map::new();
        for (key, rate_key, ..) in COUNTERS {
            let started = known.map_or(0, |known| admin::number(known, key));
            let rate = units::per_second(admin::number(queue, key).saturating_sub(started), seconds);
            rates.insert(rate_key.to_owned(), json!(rate));
        }
        if let Some(object) = queue.as_object_mut() {
            object.extend(rates);
        }
    }
    if let Some(object) = now.as_object_mut() {
        object.insert("interval_s".to_owned(), json!(seconds));
    }
}

fn latencies(queue: &Value) -> [String; 3] {
    ["service_ns_p50", "service_ns_p99", "service_ns_p999"].map(|key| match admin::number(queue, "service_samples") {
        0 => "-".to_owned(),
        _ => units::nanoseconds(admin::number(queue, key)),
    })
}

fn name_cells(queue: &Value) -> Vec<String> {
    let numbers = ["client", "pid", "queue"].map(|key| admin::number(queue, key).to_string());
    std::iter::once(admin::text(queue, "disk").to_owned()).chain(numbers).collect()
}

/// A row for each queue, with what `cell` makes of each counter.
fn queues(stat: &Value, suffix: &str, cell: impl Fn(&Value, (&str, &str, &str, bool)) -> String) -> String {
    let counters = COUNTERS.map(|(.., heading, _)| format!("{heading}{suffix}"));
    let mut headings = vec!["DISK", "CLIENT", "PID", "QUEUE"];
    headings.extend(counters.iter().map(String::as_str).chain(["P50", "P99", "P99.9"]));
    let mut table = Table::new(1, &headings);
    for queue in admin::list(stat, "queues") {
        let cells = COUNTERS.map(|counter| cell(queue, counter));
        table.push(name_cells(queue).into_iter().chain(cells).chain(latencies(queue)).collect());
    }
    table.render()
}

fn render_totals(stat: &Value) -> String {
    let queues = queues(stat, "", |queue, (key, _, _, is_bytes)| count_cell(queue, key, is_bytes));
    let mut workers = Table::new(0, &["WORKER", "CPU", "QUEUES", "SLEEPS"]);
    for worker in admin::list(stat, "workers") {
        let cpu = worker.get("cpu").and_then(Value::as_u64).map_or_else(|| "any".to_owned(), |cpu| cpu.to_string());
        let [index, queue_count, sleeps] = ["worker", "queues", "sleeps"].map(|key| admin::number(worker, key).to_string());
        workers.push(vec![index, cpu, queue_count, sleeps]);
    }
    let uptime_s = admin::number(stat, "uptime_s");
    format!(
        "up {uptime_s} s; times are the daemon's own, from seeing a request to answering it\n{queues}\n{}\n{}",
        workers.render(),
        render_disks(stat)
    )
}

/// What all clients of each disk have done, those that are gone included; and what failed below a disk that can fail.
fn render_disks(stat: &Value) -> String {
    let headings = COUNTERS.map(|(_, _, heading, _)| heading);
    let headings = [&["DISK (ALL CLIENTS)", "CLIENTS"][..], &headings, &["FAILED", "STALLED"]].concat();
    let mut disks = Table::new(1, &headings);
    for disk in admin::list(stat, "disks") {
        let totals = disk.get("totals").unwrap_or(&Value::Null);
        let errors = disk.get("errors").and_then(Value::as_object);
        let failed = errors.map(|errors| errors.values().filter_map(Value::as_u64).sum::<u64>().to_string());
        let stalled = disk.get("stalled").and_then(Value::as_u64).map(|count| count.to_string());
        let mut row = vec![admin::text(disk, "disk").to_owned(), admin::number(totals, "clients").to_string()];
        row.extend(COUNTERS.map(|(key, _, _, is_bytes)| count_cell(totals, key, is_bytes)));
        row.extend([failed, stalled].map(|cell| cell.unwrap_or_else(|| "-".to_owned())));
        disks.push(row);
    }
    disks.render()
}

fn count_cell(counters: &Value, key: &str, is_bytes: bool) -> String {
    let count = admin::number(counters, key);
    if is_bytes { units::bytes(count) } else { count.to_string() }
}

fn render_rates(stat: &Value) -> String {
    let queues = queues(stat, "/s", |queue, (_, key, _, is_bytes)| {
        let rate = queue.get(key).and_then(Value::as_f64).unwrap_or(0.0);
        if is_bytes { units::byte_rate(rate) } else { units::count(rate) }
    });
    format!("{queues}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_have_totals_and_errors_if_they_can_fail() {
        let totals =
            json!({ "clients": 2, "reads": 10, "writes": 0, "others": 1, "errors": 3, "read_bytes": 4096, "written_bytes": 0 });
        let stat = json!({ "uptime_s": 1, "queues": [], "workers": [], "disks": [
            { "disk": "f", "totals": totals, "errors": { "read": 2, "write": 3, "flush": 0 }, "stalled": 7 },
            { "disk": "m", "totals": totals },
        ] });
        let text = render_totals(&stat);
        let rows: Vec<Vec<_>> = text.lines().rev().take(2).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["f", "2", "10", "0", "1", "3", "4", "KiB", "0", "B", "5", "7"], "{text}");
        assert_eq!(rows[0], ["m", "2", "10", "0", "1", "3", "4", "KiB", "0", "B", "-", "-"], "{text}");
    }

    #[test]
    fn rates_are_differences_over_time_and_new_queues_start_from_zero() {
        let before = json!({ "queues": [{ "client": 1, "queue": 0, "reads": 100 }] });
        let mut now = json!({ "queues": [{ "client": 1, "queue": 0, "reads": 300 }, { "client": 2, "queue": 0, "reads": 50 }] });
        add_rates(&before, &mut now, 2.0);
        assert_eq!(now["queues"][0]["reads_per_s"], json!(100.0));
        assert_eq!(now["queues"][1]["reads_per_s"], json!(25.0));
        assert_eq!(now["interval_s"], json!(2.0));
    }
}
