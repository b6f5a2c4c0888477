//! The file that the disk is mounted onto.

use std::fs::{File, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use super::filesystem::Owner;
use crate::error::Error;

/// Without `--allow-other` nobody else gets in whatever this says; with it, it is what FILE's owner had set before.
const NEW_FILE_MODE: u32 = 0o600;

/// A regular file that nothing is mounted on. Removed on drop if we made it.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    is_ours: bool,
    metadata: Metadata,
}

impl Place {
    /// Check `file`, or make it.
    pub(super) fn prepare(file: &Path) -> Result<Self, Error> {
        let at = |what: &str| Error::at(file.display(), what);
        let is_ours = match std::fs::metadata(file) {
            Ok(metadata) if metadata.is_dir() => {
                return Err(at("is a directory; name a regular file, or one that does not exist yet"));
            }
            Ok(metadata) if !metadata.is_file() => {
                return Err(at("is no regular file; name one, or one that does not exist yet"));
            }
            Ok(_) => false,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let mut options = File::options();
                let made = options.write(true).create_new(true).mode(NEW_FILE_MODE).open(file);
                made.map_err(|error| Error::io(format_args!("create {}", file.display()), &error))?;
                true
            }
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOTCONN) => {
                return Err(at("is left over from a mount whose process was killed; run `umount` on it and repeat the command"));
            }
            Err(error) => return Err(Error::io(format_args!("use {}", file.display()), &error)),
        };
        let find = || Ok((file.canonicalize()?, file.metadata()?));
        let (path, metadata) = find().map_err(|error| Error::io(format_args!("use {}", file.display()), &error))?;
        let place = Self { path, is_ours, metadata };
        if is_mounted(&place.path) {
            return Err(at("is a mount already; `umount` it first, or name another file"));
        }
        Ok(place)
    }

    /// Absolute, without symbolic links.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Of the file as it was before; of a read-only disk without the right to write.
    pub(super) fn owner(&self, read_only: bool) -> Owner {
        let mask = if read_only { 0o555 } else { 0o777 };
        let permissions = u16::try_from(self.metadata.mode() & mask).unwrap_or(0);
        Owner { uid: self.metadata.uid(), gid: self.metadata.gid(), permissions }
    }
}

fn is_mounted(path: &Path) -> bool {
    let facts = rustix::fs::statx(CWD, path, AtFlags::NO_AUTOMOUNT, StatxFlags::BASIC_STATS);
    facts.is_ok_and(|facts| facts.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

impl Drop for Place {
    fn drop(&mut self) {
        // As long as it is in use under its name, the kernel refuses; the empty file then stays.
        if self.is_ours && !is_mounted(&self.path) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
