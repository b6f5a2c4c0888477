//! QEMU: which one, and the machine that it makes.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::back_end::ask_monitor;
use super::environment::Boot;
use super::packages::{Packages, keep};
use super::scenario::{Event, Origin};
use super::unready::Unready;
use crate::setup::is_installed;

const PROGRAM: &str = "qemu-system-x86_64";
const PACKAGE: &str = "qemu-system-x86";

/// So many disks, the last ones, are behind ports and can be taken out.
const PLUGGABLE: usize = 2;

/// A QEMU that can be run.
#[derive(Clone)]
pub(super) struct Qemu {
    program: PathBuf,
    /// Its `usr`, if it was unpacked and not installed.
    unpacked: Option<PathBuf>,
}

/// What a machine is made of.
pub(super) struct Parts<'a> {
    pub(super) cpus: u16,
    /// As `-cpu` takes it.
    pub(super) model: &'a str,
    pub(super) boot: &'a Boot,
    /// Words for the kernel.
    pub(super) append: &'a str,
    /// Of the disk.
    pub(super) socket: PathBuf,
    /// Of the further ones.
    pub(super) further_sockets: Vec<PathBuf>,
    /// Where its monitor listens.
    pub(super) monitor: PathBuf,
    /// Where its own messages go.
    pub(super) log: PathBuf,
    pub(super) event: Event,
}

/// CPUs that have a thread each. Threads that all have interrupts to take wait for QEMU's one lock: on two CPUs of the host, beside the tests, those of 16
/// CPUs were seen to do so for nine minutes, and the guest got no further. In one thread they take turns.
const MOST_THREADS: u16 = 4;

impl Qemu {
    /// The machine's own, or the one of that name.
    pub(super) fn installed(program: Option<&Path>) -> Result<Self, Unready> {
        let program = program.unwrap_or(Path::new(PROGRAM));
        let is_here = if program.components().count() > 1 { program.exists() } else { is_installed(&program.to_string_lossy()) };
        if is_here {
            return Ok(Self { program: program.to_owned(), unpacked: None });
        }
        Err(Unready::Missing(format!("{} is not installed; run `cargo xtask setup` as root", program.display())))
    }

    /// One from packages that are unpacked, not installed.
    pub(super) fn unpacked(packages: &Packages) -> Result<Self, Unready> {
        let needed = packages.needed_for(PACKAGE)?;
        let others: Vec<&str> = needed.iter().map(String::as_str).filter(|name| *name != PACKAGE).collect();
        let folder = packages.files_of(PACKAGE, &others, |unpacked, chosen| keep(&unpacked.join("usr"), chosen))?;
        let usr = folder.join("usr");
        let program = usr.join("bin").join(PROGRAM);
        if !program.exists() {
            return Err(format!("{PACKAGE} has no {}", program.display()).into());
        }
        Ok(Self { program, unpacked: Some(usr) })
    }

    pub(super) fn command(&self, parts: &Parts<'_>) -> Command {
        let mut command = self.machine(parts.cpus, parts.model, &parts.boot.kernel, &parts.boot.initrd, parts.append, &parts.log);
        command.arg("-qmp").arg(format!("unix:{},server=on,wait=off", parts.monitor.display()));
        command.args(if parts.event == Event::Reboot { &["-no-user-config"][..] } else { &["-no-reboot"] });
        if let Some(root) = &parts.boot.root {
            command.arg("-drive").arg(format!("id=root0,if=none,format=raw,file={}", root.display()));
            command.args(["-device", "nvme,serial=root0,drive=root0"]);
        }
        let reconnect = if matches!(parts.event, Event::Restart | Event::Kill) { ",reconnect=1" } else { "" };
        let sockets: Vec<_> = [&parts.socket].into_iter().chain(&parts.further_sockets).collect();
        for (number, socket) in sockets.iter().enumerate() {
            command.arg("-chardev").arg(format!("socket,id=disk{number},path={}{reconnect}", socket.display()));
            // A guest finds those that can be taken out last: they are behind ports.
            if number + PLUGGABLE < sockets.len() {
                command.args(["-device", &device(number, parts.cpus, "pcie.0")]);
            } else {
                command.args(["-device", &format!("pcie-root-port,id=port{number},chassis={}", number + 1)]);
                command.args(["-device", &device(number, parts.cpus, &format!("port{number}"))]);
            }
        }
        command
    }

    /// A machine without disks, with its console on standard output and reports on standard error.
    pub(super) fn machine(&self, cpus: u16, model: &str, kernel: &Path, initrd: &Path, append: &str, log: &Path) -> Command {
        // What it says itself must not be amid the guest's reports.
        let mut command = Command::new("sh");
        command.args(["-c", "exec 3>&2 2>\"$1\"; shift; exec \"$@\"", "sh"]).arg(log).arg(&self.program);
        if let Some(usr) = &self.unpacked {
            // Libraries that this machine lacks or has older; and firmware, which it looks for where it would be installed.
            command.env("LD_LIBRARY_PATH", usr.join("lib/x86_64-linux-gnu"));
            command.arg("-L").arg(usr.join("share/qemu")).arg("-L").arg(usr.join("share/seabios"));
        }
        let threads = if cpus > MOST_THREADS { "single" } else { "multi" };
        command.args(["-accel", &format!("tcg,thread={threads}"), "-cpu", model, "-m", "512M", "-smp", &cpus.to_string()]);
        command.args(["-object", "memory-backend-memfd,id=memory0,size=512M,share=on"]);
        command.args(["-machine", "q35,memory-backend=memory0", "-nodefaults", "-display", "none", "-nic", "none"]);
        command.arg("-kernel").arg(kernel).arg("-initrd").arg(initrd);
        // The time-stamp counter is taken for reliable, unchecked: otherwise reading the clock takes a microsecond.
        let clock = "tsc=reliable clocksource=tsc";
        // A busy host stops the machine for a while; that is no stall of the guest's making.
        let timeout = "no_timer_check rcupdate.rcu_cpu_stall_timeout=300 watchdog_thresh=60";
        let words = "console=ttyS0 loglevel=5 panic=-1 mitigations=off fip.report=ttyS1";
        command.arg("-append").arg(format!("{words} {clock} {timeout} {append}"));
        command.args(["-serial", "stdio", "-chardev", "file,id=report0,path=/dev/fd/3", "-serial", "chardev:report0"]);
        command
    }
}

/// A disk as an argument of `-device`.
fn device(number: usize, queues: u16, bus: &str) -> String {
    format!("vhost-user-blk-pci,id=device{number},bus={bus},chardev=disk{number},num-queues={queues}")
}

/// A port of a network, with a pair of queues for each CPU, as arguments.
pub(super) fn port(socket: &Path, mac: &str, pairs: u16, program: Origin) -> [String; 6] {
    // Without KVM, QEMU 7.2 dereferences a null pointer when a driver with MSI-X starts a vhost-user-net device (virtio_pci_vector_unmask).
    let vectors = if program == Origin::Release { 0 } else { 2 * pairs + 2 };
    [
        "-chardev".to_owned(),
        format!("socket,id=port0,path={}", socket.display()),
        "-netdev".to_owned(),
        format!("vhost-user,id=net0,chardev=port0,queues={pairs}"),
        "-device".to_owned(),
        format!("virtio-net-pci,netdev=net0,mac={mac},mq=on,vectors={vectors}"),
    ]
}

/// Take a device out of the running machine.
pub(super) fn unplug(monitor: &Path, number: usize) -> Result<(), String> {
    let request = format!(r#"{{"execute":"device_del","arguments":{{"id":"device{number}"}}}}"#);
    ask_monitor(monitor, &request, Some("DEVICE_DELETED"))
}

/// Put it in again.
pub(super) fn plug(monitor: &Path, number: usize, queues: u16) -> Result<(), String> {
    let fields = device(number, queues, &format!("port{number}")).replacen("vhost", "driver=vhost", 1);
    let fields = fields.split(',').map(|field| field.split_once('=').unwrap_or_default());
    let fields: Vec<_> = fields.map(|(name, value)| format!(r#""{name}":{}"#, json(value))).collect();
    ask_monitor(monitor, &format!(r#"{{"execute":"device_add","arguments":{{{}}}}}"#, fields.join(",")), None)
}

/// Close the connection to the back end of a device that was taken out.
pub(super) fn disconnect(monitor: &Path, number: usize) -> Result<(), String> {
    ask_monitor(monitor, &format!(r#"{{"execute":"chardev-remove","arguments":{{"id":"disk{number}"}}}}"#), None)
}

/// Connect to it again.
pub(super) fn connect(monitor: &Path, number: usize, socket: &Path) -> Result<(), String> {
    let address = format!(r#"{{"type":"unix","data":{{"path":"{}"}}}}"#, socket.display());
    let back_end = format!(r#"{{"type":"socket","data":{{"addr":{address},"server":false}}}}"#);
    let request = format!(r#"{{"execute":"chardev-add","arguments":{{"id":"disk{number}","backend":{back_end}}}}}"#);
    ask_monitor(monitor, &request, None)
}

/// A number as it is, anything else as a string.
fn json(value: &str) -> String {
    if value.bytes().all(|byte| byte.is_ascii_digit()) { value.to_owned() } else { format!("\"{value}\"") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_that_is_plugged_in_is_the_one_that_was_there() {
        assert_eq!((json("2"), json("disk0")), ("2".to_owned(), "\"disk0\"".to_owned()));
    }

    #[test]
    fn program_that_is_not_there_is_named() {
        let missing = Qemu::installed(Some(Path::new("/no/such/qemu"))).err();
        assert!(matches!(missing, Some(Unready::Missing(text)) if text.contains("/no/such/qemu")));
    }
}
