//! `cargo xtask dist`: everything that ships, built into one prefix as it is installed below `/usr`.

mod c_library;
pub(crate) mod debug;
mod fio_engine;
pub(crate) mod fio_source;
mod go;
mod licence;
mod manual;
mod notices;
mod programs;
mod python;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use crate::setup::is_installed;
use crate::step::{self, Tally};
use crate::{cargo, files, target};

/// Environment variable with the folder of what ships, for its tests.
pub(crate) const DIST_VARIABLE: &str = "FIPSEE_DIST";

/// Cargo's profile of what ships and of what is measured.
pub(crate) const PROFILE: &str = "production";

/// Something that ships.
struct Part {
    name: &'static str,
    /// Programs without which it cannot be built; `objcopy` is for all of binutils.
    needs: &'static [&'static str],
    /// Build it and put it into the prefix; gives what to say of success, or what went wrong, in full.
    build: fn(&Dist) -> Result<String, String>,
}

const PARTS: &[Part] = &[
    Part { name: "programs", needs: &["objcopy"], build: programs::build },
    Part { name: "C library", needs: &["cc", "ld", "objcopy", "ar"], build: c_library::build },
    Part { name: "python", needs: &["python3", "pip3", "objcopy"], build: python::build },
    Part { name: "fio engine", needs: &["fio", "gcc", "dpkg-source", "apt-get", "objcopy"], build: fio_engine::build },
    Part { name: "go", needs: &[], build: go::build },
    // After the programs, which write it.
    Part { name: "manual", needs: &[], build: manual::build },
];

/// Where things are built from and to.
pub(crate) struct Dist {
    /// The repository.
    pub(crate) root: PathBuf,
    /// Cargo's target directory.
    pub(crate) target: PathBuf,
    /// What is to be installed: `bin`, `lib`, `include`, `share`.
    pub(crate) prefix: PathBuf,
}

impl Dist {
    pub(crate) fn new(root: &Path) -> Self {
        let target = target(root);
        Self { root: root.to_owned(), prefix: target.join("dist"), target }
    }

    /// When this commit was made, or what `SOURCE_DATE_EPOCH` says, in seconds: the time of what ships.
    pub(crate) fn epoch(&self) -> Result<u64, String> {
        let seconds = env::var("SOURCE_DATE_EPOCH")
            .or_else(|_| step::print(Command::new("git").current_dir(&self.root).args(["log", "-1", "--format=%ct"])));
        let seconds = seconds.map_err(|text| format!("SOURCE_DATE_EPOCH is not set, and git does not report it: {text}"))?;
        seconds.trim().parse().map_err(|_| format!("SOURCE_DATE_EPOCH is '{}' and must be a number of seconds", seconds.trim()))
    }

    /// The same as `date` writes it in this format.
    pub(crate) fn date(&self, format: &str) -> Result<String, String> {
        let time = format!("--date=@{}", self.epoch()?);
        step::print(Command::new("date").env("LC_ALL", "C").args(["--utc", &time, &format!("+{format}")]))
    }

    fn cargo_build(&self, packages: &[&str]) -> Result<(), String> {
        let packages = packages.iter().flat_map(|package| ["--package", package]);
        step::succeed(cargo(&self.root).args(["build", "--profile", PROFILE]).args(packages)).map(drop)
    }

    /// What that left.
    fn built(&self, name: &str) -> PathBuf {
        self.target.join(PROFILE).join(name)
    }

    /// Copy a file into the prefix, executable if it is.
    pub(crate) fn install(&self, from: &Path, to: &str) -> Result<(), String> {
        let to = self.prefix.join(to);
        // A program that runs cannot be written, but it can be replaced.
        let _ = fs::remove_file(&to);
        files::copy(from, &to)
    }
}

/// The folder of the manual pages, made anew.
pub(crate) fn manual(dist: &Dist) -> Result<PathBuf, String> {
    programs::build(dist)?;
    manual::build(dist)?;
    Ok(dist.prefix.join("share/man"))
}

/// Build every part that this machine can build.
pub(crate) fn run(dist: &Dist, tally: &mut Tally) {
    for part in PARTS {
        let name = format!("dist {}", part.name);
        match part.needs.iter().find(|program| !is_installed(program)) {
            Some(program) => tally.skip(&name, &format!("{program} is not installed; run `cargo xtask setup` as root")),
            None => tally.check(&name, || (part.build)(dist)),
        }
    }
}
