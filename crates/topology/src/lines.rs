//! Cache lines to be moved about, in memory that is fresh: its pages are on the node of the CPU that touches them first.

use std::io;
use std::ptr::NonNull;

use fipsee_ring::AtomicU32;
use rustix::mm::{MapFlags, ProtFlags};

/// Lines of one measurement. They fit the smallest first-level cache many times over, so a line comes from where the other CPU
/// has it and not from memory; their pages fit the TLB of every CPU with some to spare.
pub(crate) const LINE_COUNT: usize = 64;

const PAGE_BYTES: usize = 4096;
const LINE_BYTES: usize = 64;
const LINES_PER_PAGE: usize = PAGE_BYTES / LINE_BYTES;
/// Lines are so far apart that no prefetcher, which stays within a page or fetches the neighbouring line, brings two at once.
const STRIDE_BYTES: usize = PAGE_BYTES;

/// [`LINE_COUNT`] words, each in a line of its own on a page of its own.
#[derive(Debug)]
pub(crate) struct Lines {
    base: NonNull<u8>,
}

// SAFETY: the mapping is valid in every thread until drop; it is only accessed through atomics.
unsafe impl Send for Lines {}
// SAFETY: as above.
unsafe impl Sync for Lines {}

impl Lines {
    const LENGTH_BYTES: usize = LINE_COUNT * STRIDE_BYTES;

    pub(crate) fn new() -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh private mapping at an address of the kernel's choice aliases nothing of ours.
        let base =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), Self::LENGTH_BYTES, protection, MapFlags::PRIVATE) }?;
        NonNull::new(base.cast()).map(|base| Self { base }).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    #[inline(always)]
    pub(crate) fn word(&self, index: usize) -> Option<&AtomicU32> {
        if index >= LINE_COUNT {
            return None;
        }
        // Another place in each page, or all lines would compete for one set of the first-level cache.
        let offset_bytes = index * STRIDE_BYTES + index % LINES_PER_PAGE * LINE_BYTES;
        // SAFETY: the line is within page `index`, which is within the mapping.
        let word = unsafe { self.base.add(offset_bytes) }.cast::<AtomicU32>();
        // SAFETY: aligned to 64 bytes; mapped and zero at first, so always a valid value; mapped as long as `self` exists; and
        // the memory is reached only through this atomic.
        Some(unsafe { word.as_ref() })
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, whole, and no borrow of it outlives `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), Self::LENGTH_BYTES) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fipsee_ring::Ordering;

    #[test]
    fn every_line_is_a_line_of_its_own_and_there_are_no_others() {
        let lines = Lines::new().expect("256 KiB");
        let address = |index| std::ptr::from_ref(lines.word(index).expect("a line")).addr();
        let mut sets: Vec<usize> = (0..LINE_COUNT).map(|index| address(index) / LINE_BYTES % LINES_PER_PAGE).collect();
        sets.sort_unstable();
        assert_eq!(sets, (0..LINES_PER_PAGE).collect::<Vec<_>>());
        for index in 0..LINE_COUNT {
            assert_eq!(address(index) % LINE_BYTES, 0);
            assert_eq!(lines.word(index).expect("a line").swap(7, Ordering::Relaxed), 0, "line {index} is not shared");
        }
        assert!(lines.word(LINE_COUNT).is_none());
        assert!(lines.word(usize::MAX).is_none());
    }
}
