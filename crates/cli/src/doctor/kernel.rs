//! The kernel's support for file disks, shared memory and confinement.

use super::{Finding, Root, State};

const KERNEL: &str = "Kernel";
const MEMORY: &str = "Memory";

pub(super) fn look(root: Root<'_>) -> Vec<Finding> {
    let mut findings = vec![version(root), io_uring(root), memory_files(root)];
    findings.extend(confinement(root));
    findings.extend(memory(root));
    findings
}

fn version(root: Root<'_>) -> Finding {
    let release = root.text("proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-', '+', '~']).map(|number| number.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let state = match version {
        (0, _) => State::Warn,
        version if version < (5, 6) => State::Fail,
        version if version < (5, 13) => State::Warn,
        _ => State::Ok,
    };
    let advice = "file disks need 5.6, restricted kernel rings 5.10, landlock 5.13";
    Finding::new(KERNEL, "version", state, if release.is_empty() { "unknown" } else { &release }, advice)
}

fn io_uring(root: Root<'_>) -> Finding {
    let (state, found) = match root.number("proc/sys/kernel/io_uring_disabled") {
        None => (State::Ok, "no switch forbids it"),
        Some(0) => (State::Ok, "allowed"),
        Some(1) => (State::Warn, "only for processes with CAP_SYS_ADMIN or in the group kernel.io_uring_group"),
        Some(_) => (State::Fail, "forbidden to all processes"),
    };
    let advice = "file disks need it: sysctl kernel.io_uring_disabled=0, or the daemon's group in kernel.io_uring_group";
    Finding::new(KERNEL, "io_uring", state, found, advice)
}

fn memory_files(root: Root<'_>) -> Finding {
    let (state, found) = match root.number("proc/sys/vm/memfd_noexec") {
        None | Some(0) => (State::Ok, "memfd without restriction"),
        Some(1) => (State::Ok, "memfd, not executable by default"),
        Some(_) => (State::Fail, "memfd is refused unless it is asked not to be executable"),
    };
    Finding::new(KERNEL, "memory files", state, found, "clients' memory is such files: sysctl vm.memfd_noexec=1 or 0")
}

fn confinement(root: Root<'_>) -> Vec<Finding> {
    let actions = root.text("proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
    let has_seccomp = actions.split(' ').any(|action| action == "kill_process");
    let found = if has_seccomp { "available" } else { "not available" };
    let advice = "the daemon cannot restrict its system calls: use a kernel with CONFIG_SECCOMP_FILTER";
    let seccomp = Finding::when(KERNEL, "seccomp", has_seccomp, State::Warn, found, advice);
    let modules = root.text("sys/kernel/security/lsm");
    let landlock = match modules {
        // Not mounted, as in containers: the version check covers it.
        None => Finding::new(KERNEL, "landlock", State::Ok, "the list of security modules cannot be read here", ""),
        Some(modules) => {
            let is_there = modules.split(',').any(|module| module == "landlock");
            let found = if is_there { "available" } else { "not among the security modules" };
            let advice = "the daemon cannot restrict its files: boot with landlock in lsm=";
            Finding::when(KERNEL, "landlock", is_there, State::Warn, found, advice)
        }
    };
    vec![seccomp, landlock]
}

fn memory(root: Root<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(mode) = root.chosen("sys/kernel/mm/transparent_hugepage/shmem_enabled") {
        let found = format!("{mode}; what clients share and memory disks are made of");
        findings.push(Finding::new(MEMORY, "transparent huge pages for shared memory", State::Ok, found, ""));
    }
    if let Some(mode) = root.chosen("sys/kernel/mm/transparent_hugepage/enabled") {
        let advice = "memory disks with thp get none: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";
        findings.push(Finding::when(MEMORY, "transparent huge pages", mode != "never", State::Warn, &mode, advice));
    }
    let free = root.number("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages").unwrap_or(0);
    let found = format!("{free} of 2 MiB free; memory disks with huge take them");
    findings.push(Finding::new(MEMORY, "huge pages", State::Ok, found, ""));
    let is_strict = root.number("proc/sys/vm/overcommit_memory") == Some(2);
    let found = if is_strict { "strict (2)" } else { "ordinary" };
    let advice = "a memory disk counts with its whole size, and cannot be handed over to another daemon: vm.overcommit_memory=0";
    findings.push(Finding::when(MEMORY, "overcommit", !is_strict, State::Warn, found, advice));
    findings
}
