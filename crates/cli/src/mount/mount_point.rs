//! The file that the disk is mounted onto.

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FlockOperation, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use super::filesystem::Owner;
use crate::error::Error;

/// Without `--allow-other` no other user has access whatever the mode; with it, the mode is that of FILE before.
const NEW_FILE_MODE: u32 = 0o600;

/// A regular file that nothing is mounted on. Removed on drop if this process made it and it is still empty.
#[derive(Debug)]
pub(super) struct MountPoint {
    path: PathBuf,
    is_ours: bool,
    metadata: Metadata,
    /// Locked while in use: `umount` returns before the file is removed, and the next mount, which may
    /// follow at once, must not take a file that is about to be removed.
    file: File,
}

impl MountPoint {
    /// Check `file`, or make it.
    pub(super) fn prepare(file: &Path) -> Result<Self, Error> {
        loop {
            let Some((opened, is_ours)) = open_or_make(file)? else { continue };
            let cannot_use = |error: io::Error| Error::io(format_args!("use {}", file.display()), &error);
            let path = match file.canonicalize() {
                Ok(path) => path,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(cannot_use(error)),
            };
            // Without a mount, the process that holds the lock is about to mount or to unlock: both are soon done.
            check_not_mounted(file, &path)?;
            rustix::fs::flock(&opened, FlockOperation::LockExclusive).map_err(|errno| cannot_use(errno.into()))?;
            check_not_mounted(file, &path)?;
            let metadata = opened.metadata().map_err(cannot_use)?;
            if is_at(&path, &metadata) {
                return Ok(Self { path, is_ours, metadata, file: opened });
            }
        }
    }

    /// Absolute, without symbolic links.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Does the file show another file system's content?
    pub(super) fn is_mounted(&self) -> bool {
        is_mounted(&self.path)
    }

    /// The file's mode before the mount; without write permission if the disk is read-only.
    pub(super) fn owner(&self, read_only: bool) -> Owner {
        let mask = if read_only { 0o555 } else { 0o777 };
        let permissions = u16::try_from(self.metadata.mode() & mask).unwrap_or(0);
        Owner { uid: self.metadata.uid(), gid: self.metadata.gid(), permissions }
    }
}

/// The regular file, and whether this call made it; none if its previous user removed or made it meanwhile.
fn open_or_make(file: &Path) -> Result<Option<(File, bool)>, Error> {
    let at = |what: &str| Error::at(file.display(), what);
    match std::fs::metadata(file) {
        Ok(metadata) if metadata.is_dir() => Err(at("is a directory; name a regular file, or one that does not exist yet")),
        Ok(metadata) if !metadata.is_file() => Err(at("is no regular file; name one, or one that does not exist yet")),
        Ok(_) => match File::open(file) {
            Ok(opened) => Ok(Some((opened, false))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io(format_args!("open {}", file.display()), &error)),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let mut options = File::options();
            match options.read(true).write(true).create_new(true).mode(NEW_FILE_MODE).open(file) {
                Ok(made) => Ok(Some((made, true))),
                // A dangling symbolic link exists, too, and stays.
                Err(error) if error.kind() == ErrorKind::AlreadyExists && !file.is_symlink() => Ok(None),
                Err(error) => Err(Error::io_at("create", file, &error)),
            }
        }
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NOTCONN) => {
            Err(at("is left over from a mount whose process was killed; run `umount` on it and repeat the command"))
        }
        Err(error) => Err(Error::io(format_args!("use {}", file.display()), &error)),
    }
}

fn check_not_mounted(file: &Path, path: &Path) -> Result<(), Error> {
    if is_mounted(path) {
        return Err(Error::at(file.display(), "is a mount already; `umount` it first, or name another file"));
    }
    Ok(())
}

fn is_mounted(path: &Path) -> bool {
    let status = rustix::fs::statx(CWD, path, AtFlags::NO_AUTOMOUNT, StatxFlags::BASIC_STATS);
    status.is_ok_and(|status| status.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Is this the file at `path`?
fn is_at(path: &Path, metadata: &Metadata) -> bool {
    path.metadata().is_ok_and(|found| (found.dev(), found.ino()) == (metadata.dev(), metadata.ino()))
}

impl Drop for MountPoint {
    fn drop(&mut self) {
        let is_empty = self.file.metadata().is_ok_and(|metadata| metadata.len() == 0);
        // Under another mount, another file is at the path.
        if self.is_ours && is_empty && is_at(&self.path, &self.metadata) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
