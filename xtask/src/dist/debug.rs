//! Debug information apart from what is linked: in lib/debug/.build-id of the prefix, which is where debuggers look below /usr.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::Dist;
use crate::files::{self, lock, make_folder, name_of};
use crate::step::{self, print};

/// Copy what the linker made to `to`, stripped, and its debug information into the prefix. A file that is there already stays: tests may
/// run it while the documentation is built.
pub(super) fn split(dist: &Dist, from: &Path, to: &Path) -> Result<(), String> {
    let work = dist.target.join("split");
    let _lock = lock(&work.join("lock"))?;
    let id = build_id(from)?;
    let (before, debug) = (build_id(to).ok(), file(dist, &id));
    if before.as_ref() == Some(&id) && debug.exists() {
        return Ok(());
    }
    make_folder(debug.parent().unwrap_or(&debug))?;
    let mut keep = Command::new("objcopy");
    step::succeed(keep.args(["--only-keep-debug", "--compress-debug-sections=zlib"]).arg(from).arg(&debug))?;
    let stripped = work.join(name_of(from));
    let mut strip = Command::new("strip");
    strip.args(["--strip-unneeded", "--remove-section=.comment", "--remove-section=.note"]);
    step::succeed(strip.arg("-o").arg(&stripped).arg(from))?;
    make_folder(to.parent().unwrap_or(to))?;
    // In one step: it may be run at any time.
    files::rename(&stripped, to)?;
    if let Some(before) = before.filter(|before| *before != id) {
        let _ = std::fs::remove_file(file(dist, &before));
    }
    Ok(())
}

/// Where the debug information of that build is.
pub(crate) fn file(dist: &Dist, id: &str) -> PathBuf {
    dist.prefix.join("lib/debug/.build-id").join(path(id))
}

/// As debuggers look for it.
pub(crate) fn path(id: &str) -> String {
    let (head, tail) = id.split_at_checked(2).unwrap_or((id, ""));
    format!("{head}/{tail}.debug")
}

/// The number that the linker gave to this file.
pub(crate) fn build_id(linked: &Path) -> Result<String, String> {
    let notes = print(Command::new("readelf").env("LC_ALL", "C").arg("--notes").arg(linked))?;
    let id = notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: "));
    id.map(str::to_owned)
        .ok_or_else(|| format!("{} has no build id: the linker must be called with --build-id", linked.display()))
}
