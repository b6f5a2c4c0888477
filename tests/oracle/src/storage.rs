//! Storage below a disk: files on file systems made for the run, and loop devices. All of it goes away at the end of its value,
//! also after a failure or a panic.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use fipsee_testkit::Scratch;
use fipsee_testkit::system::{Loop, Mounted, find_program, run};
use rustix::fs::{Advice, fadvise, statvfs};

/// Bytes of the image below a file system: XFS wants 300 MiB.
const IMAGE_BYTES: u64 = 640 << 20;
/// So much must be free for images in memory to be the default.
const WANTED_BYTES: u64 = 1 << 30;

/// The place of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// A file in the folder itself, whatever file system that is.
    Folder,
    /// A file on ext4.
    Ext4,
    /// A file on XFS.
    Xfs,
    /// A file on btrfs.
    Btrfs,
    /// A file on tmpfs.
    Tmpfs,
    /// A loop device with sectors of 512 bytes.
    Loop512,
    /// A loop device with sectors of 4096 bytes.
    Loop4096,
    /// A file on ext4 on a device with sectors of 4096 bytes.
    #[value(name = "ext4-on-4096")]
    Ext4On4096,
}

impl Kind {
    pub const ALL: [Self; 8] =
        [Self::Folder, Self::Ext4, Self::Xfs, Self::Btrfs, Self::Tmpfs, Self::Loop512, Self::Loop4096, Self::Ext4On4096];

    const fn make(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Ext4 | Self::Ext4On4096 => Some(&["mkfs.ext4", "-q", "-F", "-E", "nodiscard"]),
            Self::Xfs => Some(&["mkfs.xfs", "-q", "-f", "-K"]),
            Self::Btrfs => Some(&["mkfs.btrfs", "-q", "-f", "-K"]),
            Self::Folder | Self::Tmpfs | Self::Loop512 | Self::Loop4096 => None,
        }
    }

    pub const fn is_device(self) -> bool {
        matches!(self, Self::Loop512 | Self::Loop4096)
    }

    const fn sector_bytes(self) -> u32 {
        if matches!(self, Self::Loop4096 | Self::Ext4On4096) { 4096 } else { 512 }
    }

    /// Why this machine does not have it.
    pub fn missing(self) -> Option<String> {
        if self == Self::Folder {
            return None;
        }
        if !rustix::process::geteuid().is_root() {
            return Some("needs root, to mount".to_owned());
        }
        let programs = ["losetup", "mount", "umount"].into_iter().chain(self.make().map(|words| words[0]));
        let absent =
            programs.filter(|program| find_program(program).is_none()).map(|program| format!("{program} is not installed"));
        let control = (!Path::new("/dev/loop-control").exists()).then(|| "there are no loop devices here".to_owned());
        absent.chain(control).next()
    }
}

/// The default folder of images: memory, if there is room.
pub fn default_folder() -> PathBuf {
    let memory = Path::new("/dev/shm");
    let room = statvfs(memory).map_or(0, |status| status.f_bavail * status.f_frsize);
    if room > WANTED_BYTES { memory.to_owned() } else { std::env::temp_dir() }
}

/// The storage of one disk. Fields are dropped in this order.
#[derive(Debug)]
pub struct Storage {
    kind: Kind,
    path: PathBuf,
    size_bytes: u64,
    _mounted: Option<Mounted>,
    _device: Option<Loop>,
    scratch: Scratch,
}

impl Storage {
    /// Make it in `folder`. `direct_loop`: loop devices go past the page cache of their file.
    pub fn new(kind: Kind, folder: &Path, size_bytes: u64, direct_loop: bool) -> Result<Self, String> {
        let scratch = Scratch::within(folder);
        let image = scratch.path("image");
        let (path, mounted, device) = match kind {
            Kind::Folder => (scratch.path("disk"), None, None),
            Kind::Tmpfs => {
                let mounted = Mounted::new(&["-t", "tmpfs"], Path::new("oracle"), scratch.path("mnt"))?;
                (scratch.path("mnt/disk"), Some(mounted), None)
            }
            Kind::Loop512 | Kind::Loop4096 => {
                sparse(&image, size_bytes)?;
                let device = Loop::new(&image, kind.sector_bytes(), direct_loop)?;
                (device.path().to_owned(), None, Some(device))
            }
            Kind::Ext4 | Kind::Xfs | Kind::Btrfs | Kind::Ext4On4096 => {
                sparse(&image, IMAGE_BYTES.max(3 * size_bytes))?;
                let device = Loop::new(&image, kind.sector_bytes(), direct_loop)?;
                let words = kind.make().unwrap_or_default();
                run(Command::new(words[0]).args(&words[1..]).arg(device.path()))?;
                let mounted = Mounted::new(&[], device.path(), scratch.path("mnt"))?;
                (scratch.path("mnt/disk"), Some(mounted), Some(device))
            }
        };
        Ok(Self { kind, path, size_bytes, _mounted: mounted, _device: device, scratch })
    }

    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Room for sockets and logs.
    pub fn folder(&self) -> &Path {
        &self.scratch.0
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The disk in the words of the daemon, with more options: `block=512,direct=on`.
    pub fn spec(&self, options: &str) -> String {
        let size = if self.kind.is_device() { String::new() } else { format!(",size={}", self.size_bytes) };
        let comma = if options.is_empty() { "" } else { "," };
        format!("file:{}{size}{comma}{options}", self.path.display())
    }

    /// Drop what the page cache has of the file and is clean.
    pub fn drop_cache(&self) -> Result<(), String> {
        let file = File::open(&self.path).map_err(|error| format!("{}: {error}", self.path.display()))?;
        fadvise(&file, 0, None, Advice::DontNeed).map_err(|error| format!("{}: {error}", self.path.display()))
    }

    /// Read a part of the file as a backup does, through the page cache. Nothing is known of what it finds.
    pub fn read_outside(&self, offset_bytes: u64, length_bytes: usize) -> Result<(), String> {
        let text = |error: std::io::Error| format!("{}: {error}", self.path.display());
        let file = File::open(&self.path).map_err(text)?;
        file.read_at(&mut vec![0; length_bytes], offset_bytes).map(drop).map_err(text)
    }
}

fn sparse(path: &Path, length_bytes: u64) -> Result<(), String> {
    let file = File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
    file.set_len(length_bytes).map_err(|error| format!("{}: {error}", path.display()))
}
