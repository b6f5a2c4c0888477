//! Everything a scenario needs, made when the first one asks for it; and how one is run.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::apt::Apt;
use super::archive::Archive;
use super::back_end::{BackEnd, Peer, pinned};
use super::debian::Debian;
use super::dkms;
use super::driver::{DRIVERS, DriverBuilder, Kernel, Modules, SCRIPTS};
use super::fault_proxy::FaultProxy;
use super::kill_cycles::KillCycles;
use super::kills::Kills;
use super::machine::{self, CleanupGuard, Next, Outcome};
use super::net::{self, MachinePort};
use super::packages::Packages;
use super::programs::Programs;
use super::qemu::{self, Parts, Qemu};
use super::scenario::{Event, Guest, Only, Origin, RootDisk, Scenario};
use super::system::{ROOT_LABEL, System};
use super::uml::{Build, Uml};
use super::unready::Unready;
use super::vectors;
use crate::files::{self, empty_folder, name_of};
use crate::setup::is_installed;
use crate::target;

/// A scenario that takes longer hangs: the slowest take a minute on a quiet machine, and much more on a busy one.
const LIMIT: Duration = Duration::from_secs(900);

/// What user-mode Linux keeps the guest's memory in must have this much space.
const UML_MEMORY_MIB: u64 = 512;

/// The kinds of a device on the virtio bus.
const UML_NETWORK: u8 = 1;
const UML_DISK: u8 = 2;

/// Programs that user-mode Linux is built and run with.
pub(super) const UML_NEEDS: [&str; 10] =
    ["make", "gcc", "flex", "bison", "bc", "xz", "timeout", "apt-get", "dpkg-deb", "taskset"];

/// The content of the file that a guest wants corrupted.
const SPOILT: &[u8] = b"fipsee-vm: spoil this";

/// How a scenario is run.
pub(super) struct Choice<'a> {
    pub(super) peer: &'a Peer,
    pub(super) driver: &'a str,
    pub(super) seed: u64,
    /// Instead of what the scenario sets.
    pub(super) settings: &'a [(String, String)],
    pub(super) keep: bool,
}

/// What a guest boots from.
pub(super) struct Boot {
    /// Of user-mode Linux, the program.
    pub(super) kernel: PathBuf,
    pub(super) initrd: PathBuf,
    /// The modules that its first process loads.
    pub(super) modules: Modules,
    /// A root file system on a disk of its own.
    pub(super) root: Option<PathBuf>,
}

/// What scenarios share.
pub(super) struct Environment {
    root: PathBuf,
    target: PathBuf,
    cache: PathBuf,
    packages: Packages,
    backports: OnceCell<Result<Packages, Unready>>,
    qemu: Option<PathBuf>,
    /// Where the guest runs, and where its back end does; none on a machine with one CPU.
    cpus: Option<(usize, usize)>,
    programs: OnceCell<Result<Programs, Unready>>,
    uml: OnceCell<Result<Uml, Unready>>,
    debug_uml: OnceCell<Result<Uml, Unready>>,
    debian: OnceCell<Result<Debian, Unready>>,
    new_debian: OnceCell<Result<Debian, Unready>>,
    new_qemu: OnceCell<Result<Qemu, Unready>>,
}

impl Environment {
    pub(super) fn new(root: &Path, qemu: Option<&str>) -> Self {
        let target = target(root);
        let cache = target.join("vm");
        Self {
            root: root.to_owned(),
            target,
            packages: Packages::new(cache.join("packages"), Apt::own()),
            backports: OnceCell::new(),
            cache,
            qemu: qemu.map(PathBuf::from),
            cpus: two_cpus(&fs::read_to_string("/proc/self/status").unwrap_or_default()),
            programs: OnceCell::new(),
            uml: OnceCell::new(),
            debug_uml: OnceCell::new(),
            debian: OnceCell::new(),
            new_debian: OnceCell::new(),
            new_qemu: OnceCell::new(),
        }
    }

    /// Build what guests of user-mode Linux share, and drivers for its kernel.
    pub(super) fn prepare(&self) -> Result<String, Unready> {
        all_installed(&UML_NEEDS)?;
        self.programs()?;
        let kernel = Kernel::Uml(self.uml(Build::Plain)?);
        self.modules(DRIVERS[1], &Peer::StorageDaemon, &kernel, &self.packages, Only::Everything)?;
        Ok(String::new())
    }

    /// Run a scenario; `Ok` holds what to say of success.
    pub(super) fn run(&self, scenario: &Scenario, choice: &Choice<'_>) -> Result<String, Unready> {
        if let Some(reason) = choice.peer.cannot(scenario.event) {
            return Err(Unready::Missing(format!("{}: {reason}", choice.peer.name())));
        }
        let needed = match scenario.guest {
            Guest::Uml(_) => &UML_NEEDS[..],
            Guest::Qemu { .. } => &["make", "gcc", "xz", "apt-get", "dpkg-deb", "taskset"],
            Guest::System(_) => &["make", "gcc", "apt-get", "dpkg-deb", "taskset", "mmdebstrap", "systemctl", "chroot"],
        };
        all_installed(needed)?;
        // Images are in memory as well, if they can: a disk that is slow to sync makes the tests wait and tests nothing.
        let folder = memory_folder().join(format!("fipsee-vm-{}", std::process::id())).join(scenario.name.replace('/', "-"));
        // A scenario runs once for each peer and driver.
        empty_folder(&folder)?;
        let guard = if choice.keep { None } else { Some(CleanupGuard::remove(&folder)?) };
        let outcome = self.run_in(&folder, scenario, choice);
        drop(guard);
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
        let boot = self.boot(folder, scenario, choice)?;
        let queues = scenario.guest.cpus();
        if let (Event::Network, Peer::Fipseed(programs)) = (scenario.event, choice.peer) {
            return self.run_network(folder, (scenario, choice), &boot, programs);
        }
        let mut back_end = BackEnd::start(choice.peer, folder, scenario.disk, queues, self.cpus.map(|(_, back)| back))?;
        let append = append(scenario, choice, &boot.modules, queues);
        let uses_fault_proxy = scenario.event == Event::FaultProxy;
        let mut fault_proxy =
            if uses_fault_proxy { Some(FaultProxy::start(&self.root, folder, &back_end.socket())?) } else { None };
        let socket = fault_proxy.as_ref().map_or_else(|| back_end.socket(), |fault_proxy| fault_proxy.socket().to_owned());
        let (qemu_log, further_sockets) = (folder.join("qemu.log"), back_end.further_sockets());
        let command = |further: &str| -> Result<Command, Unready> {
            let append = format!("{append} {further}");
            let parts = |cpus, model| Parts {
                cpus,
                model,
                boot: &boot,
                append: &append,
                socket: socket.clone(),
                further_sockets: further_sockets.clone(),
                monitor: folder.join("qemu.sock"),
                log: qemu_log.clone(),
                event: scenario.event,
            };
            Ok(match scenario.guest {
                Guest::Uml(build) => self.uml_command(build, &boot.initrd, &append, (&socket, UML_DISK))?,
                Guest::Qemu { cpus, model, program, .. } => self.qemu(program)?.command(&parts(cpus, model)),
                Guest::System(_) => self.qemu(Origin::Release)?.command(&parts(queues, "max")),
            })
        };
        let console = folder.join("console.log");
        let mut console = File::create(&console).map_err(|error| format!("cannot write {}: {error}", console.display()))?;
        let limit = if choice.settings.is_empty() { LIMIT } else { 10 * LIMIT };
        let is_compared = matches!(scenario.event, Event::Kill | Event::KillMachine);
        let mut kills = is_compared.then(|| Kills::new(choice.seed));
        let mut outcome = match &mut kills {
            Some(kills) if scenario.event == Event::KillMachine => {
                let killed_runs = setting(scenario, choice, "cycles").and_then(|text| text.parse().ok()).unwrap_or(0);
                let cycles = KillCycles { killed_runs, limit, allowed: scenario.allowed, back_end: &back_end };
                cycles.run(command, &mut console, kills)?
            }
            kills => {
                let mut act = |event: &str| match (&mut fault_proxy, &mut *kills) {
                    (Some(fault_proxy), _) => inject(event, &back_end, fault_proxy),
                    (None, Some(kills)) => kill(event, &mut back_end, kills),
                    (None, None) => act(event, scenario.event, &mut back_end, folder, queues),
                };
                machine::run(&mut command("")?, limit, &mut console, |event| act(event).map(|()| Next::GoesOn))?
            }
        };
        outcome.monitor.extend(fs::read_to_string(qemu_log).unwrap_or_default().lines().map(str::to_owned));
        write_logs(folder, &outcome);
        let log = back_end.log();
        let image = back_end.image();
        let verdict = outcome.judge(scenario.allowed).and_then(|()| back_end.finish());
        let verdict = verdict.and_then(|()| kills.map(|kills| kills.finish(&image)).transpose());
        verdict
            .map(|story| {
                format!("guest {:.1} s{}", outcome.took.as_secs_f64(), story.map_or_else(String::new, |text| format!(", {text}")))
            })
            .map_err(|error| Unready::Broken(story(&error, &outcome, &log)))
    }

    /// Two machines at ports of a network.
    fn run_network(
        &self,
        folder: &Path,
        (scenario, choice): (&Scenario, &Choice<'_>),
        boot: &Boot,
        programs: &Path,
    ) -> Result<String, Unready> {
        let append = append(scenario, choice, &boot.modules, scenario.guest.cpus());
        let command = |port: &MachinePort| {
            let (append, socket) = (format!("{append} {}", port.settings()), port.socket(folder));
            match scenario.guest {
                Guest::Uml(build) => self.uml_command(build, &boot.initrd, &append, (&socket, UML_NETWORK)),
                Guest::Qemu { cpus, model, program, .. } => {
                    let log = folder.join(format!("{}.log", port.name));
                    let mut command = self.qemu(program)?.machine(cpus, model, &boot.kernel, &boot.initrd, &append, &log);
                    command.arg("-no-reboot").args(qemu::port(&socket, port.mac, cpus, program));
                    Ok(command)
                }
                Guest::System(_) => Err("no system has a port of a network".into()),
            }
        };
        let mut outcomes = net::run(folder, programs, LIMIT, command)?;
        let log = fs::read_to_string(folder.join("back-end.log")).unwrap_or_default();
        for (number, outcome) in (1..).zip(&mut outcomes) {
            let monitor = fs::read_to_string(folder.join(format!("m{number}.log"))).unwrap_or_default();
            outcome.monitor.extend(monitor.lines().map(str::to_owned));
            let broken = |error: String| Unready::Broken(story(&format!("machine {number}: {error}"), outcome, &log));
            outcome.judge(scenario.allowed).map_err(broken)?;
        }
        Ok(format!("guests {:.1} s", outcomes.iter().map(|outcome| outcome.took.as_secs_f64()).fold(0.0, f64::max)))
    }

    /// Make what a guest boots from, in `folder`.
    fn boot(&self, folder: &Path, scenario: &Scenario, choice: &Choice<'_>) -> Result<Boot, Unready> {
        let initrd = folder.join("initrd");
        let kernel = match scenario.guest {
            Guest::System(disk) => return self.system(folder, disk),
            Guest::Qemu { kernel, .. } => self.debian(kernel)?.kernel(),
            Guest::Uml(build) => self.uml(build)?.program(),
        };
        let modules = self.initrd(scenario, choice, &initrd)?;
        Ok(Boot { kernel, initrd, modules, root: None })
    }

    fn system(&self, folder: &Path, disk: RootDisk) -> Result<Boot, Unready> {
        let debian = self.debian(Origin::Release)?;
        let system = {
            let _lock = self.lock("system")?;
            System::prepare(&self.cache, &debian.release)?
        };
        let installed = {
            let _lock = self.lock("driver")?;
            dkms::install(&self.root, &self.cache.join("dkms"), debian, &self.packages)?
        };
        Ok(system.install(&self.root, folder, &installed, disk)?)
    }

    /// Write the guest's first file system; gives what it is to load.
    fn initrd(&self, scenario: &Scenario, choice: &Choice<'_>, to: &Path) -> Result<Modules, Unready> {
        let mut archive = Archive::default();
        self.programs()?.add_to(&mut archive, &self.root.join(SCRIPTS))?;
        let (kernel, order, packages) = match scenario.guest {
            Guest::Uml(build) => (Kernel::Uml(self.uml(build)?), Vec::new(), &self.packages),
            Guest::Qemu { kernel, .. } => {
                let debian = self.debian(kernel)?;
                (Kernel::Debian(debian), debian.load_order(scenario.event == Event::Network), self.packages(kernel)?)
            }
            Guest::System(_) => return Err("a system has an initramfs of its own".into()),
        };
        archive.add("modules/order", order.join("\n").as_bytes())?;
        if let Kernel::Debian(debian) = &kernel {
            for name in order {
                let path = debian.module(name).ok_or_else(|| format!("the guest's kernel has no module {name}"))?;
                archive.add_file(&format!("modules/{name}.ko"), &path)?;
            }
        }
        let modules = self.modules(choice.driver, choice.peer, &kernel, packages, scenario.only)?;
        // A script may want others: the kernel's own driver beside ours, what else is built with ours.
        for module in modules.paths.iter().chain(&modules.others).chain(&kernel.module(DRIVERS[0])) {
            archive.add_file(&format!("modules/{}", name_of(module)), module)?;
        }
        for program in &modules.programs {
            archive.add_file(&format!("sbin/{}", name_of(program)), program)?;
        }
        files::write(to, archive.finish()?)?;
        Ok(modules)
    }

    fn modules(&self, driver: &str, peer: &Peer, kernel: &Kernel, packages: &Packages, only: Only) -> Result<Modules, Unready> {
        let _lock = self.lock("driver")?;
        DriverBuilder { root: &self.root, cache: &self.cache, packages }.modules(driver, peer, kernel, only)
    }

    /// What is in `cell`, made when it is first asked for. Two runs at a time would build the same into the same folder.
    fn made<'a, T>(
        &self,
        cell: &'a OnceCell<Result<T, Unready>>,
        lock: &str,
        make: impl FnOnce() -> Result<T, Unready>,
    ) -> Result<&'a T, Unready> {
        let made = cell.get_or_init(|| {
            let _lock = self.lock(lock)?;
            make()
        });
        made.as_ref().map_err(Unready::clone)
    }

    fn programs(&self) -> Result<&Programs, Unready> {
        self.made(&self.programs, "programs", || Programs::prepare(&self.root, &self.cache, &self.target, &self.packages))
    }

    fn uml(&self, build: Build) -> Result<&Uml, Unready> {
        let cell = if build == Build::Plain { &self.uml } else { &self.debug_uml };
        self.made(cell, build.name(), || Uml::prepare(build, &self.root, &self.packages))
    }

    fn packages(&self, origin: Origin) -> Result<&Packages, Unready> {
        if origin == Origin::Release {
            return Ok(&self.packages);
        }
        self.made(&self.backports, "backports", || {
            Ok(Packages::new(self.cache.join("packages"), Apt::backports(&self.cache.join("apt"))?))
        })
    }

    fn debian(&self, origin: Origin) -> Result<&Debian, Unready> {
        let packages = self.packages(origin)?;
        let cell = if origin == Origin::Release { &self.debian } else { &self.new_debian };
        self.made(cell, "debian", || Debian::prepare(packages))
    }

    fn qemu(&self, origin: Origin) -> Result<Cow<'_, Qemu>, Unready> {
        if origin == Origin::Release {
            return Qemu::installed(self.qemu.as_deref()).map(Cow::Owned);
        }
        let packages = self.packages(origin)?;
        self.made(&self.new_qemu, "qemu", || Qemu::unpacked(packages)).map(Cow::Borrowed)
    }

    fn lock(&self, name: &str) -> Result<File, String> {
        files::lock(&self.cache.join(format!("{name}.lock")))
    }

    /// `device`: its socket, and its id on the virtio bus.
    fn uml_command(&self, build: Build, initrd: &Path, append: &str, device: (&Path, u8)) -> Result<Command, Unready> {
        let mut command = pinned(self.cpus.map(|(guest, _)| guest), &self.uml(build)?.program());
        command.env("TMPDIR", memory_folder());
        command.arg(format!("mem={UML_MEMORY_MIB}M")).arg(format!("initrd={}", initrd.display()));
        command.args(["con0=null,fd:1", "con1=null,fd:2", "con=null", "ssl=null", "loglevel=5", "panic=-1"]);
        command.arg(format!("virtio_uml.device={}:{}", device.0.display(), device.1));
        command.args(append.split(' ')).arg("fip.report=tty1");
        Ok(command)
    }
}

pub(super) fn all_installed(programs: &[&str]) -> Result<(), Unready> {
    match programs.iter().find(|name| !is_installed(name)) {
        Some(program) => Err(Unready::Missing(format!("{program} is not installed; run `cargo xtask setup` as root"))),
        None => Ok(()),
    }
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
    if matches!(scenario.guest, Guest::System(_)) {
        words.push(format!("root=LABEL={ROOT_LABEL} rw"));
    }
    let is_theirs = |name: &str| choice.settings.iter().any(|(other, _)| other == name);
    let ours = scenario.settings().filter(|(name, _)| !is_theirs(name));
    words.extend(ours.map(|(name, value)| format!("fip.{name}={value}")));
    words.extend(choice.settings.iter().map(|(name, value)| format!("fip.{name}={value}")));
    words.join(" ")
}

/// What a setting of a scenario is in this run.
fn setting<'a>(scenario: &Scenario, choice: &'a Choice<'_>, name: &str) -> Option<&'a str> {
    let set = choice.settings.iter().rev().find(|(other, _)| other == name).map(|(_, value)| value.as_str());
    set.or_else(|| scenario.settings().find(|(other, _)| *other == name).map(|(_, value)| value))
}

/// What the host does when the guest asks for it.
fn act(event: &str, expected: Event, back_end: &mut BackEnd, folder: &Path, queues: u16) -> Result<(), String> {
    let monitor = folder.join("qemu.sock");
    match (event.split(' ').next().unwrap_or_default(), expected) {
        ("resize", Event::Resize(bytes)) => back_end.resize(bytes),
        ("restart", Event::Restart) => back_end.restart(),
        ("handover", Event::Handover) => back_end.hand_over(),
        ("corrupt", Event::Corrupt) => back_end.spoil(SPOILT),
        ("reboot", Event::Reboot) => Ok(()),
        ("unplug", Event::Plug) => qemu::unplug(&monitor, 0),
        ("plug", Event::Plug) => qemu::plug(&monitor, 0, queues),
        (_, Event::PlugAny) => vectors::act(event, &monitor, back_end, queues),
        _ => Err("this scenario does not expect it".to_owned()),
    }
}

/// The same while the back end is killed again and again.
fn kill(event: &str, back_end: &mut BackEnd, kills: &mut Kills) -> Result<(), String> {
    match event {
        "kill" => {
            back_end.kill();
            kills.check_after_kill(&back_end.image())?;
            back_end.launch()
        }
        words if kills.receive(words)? => Ok(()),
        _ => Err("this scenario does not expect it".to_owned()),
    }
}

/// The same with a fault proxy in between.
fn inject(event: &str, back_end: &BackEnd, fault_proxy: &mut FaultProxy) -> Result<(), String> {
    match event {
        "silence" => back_end.signal("STOP"),
        "speak" => back_end.signal("CONT"),
        words => fault_proxy.report(words),
    }
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

/// The place of a guest's memory and its disk: files in memory, if there is a place that may hold code and is large enough.
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
}
