//! Storage so slow that a write outlives its daemon: a device with sectors of 4096 bytes over a file with late writes. A late
//! write of a whole sector there would undo what was acknowledged for another part of it.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fipsee_testkit::Scratch;
use fipsee_testkit::process::Guard;
use fipsee_testkit::system::{Loop, Mounted, run};

use crate::slow_file::NAME;

/// The process of a mount that the oracle started, and what it mounted: unmounted, it ends by itself.
#[derive(Debug)]
pub struct Server {
    _mounted: Mounted,
    _child: Guard,
}

impl Server {
    /// Start `command`, which mounts something at `place` and then prints a line.
    pub fn start(command: &mut Command, place: &Path) -> Result<Self, String> {
        // A group of its own: a SIGINT from the terminal is for us, and we end it.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("{command:?} does not start: {error}"))?;
        let mut ready = String::new();
        if let Some(stdout) = child.stdout.take() {
            let _ = BufReader::new(stdout).read_line(&mut ready);
        }
        if ready.is_empty() {
            let mut text = String::new();
            let _ = child.stderr.take().map(|mut stderr| stderr.read_to_string(&mut text));
            let _ = child.wait();
            return Err(format!("{command:?} failed: {}", text.trim()));
        }
        Ok(Self { _mounted: Mounted::by_other(place.to_owned()), _child: Guard(child) })
    }
}

/// The device, or a file on ext4 on it. Fields are dropped in this order.
#[derive(Debug)]
pub struct Slow {
    path: PathBuf,
    file_size: Option<u64>,
    _mounted: Option<Mounted>,
    _device: Loop,
    _server: Server,
    scratch: Scratch,
}

impl Slow {
    /// Make it in `folder`, of so many bytes. `own`: this program. `on_ext4`: a file on the device.
    pub fn new(own: &Path, folder: &Path, size_bytes: u64, on_ext4: bool, seed: u64) -> Result<Self, String> {
        let scratch = Scratch::within(folder);
        let (image, place) = (scratch.path("image"), scratch.path("below"));
        let text = |error: std::io::Error| format!("{}: {error}", image.display());
        let device_bytes = if on_ext4 { 2 * size_bytes + (16 << 20) } else { size_bytes };
        std::fs::File::create(&image).and_then(|file| file.set_len(device_bytes)).map_err(text)?;
        std::fs::create_dir(&place).map_err(text)?;
        if on_ext4 {
            // Made before it is slow. Without a journal: its commits would wait for late writes.
            run(Command::new("mkfs.ext4").args(["-q", "-F", "-b", "4096", "-O", "^has_journal"]).arg(&image))?;
        }
        let mut command = Command::new(own);
        command.arg("slow-file").arg(&place).arg(&image).arg(seed.to_string());
        let server = Server::start(&mut command, &place)?;
        let device = Loop::new(&place.join(NAME), 4096, true)?;
        let (path, mounted) = if on_ext4 {
            let mounted = Mounted::new(&[], device.path(), scratch.path("mnt"))?;
            (scratch.path("mnt/disk"), Some(mounted))
        } else {
            (device.path().to_owned(), None)
        };
        let file_size = on_ext4.then_some(size_bytes);
        Ok(Self { path, file_size, _mounted: mounted, _device: device, _server: server, scratch })
    }

    /// The disk in the words of the daemon.
    pub fn spec(&self, options: &str) -> String {
        let size = self.file_size.map_or_else(String::new, |size| format!(",size={size}"));
        format!("file:{}{size},{options}", self.path.display())
    }

    /// Room for sockets and logs.
    pub fn folder(&self) -> &Path {
        &self.scratch.0
    }
}
