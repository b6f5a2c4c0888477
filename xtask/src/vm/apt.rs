//! Where Debian packages come from: what the machine's own apt knows, or the backports of its release besides.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::packages::make_folder;
use super::unready::Unready;
use crate::step;

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const OWN_SOURCES: &str = "/etc/apt/sources.list.d";

/// How apt is called.
pub(super) struct Apt {
    options: Vec<String>,
}

impl Apt {
    /// As the machine's administrator set it up.
    pub(super) fn own() -> Self {
        // The user apt drops to cannot write into a folder of ours.
        Self { options: ["-o", "Acquire::Retries=3", "-o", "APT::Sandbox::User=root"].map(str::to_owned).to_vec() }
    }

    /// The same with the release's backports, which are preferred; lists and settings of the machine stay as they are. `folder` keeps
    /// the lists.
    pub(super) fn backports(folder: &Path) -> Result<Self, Unready> {
        let (site, codename) = release()?;
        let (sources, lists) = (folder.join("sources"), folder.join("lists"));
        for path in [&sources, &lists.join("partial"), &folder.join("archives/partial")] {
            make_folder(path)?;
        }
        for path in fs::read_dir(OWN_SOURCES).into_iter().flatten().flatten().map(|entry| entry.path()) {
            let copy = sources.join(path.file_name().unwrap_or_default());
            fs::copy(&path, &copy).map_err(|error| format!("cannot copy {} to {}: {error}", path.display(), copy.display()))?;
        }
        let line = format!("deb {}{site} {codename}-backports main\n", signed_by());
        let path = sources.join("backports.list");
        fs::write(&path, line).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        let mut apt = Self::own();
        let set = |name: &str, value: &Path| format!("Dir::{name}={}", value.display());
        for option in [
            set("Etc::sourceparts", &sources),
            set("State::lists", &lists),
            set("Cache", folder),
            format!("APT::Default-Release={codename}-backports"),
        ] {
            apt.options.extend(["-o".to_owned(), option]);
        }
        let updated = step::succeed(apt.get().arg("update"));
        // Without a network, the lists of the last time and what was kept may do.
        let has_lists =
            fs::read_dir(&lists).is_ok_and(|entries| entries.flatten().any(|entry| is_list_of_backports(&entry.path())));
        match updated {
            Err(text) if !has_lists => Err(Unready::Missing(format!("no lists of {codename}-backports:\n{text}"))),
            _ => Ok(apt),
        }
    }

    /// The machine's release, and lines for a list of sources that say where it has that from, its updates and its security.
    pub(super) fn own_sources() -> Result<(String, Vec<String>), Unready> {
        let (_, codename) = release()?;
        let is_ours = |name: &str| name.strip_prefix(&codename).is_some_and(|end| ["", "-updates", "-security"].contains(&end));
        let targets = targets("$(CODENAME) deb $(REPO_URI) $(CODENAME) main");
        let lines = targets.lines().filter_map(|line| line.split_once(" deb ")).filter(|(name, _)| is_ours(name));
        let mut lines: Vec<_> = lines.map(|(_, rest)| format!("deb {}{rest}", signed_by())).collect();
        lines.dedup();
        Ok((codename, lines))
    }

    pub(super) fn get(&self) -> Command {
        self.command("apt-get")
    }

    pub(super) fn cache(&self) -> Command {
        self.command("apt-cache")
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.args(&self.options);
        command
    }
}

fn is_list_of_backports(path: &Path) -> bool {
    path.is_file() && path.to_string_lossy().contains("-backports_")
}

fn signed_by() -> String {
    if Path::new(KEYRING).exists() { format!("[signed-by={KEYRING}] ") } else { String::new() }
}

/// Where this machine has its release from, and how that is called.
fn release() -> Result<(String, String), Unready> {
    let text = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let codename = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME=")).unwrap_or_default().to_owned();
    let targets = targets("$(CODENAME) $(REPO_URI)");
    let site = targets.lines().find_map(|line| line.strip_prefix(&format!("{codename} ")));
    site.filter(|_| !codename.is_empty())
        .map(|site| (site.to_owned(), codename.clone()))
        .ok_or_else(|| Unready::Missing("apt has no sources of this machine's release, nor can it have backports".to_owned()))
}

/// A line for each list of packages that apt knows.
fn targets(format: &str) -> String {
    step::output(Command::new("apt-get").args(["indextargets", "--format", format, "Created-By: Packages"])).text
}
