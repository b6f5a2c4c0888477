//! What is tested: each scenario is a script that a guest runs on a disk, and what the host does meanwhile.

mod kind;

pub(super) use self::kind::{Event, Guest, Only, Origin, RootDisk, Scenario};
use super::back_end::{Content, Disk};
use super::uml::Build;

const MIB: u64 = 1 << 20;

const DISK: Disk = Disk { bytes: 128 * MIB, read_only: false, content: Content::Nothing, further: 0 };

/// A disk on which the host made a file system.
const FILES: Disk = Disk { content: Content::Files, ..DISK };
const READ_ONLY: Disk = Disk { read_only: true, ..FILES };
const SYSTEM: Disk = Disk { content: Content::System, ..DISK };
/// With 16 queues each, and a vector for changes of its configuration, they have 204 vectors.
const TWELVE: Disk = Disk { further: 11, ..DISK };

/// One of user-mode Linux that `cargo xtask test` runs.
const fn scenario(name: &'static str, script: &'static str, about: &'static str) -> Scenario {
    Scenario {
        name,
        about,
        guest: Guest::Uml(Build::Plain),
        script,
        settings: "",
        disk: DISK,
        event: Event::Nothing,
        allowed: &[],
        only: Only::Everything,
        quick: true,
    }
}

impl Scenario {
    const fn on(self, guest: Guest) -> Self {
        Self { guest, ..self }
    }

    const fn set(self, settings: &'static str) -> Self {
        Self { settings, ..self }
    }

    const fn disk(self, disk: Disk) -> Self {
        Self { disk, ..self }
    }

    const fn event(self, event: Event) -> Self {
        Self { event, ..self }
    }

    /// Of requests in flight when a device is unbound, the last may fail.
    const fn may_fail(self) -> Self {
        Self { allowed: &["I/O error"], ..self }
    }

    const fn only(self, only: Only) -> Self {
        Self { only, ..self }
    }

    /// Not part of `cargo xtask test`.
    const fn by_hand(self) -> Self {
        Self { quick: false, ..self }
    }
}

/// A machine of this Debian, with all that QEMU can emulate of a CPU.
const fn qemu(cpus: u16) -> Guest {
    Guest::Qemu { cpus, model: "max", kernel: Origin::Release, program: Origin::Release }
}

const SMP: Guest = qemu(2);
const NEW_KERNEL: Guest = Guest::Qemu { cpus: 2, model: "max", kernel: Origin::Backports, program: Origin::Release };
const NEW_QEMU: Guest = Guest::Qemu { cpus: 2, model: "max", kernel: Origin::Release, program: Origin::Backports };

const SCENARIOS: &[Scenario] = &[
    scenario("uml/boot", "boot", "the disk appears; for the time that takes").by_hand(),
    scenario("uml/files", "files", "a tree copied into a file system; every byte, with caches dropped; e2fsck").set("files=300"),
    scenario("uml/stress", "stress", "processes that do everything to files at once; e2fsck").set("operations=600"),
    scenario("uml/sizes", "sizes", "requests from 512 B to 1 MiB from contiguous and scattered memory").set("step=8192"),
    scenario("uml/every-size", "sizes", "the same with all 2048 sizes").set("step=512").by_hand(),
    scenario("uml/long", "long", "the longest requests that the kernel makes when it may").set("most=200"),
    scenario("uml/corrupt", "corrupt", "a test of the tests: a file that the host spoils is found and named")
        .event(Event::Corrupt),
    scenario("uml/fio", "fio", "fio's verification with deep queues of mixed sizes"),
    scenario("uml/zeroes", "zeroes", "discard and write-zeroes; what surrounds them stays"),
    scenario("uml/resize", "resize", "the disk grows under a mounted file system")
        .set("sectors=393216")
        .event(Event::Resize(192 * MIB)),
    scenario("uml/readonly", "readonly", "a read-only disk with a file system the host made").disk(READ_ONLY),
    scenario(
        "uml/handover",
        "handover",
        "new daemons take over while files are written and read; no request fails, every byte is right; e2fsck",
    )
    .set("rounds=5 files=60")
    .event(Event::Handover),
    scenario(
        "uml/machine-kills",
        "kills",
        "the machine is killed at random; each time all that was acknowledged is on the disk (--set cycles=N)",
    )
    .set("cycles=5")
    .event(Event::KillMachine),
    scenario("uml/rebind", "rebind", "the device is unbound from the driver and bound again, 20 times"),
    // Once, user-mode Linux aborted after its guest had passed and halted, when it takes devices away. Since then guests let
    // go of them before they halt (tests/vm/init); it was not seen again, and 30 rounds with each driver did not
    // reproduce it.
    scenario("uml/unbind-busy", "unbind-busy", "the device is unbound with requests in flight, 10 times (--set rounds=N)")
        .set("rounds=10")
        .may_fail()
        .by_hand(),
    scenario("uml/rmmod", "rmmod", "the module is unloaded with requests under way, 5 times").may_fail().only(Only::Rings),
    scenario("uml/choices", "choices", "rings are gone about as the daemon advises, and in every other way").only(Only::Rings),
    scenario("uml/notify", "notify", "kicks are held back as attributes of the disk say; every request completes")
        .only(Only::Rings),
    scenario("uml/switch", "switch", "the daemon wants the disk back on virtqueues, again and again, under load")
        .event(Event::FaultProxy)
        .only(Only::Rings)
        .by_hand(),
    scenario(
        "uml/faulty-daemon",
        "faulty_daemon",
        "a fault of each kind from the back end: the disk fails, the machine does not",
    )
    .event(Event::FaultProxy)
    .may_fail()
    .only(Only::Rings)
    .by_hand(),
    scenario("uml/silent", "silent", "the back end falls silent: the disk fails in time, the machine does not")
        .event(Event::FaultProxy)
        .may_fail()
        .only(Only::Rings)
        .by_hand(),
    scenario(
        "qemu/takeover",
        "takeover",
        "dkms builds the driver; fip-blk-takeover moves a disk to it at boot, and refuses where it must",
    )
    .on(SMP)
    .disk(FILES)
    .only(Only::Takeover)
    .by_hand(),
    scenario(
        "qemu/systemd",
        "unit",
        "a Debian boots: systemd's unit moves a disk before its file system is mounted; without rings it is mounted all the same",
    )
    .on(Guest::System(RootDisk::Beside))
    .disk(FILES)
    .only(Only::Takeover)
    .by_hand(),
    scenario(
        "qemu/root",
        "root",
        "a Debian boots from the disk: its initramfs gives it to our driver, or without rings to the kernel's",
    )
    .on(Guest::System(RootDisk::Tested))
    .disk(SYSTEM)
    .only(Only::Takeover)
    .by_hand(),
    scenario("qemu/switch", "switch", "two queues: the daemon wants the disk back, as above")
        .on(SMP)
        .event(Event::FaultProxy)
        .only(Only::Rings)
        .by_hand(),
    scenario("qemu/faulty-daemon", "faulty_daemon", "two queues: faults, as above")
        .on(SMP)
        .event(Event::FaultProxy)
        .may_fail()
        .only(Only::Rings)
        .by_hand(),
    scenario("qemu/silent", "silent", "two queues: silence, as above")
        .on(SMP)
        .event(Event::FaultProxy)
        .may_fail()
        .only(Only::Rings)
        .by_hand(),
    scenario(
        "uml/net",
        "net",
        "two machines at ports of a network: ping of several lengths, TCP in both directions at once, links that go down",
    )
    .set("lines=2000000 link=1")
    .event(Event::Network)
    .only(Only::Unmodified),
    scenario("qemu/net", "net", "two CPUs, two pairs of queues: two machines at ports of a network, as above")
        .on(SMP)
        .set("lines=200000")
        .event(Event::Network)
        .only(Only::Unmodified),
    scenario("qemu-10/net", "net", "the QEMU of Debian's backports, with MSI-X: two machines at ports of a network, as above")
        .on(NEW_QEMU)
        .set("lines=200000")
        .event(Event::Network)
        .only(Only::Unmodified)
        .by_hand(),
    scenario("uml/foreign", "foreign", "a back end without rings: our driver leaves the device, or keeps it when asked to")
        .only(Only::Foreign),
    scenario("qemu/boot", "boot", "the disk appears; for the time that takes").on(SMP).by_hand(),
    scenario("qemu/files", "files", "two CPUs, two queues, MSI-X, the firmware first: files as above")
        .on(SMP)
        .set("files=60 interrupts=2"),
    scenario("qemu/one-cpu", "stress", "one CPU: no process that polls may keep it to itself")
        .on(qemu(1))
        .set("operations=40")
        .by_hand(),
    scenario("qemu/stress", "stress", "two CPUs, two queues: stress as above").on(SMP).set("operations=60").by_hand(),
    scenario("qemu/sizes", "sizes", "requests of all kinds of sizes over PCI, with huge pages")
        .on(SMP)
        .set("step=32768")
        .by_hand(),
    scenario("qemu/long", "long", "the longest requests that the kernel makes when it may, from huge pages")
        .on(SMP)
        .set("most=12")
        .by_hand(),
    scenario("qemu/fio", "fio", "fio's verification on two queues").on(SMP).by_hand(),
    scenario("qemu/unbind-busy", "unbind-busy", "the device is unbound with requests in flight on two queues")
        .on(SMP)
        .set("rounds=10")
        .may_fail()
        .by_hand(),
    scenario("qemu/rmmod", "rmmod", "the module is unloaded with requests under way on two queues")
        .on(SMP)
        .may_fail()
        .only(Only::Rings)
        .by_hand(),
    scenario("qemu/reboot", "reboot", "the machine starts again twice, from its firmware").on(SMP).event(Event::Reboot).by_hand(),
    scenario("qemu/plug", "plug", "the device is taken out of the running machine and put in again")
        .on(SMP)
        .event(Event::Plug)
        .by_hand(),
    scenario(
        "qemu/vectors",
        "vectors",
        "16 CPUs, 12 disks, 204 vectors: interrupts come where requests are from; CPUs and devices go and give vectors back",
    )
    .on(qemu(16))
    .disk(TWELVE)
    .set("disks=12 parameters=devices=virtio0,virtio2,virtio4,virtio6,virtio8,virtio10+depth=16")
    .event(Event::PlugAny)
    .only(Only::Rings),
    scenario("uml/bench", "bench", "fip_bench refuses to measure two CPUs where there is one").only(Only::Rings),
    scenario("qemu/bench", "bench", "fip_bench between two CPUs that have MONITOR and MWAIT: each way to wait, every answer")
        .on(SMP)
        .set("mwait=1")
        .only(Only::Rings)
        .by_hand(),
    scenario("qemu/bench-bare", "bench", "fip_bench on a CPU without MONITOR and MWAIT says so")
        .on(Guest::Qemu { cpus: 2, model: "max,-monitor", kernel: Origin::Release, program: Origin::Release })
        .only(Only::Rings)
        .by_hand(),
    scenario("qemu/notify", "notify", "two CPUs, two queues: kicks are held back, as above").on(SMP).only(Only::Rings).by_hand(),
    scenario("qemu/threads", "threads", "four CPUs, four queues: the threads of fip_blk follow what is set, and the load")
        .on(qemu(4))
        .only(Only::Rings)
        .by_hand(),
    scenario(
        "qemu/few-threads",
        "threads",
        "three CPUs, three queues: the threads of fip_blk follow what is set, the load, and CPUs that go; completions end on the CPU of their request",
    )
    .on(qemu(3))
    .set("run=short")
    .only(Only::Rings),
    scenario("qemu/mwait", "mwait", "the threads of fip_blk wait with MWAIT").on(SMP).only(Only::Rings).by_hand(),
    scenario("qemu-6.12/boot", "boot", "the kernel of Debian's backports: the disk appears").on(NEW_KERNEL).by_hand(),
    scenario("qemu-6.12/files", "files", "the kernel of Debian's backports: files as above")
        .on(NEW_KERNEL)
        .set("files=60 interrupts=2")
        .by_hand(),
    scenario("qemu-10/boot", "boot", "the QEMU of Debian's backports: the disk appears").on(NEW_QEMU).by_hand(),
    scenario("qemu-10/files", "files", "the QEMU of Debian's backports: files as above")
        .on(NEW_QEMU)
        .set("files=60 interrupts=2")
        .by_hand(),
    scenario(
        "qemu/restart",
        "restart",
        "the back end is killed and started again under load; no request fails, no write is lost",
    )
    .on(SMP)
    .set("rounds=4")
    .event(Event::Restart),
    scenario(
        "qemu/kills",
        "kills",
        "the back end is killed at random; each time all that was acknowledged is on the disk (--set kills=N)",
    )
    .on(SMP)
    .set("kills=5")
    .event(Event::Kill),
    scenario("qemu/machine-kills", "kills", "the machine is killed at random, as above")
        .on(SMP)
        .set("cycles=5")
        .event(Event::KillMachine)
        .by_hand(),
];

/// Scenarios that test little of a driver: not run on the debug kernel.
const NOT_DEBUGGED: [&str; 2] = ["uml/boot", "uml/corrupt"];

/// Every scenario; those of user-mode Linux again on the debug kernel, as `uml-debug/`.
pub(super) fn all() -> Vec<Scenario> {
    let is_debugged = |scenario: &&Scenario| scenario.guest == Guest::Uml(Build::Plain) && !NOT_DEBUGGED.contains(&scenario.name);
    let again = SCENARIOS.iter().filter(is_debugged).map(|scenario| Scenario {
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
