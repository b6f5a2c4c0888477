//! Everything a scenario needs, made when the first one asks for it; and how one is run.

use std::cell::OnceCell;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::archive::Archive;
use super::back_end::{BackEnd, Peer, ask_monitor, pinned};
use super::debian::{self, Debian};
use super::driver::{DRIVERS, Kernel, Modules, SCRIPTS, Workshop};
use super::machine::{self, Outcome};
use super::packages::{Packages, make_folder};
use super::programs::{Programs, name_of};
use super::scenario::{Event, Guest, Scenario};
use super::uml::Uml;
use super::unready::Unready;
use crate::setup::is_installed;

/// A scenario that takes longer hangs: the slowest take a minute on a quiet machine, and much more on a busy one.
const LIMIT: Duration = Duration::from_secs(900);

/// What user-mode Linux keeps the guest's memory in must have this much space.
const UML_MEMORY_MIB: u64 = 512;

/// How a scenario is run.
pub(super) struct Choice<'a> {
    pub(super) peer: &'a Peer,
    pub(super) driver: &'a str,
    pub(super) seed: u64,
    pub(super) keep: bool,
}

/// What scenarios share.
pub(super) struct Lab {
    root: PathBuf,
    target: PathBuf,
    cache: PathBuf,
    packages: Packages,
    qemu: PathBuf,
    /// Where the guest runs, and where its back end does; none on a machine with one CPU.
    cpus: Option<(usize, usize)>,
    programs: OnceCell<Result<Programs, Unready>>,
    uml: OnceCell<Result<Uml, Unready>>,
    debian: OnceCell<Result<Debian, Unready>>,
}

impl Lab {
    pub(super) fn new(root: &Path, qemu: Option<&str>) -> Self {
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |path| root.join(path));
        let cache = target.join("vm");
        Self {
            root: root.to_owned(),
            target,
            packages: Packages::new(cache.join("packages")),
            cache,
            qemu: qemu.unwrap_or("qemu-system-x86_64").into(),
            cpus: two_cpus(&fs::read_to_string("/proc/self/status").unwrap_or_default()),
            programs: OnceCell::new(),
            uml: OnceCell::new(),
            debian: OnceCell::new(),
        }
    }

    /// Run a scenario; `Ok` holds what to say of success.
    pub(super) fn run(&self, scenario: &Scenario, choice: &Choice<'_>) -> Result<String, Unready> {
        if let Some(reason) = choice.peer.cannot(scenario.event) {
            return Err(Unready::Missing(format!("{}: {reason}", choice.peer.name())));
        }
        let needed = match scenario.guest {
            Guest::Uml => &["make", "gcc", "flex", "bison", "bc", "xz", "timeout", "apt-get", "dpkg-deb", "taskset"][..],
            Guest::Qemu { .. } => &["make", "gcc", "apt-get", "dpkg-deb", "taskset"],
        };
        let qemu = self.qemu.to_string_lossy();
        let missing = needed.iter().copied().chain((scenario.guest != Guest::Uml).then_some(&*qemu)).find(|name| !is_there(name));
        if let Some(program) = missing {
            return Err(Unready::Missing(format!("{program} is not installed; run `cargo xtask setup` as root")));
        }
        // Images lie in memory as well, if they can: a disk that is slow to sync makes the tests wait and tests nothing.
        let folder = memory_folder().join(format!("fipsee-vm-{}", std::process::id())).join(scenario.name.replace('/', "-"));
        // A scenario runs once for each peer and driver.
        let _ = fs::remove_dir_all(&folder);
        make_folder(&folder)?;
        let outcome = self.run_in(&folder, scenario, choice);
        if choice.keep {
            println!("kept: {}", folder.display());
        } else {
            let _ = fs::remove_dir_all(&folder);
            // Of this process' folders the last one.
            let _ = folder.parent().map(fs::remove_dir);
        }
        outcome
    }

    fn run_in(&self, folder: &Path, scenario: &Scenario, choice: &Choice<'_>) -> Result<String, Unready> {
        let initrd = folder.join("initrd");
        let modules = self.initrd(scenario, choice, &initrd)?;
        let queues = match scenario.guest {
            Guest::Uml => 1,
            Guest::Qemu { cpus } => cpus,
        };
        let mut back_end = BackEnd::start(choice.peer, folder, scenario.disk, queues, self.cpus.map(|(_, back)| back))?;
        let append = append(scenario, choice, &modules, queues);
        let mut command = match scenario.guest {
            Guest::Uml => self.uml_command(&initrd, &append, &back_end)?,
            Guest::Qemu { cpus } => self.qemu_command(folder, &append, &back_end, cpus, scenario.event)?,
        };
        let console = folder.join("console.log");
        let mut console = File::create(&console).map_err(|error| format!("cannot write {}: {error}", console.display()))?;
        let outcome = machine::run(&mut command, LIMIT, &mut console, |event| act(event, scenario.event, &mut back_end, folder))?;
        write_logs(folder, &outcome);
        let log = back_end.log();
        let verdict = outcome.judge(scenario.allowed).and_then(|()| back_end.finish());
        verdict
            .map(|()| format!("guest {:.1} s", outcome.took.as_secs_f64()))
            .map_err(|error| Unready::Broken(story(&error, &outcome, &log)))
    }

    /// Write the guest's first file system; gives what it is to load.
    fn initrd(&self, scenario: &Scenario, choice: &Choice<'_>, to: &Path) -> Result<Modules, Unready> {
        let programs = self.programs.get_or_init(|| {
            let _lock = self.lock("programs")?;
            Programs::prepare(&self.root, &self.cache, &self.target, &self.packages)
        });
        let mut archive = Archive::default();
        programs.as_ref().map_err(Unready::clone)?.add_to(&mut archive, &self.root.join(SCRIPTS))?;
        let (kernel, order) = match scenario.guest {
            Guest::Uml => (Kernel::Uml(self.uml()?), &[][..]),
            Guest::Qemu { .. } => (Kernel::Debian(self.debian()?), &debian::LOAD_ORDER[..]),
        };
        archive.add("modules/order", order.join("\n").as_bytes())?;
        if let Kernel::Debian(debian) = &kernel {
            for name in order {
                let path = debian.module(name).ok_or_else(|| format!("the guest's kernel has no module {name}"))?;
                archive.add_file(&format!("modules/{name}.ko"), &path)?;
            }
        }
        let workshop = Workshop { root: &self.root, cache: &self.cache, packages: &self.packages };
        let modules = {
            let _lock = self.lock("driver")?;
            workshop.modules(choice.driver, choice.peer, &kernel, scenario.only)?
        };
        // A script may want the kernel's own beside ours.
        for module in modules.paths.iter().chain(&kernel.module(DRIVERS[0])) {
            archive.add_file(&format!("modules/{}", name_of(module)), module)?;
        }
        let written = fs::write(to, archive.finish()?);
        written.map_err(|error| format!("cannot write {}: {error}", to.display()))?;
        Ok(modules)
    }

    fn uml(&self) -> Result<&Uml, Unready> {
        let uml = self.uml.get_or_init(|| {
            let _lock = self.lock("uml")?;
            Uml::prepare(&self.root, &self.cache, &self.packages)
        });
        uml.as_ref().map_err(Unready::clone)
    }

    fn debian(&self) -> Result<&Debian, Unready> {
        let debian = self.debian.get_or_init(|| {
            let _lock = self.lock("debian")?;
            Debian::prepare(&self.packages)
        });
        debian.as_ref().map_err(Unready::clone)
    }

    /// Two runs at a time would build the same into the same folder.
    fn lock(&self, name: &str) -> Result<File, String> {
        make_folder(&self.cache)?;
        let path = self.cache.join(format!("{name}.lock"));
        let lock = File::create(&path).and_then(|file| file.lock().map(|()| file));
        lock.map_err(|error| format!("cannot lock {}: {error}", path.display()))
    }

    fn uml_command(&self, initrd: &Path, append: &str, back_end: &BackEnd) -> Result<Command, Unready> {
        /// The device's id on the virtio bus: a disk.
        const DISK: u8 = 2;
        let mut command = pinned(self.cpus.map(|(guest, _)| guest), &self.uml()?.program());
        command.env("TMPDIR", memory_folder());
        command.arg(format!("mem={UML_MEMORY_MIB}M")).arg(format!("initrd={}", initrd.display()));
        command.args(["con0=null,fd:1", "con1=null,fd:2", "con=null", "ssl=null", "loglevel=5", "panic=-1"]);
        command.arg(format!("virtio_uml.device={}:{DISK}", back_end.socket().display()));
        command.args(append.split(' ')).arg("fip.report=tty1");
        Ok(command)
    }

    fn qemu_command(&self, folder: &Path, append: &str, back_end: &BackEnd, cpus: u16, event: Event) -> Result<Command, Unready> {
        let mut command = Command::new(&self.qemu);
        command.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-m", "512M", "-smp", &cpus.to_string()]);
        command.args(["-object", "memory-backend-memfd,id=memory0,size=512M,share=on"]);
        command.args(["-machine", "q35,memory-backend=memory0", "-nodefaults", "-display", "none", "-nic", "none"]);
        command.arg("-kernel").arg(self.debian()?.kernel()).arg("-initrd").arg(folder.join("initrd"));
        // Told that its clock is good, for which there is no proof here: otherwise reading it takes a microsecond.
        let clock = "tsc=reliable clocksource=tsc";
        // A busy host stops the machine for a while; that is no stall of the guest's making.
        let patience = "rcupdate.rcu_cpu_stall_timeout=300 watchdog_thresh=60";
        let kernel = "console=ttyS0 loglevel=5 panic=-1 mitigations=off fip.report=ttyS1";
        command.arg("-append").arg(format!("{kernel} {clock} {patience} {append}"));
        command.args(["-serial", "stdio", "-chardev", "file,id=report0,path=/dev/stderr", "-serial", "chardev:report0"]);
        command.arg("-qmp").arg(format!("unix:{}/qemu.sock,server=on,wait=off", folder.display()));
        command.args(if event == Event::Reboot { &["-no-user-config"][..] } else { &["-no-reboot"] });
        let reconnect = if event == Event::Restart { ",reconnect=1" } else { "" };
        command.arg("-chardev").arg(format!("socket,id=disk0,path={}{reconnect}", back_end.socket().display()));
        command.args(["-device", "pcie-root-port,id=port0,chassis=1", "-device", &qemu_device(cpus)]);
        Ok(command)
    }
}

/// The disk as an argument of `-device`.
fn qemu_device(queues: u16) -> String {
    format!("vhost-user-blk-pci,id=device0,bus=port0,chardev=disk0,num-queues={queues}")
}

/// A program by its path, or on PATH.
fn is_there(program: &str) -> bool {
    if program.contains('/') { Path::new(program).exists() } else { is_installed(program) }
}

/// The script's settings as the kernel's command line has them.
fn append(scenario: &Scenario, choice: &Choice<'_>, modules: &Modules, queues: u16) -> String {
    let names: Vec<_> = modules.paths.iter().map(|path| name_of(path).trim_end_matches(".ko").to_owned()).collect();
    let mut words = vec![
        format!("fip.script={}", scenario.script),
        format!("fip.driver={}", choice.driver),
        format!("fip.peer={}", choice.peer.name()),
        format!("fip.modules={}", names.join(",")),
        format!("fip.arguments={}", modules.arguments),
        format!("fip.queues={queues}"),
        format!("fip.seed={}", choice.seed),
    ];
    words.extend(scenario.settings.iter().map(|(name, value)| format!("fip.{name}={value}")));
    words.join(" ")
}

/// What the host does when the guest asks for it.
fn act(event: &str, expected: Event, back_end: &mut BackEnd, folder: &Path) -> Result<(), String> {
    let monitor = |request: &str, event| ask_monitor(&folder.join("qemu.sock"), request, event);
    match (event.split(' ').next().unwrap_or_default(), expected) {
        ("resize", Event::Resize(bytes)) => back_end.resize(bytes),
        ("restart", Event::Restart) => back_end.restart(),
        ("reboot", Event::Reboot) => Ok(()),
        ("unplug", Event::Plug) => monitor(r#"{"execute":"device_del","arguments":{"id":"device0"}}"#, Some("DEVICE_DELETED")),
        ("plug", Event::Plug) => {
            let fields = qemu_device(2).replacen("vhost", "driver=vhost", 1);
            let fields = fields.split(',').map(|field| field.split_once('=').unwrap_or_default());
            let fields: Vec<_> = fields.map(|(name, value)| format!(r#""{name}":{}"#, json(value))).collect();
            monitor(&format!(r#"{{"execute":"device_add","arguments":{{{}}}}}"#, fields.join(",")), None)
        }
        _ => Err("this scenario does not expect it".to_owned()),
    }
}

/// A number as it is, anything else as a string.
fn json(value: &str) -> String {
    if value.bytes().all(|byte| byte.is_ascii_digit()) { value.to_owned() } else { format!("\"{value}\"") }
}

fn write_logs(folder: &Path, outcome: &Outcome) {
    for (name, lines) in [("console.log", &outcome.console), ("report.log", &outcome.reports), ("monitor.log", &outcome.monitor)]
    {
        // They are for a reader; the verdict does not need them.
        let _ = fs::write(folder.join(name), lines.join("\n"));
    }
}

/// What went wrong, and all that a reader needs to see why.
fn story(error: &str, outcome: &Outcome, log: &str) -> String {
    let last = |lines: &[String]| lines[lines.len().saturating_sub(60)..].join("\n");
    format!(
        "{error}\n--- console of the guest\n{}\n--- reports of the guest\n{}\n--- monitor\n{}\n--- back end\n{}",
        last(&outcome.console),
        last(&outcome.reports),
        last(&outcome.monitor),
        last(&log.lines().map(str::to_owned).collect::<Vec<_>>())
    )
}

/// Where a guest's memory and its disk lie: files in memory, if there is a place that may hold code and is large enough.
pub(super) fn memory_folder() -> PathBuf {
    let shared = PathBuf::from("/dev/shm");
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let forbids_code = mounts.lines().any(|line| {
        let mut words = line.split(' ').skip(1);
        words.next() == Some("/dev/shm") && words.nth(1).is_some_and(|options| options.split(',').any(|word| word == "noexec"))
    });
    let free = crate::step::output(Command::new("df").args(["--output=avail", "--block-size=1M", "/dev/shm"]));
    let free = free.text.lines().nth(1).and_then(|line| line.trim().parse::<u64>().ok()).unwrap_or(0);
    if shared.is_dir() && !forbids_code && free > 2 * UML_MEMORY_MIB { shared } else { std::env::temp_dir() }
}

/// Two of the CPUs this process may use, from `/proc/self/status`.
pub(super) fn two_cpus(status: &str) -> Option<(usize, usize)> {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let mut cpus = list.trim().split(',').flat_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        first.parse::<usize>().unwrap_or(1)..=last.parse::<usize>().unwrap_or(0)
    });
    Some((cpus.next()?, cpus.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_cpus_of_those_allowed() {
        assert_eq!(two_cpus("Name:\tx\nCpus_allowed_list:\t0-1\n"), Some((0, 1)));
        assert_eq!(two_cpus("Cpus_allowed_list:\t3,8-9\n"), Some((3, 8)));
        assert_eq!(two_cpus("Cpus_allowed_list:\t5\n"), None);
        assert_eq!(two_cpus(""), None);
    }

    #[test]
    fn device_that_is_plugged_in_is_the_one_that_was_there() {
        assert_eq!((json("2"), json("disk0")), ("2".to_owned(), "\"disk0\"".to_owned()));
    }
}
