//! Linux as a program: user-mode Linux, built from Debian's source and kept.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::available_parallelism;

use super::packages::{Packages, keep, make_folder};
use super::unready::Unready;
use crate::step;

const PACKAGE: &str = "linux-source-6.1";

/// The state of a CPU with AMX takes 11 KiB; the source as it is reserves 2696 bytes and panics at its first process.
const PATCHED_FILE: &str = "arch/x86/um/user-offsets.c";
const PATCH_FROM: &str = "DEFINE_LONGS(HOST_FP_SIZE, 2696)";
const PATCH_TO: &str = "DEFINE_LONGS(HOST_FP_SIZE, 16384)";

/// A build that takes longer hangs: it is three minutes' work for two CPUs.
const BUILD_LIMIT: &str = "3600";

/// Sources that this configuration never compiles, most of the space: what describes them to the build stays.
const NOT_COMPILED: [&str; 16] = [
    "drivers/gpu",
    "drivers/net/ethernet",
    "drivers/net/wireless",
    "drivers/media",
    "drivers/scsi",
    "drivers/staging",
    "drivers/usb",
    "drivers/infiniband",
    "drivers/clk",
    "drivers/pinctrl",
    "sound",
    "arch/arm",
    "arch/arm64",
    "arch/mips",
    "arch/powerpc",
    "tools/testing",
];

/// A kernel that was built.
pub(super) struct Uml {
    /// Its source and objects, for modules.
    pub(super) tree: PathBuf,
}

impl Uml {
    /// The kernel, built now if it is not there; kept below `cache`.
    pub(super) fn prepare(root: &Path, cache: &Path, packages: &Packages) -> Result<Self, Unready> {
        let config_path = root.join("tests/vm/uml.config");
        let config = fs::read(&config_path).map_err(|error| format!("cannot read {}: {error}", config_path.display()))?;
        let key = fingerprint(&[&config, PATCHED_FILE.as_bytes(), PATCH_TO.as_bytes()]);
        let name = format!("uml-{}-{key:016x}", packages.version(PACKAGE)?);
        let folder = cache.join(&name);
        let tree = folder.join("tree");
        if folder.join("built").exists() {
            return Ok(Self { tree });
        }
        println!("building user-mode Linux in {}: some minutes, once", folder.display());
        // A build that was cut short goes on where it was, but not unpacking.
        if !folder.join("unpacked").exists() {
            let _ = fs::remove_dir_all(&folder);
            make_folder(&folder)?;
            unpack(packages, &folder, &tree)?;
            patch(&tree)?;
            stamp(&folder, "unpacked")?;
        }
        make(&tree, &[&format!("KCONFIG_ALLCONFIG={}", config_path.display()), "allnoconfig"])?;
        check_config(&config, &tree)?;
        let jobs = available_parallelism().map_or(1, std::num::NonZero::get);
        make(&tree, &[&format!("-j{jobs}"), "linux", "modules"])?;
        stamp(&folder, "built")?;
        remove_others(cache, &name);
        Ok(Self { tree })
    }

    pub(super) fn program(&self) -> PathBuf {
        self.tree.join("linux")
    }

    /// A module of its own sources.
    pub(super) fn module(&self, name: &str) -> Option<PathBuf> {
        let places = [format!("drivers/block/{name}.ko"), format!("drivers/block/{name}/{name}.ko")];
        places.iter().map(|place| self.tree.join(place)).find(|path| path.exists())
    }
}

fn stamp(folder: &Path, name: &str) -> Result<(), String> {
    fs::write(folder.join(name), "").map_err(|error| format!("cannot write to {}: {error}", folder.display()))
}

fn unpack(packages: &Packages, folder: &Path, tree: &Path) -> Result<(), Unready> {
    let package =
        packages.files(PACKAGE, |unpacked, chosen| keep(&unpacked.join("usr/src").join(format!("{PACKAGE}.tar.xz")), chosen))?;
    let mut tar = Command::new("tar");
    tar.arg("--use-compress-program=xz -T0").arg("--directory").arg(folder);
    for path in NOT_COMPILED {
        tar.arg(format!("--exclude={PACKAGE}/{path}/*.[chS]"));
    }
    tar.arg(format!("--exclude={PACKAGE}/Documentation/*.[rty]*"));
    step::succeed(tar.arg("--extract").arg("--file").arg(package.join(format!("{PACKAGE}.tar.xz"))))?;
    fs::rename(folder.join(PACKAGE), tree).map_err(|error| format!("{PACKAGE} unpacks to another name: {error}"))?;
    // 139 MB that nobody reads again.
    let _ = fs::remove_dir_all(package);
    Ok(())
}

fn patch(tree: &Path) -> Result<(), String> {
    let path = tree.join(PATCHED_FILE);
    let text = fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    if !text.contains(PATCH_FROM) {
        return Err(format!("{PATCHED_FILE} has no '{PATCH_FROM}' any more: see whether it still needs the patch in uml.rs"));
    }
    let patched = text.replace(PATCH_FROM, PATCH_TO);
    fs::write(&path, patched).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

fn make(tree: &Path, arguments: &[&str]) -> Result<(), String> {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", BUILD_LIMIT, "make", "ARCH=um"]).args(arguments).current_dir(tree);
    // Ours speak of other trees.
    command.env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
    step::succeed(&mut command).map(drop).map_err(|text| last_lines(&text))
}

/// The end of what a long command said.
pub(super) fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let (head, tail) = (lines.first().copied().unwrap_or_default(), lines.len().saturating_sub(40));
    format!("{head}\n...\n{}", lines[tail..].join("\n"))
}

/// Kconfig drops silently what it does not know or what lacks something.
fn check_config(wanted: &[u8], tree: &Path) -> Result<(), String> {
    let made = fs::read_to_string(tree.join(".config")).map_err(|error| format!("no .config was made: {error}"))?;
    let wanted = String::from_utf8_lossy(wanted);
    let lost: Vec<&str> =
        wanted.lines().filter(|line| line.starts_with("CONFIG_") && !made.lines().any(|have| have == *line)).collect();
    if lost.is_empty() { Ok(()) } else { Err(format!("this kernel cannot be configured with {}", lost.join(" "))) }
}

/// FNV-1a over all pieces.
fn fingerprint(pieces: &[&[u8]]) -> u64 {
    pieces
        .iter()
        .copied()
        .flatten()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Kernels of older sources or configurations: half a gigabyte each.
fn remove_others(cache: &Path, name: &str) {
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        let other = entry.file_name().to_string_lossy().into_owned();
        if other.starts_with("uml-") && other != name {
            // Space that stays used is all that goes wrong.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_configuration_has_another_fingerprint() {
        assert_ne!(fingerprint(&[b"CONFIG_A=y"]), fingerprint(&[b"CONFIG_A=m"]));
        assert_eq!(fingerprint(&[]), 0xcbf2_9ce4_8422_2325);
    }

    #[test]
    fn long_output_is_cut_in_the_middle() {
        let text: Vec<String> = (0..100).map(|line| line.to_string()).collect();
        let cut = last_lines(&text.join("\n"));
        assert!(cut.starts_with("0\n...\n60\n") && cut.ends_with("\n99"), "{cut}");
    }
}
