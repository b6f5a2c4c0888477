//! Guest memory: from guest-physical and hypervisor addresses to ours.

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags};

/// One region as the hypervisor describes it (vhost-user, "Memory region description").
#[derive(Debug)]
pub struct RegionDescription {
    /// Where the guest sees it.
    pub guest_address: u64,
    /// Length in bytes.
    pub length_bytes: u64,
    /// Where the hypervisor sees it: the addresses of SET_VRING_ADDR.
    pub user_address: u64,
    /// Where it begins in the file; not always a multiple of a page.
    pub file_offset_bytes: u64,
    /// The memory.
    pub file: OwnedFd,
}

/// A region, mapped.
#[derive(Debug)]
pub struct GuestRegion {
    guest_address: u64,
    length_bytes: u64,
    user_address: u64,
    base: NonNull<u8>,
    mapping: (NonNull<u8>, usize),
}

// SAFETY: memory of another process, reached only by raw pointers, atomics and copies, from any thread.
unsafe impl Send for GuestRegion {}
// SAFETY: as above.
unsafe impl Sync for GuestRegion {}

impl GuestRegion {
    /// Map what the hypervisor handed over.
    ///
    /// # Errors
    /// A description that makes no sense, a file that is too short, or what mmap(2) reports.
    pub fn map(description: RegionDescription) -> io::Result<Arc<Self>> {
        let RegionDescription { guest_address, length_bytes, user_address, file_offset_bytes, file } = description;
        let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
        let end = file_offset_bytes.checked_add(length_bytes).ok_or_else(|| wrong("the region ends beyond any file"))?;
        if length_bytes == 0
            || guest_address.checked_add(length_bytes).is_none()
            || user_address.checked_add(length_bytes).is_none()
        {
            return Err(wrong("the region is empty or wraps around"));
        }
        let file_bytes = u64::try_from(rustix::fs::fstat(&file)?.st_size).unwrap_or(0);
        if end > file_bytes {
            return Err(wrong("the region ends beyond its file"));
        }
        let mapped_bytes = usize::try_from(end).map_err(|_| wrong("the region is larger than our address space"))?;
        let skip = usize::try_from(file_offset_bytes).map_err(|_| wrong("the region begins beyond our address space"))?;
        // SAFETY: a fresh mapping at an address that the kernel chooses.
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), mapped_bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0)
        }?;
        let start = NonNull::new(start.cast::<u8>()).ok_or_else(|| wrong("mapped at address 0"))?;
        // SAFETY: `skip` is below the mapping's length.
        let base = unsafe { start.add(skip) };
        Ok(Arc::new(Self { guest_address, length_bytes, user_address, base, mapping: (start, mapped_bytes) }))
    }
}

impl Drop for GuestRegion {
    fn drop(&mut self) {
        // SAFETY: our own mapping; who holds pointers into it holds the region.
        let _ = unsafe { rustix::mm::munmap(self.mapping.0.as_ptr().cast(), self.mapping.1) };
    }
}

/// All memory of a guest at one moment. It does not change: when the hypervisor changes its table, queues get another one.
#[derive(Clone, Debug, Default)]
pub struct GuestMemory {
    regions: Vec<Arc<GuestRegion>>,
}

impl GuestMemory {
    /// The memory that consists of `regions`.
    ///
    /// # Errors
    /// Two of them overlap, as the guest sees them.
    pub fn new(mut regions: Vec<Arc<GuestRegion>>) -> io::Result<Self> {
        regions.sort_by_key(|region| region.guest_address);
        if regions.windows(2).any(|pair| pair[1].guest_address - pair[0].guest_address < pair[0].length_bytes) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "two regions of guest memory overlap"));
        }
        Ok(Self { regions })
    }

    /// Our address of `length_bytes` bytes at guest-physical `address`, if they lie in one region.
    #[must_use]
    #[inline(always)]
    pub fn host(&self, address: u64, length_bytes: u64) -> Option<NonNull<u8>> {
        self.regions.iter().find_map(|region| {
            let offset = address.checked_sub(region.guest_address)?;
            let fits = length_bytes <= region.length_bytes && offset <= region.length_bytes - length_bytes;
            // SAFETY: the offset lies within the region.
            fits.then(|| unsafe { region.base.add(usize::try_from(offset).unwrap_or(0)) })
        })
    }

    /// The guest-physical address of what the hypervisor sees at `user_address`.
    #[must_use]
    pub fn guest_address(&self, user_address: u64) -> Option<u64> {
        self.regions.iter().find_map(|region| {
            let offset = user_address.checked_sub(region.user_address).filter(|offset| *offset < region.length_bytes)?;
            Some(region.guest_address + offset)
        })
    }
}
