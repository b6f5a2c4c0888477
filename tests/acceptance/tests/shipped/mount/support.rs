//! Mounts, loop devices and file systems that go away with the test, also when it fails.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};

use fipsee_acceptance::{DEADLINE, Daemon, Guard, eventually, exit_within, run, serve, shipped, skip, text_of};

/// May this process mount, with FUSE? With a message when not.
pub(crate) fn can_mount(what: &str) -> bool {
    let reason = if !rustix::process::geteuid().is_root() {
        "needs root, to mount"
    } else if !Path::new("/dev/fuse").exists() {
        "there is no /dev/fuse here; modprobe fuse"
    } else {
        return true;
    };
    skip(what, reason);
    false
}

/// A daemon with `disks`, where mounts are possible.
pub(crate) fn daemon(name: &str, disks: &[&str]) -> Option<Daemon> {
    if !can_mount(name) {
        return None;
    }
    serve(&format!("mount-{name}"), disks)
}

/// `fipsee mount` with `arguments`, not yet started.
pub(crate) fn mount_command(daemon: &Daemon, arguments: &[&str]) -> Command {
    let mut command = Command::new(shipped("mount", "bin/fipsee").expect("shipped together with the daemon"));
    command.arg("--connect").arg(daemon.socket()).arg("mount").args(arguments).stdin(Stdio::null());
    command
}

/// A mounted disk.
#[derive(Debug)]
pub(crate) struct Mount {
    pub(crate) child: Guard,
    pub(crate) file: PathBuf,
    /// What it said when it was ready.
    pub(crate) ready: String,
    stderr: ChildStderr,
}

impl Mount {
    /// Mount `disk` on a file of the daemon's directory, which is made for it.
    pub(crate) fn new(daemon: &Daemon, disk: &str, arguments: &[&str]) -> Self {
        let file = daemon.dir.path(&format!("{disk}.mounted"));
        let mut command = mount_command(daemon, arguments);
        command.arg(disk).arg(&file).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child: Child = command.spawn().expect("fipsee starts");
        let stdout = child.stdout.take().expect("a pipe");
        let mut stderr = child.stderr.take().expect("a pipe");
        let child = Guard(child);
        let mut ready = String::new();
        BufReader::new(stdout).read_line(&mut ready).expect("a line");
        if ready.is_empty() {
            let mut words = String::new();
            let _ = stderr.read_to_string(&mut words);
            panic!("not mounted: {words}");
        }
        Self { child, file, ready, stderr }
    }

    /// Open the mounted file for reading and writing.
    pub(crate) fn open(&self) -> File {
        File::options().read(true).write(true).open(&self.file).expect("the file opens")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.0.id()
    }

    /// Unmount and wait for the process.
    pub(crate) fn unmount(&mut self) {
        unmount(&self.file);
        let status = self.wait();
        assert!(status.success(), "{status}: {}", self.words());
    }

    /// Wait for the process.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        wait(&mut self.child.0)
    }

    /// What it said on standard error, after its end.
    pub(crate) fn words(&mut self) -> String {
        let mut words = String::new();
        self.stderr.read_to_string(&mut words).expect("text");
        words
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        detach(&self.file);
    }
}

/// Unmount. What other threads of this test start has our files open for a moment, so that it may be busy first.
pub(crate) fn unmount(path: &Path) {
    let mut words = String::new();
    eventually("unmounted", || {
        let output = Command::new("umount").arg(path).output().expect("umount starts");
        words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() || words.contains("busy"), "{words}");
        output.status.success()
    });
}

/// A mount process that is not waited for.
#[derive(Debug)]
pub(crate) struct Detached(pub(crate) PathBuf);

impl Drop for Detached {
    fn drop(&mut self) {
        detach(&self.0);
    }
}

/// Remove a mount whatever uses it, if there is one.
fn detach(path: &Path) {
    let _ = Command::new("umount").arg("-l").arg(path).stderr(Stdio::null()).status();
}

/// Wait for a child, with a timeout.
pub(crate) fn wait(child: &mut Child) -> ExitStatus {
    exit_within(child, DEADLINE).expect("the process ends")
}

/// A loop device over a file.
#[derive(Debug)]
pub(crate) struct Loop(pub(crate) String);

impl Loop {
    pub(crate) fn new(file: &Path, direct: bool) -> Self {
        let direct = if direct { "--direct-io=on" } else { "--direct-io=off" };
        Self(run(Command::new("losetup").args(["--find", "--show", direct]).arg(file)).trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

/// A file system of a loop device.
#[derive(Debug)]
pub(crate) struct Mounted {
    pub(crate) place: PathBuf,
    _device: Loop,
}

impl Mounted {
    pub(crate) fn new(device: Loop, place: PathBuf) -> Self {
        std::fs::create_dir_all(&place).expect("a directory");
        run(Command::new("mount").arg(&device.0).arg(&place));
        Self { place, _device: device }
    }

    pub(crate) fn unmount(self) {
        unmount(&self.place);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.place.exists() {
            detach(&self.place);
        }
    }
}

/// Run `fipsee` with `arguments`.
pub(crate) fn fipsee(daemon: &Daemon, arguments: &[&str]) -> String {
    let program = shipped("mount", "bin/fipsee").expect("shipped together with the daemon");
    run(Command::new(program).arg("--connect").arg(daemon.socket()).args(arguments))
}

/// The same, which may fail.
pub(crate) fn fipsee_output(daemon: &Daemon, arguments: &[&str]) -> Option<String> {
    let program = shipped("mount", "bin/fipsee").expect("shipped together with the daemon");
    let output = Command::new(program).arg("--connect").arg(daemon.socket()).args(arguments).output();
    let output = output.expect("fipsee starts");
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A command that must fail; what it said.
pub(crate) fn fails(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().expect("the command starts");
    assert!(!output.status.success(), "{command:?} should have failed: {}", text_of(&output));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Bytes that contain their own place.
pub(crate) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    std::iter::repeat_with(next).take(length).collect()
}

/// `length` bytes of a file.
pub(crate) fn bytes_at(file: &File, offset_bytes: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, offset_bytes).expect("bytes to read");
    bytes
}
