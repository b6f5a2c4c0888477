//! One guest with all disks, its back ends, and what it reports.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use super::super::apt::Apt;
use super::super::archive::Archive;
use super::super::back_end::{Peer, is_listening, pinned};
use super::super::driver::{DriverBuilder, OURS};
use super::super::machine::{self, Group, Next};
use super::super::packages::{Packages, keep, make_folder};
use super::super::scenario::Only;
use super::exits::Trace;
use super::guest::{self, Guest, Machine};
use super::watch::Watcher;

/// A back end that is not there after this long never will be.
const START_LIMIT: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);
/// A guest that takes longer hangs.
const RUN_LIMIT: Duration = Duration::from_secs(3600);

/// Of the kernel's own, and of ours.
const KERNEL_MODULES: [&str; 2] = ["null_blk", "virtio_blk"];
const OUR_MODULES: [&str; 2] = ["fip_blk.ko", "fip_load.ko"];

/// What a run needs, beside the plan.
pub(super) struct Site<'a> {
    pub(super) root: &'a Path,
    /// Where kernels and packages are kept.
    pub(super) cache: &'a Path,
    /// Where `fipseed` is.
    pub(super) programs: &'a Path,
    pub(super) machine: Machine,
    /// For the guest, and for its back ends.
    pub(super) cpus: Option<(usize, usize)>,
    /// Arguments of fip_blk, as insmod takes them.
    pub(super) driver_arguments: &'a str,
    /// Further arguments of fipseed.
    pub(super) daemon_arguments: &'a [String],
}

/// The disks that our daemon or another one serves, in the order in which the machine has them, as the plan calls them.
const SERVED: [&str; 5] = ["qemu", "vnull", "vmem", "fnull", "fmem"];

/// Those that fip_blk drives.
fn is_ours(label: &str) -> bool {
    label.starts_with('f')
}

/// Boot, carry out the plan, collect what the guest reports, and what was watched.
pub(super) fn run(site: &Site<'_>, plan: &str) -> Result<Vec<String>, String> {
    let folder = std::env::temp_dir().join(format!("fipsee-bench-vm-{}", std::process::id()));
    make_folder(&folder)?;
    let outcome = run_in(site, plan, &folder);
    // Sockets, an initrd and logs, which an error has quoted already.
    let _ = fs::remove_dir_all(&folder);
    outcome
}

fn run_in(site: &Site<'_>, plan: &str, folder: &Path) -> Result<Vec<String>, String> {
    let packages = Packages::new(site.cache.join("packages"), Apt::own());
    let guest = Guest::prepare(site, &packages).map_err(|unready| format!("{unready:?}"))?;
    let initrd = folder.join("initrd");
    write_initrd(site, plan, &guest, &packages, &initrd)?;
    let back_ends = BackEnds::start(site, folder)?;
    let ours = SERVED.iter().enumerate().filter(|(_, label)| is_ours(label));
    let is_traced = site.machine == Machine::Qemu;
    let append = format!(
        "fip.script=loads fip.modules= fip.exits={} fip.disks={} fip.fip={} fip.fip_arguments={}",
        u8::from(is_traced),
        SERVED.join(","),
        ours.map(|(number, _)| format!("virtio{number}")).collect::<Vec<_>>().join(","),
        site.driver_arguments
    );
    let mut command = guest.command(site, &initrd, &append, &SERVED.map(|label| socket(folder, label)));
    let trace = is_traced.then(|| Trace::new(folder.join(guest::MONITOR), folder.join(guest::LOG)));
    let mut watcher = Watcher::new(folder, site.machine.program(), site.cpus, trace);
    let outcome =
        machine::run(&mut command, RUN_LIMIT, &mut std::io::sink(), |event| watcher.on_event(event).map(|()| Next::GoesOn))?;
    let verdict = outcome.judge(&[]).and_then(|()| back_ends.finish());
    verdict.map_err(|error| {
        let (console, reports) = (outcome.console.join("\n"), outcome.reports.iter().rev().take(3).cloned().collect::<Vec<_>>());
        let (reports, monitor) = (reports.join("\n"), fs::read_to_string(folder.join(guest::LOG)).unwrap_or_default());
        format!("{error}\n--- guest\n{console}\n--- its last reports, the latest first\n{reports}\n--- QEMU\n{monitor}")
    })?;
    Ok(outcome.reports.into_iter().chain(watcher.reports).collect())
}

fn socket(folder: &Path, label: &str) -> PathBuf {
    folder.join(format!("{label}.sock"))
}

fn write_initrd(site: &Site<'_>, plan: &str, guest: &Guest, packages: &Packages, to: &Path) -> Result<(), String> {
    let scripts = site.root.join("tests/vm");
    let busybox = packages.files("busybox-static", |unpacked, chosen| {
        let places = ["bin/busybox", "usr/bin/busybox"].map(|place| unpacked.join(place));
        keep(places.iter().find(|path| path.is_file()).ok_or("busybox-static has no busybox")?, chosen)
    });
    let busybox = busybox.map_err(|unready| format!("{unready:?}"))?;
    let mut archive = Archive::default();
    archive.add_file("init", &scripts.join("init"))?;
    archive.add_file("bin/busybox", &busybox.join("busybox"))?;
    for script in ["lib.sh", "loads.sh"] {
        archive.add_file(&format!("vm/{script}"), &scripts.join("scripts").join(script))?;
    }
    archive.add("vm/plan", plan.as_bytes())?;
    let (kernel, order) = (guest.kernel(), guest.order());
    archive.add("modules/order", order.join("\n").as_bytes())?;
    for name in order.into_iter().chain(KERNEL_MODULES) {
        let module = kernel.module(name).ok_or_else(|| format!("the guest's kernel has no module {name}"))?;
        archive.add_file(&format!("modules/{name}.ko"), &module)?;
    }
    let builder = DriverBuilder { root: site.root, cache: site.cache, packages };
    let peer = Peer::Fipseed(site.programs.to_owned());
    let modules = builder.modules(OURS, &peer, &kernel, Only::Rings).map_err(|unready| format!("{unready:?}"))?;
    for name in OUR_MODULES {
        let mut built = modules.paths.iter().chain(&modules.others);
        let module = built.find(|path| path.ends_with(name)).ok_or_else(|| format!("no {name} was built"))?;
        archive.add_file(&format!("modules/{name}"), module)?;
    }
    fs::write(to, archive.finish()?).map_err(|error| format!("cannot write {}: {error}", to.display()))
}

/// Our daemon with all its disks, and QEMU's with one.
struct BackEnds {
    processes: Vec<(&'static str, Group, PathBuf)>,
}

impl BackEnds {
    fn start(site: &Site<'_>, folder: &Path) -> Result<Self, String> {
        let cpu = site.cpus.map(|(_, back)| back);
        let mut ours = pinned(cpu, &site.programs.join("fipseed"));
        ours.arg("--listen").arg(folder.join("fipsee.sock")).args(site.daemon_arguments);
        ours.args(cpu.map(|cpu| format!("--cpus={cpu}")));
        for label in &SERVED[1..] {
            let kind = if label.ends_with("mem") { "memory:64MiB" } else { "null:1GiB" };
            ours.arg("--disk").arg(format!("{label}={kind}"));
            ours.arg("--vhost-user").arg(format!("{label}={}", socket(folder, label).display()));
        }
        let mut theirs = pinned(cpu, Path::new("qemu-storage-daemon"));
        let path = socket(folder, SERVED[0]);
        theirs.args(["--blockdev", "driver=null-co,node-name=null0,size=1073741824", "--export"]);
        theirs.arg(format!(
            "type=vhost-user-blk,id=export0,node-name=null0,addr.type=unix,addr.path={},writable=on,num-queues={}",
            path.display(),
            site.machine.cpus()
        ));
        let mut back_ends = Self { processes: Vec::new() };
        for (name, command) in [(super::DAEMON, &mut ours), (super::PEER, &mut theirs)] {
            let log = folder.join(format!("{name}.log"));
            let file = File::create(&log).and_then(|file| Ok((file.try_clone()?, file)));
            let (output, errors) = file.map_err(|error| format!("cannot write {}: {error}", log.display()))?;
            let group = Group::spawn(command.stdin(Stdio::null()).stdout(output).stderr(errors))?;
            back_ends.processes.push((name, group, log));
        }
        let deadline = Instant::now() + START_LIMIT;
        while !SERVED.iter().all(|label| is_listening(&socket(folder, label))) {
            back_ends.check()?;
            if Instant::now() > deadline {
                return Err("a back end does not open its sockets".to_owned());
            }
            // tidy: allow sleep, another program's socket cannot be waited for
            thread::sleep(LOOK);
        }
        Ok(back_ends)
    }

    fn check(&mut self) -> Result<(), String> {
        for (name, group, log) in &mut self.processes {
            if let Some(status) = group.ended() {
                let log = fs::read_to_string(log).unwrap_or_default();
                return Err(format!("{name} ended with {status}:\n{log}"));
            }
        }
        Ok(())
    }

    /// They must have lived as long as the guest.
    fn finish(mut self) -> Result<(), String> {
        self.check()
    }
}
