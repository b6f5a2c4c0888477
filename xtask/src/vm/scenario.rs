//! What is tested: each scenario is a script that a guest runs on a disk, and what the host does meanwhile.

mod kind;

pub(super) use self::kind::{Event, Guest, Only, Origin, RootDisk, Scenario};
use super::back_end::{Content, Disk};
use super::uml::Build;

const MIB: u64 = 1 << 20;

const DISK: Disk = Disk { bytes: 128 * MIB, read_only: false, content: Content::Nothing };

/// What most scenarios have in common.
const COMMON: Scenario = Scenario {
    name: "",
    about: "",
    guest: Guest::Uml(Build::Plain),
    script: "",
    settings: &[],
    disk: DISK,
    event: Event::Nothing,
    allowed: &[],
    only: Only::Everything,
    quick: true,
};

/// A machine of this Debian, with all that QEMU can emulate of a CPU.
const fn qemu(cpus: u16) -> Guest {
    Guest::Qemu { cpus, model: "max", kernel: Origin::Release, program: Origin::Release }
}

const SMP: Guest = qemu(2);
const NEW_KERNEL: Guest = Guest::Qemu { cpus: 2, model: "max", kernel: Origin::Backports, program: Origin::Release };
const NEW_QEMU: Guest = Guest::Qemu { cpus: 2, model: "max", kernel: Origin::Release, program: Origin::Backports };

/// Of requests under way when a driver lets go of its device, the last may fail.
const CUT_OFF: &[&str] = &["I/O error"];

const SCENARIOS: &[Scenario] = &[
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
    Scenario {
        name: "uml/long",
        about: "the longest requests that the kernel makes when it may",
        script: "long",
        settings: &[("most", "200")],
        ..COMMON
    },
    Scenario {
        name: "uml/corrupt",
        about: "a test of the tests: a file that the host spoils is found and named",
        script: "corrupt",
        event: Event::Corrupt,
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
        disk: Disk { read_only: true, content: Content::Files, ..DISK },
        ..COMMON
    },
    Scenario {
        name: "uml/handover",
        about: "new daemons take over while files are written and read; no request fails, every byte is right; e2fsck",
        script: "handover",
        settings: &[("rounds", "5"), ("files", "60")],
        event: Event::Handover,
        ..COMMON
    },
    Scenario {
        name: "uml/machine-kills",
        about: "the machine is killed at random; each time all that was acknowledged is on the disk (--set lives=N)",
        script: "kills",
        settings: &[("lives", "5")],
        event: Event::KillMachine,
        ..COMMON
    },
    Scenario { name: "uml/rebind", about: "the driver lets go and takes the device 20 times", script: "rebind", ..COMMON },
    Scenario {
        name: "uml/unbind-busy",
        about: "the driver lets go with requests under way, 10 times (--set rounds=N)",
        script: "unbind-busy",
        settings: &[("rounds", "10")],
        allowed: CUT_OFF,
        // Once, user-mode Linux aborted after its guest had passed and halted, when it takes devices away. Since then guests let
        // go of them before they halt (tests/vm/init); it was not seen again, and 30 rounds with each driver did not
        // reproduce it.
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
        name: "uml/choices",
        about: "rings are gone about as the daemon advises, and in every other way",
        script: "choices",
        only: Only::Rings,
        ..COMMON
    },
    Scenario {
        name: "uml/switch",
        about: "the daemon wants the disk back on virtqueues, again and again, under load",
        script: "switch",
        event: Event::FaultProxy,
        only: Only::Rings,
        quick: false,
        ..COMMON
    },
    Scenario {
        name: "uml/faulty-daemon",
        about: "a fault of each kind from the back end: the disk fails, the machine does not",
        script: "faulty_daemon",
        event: Event::FaultProxy,
        allowed: CUT_OFF,
        only: Only::Rings,
        quick: false,
        ..COMMON
    },
    Scenario {
        name: "uml/silent",
        about: "the back end falls silent: the disk fails in time, the machine does not",
        script: "silent",
        event: Event::FaultProxy,
        allowed: CUT_OFF,
        only: Only::Rings,
        quick: false,
        ..COMMON
    },
    Scenario {
        name: "qemu/takeover",
        about: "dkms builds the driver; fip-blk-takeover moves a disk to it at boot, and refuses where it must",
        guest: SMP,
        script: "takeover",
        disk: Disk { content: Content::Files, ..DISK },
        only: Only::Takeover,
        quick: false,
        ..COMMON
    },
    Scenario {
        name: "qemu/systemd",
        about: "a Debian boots: systemd's unit moves a disk before its file system is mounted; without rings it is mounted all the same",
        guest: Guest::System(RootDisk::Beside),
        script: "unit",
        disk: Disk { content: Content::Files, ..DISK },
        only: Only::Takeover,
        quick: false,
        ..COMMON
    },
    Scenario {
        name: "qemu/root",
        about: "a Debian boots from the disk: its initramfs gives it to our driver, or without rings to the kernel's",
        guest: Guest::System(RootDisk::Tested),
        script: "root",
        disk: Disk { content: Content::System, ..DISK },
        only: Only::Takeover,
        quick: false,
        ..COMMON
    },
    Scenario {
        name: "qemu/switch",
        about: "two queues: the daemon wants the disk back, as above",
        guest: SMP,
        script: "switch",
        event: Event::FaultProxy,
        only: Only::Rings,
        quick: false,
        ..COMMON
    },
    Scenario {
        name: "qemu/faulty-daemon",
        about: "two queues: faults, as above",
        guest: SMP,
        script: "faulty_daemon",
        event: Event::FaultProxy,
        allowed: CUT_OFF,
        only: Only::Rings,
        quick: false,
        ..COMMON
    },
    Scenario {
        name: "qemu/silent",
        about: "two queues: silence, as above",
        guest: SMP,
        script: "silent",
        event: Event::FaultProxy,
        allowed: CUT_OFF,
        only: Only::Rings,
        quick: false,
        ..COMMON
    },
    Scenario {
        name: "uml/foreign",
        about: "a back end without rings: our driver leaves the device, or keeps it when asked to",
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
        about: "one CPU: no process that polls may keep it to itself",
        guest: qemu(1),
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
    Scenario {
        name: "qemu/long",
        about: "the longest requests that the kernel makes when it may, from huge pages",
        guest: SMP,
        script: "long",
        settings: &[("most", "12")],
        quick: false,
        ..COMMON
    },
    Scenario { name: "qemu/fio", about: "fio's verification on two queues", guest: SMP, script: "fio", quick: false, ..COMMON },
    Scenario {
        name: "qemu/unbind-busy",
        about: "the driver lets go with requests under way on two queues",
        guest: SMP,
        script: "unbind-busy",
        settings: &[("rounds", "10")],
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
        name: "uml/bench",
        about: "fip_bench refuses to measure two CPUs where there is one",
        script: "bench",
        only: Only::Rings,
        ..COMMON
    },
    Scenario {
        name: "qemu/bench",
        about: "fip_bench between two CPUs that have MONITOR and MWAIT: each way to wait, every answer",
        guest: SMP,
        script: "bench",
        settings: &[("mwait", "1")],
        only: Only::Rings,
        quick: false,
        ..COMMON
    },
    Scenario {
        name: "qemu/bench-bare",
        about: "fip_bench on a CPU without MONITOR and MWAIT says so",
        guest: Guest::Qemu { cpus: 2, model: "max,-monitor", kernel: Origin::Release, program: Origin::Release },
        script: "bench",
        only: Only::Rings,
        quick: false,
        ..COMMON
    },
    Scenario {
        name: "qemu/mwait",
        about: "the threads of fip_blk wait with MWAIT",
        guest: SMP,
        script: "mwait",
        only: Only::Rings,
        quick: false,
        ..COMMON
    },
    Scenario {
        name: "qemu-6.12/boot",
        about: "the kernel of Debian's backports: the disk appears",
        guest: NEW_KERNEL,
        script: "boot",
        quick: false,
        ..COMMON
    },
    Scenario {
        name: "qemu-6.12/files",
        about: "the kernel of Debian's backports: files as above",
        guest: NEW_KERNEL,
        script: "files",
        settings: &[("files", "60"), ("interrupts", "2")],
        quick: false,
        ..COMMON
    },
    Scenario {
        name: "qemu-10/boot",
        about: "the QEMU of Debian's backports: the disk appears",
        guest: NEW_QEMU,
        script: "boot",
        quick: false,
        ..COMMON
    },
    Scenario {
        name: "qemu-10/files",
        about: "the QEMU of Debian's backports: files as above",
        guest: NEW_QEMU,
        script: "files",
        settings: &[("files", "60"), ("interrupts", "2")],
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
    Scenario {
        name: "qemu/kills",
        about: "the back end is killed at random; each time all that was acknowledged is on the disk (--set kills=N)",
        guest: SMP,
        script: "kills",
        settings: &[("kills", "10")],
        event: Event::Kill,
        ..COMMON
    },
    Scenario {
        name: "qemu/machine-kills",
        about: "the machine is killed at random, as above",
        guest: SMP,
        script: "kills",
        settings: &[("lives", "5")],
        event: Event::KillMachine,
        quick: false,
        ..COMMON
    },
];

/// Scenarios that test little of a driver: not run on the instrumented kernel.
const NOT_WATCHED: [&str; 2] = ["uml/boot", "uml/corrupt"];

/// Every scenario; those of user-mode Linux again on the instrumented kernel, as `uml-debug/`.
pub(super) fn all() -> Vec<Scenario> {
    let is_watched = |scenario: &&Scenario| scenario.guest == Guest::Uml(Build::Plain) && !NOT_WATCHED.contains(&scenario.name);
    let again = SCENARIOS.iter().filter(is_watched).map(|scenario| Scenario {
        // A few dozen bytes, once per run of this program.
        name: scenario.name.replacen("uml/", "uml-debug/", 1).leak(),
        guest: Guest::Uml(Build::Debug),
        quick: false,
        ..*scenario
    });
    SCENARIOS.iter().copied().chain(again).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenarios_have_different_names_and_scripts_that_exist() {
        let scripts = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/vm/scripts");
        let scenarios = all();
        for (index, scenario) in scenarios.iter().enumerate() {
            assert!(scenarios[..index].iter().all(|other| other.name != scenario.name), "{} twice", scenario.name);
            let script = std::path::Path::new(scripts).join(format!("{}.sh", scenario.script));
            // Scripts about our driver are beside it.
            assert!(script.exists() || scenario.only != Only::Everything, "{}", scenario.name);
            assert!(!scenario.about.is_empty(), "{}", scenario.name);
        }
    }
}
