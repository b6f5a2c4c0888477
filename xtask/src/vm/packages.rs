//! Files of Debian packages: fetched by the machine's own apt, unpacked, not installed, so that they leave nothing behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::unready::Unready;
use crate::step;

/// What packages are kept in.
pub(super) struct Packages {
    folder: PathBuf,
}

impl Packages {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Name and version of what apt would install, as a folder may be called; without apt's lists, of what was kept last.
    pub(super) fn version(&self, package: &str) -> Result<String, Unready> {
        let shown = step::output(Command::new("apt-cache").args(["show", "--no-all-versions", package]));
        let version = shown.text.lines().find_map(|line| line.strip_prefix("Version: "));
        if let Some(version) = version.filter(|_| shown.succeeded) {
            return Ok(format!("{package}_{}", version.replace([':', '/'], ".")));
        }
        let prefix = format!("{package}_");
        let kept = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let kept = kept.map(|entry| entry.file_name().to_string_lossy().into_owned()).filter(|name| name.starts_with(&prefix));
        kept.max().ok_or_else(|| unknown(package))
    }

    /// The first package that `package` depends on: the kernel that Debian's meta package stands for.
    pub(super) fn dependency(package: &str) -> Result<String, Unready> {
        let output = step::output(Command::new("apt-cache").args(["depends", package]));
        let found = output.text.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
        found.map(str::to_owned).ok_or_else(|| unknown(package))
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
        let archives: Result<Vec<PathBuf>, String> = packages.map(|package| download(&work, package)).collect();
        let outcome = archives.map_err(Unready::Missing).and_then(|archives| {
            for archive in archives {
                step::succeed(Command::new("dpkg-deb").arg("--extract").arg(archive).arg(&unpacked))?;
            }
            choose(&unpacked, &chosen)?;
            match fs::rename(&chosen, &kept) {
                // Another run of ours was faster, with the same files.
                Err(_) if kept.exists() => Ok(()),
                renamed => Ok(renamed.map_err(|error| format!("cannot rename to {}: {error}", kept.display()))?),
            }
        });
        // Of a package that is not complete nothing may stay.
        let _ = fs::remove_dir_all(&work);
        outcome.map(|()| kept)
    }
}

fn unknown(package: &str) -> Unready {
    Unready::Missing(format!("apt knows no package {package}; renew its lists: apt-get update"))
}

fn download(work: &Path, package: &str) -> Result<PathBuf, String> {
    let into = work.join(package);
    make_folder(&into)?;
    let mut command = Command::new("apt-get");
    command.current_dir(&into).args(["-o", "Acquire::Retries=3"]);
    // The user apt drops to cannot write into a folder of ours.
    step::succeed(command.args(["-o", "APT::Sandbox::User=root", "download", package]))?;
    let entries = fs::read_dir(&into).into_iter().flatten().flatten().map(|entry| entry.path());
    let archive = entries.into_iter().find(|path| path.extension().is_some_and(|ending| ending == "deb"));
    archive.ok_or_else(|| format!("apt-get download {package} left no package in {}", into.display()))
}

pub(super) fn make_folder(path: &Path) -> Result<(), String> {
    fs::create_dir_all(path).map_err(|error| format!("cannot create {}: {error}", path.display()))
}

/// Move a file to `folder`, under its own name.
pub(super) fn keep(file: &Path, folder: &Path) -> Result<(), String> {
    let to = folder.join(file.file_name().unwrap_or_default());
    fs::rename(file, &to).map_err(|error| format!("cannot move {} to {}: {error}", file.display(), to.display()))
}
