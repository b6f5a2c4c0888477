//! Files of disks.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, AtFlags, FlockOperation, StatxFlags, fadvise, flock, statx};

/// Removed on drop.
pub(crate) struct TemporaryFile(pub(crate) PathBuf);

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A file full of data.
pub(crate) struct FilledFile {
    path: TemporaryFile,
    file: File,
}

impl FilledFile {
    /// Write `mebibytes` of data to a new file at `path`, so that later writes allocate nothing. One that a killed benchmark has left
    /// is replaced; one that is served is not.
    pub(crate) fn create(path: PathBuf, mebibytes: usize) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("cannot write a new file of {mebibytes} MiB at {}: {error}", path.display());
        if let Ok(left) = File::open(&path) {
            flock(&left, FlockOperation::NonBlockingLockExclusive)
                .map_err(|_| format!("{} is in use: another benchmark runs; wait for its end", path.display()))?;
            std::fs::remove_file(&path).map_err(failed)?;
        }
        let file = File::create_new(&path).map_err(failed)?;
        let mut filled = Self { path: TemporaryFile(path.clone()), file };
        let noise = noise();
        (0..mebibytes).try_for_each(|_| filled.file.write_all(&noise)).map_err(failed)?;
        filled.settle()?;
        Ok(filled)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path.0
    }

    /// The bytes of which offset and length of direct I/O must be a multiple, if the kernel says so.
    pub(crate) fn direct_bytes(&self) -> Option<u32> {
        let stat = statx(&self.file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
        let is_known = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::DIOALIGN);
        is_known.then_some(stat.stx_dio_offset_align)
    }

    /// Leave nothing in the page cache for the next measurement, neither pages to write back nor pages to invalidate.
    pub(crate) fn settle(&self) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("cannot write {} back: {error}", self.path().display());
        self.file.sync_all().map_err(failed)?;
        fadvise(&self.file, 0, None, Advice::DontNeed).map_err(|error| failed(error.into()))
    }
}

/// A mebibyte that is not all the same.
pub(crate) fn noise() -> Vec<u8> {
    (0..1 << 20).map(|index: u32| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_full_of_data_and_goes_with_its_owner() {
        let path = std::env::temp_dir().join(format!("fipsee-bench-filled-{}", std::process::id()));
        let filled = FilledFile::create(path.clone(), 3).expect("a file");
        assert_eq!(std::fs::read(filled.path()).expect("its data"), noise().repeat(3));
        drop(filled);
        assert!(!path.exists());
    }

    #[test]
    fn file_that_was_left_is_replaced_unless_it_is_served() {
        let path = std::env::temp_dir().join(format!("fipsee-bench-left-{}", std::process::id()));
        std::fs::write(&path, "old").expect("a file");
        let served = File::open(&path).expect("the file");
        flock(&served, FlockOperation::LockShared).expect("a lock, as of a disk that is only read");
        let refused = FilledFile::create(path.clone(), 1).err().expect("an error");
        assert!(refused.contains("in use"), "{refused}");
        drop(served);
        let filled = FilledFile::create(path, 1).expect("a file");
        assert_eq!(std::fs::read(filled.path()).expect("its data"), noise());
    }
}
