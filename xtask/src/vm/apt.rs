//! Where Debian packages come from: what the machine's own apt knows, or the backports of its release besides.

use std::path::Path;
use std::process::Command;

use super::unready::Unready;
use crate::{files, step};

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const OWN_SOURCES: &str = "/etc/apt/sources.list.d";

/// How apt is called.
pub(crate) struct Apt {
    options: Vec<String>,
}

impl Apt {
    /// As the machine's administrator set it up.
    pub(crate) fn own() -> Self {
        let options = [
            "Acquire::Retries=3",
            // The user apt drops to cannot write into a folder of ours.
            "APT::Sandbox::User=root",
            // Debian's default, which images of containers set to none: without it each call parses all lists.
            "Dir::Cache::pkgcache=pkgcache.bin",
            "Dir::Cache::srcpkgcache=srcpkgcache.bin",
        ];
        Self { options: options.iter().flat_map(|option| ["-o", option].map(str::to_owned)).collect() }
    }

    /// The same with sources, lists and packages in folders of ours, and further options.
    pub(crate) fn within(mut self, cache: &Path, sources: &Path, lists: &Path, options: &[String]) -> Self {
        let folders = [("Etc::SourceParts", sources), ("State::Lists", lists), ("Cache", cache)];
        let folders = folders.map(|(name, path)| format!("Dir::{name}={}", path.display()));
        self.options.extend(folders.iter().chain(options).flat_map(|option| ["-o".to_owned(), option.clone()]));
        self
    }

    /// The same with the release's backports, which are preferred; lists and settings of the machine stay as they are. `folder` keeps
    /// the lists.
    pub(super) fn backports(folder: &Path) -> Result<Self, Unready> {
        let (site, codename) = release().map_err(Unready::Missing)?;
        let (sources, lists) = (folder.join("sources"), folder.join("lists"));
        files::make_folder(&lists.join("partial"))?;
        files::make_folder(&folder.join("archives/partial"))?;
        for path in files::list(Path::new(OWN_SOURCES)).unwrap_or_default() {
            files::copy(&path, &sources.join(files::name_of(&path)))?;
        }
        let line = format!("deb {}{site} {codename}-backports main\n", signed_by());
        files::write(&sources.join("backports.list"), line)?;
        let apt = Self::own().within(folder, &sources, &lists, &[format!("APT::Default-Release={codename}-backports")]);
        let updated = step::succeed(apt.get().arg("update"));
        // Without a network, the lists of the last time and what was kept may do.
        let has_lists = files::list(&lists).is_ok_and(|lists| lists.iter().any(|path| is_list_of_backports(path)));
        match updated {
            Err(text) if !has_lists => Err(Unready::Missing(format!("no lists of {codename}-backports:\n{text}"))),
            _ => Ok(apt),
        }
    }

    /// The machine's release, and lines for a list of sources that say where it has that from, its updates and its security.
    pub(crate) fn own_sources() -> Result<(String, Vec<String>), String> {
        let (_, codename) = release()?;
        let is_ours = |name: &str| name.strip_prefix(&codename).is_some_and(|end| ["", "-updates", "-security"].contains(&end));
        let targets = targets("$(CODENAME) deb $(REPO_URI) $(CODENAME) main");
        let lines = targets.lines().filter_map(|line| line.split_once(" deb ")).filter(|(name, _)| is_ours(name));
        let mut lines: Vec<_> = lines.map(|(_, rest)| format!("deb {}{rest}", signed_by())).collect();
        lines.dedup();
        Ok((codename, lines))
    }

    pub(crate) fn get(&self) -> Command {
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
fn release() -> Result<(String, String), String> {
    let text = files::read_text(Path::new("/etc/os-release")).unwrap_or_default();
    let codename = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME=")).unwrap_or_default().to_owned();
    let targets = targets("$(CODENAME) $(REPO_URI)");
    let site = targets.lines().find_map(|line| line.strip_prefix(&format!("{codename} ")));
    site.filter(|_| !codename.is_empty())
        .map(|site| (site.to_owned(), codename.clone()))
        .ok_or_else(|| "apt has no sources of this machine's release, nor can it have backports".to_owned())
}

/// A line for each list of packages that apt knows.
fn targets(format: &str) -> String {
    step::output(Command::new("apt-get").args(["indextargets", "--format", format, "Created-By: Packages"])).text
}
