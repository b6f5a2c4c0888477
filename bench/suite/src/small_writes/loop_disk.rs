//! A file system on a loop device with sectors as large as wanted, like a disk that takes no less than 4 KiB.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use fipsee_testkit::system::{Loop, Mounted, run};
use fipsee_testkit::{Scratch, is_root};

const IMAGE_BYTES: u64 = 192 << 20;

/// ext4 on a loop device over a file in memory, mounted; all of it goes with its owner, in this order.
pub(super) struct LoopDisk {
    folder: PathBuf,
    _mounted: Mounted,
    _device: Loop,
    _scratch: Scratch,
}

impl LoopDisk {
    /// Root only. An error says what is missing.
    pub(super) fn mount(memory_directory: &Path, sector_bytes: u32) -> Result<Self, String> {
        if !is_root() {
            return Err("only root may set up loop devices; run as root".to_owned());
        }
        let scratch = Scratch::within(memory_directory);
        let (image, folder) = (scratch.path("image"), scratch.path("mounted"));
        let made = File::create_new(&image).and_then(|file| file.set_len(IMAGE_BYTES));
        made.map_err(|error| format!("cannot create {}: {error}", image.display()))?;
        let device = Loop::new(&image, sector_bytes, false)?;
        // Nothing is left to be initialised while others are measured.
        let at_once = "lazy_itable_init=0,lazy_journal_init=0";
        run(Command::new("mke2fs").args(["-q", "-F", "-t", "ext4", "-b", "4096", "-E", at_once]).arg(device.path()))?;
        let mounted = Mounted::new(&["-t", "ext4"], device.path(), folder.clone())?;
        Ok(Self { folder, _mounted: mounted, _device: device, _scratch: scratch })
    }

    /// Where it is mounted.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }
}
