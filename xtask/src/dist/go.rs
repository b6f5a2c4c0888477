//! The Go package. Programs compile it from its source, against the C library.

use std::fs;

use super::Dist;

/// Copy the sources, but not the tests. What an earlier build left is removed: a program would compile it, too.
pub(super) fn build(dist: &Dist) -> Result<String, String> {
    let source = dist.root.join("go");
    let failed = |error: std::io::Error| format!("cannot read {}: {error}", source.display());
    let _ = fs::remove_dir_all(dist.prefix.join("share/fipsee/go"));
    for entry in fs::read_dir(&source).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.ends_with("_test.go") {
            dist.install(&entry.path(), &format!("share/fipsee/go/{name}"))?;
        }
    }
    Ok(String::new())
}
