//! `memory:SIZE`: a disk in memory, lost with the daemon, unless another takes it over.

mod limit;
mod mapping;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use fipsee_ring::memory::Span;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use self::limit::Share;
pub use self::limit::usable_memory_bytes;
use self::mapping::{HUGE_PAGE_BYTES, Mapping, PageAdvice, overcommit_is_strict};
use super::{
    Disk, Engine, Submitted, Ticket, bytes_of, capabilities, check_block, description, page_bytes, random_identity, sectors_of,
};
use crate::request::Request;
use crate::wire::{BlockInfo, Operation, SECTOR_BYTES, Status};

/// Most sectors of one discard or write-zeroes: 64 MiB. The worker does it itself, and its other queues wait meanwhile:
/// milliseconds at this size.
const MAX_RANGE_SECTORS: u32 = 128 << 10;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryOptions {
    pub size_bytes: u64,
    /// Size in bytes up to which it can be resized; its own size without.
    pub max_bytes: Option<u64>,
    /// Logical block size: 512 or 4096. Without, 512.
    pub block_bytes: Option<u32>,
    /// Take huge pages of 2 MiB from the system's pool, all at once.
    pub huge: bool,
    pub thp: bool,
    pub lock: bool,
    /// The memory disks of the process may be larger together than the memory there is.
    pub overcommit: bool,
    pub read_only: bool,
}

/// A disk in sparse memory: a page takes memory from its first write until it is discarded.
///
/// Flush and FUA succeed and do nothing; there is no more durable storage. Bytes of requests that overlap in time and
/// range are mixed as on any disk.
///
/// With `huge` the pages are reserved and filled in at creation, for the whole of `max_bytes`, and are kept until the disk is
/// gone; discards write zeroes. Returned to the pool, they could be taken by other processes, and the next write would then kill
/// the daemon with SIGBUS. With `lock`, too, discards write zeroes, since returning memory would undo the reservation.
#[derive(Debug)]
pub struct MemoryDisk {
    sector_count: AtomicU64,
    /// Mapped as long as the disk exists, whatever its size: a request that raced with a shrink still finds memory.
    memory: Mapping,
    /// Locked while it is resized.
    share: Mutex<Share>,
    max_bytes: u64,
    options: MemoryOptions,
    info: BlockInfo,
}

impl MemoryDisk {
    /// A disk of zeroes.
    ///
    /// # Errors
    /// An impossible size, too little memory, too few huge pages, too low a limit of locked memory: each says
    /// what to do.
    pub fn new(options: &MemoryOptions) -> Result<Self, String> {
        let make = |max_bytes| match (options.huge, options.thp || overcommit_is_strict()) {
            (true, _) => Mapping::huge(max_bytes),
            // A memory file has transparent huge pages only where the administrator turned them on for all of them, and where
            // memory is committed strictly, a missing page would be SIGBUS.
            (false, true) => Mapping::private(max_bytes),
            (false, false) => Mapping::sparse(max_bytes),
        };
        Self::over(options, make, random_identity()?, Share::of)
    }

    /// The disk that another process has in the memory `file` and served until now.
    ///
    /// # Errors
    /// As [`new`](Self::new), and that the memory does not match `options`.
    pub(super) fn take_over(
        options: &MemoryOptions,
        file: OwnedFd,
        sector_count: u64,
        identity: [u8; 16],
    ) -> Result<Self, String> {
        let page = if options.huge { HUGE_PAGE_BYTES } else { page_bytes() };
        let size_bytes = bytes_of(sector_count)?;
        // There is that much memory, since the disk is in it.
        let share = |_| Ok(Share::unchecked(size_bytes));
        let disk = Self::over(options, |max_bytes| Mapping::take_over(file, max_bytes, page), identity, share)?;
        sectors_of(size_bytes, disk.info.block_bytes)?;
        if size_bytes > disk.max_bytes {
            return Err(format!("it has {size_bytes} bytes now, more than the {} it may have", disk.max_bytes));
        }
        disk.lock_memory(size_bytes)?;
        disk.sector_count.store(sector_count, Ordering::Relaxed);
        Ok(disk)
    }

    /// Its memory, for the daemon that takes the disk over; `None`: it cannot be passed on.
    pub(super) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.memory.file.as_ref().map(AsFd::as_fd)
    }

    fn over(
        options: &MemoryOptions,
        make: impl FnOnce(u64) -> Result<Mapping, String>,
        identity: [u8; 16],
        share: impl FnOnce(u64) -> Result<Share, String>,
    ) -> Result<Self, String> {
        let block_bytes = check_block(options.block_bytes)?;
        let sector_count = sectors_of(options.size_bytes, block_bytes)?;
        let max_bytes = options.max_bytes.unwrap_or(options.size_bytes);
        sectors_of(max_bytes, block_bytes).map_err(|text| format!("max: {text}"))?;
        if max_bytes < options.size_bytes {
            return Err(format!("max={max_bytes} is less than the size of {} bytes; give at least that", options.size_bytes));
        }
        if options.huge && options.thp {
            return Err("huge and thp exclude each other: huge takes pages of the reserved pool, thp ordinary memory".into());
        }
        // Huge pages have a pool of their own.
        let share = if options.overcommit || options.huge { Share::default() } else { share(options.size_bytes)? };
        let memory = make(max_bytes)?;
        if options.thp {
            memory.advise(0, memory.length_bytes, PageAdvice::Huge).map_err(|errno| {
                format!("the kernel refuses transparent huge pages ({errno}); leave out thp, or use a kernel that has them")
            })?;
        }
        let usual = description(sector_count, block_bytes, capabilities(options.read_only), identity);
        let disk = Self {
            sector_count: AtomicU64::new(sector_count),
            memory,
            share: Mutex::new(share),
            max_bytes,
            options: options.clone(),
            info: BlockInfo { optimal_bytes: 4096, max_range_sectors: MAX_RANGE_SECTORS, ..usual },
        };
        disk.lock_memory(options.size_bytes)?;
        Ok(disk)
    }

    fn lock_memory(&self, size_bytes: u64) -> Result<(), String> {
        // Pages of the huge pool are never swapped.
        if !self.options.lock || self.options.huge {
            return Ok(());
        }
        let length = usize::try_from(size_bytes).unwrap_or(self.memory.length_bytes).min(self.memory.length_bytes);
        // SAFETY: locking does not change memory; the range is within the mapping.
        let locked = unsafe { rustix::mm::mlock(self.memory.base.as_ptr().cast(), length) };
        locked.map_err(|errno| memlock_text(size_bytes, getrlimit(Resource::Memlock).current, errno))
    }

    /// Copy between the disk at `offset_bytes` and the spans, which hold `length_bytes` together.
    #[inline(always)]
    fn copy(&self, is_read: bool, offset_bytes: u64, length_bytes: u64, spans: &[Span]) -> Status {
        let (Ok(offset), Ok(mut rest)) = (usize::try_from(offset_bytes), usize::try_from(length_bytes)) else {
            return Status::OutOfRange;
        };
        // SAFETY: the caller has checked that the range is below the disk's size, and the mapping is at least as long.
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
        BlockInfo { sector_count: self.sector_count.load(Ordering::Relaxed), ..self.info }
    }

    #[inline(always)]
    unsafe fn submit(&self, request: &Request, spans: &[Span], _: Ticket, _: &mut Engine) -> Submitted {
        // The size may have changed since the request was checked.
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
        sectors_of(new_bytes, self.info.block_bytes)?;
        if new_bytes > self.max_bytes {
            return Err(format!(
                "this memory disk can grow to {} bytes, not to {new_bytes}; give it max={new_bytes} when it is made",
                self.max_bytes
            ));
        }
        let mut share = self.share.lock().unwrap_or_else(PoisonError::into_inner);
        let old_bytes = self.sector_count.load(Ordering::Relaxed) * SECTOR_BYTES;
        if new_bytes < old_bytes {
            share.shrink(new_bytes);
            self.sector_count.store(sector_count, Ordering::Relaxed);
            self.memory.unlock_from(new_bytes, self.options.lock && !self.options.huge);
            self.memory.clear(new_bytes, old_bytes - new_bytes, !self.options.huge);
        } else {
            let more = if share.is_counted() { Share::of(new_bytes - old_bytes)? } else { Share::default() };
            // A write that raced with an earlier shrink may have left data there.
            self.memory.clear(old_bytes, new_bytes - old_bytes, !self.options.huge);
            if let Err(text) = self.lock_memory(new_bytes) {
                self.memory.unlock_from(old_bytes, true);
                return Err(text);
            }
            share.add(more);
            self.sector_count.store(sector_count, Ordering::Relaxed);
        }
        Ok(())
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn resident_bytes(disk: &MemoryDisk) -> u64 {
        use std::os::unix::fs::FileExt;
        let page = rustix::param::page_size();
        let mut entries = vec![0; disk.memory.length_bytes / page * 8];
        let pagemap = std::fs::File::open("/proc/self/pagemap").expect("pagemap");
        pagemap.read_exact_at(&mut entries, (disk.memory.base.addr().get() / page * 8) as u64).expect("one entry for each page");
        // Bit 63: in memory; bit 62: in swap.
        let is_taken = |entry: &&[u8; 8]| u64::from_ne_bytes(**entry) >> 62 != 0;
        (entries.as_chunks::<8>().0.iter().filter(is_taken).count() * page) as u64
    }

    #[test]
    fn discard_zeroes_and_shrink_release_memory() {
        for thp in [false, true] {
            let options = MemoryOptions { size_bytes: 64 << 20, max_bytes: Some(256 << 20), thp, ..Default::default() };
            let disk = MemoryDisk::new(&options).expect("a disk");
            assert!(resident_bytes(&disk) <= 4 << 20, "a new disk is sparse");
            // SAFETY: the range is within the mapping, which is not used elsewhere.
            unsafe { std::ptr::write_bytes(disk.memory.base.as_ptr(), 1, 64 << 20) };
            assert_eq!(resident_bytes(&disk), 64 << 20);
            let mut engine = Engine::new(1).expect("engine");
            let mut zero = |operation, sector, length_sectors| {
                let request = Request { operation, tag: 0, fua: true, unmap: false, sector, length_sectors, aux: 0 };
                let ticket = Ticket { queue: 0, tag: 0, started_ticks: 0 };
                // SAFETY: there are no spans.
                unsafe { disk.submit(&request, &[], ticket, &mut engine) }
            };
            assert_eq!(zero(Operation::Discard, 1, 32 << 11), Submitted::Done(Status::Ok));
            assert_eq!(resident_bytes(&disk), (32 << 20) + 4096, "all but the two pages at the edges");
            assert_eq!(zero(Operation::WriteZeroes, 0, 48 << 11), Submitted::Done(Status::Ok));
            assert_eq!(resident_bytes(&disk), 16 << 20);
            disk.resize(1).expect("shrink");
            assert_eq!(resident_bytes(&disk), 4096, "the page of the remaining sector");
        }
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
