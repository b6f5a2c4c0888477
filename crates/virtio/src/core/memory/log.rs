//! The log of pages that we wrote to, which a hypervisor asks for while it moves a guest elsewhere.

use std::io;
use std::os::fd::OwnedFd;

use fipsee_ring::{AtomicU8, Ordering};

use super::{SharedMapping, Source};

/// Bytes of guest memory that a bit stands for.
const PAGE_SHIFT: u32 = 12;

/// One bit for each page of guest-physical memory, in memory of the hypervisor's.
#[derive(Debug)]
pub struct DirtyLog(SharedMapping);

impl DirtyLog {
    /// Map the log that the hypervisor handed over with SET_LOG_BASE.
    ///
    /// # Errors
    /// The file is shorter than it should be, or what mmap(2) reports.
    pub fn map(file: OwnedFd, length_bytes: u64, offset_bytes: u64) -> io::Result<Self> {
        SharedMapping::new("the log of written pages", file, offset_bytes, length_bytes).map(Self)
    }

    /// Where it comes from.
    #[must_use]
    pub fn source(&self) -> Source<'_> {
        self.0.source()
    }

    /// `length_bytes` bytes at guest-physical `address` were written. Pages that the log is too short for are the hypervisor's
    /// mistake: it never looks at them.
    pub fn mark(&self, address: u64, length_bytes: u64) {
        let Some(last) = length_bytes.checked_sub(1).and_then(|rest| address.checked_add(rest)) else { return };
        let end_page = (last >> PAGE_SHIFT).min(self.0.length_bytes.saturating_mul(8).saturating_sub(1));
        for page in address >> PAGE_SHIFT..=end_page {
            self.mark_page(page);
        }
    }

    fn mark_page(&self, page: u64) {
        let Ok(offset) = usize::try_from(page / 8) else { return };
        let byte = self.0.base().as_ptr().wrapping_add(offset);
        // SAFETY: `page / 8` is below the log's length; all access to it is atomic, here and by the hypervisor.
        let byte = unsafe { AtomicU8::from_ptr(byte) };
        // Release: what was written to the page is there before the bit. The bit may have been set before: it is set again, because
        // the hypervisor may have just taken it away to copy the page as it was.
        byte.fetch_or(1 << (page % 8), Ordering::Release);
    }

    /// Was a part of its file gone when it was accessed?
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.0.is_broken()
    }
}
