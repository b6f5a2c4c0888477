//! Storage so slow that a write outlives its daemon: a memory disk behind delays, mounted as a file, and over that file a device with sectors of 4096
//! bytes. A late write of a whole sector there would undo what was acknowledged for another part of it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::daemon::{Daemon, Program};
use crate::front::mount::Mount;
use crate::storage::{Loop, Mounted, Scratch, run};

/// The delays of each request below.
const DELAY: &str = "delay:10ms+800ms";

/// The device, or a file on ext4 on it. Fields are let go of in this order.
pub struct Slow {
    path: PathBuf,
    file_size: Option<u64>,
    _mounted: Option<Mounted>,
    _device: Loop,
    _mount: Mount,
    _below: Daemon,
    scratch: Scratch,
}

impl Slow {
    /// Make it in `folder`, of so many bytes. `on_ext4`: a file on the device.
    ///
    /// # Errors
    /// As the tools and the daemon below say it.
    pub fn new(program: &Program, fipsee: &Path, folder: &Path, size_bytes: u64, on_ext4: bool) -> Result<Self, String> {
        let scratch = Scratch::new(folder, "slow")?;
        let device_bytes = if on_ext4 { 2 * size_bytes + (16 << 20) } else { size_bytes };
        let below = scratch.path("below");
        std::fs::create_dir(&below).map_err(|error| format!("{}: {error}", below.display()))?;
        // A file system is made without the delays.
        let image = scratch.path("image");
        let file = std::fs::File::create(&image).and_then(|file| file.set_len(device_bytes));
        file.map_err(|error| format!("{}: {error}", image.display()))?;
        if on_ext4 {
            run(Command::new("mkfs.ext4").args(["-q", "-F", "-b", "4096", "-O", "^has_journal"]).arg(&image))?;
        }
        let spec = format!("{DELAY}:file:{},direct=off", image.display());
        let below = Daemon::start(program, &below, &spec)?;
        let file = scratch.path("mounted");
        let mount = Mount::new(fipsee, &below.socket(), &file)?;
        let device = Loop::new(&file, 4096, true)?;
        let (path, mounted) = if on_ext4 {
            let mounted = Mounted::new(&[], device.path(), scratch.path("mnt"))?;
            (scratch.path("mnt/disk"), Some(mounted))
        } else {
            (device.path().to_owned(), None)
        };
        let file_size = on_ext4.then_some(size_bytes);
        Ok(Self { path, file_size, _mounted: mounted, _device: device, _mount: mount, _below: below, scratch })
    }

    /// The disk in the words of the daemon.
    #[must_use]
    pub fn spec(&self, options: &str) -> String {
        let size = self.file_size.map_or_else(String::new, |size| format!(",size={size}"));
        format!("file:{}{size},{options}", self.path.display())
    }

    /// Room for sockets and logs.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.scratch.folder()
    }
}
