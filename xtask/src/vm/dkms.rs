//! The driver as an administrator of a guest installs it: by dkms, from what `make dkms` lays out, beside the script and the unit that move
//! disks to it. All of it in folders of ours; dkms itself is unpacked, not installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::debian::Debian;
use super::driver::{OURS, SOURCES};
use super::packages::{Packages, keep, make_folder};
use super::unready::Unready;
use crate::files;
use crate::step::{self, last_lines};

const SCRIPT: &str = "usr/sbin/fip-blk-takeover";
const UNIT: &str = "lib/systemd/system/fip-blk-takeover@.service";

/// What was installed.
pub(super) struct Installed {
    pub(super) module: PathBuf,
    /// `fip-blk-takeover`
    pub(super) script: PathBuf,
}

/// Install and build below `folder`, for that kernel.
pub(super) fn install(root: &Path, folder: &Path, debian: &Debian, packages: &Packages) -> Result<Installed, Unready> {
    // What an earlier run left would make dkms say that it has it already.
    let _ = fs::remove_dir_all(folder);
    let (stage, tree) = (folder.join("root"), folder.join("dkms"));
    for path in [&stage, &tree] {
        make_folder(path)?;
    }
    make(root, &["dkms", "install-takeover"], &stage)?;
    let version = version(&root.join(SOURCES))?;
    let dkms = packages.files("dkms", |unpacked, chosen| keep(&unpacked.join("usr"), chosen))?.join("usr/sbin/dkms");
    let headers = debian.headers(packages)?;
    let run = |action: &str, arguments: &[&str]| {
        let mut command = Command::new("bash");
        command.arg(&dkms).args([action, "-m", OURS, "-v", &version]).args(arguments);
        command.arg("--sourcetree").arg(stage.join("usr/src")).arg("--dkmstree").arg(&tree);
        command.arg("--installtree").arg(stage.join("lib/modules"));
        // Without this it would make a key for signing in /var/lib/dkms.
        command.env("sign_file", "/nonexistent").env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
        step::succeed(&mut command).map_err(|text| last_lines(&text))
    };
    run("add", &[])?;
    run("build", &["-k", &debian.release, "--kernelsourcedir", &headers.to_string_lossy()]).map_err(|text| {
        let log = fs::read_to_string(tree.join(OURS).join(&version).join("build/make.log")).unwrap_or_default();
        format!("{text}\n{}", last_lines(&log))
    })?;
    let built = tree.join(OURS).join(&version).join(&debian.release).join("x86_64/module");
    let module = built.join(format!("{OURS}.ko"));
    if !module.exists() {
        return Err(format!("dkms has built no {}", module.display()).into());
    }
    verify_unit(folder, &stage)?;
    Ok(Installed { module, script: stage.join(SCRIPT) })
}

/// Install the script and the unit below `tree`.
pub(super) fn install_takeover(root: &Path, tree: &Path) -> Result<(), String> {
    make(root, &["install-takeover"], tree)
}

fn make(root: &Path, targets: &[&str], into: &Path) -> Result<(), String> {
    let mut make = Command::new("make");
    make.arg("-C").arg(root.join(SOURCES)).args(targets).arg(format!("DESTDIR={}", into.display()));
    step::succeed(make.env_remove("MAKEFLAGS").env_remove("MAKELEVEL")).map(drop)
}

/// The version in dkms.conf.
fn version(sources: &Path) -> Result<String, String> {
    let path = sources.join("dkms.conf");
    let text = files::read_text(&path)?;
    let version = text.lines().find_map(|line| line.strip_prefix("PACKAGE_VERSION=\"")?.strip_suffix('"'));
    version.map(str::to_owned).ok_or_else(|| format!("{} has no PACKAGE_VERSION", path.display()))
}

/// systemd understands the unit, instantiated for a disk, and finds the script.
fn verify_unit(folder: &Path, stage: &Path) -> Result<(), String> {
    let unit = stage.join(UNIT);
    let text = files::read_text(&unit)?;
    let installed = format!("/{SCRIPT}");
    if !text.contains(&format!("ExecStart={installed} ")) {
        return Err(format!("{} does not run {installed}", unit.display()));
    }
    // The script is not installed on this machine.
    let text = text.replace(&installed, &stage.join(SCRIPT).to_string_lossy());
    let instance = folder.join("fip-blk-takeover@vdb.service");
    files::write(&instance, text)?;
    let output = step::output(Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&instance));
    // It also reports what is wrong with the machine's own units.
    let complaint = output.text.lines().find(|line| line.contains("fip-blk-takeover"));
    match complaint {
        Some(line) => Err(format!("systemd-analyze verify {}: {line}", unit.display())),
        None if output.succeeded => Ok(()),
        None => Err(format!("systemd-analyze verify {} fails:\n{}", unit.display(), output.text)),
    }
}
