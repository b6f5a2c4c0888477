//! `memory:SIZE`: a disk in anonymous memory, gone with the daemon.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};

use super::{Disk, Engine, Submitted, Ticket, bytes_of, capabilities, check_block, random_identity, sectors_of};
use crate::request::{Request, Span};
use crate::wire::{BlockInfo, MAX_INDIRECT_ENTRIES, MAX_TRANSFER_BYTES, Operation, SECTOR_BYTES, Status};

/// Most sectors of one discard or write-zeroes: 64 MiB. The worker does it itself, and its other queues wait meanwhile:
/// milliseconds at this size.
const MAX_RANGE_SECTORS: u32 = 128 << 10;

/// Size of the huge pages that `huge` takes.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// What a memory disk is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryOptions {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Size in bytes up to which it can be resized; its own size without.
    pub max_bytes: Option<u64>,
    /// Logical block size: 512 or 4096.
    pub block_bytes: u32,
    /// Take huge pages of 2 MiB from the system's pool, all at once.
    pub huge: bool,
    /// Ask for transparent huge pages.
    pub thp: bool,
    /// Keep it out of swap.
    pub lock: bool,
    /// Refuse writes.
    pub read_only: bool,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self { size_bytes: 0, max_bytes: None, block_bytes: 512, huge: false, thp: false, lock: false, read_only: false }
    }
}

/// A disk in sparse memory: a page takes memory from its first write until it is discarded.
///
/// Flush and FUA succeed and do nothing; there is nothing more durable. Bytes of requests that overlap in time and
/// place mix as on any disk.
///
/// With `huge` the pages are reserved and filled in at creation, for the whole of `max_bytes`, and are kept until the
/// disk is gone; discards write zeroes. Giving them back to the pool would let someone else take them, and the next
/// write would then kill the daemon with SIGBUS. With `lock`, too, discards write zeroes, since giving memory back
/// would undo the promise that it is there.
#[derive(Debug)]
pub struct MemoryDisk {
    sector_count: AtomicU64,
    /// Mapped as long as the disk lives, whatever its size: a request that raced with a shrink reaches memory.
    memory: Mapping,
    resizing: Mutex<()>,
    max_bytes: u64,
    options: MemoryOptions,
    identity: [u8; 16],
}

impl MemoryDisk {
    /// A disk of zeroes.
    ///
    /// # Errors
    /// A size that no disk can have, too little memory, too few huge pages, too low a limit of locked memory: each says
    /// what to do.
    pub fn new(options: &MemoryOptions) -> Result<Self, String> {
        check_block(options.block_bytes)?;
        let sector_count = sectors_of(options.size_bytes, options.block_bytes)?;
        let max_bytes = options.max_bytes.unwrap_or(options.size_bytes);
        sectors_of(max_bytes, options.block_bytes).map_err(|text| format!("max: {text}"))?;
        if max_bytes < options.size_bytes {
            return Err(format!("max={max_bytes} is less than the size of {} bytes; give at least that", options.size_bytes));
        }
        if options.huge && options.thp {
            return Err("huge and thp exclude each other: huge takes pages of the reserved pool, thp ordinary memory".into());
        }
        let memory = if options.huge { Mapping::huge(max_bytes)? } else { Mapping::sparse(max_bytes)? };
        if options.thp {
            memory.advise(0, memory.length_bytes, Advice::LinuxHugepage).map_err(|errno| {
                format!("the kernel refuses transparent huge pages ({errno}); leave out thp, or use a kernel that has them")
            })?;
        }
        let disk = Self {
            sector_count: AtomicU64::new(sector_count),
            memory,
            resizing: Mutex::new(()),
            max_bytes,
            options: options.clone(),
            identity: random_identity()?,
        };
        disk.lock_memory(options.size_bytes)?;
        Ok(disk)
    }

    /// Lock the first `size_bytes`, if that is wanted.
    fn lock_memory(&self, size_bytes: u64) -> Result<(), String> {
        // Pages of the huge pool are never swapped.
        if !self.options.lock || self.options.huge {
            return Ok(());
        }
        let length = usize::try_from(size_bytes).unwrap_or(self.memory.length_bytes).min(self.memory.length_bytes);
        // SAFETY: locking does not change memory; the range lies within the mapping.
        let locked = unsafe { rustix::mm::mlock(self.memory.base.as_ptr().cast(), length) };
        locked.map_err(|errno| memlock_text(size_bytes, getrlimit(Resource::Memlock).current, errno))
    }

    /// Copy between the disk at `offset_bytes` and the spans, which hold `length_bytes` together.
    #[inline(always)]
    fn copy(&self, is_read: bool, offset_bytes: u64, length_bytes: u64, spans: &[Span]) -> Status {
        let (Ok(offset), Ok(mut rest)) = (usize::try_from(offset_bytes), usize::try_from(length_bytes)) else {
            return Status::OutOfRange;
        };
        // SAFETY: the caller has checked that the range lies below the disk's size, and the mapping is at least as long.
        let mut place = unsafe { self.memory.base.add(offset) };
        for span in spans {
            let piece = span.length_bytes();
            if piece > rest {
                return Status::Invalid;
            }
            let (from, to) = if is_read { (place, span.base()) } else { (span.base(), place) };
            // SAFETY:
            // * both ranges are mapped: the disk's because `piece` does not pass the end of the checked range, the
            //   span's by the contract of `submit`;
            // * they do not overlap: the disk's memory is in no region that a client can name;
            // * no reference to either exists. Other workers and the client may write the same bytes meanwhile; the
            //   copy then holds a mixture, and nothing here depends on what it holds.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), piece) };
            rest -= piece;
            // SAFETY: at most one past the end of the checked range.
            place = unsafe { place.add(piece) };
        }
        if rest == 0 { Status::Ok } else { Status::Invalid }
    }
}

impl Disk for MemoryDisk {
    const ANSWERS_AT_ONCE: bool = true;

    fn info(&self) -> BlockInfo {
        BlockInfo {
            first_sector: 0,
            sector_count: self.sector_count.load(Ordering::Relaxed),
            block_bytes: self.options.block_bytes,
            optimal_bytes: 4096,
            max_transfer_bytes: u32::try_from(MAX_TRANSFER_BYTES).unwrap_or(u32::MAX),
            max_range_sectors: MAX_RANGE_SECTORS,
            max_segments: u32::try_from(MAX_INDIRECT_ENTRIES).unwrap_or(u32::MAX),
            capabilities: capabilities(self.options.read_only),
            identity: self.identity,
        }
    }

    #[inline(always)]
    unsafe fn submit(&self, request: &Request, spans: &[Span], _: Ticket, _: &mut Engine) -> Submitted {
        // What the request was checked against may be a size ago.
        let sector_count = self.sector_count.load(Ordering::Relaxed);
        let is_inside = request.sector <= sector_count && request.length_sectors <= sector_count - request.sector;
        Submitted::Done(match request.operation {
            Operation::Flush => Status::Ok,
            Operation::GetInfo | Operation::AckEvent => Status::Unsupported,
            Operation::Read if is_inside => self.copy(true, request.offset_bytes(), request.length_bytes(), spans),
            Operation::Read => Status::OutOfRange,
            _ if self.options.read_only => Status::ReadOnly,
            _ if !is_inside => Status::OutOfRange,
            Operation::Write => self.copy(false, request.offset_bytes(), request.length_bytes(), spans),
            Operation::Discard | Operation::WriteZeroes => {
                let gives_back = !self.options.huge && !self.options.lock;
                self.memory.clear(request.offset_bytes(), request.length_bytes(), gives_back);
                Status::Ok
            }
        })
    }

    fn resize(&self, sector_count: u64) -> Result<(), String> {
        let new_bytes = bytes_of(sector_count)?;
        sectors_of(new_bytes, self.options.block_bytes)?;
        if new_bytes > self.max_bytes {
            return Err(format!(
                "this memory disk can grow to {} bytes, not to {new_bytes}; give it max={new_bytes} when it is made",
                self.max_bytes
            ));
        }
        let _resizing = self.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        let old_bytes = self.sector_count.load(Ordering::Relaxed) * SECTOR_BYTES;
        if new_bytes < old_bytes {
            self.sector_count.store(sector_count, Ordering::Relaxed);
            self.memory.unlock_from(new_bytes, self.options.lock && !self.options.huge);
            self.memory.clear(new_bytes, old_bytes - new_bytes, !self.options.huge);
        } else {
            // A write that raced with an earlier shrink may have left something there.
            self.memory.clear(old_bytes, new_bytes - old_bytes, !self.options.huge);
            if let Err(text) = self.lock_memory(new_bytes) {
                self.memory.unlock_from(old_bytes, true);
                return Err(text);
            }
            self.sector_count.store(sector_count, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Anonymous memory, zero at first.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    length_bytes: usize,
}

// SAFETY: plain memory that every thread may access, unmapped only on drop.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method hands out a reference to the bytes.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(length_bytes: u64, page_bytes: u64, flags: MapFlags) -> Result<Self, Errno> {
        let length_bytes = usize::try_from(length_bytes.next_multiple_of(page_bytes)).map_err(|_| Errno::NOMEM)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing of ours.
        let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), length_bytes, access, MapFlags::PRIVATE | flags) }?;
        Ok(Self { base: NonNull::new(base.cast()).ok_or(Errno::NOMEM)?, length_bytes })
    }

    fn sparse(length_bytes: u64) -> Result<Self, String> {
        Self::new(length_bytes, page_bytes(), MapFlags::NORESERVE).map_err(|errno| {
            format!(
                "cannot reserve {length_bytes} bytes of address space ({errno}); make the disk or its max= smaller, or raise \
                 `ulimit -v`, or set the sysctl vm.overcommit_memory=0"
            )
        })
    }

    fn huge(length_bytes: u64) -> Result<Self, String> {
        let refused = |errno| huge_text(length_bytes.div_ceil(HUGE_PAGE_BYTES), HugePool::read().as_ref(), errno);
        let memory = Self::new(length_bytes, HUGE_PAGE_BYTES, MapFlags::HUGETLB | MapFlags::HUGE_2MB).map_err(refused)?;
        // A page that turns out to be missing (a cgroup's limit, another NUMA node) is an error here, and SIGBUS later.
        match memory.advise(0, memory.length_bytes, Advice::LinuxPopulateWrite) {
            // Linux before 5.14 does not know it; the reservation must do.
            Ok(()) | Err(Errno::INVAL) => Ok(memory),
            Err(errno) => Err(refused(errno)),
        }
    }

    fn advise(&self, offset: usize, length: usize, advice: Advice) -> Result<(), Errno> {
        // SAFETY: the callers' ranges lie within the mapping; every advice used here keeps it mapped, and those that drop
        // content are asked for where content is to be dropped. No reference to the memory exists.
        unsafe { rustix::mm::madvise(self.base.as_ptr().wrapping_add(offset).cast(), length, advice) }
    }

    /// Make a range read as zeroes: whole pages by giving them back if `gives_back`, the edges by writing.
    fn clear(&self, offset_bytes: u64, length_bytes: u64, gives_back: bool) {
        let page = page_bytes();
        let end = offset_bytes + length_bytes;
        let (first_page, end_page) = (offset_bytes.next_multiple_of(page), end / page * page);
        if gives_back
            && first_page < end_page
            && let (Ok(start), Ok(length)) = (usize::try_from(first_page), usize::try_from(end_page - first_page))
            && self.advise(start, length, Advice::LinuxDontNeed).is_ok()
        {
            self.write_zeroes(offset_bytes, first_page);
            self.write_zeroes(end_page, end);
            return;
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

    /// Let the pages that lie wholly behind `size_bytes` be swapped again, if they were locked.
    fn unlock_from(&self, size_bytes: u64, is_locked: bool) {
        if let (true, Ok(start)) = (is_locked, usize::try_from(size_bytes.next_multiple_of(page_bytes())))
            && start < self.length_bytes
        {
            let place = self.base.as_ptr().wrapping_add(start);
            // SAFETY: unlocking does not change memory; the range lies within the mapping.
            let unlocked = unsafe { rustix::mm::munlock(place.cast(), self.length_bytes - start) };
            debug_assert!(unlocked.is_ok());
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, whole, and nothing that points into it outlives it.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.length_bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

fn memlock_text(size_bytes: u64, limit_bytes: Option<u64>, errno: Errno) -> String {
    let Some(limit) = limit_bytes else {
        return format!("cannot lock {size_bytes} bytes of memory ({errno}); there is too little free memory, or leave out lock");
    };
    let wanted_kib = size_bytes.div_ceil(1024);
    format!(
        "cannot lock {size_bytes} bytes of memory ({errno}): the limit RLIMIT_MEMLOCK is {limit} bytes; raise it with \
         `ulimit -l {wanted_kib}` (or more, for other disks) or LimitMEMLOCK= in the systemd unit, or leave out lock"
    )
}

/// The system's pool of 2 MiB pages.
#[derive(Clone, Copy, Debug)]
struct HugePool {
    pages: u64,
    /// Free and promised to nobody.
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
    fn too_few_huge_pages_are_counted_in_the_error() {
        let text = huge_text(64, Some(&HugePool { pages: 10, free_pages: 4 }), Errno::NOMEM);
        assert!(text.contains("needs 64 huge pages") && text.contains("only 4 are free"), "{text}");
        assert!(text.contains("vm.nr_hugepages to at least 70 (now 10)"), "{text}");
        assert!(huge_text(1, None, Errno::INVAL).contains("no huge pages"));
        assert!(huge_text(1, Some(&HugePool { pages: 1, free_pages: 1 }), Errno::FAULT).contains("cgroup"));
    }

    #[test]
    fn memlock_error_names_size_limit_and_both_remedies() {
        let text = memlock_text(1 << 20, Some(65536), Errno::NOMEM);
        for part in ["1048576 bytes", "65536 bytes", "ulimit -l 1024", "LimitMEMLOCK="] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(memlock_text(1, None, Errno::AGAIN).contains("too little free memory"));
    }
}
