//! NAME-dbgsym: the debug information of what NAME has, as Debian's own tools pack it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::{Build, maintainer};
use crate::dist::debug;
use crate::files;

impl Build<'_> {
    /// Pack what `cargo xtask dist` has put aside of these linked files below `root`, if there are any.
    pub(super) fn debug_package(&self, name: &str, root: &Path, linked: &[&str]) -> Result<(), String> {
        let ids: Vec<String> = linked.iter().map(|path| debug::build_id(&root.join(path))).collect::<Result<_, _>>()?;
        if ids.is_empty() {
            return Ok(());
        }
        let package = format!("{name}-dbgsym");
        let root = self.output.join("work").join(&package).join("root");
        for id in &ids {
            files::copy(&debug::file(self.dist, id), &root.join("usr/lib/debug/.build-id").join(debug::path(id)))?;
        }
        let documents = root.join("usr/share/doc");
        files::make_folder(&documents)?;
        symlink(name, documents.join(&package)).map_err(|error| format!("cannot link the documents of {package}: {error}"))?;
        let bytes = ids.iter().filter_map(|id| fs::metadata(debug::file(self.dist, id)).ok()).map(|file| file.len()).sum::<u64>();
        let control = format!(
            "Package: {package}\nSource: fipsee\nVersion: {}\nAuto-Built-Package: debug-symbols\nArchitecture: {}\nMaintainer: {}\n\
             Installed-Size: {}\nDepends: {name} (= {})\nSection: debug\nPriority: optional\n\
             Description: debug symbols for {name}\nBuild-Ids: {}\n",
            self.version,
            self.architecture,
            maintainer(),
            bytes.div_ceil(1024),
            self.version,
            ids.join(" ")
        );
        files::write(&root.join("DEBIAN/control"), control)?;
        self.pack(&package, &root).map(drop)
    }
}
