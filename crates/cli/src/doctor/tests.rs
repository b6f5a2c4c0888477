//! Both results of every check, on recorded machines.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

/// A folder with files, removed at the end.
struct Machine(PathBuf);

impl Machine {
    fn new(files: &[(&str, &str)]) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("fipsee-doctor-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let machine = Self(std::env::temp_dir().join(name));
        for (file, text) in GOOD.iter().chain(files) {
            let path = machine.0.join(file);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            std::fs::write(path, text).expect("written");
        }
        machine
    }

    fn findings(&self) -> Vec<Finding> {
        let root = Root(&self.0);
        let mut findings = machine::look(root);
        findings.extend(kernel::look(root));
        findings.extend(daemon::process(root, "7"));
        findings
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const LIMITS: &str = "Limit                     Soft Limit           Hard Limit           Units     \n\
Max open files            1024                 524288               files     \n\
Max locked memory         unlimited            unlimited            bytes     \n";

/// A machine without a finding.
const GOOD: &[(&str, &str)] = &[
    (
        "proc/cpuinfo",
        "processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512vl cldemote waitpkg movdir64b constant_tsc nonstop_tsc\n",
    ),
    ("proc/self/status", "Name:\tfipsee\nCpus_allowed_list:\t0-7\n"),
    ("proc/self/cgroup", "0::/user.slice\n"),
    ("proc/stat", "cpu  700 0 200 9000 50 0 50 99 40 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n"),
    ("sys/fs/cgroup/user.slice/cpu.max", "max 100000\n"),
    ("sys/devices/system/cpu/isolated", "2-3\n"),
    ("sys/devices/system/cpu/nohz_full", "2-3\n"),
    ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n"),
    ("sys/devices/system/cpu/smt/active", "1\n"),
    ("proc/sys/kernel/osrelease", "6.12.0-1-amd64\n"),
    ("proc/sys/kernel/io_uring_disabled", "0\n"),
    ("proc/sys/vm/memfd_noexec", "0\n"),
    ("proc/sys/kernel/seccomp/actions_avail", "kill_process kill_thread trap errno user_notif trace log allow\n"),
    ("sys/kernel/security/lsm", "lockdown,capability,landlock,yama\n"),
    ("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size advise [never] deny force\n"),
    ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
    ("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "16\n"),
    ("proc/sys/vm/overcommit_memory", "0\n"),
    ("proc/7/status", "Name:\tfipseed\nUid:\t990\t990\t990\t990\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t3\n"),
    ("proc/7/limits", LIMITS),
];

#[test]
fn correctly_set_up_machine_is_ok_in_every_line() {
    let findings = Machine::new(&[]).findings();
    let others: Vec<_> = findings.iter().filter(|finding| finding.state != State::Ok || !finding.advice.is_empty()).collect();
    assert!(others.is_empty(), "{others:?}");
    assert!(findings.len() >= 20, "{findings:?}");
}

#[test]
fn every_fault_is_found_and_only_that() {
    let limits = |files: &str, locked: &str| {
        LIMITS.replace("524288", files).replace("unlimited            unlimited", &format!("{locked:<20} {locked:<20}"))
    };
    let status = |uid: u32, privileges: u32, seccomp: u32| {
        format!("Name:\tfipseed\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nNoNewPrivs:\t{privileges}\nSeccomp:\t{seccomp}\n")
    };
    let faults: &[(&str, String, &str, State)] = &[
        ("proc/cpuinfo", "flags : fpu avx2\n".into(), "time-stamp counter", State::Warn),
        ("proc/self/status", "Cpus_allowed_list:\t5\n".into(), "CPUs", State::Warn),
        ("proc/stat", "cpu  700 0 200 9000 0 0 0 101 40 0\n".into(), "steal", State::Warn),
        ("sys/fs/cgroup/user.slice/cpu.max", "50000 100000\n".into(), "quota of CPU time", State::Warn),
        ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n".into(), "frequency governor", State::Warn),
        ("proc/sys/kernel/osrelease", "5.10.0-8-amd64\n".into(), "version", State::Warn),
        ("proc/sys/kernel/osrelease", "5.4.0\n".into(), "version", State::Fail),
        ("proc/sys/kernel/io_uring_disabled", "1\n".into(), "io_uring", State::Warn),
        ("proc/sys/kernel/io_uring_disabled", "2\n".into(), "io_uring", State::Fail),
        ("proc/sys/vm/memfd_noexec", "2\n".into(), "memory files", State::Fail),
        ("proc/sys/kernel/seccomp/actions_avail", "\n".into(), "seccomp", State::Warn),
        ("sys/kernel/security/lsm", "lockdown,capability,yama\n".into(), "landlock", State::Warn),
        ("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n".into(), "transparent huge pages", State::Warn),
        ("proc/sys/vm/overcommit_memory", "2\n".into(), "overcommit", State::Warn),
        ("proc/7/status", status(0, 1, 2), "user", State::Warn),
        ("proc/7/status", status(990, 1, 0), "confinement", State::Warn),
        ("proc/7/status", status(990, 0, 2), "confinement", State::Warn),
        ("proc/7/limits", limits("1024", "unlimited"), "open files", State::Warn),
        ("proc/7/limits", limits("64", "unlimited"), "open files", State::Fail),
        ("proc/7/limits", limits("524288", "65536"), "locked memory", State::Warn),
    ];
    for (file, text, check, state) in faults {
        let findings = Machine::new(&[(file, text)]).findings();
        let wrong: Vec<_> = findings.iter().filter(|finding| finding.state != State::Ok).collect();
        assert_eq!(wrong.len(), 1, "{file} {text}: {wrong:?}");
        assert_eq!((wrong[0].check.as_str(), wrong[0].state), (*check, *state), "{file} {text}");
        assert!(!wrong[0].advice.is_empty(), "{wrong:?}");
    }
}

#[test]
fn missing_feature_of_the_processor_is_reported_with_its_replacement() {
    let findings = Machine::new(&[("proc/cpuinfo", "flags : fpu constant_tsc nonstop_tsc mwaitx avx512f\n")]).findings();
    let found = |check: &str| findings.iter().find(|finding| finding.check == check).map(|finding| finding.found.clone());
    for (check, pieces) in [
        ("AVX-512", "absent; messages are stored in four pieces"),
        ("WAITPKG", "absent; use wait = adaptive or pause"),
        ("MONITORX", "present; wait = monitorx"),
        ("CLDEMOTE", "absent; nothing is lost"),
    ] {
        assert!(found(check).is_some_and(|found| found.contains(pieces)), "{check}: {:?}", found(check));
    }
}

#[test]
fn machine_that_reports_nothing_fails_no_check() {
    let empty = std::env::temp_dir().join(format!("fipsee-doctor-none-{}", std::process::id()));
    let root = Root(&empty);
    let findings: Vec<_> = machine::look(root).into_iter().chain(kernel::look(root)).collect();
    assert!(findings.iter().all(|finding| finding.state != State::Fail), "{findings:?}");
}

#[test]
fn configuration_that_any_user_may_change_or_no_user_can_serve_fails() {
    use std::os::unix::fs::PermissionsExt;
    let machine = Machine::new(&[]);
    let (file, disk) = (machine.0.join("f.toml"), machine.0.join("d.img"));
    let write = |text: &str, mode: u32| {
        std::fs::write(&file, text).expect("written");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("changed");
    };
    let of = |check: &str| {
        let findings = daemon::look_at_configuration(&file);
        findings.iter().find(|finding| finding.check == check).map(|finding| finding.state)
    };
    let text = |path: &Path| format!("[[disk]]\nname = \"d\"\nspec = \"file:{},size=1M\"\n", path.display());
    std::fs::write(&disk, "x").expect("written");
    std::fs::set_permissions(&disk, std::fs::Permissions::from_mode(0o600)).expect("changed");
    write(&text(&disk), 0o644);
    assert_eq!(
        [of("understood"), of("file"), of("disk 'd'"), of("lists")],
        [Some(State::Ok), Some(State::Ok), Some(State::Ok), None]
    );
    std::fs::set_permissions(&disk, std::fs::Permissions::from_mode(0o644)).expect("changed");
    assert_eq!(of("disk 'd'"), Some(State::Warn));
    write(&text(&machine.0.join("none/d.img")), 0o646);
    assert_eq!([of("file"), of("disk 'd'")], [Some(State::Fail), Some(State::Fail)]);
    write("[[disk]]\nname = \"d\"\nspec = \"memory:1M\"\nallow_everyone = true\n", 0o644);
    assert_eq!(of("lists"), Some(State::Warn));
    write("[[disk]]\nname = \"d\"\nspec = \"cloud:1M\"\n", 0o644);
    assert_eq!(of("understood"), Some(State::Fail));
}
