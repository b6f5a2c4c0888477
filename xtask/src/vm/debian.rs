//! Debian's own kernel, for a machine with PCI and several CPUs.

use std::fs;
use std::path::{Path, PathBuf};

use super::packages::{Packages, keep, make_folder};
use super::unready::Unready;

/// Depends on the current kernel.
const META_PACKAGE: &str = "linux-image-amd64";

/// What a guest loads, each after those it needs; the driver of the disk comes after them.
pub(super) const LOAD_ORDER: [&str; 11] = [
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

/// What a guest may load.
const DRIVERS: [&str; 2] = ["virtio_blk", "null_blk"];

/// The kernel and those of its modules that a guest may want.
pub(super) struct Debian {
    folder: PathBuf,
    /// "6.1.0-56-amd64"
    release: String,
}

impl Debian {
    pub(super) fn prepare(packages: &Packages) -> Result<Self, Unready> {
        let image = Packages::dependency(META_PACKAGE)?;
        let release = image.trim_start_matches("linux-image-").trim_end_matches("-unsigned").to_owned();
        let folder = packages.files(&image, |unpacked, chosen| {
            let kernel = unpacked.join("boot").join(format!("vmlinuz-{release}"));
            fs::rename(&kernel, chosen.join("vmlinuz"))
                .map_err(|error| format!("{image} has no {}: {error}", kernel.display()))?;
            let modules = chosen.join("modules");
            make_folder(&modules)?;
            keep_modules(unpacked, &modules)?;
            let missing = LOAD_ORDER.iter().chain(&DRIVERS).find(|name| !modules.join(format!("{name}.ko")).exists());
            missing.map_or(Ok(()), |name| Err(format!("{image} has no module {name}; adapt the list in debian.rs")))
        })?;
        Ok(Self { folder, release })
    }

    pub(super) fn kernel(&self) -> PathBuf {
        self.folder.join("vmlinuz")
    }

    /// What modules for it are built with.
    pub(super) fn headers(&self, packages: &Packages) -> Result<PathBuf, Unready> {
        let of_all = self.release.trim_end_matches("-amd64");
        let series = self.release.splitn(3, '.').take(2).collect::<Vec<_>>().join(".");
        let (own, common) = (format!("linux-headers-{}", self.release), format!("linux-headers-{of_all}-common"));
        let folder = packages.files_of(&own, &[&common, &format!("linux-kbuild-{series}")], |unpacked, chosen| {
            keep(&unpacked.join("usr"), chosen)
        })?;
        let sources = folder.join("usr/src");
        let makefile = format!("include {}\n", sources.join(common).join("Makefile").display());
        // As it comes it leads to where the package is installed; and the cache may have moved.
        let path = sources.join(own);
        fs::write(path.join("Makefile"), makefile).map_err(|error| format!("cannot write to {}: {error}", path.display()))?;
        Ok(path)
    }

    pub(super) fn module(&self, name: &str) -> Option<PathBuf> {
        let path = self.folder.join("modules").join(format!("{name}.ko"));
        path.exists().then_some(path)
    }
}

fn keep_modules(folder: &Path, into: &Path) -> Result<(), String> {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.is_symlink() {
            keep_modules(&path, into)?;
        }
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let is_wanted = LOAD_ORDER.iter().chain(&DRIVERS).any(|name| *name == stem);
        if is_wanted && path.extension().is_some_and(|ending| ending == "ko") {
            keep(&path, into)?;
        }
    }
    Ok(())
}
