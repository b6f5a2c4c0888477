//! What machine a figure comes from.

use std::process::Command;

use fipsee_ring::{clock, cpu};
use serde_json::{Value, json};

/// The first line that a program prints.
pub(crate) fn first_line(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or("unknown").to_owned()
}

/// Machine, kernel, revision, load: without them a figure says nothing.
pub(crate) fn machine() -> Value {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        info.lines().find_map(|line| line.strip_prefix("model name")).map(|rest| rest.trim_start_matches([' ', '\t', ':']));
    let features = cpu::features();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    json!({
        "date": first_line("date", &["-u", "+%Y-%m-%dT%H:%M:%SZ"]),
        "revision": first_line("git", &["describe", "--always", "--dirty", "--abbrev=12"]),
        "cpu": model.unwrap_or("unknown"),
        "cpu_family": features.family,
        "cpu_model": features.model,
        "store_variant": format!("{:?}", features.store),
        "cpus": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        "tsc_hz": clock::ticks_per_second(),
        "kernel": first_line("uname", &["-r"]),
        "load_average_at_start": load.split(' ').next().unwrap_or("unknown"),
    })
}

/// The machine in a few words.
pub(crate) fn describe(machine: &Value) -> String {
    let text = |key: &str| machine[key].as_str().unwrap_or("unknown");
    format!(
        "{} (family {}, model {}), {} CPUs, Linux {}",
        text("cpu"),
        machine["cpu_family"],
        machine["cpu_model"],
        machine["cpus"],
        text("kernel")
    )
}
