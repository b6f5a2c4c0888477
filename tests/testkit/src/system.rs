//! Programs of the system, and what they set up: loop devices and mounts, which go away at the end of their values, also after a
//! failure or a panic.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long something may be busy that was just released.
const BUSY_FOR: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(10);

/// Where a program is on PATH, or where only root's PATH leads.
pub fn find_program(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.find_map(|folder| Some(folder.join(program)).filter(|path| path.is_file()))
}

/// Run a command to its successful end; its output.
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

#[derive(Debug)]
pub struct Loop(PathBuf);

impl Loop {
    /// Attach. `direct`: past the page cache of the file, where the kernel can.
    pub fn new(file: &Path, sector_bytes: u32, direct: bool) -> Result<Self, String> {
        let mut command = Command::new("losetup");
        command.args(["--find", "--show", "--sector-size"]).arg(sector_bytes.to_string());
        command.arg(if direct { "--direct-io=on" } else { "--direct-io=off" }).arg(file);
        Ok(Self(run(&mut command)?.into()))
    }

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

#[derive(Debug)]
pub struct Mounted(PathBuf);

impl Mounted {
    pub fn new(arguments: &[&str], device: &Path, place: PathBuf) -> Result<Self, String> {
        std::fs::create_dir_all(&place).map_err(|error| format!("{}: {error}", place.display()))?;
        run(Command::new("mount").args(arguments).arg(device).arg(&place))?;
        Ok(Self(place))
    }

    /// Something that another program mounts there.
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
