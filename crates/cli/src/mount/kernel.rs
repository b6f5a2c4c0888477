//! Mounting and unmounting. fuser can do that, too, but only for the lifetime of its session, at whose end it unmounts whatever
//! is at the path by then.

use std::ffi::CString;
use std::io::{self, ErrorKind, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, FdFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use crate::error::Error;

const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";
/// The variable that names the socket on which the helper sends the device.
const HELPER_SOCKET_VARIABLE: &str = "_FUSE_COMMFD";

/// Options of a mount.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options<'a> {
    pub(super) disk: &'a str,
    pub(super) read_only: bool,
    pub(super) allow_other: bool,
}

/// Mount a file system of one file onto the regular file `path`; gives its end of the connection to the kernel.
pub(super) fn mount(path: &Path, options: Options<'_>) -> Result<OwnedFd, Error> {
    let is_root = rustix::process::geteuid().is_root();
    let mounted = if is_root { mount_directly(path, options) } else { mount_through_helper(path, options) };
    mounted.map_err(|error| {
        let what = match error.kind() {
            ErrorKind::PermissionDenied if is_root => "this root may not mount (a container?); it needs CAP_SYS_ADMIN".to_owned(),
            ErrorKind::NotFound if is_root => format!("there is no {DEVICE}; load the kernel's module: modprobe fuse"),
            ErrorKind::NotFound => format!("{HELPER}, which mounts for users, is not installed; install the package fuse3"),
            _ => error.to_string(),
        };
        Error::at(format_args!("cannot mount on {}", path.display()), what)
    })
}

/// Commas separate options.
fn source_name(disk: &str) -> String {
    format!("fipsee:{}", disk.replace([',', '\\'], "_"))
}

fn mount_directly(path: &Path, options: Options<'_>) -> io::Result<OwnedFd> {
    let device = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let other = if options.allow_other { ",allow_other" } else { "" };
    // The root of this file system is a regular file: mode 100000.
    let data = format!("fd={},rootmode=100000,user_id={user},group_id={group},default_permissions{other}", device.as_raw_fd());
    let data = CString::new(data).map_err(io::Error::other)?;
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
    flags.set(MountFlags::RDONLY, options.read_only);
    rustix::mount::mount(source_name(options.disk), path, "fuse.fipsee", flags, data.as_c_str())?;
    Ok(device)
}

fn mount_through_helper(path: &Path, options: Options<'_>) -> io::Result<OwnedFd> {
    let (ours, helpers) = UnixStream::pair()?;
    // The descriptor stays open in the helper.
    rustix::io::fcntl_setfd(&helpers, FdFlags::empty())?;
    let access = if options.read_only { "ro" } else { "rw" };
    let other = if options.allow_other { ",allow_other" } else { "" };
    let words =
        format!("{access},nosuid,nodev,noatime,default_permissions,subtype=fipsee,fsname={}{other}", source_name(options.disk));
    let mut command = Command::new(HELPER);
    command.arg("-o").arg(words).arg("--").arg(path).env(HELPER_SOCKET_VARIABLE, helpers.as_raw_fd().to_string());
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    drop(helpers);
    let received = receive_descriptor(&ours);
    let output = child.wait_with_output()?;
    match received? {
        Some(device) => Ok(device),
        None => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

fn receive_descriptor(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let descriptors = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(descriptors)
}

/// The user's command to unmount.
pub(super) fn unmount_command() -> &'static str {
    if rustix::process::geteuid().is_root() { "umount" } else { "fusermount3 -u" }
}

/// Unmount; `lazily`: remove the name now, and the rest when no process uses it.
pub(super) fn unmount(path: &Path, lazily: bool) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        let flags = if lazily { UnmountFlags::DETACH } else { UnmountFlags::NOFOLLOW };
        return Ok(rustix::mount::unmount(path, flags)?);
    }
    let mut command = Command::new(HELPER);
    command.arg("-u").args(lazily.then_some("-z")).arg("--").arg(path).stdin(Stdio::null());
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    // The helper reports text only.
    let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(if words.contains("busy") { Errno::BUSY.into() } else { io::Error::other(words) })
}
