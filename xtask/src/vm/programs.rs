//! What runs in a guest: busybox, Debian's tools for ext4, fio, and our own test program, most of them static.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::archive::Archive;
use super::kept::Kept;
use super::packages::{Packages, keep};
use super::unready::Unready;
use crate::dist::fio_source;
use crate::files::{empty_folder, list, list_ending, make_folder, name_of, rename};
use crate::step::{self, last_lines};

/// From the machine, with the libraries they need.
const TOOLS: [&str; 3] = ["mke2fs", "e2fsck", "resize2fs"];

/// Programs for guests.
pub(super) struct Programs {
    busybox: PathBuf,
    fio: PathBuf,
    guest: PathBuf,
    scripts: PathBuf,
}

impl Programs {
    pub(super) fn prepare(root: &Path, cache: &Path, target: &Path, packages: &Packages) -> Result<Self, Unready> {
        let scripts = root.join("tests/vm");
        Ok(Self {
            busybox: busybox(packages)?,
            fio: static_fio(target)?,
            guest: guest_program(&scripts.join("guest"), cache)?,
            scripts,
        })
    }

    /// Put everything but modules into a guest's first file system, with `more_scripts` if that folder exists.
    pub(super) fn add_to(&self, archive: &mut Archive, more_scripts: &Path) -> Result<(), String> {
        archive.add_file("init", &self.scripts.join("init"))?;
        archive.add_file("bin/busybox", &self.busybox)?;
        archive.add_file("bin/fio", &self.fio)?;
        archive.add_file("bin/fip-guest", &self.guest)?;
        let more_scripts = list(more_scripts).unwrap_or_default();
        let scripts = list(&self.scripts.join("scripts"))?.into_iter().chain(more_scripts);
        for script in scripts.filter(|script| script.is_file()) {
            archive.add_file(&format!("vm/{}", name_of(&script)), &script)?;
        }
        let mut added = Vec::new();
        for tool in TOOLS {
            let path = ["/usr/sbin", "/sbin"].map(|folder| Path::new(folder).join(tool)).into_iter().find(|path| path.exists());
            let path = path.ok_or_else(|| format!("{tool} is not installed; run `cargo xtask setup` as root"))?;
            archive.add_file(&format!("sbin/{tool}"), &path)?;
            for library in libraries(&path)? {
                if !added.contains(&library) {
                    archive.add_file(library.trim_start_matches('/'), Path::new(&library))?;
                    added.push(library);
                }
            }
        }
        Ok(())
    }
}

/// One program for the usual commands, which is static.
pub(super) fn busybox(packages: &Packages) -> Result<PathBuf, Unready> {
    let folder = packages.files("busybox-static", |unpacked, chosen| {
        let places = ["bin/busybox", "usr/bin/busybox"].map(|place| unpacked.join(place));
        let place = places.iter().find(|path| path.is_file()).ok_or("busybox-static has no busybox")?;
        keep(place, chosen)
    })?;
    Ok(folder.join("busybox"))
}

/// Paths of what a dynamic program loads, as it asks for them.
fn libraries(program: &Path) -> Result<Vec<String>, String> {
    let listed = step::print(Command::new("ldd").arg(program))?;
    Ok(listed.split_whitespace().filter(|word| word.starts_with('/')).map(str::to_owned).collect())
}

/// Debian's fio brings 61 libraries along; a static one is of 3 MB.
fn static_fio(target: &Path) -> Result<PathBuf, String> {
    let kept = Kept::lock()?;
    let source = fio_source::prepare(&target.join("fio-source"))?;
    let version = name_of(source.parent().unwrap_or(&source));
    let folder = kept.folder.join(format!("{version}-static"));
    let program = folder.join("fio");
    if program.exists() {
        return Ok(program);
    }
    // No other run is here; one that was killed may have been.
    let work = kept.folder.join(format!("{version}-build"));
    empty_folder(&work)?;
    let built = work.join("source");
    println!("building a static fio: a minute, once");
    let outcome = (|| {
        step::succeed(Command::new("cp").args(["-r"]).arg(&source).arg(&built))?;
        // An emulated CPU lacks what this one has.
        step::succeed(Command::new("./configure").args(["--disable-native", "--build-static"]).current_dir(&built))?;
        step::succeed(Command::new("make").args(["-j2", "fio"]).env_remove("MAKEFLAGS").current_dir(&built))
            .map_err(|text| last_lines(&text))?;
        step::succeed(Command::new("strip").arg("fio").current_dir(&built))?;
        make_folder(&folder)?;
        keep(&built.join("fio"), &folder)
    })();
    // A copy of a source.
    let _ = fs::remove_dir_all(&work);
    outcome.map(|()| program)
}

/// Our own test program, compiled each time: it takes a second.
fn guest_program(sources: &Path, cache: &Path) -> Result<PathBuf, String> {
    let (program, fresh) = (cache.join("fip-guest"), cache.join("fip-guest.new"));
    let mut command = Command::new("gcc");
    command.args(["-std=gnu11", "-O2", "-g0", "-static", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&fresh);
    step::succeed(command.args(list_ending(sources, "c")))?;
    // Another run may be reading the old one.
    rename(&fresh, &program).map(|()| program)
}
