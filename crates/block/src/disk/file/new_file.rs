//! A file that opening a disk has made, and that is gone again if the disk is not to be served after all.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

/// Dropped, the file is removed, unless it was kept.
#[derive(Debug)]
pub(super) struct NewFile {
    path: PathBuf,
    /// Device and inode: what is at the path later may be another file.
    place: (u64, u64),
    is_kept: bool,
}

impl NewFile {
    /// Make a file of no length, where there is none, and open it.
    ///
    /// In two steps: whether a file may be made, and whether it may be written, are different questions to landlock and others, and one
    /// that is made and then may not be written stays behind. Opened for reading, it is known to be ours.
    pub(super) fn create(path: &Path) -> io::Result<(File, Self)> {
        let how = OFlags::CREATE | OFlags::EXCL | OFlags::RDONLY | OFlags::CLOEXEC;
        let made = File::from(rustix::fs::open(path, how, Mode::RUSR | Mode::WUSR)?);
        let new = Self { path: path.to_owned(), place: place_of(&made.metadata()?), is_kept: false };
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        match new.is_at(&file.metadata()?) {
            true => Ok((file, new)),
            false => Err(io::Error::other("it was replaced in the moment in which it was made")),
        }
    }

    pub(super) fn keep(&mut self) {
        self.is_kept = true;
    }

    fn is_at(&self, metadata: &Metadata) -> bool {
        self.place == place_of(metadata)
    }

    /// Remove the file, if it still is there.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn remove(&self) -> io::Result<()> {
        match self.path.symlink_metadata() {
            Ok(found) if self.is_at(&found) => std::fs::remove_file(&self.path),
            _ => Ok(()),
        }
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = self.remove();
        }
    }
}

fn place_of(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}
