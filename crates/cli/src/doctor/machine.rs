//! The processor's features, and the isolation of its CPUs.

use super::{Finding, Root, State};

const CPU: &str = "Processor";
const ISOLATION: &str = "Isolation";

pub(super) fn look(root: Root<'_>) -> Vec<Finding> {
    let mut findings = features(root);
    findings.extend(isolation(root));
    findings
}

/// The kernel's name of a feature, its use, and the replacement.
const FEATURES: [(&str, &[&str], &str, &str); 5] = [
    (
        "AVX-512",
        &["avx512f", "avx512vl"],
        "a message is stored in one piece, on models known to show it at once",
        "messages are stored in four pieces of 16 bytes",
    ),
    (
        "CLDEMOTE",
        &["cldemote"],
        "not used: it was measured to slow streams down",
        "nothing is lost: it was measured to slow streams down",
    ),
    ("WAITPKG", &["waitpkg"], "wait = umwait and tpause", "use wait = adaptive or pause"),
    ("MONITORX", &["monitorx", "mwaitx"], "wait = monitorx", "use wait = adaptive or pause"),
    ("MOVDIR64B", &["movdir64b"], "not used: it was measured not to help", "nothing is lost: it was measured not to help"),
];

fn features(root: Root<'_>) -> Vec<Finding> {
    let flags = root.field("proc/cpuinfo", "flags").unwrap_or_default();
    if flags.is_empty() {
        return vec![Finding::new(CPU, "features", State::Ok, "unknown here; the portable code is used", "")];
    }
    let has = |name: &&str| flags.split(' ').any(|flag| flag == *name);
    let mut findings: Vec<Finding> = FEATURES
        .iter()
        .map(|(name, flags, with, without)| {
            let is_there = flags.iter().any(has) && (*name != "AVX-512" || flags.iter().all(has));
            let found = if is_there { format!("present; {with}") } else { format!("absent; {without}") };
            // The user cannot change it.
            Finding::new(CPU, name, State::Ok, found, "")
        })
        .collect();
    let is_steady = has(&"constant_tsc") && has(&"nonstop_tsc");
    let (found, advice) = match is_steady {
        true => ("runs at one rate", ""),
        false => ("changes its rate", "latencies that fipsee stat and bench show may be wrong"),
    };
    findings.push(Finding::when(CPU, "time-stamp counter", is_steady, State::Warn, found, advice));
    findings
}

fn isolation(root: Root<'_>) -> Vec<Finding> {
    let mut findings = vec![cpus(root)];
    for (file, check) in [("isolated", "isolated CPUs (isolcpus=)"), ("nohz_full", "CPUs without a tick (nohz_full=)")] {
        let list = root.text(&format!("sys/devices/system/cpu/{file}")).filter(|list| !list.is_empty() && !list.contains("null"));
        let found = list.unwrap_or_else(|| "none; the scheduler and the tick may interrupt workers for microseconds".to_owned());
        findings.push(Finding::new(ISOLATION, check, State::Ok, found, ""));
    }
    if let Some(governor) = root.text("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") {
        let advice = "for short latencies: cpupower frequency-set -g performance";
        findings.push(Finding::when(ISOLATION, "frequency governor", governor == "performance", State::Warn, &governor, advice));
    }
    if let Some(active) = root.number("sys/devices/system/cpu/smt/active") {
        let found = if active == 1 { "on; workers are placed on cores of their own where there are enough" } else { "off" };
        findings.push(Finding::new(ISOLATION, "two threads a core (SMT)", State::Ok, found, ""));
    }
    findings.extend(quota(root));
    findings.extend(steal(root));
    findings
}

fn cpus(root: Root<'_>) -> Finding {
    let allowed = root.field("proc/self/status", "Cpus_allowed_list").unwrap_or_default();
    let count = fipsee_topology::cpu_list::parse(&allowed).map_or(0, |cpus| cpus.len());
    let found = format!("{count} may be used ({allowed})");
    let advice = "a worker that polls and its client need one each: with one CPU none polls, and each message costs a switch";
    match count {
        0 => Finding::new(ISOLATION, "CPUs", State::Warn, "unknown", "no thread is bound to a CPU"),
        count => Finding::when(ISOLATION, "CPUs", count > 1, State::Warn, found, advice),
    }
}

/// Of this process's control group: a worker that polls uses all of its CPU's time.
fn quota(root: Root<'_>) -> Option<Finding> {
    let group = root.field("proc/self/cgroup", "0:")?;
    let group = group.trim_start_matches([':', '/']);
    let limit = root.text(&format!("sys/fs/cgroup/{group}/cpu.max"))?;
    let (quota, period) = limit.split_once(' ')?;
    let cpus = match (quota.parse::<f64>(), period.parse::<f64>()) {
        (Ok(quota), Ok(period)) if period > 0.0 => quota / period,
        _ => return Some(Finding::new(ISOLATION, "quota of CPU time", State::Ok, "none", "")),
    };
    let advice = "a worker that polls needs a whole CPU: raise CPUQuota=, or use wait = sleep";
    Some(Finding::when(ISOLATION, "quota of CPU time", cpus >= 2.0, State::Warn, format!("{cpus:.1} CPUs"), advice))
}

/// Since the machine started. The eighth number of the first line (proc(5)); the later ones are contained in the first two.
fn steal(root: Root<'_>) -> Option<Finding> {
    let ticks = root.field("proc/stat", "cpu ")?;
    let ticks = ticks.split_ascii_whitespace().take(8).map(|word| word.parse().ok()).collect::<Option<Vec<u64>>>()?;
    let percent = 100 * ticks.get(7)? / ticks.iter().sum::<u64>().max(1);
    let found = format!("{percent} % of the CPU time since start went to the host's other guests");
    let advice =
        "worker and client wait for time slices of microseconds to milliseconds: this virtual machine needs CPUs of its own";
    Some(Finding::when(ISOLATION, "steal", percent < 1, State::Warn, found, advice))
}
