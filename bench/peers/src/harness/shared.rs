//! Memory that both processes see at the same address: mapped before the second is forked.
//!
//! Queues that were made for threads allocate their memory themselves. While [`in_shared_memory`] runs, the global
//! allocator serves from such a mapping, so that they work between two processes as the others do.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

/// Bytes of the mapping that queues for threads are built in: the largest holds 8192 messages each way.
const ARENA_BYTES: usize = 8 << 20;

/// The system's allocator, but for what is allocated during [`in_shared_memory`].
#[derive(Debug)]
pub struct SwitchedAllocator;

/// The next free byte of the arena and its end; 0 while the arena is not in use.
static NEXT: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);
/// All of the arena ever mapped in this process, to know what must never be given to the system's allocator.
static ARENA_START: AtomicUsize = AtomicUsize::new(0);
static ARENA_END: AtomicUsize = AtomicUsize::new(0);

fn is_in_arena(address: usize) -> bool {
    (ARENA_START.load(Ordering::Relaxed)..ARENA_END.load(Ordering::Relaxed)).contains(&address)
}

// SAFETY: from the arena, every block is handed out once, inside the mapping, aligned as asked; the rest is the system's.
unsafe impl GlobalAlloc for SwitchedAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let next = NEXT.load(Ordering::Relaxed);
        if next == 0 {
            // SAFETY: the caller's obligations are the same.
            return unsafe { System.alloc(layout) };
        }
        // Own pair of lines for every block, as allocators of large blocks give, so that no two of them share any.
        let start = next.next_multiple_of(layout.align().max(128));
        let end = start.saturating_add(layout.size());
        if end > END.load(Ordering::Relaxed) {
            return std::ptr::null_mut();
        }
        NEXT.store(end, Ordering::Relaxed);
        std::ptr::with_exposed_provenance_mut(start)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if !is_in_arena(block.addr()) {
            // SAFETY: it is not from the arena, so it is the system's.
            unsafe { System.dealloc(block, layout) };
        }
    }
}

/// Run `make` while everything that is allocated comes from memory that forked processes share. Once per process, while it
/// has one thread; the memory stays until the process ends.
pub fn in_shared_memory<T>(make: impl FnOnce() -> T) -> Result<T, String> {
    let start = map(ARENA_BYTES)?.expose_provenance();
    let end = start + ARENA_BYTES;
    ARENA_START.store(start, Ordering::Relaxed);
    ARENA_END.store(end, Ordering::Relaxed);
    END.store(end, Ordering::Relaxed);
    NEXT.store(start, Ordering::Relaxed);
    let made = make();
    NEXT.store(0, Ordering::Relaxed);
    Ok(made)
}

/// Zeroed pages that forked processes share, present before the measurement. They stay until the process ends.
pub fn map(length_bytes: usize) -> Result<*mut u8, String> {
    let flags = MapFlags::SHARED | MapFlags::POPULATE;
    // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing of ours.
    let mapped =
        unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), length_bytes, ProtFlags::READ | ProtFlags::WRITE, flags) };
    mapped.map(<*mut _>::cast).map_err(|error| format!("cannot map {length_bytes} bytes of shared memory: {error}"))
}

/// Zeroed memory for one `T`, shared with processes that are forked later.
/// # Safety
/// Zeroes are a valid `T`, and `T` may be used from two processes at a time: atomics, or memory that is only pointed to.
pub unsafe fn zeroed<T>() -> Result<&'static T, String> {
    const { assert!(align_of::<T>() <= 4096) };
    let memory = map(size_of::<T>())?;
    // SAFETY: page-aligned, long enough, never unmapped, zeroed, and `T` may be so by this function's contract.
    Ok(unsafe { &*memory.cast::<T>() })
}
