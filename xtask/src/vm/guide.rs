//! The guests of the guide: Debian's kernel, and a first process that carries out what a page has for it.

use std::path::Path;

use super::apt::Apt;
use super::archive::Archive;
use super::debian::Debian;
use super::environment::all_installed;
use super::packages::Packages;
use super::programs::busybox;
use super::unready::Unready;
use crate::{files, target};

/// Make what they boot from, where `tests/acceptance/src/guests.rs` looks for it.
pub(super) fn prepare(root: &Path) -> Result<String, Unready> {
    all_installed(&["apt-get", "dpkg-deb", "xz"])?;
    let cache = target(root).join("vm");
    let folder = cache.join("guide");
    files::make_folder(&folder)?;
    let packages = Packages::new(cache.join("packages"), Apt::own());
    let busybox = {
        let _lock = files::lock(&cache.join("programs.lock"))?;
        busybox(&packages)?
    };
    let debian = {
        let _lock = files::lock(&cache.join("debian.lock"))?;
        Debian::prepare(&packages)?
    };
    let mut archive = Archive::default();
    archive.add_file("init", &root.join("tests/vm/init-guide"))?;
    archive.add_file("bin/busybox", &busybox)?;
    // The names have the order of loading.
    for (number, name) in debian.load_order(true).into_iter().enumerate() {
        let module = debian.module(name).ok_or_else(|| format!("the guests' kernel has no module {name}"))?;
        archive.add_file(&format!("modules/{number:02}-{name}.ko"), &module)?;
    }
    files::copy(&debian.kernel(), &folder.join("vmlinuz"))?;
    files::write(&folder.join("initrd"), archive.finish()?)?;
    Ok(String::new())
}
