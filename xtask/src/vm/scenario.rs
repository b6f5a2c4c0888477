//! What is tested: each scenario is a script that a guest runs on a disk, and what the host does meanwhile.

use super::back_end::{Disk, PEERS};
use super::driver::OURS;

const MIB: u64 = 1 << 20;

/// A machine for a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Guest {
    /// User-mode Linux: one CPU, no PCI, half a second.
    Uml,
    /// QEMU without hardware virtualisation, Debian's kernel, PCI with MSI-X, a queue per CPU; ten times slower.
    Qemu { cpus: u16 },
}

/// What the host does when the guest says the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Nothing,
    /// The disk grows to so many bytes.
    Resize(u64),
    /// The back end is killed and started again.
    Restart,
    /// The device is taken out of the machine ("unplug") and put in again ("plug").
    Plug,
    /// The machine starts again; nothing for the host to do, but its monitor must not end it.
    Reboot,
}

/// A test.
#[derive(Debug)]
pub(super) struct Scenario {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) guest: Guest,
    /// File in `tests/vm/scripts`, without its ending.
    pub(super) script: &'static str,
    /// What the script asks for with `setting`.
    pub(super) settings: &'static [(&'static str, &'static str)],
    pub(super) disk: Disk,
    pub(super) event: Event,
    /// Alarms of the kernel that it provokes.
    pub(super) allowed: &'static [&'static str],
    /// The only driver and back end it is about; empty: all.
    pub(super) only: Only,
    /// Part of `cargo xtask test`.
    pub(super) quick: bool,
}

/// What a scenario is limited to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Only {
    Everything,
    /// Our driver on our daemon.
    Rings,
    /// Our driver on a back end that knows nothing of rings, and without being told to keep the device.
    Foreign,
}

impl Only {
    /// Is a scenario with that limit about this driver and back end?
    pub(super) fn includes(self, driver: &str, peer: &str) -> bool {
        match self {
            Self::Everything => true,
            Self::Rings => driver == OURS && peer == PEERS[0],
            Self::Foreign => driver == OURS && peer != PEERS[0],
        }
    }
}

const DISK: Disk = Disk { bytes: 128 * MIB, read_only: false, has_files: false };

/// What most scenarios have in common.
const COMMON: Scenario = Scenario {
    name: "",
    about: "",
    guest: Guest::Uml,
    script: "",
    settings: &[],
    disk: DISK,
    event: Event::Nothing,
    allowed: &[],
    only: Only::Everything,
    quick: true,
};

const SMP: Guest = Guest::Qemu { cpus: 2 };

/// Of requests under way when a driver lets go of its device, the last may fail.
const CUT_OFF: &[&str] = &["I/O error"];

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario { name: "uml/boot", about: "the disk appears; for the time that takes", script: "boot", quick: false, ..COMMON },
    Scenario {
        name: "uml/files",
        about: "a tree copied into a file system; every byte, with caches dropped; e2fsck",
        script: "files",
        settings: &[("files", "300")],
        ..COMMON
    },
    Scenario {
        name: "uml/stress",
        about: "processes that do everything to files at once; e2fsck",
        script: "stress",
        settings: &[("operations", "600")],
        ..COMMON
    },
    Scenario {
        name: "uml/sizes",
        about: "requests from 512 B to 1 MiB from contiguous and scattered memory",
        script: "sizes",
        settings: &[("step", "8192")],
        ..COMMON
    },
    Scenario {
        name: "uml/every-size",
        about: "the same with all 2048 sizes",
        script: "sizes",
        settings: &[("step", "512")],
        quick: false,
        ..COMMON
    },
    Scenario { name: "uml/fio", about: "fio's verification with deep queues of mixed sizes", script: "fio", ..COMMON },
    Scenario { name: "uml/zeroes", about: "discard and write-zeroes; what surrounds them stays", script: "zeroes", ..COMMON },
    Scenario {
        name: "uml/resize",
        about: "the disk grows under a mounted file system",
        script: "resize",
        settings: &[("sectors", "393216")],
        event: Event::Resize(192 * MIB),
        ..COMMON
    },
    Scenario {
        name: "uml/readonly",
        about: "a read-only disk with a file system the host made",
        script: "readonly",
        disk: Disk { read_only: true, has_files: true, ..DISK },
        ..COMMON
    },
    Scenario { name: "uml/rebind", about: "the driver lets go and takes the device 20 times", script: "rebind", ..COMMON },
    Scenario {
        name: "uml/unbind-busy",
        about: "the driver lets go with requests under way, 10 times",
        script: "unbind-busy",
        allowed: CUT_OFF,
        // Once, user-mode Linux aborted after its guest had passed and halted; the cause is not found yet.
        quick: false,
        ..COMMON
    },
    Scenario {
        name: "uml/rmmod",
        about: "the module is unloaded with requests under way, 5 times",
        script: "rmmod",
        allowed: CUT_OFF,
        only: Only::Rings,
        ..COMMON
    },
    Scenario {
        name: "uml/foreign",
        about: "a back end without rings: our driver leaves the device, or keeps it when told to",
        script: "foreign",
        only: Only::Foreign,
        ..COMMON
    },
    Scenario {
        name: "qemu/boot",
        about: "the disk appears; for the time that takes",
        guest: SMP,
        script: "boot",
        quick: false,
        ..COMMON
    },
    Scenario {
        name: "qemu/files",
        about: "two CPUs, two queues, MSI-X, the firmware first: files as above",
        guest: SMP,
        script: "files",
        settings: &[("files", "60"), ("interrupts", "2")],
        ..COMMON
    },
    Scenario {
        name: "qemu/one-cpu",
        about: "one CPU: nobody who polls may keep it to himself",
        guest: Guest::Qemu { cpus: 1 },
        script: "stress",
        settings: &[("operations", "40")],
        quick: false,
        ..COMMON
    },
    Scenario {
        name: "qemu/stress",
        about: "two CPUs, two queues: stress as above",
        guest: SMP,
        script: "stress",
        settings: &[("operations", "60")],
        quick: false,
        ..COMMON
    },
    Scenario {
        name: "qemu/sizes",
        about: "requests of all kinds of sizes over PCI, with huge pages",
        guest: SMP,
        script: "sizes",
        settings: &[("step", "32768")],
        quick: false,
        ..COMMON
    },
    Scenario { name: "qemu/fio", about: "fio's verification on two queues", guest: SMP, script: "fio", quick: false, ..COMMON },
    Scenario {
        name: "qemu/unbind-busy",
        about: "the driver lets go with requests under way on two queues",
        guest: SMP,
        script: "unbind-busy",
        allowed: CUT_OFF,
        quick: false,
        ..COMMON
    },
    Scenario {
        name: "qemu/rmmod",
        about: "the module is unloaded with requests under way on two queues",
        guest: SMP,
        script: "rmmod",
        allowed: CUT_OFF,
        only: Only::Rings,
        quick: false,
        ..COMMON
    },
    Scenario {
        name: "qemu/reboot",
        about: "the machine starts again twice, from its firmware",
        guest: SMP,
        script: "reboot",
        event: Event::Reboot,
        quick: false,
        ..COMMON
    },
    Scenario {
        name: "qemu/plug",
        about: "the device is taken out of the running machine and put in again",
        guest: SMP,
        script: "plug",
        event: Event::Plug,
        quick: false,
        ..COMMON
    },
    Scenario {
        name: "qemu/restart",
        about: "the back end is killed and started again under load; no request fails, no write is lost",
        guest: SMP,
        script: "restart",
        settings: &[("rounds", "4")],
        event: Event::Restart,
        ..COMMON
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenarios_have_different_names_and_scripts_that_exist() {
        let scripts = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/vm/scripts");
        for (index, scenario) in SCENARIOS.iter().enumerate() {
            assert!(SCENARIOS[..index].iter().all(|other| other.name != scenario.name), "{} twice", scenario.name);
            let script = std::path::Path::new(scripts).join(format!("{}.sh", scenario.script));
            // Scripts about our driver stand beside it.
            assert!(script.exists() || scenario.only != Only::Everything, "{}", scenario.name);
            assert!(!scenario.about.is_empty(), "{}", scenario.name);
        }
    }
}
