//! The guest's driver for its disk: the kernel's own, or ours, which is built here for the guest's kernel.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::back_end::Peer;
use super::debian::Debian;
use super::dkms;
use super::packages::Packages;
use super::scenario::Only;
use super::uml::Uml;
use super::unready::Unready;
use crate::step::{self, last_lines};

/// Names of drivers as on the command line, each as the kernel calls it on its bus.
pub(super) const DRIVERS: [&str; 2] = ["virtio_blk", OURS];

/// The driver that moves a disk to rings.
pub(super) const OURS: &str = "fip_blk";

/// Where its sources and further scripts for guests are.
pub(super) const SOURCES: &str = "c/kmod";
/// Modules that load a disk, or a ring, from within the kernel, and where their sources are.
const LOADS: [&str; 2] = ["fip_bench", "fip_load"];
const LOAD_SOURCES: &str = "c/bench";
pub(super) const SCRIPTS: &str = "c/kmod/tests";

/// A kernel that a guest runs.
pub(super) enum Kernel<'a> {
    Uml(&'a Uml),
    Debian(&'a Debian),
}

impl Kernel<'_> {
    /// A module that came with it.
    pub(super) fn module(&self, name: &str) -> Option<PathBuf> {
        match self {
            Self::Uml(uml) => uml.module(name),
            Self::Debian(debian) => debian.module(name),
        }
    }
}

/// What a guest loads, in this order, and the arguments of the last module.
pub(super) struct Modules {
    pub(super) paths: Vec<PathBuf>,
    /// What scripts may load besides.
    pub(super) others: Vec<PathBuf>,
    /// Further programs for `/sbin`.
    pub(super) programs: Vec<PathBuf>,
    pub(super) arguments: &'static str,
}

/// Where drivers are built.
pub(super) struct DriverBuilder<'a> {
    pub(super) root: &'a Path,
    pub(super) cache: &'a Path,
    pub(super) packages: &'a Packages,
}

impl DriverBuilder<'_> {
    /// What a guest with that kernel loads for that driver.
    pub(super) fn modules(&self, driver: &str, peer: &Peer, kernel: &Kernel<'_>, only: Only) -> Result<Modules, Unready> {
        if only == Only::Takeover {
            let Kernel::Debian(debian) = kernel else { return Err("user-mode Linux is no package of Debian's".into()) };
            let installed = dkms::install(self.root, &self.cache.join("dkms"), debian, self.packages)?;
            let path = kernel.module(DRIVERS[0]).ok_or("the guest's kernel has no module virtio_blk")?;
            let (others, programs) = (vec![installed.module], vec![installed.script]);
            return Ok(Modules { paths: vec![path], others, programs, arguments: "" });
        }
        if driver == OURS {
            // Without it our driver leaves devices that offer no rings to the kernel's own.
            let keeps = matches!(peer, Peer::StorageDaemon) && only != Only::Foreign;
            let arguments = if keeps { "keep=1" } else { "" };
            let path = self.build(kernel, SOURCES)?.join(format!("{OURS}.ko"));
            let loads = self.build(kernel, LOAD_SOURCES)?;
            let others = LOADS.map(|name| loads.join(format!("{name}.ko"))).into();
            return Ok(Modules { paths: vec![path], others, programs: Vec::new(), arguments });
        }
        let module = kernel.module(driver).ok_or_else(|| format!("the guest's kernel has no module {driver}"))?;
        Ok(Modules { paths: vec![module], others: Vec::new(), programs: Vec::new(), arguments: "" })
    }

    /// Build the modules in `folder` from a copy of their sources, and give the copy: `make` writes beside what it compiles.
    fn build(&self, kernel: &Kernel<'_>, folder: &str) -> Result<PathBuf, Unready> {
        if !self.root.join(folder).join("Kbuild").exists() {
            return Err(Unready::Missing(format!("this checkout has no modules in {folder}")));
        }
        let (name, tree, architecture) = match kernel {
            Kernel::Uml(uml) => (uml.build.name(), uml.tree.clone(), "um"),
            Kernel::Debian(debian) => (debian.release.as_str(), debian.headers(self.packages)?, "x86"),
        };
        let copy = self.cache.join(format!("{OURS}-{name}"));
        for sources in [SOURCES, folder, "include"] {
            mirror(&self.root.join(sources), &copy.join(sources))?;
        }
        let folder = copy.join(folder);
        let mut make = Command::new("make");
        make.arg(format!("ARCH={architecture}")).arg("-C").arg(tree).arg(format!("M={}", folder.display())).arg("modules");
        // Types for tracers: making them takes pahole, which the unpacked headers do not bring along.
        make.arg("CONFIG_DEBUG_INFO_BTF_MODULES=");
        make.env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
        step::succeed(&mut make).map_err(|text| last_lines(&text))?;
        Ok(folder)
    }
}

/// Copy files of one folder that have changed; others keep their time, so that `make` leaves them alone.
fn mirror(from: &Path, to: &Path) -> Result<(), String> {
    let run = || -> std::io::Result<()> {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)?.flatten().filter(|entry| entry.path().is_file()) {
            let (content, copy) = (fs::read(entry.path())?, to.join(entry.file_name()));
            if fs::read(&copy).ok().as_ref() != Some(&content) {
                fs::write(copy, content)?;
            }
        }
        Ok(())
    };
    run().map_err(|error| format!("cannot copy {} to {}: {error}", from.display(), to.display()))
}
