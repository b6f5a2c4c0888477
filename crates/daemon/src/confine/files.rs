//! The files that the daemon may use once it serves: those its configuration names, and their neighbours.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use fipsee_serve::FileUse;
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope,
};

use crate::config::{Config, names, sockets_of_ports};
use crate::metrics::Endpoint;

/// The landlock features used. A kernel that knows fewer enforces those.
const NEWEST: ABI = ABI::V6;

const HOMES: &str = "/home";

type Rights = BitFlags<AccessFs>;

fn reading() -> Rights {
    AccessFs::ReadFile | AccessFs::ReadDir
}

/// Open files and make new ones. One that was created and cannot be made long enough is removed.
fn files() -> Rights {
    let written = AccessFs::WriteFile | AccessFs::Truncate | AccessFs::MakeReg | AccessFs::RemoveFile;
    written | AccessFs::ReadFile | AccessFs::IoctlDev
}

/// Make sockets, under a lock of their folder, and remove them.
fn sockets() -> Rights {
    AccessFs::MakeSock | AccessFs::ReadDir | AccessFs::ReadFile | AccessFs::RemoveFile
}

#[derive(Clone, Debug, Default)]
pub(super) struct Paths(Vec<(PathBuf, Rights)>);

impl Paths {
    /// The needs of a daemon that serves `config` with its sockets `at` these paths, with those its services have `declared`.
    pub(super) fn of<'a>(
        config: &Config,
        declared: &[(PathBuf, FileUse)],
        at: impl Iterator<Item = &'a Path>,
    ) -> Result<Self, String> {
        let mut paths = Self::default();
        for path in &config.confine_paths {
            let found = path.canonicalize().map_err(|error| {
                format!("{}, named in confine_paths, cannot be used: {error}; create it or remove it there", path.display())
            })?;
            paths.0.push((found, files() | sockets()));
        }
        for (path, what) in declared {
            let is_device = || path.metadata().is_ok_and(|found| found.file_type().is_block_device());
            match what {
                FileUse::Read => paths.add(path, reading()),
                FileUse::WriteBeside if !is_device() => paths.add_beside(path, files()),
                FileUse::Write | FileUse::WriteBeside => paths.add(path, files()),
            }
        }
        let of_disks = config.disks.iter().flat_map(|disk| &disk.vhost_user).map(PathBuf::as_path);
        let for_machines = of_disks.chain(sockets_of_ports(&config.networks).map(|(_, path)| path));
        let for_metrics = config.metrics.iter().filter_map(|endpoint| match endpoint {
            Endpoint::Unix(path) => Some(path.as_path()),
            Endpoint::Tcp(_) => None,
        });
        let folders: Vec<PathBuf> = at.map(folder_of).chain(for_machines.chain(for_metrics).map(folder_of)).collect();
        for folder in folders {
            paths.add(&folder, sockets());
        }
        if let Some(file) = &config.arguments.config {
            paths.add_beside(file, reading());
        }
        // Names of users and groups, for a reload. Files that replace these are in the folder, where root could read secrets, too.
        for file in names::FILES {
            paths.add(Path::new(file), reading());
        }
        if !rustix::process::geteuid().is_root() {
            paths.add(Path::new("/etc"), reading());
        }
        // The holder of a lock; the machine and its devices; and our own program, for the names in a backtrace.
        for path in ["/proc".into(), "/sys".into()].into_iter().chain(std::env::current_exe()) {
            paths.add(&path, reading());
        }
        Ok(paths)
    }

    fn add(&mut self, path: &Path, what: Rights) {
        if let Ok(found) = path.canonicalize() {
            self.0.push((found, what));
        }
    }

    /// A file and its folder: editors replace files, and files are added beside others. Not a folder shared by all programs.
    fn add_beside(&mut self, path: &Path, what: Rights) {
        let Ok(found) = path.canonicalize() else { return };
        match found.parent().filter(|folder| !is_everybodys(folder)) {
            Some(folder) => self.add(folder, what),
            None => self.0.push((found, what)),
        }
    }

    /// May a disk be opened, or a socket made, at `path`?
    pub(super) fn cover(&self, path: &Path, is_socket: bool) -> bool {
        let needed = if is_socket { sockets() } else { files() };
        let found = path.canonicalize().or_else(|_| folder_of(path).canonicalize());
        found.is_ok_and(|found| self.0.iter().any(|(below, what)| what.contains(needed) && found.starts_with(below)))
    }

    pub(super) fn names(&self) -> String {
        let mut names: Vec<String> =
            self.0.iter().filter(|(_, what)| *what != reading()).map(|(path, _)| path.display().to_string()).collect();
        names.sort_unstable();
        names.dedup();
        if names.is_empty() { "no folder".to_owned() } else { names.join(", ") }
    }

    /// Make the kernel refuse every other file from now on, to this thread and those it starts.
    pub(super) fn restrict(&self) -> Result<(), String> {
        match self.try_restrict() {
            Ok(RulesetStatus::NotEnforced) => {
                Err("this kernel has no landlock, or it is not among its security modules (lsm=)".to_owned())
            }
            Ok(_) => Ok(()),
            Err(error) => Err(format!("landlock refuses: {error}")),
        }
    }

    fn try_restrict(&self) -> Result<RulesetStatus, Box<dyn std::error::Error>> {
        let ruleset = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
        let ruleset = ruleset.handle_access(AccessFs::from_all(NEWEST))?.handle_access(AccessNet::from_all(NEWEST))?;
        let mut ruleset = ruleset.scope(scopes())?.create()?;
        for (path, what) in &self.0 {
            let is_folder = path.is_dir();
            let rights = if is_folder { *what } else { *what & AccessFs::from_file(NEWEST) };
            ruleset = ruleset.add_rule(PathBeneath::new(PathFd::new(path)?, rights))?;
        }
        Ok(ruleset.restrict_self()?.ruleset)
    }
}

/// Signals reach no other process. Neither do abstract sockets, unless the service manager listens at one.
fn scopes() -> BitFlags<Scope> {
    let is_abstract = std::env::var("NOTIFY_SOCKET").is_ok_and(|path| path.starts_with('@'));
    if is_abstract { Scope::Signal.into() } else { Scope::Signal | Scope::AbstractUnixSocket }
}

/// Also for a relative path without a folder.
fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// `/`, its children (`/etc`, `/dev`, `/tmp`), and homes.
fn is_everybodys(folder: &Path) -> bool {
    let is_home =
        folder.parent() == Some(Path::new(HOMES)) || std::env::var_os("HOME").is_some_and(|home| folder == Path::new(&home));
    folder.components().count() <= 2 || is_home
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_that_hold_everything_are_not_opened_for_one_file() {
        for folder in ["/", "/etc", "/dev", "/tmp", "/root", &format!("{HOMES}/anna")] {
            assert!(is_everybodys(Path::new(folder)), "{folder}");
        }
        for folder in ["/etc/fipsee", "/var/lib", &format!("{HOMES}/anna/disks"), "/srv/images"] {
            assert!(!is_everybodys(Path::new(folder)), "{folder}");
        }
    }

    #[test]
    fn coverage_is_decided_by_the_resolved_path() {
        let dir = std::env::temp_dir().join(format!("fipsee-paths-{}", std::process::id()));
        let inside = dir.join("inside");
        std::fs::create_dir_all(&inside).expect("a folder");
        let way_out = inside.join("out");
        let _ = std::fs::remove_file(&way_out);
        std::os::unix::fs::symlink(&dir, &way_out).expect("a link");
        let mut paths = Paths::default();
        paths.add(&inside, files());
        assert!(paths.cover(&inside.join("new"), false));
        assert!(!paths.cover(&inside.join("new"), true), "a folder for disks is none for sockets");
        assert!(!paths.cover(&dir.join("new"), false));
        assert!(!paths.cover(&way_out.join("new"), false), "through a link");
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
