//! Storage below a disk: files on file systems made for the run, and loop devices. All of it goes away at the end of its value,
//! also after a failure or a panic.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise, statvfs};

/// Bytes of the image below a file system: XFS wants 300 MiB.
const IMAGE_BYTES: u64 = 640 << 20;
/// So much must be free for images in memory to be the default.
const WANTED_BYTES: u64 = 1 << 30;
/// How long something may be busy that was just released.
const BUSY_FOR: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(10);

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
    /// All of them.
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

    /// Is the disk a block device?
    #[must_use]
    pub const fn is_device(self) -> bool {
        matches!(self, Self::Loop512 | Self::Loop4096)
    }

    const fn sector_bytes(self) -> u32 {
        if matches!(self, Self::Loop4096 | Self::Ext4On4096) { 4096 } else { 512 }
    }

    /// Why this machine does not have it.
    #[must_use]
    pub fn missing(self) -> Option<String> {
        if self == Self::Folder {
            return None;
        }
        if !rustix::process::geteuid().is_root() {
            return Some("needs root, to mount".to_owned());
        }
        let programs = ["losetup", "mount", "umount"].into_iter().chain(self.make().map(|words| words[0]));
        let absent = programs.filter(|program| !is_installed(program)).map(|program| format!("{program} is not installed"));
        let control = (!Path::new("/dev/loop-control").exists()).then(|| "there are no loop devices here".to_owned());
        absent.chain(control).next()
    }
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.any(|folder| folder.join(program).is_file())
}

/// The default folder of images: memory, if there is room.
#[must_use]
pub fn default_folder() -> PathBuf {
    let memory = Path::new("/dev/shm");
    let room = statvfs(memory).map_or(0, |status| status.f_bavail * status.f_frsize);
    if room > WANTED_BYTES { memory.to_owned() } else { std::env::temp_dir() }
}

/// Run a command to its successful end; its output.
///
/// # Errors
/// What it printed.
pub fn run(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("cannot run {command:?}: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(format!("{command:?} failed with {}: {}", output.status, text(&output.stderr)))
    }
}

/// Again and again while it is busy.
fn persist(mut action: impl FnMut() -> Result<String, String>) -> Result<String, String> {
    let deadline = Instant::now() + BUSY_FOR;
    loop {
        match action() {
            // tidy: allow sleep, nothing notifies when the kernel has let go
            Err(error) if error.contains("busy") && Instant::now() < deadline => std::thread::sleep(PAUSE),
            outcome => return outcome,
        }
    }
}

/// A loop device over a file.
#[derive(Debug)]
pub struct Loop(PathBuf);

impl Loop {
    /// Attach. `direct`: past the page cache of the file, where the kernel can.
    ///
    /// # Errors
    /// As losetup says it.
    pub fn new(file: &Path, sector_bytes: u32, direct: bool) -> Result<Self, String> {
        let mut command = Command::new("losetup");
        command.args(["--find", "--show", "--sector-size"]).arg(sector_bytes.to_string());
        command.arg(if direct { "--direct-io=on" } else { "--direct-io=off" }).arg(file);
        Ok(Self(run(&mut command)?.into()))
    }

    /// The device.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if let Err(error) = persist(|| run(Command::new("losetup").arg("-d").arg(&self.0))) {
            eprintln!("error: {error}");
        }
    }
}

/// A mounted file system.
#[derive(Debug)]
pub struct Mounted(PathBuf);

impl Mounted {
    /// Mount.
    ///
    /// # Errors
    /// As mount says it.
    pub fn new(arguments: &[&str], device: &Path, place: PathBuf) -> Result<Self, String> {
        std::fs::create_dir_all(&place).map_err(|error| format!("{}: {error}", place.display()))?;
        run(Command::new("mount").args(arguments).arg(device).arg(&place))?;
        Ok(Self(place))
    }

    /// Something that another program mounts there.
    #[must_use]
    pub const fn by_other(place: PathBuf) -> Self {
        Self(place)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = persist(|| run(Command::new("umount").arg(&self.0)))
            && !error.contains("not mounted")
        {
            eprintln!("error: {error}");
            let _ = run(Command::new("umount").arg("-l").arg(&self.0));
        }
    }
}

/// A folder that is removed with its content.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// A new one in `parent`.
    ///
    /// # Errors
    /// As the system says it.
    pub fn new(parent: &Path, name: &str) -> Result<Self, String> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("fipsee-oracle-{}-{number}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self(path))
    }

    /// A path in it.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
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
    ///
    /// # Errors
    /// As the tools and the system say it.
    pub fn new(kind: Kind, folder: &Path, size_bytes: u64, direct_loop: bool) -> Result<Self, String> {
        let scratch = Scratch::new(folder, &format!("{kind:?}").to_lowercase())?;
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

    /// What it is.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Room for sockets and logs.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.scratch.folder()
    }

    /// The file or device.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The disk in the words of the daemon, with more options: `block=512,direct=on`.
    #[must_use]
    pub fn spec(&self, options: &str) -> String {
        let size = if self.kind.is_device() { String::new() } else { format!(",size={}", self.size_bytes) };
        let comma = if options.is_empty() { "" } else { "," };
        format!("file:{}{size}{comma}{options}", self.path.display())
    }

    /// Drop what the page cache has of the file and is clean.
    ///
    /// # Errors
    /// As the system says it.
    pub fn drop_cache(&self) -> Result<(), String> {
        let file = File::open(&self.path).map_err(|error| format!("{}: {error}", self.path.display()))?;
        fadvise(&file, 0, None, Advice::DontNeed).map_err(|error| format!("{}: {error}", self.path.display()))
    }

    /// Read a part of the file as a backup does, through the page cache. Nothing is known of what it finds.
    ///
    /// # Errors
    /// As the system says it.
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
