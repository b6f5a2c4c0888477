//! What a scenario is made of.

use super::super::back_end::{Disk, PEERS};
use super::super::driver::OURS;
use super::super::uml::Build;

/// A machine for a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::vm) enum Guest {
    /// User-mode Linux: one CPU, no PCI, half a second.
    Uml(Build),
    /// QEMU without hardware virtualisation, Debian's kernel, PCI with MSI-X, a queue per CPU; ten times slower.
    Qemu {
        cpus: u16,
        /// As `-cpu` takes it.
        model: &'static str,
        kernel: Origin,
        program: Origin,
    },
    /// The same QEMU with two CPUs, and in it a Debian that boots from its own initramfs, with systemd.
    System(RootDisk),
}

impl Guest {
    pub(in crate::vm) fn cpus(self) -> u16 {
        match self {
            Self::Uml(_) => 1,
            Self::Qemu { cpus, .. } => cpus,
            Self::System(_) => 2,
        }
    }
}

/// Where a Debian has its root file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::vm) enum RootDisk {
    /// On a disk of QEMU's own, which is no virtio device.
    Beside,
    /// On the disk that is tested.
    Tested,
}

/// Where a kernel or QEMU comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::vm) enum Origin {
    /// The release of Debian that this machine has.
    Release,
    /// The backports of that release.
    Backports,
}

/// What the host does when the guest says the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::vm) enum Event {
    Nothing,
    /// The disk grows to so many bytes.
    Resize(u64),
    /// The back end is killed and started again.
    Restart,
    /// The same, again and again; each time the disk is compared with the guest's acknowledged writes.
    Kill,
    /// The machine is killed and another one started, again and again; each time the disk is compared with the guest's
    /// acknowledged writes.
    KillMachine,
    /// A new back end takes over from the one that runs.
    Handover,
    /// The device is taken out of the machine ("unplug") and put in again ("plug").
    Plug,
    /// The same with the device that the guest names, and its connection; the daemon must close the descriptors of its queues.
    PlugAny,
    /// A fault proxy between machine and back end acts; or the back end stops for a while.
    FaultProxy,
    /// A file of the guest's is corrupted below its file system.
    Corrupt,
    /// No disk: another machine runs the same script at another port of a network.
    Network,
    /// The machine starts again; nothing for the host to do, but its monitor must not end it.
    Reboot,
}

impl Scenario {
    pub(in crate::vm) fn settings(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.settings.split_whitespace().filter_map(|word| word.split_once('='))
    }
}

/// A test.
#[derive(Clone, Copy, Debug)]
pub(in crate::vm) struct Scenario {
    pub(in crate::vm) name: &'static str,
    pub(in crate::vm) about: &'static str,
    pub(in crate::vm) guest: Guest,
    /// File in `tests/vm/scripts`, without its ending.
    pub(in crate::vm) script: &'static str,
    /// What the script asks for with `setting`: `NAME=VALUE` each.
    pub(in crate::vm) settings: &'static str,
    pub(in crate::vm) disk: Disk,
    pub(in crate::vm) event: Event,
    /// Alarms of the kernel that it provokes.
    pub(in crate::vm) allowed: &'static [&'static str],
    /// The only driver and back end it is about; empty: all.
    pub(in crate::vm) only: Only,
    /// Part of `cargo xtask test`.
    pub(in crate::vm) quick: bool,
}

/// What a scenario is limited to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::vm) enum Only {
    Everything,
    /// Our driver on our daemon.
    Rings,
    /// Our driver on a back end that knows nothing of rings, and without the setting to keep the device.
    Foreign,
    /// The kernel's own driver on our daemon.
    Unmodified,
    /// Our driver as dkms built it, but the guest has its own too and is to load ours by itself.
    Takeover,
}

impl Only {
    /// Is a scenario with that limit about this driver and back end?
    pub(in crate::vm) fn includes(self, driver: &str, peer: &str) -> bool {
        match self {
            Self::Everything => true,
            Self::Rings => driver == OURS && peer == PEERS[0],
            Self::Foreign => driver == OURS && peer != PEERS[0],
            Self::Unmodified => driver != OURS && peer == PEERS[0],
            Self::Takeover => driver == OURS,
        }
    }
}
