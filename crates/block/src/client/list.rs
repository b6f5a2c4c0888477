//! The disks that this user may attach.

use std::path::Path;

use fipsee_ring::control::Listed;
use fipsee_ring::handshake;

use super::Error;
use crate::wire::{LISTED_READ_ONLY, ListedInfo, SECTOR_SHIFT, SERVICE_BLOCK};

/// A disk that may be attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedDisk {
    /// Its name, for [`AttachOptions`](super::AttachOptions).
    pub name: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Logical block size in bytes.
    pub block_bytes: u32,
    /// No client may write it.
    pub read_only: bool,
}

/// The disks of the daemon at `socket_path` that this user may attach, in the order of their names. Nothing is attached.
///
/// # Errors
/// As [`Disk::attach`](super::Disk::attach); [`Error::Unsupported`] when the daemon is too old for it.
pub fn list(socket_path: &Path) -> Result<Vec<ListedDisk>, Error> {
    let describe = |Listed { name, service_info }| {
        let ListedInfo { sector_count, block_bytes, flags } = ListedInfo::from_bytes(service_info)?;
        let (size_bytes, read_only) = (sector_count << SECTOR_SHIFT, flags & LISTED_READ_ONLY != 0);
        Ok(ListedDisk { name, size_bytes, block_bytes, read_only })
    };
    handshake::list(socket_path, SERVICE_BLOCK)?.into_iter().map(describe).collect()
}
