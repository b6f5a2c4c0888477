//! The machine's properties that affect the figures, from the kernel's files; the page says which are unknown.

use std::fmt;
use std::path::Path;

use fipsee_topology::cpu_list;
use fipsee_topology::machine::Machine;
use serde_json::{Value, json};

/// May the CPUs run faster than their nominal frequency?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turbo {
    On,
    Off,
    Unknown,
}

impl Turbo {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
            Self::Unknown => "unknown",
        }
    }
}

/// A state that an idle CPU may enter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IdleState {
    pub(super) name: String,
    pub(super) description: String,
    /// Time to leave it, by the kernel's table.
    pub(super) latency_us: u64,
    /// Shortest stay that pays.
    pub(super) residency_us: u64,
    pub(super) is_disabled: bool,
}

/// The machine.
pub(super) struct MachineInfo {
    pub(super) machine: Machine,
    pub(super) kernel: String,
    pub(super) is_virtual: bool,
    pub(super) turbo: Turbo,
    /// The kernel's switch of turbo, for the advice.
    pub(super) turbo_switch: Option<&'static str>,
    pub(super) governor: String,
    pub(super) idle_driver: String,
    pub(super) idle_governor: String,
    pub(super) idle_states: Vec<IdleState>,
}

const CPUS: &str = "sys/devices/system/cpu";
const INTEL_SWITCH: &str = "/sys/devices/system/cpu/intel_pstate/no_turbo";
const BOOST_SWITCH: &str = "/sys/devices/system/cpu/cpufreq/boost";
const UNKNOWN: &str = "unknown";
/// More states than any CPU has.
const MOST_STATES: usize = 16;

fn text(root: &Path, path: &str) -> Option<String> {
    let text = std::fs::read_to_string(root.join(path.trim_start_matches('/'))).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// How often a CPU entered each of its idle states.
pub(super) fn idle_entries(cpu: usize) -> Vec<u64> {
    let entries = |index| text(Path::new("/"), &format!("{CPUS}/cpu{cpu}/cpuidle/state{index}/usage"))?.parse().ok();
    (0..MOST_STATES).map_while(entries).collect()
}

impl MachineInfo {
    /// Read the machine below `root`, `/` for this one; frequencies and idle states are those of `cpu`.
    pub(super) fn read(root: &Path, cpu: usize) -> Self {
        let known = |path: &str| text(root, path).unwrap_or_else(|| UNKNOWN.to_owned());
        let (turbo, turbo_switch) = match (text(root, INTEL_SWITCH).as_deref(), text(root, BOOST_SWITCH).as_deref()) {
            (Some("0"), _) => (Turbo::On, Some("echo 1 > /sys/devices/system/cpu/intel_pstate/no_turbo")),
            (Some("1"), _) => (Turbo::Off, Some("echo 0 > /sys/devices/system/cpu/intel_pstate/no_turbo")),
            (_, Some("1")) => (Turbo::On, Some("echo 0 > /sys/devices/system/cpu/cpufreq/boost")),
            (_, Some("0")) => (Turbo::Off, Some("echo 1 > /sys/devices/system/cpu/cpufreq/boost")),
            _ => (Turbo::Unknown, None),
        };
        let cpuinfo = known("proc/cpuinfo");
        let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
        Self {
            machine: Machine::read(root),
            kernel: known("proc/sys/kernel/osrelease"),
            is_virtual: flags.split_whitespace().any(|flag| flag == "hypervisor"),
            turbo,
            turbo_switch,
            governor: known(&format!("{CPUS}/cpu{cpu}/cpufreq/scaling_governor")),
            idle_driver: known(&format!("{CPUS}/cpuidle/current_driver")),
            idle_governor: known(&format!("{CPUS}/cpuidle/current_governor")),
            idle_states: idle_states(root, cpu),
        }
    }

    /// A name and a value for each line of the page.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        let machine = &self.machine;
        let sockets = machine.groups(|cpu| cpu.socket);
        let socket_count = if sockets.is_empty() { UNKNOWN.to_owned() } else { sockets.len().to_string() };
        let siblings = machine.groups(|cpu| Some(cpu.core)).into_values().filter(|cpus| cpus.len() > 1);
        let siblings: Vec<String> = siblings.map(|cpus| cpu_list::format(&cpus)).collect();
        let siblings = if siblings.is_empty() { "none seen".to_owned() } else { siblings.join("; ") };
        let cpus: Vec<usize> = machine.cpus.iter().map(|cpu| cpu.number).collect();
        let virtual_text = if self.is_virtual { "yes: its host may move the CPUs, and hides much of what follows" } else { "no" };
        vec![
            ("CPU", machine.model.clone()),
            ("CPUs online", format!("{}; usable here: {}", cpu_list::format(&cpus), cpu_list::format(&machine.usable))),
            ("Sockets", socket_count),
            ("Threads of one core (SMT)", siblings),
            ("Virtual machine", virtual_text.to_owned()),
            ("Kernel", self.kernel.clone()),
            ("Turbo", self.turbo.name().to_owned()),
            ("Frequency governor", self.governor.clone()),
            ("Idle states", self.idle_summary()),
            ("Hardware prefetchers", "not visible to programs; as the firmware left them".to_owned()),
        ]
    }

    fn idle_summary(&self) -> String {
        let names: Vec<String> = self.idle_states.iter().map(ToString::to_string).collect();
        let names = if names.is_empty() { "none seen".to_owned() } else { names.join(", ") };
        format!("{names} (driver {}, governor {})", self.idle_driver, self.idle_governor)
    }

    pub(super) fn to_json(&self, tsc_hz: u64) -> Value {
        let machine = &self.machine;
        let groups = |groups: std::collections::BTreeMap<usize, Vec<usize>>| groups.into_values().collect::<Vec<_>>();
        json!({
            "model": machine.model,
            "online": machine.cpus.iter().map(|cpu| cpu.number).collect::<Vec<_>>(),
            "usable": machine.usable,
            "sockets": groups(machine.groups(|cpu| cpu.socket)),
            "cores": groups(machine.groups(|cpu| Some(cpu.core))),
            "is_virtual": self.is_virtual,
            "kernel": self.kernel,
            "turbo": self.turbo.name(),
            "governor": self.governor,
            "idle_driver": self.idle_driver,
            "idle_governor": self.idle_governor,
            "idle_states": self.idle_states.iter().map(IdleState::to_json).collect::<Vec<_>>(),
            "unknown": machine.unknown,
            "tsc_hz": tsc_hz,
        })
    }
}

fn idle_states(root: &Path, cpu: usize) -> Vec<IdleState> {
    let state = |index: usize| {
        let file = |name: &str| text(root, &format!("{CPUS}/cpu{cpu}/cpuidle/state{index}/{name}"));
        let number = |name: &str| file(name).and_then(|text| text.parse().ok()).unwrap_or(0);
        Some(IdleState {
            name: file("name")?,
            description: file("desc").unwrap_or_default(),
            latency_us: number("latency"),
            residency_us: number("residency"),
            is_disabled: number("disable") != 0,
        })
    };
    (0..MOST_STATES).map_while(state).collect()
}

impl IdleState {
    fn to_json(&self) -> Value {
        json!({
            "name": self.name, "description": self.description, "latency_us": self.latency_us,
            "residency_us": self.residency_us, "is_disabled": self.is_disabled,
        })
    }
}

impl fmt::Display for IdleState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} us{})", self.name, self.latency_us, if self.is_disabled { ", disabled" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_machine_is_described() {
        let root = std::env::temp_dir().join(format!("fipsee-report-machine-{}", std::process::id()));
        let put = |path: &str, content: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().expect("below the root")).expect("a folder");
            std::fs::write(path, content).expect("a file");
        };
        put("sys/devices/system/cpu/online", "0-3\n");
        put("proc/cpuinfo", "model name\t: A recorded CPU\nflags\t\t: fpu hypervisor vme\n");
        put("sys/devices/system/cpu/intel_pstate/no_turbo", "1\n");
        put("sys/devices/system/cpu/cpu2/cpufreq/scaling_governor", "performance\n");
        for cpu in 0..4 {
            let folder = format!("sys/devices/system/cpu/cpu{cpu}/topology");
            put(&format!("{folder}/core_cpus_list"), if cpu < 2 { "0-1\n" } else { "2-3\n" });
            put(&format!("{folder}/physical_package_id"), &format!("{}\n", cpu / 2));
        }
        for (index, name, latency_us, disable) in [(0, "POLL", 0, 0), (1, "C1", 2, 0), (2, "C6", 133, 1)] {
            let folder = format!("sys/devices/system/cpu/cpu2/cpuidle/state{index}");
            put(&format!("{folder}/name"), name);
            put(&format!("{folder}/latency"), &format!("{latency_us}\n"));
            put(&format!("{folder}/disable"), &format!("{disable}\n"));
        }
        let info = MachineInfo::read(&root, 2);
        let nothing = MachineInfo::read(&root.join("nowhere"), 0);
        std::fs::remove_dir_all(&root).expect("it was there");
        assert_eq!((info.turbo, info.governor.as_str(), info.is_virtual), (Turbo::Off, "performance", true));
        let text: String = info.lines().iter().map(|(name, value)| format!("{name}: {value}\n")).collect();
        for part in
            ["A recorded CPU", "Sockets: 2", "(SMT): 0-1; 2-3", "Turbo: off", "POLL (0 us), C1 (2 us), C6 (133 us, disabled)"]
        {
            assert!(text.contains(part), "'{part}' in {text}");
        }
        assert_eq!(info.to_json(1)["cores"], json!([[0, 1], [2, 3]]));
        assert_eq!((nothing.turbo, nothing.governor.as_str(), nothing.idle_states.len()), (Turbo::Unknown, UNKNOWN, 0));
    }
}
