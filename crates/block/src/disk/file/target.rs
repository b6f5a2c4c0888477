//! The open file of a file disk, and its abilities.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;

use super::range_lock::{Range, RangeLocks};
use super::window::Alignment;
use crate::disk::Faults;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::disk) enum ZeroMethod {
    /// Keeps the blocks allocated.
    ZeroRange,
    /// Deallocates them.
    PunchHole,
    Write,
}

const NO_ZERO_RANGE: u8 = 1;
const NO_PUNCH_HOLE: u8 = 2;

/// The open file. It has one descriptor, so that its locks last as long as the kernel's last request of a process that was
/// killed.
#[derive(Debug)]
pub(in crate::disk) struct Target {
    file: OwnedFd,
    /// Alignment of direct I/O; `None`: everything goes through the page cache.
    pub(super) alignment: Option<Alignment>,
    /// Ranges of writes in flight; `None`: no request is a read-modify-write.
    pub(super) locks: Option<RangeLocks>,
    /// Size in bytes; that of the file, unless another program changes it.
    size_bytes: AtomicU64,
    /// Held while the file's size changes.
    resizing: Mutex<()>,
    pub(super) is_regular: bool,
    /// `NO_*` bits; a hint that saves asking again.
    missing: AtomicU8,
    pub(super) faults: Arc<Faults>,
}

impl Target {
    /// `block_bytes`: requests are multiples of this.
    pub(in crate::disk) fn new(
        file: OwnedFd,
        alignment: Option<Alignment>,
        block_bytes: u32,
        size_bytes: u64,
        is_regular: bool,
        faults: Faults,
    ) -> Self {
        let needs_locks = alignment.is_some_and(|alignment| u64::from(block_bytes) <= alignment.unit_mask);
        Self {
            file,
            alignment,
            locks: needs_locks.then(RangeLocks::default),
            size_bytes: AtomicU64::new(size_bytes),
            resizing: Mutex::new(()),
            is_regular,
            missing: AtomicU8::new(0),
            faults: Arc::new(faults),
        }
    }

    pub(in crate::disk) fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Relaxed)
    }

    pub(in crate::disk) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The range that a write of this range must lock, if any.
    pub(in crate::disk) fn range_to_lock(&self, offset_bytes: u64, length_bytes: u64) -> Option<Range> {
        let (Some(alignment), Some(_)) = (self.alignment, &self.locks) else { return None };
        let mask = alignment.unit_mask;
        Some(Range {
            start_bytes: offset_bytes & !mask,
            end_bytes: (offset_bytes + length_bytes + mask) & !mask,
            exclusive: (offset_bytes | length_bytes) & mask != 0,
        })
    }

    /// The part of a range that the file system can deallocate or zero without the page cache: its start and end, or two equal
    /// numbers.
    pub(in crate::disk) fn whole_ranges(&self, offset_bytes: u64, length_bytes: u64) -> (u64, u64) {
        let mask = self.alignment.map_or(0, |alignment| alignment.range_mask);
        let (start, end) = ((offset_bytes + mask) & !mask, (offset_bytes + length_bytes) & !mask);
        (start, end.max(start))
    }

    /// The next step of a write-zeroes at `offset_bytes`, and for how many bytes.
    pub(in crate::disk) fn next_zero_part(&self, offset_bytes: u64, length_bytes: u64, unmap: bool) -> (ZeroMethod, u64) {
        let missing = self.missing.load(Ordering::Relaxed);
        let method = match (missing & NO_ZERO_RANGE != 0, missing & NO_PUNCH_HOLE != 0) {
            (true, true) => return (ZeroMethod::Write, length_bytes),
            (_, false) if unmap => ZeroMethod::PunchHole,
            (false, _) => ZeroMethod::ZeroRange,
            (true, false) => ZeroMethod::PunchHole,
        };
        let (start, end) = self.whole_ranges(offset_bytes, length_bytes);
        match start - offset_bytes {
            _ if start == end => (ZeroMethod::Write, length_bytes),
            0 => (method, end - start),
            before => (ZeroMethod::Write, before),
        }
    }

    /// The file system reported that it has no such method.
    pub(in crate::disk) fn forget_zero_method(&self, method: ZeroMethod) {
        let bit = match method {
            ZeroMethod::ZeroRange => NO_ZERO_RANGE,
            ZeroMethod::PunchHole => NO_PUNCH_HOLE,
            ZeroMethod::Write => 0,
        };
        self.missing.fetch_or(bit, Ordering::Relaxed);
    }

    pub(in crate::disk) fn resize(&self, size_bytes: u64) -> Result<(), Errno> {
        let _resizing = self.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        let old_bytes = self.size_bytes();
        // New requests past the new end are refused before the file is truncated, and allowed after it has grown.
        self.size_bytes.store(size_bytes.min(old_bytes), Ordering::Relaxed);
        let resized = rustix::fs::ftruncate(&self.file, size_bytes);
        self.size_bytes.store(if resized.is_ok() { size_bytes } else { old_bytes }, Ordering::Relaxed);
        resized
    }

    pub(in crate::disk) fn set_size_bytes(&self, size_bytes: u64) {
        self.size_bytes.store(size_bytes, Ordering::Relaxed);
    }

    /// A write up to `end_bytes` has finished. If the disk was shrunk below that meanwhile, the write has made the file
    /// longer than the disk: truncate it.
    pub(in crate::disk) fn cut_after(&self, end_bytes: u64) {
        if !self.is_regular || end_bytes <= self.size_bytes() {
            return;
        }
        let _resizing = self.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        let size_bytes = self.size_bytes();
        let is_longer =
            rustix::fs::fstat(&self.file).is_ok_and(|stat| u64::try_from(stat.st_size).is_ok_and(|now| now > size_bytes));
        if is_longer {
            // If this fails, the file keeps a tail beyond the disk that no client can reach.
            let _ = rustix::fs::ftruncate(&self.file, size_bytes);
        }
    }
}
