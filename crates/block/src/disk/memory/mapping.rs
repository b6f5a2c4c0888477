//! The memory of a memory disk: a memory file, or anonymous.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::disk::page_bytes;

/// Size of the huge pages that `huge` takes.
pub(super) const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// The file keeps its length, so that no access ends in SIGBUS, and these seals.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Advice to the kernel about pages of a mapping; they stay mapped in any case.
#[derive(Clone, Copy, Debug)]
pub(super) enum PageAdvice {
    /// Transparent huge pages, please.
    Huge,
    Populate,
    /// Deallocate them: they read as zeroes.
    Remove,
}

/// Memory, zero at first.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) base: NonNull<u8>,
    pub(super) length_bytes: usize,
    /// The file that another process can map, too; anonymous memory has none.
    pub(super) file: Option<OwnedFd>,
}

// SAFETY: plain memory that every thread may access, unmapped only on drop.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method returns a reference to the bytes.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(super) fn private(length_bytes: u64) -> Result<Self, String> {
        let mapped = rounded(length_bytes, page_bytes()).and_then(|length| Self::map(None, length));
        mapped.map_err(|errno| address_space_text(length_bytes, errno))
    }

    pub(super) fn sparse(length_bytes: u64) -> Result<Self, String> {
        Self::shared(length_bytes, page_bytes(), MemfdFlags::empty()).map_err(|errno| address_space_text(length_bytes, errno))
    }

    pub(super) fn huge(length_bytes: u64) -> Result<Self, String> {
        let refused = |errno| huge_text(length_bytes.div_ceil(HUGE_PAGE_BYTES), HugePool::read().as_ref(), errno);
        let memory = Self::shared(length_bytes, HUGE_PAGE_BYTES, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB).map_err(refused)?;
        // A missing page (a cgroup's limit, another NUMA node) is an error here, and SIGBUS later.
        match memory.advise(0, memory.length_bytes, PageAdvice::Populate) {
            // Linux before 5.14 does not know it; the reservation must suffice.
            Ok(()) | Err(Errno::INVAL) => Ok(memory),
            Err(errno) => Err(refused(errno)),
        }
    }

    /// A memory file, sealed against truncation, so that another process can continue with it.
    fn shared(length_bytes: u64, page_bytes: u64, flags: MemfdFlags) -> Result<Self, Errno> {
        let length = rounded(length_bytes, page_bytes)?;
        let file = rustix::fs::memfd_create("fipsee-disk", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | flags)?;
        rustix::fs::ftruncate(&file, length as u64)?;
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        Self::map(Some(file), length)
    }

    pub(super) fn take_over(file: OwnedFd, length_bytes: u64, page_bytes: u64) -> Result<Self, String> {
        let unusable = |errno: Errno| format!("its memory cannot be taken over: {errno}");
        let length = rounded(length_bytes, page_bytes).map_err(unusable)?;
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(unusable)?;
        let found = rustix::fs::fstat(&file).map_err(unusable)?;
        if u64::try_from(found.st_size) != Ok(length as u64) {
            return Err(format!(
                "it is {} bytes of memory in the running daemon and {length} here; leave its size, max= and huge as they are",
                found.st_size
            ));
        }
        if !seals.contains(SEALS) {
            return Err(format!(
                "its memory is sealed as {seals:?} only, not as {SEALS:?}; start both daemons from the same release"
            ));
        }
        const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;
        let is_huge = rustix::fs::fstatfs(&file).map_err(unusable)?.f_type == HUGETLBFS_MAGIC;
        if is_huge != (page_bytes == HUGE_PAGE_BYTES) {
            return Err("its pages are of another size in the running daemon; leave huge as it is".to_owned());
        }
        Self::map(Some(file), length).map_err(unusable)
    }

    fn map(file: Option<OwnedFd>, length_bytes: usize) -> Result<Self, Errno> {
        let (anywhere, access) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
        let sparse = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let base = match &file {
            // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing of ours.
            Some(file) => unsafe { rustix::mm::mmap(anywhere, length_bytes, access, MapFlags::SHARED, file, 0) },
            // SAFETY: as above.
            None => unsafe { rustix::mm::mmap_anonymous(anywhere, length_bytes, access, sparse) },
        };
        Ok(Self { base: NonNull::new(base?.cast()).ok_or(Errno::NOMEM)?, length_bytes, file })
    }

    pub(super) fn advise(&self, offset: usize, length: usize, advice: PageAdvice) -> Result<(), Errno> {
        if offset.checked_add(length).is_none_or(|end| end > self.length_bytes) {
            return Err(Errno::INVAL);
        }
        let advice = match advice {
            PageAdvice::Huge => Advice::LinuxHugepage,
            PageAdvice::Populate => Advice::LinuxPopulateWrite,
            PageAdvice::Remove if self.file.is_some() => Advice::LinuxRemove,
            PageAdvice::Remove => Advice::LinuxDontNeed,
        };
        // SAFETY: the range is within the mapping, and stays mapped. No reference to the bytes exists, which may change at any time.
        unsafe { rustix::mm::madvise(self.base.as_ptr().wrapping_add(offset).cast(), length, advice) }
    }

    /// Make a range read as zeroes: whole pages by deallocating them if `gives_back`, the edges by writing.
    pub(super) fn clear(&self, offset_bytes: u64, length_bytes: u64, gives_back: bool) {
        let page = page_bytes();
        let end = offset_bytes + length_bytes;
        let (first_page, end_page) = (offset_bytes.next_multiple_of(page), end / page * page);
        let pages = (usize::try_from(first_page), usize::try_from(end_page.saturating_sub(first_page)));
        if let (true, (Ok(start), Ok(length @ 1..))) = (gives_back, pages) {
            // The edges first: writing to a missing page may allocate a huge one, whose rest is then released, too.
            self.write_zeroes(offset_bytes, first_page);
            self.write_zeroes(end_page, end);
            if self.advise(start, length, PageAdvice::Remove).is_ok() {
                return;
            }
        }
        self.write_zeroes(offset_bytes, end);
    }

    fn write_zeroes(&self, start_bytes: u64, end_bytes: u64) {
        let (Ok(start), Ok(end)) = (usize::try_from(start_bytes), usize::try_from(end_bytes)) else {
            return;
        };
        let end = end.min(self.length_bytes);
        if start < end {
            // SAFETY: start is within the mapping.
            let place = unsafe { self.base.add(start) };
            // SAFETY: so is the end; no reference exists, and racing copies only mix bytes.
            unsafe { std::ptr::write_bytes(place.as_ptr(), 0, end - start) };
        }
    }

    /// Let the pages that are wholly behind `size_bytes` be swapped again, if they were locked.
    pub(super) fn unlock_from(&self, size_bytes: u64, is_locked: bool) {
        if let (true, Ok(start)) = (is_locked, usize::try_from(size_bytes.next_multiple_of(page_bytes())))
            && start < self.length_bytes
        {
            let place = self.base.as_ptr().wrapping_add(start);
            // SAFETY: unlocking does not change memory; the range is within the mapping.
            let unlocked = unsafe { rustix::mm::munlock(place.cast(), self.length_bytes - start) };
            debug_assert!(unlocked.is_ok());
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, whole, and no pointer into it outlives it.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.length_bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

fn rounded(length_bytes: u64, page_bytes: u64) -> Result<usize, Errno> {
    let length_bytes = length_bytes.checked_next_multiple_of(page_bytes).ok_or(Errno::NOMEM)?;
    usize::try_from(length_bytes).map_err(|_| Errno::NOMEM)
}

/// Is overcommit strict (vm.overcommit_memory=2)?
pub(super) fn overcommit_is_strict() -> bool {
    std::fs::read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.trim() == "2")
}

fn address_space_text(length_bytes: u64, errno: Errno) -> String {
    format!(
        "cannot reserve {length_bytes} bytes of address space ({errno}); make the disk or its max= smaller, or raise \
         `ulimit -v`, or set the sysctl vm.overcommit_memory=0"
    )
}

#[derive(Clone, Copy, Debug)]
struct HugePool {
    pages: u64,
    /// Free and not reserved.
    free_pages: u64,
}

impl HugePool {
    fn read() -> Option<Self> {
        let count = |name| -> Option<u64> {
            let text = std::fs::read_to_string(format!("/sys/kernel/mm/hugepages/hugepages-2048kB/{name}")).ok()?;
            text.trim().parse().ok()
        };
        let free_pages = count("free_hugepages")?.saturating_sub(count("resv_hugepages")?);
        Some(Self { pages: count("nr_hugepages")?, free_pages })
    }
}

fn huge_text(needed_pages: u64, pool: Option<&HugePool>, errno: Errno) -> String {
    match pool {
        None => format!("this system has no huge pages of 2 MiB ({errno}); leave out huge, or try thp"),
        Some(pool) if pool.free_pages >= needed_pages => format!(
            "the disk needs {needed_pages} huge pages of 2 MiB and {} are free, but the kernel refuses them ({errno}); look for a \
             limit in the hugetlb cgroup or the cpuset's memory nodes",
            pool.free_pages
        ),
        Some(pool) => format!(
            "the disk needs {needed_pages} huge pages of 2 MiB, but only {} are free ({errno}); set the sysctl vm.nr_hugepages to at \
             least {} (now {}), or leave out huge",
            pool.free_pages,
            pool.pages + needed_pages - pool.free_pages,
            pool.pages
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_with_fewer_seals_is_not_taken_over() {
        let page = page_bytes();
        let sealed = |seals| {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let file = rustix::fs::memfd_create("test", flags).expect("a memory file");
            rustix::fs::ftruncate(&file, page).expect("its length");
            rustix::fs::fcntl_add_seals(&file, seals).expect("sealed");
            Mapping::take_over(file, page, page)
        };
        assert!(sealed(SEALS).is_ok());
        for seal in SEALS.iter() {
            assert!(sealed(SEALS - seal).is_err_and(|text| text.contains("sealed")), "without {seal:?}");
        }
    }

    #[test]
    fn advice_beyond_the_mapping_is_refused() {
        let memory = Mapping::private(2 * page_bytes()).expect("memory");
        let page = memory.length_bytes / 2;
        assert_eq!(memory.advise(page, page, PageAdvice::Remove), Ok(()));
        for (offset, length) in [(page, 2 * page), (2 * page, 1), (usize::MAX, page)] {
            assert_eq!(memory.advise(offset, length, PageAdvice::Remove), Err(Errno::INVAL));
        }
    }

    #[test]
    fn too_few_huge_pages_are_counted_in_the_error() {
        let text = huge_text(64, Some(&HugePool { pages: 10, free_pages: 4 }), Errno::NOMEM);
        assert!(text.contains("needs 64 huge pages") && text.contains("only 4 are free"), "{text}");
        assert!(text.contains("vm.nr_hugepages to at least 70 (now 10)"), "{text}");
        assert!(huge_text(1, None, Errno::INVAL).contains("no huge pages"));
        assert!(huge_text(1, Some(&HugePool { pages: 1, free_pages: 1 }), Errno::FAULT).contains("cgroup"));
    }
}
