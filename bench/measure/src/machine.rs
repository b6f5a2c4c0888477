//! What machine a figure comes from.

use std::process::Command;

use fipsee_ring::{clock, cpu};
use serde_json::{Value, json};

use crate::quiet::{Noise, Watch};

/// The first line that a program prints; `unknown` if it cannot be run or prints nothing.
pub fn first_line(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or("unknown").to_owned()
}

/// Machine, kernel, revision, load: without them a figure says nothing.
pub fn machine() -> Value {
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
pub fn describe(machine: &Value) -> String {
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

/// The machine, and which revision ran on it when.
pub fn of_revision(machine: &Value) -> String {
    let text = |key: &str| machine[key].as_str().unwrap_or("unknown");
    let day = text("date").split('T').next().unwrap_or_default();
    format!("{}; revision {}, {day}", describe(machine), text("revision"))
}

/// A run of measurements: its machine, and what disturbs it.
#[derive(Debug)]
pub struct Run {
    machine: Value,
    watch: Watch,
}

impl Run {
    pub fn begin() -> Self {
        Self { machine: machine(), watch: Watch::begin() }
    }

    /// As [`begin`](Self::begin), and print the machine.
    pub fn begin_in_sight() -> Self {
        let run = Self::begin();
        println!("{:#}", run.machine);
        run
    }

    /// End the run: the machine, with the disturbances recorded in it, and the disturbances by themselves.
    pub fn end(mut self) -> (Value, Noise) {
        let noise = self.watch.end();
        noise.record(&mut self.machine);
        (self.machine, noise)
    }
}

/// The name of the files of results: what documents quote has the suite's name, all else ends in `-part`, which git ignores.
/// An error in `judged` is the reason why a whole run must not be quoted.
pub fn stem(suite: &str, is_whole: bool, judged: &Result<(), String>) -> String {
    if is_whole && judged.is_ok() { suite.to_owned() } else { format!("{suite}-part") }
}
