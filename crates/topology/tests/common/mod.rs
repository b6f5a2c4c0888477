//! Recorded machines: small texts, written out as the files the kernel would show.
//!
//! | line | files |
//! |---|---|
//! | `model NAME`, `arm IMPLEMENTER PART` | `proc/cpuinfo` |
//! | `online LIST`, `present LIST` | `sys/devices/system/cpu/online`, `present` |
//! | `allowed LIST` | `proc/self/status` |
//! | `node N LIST` | `sys/devices/system/node/nodeN/cpulist` |
//! | `core LIST socket N cache LIST [level N] [capacity N]` | those of each CPU of the core |
//! | `file PATH CONTENT` | any other |
#![allow(dead_code, reason = "each test binary uses its part")]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use fipsee_topology::cpu_list;
use fipsee_topology::machine::{Distance, Machine};
use fipsee_topology::matrix::{Cost, Matrix};

/// All recorded machines.
pub(crate) const ALL: [&str; 15] = [
    "one-cpu",
    "two-cpus",
    "desktop",
    "epyc",
    "two-sockets",
    "two-sockets-no-smt",
    "four-sockets",
    "sub-numa",
    "cpuset",
    "holes",
    "hybrid",
    "hybrid-old-kernel",
    "arm",
    "bare-container",
    "huge",
];

/// A directory that is removed with its content.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("fipsee-topology-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a directory for the test's files");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn put(root: &Path, path: &str, content: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().expect("below the root")).expect("a folder");
    std::fs::write(path, format!("{content}\n")).expect("a file");
}

/// Write out the files of a recorded machine.
pub(crate) fn expand(text: &str, root: &Path) {
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (key, rest) = line.split_once(' ').unwrap_or((line, ""));
        let words: Vec<&str> = rest.split(' ').collect();
        match key {
            "model" => put(root, "proc/cpuinfo", &format!("processor\t: 0\nmodel\t\t: 7\nmodel name\t: {rest}")),
            "arm" => {
                put(root, "proc/cpuinfo", &format!("processor\t: 0\nCPU implementer\t: {}\nCPU part\t: {}", words[0], words[1]))
            }
            "online" | "present" => put(root, &format!("sys/devices/system/cpu/{key}"), rest),
            "allowed" => put(root, "proc/self/status", &format!("Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t{rest}")),
            "node" => put(root, &format!("sys/devices/system/node/node{}/cpulist", words[0]), words.get(1).unwrap_or(&"")),
            "file" => put(root, words[0], words[1]),
            "core" => core(root, &words),
            other => panic!("a recorded machine with a line '{other}'"),
        }
    }
}

fn core(root: &Path, words: &[&str]) {
    let value = |name: &str| words.iter().position(|word| *word == name).map(|index| words[index + 1]);
    for cpu in cpu_list::parse(words[0]).expect("a list") {
        let file = |name: &str, content: &str| put(root, &format!("sys/devices/system/cpu/cpu{cpu}/{name}"), content);
        file("topology/core_cpus_list", words[0]);
        file("topology/physical_package_id", value("socket").expect("a socket"));
        // Every CPU has first-level caches of its core; the instructions' must not be taken for the last.
        for (index, kind) in [(0, "Data"), (1, "Instruction")] {
            file(&format!("cache/index{index}/level"), "1");
            file(&format!("cache/index{index}/type"), kind);
            file(&format!("cache/index{index}/shared_cpu_list"), words[0]);
        }
        file("cache/index2/level", value("level").unwrap_or("3"));
        file("cache/index2/type", "Unified");
        file("cache/index2/shared_cpu_list", value("cache").expect("a cache"));
        if let Some(capacity) = value("capacity") {
            file("cpu_capacity", capacity);
        }
    }
}

/// The files of a recorded machine.
pub(crate) fn recorded(name: &str) -> Scratch {
    let scratch = Scratch::new();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/machines/{name}.txt"));
    expand(&std::fs::read_to_string(path).expect("a recorded machine"), &scratch.0);
    scratch
}

/// A recorded machine.
pub(crate) fn machine(name: &str) -> Machine {
    Machine::read(&recorded(name).0)
}

/// Ticks that a machine of two sockets shows for a line, by distance.
pub(crate) const fn usual_ticks(distance: Distance) -> f64 {
    match distance {
        Distance::SameCore => 30.0,
        Distance::SameCache => 160.0,
        Distance::SameSocket => 350.0,
        Distance::OtherSocket => 420.0,
    }
}

/// A whole matrix with these costs.
pub(crate) fn matrix(machine: &Machine, ticks: impl Fn(usize, usize) -> f64) -> Matrix {
    let directions = machine.usable.iter().flat_map(|from| machine.usable.iter().map(move |to| (*from, *to)));
    let costs = directions.filter(|(from, to)| from != to).map(|(from, to)| {
        let median_ticks = ticks(from, to);
        ((from, to), Cost { median_ticks, least_ticks: median_ticks * 0.9 })
    });
    Matrix::new(2_000_000_000, Some(22.0), costs)
}

/// What would be measured if the kernel's figures are true.
pub(crate) fn usual_matrix(machine: &Machine) -> Matrix {
    matrix(machine, |from, to| usual_ticks(machine.distance(from, to)))
}
