//! Guest memory: from guest-physical and hypervisor addresses to ours; and the log of pages that we wrote to, which a hypervisor
//! reads during live migration.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use fipsee_ring::{AtomicU8, Ordering};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::core::fault_guard::Guard;

/// Regions of one guest at most: what Linux gives a virtual machine, so that every slot can be filled by hot-plug.
pub const MAX_REGIONS: usize = 509;
/// Bytes of guest memory that a bit of a log covers.
const PAGE_SHIFT: u32 = 12;

/// One region as the hypervisor describes it (vhost-user, "Memory region description").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionDescription {
    /// Where the guest sees it.
    pub guest_address: u64,
    pub length_bytes: u64,
    /// Where the hypervisor sees it: the addresses of SET_VRING_ADDR.
    pub user_address: u64,
    /// Offset in the file; not always a multiple of a page.
    pub file_offset_bytes: u64,
}

/// A part of a peer's file, mapped for reading and writing. Its faults do not end the process.
#[derive(Debug)]
pub(crate) struct SharedMapping {
    /// Dropped first: the addresses are ours until then.
    guard: Option<Guard>,
    start: NonNull<u8>,
    mapped_bytes: usize,
    /// The byte that was asked for.
    pub(crate) base: NonNull<u8>,
    file: OwnedFd,
    offset_bytes: u64,
    length_bytes: u64,
}

/// The origin of memory of a peer, with which another process can map it.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    pub file: BorrowedFd<'a>,
    pub offset_bytes: u64,
    pub length_bytes: u64,
}

// SAFETY: memory of another process, reached only by raw pointers, atomics and copies, from any thread.
unsafe impl Send for SharedMapping {}
// SAFETY: as above.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Map `length_bytes` from `offset_bytes` of `file`; neither needs to be a multiple of a page.
    ///
    /// # Errors
    /// There is nothing to map, the file is too short, or what mmap(2) reports. `what` begins the text.
    pub(crate) fn new(what: &str, file: OwnedFd, offset_bytes: u64, length_bytes: u64) -> io::Result<Self> {
        let wrong = |text: String| io::Error::new(io::ErrorKind::InvalidInput, format!("{what} {text}"));
        let end = offset_bytes.checked_add(length_bytes).filter(|_| length_bytes > 0);
        let end = end.ok_or_else(|| wrong("is empty or ends beyond any file".to_owned()))?;
        let file_bytes = u64::try_from(rustix::fs::fstat(&file)?.st_size).unwrap_or(0);
        if end > file_bytes {
            return Err(wrong(format!("needs {end} bytes of a file that has {file_bytes}; hand over a file of the full length")));
        }
        let page_bytes = page_bytes_of(&file)?;
        let first = offset_bytes / page_bytes * page_bytes;
        let too_large = |_| wrong("is larger than our address space".to_owned());
        let mapped_bytes = usize::try_from((end - first).next_multiple_of(page_bytes)).map_err(too_large)?;
        let skip = usize::try_from(offset_bytes - first).map_err(too_large)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address that the kernel chooses.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), mapped_bytes, access, MapFlags::SHARED, &file, first) }
            .map_err(|errno| io::Error::new(errno.kind(), format!("{what} cannot be mapped for reading and writing: {errno}")))?;
        let start = NonNull::new(start.cast::<u8>()).ok_or_else(|| wrong("was mapped at address 0".to_owned()))?;
        // SAFETY: `skip` is below the mapping's length.
        let base = unsafe { start.add(skip) };
        let mut mapping = Self { guard: None, start, mapped_bytes, base, file, offset_bytes, length_bytes };
        mapping.guard = Some(Guard::new(start, mapped_bytes, usize::try_from(page_bytes).map_err(too_large)?)?);
        // SAFETY: the range is the mapping. Refused or not, it stays as it is: a core dump would hold the guest's memory.
        let _ = unsafe { rustix::mm::madvise(start.as_ptr().cast(), mapped_bytes, Advice::LinuxDontDump) };
        Ok(mapping)
    }

    pub(crate) fn source(&self) -> Source<'_> {
        Source { file: self.file.as_fd(), offset_bytes: self.offset_bytes, length_bytes: self.length_bytes }
    }

    /// Was a part of the file missing when it was accessed?
    pub(crate) fn is_broken(&self) -> bool {
        self.guard.as_ref().is_some_and(Guard::is_broken)
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        self.guard = None;
        // SAFETY: our own mapping; a holder of pointers into it holds this.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.mapped_bytes) };
    }
}

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

    pub fn source(&self) -> Source<'_> {
        self.0.source()
    }

    /// `length_bytes` bytes at guest-physical `address` were written. Pages that the log is too short for are the hypervisor's
    /// mistake: it never reads them.
    pub fn mark(&self, address: u64, length_bytes: u64) {
        let Some(last) = length_bytes.checked_sub(1).and_then(|rest| address.checked_add(rest)) else { return };
        let end_page = (last >> PAGE_SHIFT).min(self.0.length_bytes.saturating_mul(8).saturating_sub(1));
        for page in address >> PAGE_SHIFT..=end_page {
            self.mark_page(page);
        }
    }

    fn mark_page(&self, page: u64) {
        let Ok(offset) = usize::try_from(page / 8) else { return };
        let byte = self.0.base.as_ptr().wrapping_add(offset);
        // SAFETY: `page / 8` is below the log's length; all access to it is atomic, here and by the hypervisor.
        let byte = unsafe { AtomicU8::from_ptr(byte) };
        // Release: the write to the page is visible before the bit. The bit may have been set before: it is set again, because
        // the hypervisor may have just cleared it to copy the page.
        byte.fetch_or(1 << (page % 8), Ordering::Release);
    }

    /// Was a part of its file missing when it was accessed?
    pub fn is_broken(&self) -> bool {
        self.0.is_broken()
    }
}

/// Size of the pages that a mapping of `file` consists of.
fn page_bytes_of(file: &OwnedFd) -> io::Result<u64> {
    const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;
    let status = rustix::fs::fstatfs(file)?;
    let page = rustix::param::page_size() as u64;
    Ok(if status.f_type == HUGETLBFS_MAGIC { u64::try_from(status.f_bsize).unwrap_or(page).max(page) } else { page })
}

#[derive(Debug)]
pub struct GuestRegion {
    /// As the hypervisor described it.
    pub description: RegionDescription,
    mapping: SharedMapping,
}

impl GuestRegion {
    /// Map what the hypervisor handed over.
    ///
    /// # Errors
    /// An invalid description, a file that is too short, or what mmap(2) reports.
    pub fn map(description: RegionDescription, file: OwnedFd) -> io::Result<Arc<Self>> {
        let RegionDescription { guest_address, length_bytes, user_address, file_offset_bytes } = description;
        if guest_address.checked_add(length_bytes).is_none() || user_address.checked_add(length_bytes).is_none() {
            let text = "the memory region wraps around the end of the address space; the hypervisor is at fault";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let mapping = SharedMapping::new("the memory region", file, file_offset_bytes, length_bytes)?;
        Ok(Arc::new(Self { description, mapping }))
    }

    pub fn file(&self) -> BorrowedFd<'_> {
        self.mapping.file.as_fd()
    }

    const fn view(&self) -> View {
        let RegionDescription { guest_address, length_bytes, .. } = self.description;
        View { guest_address, length_bytes, base: self.mapping.base }
    }
}

#[derive(Clone, Copy, Debug)]
struct View {
    guest_address: u64,
    length_bytes: u64,
    base: NonNull<u8>,
}

impl View {
    /// Covers nothing.
    const NONE: Self = Self { guest_address: 0, length_bytes: 0, base: NonNull::dangling() };

    /// Our address of `length_bytes` bytes at guest-physical `address`, if they are in it.
    #[inline(always)]
    fn host(&self, address: u64, length_bytes: u64) -> Option<NonNull<u8>> {
        let offset = address.wrapping_sub(self.guest_address);
        if length_bytes > self.length_bytes || offset > self.length_bytes - length_bytes {
            return None;
        }
        // SAFETY: the offset is within the region, or is its end if no bytes are asked for; so it fits a pointer.
        Some(unsafe { self.base.add(usize::try_from(offset).unwrap_or(0)) })
    }
}

/// Why a table of guest memory is refused.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    #[error("there are {} regions of memory already, which is the most; remove one", MAX_REGIONS)]
    TooMany,
    #[error(
        "the guest's memory of {} bytes at {:#x} cannot be used: {source}; share it (share=on)",
        .description.length_bytes, .description.guest_address
    )]
    Unusable { description: RegionDescription, source: io::Error },
    #[error("the guest's memory cannot be used: two regions of guest memory overlap")]
    Overlap,
    #[error("there is no region of memory of {} bytes at {:#x} to be removed", .0.length_bytes, .0.guest_address)]
    Missing(RegionDescription),
}

/// For messages of the vhost-user protocol, which are refused in words.
impl From<MemoryError> for String {
    fn from(error: MemoryError) -> Self {
        error.to_string()
    }
}

/// All memory of a guest at one moment. It does not change: when the hypervisor changes its table, queues get a new one.
#[derive(Clone, Debug, Default)]
pub struct GuestMemory {
    /// By their address, without overlap.
    regions: Vec<Arc<GuestRegion>>,
}

impl GuestMemory {
    pub fn new(mut regions: Vec<Arc<GuestRegion>>) -> Result<Self, MemoryError> {
        regions.sort_by_key(|region| region.description.guest_address);
        let overlap = |pair: &[Arc<GuestRegion>]| pair[0].view().host(pair[1].description.guest_address, 1).is_some();
        if regions.windows(2).any(overlap) {
            return Err(MemoryError::Overlap);
        }
        Ok(Self { regions })
    }

    pub fn regions(&self) -> &[Arc<GuestRegion>] {
        &self.regions
    }

    /// This memory with one more region.
    pub fn with(&self, description: RegionDescription, file: OwnedFd) -> Result<Self, MemoryError> {
        if self.regions.len() >= MAX_REGIONS {
            return Err(MemoryError::TooMany);
        }
        let region = GuestRegion::map(description, file).map_err(|source| MemoryError::Unusable { description, source })?;
        Self::new(self.regions.iter().cloned().chain([region]).collect())
    }

    /// This memory without a region, wherever that is in its file.
    pub fn without(&self, description: RegionDescription) -> Result<Self, MemoryError> {
        let RegionDescription { file_offset_bytes, .. } = description;
        let is_it = |region: &Arc<GuestRegion>| RegionDescription { file_offset_bytes, ..region.description } == description;
        let place = self.regions.iter().position(is_it).ok_or(MemoryError::Missing(description))?;
        let mut regions = self.regions.clone();
        regions.remove(place);
        Ok(Self { regions })
    }

    fn view(&self, address: u64) -> Option<View> {
        let after = self.regions.partition_point(|region| region.description.guest_address <= address);
        let view = self.regions.get(after.checked_sub(1)?)?.view();
        (address - view.guest_address < view.length_bytes).then_some(view)
    }

    /// Our address of `length_bytes` bytes at guest-physical `address`, if they are in one region.
    #[inline]
    pub fn host(&self, address: u64, length_bytes: u64) -> Option<NonNull<u8>> {
        self.view(address)?.host(address, length_bytes)
    }

    /// Pass the pieces of `length_bytes` bytes at guest-physical `address` to `piece`, in order: more than one where
    /// they cross from one region into the next. False, without a call of `piece`, if a part of them is not guest memory.
    pub fn pieces(&self, address: u64, length_bytes: u64, piece: &mut impl FnMut(NonNull<u8>, usize)) -> bool {
        let Some(end) = address.checked_add(length_bytes) else { return false };
        let mut at = address;
        while at < end {
            let Some(view) = self.view(at) else { return false };
            at = view.guest_address + view.length_bytes;
        }
        let mut at = address;
        while at < end {
            let Some(view) = self.view(at) else { return false };
            let part = (view.guest_address + view.length_bytes).min(end) - at;
            if let (Some(base), Ok(length)) = (view.host(at, part), usize::try_from(part)) {
                piece(base, length);
            }
            at += part;
        }
        true
    }

    /// Append `length_bytes` bytes from guest-physical `address` on, each read once; false, and nothing is appended, if a part is
    /// not guest memory.
    pub(crate) fn read(&self, address: u64, length_bytes: u64, bytes: &mut Vec<u8>) -> bool {
        self.pieces(address, length_bytes, &mut |place, length| {
            // SAFETY: the piece is mapped guest memory; only the copy is parsed.
            bytes.extend((0..length).map(|offset| unsafe { place.as_ptr().wrapping_add(offset).read_volatile() }));
        })
    }

    /// Write `bytes` from guest-physical `address` on; false, and nothing is written, if a part of that is not guest memory.
    pub(crate) fn write(&self, address: u64, mut bytes: &[u8]) -> bool {
        self.pieces(address, bytes.len() as u64, &mut |place, length| {
            let (now, later) = bytes.split_at(length);
            bytes = later;
            // SAFETY: the piece is mapped guest memory, `length` bytes long, and overlaps nothing of ours.
            unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), place.as_ptr(), length) };
        })
    }

    /// The guest-physical address of the hypervisor's `user_address`.
    pub fn guest_address(&self, user_address: u64) -> Option<u64> {
        self.regions.iter().map(|region| region.description).find_map(|region| {
            let offset = user_address.checked_sub(region.user_address).filter(|offset| *offset < region.length_bytes)?;
            Some(region.guest_address + offset)
        })
    }

    /// Was a part of a region's file missing when it was accessed? Then nothing that was read or written is reliable.
    pub fn is_broken(&self) -> bool {
        self.regions.iter().any(|region| region.mapping.is_broken())
    }
}

/// Finds addresses in guest memory; the region of the last one is tried first.
#[derive(Debug)]
pub(crate) struct Finder {
    memory: Arc<GuestMemory>,
    last: Cell<View>,
}

// SAFETY: the pointer of the view leads into memory that `memory` keeps mapped and any thread may access.
unsafe impl Send for Finder {}

impl Finder {
    pub(crate) const fn new(memory: Arc<GuestMemory>) -> Self {
        Self { memory, last: Cell::new(View::NONE) }
    }

    pub(crate) const fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// As [`GuestMemory::host`].
    #[inline(always)]
    pub(crate) fn host(&self, address: u64, length_bytes: u64) -> Option<NonNull<u8>> {
        match self.last.get().host(address, length_bytes) {
            Some(place) => Some(place),
            None => self.search(address, length_bytes),
        }
    }

    #[cold]
    fn search(&self, address: u64, length_bytes: u64) -> Option<NonNull<u8>> {
        let view = self.memory.view(address)?;
        self.last.set(view);
        view.host(address, length_bytes)
    }
}
