//! A file system on a loop device with sectors as large as wanted, like a disk that takes no less than 4 KiB.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::server::{find_program, is_mounted};

const IMAGE_BYTES: u64 = 192 << 20;

/// ext4 on a loop device over a file in memory, mounted; all of it goes with its owner.
pub(super) struct LoopDisk {
    image: PathBuf,
    device: Option<String>,
    folder: PathBuf,
}

impl LoopDisk {
    /// Root only. An error says what is missing.
    pub(super) fn mount(memory_directory: &Path, sector_bytes: u32) -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("only root may set up loop devices; run as root".to_owned());
        }
        let name = format!("fipsee-bench-loop-{}-{sector_bytes}", std::process::id());
        let (image, folder) = (memory_directory.join(&name).with_extension("img"), std::env::temp_dir().join(&name));
        let failed = |path: &Path, error: std::io::Error| format!("cannot create {}: {error}", path.display());
        let file = File::create_new(&image).map_err(|error| failed(&image, error))?;
        let mut disk = Self { image, device: None, folder };
        file.set_len(IMAGE_BYTES).map_err(|error| failed(&disk.image, error))?;
        std::fs::create_dir(&disk.folder).map_err(|error| failed(&disk.folder, error))?;
        let (image, folder) = (disk.image.display().to_string(), disk.folder.display().to_string());
        let device = run("losetup", &["--find", "--show", "--sector-size", &sector_bytes.to_string(), &image])?;
        let device: &str = disk.device.insert(device.trim().to_owned());
        // Nothing is left to be initialised while others are measured.
        let at_once = "lazy_itable_init=0,lazy_journal_init=0";
        run("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "4096", "-E", at_once, device])?;
        run("mount", &["-t", "ext4", device, &folder])?;
        Ok(disk)
    }

    /// Where it is mounted.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        let folder = self.folder.display().to_string();
        let unmounted = if is_mounted(&self.folder) { run("umount", &[&folder]) } else { Ok(String::new()) };
        let detached = self.device.as_ref().map_or(Ok(String::new()), |device| run("losetup", &["--detach", device]));
        for error in [unmounted, detached].into_iter().filter_map(Result::err) {
            eprintln!("warning: {error}; it is left to you");
        }
        let _ = std::fs::remove_dir(&self.folder);
        let _ = std::fs::remove_file(&self.image);
    }
}

/// What a program prints; an error holds what it printed on failure.
fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(find_program(program)?).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("cannot run {program}: {error}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(format!("{program} {} failed: {text}", arguments.join(" ")));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
