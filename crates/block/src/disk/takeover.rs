//! Takeover of a disk by another process: what is handed over, and what must match.

use std::os::fd::{BorrowedFd, OwnedFd};

use super::spec::{DiskSpec, KindSpec};
use super::{AnyDisk, Disk, FileDisk, FileOptions, MemoryDisk, MemoryOptions, NullDisk, NullOptions};
use crate::wire::{BlockInfo, SECTOR_BYTES};

impl AnyDisk {
    /// The file that holds the contents, for the process that takes the disk over; a null disk has none.
    pub fn hand_over(&self) -> Result<Option<BorrowedFd<'_>>, String> {
        match self {
            Self::Null(_) => Ok(None),
            Self::File(disk) => Ok(Some(disk.file())),
            Self::Memory(disk) => disk.file().map(Some).ok_or_else(|| {
                "its memory cannot be handed over: it was made with thp, or under vm.overcommit_memory=2; stop and start the daemon"
                    .to_owned()
            }),
            Self::Wrapped(_) => {
                Err("a disk that misbehaves on purpose (delay, error, powercut) is not handed over; stop and start the daemon".to_owned())
            }
        }
    }
}

impl DiskSpec {
    /// Continue with the disk that another process serves as `info`, with its contents in `file`.
    ///
    /// # Errors
    /// Beginning with the disk's name: it does not match this description, and its clients would be affected.
    pub fn take_over(&self, info: &BlockInfo, file: Option<OwnedFd>) -> Result<AnyDisk, String> {
        self.continue_with(info, file, false).map_err(|problem| format!("disk '{}': {problem}", self.name))
    }

    /// As [`take_over`](Self::take_over), of a disk that was opened by [`open_passed`](Self::open_passed).
    pub fn take_over_passed(&self, info: &BlockInfo, file: Option<OwnedFd>) -> Result<AnyDisk, String> {
        self.continue_with(info, file, true).map_err(|problem| format!("disk '{}': {problem}", self.name))
    }

    fn continue_with(&self, info: &BlockInfo, file: Option<OwnedFd>, was_passed: bool) -> Result<AnyDisk, String> {
        let disk = match (&self.kind, file) {
            (KindSpec::Null(options), None) => {
                let options = NullOptions { read_only: options.read_only || self.ro, ..options.clone() };
                let disk = NullDisk::new(&self.name, &options)?;
                disk.resize(info.sector_count)?;
                AnyDisk::Null(disk)
            }
            (KindSpec::Memory(options), Some(file)) => {
                let options = MemoryOptions { read_only: options.read_only || self.ro, ..options.clone() };
                AnyDisk::Memory(MemoryDisk::take_over(&options, file, info.sector_count, info.identity)?)
            }
            (KindSpec::File(options), Some(file)) => {
                let options = FileOptions { read_only: options.read_only || self.ro, ..options.clone() };
                AnyDisk::File(FileDisk::take_over(&options, file, info.sector_count, was_passed)?)
            }
            _ => {
                return Err(
                    "it is of another kind in the running daemon; leave its kind as it is, or restart the daemon".to_owned()
                );
            }
        };
        check_same(info, &disk.info())?;
        Ok(disk)
    }
}

/// Clients were sent `old`; can they continue with `new`?
fn check_same(old: &BlockInfo, new: &BlockInfo) -> Result<(), String> {
    let refuse = |what: &str, old: u64, new: u64| {
        Err(format!("{what} would change from {old} to {new} under its clients; leave that as it is, or restart the daemon"))
    };
    if old.identity != new.identity {
        return Err("it has other content than the one that is served; restart the daemon".to_owned());
    }
    for (what, old, new) in [
        ("its size in bytes", old.sector_count.saturating_mul(SECTOR_BYTES), new.sector_count.saturating_mul(SECTOR_BYTES)),
        ("its block size", old.block_bytes.into(), new.block_bytes.into()),
        // It may have more capabilities than they know: newer daemons will.
        ("what it can do (ro, discard)", old.capabilities.into(), (new.capabilities & old.capabilities).into()),
    ] {
        if old != new {
            return refuse(what, old, new);
        }
    }
    for (what, old, new) in [
        ("the longest transfer", old.max_transfer_bytes, new.max_transfer_bytes),
        ("the longest range", old.max_range_sectors, new.max_range_sectors),
        ("the number of segments", old.max_segments, new.max_segments),
    ] {
        if new < old {
            return refuse(what, old.into(), new.into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{CAPABILITY_PACKED, CAPABILITY_WRITE};

    #[test]
    fn a_daemon_with_more_capabilities_takes_over_and_one_with_fewer_does_not() {
        let info = NullDisk::new("n", &NullOptions { size_bytes: 1 << 20, ..NullOptions::default() }).expect("a disk").info();
        let before = BlockInfo { capabilities: info.capabilities & !CAPABILITY_PACKED, ..info };
        assert_eq!(check_same(&before, &info), Ok(()));
        assert!(check_same(&info, &before).expect_err("they may use it").contains("what it can do"));
        let read_only = BlockInfo { capabilities: info.capabilities & !CAPABILITY_WRITE, ..info };
        assert!(check_same(&info, &read_only).is_err());
    }
}
