//! The source of the installed fio, for its headers: Debian has no package of them.
//!
//! The machine's apt sources name packages, seldom sources of packages; so they are copied into a private list that
//! asks for those, and apt works in folders of ours.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::files::{list, list_ending, lock, make_folder, name_of, write};
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
    write_lists(&sources)?;
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

/// Copy the machine's apt sources into `into`, asking for source packages.
fn write_lists(into: &Path) -> Result<(), String> {
    let parts = list(Path::new("/etc/apt/sources.list.d")).unwrap_or_default();
    for path in parts.into_iter().chain([PathBuf::from("/etc/apt/sources.list")]) {
        let convert = match path.extension().and_then(|end| end.to_str()) {
            Some("list") => one_line,
            Some("sources") => deb822,
            _ => continue,
        };
        // A list that is not there, or not ours to read, has nothing for us.
        let converted = convert(&fs::read_to_string(&path).unwrap_or_default());
        write(&into.join(name_of(&path)), converted)?;
    }
    Ok(())
}

/// `deb [options] uri suite component...` for packages becomes `deb-src ...`.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter_map(|line| line.strip_prefix("deb"));
    let packages = lines.filter(|rest| rest.starts_with([' ', '\t', '[']));
    packages.map(|rest| format!("deb-src{rest}\n")).collect()
}

/// In stanzas of fields, `Types: deb` becomes `Types: deb-src`.
fn deb822(text: &str) -> String {
    let is_types = |line: &str| line.split_once(':').is_some_and(|(name, _)| name.eq_ignore_ascii_case("types"));
    text.lines().map(|line| if is_types(line) { "Types: deb-src\n".to_owned() } else { format!("{line}\n") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_of_sources_ask_for_source_packages() {
        let list = "# a comment\ndeb [signed-by=/k.gpg] http://example.org/debian stable main\n\
                    deb-src http://example.org/debian stable main\n\n  deb\thttp://example.org/more stable main\n";
        assert_eq!(
            one_line(list),
            "deb-src [signed-by=/k.gpg] http://example.org/debian stable main\ndeb-src\thttp://example.org/more stable main\n"
        );
        let stanza = "Types: deb\n# why\nURIs: http://example.org/debian\nSuites: stable\n";
        assert_eq!(deb822(stanza), "Types: deb-src\n# why\nURIs: http://example.org/debian\nSuites: stable\n");
        assert_eq!(deb822("types: deb deb-src\nEnabled: no\n"), "Types: deb-src\nEnabled: no\n");
    }
}
