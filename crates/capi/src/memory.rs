//! Registered memory, and finding the caller's addresses in it.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fipsee_block::client::transfer::TransferMemory;
use fipsee_block::client::{Disk, Error, Memory};
use fipsee_block::wire::{SECTOR_BYTES, SECTOR_SHIFT, Segment};
use fipsee_ring::PeerFault;
use rustix::io::Errno;

use crate::disk::OpenDisk;
use crate::failure::{Failure, guarded, null};
use crate::function::functions;

/// Regions that the wire has numbers for.
const MAX_MEMORIES: usize = 63;

/// All memory of one disk. C holds pointers to what the `Arc`s hold.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    /// Counts changes, so that queues keep copies and read this only after a change.
    generation: AtomicU64,
    memories: Mutex<Vec<Arc<Memory>>>,
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Memory>>> {
        // A list of pointers is whole at every point where a panic could strike.
        self.memories.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, make: impl FnOnce() -> Result<Memory, Failure>) -> Result<*const Memory, Failure> {
        let mut memories = self.lock();
        if memories.len() >= MAX_MEMORIES {
            let text = format!("a disk takes {MAX_MEMORIES} memories at a time; free some, or make fewer and larger ones");
            return Err(Failure::new(Errno::DQUOT, text));
        }
        let memory = Arc::new(make()?);
        let handle = Arc::as_ptr(&memory);
        memories.push(memory);
        self.generation.fetch_add(1, Ordering::Release);
        Ok(handle)
    }

    fn remove(&self, handle: *const Memory, disk: &Disk) -> Result<(), Failure> {
        let mut memories = self.lock();
        let position = memories.iter().position(|memory| Arc::as_ptr(memory) == handle);
        let unknown = || Failure::invalid("this is not memory of this disk; was it freed before?");
        let position = position.ok_or_else(unknown)?;
        disk.unregister(&memories[position])?;
        memories.remove(position);
        self.generation.fetch_add(1, Ordering::Release);
        Ok(())
    }
}

/// The location of one memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Range {
    base: usize,
    length_bytes: u64,
    region: u16,
}

impl Range {
    #[inline(always)]
    fn holds(&self, address: usize, length_bytes: u64) -> bool {
        let offset_bytes = address.wrapping_sub(self.base) as u64;
        offset_bytes <= self.length_bytes && length_bytes <= self.length_bytes - offset_bytes
    }

    /// Where data at `address` is, for a transfer.
    pub(crate) const fn place(&self, address: usize) -> TransferMemory<'static> {
        TransferMemory::Direct(self.region, address.wrapping_sub(self.base) as u64)
    }

    /// Bytes in it, as requests name them: both multiples of a sector, at most 65,535 of them.
    #[inline(always)]
    pub(crate) fn segment(&self, address: usize, length_bytes: u64) -> Option<Segment> {
        let offset_bytes = address.wrapping_sub(self.base) as u64;
        let offset_sectors = u32::try_from(offset_bytes >> SECTOR_SHIFT).ok()?;
        let length_sectors = u16::try_from(length_bytes >> SECTOR_SHIFT).ok()?;
        Some(Segment { offset_sectors, length_sectors, region: self.region })
    }
}

/// One queue's view of the disk's memory.
#[derive(Debug, Default)]
pub(crate) struct Places {
    generation: u64,
    /// Most programs use one memory over and over.
    last: Range,
    all: Vec<Range>,
}

impl Places {
    /// The memory that holds all of these bytes.
    #[inline(always)]
    pub(crate) fn find(&mut self, registry: &Registry, address: usize, length_bytes: u64) -> Option<Range> {
        // Memory that was handed to this thread was registered before, and the generation was counted up before that.
        if self.generation != registry.generation.load(Ordering::Acquire) {
            self.refresh(registry);
        }
        if self.last.holds(address, length_bytes) { Some(self.last) } else { self.search(address, length_bytes) }
    }

    #[cold]
    fn refresh(&mut self, registry: &Registry) {
        let memories = registry.lock();
        let range = |memory: &Arc<Memory>| Range {
            base: memory.base().as_ptr().addr(),
            length_bytes: memory.length_bytes(),
            region: memory.id(),
        };
        self.all = memories.iter().map(range).collect();
        self.last = Range::default();
        self.generation = registry.generation.load(Ordering::Acquire);
    }

    fn search(&mut self, address: usize, length_bytes: u64) -> Option<Range> {
        let found = self.all.iter().find(|range| range.holds(address, length_bytes))?;
        self.last = *found;
        Some(*found)
    }
}

functions! {
    "`disk` is null or open; `memory` is null, valid for a write, or memory that is no longer in use."

    fn fipsee_memory_create(disk: OpenDisk, length_bytes: u64, memory: *mut *const Memory) {
        let make = |disk: &Disk| Ok(disk.create_memory(length_bytes)?);
        // SAFETY: promised by the caller.
        unsafe { register(disk, length_bytes, memory, make) }
    }

    fn fipsee_memory_register(disk: OpenDisk, descriptor: c_int, length_bytes: u64, memory: *mut *const Memory) {
        let make = |disk: &Disk| {
            if descriptor < 0 {
                return Err(Failure::invalid(format!("{descriptor} is no descriptor; give that of a memory file")));
            }
            // SAFETY: not -1; whether it is open, the duplication says.
            let given = unsafe { BorrowedFd::borrow_raw(descriptor) };
            let file = rustix::io::fcntl_dupfd_cloexec(given, 0);
            let file = file.map_err(|error| Failure::new(error, format!("cannot use descriptor {descriptor}: {error}")))?;
            disk.register_file(file, length_bytes).map_err(|error| match error {
                // This client error usually concerns the daemon's memory; here it concerns the caller's.
                Error::Fault(PeerFault::UnsafeMemory { why }) => Failure::invalid(why),
                Error::Fault(PeerFault::OutOfRegion { region_bytes, .. }) => Failure::invalid(format!(
                    "{length_bytes} bytes were asked for, but the memory file has {region_bytes}; see ftruncate(2)"
                )),
                other => other.into(),
            })
        };
        // SAFETY: promised by the caller.
        unsafe { register(disk, length_bytes, memory, make) }
    }
}

/// # Safety
/// `memory` is null or valid for a write.
unsafe fn register(
    disk: &OpenDisk,
    length_bytes: u64,
    memory: *mut *const Memory,
    make: impl FnOnce(&Disk) -> Result<Memory, Failure>,
) -> Result<c_int, Failure> {
    if memory.is_null() {
        return Err(null("memory"));
    }
    if length_bytes == 0 {
        return Err(Failure::invalid("length_bytes is 0; memory has at least one byte"));
    }
    let handle = disk.common.registry.add(|| make(&disk.common.disk))?;
    // SAFETY: not null, the rest was promised.
    unsafe { memory.write(handle) };
    Ok(0)
}

/// See the header.
///
/// # Safety
/// `memory` is null or memory of an open disk.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fipsee_memory_address(memory: *const Memory) -> *mut c_void {
    // SAFETY: promised by the caller.
    let memory = unsafe { memory.as_ref() };
    memory.map_or(std::ptr::null_mut(), |memory| memory.base().as_ptr().cast())
}

/// See the header.
///
/// # Safety
/// As [`fipsee_memory_address`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fipsee_memory_length(memory: *const Memory) -> u64 {
    // SAFETY: promised by the caller.
    let memory = unsafe { memory.as_ref() };
    memory.map_or(0, Memory::length_bytes)
}

/// See the header.
///
/// # Safety
/// As [`fipsee_memory_address`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fipsee_memory_descriptor(memory: *const Memory) -> c_int {
    guarded(|| {
        // SAFETY: promised by the caller.
        let memory = unsafe { memory.as_ref() }.ok_or_else(|| null("memory"))?;
        Ok(memory.as_fd().as_raw_fd())
    })
}

functions! {
    "`disk` is null or open; `memory` is null, valid for a write, or memory that is no longer in use."

    fn fipsee_memory_free(disk: OpenDisk, memory: *const Memory) {
        if memory.is_null() {
            return Err(null("memory"));
        }
        disk.common.registry.remove(memory, &disk.common.disk)?;
        Ok(0)
    }
}

/// Do these bytes start where requests can name them?
#[inline(always)]
pub(crate) const fn is_aligned(address: usize) -> bool {
    (address as u64).is_multiple_of(SECTOR_BYTES)
}
