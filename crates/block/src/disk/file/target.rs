//! The descriptors of a file disk, and which of them a request takes.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;

use crate::request::Span;

/// How a range is made to read as zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::disk) enum ZeroMethod {
    /// Keeps the blocks allocated.
    ZeroRange,
    /// Gives them back.
    PunchHole,
    Write,
}

const NO_ZERO_RANGE: u8 = 1;
const NO_PUNCH_HOLE: u8 = 2;

/// What a direct transfer must keep to; powers of two, minus one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::disk) struct Alignment {
    /// Of addresses and lengths of memory.
    pub(in crate::disk) memory_mask: u64,
    /// Of offset and length in the file.
    pub(in crate::disk) read_mask: u64,
    /// As `read_mask`, for writes: whole units of the page cache.
    pub(in crate::disk) write_mask: u64,
}

/// The open file.
#[derive(Debug)]
pub(in crate::disk) struct Target {
    buffered: OwnedFd,
    direct: Option<(OwnedFd, Alignment)>,
    /// Size in bytes; what the file has, unless someone else changes it.
    size_bytes: AtomicU64,
    /// Held while the file's size changes.
    resizing: Mutex<()>,
    is_regular: bool,
    /// `NO_*` bits; a hint that saves asking again.
    missing: AtomicU8,
}

impl Target {
    pub(in crate::disk) const fn new(
        buffered: OwnedFd,
        direct: Option<(OwnedFd, Alignment)>,
        size_bytes: u64,
        is_regular: bool,
    ) -> Self {
        Self {
            buffered,
            direct,
            size_bytes: AtomicU64::new(size_bytes),
            resizing: Mutex::new(()),
            is_regular,
            missing: AtomicU8::new(0),
        }
    }

    pub(in crate::disk) const fn is_regular(&self) -> bool {
        self.is_regular
    }

    pub(in crate::disk) fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Relaxed)
    }

    pub(in crate::disk) fn buffered(&self) -> BorrowedFd<'_> {
        self.buffered.as_fd()
    }

    pub(in crate::disk) fn buffered_fd(&self) -> RawFd {
        self.buffered.as_raw_fd()
    }

    pub(in crate::disk) fn alignment(&self) -> Option<Alignment> {
        self.direct.as_ref().map(|(_, alignment)| *alignment)
    }

    /// The descriptor that bypasses the page cache, if it can take this transfer.
    pub(in crate::disk) fn direct_fd(&self, is_read: bool, offset_bytes: u64, spans: &[Span]) -> Option<RawFd> {
        let (file, alignment) = self.direct.as_ref()?;
        let (mut memory_bits, mut length_bytes) = (0, 0);
        for span in spans {
            memory_bits |= span.base().addr().get() as u64 | span.length_bytes() as u64;
            length_bytes += span.length_bytes() as u64;
        }
        let file_mask = if is_read { alignment.read_mask } else { alignment.write_mask };
        let fits = memory_bits & alignment.memory_mask == 0 && (offset_bytes | length_bytes) & file_mask == 0;
        fits.then(|| file.as_raw_fd())
    }

    pub(in crate::disk) fn zero_method(&self, unmap: bool) -> ZeroMethod {
        let missing = self.missing.load(Ordering::Relaxed);
        match (missing & NO_ZERO_RANGE != 0, missing & NO_PUNCH_HOLE != 0) {
            (_, false) if unmap => ZeroMethod::PunchHole,
            (false, _) => ZeroMethod::ZeroRange,
            (true, false) => ZeroMethod::PunchHole,
            (true, true) => ZeroMethod::Write,
        }
    }

    /// The file system said that it has no such method.
    pub(in crate::disk) fn forget_zero_method(&self, method: ZeroMethod) {
        let bit = match method {
            ZeroMethod::ZeroRange => NO_ZERO_RANGE,
            ZeroMethod::PunchHole => NO_PUNCH_HOLE,
            ZeroMethod::Write => 0,
        };
        self.missing.fetch_or(bit, Ordering::Relaxed);
    }

    /// Give a regular file another size.
    pub(in crate::disk) fn resize(&self, size_bytes: u64) -> Result<(), Errno> {
        let _resizing = self.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        let old_bytes = self.size_bytes();
        // New requests past the new end are refused before the file is cut, and allowed after it has grown.
        self.size_bytes.store(size_bytes.min(old_bytes), Ordering::Relaxed);
        match rustix::fs::ftruncate(&self.buffered, size_bytes) {
            Ok(()) => self.size_bytes.store(size_bytes, Ordering::Relaxed),
            Err(errno) => {
                self.size_bytes.store(old_bytes, Ordering::Relaxed);
                return Err(errno);
            }
        }
        Ok(())
    }

    /// The device was found to have this size.
    pub(in crate::disk) fn set_size_bytes(&self, size_bytes: u64) {
        self.size_bytes.store(size_bytes, Ordering::Relaxed);
    }

    /// A write up to `end_bytes` has finished. If the disk was shrunk below that meanwhile, the write has made the file
    /// longer than the disk: cut it.
    pub(in crate::disk) fn cut_after(&self, end_bytes: u64) {
        if !self.is_regular || end_bytes <= self.size_bytes() {
            return;
        }
        let _resizing = self.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        let size_bytes = self.size_bytes();
        let is_longer =
            rustix::fs::fstat(&self.buffered).is_ok_and(|stat| u64::try_from(stat.st_size).is_ok_and(|now| now > size_bytes));
        if is_longer {
            // Should it fail, the file keeps a tail beyond the disk that no client can reach.
            let _ = rustix::fs::ftruncate(&self.buffered, size_bytes);
        }
    }
}
