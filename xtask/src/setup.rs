//! The programs the tests need, and where Debian has them.

use std::env;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use crate::step;

/// A program, its Debian package, and what cannot be tested without it.
struct Tool {
    program: &'static str,
    package: &'static str,
    needed_for: &'static str,
}

const TOOLS: &[Tool] = &[
    Tool { program: "gcc", package: "gcc", needed_for: "the C headers and the interop tests" },
    Tool { program: "g++", package: "g++", needed_for: "the C headers as C++" },
    Tool { program: "clang", package: "clang", needed_for: "the C headers with a second compiler" },
    Tool { program: "objdump", package: "binutils", needed_for: "the test of the copy-in primitive's machine code" },
    Tool { program: "mke2fs", package: "e2fsprogs", needed_for: "the tests with a real ext4 image" },
    Tool { program: "e2fsck", package: "e2fsprogs", needed_for: "the tests with a real ext4 image" },
    Tool { program: "clang++", package: "clang", needed_for: "the fuzzer" },
    Tool { program: "spin", package: "spin", needed_for: "the models in docs/models" },
    Tool { program: "pkg-config", package: "pkgconf", needed_for: "the tests of the C library" },
    Tool { program: "valgrind", package: "valgrind", needed_for: "the tests of the C library for leaks" },
    Tool { program: "python3", package: "python3", needed_for: "the Python module, databases on mounted disks" },
    Tool { program: "pip3", package: "python3-pip", needed_for: "the Python module" },
    Tool { program: "fio", package: "fio", needed_for: "the fio engine and the comparison of file disks with fio" },
    Tool { program: "dpkg-source", package: "dpkg-dev", needed_for: "the fio engine, which needs fio's headers" },
    Tool { program: "dpkg-shlibdeps", package: "dpkg-dev", needed_for: "the Debian packages" },
    Tool { program: "lintian", package: "lintian", needed_for: "the test of the Debian packages against Debian's rules" },
    Tool { program: "man", package: "man-db", needed_for: "the test of the manual pages" },
    Tool { program: "mandoc", package: "mandoc", needed_for: "the test of the manual pages" },
    Tool { program: "mmdebstrap", package: "mmdebstrap", needed_for: "the throwaway system the packages are tested in" },
    Tool {
        program: "systemd-nspawn",
        package: "systemd-container",
        needed_for: "the throwaway system the packages are tested in",
    },
    Tool { program: "systemd-analyze", package: "systemd", needed_for: "the test of the daemon's confinement" },
    Tool {
        program: "qemu-storage-daemon",
        package: "qemu-system-common",
        needed_for: "the benchmark's peers: vhost-user, NBD, FUSE",
    },
    Tool { program: "qemu-system-x86_64", package: "qemu-system-x86", needed_for: "virtual machines with PCI and several CPUs" },
    Tool { program: "make", package: "make", needed_for: "virtual machines: their kernel, modules and fio" },
    Tool { program: "flex", package: "flex", needed_for: "virtual machines: user-mode Linux" },
    Tool { program: "bison", package: "bison", needed_for: "virtual machines: user-mode Linux" },
    Tool { program: "bc", package: "bc", needed_for: "virtual machines: user-mode Linux" },
    Tool { program: "xz", package: "xz-utils", needed_for: "virtual machines: user-mode Linux" },
    Tool { program: "taskset", package: "util-linux", needed_for: "virtual machines" },
    Tool { program: "nbdkit", package: "nbdkit", needed_for: "the benchmark's peer over NBD" },
    Tool {
        program: "fusermount3",
        package: "fuse3",
        needed_for: "mounts by users other than root, the benchmark's peers through FUSE",
    },
    Tool { program: "losetup", package: "mount", needed_for: "file systems on mounted disks, disks with 4096 B sectors" },
    Tool { program: "mkfs.ext4", package: "e2fsprogs", needed_for: "the oracle on ext4" },
    Tool { program: "mkfs.xfs", package: "xfsprogs", needed_for: "the oracle on XFS" },
    Tool { program: "mkfs.btrfs", package: "btrfs-progs", needed_for: "the oracle on btrfs" },
    Tool { program: "setpriv", package: "util-linux", needed_for: "the tests of a mounted disk's permissions" },
    Tool { program: "qemu-img", package: "qemu-utils", needed_for: "images on mounted disks" },
];

/// Environment variable that lists what is missing, for tests that skip themselves with a reason.
pub(crate) const MISSING_VARIABLE: &str = "FIPSEE_MISSING_TOOLS";

/// What setup could not provide.
pub(crate) struct Setup {
    pub(crate) missing: Vec<&'static str>,
}

/// Install what is missing if we may; say what to install otherwise.
pub(crate) fn run() -> Setup {
    let missing = missing_tools();
    if missing.is_empty() {
        println!("setup ... nothing missing");
        return Setup { missing: Vec::new() };
    }
    let packages = packages_of(&missing);
    if !is_root() || !is_installed("apt-get") {
        return report(&missing, &format!("install them: sudo apt-get install {}", packages.join(" ")));
    }
    println!("setup ... installing {}", packages.join(" "));
    let outcome = install_with_fresh_lists(&packages);
    let missing = missing_tools();
    match outcome {
        Ok(_) if missing.is_empty() => {
            println!("setup ... done");
            Setup { missing: Vec::new() }
        }
        Ok(_) => report(&missing, "the packages were installed but do not hold these programs; look at PATH"),
        Err(text) => report(&missing, &format!("apt-get failed:\n{text}")),
    }
}

fn report(missing: &[&Tool], what_to_do: &str) -> Setup {
    for tool in missing {
        println!("setup ... {} is missing: {} will be skipped", tool.program, tool.needed_for);
    }
    println!("setup ... {what_to_do}");
    Setup { missing: missing.iter().map(|tool| tool.program).collect() }
}

fn missing_tools() -> Vec<&'static Tool> {
    TOOLS.iter().filter(|tool| !is_installed(tool.program)).collect()
}

fn packages_of(tools: &[&Tool]) -> Vec<&'static str> {
    let mut packages: Vec<_> = tools.iter().map(|tool| tool.package).collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

/// Is `program` on PATH, or where only root's PATH leads?
pub(crate) fn is_installed(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut folders = env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.any(|folder| folder.join(program).is_file())
}

pub(crate) fn is_root() -> bool {
    Path::new("/proc/self").metadata().is_ok_and(|metadata| metadata.uid() == 0)
}

/// Install `packages`, the lists of packages renewed if that fails at first: stale or absent lists are the common reason.
pub(crate) fn install_with_fresh_lists(packages: &[&str]) -> Result<String, String> {
    install(packages).or_else(|_| {
        apt_get(&["update"]).and_then(|_| install(packages)).or_else(|_| apt_get(&["update"]).and_then(|_| install(packages)))
    })
}

fn install(packages: &[&str]) -> Result<String, String> {
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    arguments.extend(packages);
    apt_get(&arguments)
}

fn apt_get(arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").args(["-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3"]);
    step::succeed(command.args(arguments))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_package_is_asked_for_once() {
        let tool = |program, package| Tool { program, package, needed_for: "a test" };
        let tools = [tool("mke2fs", "e2fsprogs"), tool("gcc", "gcc"), tool("e2fsck", "e2fsprogs")];
        assert_eq!(packages_of(&tools.iter().collect::<Vec<_>>()), ["e2fsprogs", "gcc"]);
    }

    #[test]
    fn programs_are_found_only_where_they_are() {
        assert!(is_installed("sh"));
        assert!(!is_installed("no-such-program-here"));
    }
}
