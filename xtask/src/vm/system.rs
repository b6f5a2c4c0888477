//! A Debian with systemd, its own kernel and initramfs, in which our driver is installed as its guide says.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::apt::Apt;
use super::back_end::IMAGE;
use super::dkms::{self, Installed};
use super::driver::{Modules, SCRIPTS, SOURCES};
use super::environment::Boot;
use super::scenario::RootDisk;
use super::unready::Unready;
use crate::files::{make_folder, read_text, rename, write};
use crate::step;

/// In the name of the kept tree: another when what is made below changes.
const GENERATION: u32 = 1;
const CONTENT: &str = "--include=systemd-sysv,udev,kmod,initramfs-tools,linux-image-amd64";

/// Without what a guest that has no screen, sound or network never reads. The last pattern that fits counts.
const PATHS: [&str; 9] = [
    "path-exclude=/usr/share/doc/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/lib/modules/*/kernel/sound/*",
    "path-exclude=/lib/modules/*/kernel/net/*",
    "path-exclude=/lib/modules/*/kernel/drivers/*",
    "path-include=/lib/modules/*/kernel/drivers/virtio/*",
    "path-include=/lib/modules/*/kernel/drivers/block/virtio_blk.ko",
    "path-include=/lib/modules/*/kernel/drivers/nvme/*",
];

/// By which the kernel finds the root file system, whatever its disk is called.
pub(super) const ROOT_LABEL: &str = "system";
const IMAGE_BYTES: &str = "600M";

/// What runs a scenario's script in a system that has booted, as `init` does where there is none.
const CHECK_UNIT: &str = "\
[Unit]
Description=The script of a test
[Service]
Type=oneshot
ExecStart=/bin/sh /vm/after-boot
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
[Install]
WantedBy=multi-user.target
";

/// The tree of a Debian in which nothing of ours is.
pub(super) struct System {
    tree: PathBuf,
    release: String,
}

impl System {
    /// `release` is that of the kernel our driver is built for.
    pub(super) fn prepare(cache: &Path, release: &str) -> Result<Self, Unready> {
        let tree = cache.join(format!("system-{release}-{GENERATION}"));
        let system = Self { tree, release: release.to_owned() };
        if system.tree.exists() {
            return Ok(system);
        }
        println!("making a Debian system for guests: a minute, once");
        let unfinished = cache.join("system.unfinished");
        let _ = fs::remove_dir_all(&unfinished);
        let mut command = Command::new("mmdebstrap");
        command.args(["--mode=root", "--variant=minbase", "--format=directory", CONTENT]);
        command.args(PATHS.map(|path| format!("--dpkgopt={path}")));
        // The guest's emulated CPU is slow.
        command.arg("--setup-hook=mkdir -p \"$1/etc/initramfs-tools/conf.d\"");
        command.arg("--setup-hook=echo COMPRESS=gzip > \"$1/etc/initramfs-tools/conf.d/fast\"");
        let (codename, sources) = Apt::own_sources().map_err(Unready::Missing)?;
        step::succeed(command.arg(codename).arg(&unfinished).args(sources)).map_err(Unready::Missing)?;
        if !unfinished.join("boot").join(system.vmlinuz()).exists() {
            return Err(format!("the system that was made has no kernel {release}").into());
        }
        rename(&unfinished, &system.tree)?;
        Ok(system)
    }

    /// Install the driver in a copy of the tree, set up for where its root will be, and make a file system of the copy. All that
    /// boots it is in `folder`.
    pub(super) fn install(&self, root: &Path, folder: &Path, installed: &Installed, disk: RootDisk) -> Result<Boot, String> {
        let tree = folder.join("system");
        step::succeed(Command::new("cp").arg("-a").arg(&self.tree).arg(&tree))?;
        dkms::install_takeover(root, &tree)?;
        let modules = tree.join("lib/modules").join(&self.release).join("updates/dkms");
        make_folder(&modules)?;
        step::succeed(Command::new("cp").arg(&installed.module).arg(&modules))?;
        in_system(&tree, &["depmod", &self.release])?;
        for scripts in [SCRIPTS, "tests/vm/scripts"] {
            step::succeed(Command::new("cp").arg("-rT").arg(root.join(scripts)).arg(tree.join("vm")))?;
        }
        write(&tree.join("etc/systemd/system/fipsee-vm.service"), CHECK_UNIT)?;
        systemctl(&tree, &["enable", "fipsee-vm"])?;
        // When it begins it hangs up the console, and with it whatever the script says there.
        systemctl(&tree, &["mask", "serial-getty@ttyS0"])?;
        let image = match disk {
            RootDisk::Beside => set_up_unit(&tree).map(|()| folder.join("root.img")),
            RootDisk::Tested => set_up_initramfs(root, &tree).map(|()| folder.join(IMAGE)),
        }?;
        in_system(&tree, &["update-initramfs", "-u", "-k", &self.release])?;
        let mut command = Command::new("mke2fs");
        command.args(["-q", "-F", "-t", "ext4", "-L", ROOT_LABEL, "-d"]).arg(&tree).arg(&image).arg(IMAGE_BYTES);
        step::succeed(&mut command)?;
        let boot = tree.join("boot");
        let (kernel, initrd) = (boot.join(self.vmlinuz()), boot.join(format!("initrd.img-{}", self.release)));
        let modules = Modules { paths: Vec::new(), others: Vec::new(), programs: Vec::new(), arguments: "" };
        Ok(Boot { kernel, initrd, modules, root: (disk == RootDisk::Beside).then_some(image) })
    }

    fn vmlinuz(&self) -> String {
        format!("vmlinuz-{}", self.release)
    }
}

/// As the guide says: the disk is moved at boot, before local file systems are mounted. The kernel has no driver for it until
/// then.
fn set_up_unit(tree: &Path) -> Result<(), String> {
    write(&tree.join("etc/initramfs-tools/conf.d/fewer"), "MODULES=list\n")?;
    write(&tree.join("etc/initramfs-tools/modules"), "nvme\next4\n")?;
    systemctl(tree, &["enable", "fip-blk-takeover@vda"])?;
    make_folder(&tree.join("data"))?;
    write(&tree.join("etc/fstab"), "LABEL=files /data ext4 defaults,x-systemd.device-timeout=300 0 2\n")
}

/// As the guide says: the initramfs has the driver, and it comes before the kernel's own.
fn set_up_initramfs(root: &Path, tree: &Path) -> Result<(), String> {
    write(&tree.join("etc/initramfs-tools/modules"), "fip_blk\n")?;
    let example = root.join(SOURCES).join("packaging/fip_blk.conf");
    let text = read_text(&example)?;
    let line = text.replace("#softdep ", "softdep ");
    if line == text {
        return Err(format!("{} shows no softdep", example.display()));
    }
    write(&tree.join("etc/modprobe.d/fip_blk.conf"), &line)
}

fn in_system(tree: &Path, words: &[&str]) -> Result<(), String> {
    step::succeed(Command::new("chroot").arg(tree).args(words)).map(drop)
}

fn systemctl(tree: &Path, words: &[&str]) -> Result<(), String> {
    step::succeed(Command::new("systemctl").arg(format!("--root={}", tree.display())).args(words)).map(drop)
}
