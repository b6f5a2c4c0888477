//! Limits of a process, by its `/proc/PID/limits`.

use super::{Finding, Root, State};

/// Descriptors that some hundred clients need.
const COMFORTABLE_DESCRIPTORS: u64 = 4096;
/// With fewer the daemon does not start.
const FEWEST_DESCRIPTORS: u64 = 128;
/// What io_uring pins and locked disks need at least, before Linux 5.12.
const COMFORTABLE_LOCKED_BYTES: u64 = 8 << 20;

pub(super) fn look(area: &'static str, root: Root<'_>, process: &str) -> Vec<Finding> {
    let file = format!("proc/{process}/limits");
    let hard = |name: &str| {
        let line = root.field(&file, name)?;
        line.split_whitespace().nth(1).map(|word| word.parse().unwrap_or(u64::MAX))
    };
    let mut findings = Vec::new();
    if let Some(limit) = hard("Max open files") {
        let state = match limit {
            ..FEWEST_DESCRIPTORS => State::Fail,
            FEWEST_DESCRIPTORS..COMFORTABLE_DESCRIPTORS => State::Warn,
            _ => State::Ok,
        };
        let advice = "a client with one queue takes 4, a virtual machine 136: LimitNOFILE= in the unit, or ulimit -n";
        findings.push(Finding::new(area, "open files", state, count(limit), advice));
    }
    if let Some(limit) = hard("Max locked memory") {
        let advice = "disks with lock need their size, io_uring before Linux 5.12 some, too: LimitMEMLOCK=, or ulimit -l";
        let found = if limit == u64::MAX { count(limit) } else { format!("{} KiB", limit / 1024) };
        findings.push(Finding::when(area, "locked memory", limit >= COMFORTABLE_LOCKED_BYTES, State::Warn, found, advice));
    }
    findings
}

fn count(limit: u64) -> String {
    if limit == u64::MAX { "no limit".to_owned() } else { limit.to_string() }
}
