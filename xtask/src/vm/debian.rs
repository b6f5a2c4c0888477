//! Debian's own kernel, for a machine with PCI and several CPUs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::packages::{Packages, keep, make_folder};
use super::unready::Unready;
use crate::files;

/// Depends on the current kernel.
const META_PACKAGE: &str = "linux-image-amd64";

/// What a guest loads, each after those it needs; the driver of the disk comes after them.
const LOAD_ORDER: [&str; 11] = [
    "virtio_ring",
    "virtio",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "crc16",
    "mbcache",
    "jbd2",
    "crc32c_generic",
    "libcrc32c",
    "ext4",
];

/// The same of a guest whose device is a port of a network.
const NETWORK_ORDER: [&str; 8] = [
    "virtio_ring",
    "virtio",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "failover",
    "net_failover",
    "virtio_net",
];

/// What a guest may load.
const DRIVERS: [&str; 3] = ["virtio_blk", "configfs", "null_blk"];

const BUILTIN: &str = "modules.builtin";

/// All of them.
fn wanted() -> impl Iterator<Item = &'static str> {
    LOAD_ORDER.into_iter().chain(NETWORK_ORDER).chain(DRIVERS)
}

/// The kernel and those of its modules that a guest may want.
pub(super) struct Debian {
    folder: PathBuf,
    /// "6.1.0-56-amd64", "6.12.95+deb12-amd64"
    pub(super) release: String,
}

impl Debian {
    pub(super) fn prepare(packages: &Packages) -> Result<Self, Unready> {
        let image = packages.dependency(META_PACKAGE, "linux-image-")?;
        let release = image.trim_start_matches("linux-image-").trim_end_matches("-unsigned").to_owned();
        let choose = |unpacked: &Path, chosen: &Path| {
            let kernel = unpacked.join("boot").join(format!("vmlinuz-{release}"));
            files::rename(&kernel, &chosen.join("vmlinuz"))?;
            let modules = chosen.join("modules");
            make_folder(&modules)?;
            keep_modules(unpacked, &modules)?;
            keep(&unpacked.join("lib/modules").join(&release).join(BUILTIN), chosen)?;
            missing(chosen).map_or(Ok(()), |name| Err(format!("{image} has no module {name}; adapt the lists in debian.rs")))
        };
        let mut folder = packages.files(&image, choose)?;
        // It was kept by shorter lists.
        if missing(&folder).is_some() {
            fs::remove_dir_all(&folder).map_err(|error| format!("cannot remove {}: {error}", folder.display()))?;
            folder = packages.files(&image, choose)?;
        }
        Ok(Self { folder, release })
    }

    pub(super) fn kernel(&self) -> PathBuf {
        self.folder.join("vmlinuz")
    }

    /// What modules for it are built with.
    pub(super) fn headers(&self, packages: &Packages) -> Result<PathBuf, Unready> {
        let own = format!("linux-headers-{}", self.release);
        let (common, kbuild) = (packages.dependency(&own, "linux-headers-")?, packages.dependency(&own, "linux-kbuild-")?);
        let folder = packages.files_of(&own, &[&common, &kbuild], |unpacked, chosen| keep(&unpacked.join("usr"), chosen))?;
        let sources = folder.join("usr/src");
        let makefile = format!("include {}\n", sources.join(common).join("Makefile").display());
        // As it comes it leads to where the package is installed; and the cache may have moved.
        let path = sources.join(own);
        files::write(&path.join("Makefile"), makefile)?;
        Ok(path)
    }

    /// What a guest with a disk, or with a port of a network, loads: the rest is part of this kernel.
    pub(super) fn load_order(&self, has_port: bool) -> Vec<&'static str> {
        let order = if has_port { &NETWORK_ORDER[..] } else { &LOAD_ORDER };
        order.iter().copied().filter(|name| self.module(name).is_some()).collect()
    }

    pub(super) fn module(&self, name: &str) -> Option<PathBuf> {
        let path = self.folder.join("modules").join(format!("{name}.ko"));
        path.exists().then_some(path)
    }
}

/// A module that is wanted, and is neither in the folder nor in the kernel itself.
fn missing(folder: &Path) -> Option<&'static str> {
    let builtin = fs::read_to_string(folder.join(BUILTIN)).unwrap_or_default();
    let is_there = |name: &str| folder.join("modules").join(format!("{name}.ko")).exists() || is_builtin(name, &builtin);
    wanted().find(|name| !is_there(name))
}

/// Is it in the kernel itself, by its list?
fn is_builtin(name: &str, list: &str) -> bool {
    list.lines().any(|line| line.ends_with(&format!("/{name}.ko")))
}

fn keep_modules(folder: &Path, into: &Path) -> Result<(), String> {
    for path in files::list(folder)? {
        if path.is_dir() && !path.is_symlink() {
            keep_modules(&path, into)?;
        }
        let file = files::name_of(&path);
        let (stem, ending) = file.split_once('.').unwrap_or_default();
        if wanted().any(|name| name == stem) {
            match ending {
                "ko" => keep(&path, into)?,
                // Since 6.12; busybox loads them as they are without that only.
                "ko.xz" => decompress(&path, &into.join(format!("{stem}.ko")))?,
                _ => {}
            }
        }
    }
    Ok(())
}

fn decompress(file: &Path, to: &Path) -> Result<(), String> {
    let output = File::create(to).map_err(|error| format!("cannot write {}: {error}", to.display()))?;
    let mut command = Command::new("xz");
    let status = command.args(["--decompress", "--stdout"]).arg(file).stdin(Stdio::null()).stdout(output).status();
    if status.is_ok_and(|status| status.success()) { Ok(()) } else { Err(format!("{command:?} failed")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_kernel_is_no_module() {
        let list = "kernel/drivers/virtio/virtio.ko\nkernel/drivers/virtio/virtio_ring.ko\n";
        assert!(is_builtin("virtio_ring", list) && is_builtin("virtio", list));
        assert!(!is_builtin("ring", list) && !is_builtin("virtio_pci", list));
    }
}
