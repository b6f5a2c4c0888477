//! A Debian system of its own, booted with systemd, for tests of packages. It is gone with the test.
//!
//! The tree is made by mmdebstrap from the machine's own apt sources, once, and kept beside the prefix. systemd-nspawn
//! boots it; it shares the machine's kernel and network, nothing else.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal};

use crate::{DEADLINE, Guard, Scratch, has_program, run, shipped, skip, text_of};

/// What the packages depend on and their tests use, so that installing them later needs no network.
const CONTENT: &str = "systemd,systemd-sysv,init-system-helpers,man-db,gcc,libc6-dev,pkg-config,python3,fio";
/// A number in the name of the kept tree: another when its content changes.
const GENERATION: u32 = 1;

/// Every package that `cargo xtask deb` makes.
pub const PACKAGES: [&str; 6] = ["fipsee-daemon", "fipsee", "libfipsee0", "libfipsee-dev", "python3-fipsee", "fipsee-fio"];

/// Longest time of one script.
const SCRIPT_SECONDS: &str = "150";

/// The booted system.
#[derive(Debug)]
pub struct ThrowawayRoot {
    /// Waits for the system's end.
    nspawn: Guard,
    /// The system's first process.
    init: Pid,
    machine: String,
    directory: Scratch,
}

/// The package files that `cargo xtask deb` made, for the test `what`; each missing one is reported.
#[must_use]
pub fn packages(what: &str, names: &[&str]) -> Vec<PathBuf> {
    let Some(prefix) = shipped(what, "") else { return Vec::new() };
    let files: Vec<PathBuf> =
        fs::read_dir(prefix.join("../debian")).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    let find = |name: &&str| {
        let is_it = |path: &&PathBuf| {
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            file.starts_with(&format!("{name}_")) && file.ends_with(".deb")
        };
        let found = files.iter().find(is_it).cloned();
        if found.is_none() {
            skip(what, &format!("the package {name} was not built; `cargo xtask deb` says why"));
        }
        found
    };
    names.iter().filter_map(find).collect()
}

impl ThrowawayRoot {
    /// Boot a system that has these package files in `/packages`; `None`, with a message, where that is not possible.
    ///
    /// # Panics
    /// When the tree cannot be made or does not boot.
    #[must_use]
    pub fn boot(what: &str, packages: &[PathBuf]) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skip(what, "only root can boot a system");
            return None;
        }
        if !["mmdebstrap", "systemd-nspawn", "nsenter"].iter().all(|program| has_program(what, program)) {
            return None;
        }
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let machine = format!("fipsee-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let directory = Scratch::new();
        let tree = directory.path("tree");
        fs::create_dir(&tree).expect("a fresh directory");
        run(Command::new("tar").arg("--extract").arg("--file").arg(kept_tree(&shipped(what, "")?)).arg("--directory").arg(&tree));
        fs::create_dir(tree.join("packages")).expect("a fresh directory");
        for package in packages {
            let name = package.file_name().expect("a file");
            fs::copy(package, tree.join("packages").join(name)).expect("the package is copied");
        }
        let log = File::create(directory.path("boot.log")).expect("a file");
        let nspawn = Guard(nspawn(&machine, &tree, &log));
        // Until it is known, the end of the test ends systemd-nspawn, which takes the system with it.
        let mut booting = Self { nspawn, init: Pid::INIT, machine, directory };
        booting.await_boot();
        Some(booting)
    }

    fn await_boot(&mut self) {
        let deadline = Instant::now() + DEADLINE;
        let log = |root: &Self| fs::read_to_string(root.directory.path("boot.log")).unwrap_or_default();
        loop {
            let ended = self.nspawn.0.try_wait().expect("a child to ask");
            assert!(ended.is_none(), "systemd-nspawn ended: {ended:?}\n{}", log(self));
            assert!(Instant::now() < deadline, "the system does not boot\n{}", log(self));
            if let Some(init) = child_of(self.nspawn.0.id())
                && Path::new("/proc").join(init.to_string()).join("root").join("run/systemd/private").exists()
            {
                self.init = Pid::from_raw(init).expect("not 0");
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        // Units of no interest here may fail in a container, which makes it "degraded".
        let booted = self.run("systemctl is-system-running --wait || true");
        let state = String::from_utf8_lossy(&booted.stdout).trim().to_owned();
        assert!(matches!(state.as_str(), "running" | "degraded"), "{}\n{}", text_of(&booted), log(self));
    }

    /// Run a script in the system, as root in `/root`, by `bash -euo pipefail`. One that waits for what never comes is
    /// ended and fails.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn run(&self, script: &str) -> Output {
        let mut command = Command::new("nsenter");
        command.arg("--target").arg(self.init.as_raw_nonzero().to_string());
        command.args(["--mount", "--uts", "--ipc", "--pid", "--cgroup", "--root"]);
        command
            .args([
                "--",
                "/usr/bin/timeout",
                "--kill-after=5",
                SCRIPT_SECONDS,
                "/bin/bash",
                "-euo",
                "pipefail",
                "-c",
                &format!("cd /root\n{script}"),
            ])
            .env_clear()
            .stdin(Stdio::null());
        command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", "/root");
        command.env("LC_ALL", "C.UTF-8").env("DEBIAN_FRONTEND", "noninteractive").env("SYSTEMD_PAGER", "");
        command.output().expect("nsenter can be run")
    }

    /// As [`run`](Self::run): what a script prints that must succeed.
    ///
    /// # Panics
    /// When it fails, with all it printed and the end of the system's log.
    #[track_caller]
    #[expect(clippy::must_use_candidate, reason = "most scripts are run for what they do")]
    pub fn succeed(&self, script: &str) -> String {
        let output = self.run(script);
        if !output.status.success() {
            let journal = self.run("journalctl --no-pager --lines=30 --output=short-monotonic");
            panic!("{script}\n{}\n--- journal ---\n{}", text_of(&output), String::from_utf8_lossy(&journal.stdout));
        }
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// As [`run`](Self::run): what a script prints that must fail.
    ///
    /// # Panics
    /// When it succeeds, or was killed.
    #[track_caller]
    #[expect(clippy::must_use_candidate, reason = "as above")]
    pub fn fail(&self, script: &str) -> String {
        let output = self.run(script);
        let has_failed = !output.status.success() && output.status.signal().is_none();
        assert!(has_failed, "{script}\nwas to fail:\n{}", text_of(&output));
        text_of(&output)
    }

    /// Install the package files in `/packages`, dependencies by apt.
    #[track_caller]
    pub fn install(&self) {
        self.succeed(
            "install() { apt-get install --yes --no-install-recommends /packages/*.deb; }; install || { apt-get update; install; }",
        );
    }
}

impl Drop for ThrowawayRoot {
    fn drop(&mut self) {
        if self.init != Pid::INIT {
            // The kernel ends every process of the system with its first one, and systemd-nspawn ends then, too.
            let _ = rustix::process::kill_process(self.init, Signal::KILL);
            let _ = self.nspawn.0.wait();
        } else {
            let _ = self.nspawn.0.kill();
            let _ = self.nspawn.0.wait();
        }
        for hierarchy in hierarchies() {
            remove_cgroup(&hierarchy.join(&self.machine));
        }
        let _ = fs::remove_dir(Path::new("/run/systemd/nspawn/propagate").join(&self.machine));
        let tree = self.directory.path("tree");
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        assert!(!mounts.contains(&*tree.to_string_lossy()), "something is mounted below {}", tree.display());
    }
}

/// The tree, made if it is not there yet.
fn kept_tree(prefix: &Path) -> PathBuf {
    let folder = prefix.join("../throwaway");
    fs::create_dir_all(&folder).expect("a directory for the kept tree");
    let release = run(Command::new("sh").args(["-c", ". /etc/os-release && echo $VERSION_CODENAME"]));
    let release = release.trim();
    let kept = folder.join(format!("{release}-{GENERATION}.tar"));
    // Two tests must not make it at the same time.
    let lock = File::create(folder.join("lock")).expect("a file");
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).expect("the lock");
    if !kept.exists() {
        let unfinished = folder.join("unfinished.tar");
        let mut make = Command::new("mmdebstrap");
        make.args(["--mode=root", "--variant=minbase", "--format=tar", "--skip=cleanup/apt/lists"]);
        make.arg(format!("--include={CONTENT}")).args(apt_options());
        run(make.arg(release).arg(&unfinished).args(apt_sources(release)));
        fs::rename(&unfinished, &kept).expect("the same file system");
    }
    kept
}

/// The files that say where this machine gets its Debian from.
fn apt_sources(release: &str) -> Vec<PathBuf> {
    let listed = fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> = listed.chain([PathBuf::from("/etc/apt/sources.list")]).collect();
    files.retain(|path| {
        let is_list = path.extension().is_some_and(|end| end == "list" || end == "sources");
        is_list && fs::read_to_string(path).is_ok_and(|text| text.split_whitespace().any(|word| word == release))
    });
    assert!(!files.is_empty(), "no file in /etc/apt names the release {release}");
    files
}

/// How this machine reaches them.
fn apt_options() -> Vec<String> {
    let names = ["Acquire::http::Proxy", "Acquire::https::Proxy", "Acquire::Check-Valid-Until", "Acquire::Check-Date"];
    let dumped = run(Command::new("apt-config").arg("dump").args(["--format", "%f \"%v\";%n"]).args(names));
    dumped.lines().filter(|line| !line.contains("\"\"")).map(|line| format!("--aptopt={line}")).collect()
}

/// Where control groups are: one place, or on an older set-up one for systemd's own and one for the unified hierarchy.
fn hierarchies() -> Vec<PathBuf> {
    let places = ["/sys/fs/cgroup", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified"].map(PathBuf::from);
    places.into_iter().filter(|place| place.join("cgroup.procs").exists()).collect()
}

/// Boot `tree`, in control groups of its own: two systems in the same would end each other's services.
fn nspawn(machine: &str, tree: &Path, log: &File) -> std::process::Child {
    let groups = hierarchies().into_iter().map(|place| place.join(machine).to_string_lossy().into_owned());
    let script = "tree=$1 machine=$2; shift 2; for group; do mkdir -p $group; echo $$ > $group/cgroup.procs; done; \
                  exec systemd-nspawn --quiet --boot --register=no --keep-unit --console=pipe --machine=$machine --directory=$tree";
    let mut command = Command::new("sh");
    command.args(["-euc", script, "sh"]).arg(tree).arg(machine).args(groups).stdin(Stdio::null());
    command.stdout(log.try_clone().expect("a descriptor")).stderr(log.try_clone().expect("a descriptor"));
    command.spawn().expect("sh")
}

fn child_of(parent: u32) -> Option<i32> {
    let is_child = |pid: &i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name before it may hold anything but a closing parenthesis followed by a state and a number.
        let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
        fields.split(' ').nth(1) == Some(&parent.to_string())
    };
    let pids = fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.into_iter().find(is_child)
}

/// Innermost first; the kernel needs a moment after the last process.
fn remove_cgroup(group: &Path) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroup(&entry.path());
        }
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    while group.exists() && fs::remove_dir(group).is_err() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
}
