//! Guest memory over memory files.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use fipsee_testkit::virtqueue::Memory;
use fipsee_virtio::core::memory::{GuestMemory, GuestRegion, RegionDescription};
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

/// A region of guest memory, as the guest sees it.
pub(crate) struct RamRegion {
    pub(crate) address: u64,
    pub(crate) length_bytes: u64,
    pub(crate) offset_bytes: u64,
    pub(crate) file: OwnedFd,
    base: NonNull<u8>,
    mapped_bytes: usize,
}

impl Drop for RamRegion {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which is no longer used.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.mapped_bytes) };
    }
}

/// Memory of the guest.
pub(crate) struct Ram {
    pub(crate) regions: Vec<RamRegion>,
    memory: Arc<GuestMemory>,
}

/// Start and length of the first region.
pub(crate) const BASE: u64 = 0x10_0000;
pub(crate) const LENGTH: u64 = 8 << 20;
/// The second region follows without a gap; its file is another one and begins in the middle of a page. Nothing follows.
pub(crate) const SECOND: u64 = BASE + LENGTH;
pub(crate) const SECOND_LENGTH: u64 = (1 << 20) + 512;
pub(crate) const END: u64 = SECOND + SECOND_LENGTH;

impl Ram {
    pub(crate) fn new() -> Self {
        Self::of(vec![region(BASE, LENGTH, 0), region(SECOND, SECOND_LENGTH, 4096 + 1024)])
    }

    pub(crate) fn of(regions: Vec<RamRegion>) -> Self {
        let memory = map(&regions);
        Self { regions, memory }
    }

    pub(crate) fn memory(&self) -> Arc<GuestMemory> {
        Arc::clone(&self.memory)
    }

    /// The same memory, mapped again, as after another SET_MEM_TABLE.
    pub(crate) fn map_again(&mut self) -> Arc<GuestMemory> {
        self.memory = map(&self.regions);
        self.memory()
    }

    fn place(&self, address: u64) -> *mut u8 {
        let region = self.regions.iter().find(|region| address.wrapping_sub(region.address) < region.length_bytes);
        let region = region.unwrap_or_else(|| panic!("{address:#x} is not in guest memory"));
        region.base.as_ptr().wrapping_add(usize::try_from(region.offset_bytes + address - region.address).expect("small"))
    }
}

impl Memory for Ram {
    fn write(&self, address: u64, bytes: &[u8]) {
        for (at, byte) in (address..).zip(bytes) {
            // SAFETY: within a region; the server reads it at other times, or expects anything.
            unsafe { self.place(at).write_volatile(*byte) };
        }
    }

    fn read(&self, address: u64, length_bytes: usize) -> Vec<u8> {
        // SAFETY: as above.
        (address..).take(length_bytes).map(|at| unsafe { self.place(at).read_volatile() }).collect()
    }

    fn store(&self, address: u64, value: u16) {
        // SAFETY: within a region and aligned.
        unsafe { AtomicU16::from_ptr(self.place(address).cast()) }.store(value, Ordering::SeqCst);
    }

    fn load(&self, address: u64) -> u16 {
        // SAFETY: as above.
        unsafe { AtomicU16::from_ptr(self.place(address).cast()) }.load(Ordering::SeqCst)
    }
}

/// A region whose file has no more bytes than it needs.
pub(crate) fn region(address: u64, length_bytes: u64, offset_bytes: u64) -> RamRegion {
    let file = rustix::fs::memfd_create("test-ram", MemfdFlags::CLOEXEC).expect("memfd");
    let mapped_bytes = usize::try_from(offset_bytes + length_bytes).expect("small");
    rustix::fs::ftruncate(&file, mapped_bytes as u64).expect("ftruncate");
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping at an address that the kernel chooses.
    let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), mapped_bytes, access, MapFlags::SHARED, &file, 0) }.expect("mmap");
    RamRegion { address, length_bytes, offset_bytes, file, base: NonNull::new(base.cast()).expect("not 0"), mapped_bytes }
}

/// Where the hypervisor would see a guest-physical address.
pub(crate) const USER_OFFSET: u64 = 0x7f00_0000_0000;

fn map(regions: &[RamRegion]) -> Arc<GuestMemory> {
    let map = |region: &RamRegion| {
        let description = RegionDescription {
            guest_address: region.address,
            length_bytes: region.length_bytes,
            user_address: USER_OFFSET + region.address,
            file_offset_bytes: region.offset_bytes,
        };
        GuestRegion::map(description, region.file.try_clone().expect("a descriptor")).expect("a good region")
    };
    Arc::new(GuestMemory::new(regions.iter().map(map).collect()).expect("no overlap"))
}
