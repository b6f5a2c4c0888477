//! The machine that all disks are in: user-mode Linux, or QEMU with Debian's kernel.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::super::back_end::pinned;
use super::super::debian::Debian;
use super::super::driver::Kernel;
use super::super::environment::memory_folder;
use super::super::packages::Packages;
use super::super::qemu::Qemu;
use super::super::uml::{Build, Uml};
use super::super::unready::Unready;
use super::boot::Site;

/// What QEMU says itself, and its trace.
pub(super) const LOG: &str = "qemu.log";
/// Where its monitor listens.
pub(super) const MONITOR: &str = "qemu.monitor";

/// Which one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Machine {
    /// Kernel code at native speed, on one CPU.
    Uml,
    /// Two CPUs, PCI, MSI-X; every instruction is translated, so that ratios say little about real machines.
    Qemu,
}

impl Machine {
    pub(super) fn from_word(word: &str) -> Option<Self> {
        [Self::Uml, Self::Qemu].into_iter().find(|machine| machine.word() == word)
    }

    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Uml => "uml",
            Self::Qemu => "qemu",
        }
    }

    /// Each disk has a queue for each.
    pub(super) const fn cpus(self) -> u16 {
        match self {
            Self::Uml => 1,
            Self::Qemu => 2,
        }
    }

    /// Its process, by the name of its program.
    pub(super) const fn program(self) -> &'static str {
        match self {
            Self::Uml => "linux",
            Self::Qemu => "qemu-system-x86_64",
        }
    }
}

/// Ready to boot.
pub(super) enum Guest {
    Uml(Uml),
    Qemu(Debian, Qemu),
}

impl Guest {
    pub(super) fn prepare(site: &Site<'_>, packages: &Packages) -> Result<Self, Unready> {
        Ok(match site.machine {
            Machine::Uml => Self::Uml(Uml::prepare(Build::Plain, site.root, packages)?),
            Machine::Qemu => Self::Qemu(Debian::prepare(packages)?, Qemu::installed(None)?),
        })
    }

    pub(super) const fn kernel(&self) -> Kernel<'_> {
        match self {
            Self::Uml(uml) => Kernel::Uml(uml),
            Self::Qemu(debian, _) => Kernel::Debian(debian),
        }
    }

    /// Modules that are loaded before anything else, each after those it needs.
    pub(super) fn order(&self) -> Vec<&'static str> {
        match self {
            Self::Uml(_) => Vec::new(),
            // null_blk is set up through it.
            Self::Qemu(debian, _) => {
                debian.load_order(false).into_iter().chain(debian.module("configfs").map(|_| "configfs")).collect()
            }
        }
    }

    /// Boot with these disks.
    pub(super) fn command(&self, site: &Site<'_>, initrd: &Path, append: &str, sockets: &[PathBuf]) -> Command {
        match self {
            Self::Uml(uml) => {
                let mut command = pinned(site.cpus.map(|(guest, _)| guest), &uml.program());
                command.env("TMPDIR", memory_folder());
                command.arg("mem=512M").arg(format!("initrd={}", initrd.display()));
                command.args(["con0=null,fd:1", "con1=null,fd:2", "con=null", "ssl=null", "loglevel=5", "panic=-1"]);
                command.args(sockets.iter().map(|socket| format!("virtio_uml.device={}:2", socket.display())));
                command.args(append.split(' ')).arg("fip.report=tty1");
                command
            }
            Self::Qemu(debian, qemu) => {
                let queues = site.machine.cpus();
                let mut command = qemu.machine(queues, "max", &debian.kernel(), initrd, append, &initrd.with_file_name(LOG));
                command.arg("-no-reboot");
                command.arg("-qmp").arg(format!("unix:{},server=on,wait=off", initrd.with_file_name(MONITOR).display()));
                for (number, socket) in sockets.iter().enumerate() {
                    command.arg("-chardev").arg(format!("socket,id=disk{number},path={}", socket.display()));
                    command.arg("-device").arg(format!("vhost-user-blk-pci,chardev=disk{number},num-queues={queues}"));
                }
                command
            }
        }
    }
}
