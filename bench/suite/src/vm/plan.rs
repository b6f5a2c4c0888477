//! What is measured, in which order: a text that the guest's script carries out line by line.

use std::fmt::{self, Write as _};

/// A disk as the guest sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Device {
    /// Its name in the plan.
    pub(super) label: &'static str,
    /// Its name for people.
    pub(super) name: &'static str,
    /// Are its completions polled for, too?
    pub(super) polls: bool,
}

const fn device(label: &'static str, name: &'static str, polls: bool) -> Device {
    Device { label, name, polls }
}

pub(super) const HOST: Device = device("host", "null_blk in the guest", true);
pub(super) const HOST_MEMORY: Device = device("hostmem", "null_blk in the guest, memory", false);
pub(super) const QEMU: Device = device("qemu", "virtio_blk, qemu-storage-daemon", false);
pub(super) const VIRTIO: Device = device("vnull", "virtio_blk, fipseed", false);
pub(super) const VIRTIO_MEMORY: Device = device("vmem", "virtio_blk, fipseed, memory", false);
pub(super) const FIP: Device = device("fnull", "fip_blk, fipseed", true);
pub(super) const FIP_MEMORY: Device = device("fmem", "fip_blk, fipseed, memory", false);

/// In the order of tables.
pub(super) const DEVICES: [Device; 7] = [HOST, FIP, QEMU, VIRTIO, HOST_MEMORY, FIP_MEMORY, VIRTIO_MEMORY];

pub(super) const BLOCKS: [u32; 2] = [4096, 512];
pub(super) const DEPTHS: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// One load on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Load {
    pub(super) device: Device,
    pub(super) block: u32,
    pub(super) write: bool,
    pub(super) depth: u32,
    /// The submitter polls for completions (REQ_POLLED).
    pub(super) polled: bool,
    /// The block layer counts and times each request, as it does by default.
    pub(super) iostats: bool,
}

impl Load {
    /// Reads of 4 KiB, as claims are about.
    pub(super) const fn reads(device: Device, depth: u32) -> Self {
        Self { device, block: 4096, write: false, depth, polled: false, iostats: true }
    }

    pub(super) const fn polled(self) -> Self {
        Self { polled: true, ..self }
    }

    pub(super) const fn without_iostats(self) -> Self {
        Self { iostats: false, ..self }
    }
}

impl fmt::Display for Load {
    /// Words of fip_load. One at a time, each request is timed; of many, one in 16, which does not slow the others down.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sample = if self.depth == 1 { 1 } else { 16 };
        let (write, polled) = (u8::from(self.write), u8::from(self.polled));
        write!(formatter, "block={} write={write} depth={} polled={polled} sample={sample}", self.block, self.depth)
    }
}

/// How much of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) rounds: u32,
    /// Of each load in each round.
    pub(super) ms: u32,
    /// Only what claims are about.
    pub(super) claims_only: bool,
    /// Of the guest: one can be taken offline.
    pub(super) several_cpus: bool,
    pub(super) idle_seconds: u32,
    pub(super) wakes: u32,
}

/// What the host watches while the guest idles, and while only the guest's own null_blk is busy.
pub(super) const WATCH_IDLE: &str = "idle";
pub(super) const WATCH_BESIDE: &str = "beside";

/// A tag of a load that is a single request after some idleness.
pub(super) const WAKE: &str = "wake";

/// How the guest is while notifications are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Usual,
    /// One of its CPUs is offline, and the other has one of the host's two CPUs, the back ends the other one, as in user-mode Linux.
    OneCpu,
    /// fip_blk sleeps at once.
    Asleep,
}

impl Condition {
    /// As part of a name in the plan, and behind a name for people.
    pub(super) const fn words(self) -> [&'static str; 2] {
        match self {
            Self::Usual => ["", ""],
            Self::OneCpu => [":one-cpu", ", one CPU"],
            Self::Asleep => [":asleep", ", driver asleep"],
        }
    }
}

/// A load whose notifications are counted.
#[derive(Clone, Debug)]
pub(super) struct Cause {
    /// In the plan.
    pub(super) name: String,
    pub(super) load: Load,
    pub(super) condition: Condition,
}

/// In the order in which they run.
pub(super) fn causes() -> Vec<Cause> {
    let of = |condition: Condition, devices: &'static [Device]| {
        [1, 64].into_iter().flat_map(move |depth| {
            devices.iter().map(move |device| {
                let name = format!("causes:{}:{depth}{}", device.label, condition.words()[0]);
                Cause { name, load: Load::reads(*device, depth), condition }
            })
        })
    };
    let all = &[FIP, VIRTIO, QEMU];
    of(Condition::Usual, all).chain(of(Condition::OneCpu, all)).chain(of(Condition::Asleep, &[FIP])).collect()
}

/// Loads that are compared with each other, which run one after the other: one for each device that takes part.
fn cells(extent: Extent) -> Vec<Vec<Load>> {
    let mut cells = Vec::new();
    let claimed = |block: u32, write: bool, depth: u32| block == 4096 && !write && [1, 64].contains(&depth);
    for (block, write) in BLOCKS.into_iter().flat_map(|block| [(block, false), (block, true)]) {
        for depth in DEPTHS {
            if extent.claims_only && !claimed(block, write, depth) {
                continue;
            }
            let mut cell: Vec<Load> =
                DEVICES.into_iter().map(|device| Load { block, write, ..Load::reads(device, depth) }).collect();
            let polled: Vec<Load> = cell.iter().filter(|load| load.device.polls).map(|load| load.polled()).collect();
            cell.extend(&polled);
            if claimed(block, write, depth) {
                let both = [HOST, FIP].map(|device| Load::reads(device, depth));
                cell.extend(both.into_iter().flat_map(|load| [load, load.polled()]).map(Load::without_iostats));
            }
            cells.push(cell);
        }
    }
    cells
}

/// The plan. In each round cells and the devices in them come in another order.
pub(super) fn write(extent: Extent) -> String {
    let cells = cells(extent);
    let mut text = String::new();
    let mut line = |words: fmt::Arguments<'_>| {
        // Writing into a string does not fail.
        let _ = writeln!(text, "{words}");
    };
    for round in 0..extent.rounds {
        let turn = round as usize;
        for place in 0..cells.len() {
            let cell = &cells[(place + turn) % cells.len()];
            for place in 0..cell.len() {
                let load = cell[(place + turn) % cell.len()];
                let label = load.device.label;
                if !load.iostats {
                    line(format_args!("set iostats {label} 0"));
                }
                line(format_args!("run {} {label} {load} warm_ms=2 ms={}", tag(round, load.iostats), extent.ms));
                if !load.iostats {
                    line(format_args!("set iostats {label} 1"));
                }
            }
        }
    }
    line(format_args!("pause 1"));
    for (watch, words) in [
        (WATCH_IDLE, format!("pause {}", extent.idle_seconds)),
        (WATCH_BESIDE, format!("run {WATCH_BESIDE} host depth=64 ms=1000 sample=0")),
    ] {
        line(format_args!("watch {watch}\n{words}\nunwatch {watch}"));
    }
    for number in 0..extent.wakes {
        for place in 0..3 {
            let device = [QEMU, VIRTIO, FIP][(place + number as usize) % 3];
            line(format_args!("pause 0.1\nrun {WAKE}{number} {} {} requests=1 ms=60000", device.label, Load::reads(device, 1)));
        }
    }
    let mut last = Condition::Usual;
    for Cause { name, load, condition } in causes() {
        if condition == Condition::OneCpu && !extent.several_cpus {
            continue;
        }
        let change = match (last, condition) {
            (last, condition) if last == condition => "",
            (_, Condition::OneCpu) => "cpu 1 0\n",
            // Last: the parameter stays.
            (Condition::OneCpu, _) => "cpu 1 1\nparameter spin_us 0\nparameter thread_us 0\n",
            _ => "parameter spin_us 0\nparameter thread_us 0\n",
        };
        last = condition;
        line(format_args!("{change}causes {name} {} {load} ms={}", load.device.label, 10 * extent.ms));
    }
    text
}

fn tag(round: u32, iostats: bool) -> String {
    format!("{round}{}", if iostats { "" } else { "-bare" })
}

/// Round and whether statistics were on, from a tag that [`tag`] made.
pub(super) fn round_of(tag: &str) -> Option<(usize, bool)> {
    let (number, iostats) = tag.strip_suffix("-bare").map_or((tag, true), |number| (number, false));
    Some((number.parse().ok()?, iostats))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Extent = Extent { rounds: 3, ms: 50, claims_only: false, several_cpus: false, idle_seconds: 10, wakes: 4 };

    fn loads(plan: &str, tag: &str) -> Vec<String> {
        let prefix = format!("run {tag} ");
        plan.lines().filter_map(|line| line.strip_prefix(&prefix)).map(str::to_owned).collect()
    }

    #[test]
    fn each_round_has_every_load_once_in_another_order() {
        let plan = write(FULL);
        let (first, second) = (loads(&plan, "0"), loads(&plan, "1"));
        assert_eq!(first.len(), 4 * DEPTHS.len() * (DEVICES.len() + 2));
        assert_ne!(first, second);
        let sorted = |mut loads: Vec<String>| {
            loads.sort();
            loads.dedup();
            loads
        };
        assert_eq!(sorted(first.clone()).len(), first.len(), "no load twice");
        assert_eq!(sorted(first), sorted(second));
    }

    #[test]
    fn statistics_are_on_again_after_each_load_without() {
        let plan = write(Extent { claims_only: true, ..FULL });
        let lines: Vec<&str> = plan.lines().collect();
        let bare: Vec<usize> = (0..lines.len()).filter(|index| lines[*index].contains("-bare ")).collect();
        assert_eq!(bare.len(), 3 * 2 * 4);
        for index in bare {
            assert!(lines[index - 1].starts_with("set iostats") && lines[index - 1].ends_with('0'), "{}", lines[index - 1]);
            assert!(lines[index + 1].starts_with("set iostats") && lines[index + 1].ends_with('1'), "{}", lines[index + 1]);
        }
    }

    #[test]
    fn notifications_are_counted_after_all_else_and_last_with_a_driver_that_sleeps() {
        let plan = write(FULL);
        let lines: Vec<&str> = plan.lines().collect();
        let first = lines.iter().position(|line| line.starts_with("causes ")).expect("there are some");
        let sleeps = lines.iter().position(|line| *line == "parameter spin_us 0").expect("there is one");
        assert!(lines[first..].iter().all(|line| line.starts_with("causes ") || line.starts_with("parameter ")));
        assert!(lines[sleeps..].iter().filter(|line| line.starts_with("causes ")).all(|line| line.contains(":asleep ")));
        let of_two_cpus = write(Extent { several_cpus: true, ..FULL });
        let count = |plan: &str| plan.lines().filter(|line| line.starts_with("causes ")).count();
        assert_eq!((count(&of_two_cpus), count(&plan)), (causes().len(), causes().len() - 6));
        let at = |words: &str| of_two_cpus.find(words).unwrap_or_else(|| panic!("no {words}"));
        assert!(at("cpu 1 0") < at(":one-cpu") && at(":one-cpu") < at("cpu 1 1") && at("cpu 1 1") < at(":asleep"));
    }

    #[test]
    fn tags_contain_round_and_statistics() {
        assert_eq!(round_of(&tag(7, true)), Some((7, true)));
        assert_eq!(round_of(&tag(12, false)), Some((12, false)));
        assert_eq!(round_of(WATCH_BESIDE), None);
    }

    #[test]
    fn first_requests_after_idleness_take_turns() {
        let plan = write(FULL);
        let wakes: Vec<_> = (0..4).map(|number| loads(&plan, &format!("{WAKE}{number}"))).collect();
        assert!(wakes.iter().all(|wakes| wakes.len() == 3), "{wakes:?}");
        assert_ne!(wakes[0][0].split(' ').next(), wakes[1][0].split(' ').next());
    }
}
