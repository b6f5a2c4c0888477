//! The source of the installed fio, for its headers: Debian has no package of them.
//!
//! The machine's apt sources name packages, seldom sources of packages; so a private list asks for those, and apt works in folders
//! of ours.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::files::{list_ending, lock, make_folder, write};
use crate::step::{self, print};
use crate::vm::apt::Apt;

/// Source, unpacked and configured, of the fio that is installed; kept in `cache` for the next time.
pub(crate) fn prepare(cache: &Path) -> Result<PathBuf, String> {
    // The engine and the guests' fio are built at the same time.
    let _lock = lock(&cache.join("lock"))?;
    let wanted = installed()?;
    let folder = cache.join(wanted.replace('=', "-"));
    let (source, stamp) = (folder.join("source"), folder.join("configured"));
    if stamp.exists() {
        return Ok(source);
    }
    // Whatever a run that was cut short has left.
    let _ = fs::remove_dir_all(&folder);
    let apt = folder.join("apt");
    let (sources, lists) = (apt.join("sources.list.d"), apt.join("state"));
    for path in [&sources, &lists.join("partial"), &apt.join("cache/archives/partial")] {
        make_folder(path)?;
    }
    let lines = Apt::own_sources()?.1;
    let lines: String = lines.iter().map(|line| format!("{}\n", line.replacen("deb ", "deb-src ", 1))).collect();
    write(&sources.join("sources.list"), lines)?;
    let apt = Apt::own().within(&apt.join("cache"), &sources, &lists, &["Dir::Etc::SourceList=/dev/null".to_owned()]);
    // A source without an index of source packages fails the update and need not be the one that has fio.
    let updated = step::output(apt.get().arg("update"));
    step::succeed(apt.get().current_dir(&folder).args(["source", "--download-only", &wanted]))
        .map_err(|text| format!("{}{text}", updated.text))?;
    let description = list_ending(&folder, "dsc").pop();
    let description = description.ok_or_else(|| format!("apt-get source {wanted} left no .dsc in {}", folder.display()))?;
    step::succeed(Command::new("dpkg-source").args(["--no-check", "--extract"]).arg(description).arg(&source))?;
    step::succeed(Command::new("./configure").arg("--disable-native").current_dir(&source))?;
    write(&stamp, "")?;
    Ok(source)
}

/// Source package and version of the installed fio, as apt-get takes them.
fn installed() -> Result<String, String> {
    print(Command::new("dpkg-query").args(["--show", "--showformat=${source:Package}=${source:Version}", "fio"]))
        .map_err(|text| format!("the installed fio is no Debian package, and only of those the source is found:\n{text}"))
}
