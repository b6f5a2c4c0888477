//! Linux as a program: user-mode Linux, built from Debian's source and kept.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::kept::Kept;
use super::packages::{Packages, keep};
use super::unready::Unready;
use crate::files;
use crate::step::{self, last_lines};

const PACKAGE: &str = "linux-source-6.1";

/// A change to a file of the source.
struct Patch {
    file: &'static str,
    from: &'static str,
    to: &'static str,
}

/// The state of a CPU with AMX takes 11 KiB; the source as it is reserves 2696 bytes and panics at its first process.
const BIG_CPU: Patch = Patch {
    file: "arch/x86/um/user-offsets.c",
    from: "DEFINE_LONGS(HOST_FP_SIZE, 2696)",
    to: "DEFINE_LONGS(HOST_FP_SIZE, 16384)",
};

/// The preemption counter finds code that sleeps in atomic context. The architecture does not support preemption; only the counter is
/// needed, so this drops ARCH_NO_PREEMPT.
const COUNTS_PREEMPTION: Patch = Patch { file: "arch/um/Kconfig", from: "\tselect ARCH_NO_PREEMPT\n", to: "" };

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

/// Silences a report of lockdep at each boot: the new process's memory map is not shared with another thread yet.
const WALKS_LOCKED: Patch = Patch {
    file: "arch/um/kernel/tlb.c",
    from: "\tfor_each_vma(vmi, vma)\n\t\tfix_range(mm, vma->vm_start, vma->vm_end, 1);\n",
    to: "\trcu_read_lock();\n\tfor_each_vma(vmi, vma)\n\t\tfix_range(mm, vma->vm_start, vma->vm_end, 1);\n\trcu_read_unlock();\n",
};

/// Which of the kernels that are built here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Build {
    /// Nothing that slows it down.
    Plain,
    /// With KASAN, lockdep and kmemleak.
    Debug,
}

impl Build {
    /// How its folders begin.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Plain => "uml",
            Self::Debug => "uml-debug",
        }
    }

    const fn configurations(self) -> &'static [&'static str] {
        match self {
            Self::Plain => &["uml.config"],
            Self::Debug => &["uml.config", "uml-debug.config"],
        }
    }

    const fn patches(self) -> &'static [Patch] {
        match self {
            Self::Plain => &[BIG_CPU],
            Self::Debug => &[BIG_CPU, COUNTS_PREEMPTION, WALKS_LOCKED],
        }
    }

    /// All that its configurations say.
    fn config(self, root: &Path) -> Result<Vec<u8>, String> {
        let paths = self.configurations().iter().map(|name| root.join("tests/vm").join(name));
        Ok(paths.map(|path| files::read(&path)).collect::<Result<Vec<_>, _>>()?.concat())
    }
}

/// A kernel that was built.
pub(super) struct Uml {
    pub(super) build: Build,
    /// Its source and objects, for modules.
    pub(super) tree: PathBuf,
}

impl Uml {
    /// The kernel, built now if it is not there.
    pub(super) fn prepare(build: Build, root: &Path, packages: &Packages) -> Result<Self, Unready> {
        let kept = Kept::lock()?;
        let config = build.config(root)?;
        // Modules want the compiler of their kernel.
        let compiler = step::print(Command::new("gcc").arg("-dumpfullversion"))?;
        let patches = build.patches().iter().flat_map(|patch| [patch.file.as_bytes(), patch.to.as_bytes()]);
        let key = fingerprint(&[config.as_slice(), compiler.as_bytes()].into_iter().chain(patches).collect::<Vec<_>>());
        let prefix = format!("{}-linux-", build.name());
        let name = format!("{}-{}-{key:016x}", build.name(), packages.version(PACKAGE)?);
        let folder = kept.folder.join(&name);
        let (tree, built) = (folder.join("tree"), folder.join("built"));
        if built.exists() {
            // For the time of its last use.
            files::write(&built, "")?;
            return Ok(Self { build, tree });
        }
        println!("building user-mode Linux in {}: some minutes, once", folder.display());
        // A build that was cut short goes on where it was, but not unpacking.
        if !folder.join("unpacked").exists() {
            files::empty_folder(&folder)?;
            unpack(packages, &folder, &tree)?;
            build.patches().iter().try_for_each(|patch| apply(patch, &tree))?;
            files::write(&folder.join("unpacked"), "")?;
        }
        let wanted = folder.join("config");
        files::write(&wanted, &config)?;
        make(&tree, &[&format!("KCONFIG_ALLCONFIG={}", wanted.display()), "allnoconfig"])?;
        check_config(&config, &tree)?;
        let jobs = step::cpus();
        make(&tree, &[&format!("-j{jobs}"), "linux", "modules"])?;
        files::write(&built, "")?;
        kept.remove_old(&prefix, &name);
        Ok(Self { build, tree })
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
    files::rename(&folder.join(PACKAGE), tree)?;
    // 139 MB that are not read again.
    let _ = fs::remove_dir_all(package);
    Ok(())
}

fn apply(patch: &Patch, tree: &Path) -> Result<(), String> {
    let path = tree.join(patch.file);
    let text = files::read_text(&path)?;
    if !text.contains(patch.from) {
        return Err(format!(
            "{} has no '{}' any more: see whether it still needs the patch in uml.rs",
            patch.file,
            patch.from.trim()
        ));
    }
    files::write(&path, text.replace(patch.from, patch.to))
}

fn make(tree: &Path, arguments: &[&str]) -> Result<(), String> {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", BUILD_LIMIT, "make", "ARCH=um"]).args(arguments).current_dir(tree);
    // Those of our own make refer to another tree.
    command.env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
    step::succeed(&mut command).map(drop).map_err(|text| last_lines(&text))
}

/// Kconfig drops silently what it does not know or what lacks something.
fn check_config(wanted: &[u8], tree: &Path) -> Result<(), String> {
    let made = files::read_text(&tree.join(".config"))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_configuration_has_another_fingerprint() {
        assert_ne!(fingerprint(&[b"CONFIG_A=y"]), fingerprint(&[b"CONFIG_A=m"]));
        assert_eq!(fingerprint(&[]), 0xcbf2_9ce4_8422_2325);
    }
}
