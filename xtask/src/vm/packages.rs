//! Files of Debian packages: fetched by the machine's own apt, unpacked, not installed, so that they leave nothing behind.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::apt::Apt;
use super::unready::Unready;
pub(super) use crate::files::make_folder;
use crate::files::{self, list, list_ending, name_of};
use crate::step;

/// What packages are kept in, and where they come from.
pub(super) struct Packages {
    folder: PathBuf,
    apt: Apt,
    /// Versions that were asked for: apt takes a second each time.
    versions: RefCell<BTreeMap<String, String>>,
}

impl Packages {
    pub(super) fn new(folder: PathBuf, apt: Apt) -> Self {
        Self { folder, apt, versions: RefCell::default() }
    }

    /// Name and version of what apt would install, as a folder may be called; without apt's lists, of what was kept last.
    pub(super) fn version(&self, package: &str) -> Result<String, Unready> {
        if let Some(version) = self.versions.borrow().get(package) {
            return Ok(version.clone());
        }
        let version = self.newest(package)?;
        self.versions.borrow_mut().insert(package.to_owned(), version.clone());
        Ok(version)
    }

    fn newest(&self, package: &str) -> Result<String, Unready> {
        let shown = step::output(self.apt.cache().args(["show", "--no-all-versions", package]));
        let version = shown.text.lines().find_map(|line| line.strip_prefix("Version: "));
        if let Some(version) = version.filter(|_| shown.succeeded) {
            return Ok(format!("{package}_{}", version.replace([':', '/'], ".")));
        }
        let prefix = format!("{package}_");
        let kept = list(&self.folder).unwrap_or_default();
        kept.iter().map(|path| name_of(path)).rfind(|name| name.starts_with(&prefix)).ok_or_else(|| unknown(package))
    }

    /// The first package that `package` depends on, with a name that begins so, such as the kernel that Debian's meta package names.
    pub(super) fn dependency(&self, package: &str, prefix: &str) -> Result<String, Unready> {
        let output = step::output(self.apt.cache().args(["depends", package]));
        let dependencies = output.text.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
        dependencies.map(str::to_owned).find(|name| name.starts_with(prefix)).ok_or_else(|| unknown(package))
    }

    /// What installing `package` would install or renew here, itself included: with what this machine has, all that it needs to
    /// run.
    pub(super) fn needed_for(&self, package: &str) -> Result<Vec<String>, Unready> {
        let mut command = self.apt.get();
        let output = step::output(command.args(["--simulate", "--no-install-recommends", "install", package]));
        let lines = output.text.lines().filter_map(|line| line.strip_prefix("Inst "));
        let names: Vec<String> = lines.filter_map(|line| line.split(' ').next()).map(str::to_owned).collect();
        if output.succeeded && !names.is_empty() { Ok(names) } else { Err(unknown(package)) }
    }

    /// A folder with those files of `package` that `choose` moves out of the unpacked package into it.
    pub(super) fn files(
        &self,
        package: &str,
        choose: impl FnOnce(&Path, &Path) -> Result<(), String>,
    ) -> Result<PathBuf, Unready> {
        self.files_of(package, &[], choose)
    }

    /// The same for a package that `others` complete, all unpacked to one place.
    pub(super) fn files_of(
        &self,
        package: &str,
        others: &[&str],
        choose: impl FnOnce(&Path, &Path) -> Result<(), String>,
    ) -> Result<PathBuf, Unready> {
        let kept = self.folder.join(self.version(package)?);
        if kept.exists() {
            return Ok(kept);
        }
        let work = self.folder.join(format!("{package}.{}", std::process::id()));
        let (unpacked, chosen) = (work.join("unpacked"), work.join("chosen"));
        make_folder(&unpacked)?;
        make_folder(&chosen)?;
        let packages = others.iter().copied().chain([package]);
        let archives: Result<Vec<PathBuf>, String> = packages.map(|package| self.download(&work, package)).collect();
        let outcome = archives.map_err(Unready::Missing).and_then(|archives| {
            for archive in archives {
                step::succeed(Command::new("dpkg-deb").arg("--extract").arg(archive).arg(&unpacked))?;
            }
            choose(&unpacked, &chosen)?;
            match files::rename(&chosen, &kept) {
                // Another run of ours was faster, with the same files.
                Err(_) if kept.exists() => Ok(()),
                renamed => Ok(renamed?),
            }
        });
        // Of a package that is not complete nothing may stay.
        let _ = fs::remove_dir_all(&work);
        outcome.map(|()| kept)
    }

    fn download(&self, work: &Path, package: &str) -> Result<PathBuf, String> {
        let into = work.join(package);
        make_folder(&into)?;
        step::succeed(self.apt.get().current_dir(&into).args(["download", package]))?;
        list_ending(&into, "deb").pop().ok_or_else(|| format!("apt-get download {package} left no package in {}", into.display()))
    }
}

fn unknown(package: &str) -> Unready {
    Unready::Missing(format!("apt knows no package {package}; renew its lists: apt-get update"))
}

/// Move a file to `folder`, under its own name.
pub(super) fn keep(file: &Path, folder: &Path) -> Result<(), String> {
    files::rename(file, &folder.join(name_of(file)))
}
