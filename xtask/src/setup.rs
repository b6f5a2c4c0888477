//! The programs the tests need, and where Debian has them.

use std::env;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
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
    tool("gcc", "gcc", "the C headers and the interop tests"),
    tool("g++", "g++", "the C headers as C++"),
    tool("clang", "clang", "the C headers with a second compiler"),
    tool("objdump", "binutils", "the test of the copy-in primitive's machine code"),
    tool("mke2fs", "e2fsprogs", "the tests with a real ext4 image"),
    tool("e2fsck", "e2fsprogs", "the tests with a real ext4 image"),
    tool("clang++", "clang", "the fuzzer"),
    tool("spin", "spin", "the models in docs/models"),
    tool("pkg-config", "pkgconf", "the tests of the C library"),
    tool("valgrind", "valgrind", "the tests of the C library for leaks"),
    tool("python3", "python3", "the Python module, databases on mounted disks"),
    tool("pip3", "python3-pip", "the Python module"),
    tool("go", "golang-go", "the Go package"),
    tool("fio", "fio", "the fio engine and the comparison of file disks with fio"),
    tool("dpkg-source", "dpkg-dev", "the fio engine, which needs fio's headers"),
    tool("dpkg-shlibdeps", "dpkg-dev", "the Debian packages"),
    tool("lintian", "lintian", "the test of the Debian packages against Debian's rules"),
    tool("man", "man-db", "the test of the manual pages"),
    tool("mandoc", "mandoc", "the test of the manual pages, the documents as a site"),
    tool("cmark-gfm", "cmark-gfm", "the documents as a site"),
    tool("mmdebstrap", "mmdebstrap", "the throwaway system the packages are tested in"),
    tool("systemd-nspawn", "systemd-container", "the throwaway system the packages are tested in"),
    tool("umoci", "umoci", "the container image"),
    tool("runc", "runc", "the container image"),
    tool("systemd-analyze", "systemd", "the test of the daemon's confinement"),
    tool("qemu-storage-daemon", "qemu-system-common", "the benchmark's peers: vhost-user, NBD, FUSE"),
    tool("qemu-system-x86_64", "qemu-system-x86", "virtual machines with PCI and several CPUs"),
    tool("make", "make", "virtual machines: their kernel, modules and fio"),
    tool("flex", "flex", "virtual machines: user-mode Linux"),
    tool("bison", "bison", "virtual machines: user-mode Linux"),
    tool("bc", "bc", "virtual machines: user-mode Linux"),
    tool("xz", "xz-utils", "virtual machines: user-mode Linux"),
    tool("taskset", "util-linux", "virtual machines"),
    tool("nbdkit", "nbdkit", "the benchmark's peer over NBD"),
    tool("dpdk-testpmd", "dpdk-dev", "the benchmark's peer of networks"),
    tool("ip", "iproute2", "the benchmark's pair of veth devices"),
    tool("fusermount3", "fuse3", "mounts by users other than root, the benchmark's peers through FUSE"),
    tool("losetup", "mount", "file systems on mounted disks, disks with 4096 B sectors"),
    tool("mkfs.ext4", "e2fsprogs", "the oracle on ext4"),
    tool("mkfs.xfs", "xfsprogs", "the oracle on XFS"),
    tool("mkfs.btrfs", "btrfs-progs", "the oracle on btrfs"),
    tool("xmllint", "libxml2-utils", "the test of the XML for libvirt"),
    tool("virt-xml-validate", "libvirt-clients", "the schema in that test"),
    tool("setpriv", "util-linux", "the tests of a mounted disk's permissions"),
    tool("promtool", "prometheus", "the test of the metrics' format"),
    tool("prometheus", "prometheus", "the test of the dashboard's queries"),
    tool("bpftrace", "bpftrace", "the test of the tracing scripts"),
    tool("readelf", "binutils", "the test of the tracing probes"),
    tool("qemu-img", "qemu-utils", "images on mounted disks"),
    tool("ip", "iproute2", "the tests of TAP devices, in network namespaces"),
    tool("ping", "iputils-ping", "the tests of TAP devices"),
    tool("iperf3", "iperf3", "the tests of TAP devices"),
    tool("tcpdump", "tcpdump", "the tests of TAP devices"),
    tool("tc", "iproute2", "the tests of TAP devices with several queues, whose frames it counts"),
    tool("scapy", "python3-scapy", "malformed frames into a TAP device, of a program that knows nothing of this one"),
    tool("ssh", "openssh-client", "`endure net`"),
    tool("sshd", SSH_SERVER, "`endure net`"),
    tool("dpdk-testpmd", "dpdk-dev", "ports of networks with an independent driver"),
];

/// Its service is not wanted, now or after the next start of the machine.
const SSH_SERVER: &str = "openssh-server";

const fn tool(program: &'static str, package: &'static str, needed_for: &'static str) -> Tool {
    Tool { program, package, needed_for }
}

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
    let _no_services = NoServices::begin();
    let outcome = apt_get(&arguments);
    if outcome.is_ok() && packages.contains(&SSH_SERVER) {
        // It was not there before. Without systemd there is nothing to disable.
        let _ = step::succeed(Command::new("systemctl").args(["disable", "ssh.service"]));
    }
    outcome
}

/// While it exists, packages that are installed start no service, unless the machine has a policy of its own.
struct NoServices(Option<&'static Path>);

impl NoServices {
    fn begin() -> Self {
        const POLICY: &str = "/usr/sbin/policy-rc.d";
        let write = || -> std::io::Result<()> {
            let mut file = File::options().write(true).create_new(true).mode(0o755).open(POLICY)?;
            // "Action forbidden by policy".
            file.write_all(b"#!/bin/sh\nexit 101\n")
        };
        Self(write().is_ok().then_some(Path::new(POLICY)))
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        self.0.iter().for_each(|path| _ = fs::remove_file(path));
    }
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
        let tools = [("mke2fs", "e2fsprogs"), ("gcc", "gcc"), ("e2fsck", "e2fsprogs")];
        let tools = tools.map(|(program, package)| tool(program, package, "a test"));
        assert_eq!(packages_of(&tools.iter().collect::<Vec<_>>()), ["e2fsprogs", "gcc"]);
    }

    #[test]
    fn programs_are_found_only_where_they_are() {
        assert!(is_installed("sh"));
        assert!(!is_installed("no-such-program-here"));
    }
}
