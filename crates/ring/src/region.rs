//! Shared memory: sealed memory files of ours, and memory files handed over by a peer.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::cpu;
use crate::fault::PeerFault;
#[cfg(not(loom))]
use crate::sync::AtomicU8;
use crate::sync::Ordering;

/// Largest memory a peer may hand over in one region: 2 TiB, what 32 bits of 512-byte units reach.
pub const MAX_REGION_BYTES: u64 = 1 << 41;

#[cfg(not(loom))]
const LINE_BYTES: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    ReadWrite,
}

/// A mapped memory file. Shared memory is only ever reached through raw pointers, atomics and copies: no Rust
/// reference to its bytes exists, because the peer may change them at any moment.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    length_bytes: usize,
    access: Access,
    file: OwnedFd,
}

// SAFETY: a region is plain mapped memory; the mapping is valid in every thread and unmapped only on drop.
unsafe impl Send for Region {}
// SAFETY: no method hands out a reference to the bytes; copies race with the peer anyway and are treated as such.
unsafe impl Sync for Region {}

impl Region {
    /// A new region of zeroes, `length_bytes` rounded up to whole pages, sealed against shrinking and growing.
    pub fn create(name: &str, length_bytes: u64) -> io::Result<Self> {
        let page = rustix::param::page_size() as u64;
        let length_bytes = length_bytes
            .checked_next_multiple_of(page)
            .filter(|&bytes| bytes > 0)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a region cannot be empty"))?;
        let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, length_bytes)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Self::map(file, length_bytes, Access::ReadWrite)
    }

    /// Map memory that a peer handed over. It must be a memory file that cannot shrink: otherwise a truncation
    /// would turn our next access into SIGBUS.
    ///
    /// # Errors
    /// [`PeerFault`] when the file is of the wrong kind, unsealed, or shorter than `length_bytes`; an I/O error from
    /// mmap otherwise.
    pub fn from_peer(file: OwnedFd, length_bytes: u64, access: Access) -> Result<Self, RegionError> {
        let unsafe_memory = |why| Err(RegionError::Fault(PeerFault::UnsafeMemory { why }));
        let Ok(seals) = rustix::fs::fcntl_get_seals(&file) else {
            return unsafe_memory("the descriptor is not a memory file (memfd_create) that allows sealing");
        };
        if !seals.contains(SealFlags::SHRINK) {
            return unsafe_memory("the memory file can be shrunk; seal it with F_SEAL_SHRINK");
        }
        if access == Access::ReadWrite && seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
            return unsafe_memory("the memory file is sealed against writing, but write access is asked for");
        }
        // A hole in a hugetlbfs file faults with SIGBUS when the pool is empty; tmpfs only when the machine is out of memory.
        const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;
        if rustix::fs::fstatfs(&file).map_err(io::Error::from)?.f_type == HUGETLBFS_MAGIC {
            return unsafe_memory("the memory file is on hugetlbfs, whose pages may be missing when they are touched");
        }
        let actual_bytes = u64::try_from(rustix::fs::fstat(&file).map_err(io::Error::from)?.st_size).unwrap_or(0);
        if length_bytes == 0 || length_bytes > MAX_REGION_BYTES || length_bytes > actual_bytes {
            return Err(RegionError::Fault(PeerFault::OutOfRegion {
                what: "memory",
                offset_bytes: 0,
                length_bytes,
                region_bytes: actual_bytes.min(MAX_REGION_BYTES),
            }));
        }
        Ok(Self::map(file, length_bytes, access)?)
    }

    fn map(file: OwnedFd, length_bytes: u64, access: Access) -> io::Result<Self> {
        let length_bytes = usize::try_from(length_bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let protection = match access {
            Access::Read => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing of ours.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), length_bytes, protection, MapFlags::SHARED, &file, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, length_bytes, access, file })
    }

    pub const fn length_bytes(&self) -> u64 {
        self.length_bytes as u64
    }

    /// Have the first bytes in memory, and in our page table, before they are used: otherwise the first use of each page takes a fault. It is
    /// no error if the kernel does not (it is older than Linux 5.14, or has no memory).
    pub fn populate(&self, length_bytes: u64) {
        let length_bytes = usize::try_from(length_bytes).map_or(self.length_bytes, |bytes| bytes.min(self.length_bytes));
        // SAFETY: within the mapping; as if each page were written with what it holds.
        let _ = unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), length_bytes, Advice::LinuxPopulateWrite) };
    }

    /// The first byte. Valid for `length_bytes` as long as the region exists.
    pub const fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The place of `length_bytes` bytes at `offset_bytes`.
    pub fn pointer(&self, what: &'static str, offset_bytes: u64, length_bytes: u64) -> Result<NonNull<u8>, PeerFault> {
        let fits = offset_bytes.checked_add(length_bytes).is_some_and(|end| end <= self.length_bytes());
        match usize::try_from(offset_bytes) {
            // SAFETY: the offset is within the mapping.
            Ok(offset) if fits => Ok(unsafe { self.base.add(offset) }),
            _ => Err(PeerFault::OutOfRegion { what, offset_bytes, length_bytes, region_bytes: self.length_bytes() }),
        }
    }

    /// Copy bytes out of the region, once.
    pub fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), PeerFault> {
        let from = self.pointer("read", offset_bytes, into.len() as u64)?;
        // SAFETY: the source is inside the mapping and the destination is ours, so they do not overlap. The peer may
        // write meanwhile: the copy then holds some mixture, which callers validate before use.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into.as_mut_ptr(), into.len()) };
        // Without this the compiler may load from the region again, after a check, what was copied here.
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
        Ok(())
    }

    /// A hint that the line at `offset_bytes` will be read soon.
    #[inline(always)]
    pub fn prefetch_for_read(&self, offset_bytes: u64) {
        cpu::prefetch_for_read(self.base.as_ptr().wrapping_add(usize::try_from(offset_bytes).unwrap_or(0)));
    }

    /// A hint that the line at `offset_bytes` will be written soon.
    #[inline(always)]
    pub fn prefetch_for_write(&self, offset_bytes: u64) {
        cpu::prefetch_for_write(self.base.as_ptr().wrapping_add(usize::try_from(offset_bytes).unwrap_or(0)));
    }

    /// Store bytes that the peer has written, and is to write again, once more as they are: one of each line of `length_bytes` bytes from `offset_bytes`
    /// on, where a line begins. Where [`Touch`](crate::tuning::Touch) gains something for slots, the peer's next store there costs less.
    #[cfg(not(loom))]
    pub fn touch(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), PeerFault> {
        let first = self.pointer("touch", offset_bytes, length_bytes)?;
        for line in (0..usize::try_from(length_bytes).unwrap_or(0)).step_by(LINE_BYTES) {
            // SAFETY: within the mapping, which is as long as the region; a peer that writes at the same time harms its own bytes alone.
            let byte = unsafe { AtomicU8::from_ptr(first.as_ptr().wrapping_add(line)) };
            byte.store(byte.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Copy bytes into the region.
    ///
    /// # Errors
    /// They are not within the region, or it is mapped for reading only.
    pub fn write(&self, offset_bytes: u64, from: &[u8]) -> Result<(), PeerFault> {
        if self.access == Access::Read {
            return Err(PeerFault::UnsafeMemory { why: "the region is mapped for reading only" });
        }
        let to = self.pointer("write", offset_bytes, from.len() as u64)?;
        // SAFETY: as in `read`, the other way round, and the mapping is writable.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), from.len()) };
        Ok(())
    }
}

impl AsFd for Region {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, whole, and nothing that points into it outlives the region.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.length_bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    #[error(transparent)]
    Fault(PeerFault),
    #[error("cannot map memory: {0}")]
    Io(#[from] io::Error),
}
