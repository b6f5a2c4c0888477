//! `file:PATH`: a disk in a regular file or on a block device, through io_uring.
//!
//! A file is open once, and uses direct I/O (`O_DIRECT`) or the page cache for as long as it is open: both at once lose data
//! (docs/decisions/0022-a-file-disk-never-mixes.md). Direct I/O transfers whole *units* (`mode.rs`). A request that covers parts of
//! units, or whose memory is not aligned, goes through a buffer of the engine's; a write of a part of a unit is a
//! read-modify-write, which no other write may overlap (`range_lock.rs`). Data is durable once a flush (fdatasync) or an FUA write
//! (`RWF_DSYNC`) has completed.
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use super::{Disk, Engine, Faults, Submitted, Ticket, bytes_of, sectors_of};
use crate::request::{MAX_SPANS, Request};
use crate::wire::{BlockInfo, CAPABILITY_DISCARD, CAPABILITY_WRITE, Operation, SECTOR_BYTES, Status};
use fipsee_ring::memory::Span;

pub(super) mod job;
mod lock;
mod mode;
mod open;
pub(super) mod range_lock;
mod target;
mod window;

use job::Step;
pub use lock::{lock_to_copy, lock_to_overwrite};
use open::{NewFile, Source};
use target::Target;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectMode {
    /// Where the file system and the size of the file allow.
    #[default]
    Auto,
    /// Refuse to open a file with which it is not possible.
    On,
    Off,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileOptions {
    pub path: PathBuf,
    /// Size in bytes. A missing file is created with it; an existing one must have it.
    pub size_bytes: Option<u64>,
    /// Logical block size: 512 or 4096. Without, 512 for a file and its own for a device.
    pub block_bytes: Option<u32>,
    pub direct: DirectMode,
    pub read_only: bool,
}

#[derive(Debug)]
pub struct FileDisk {
    target: Arc<Target>,
    path: PathBuf,
    info: BlockInfo,
    /// Opening it created the file.
    new: Option<NewFile>,
}

impl FileDisk {
    /// Open, and if need be create, the file, and lock it against other daemons.
    ///
    /// # Errors
    /// What is wrong with the path, its size, its permissions, its file system or this machine's io_uring, and what to do.
    pub fn open(options: &FileOptions) -> Result<Self, String> {
        open::open(options, Source::Path)
    }

    /// As [`open`](Self::open), with the file that another process, which may reach the path, has opened.
    pub(super) fn open_passed(options: &FileOptions, file: OwnedFd) -> Result<Self, String> {
        open::open(options, Source::Passed(file.into()))
    }

    /// Continue with the file that another process has open, and serves with `sector_count` sectors.
    /// `was_passed`: opened for that process by another one, so that the path is only a name.
    pub(super) fn take_over(options: &FileOptions, served: OwnedFd, sector_count: u64, was_passed: bool) -> Result<Self, String> {
        let served = served.into();
        let source = if was_passed { Source::ServedAsPassed(served) } else { Source::Served(served) };
        let disk = open::open(options, source)?;
        let (path, size_bytes) = (options.path.display(), bytes_of(sector_count)?);
        if disk.target.size_bytes() < size_bytes {
            return Err(format!("{path} has become shorter than the {size_bytes} bytes that are served; restart the daemon"));
        }
        // If it grew outside the daemon, it keeps the size that its clients know.
        disk.target.set_size_bytes(size_bytes);
        Ok(disk)
    }

    /// The open file, for a process that continues with it.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.target.file()
    }

    /// Remove the file if opening the disk created it: the disk will not be served after all.
    pub fn remove_if_new(&self) -> Result<(), String> {
        let path = self.path.display();
        let removed = self.new.as_ref().map_or(Ok(()), NewFile::remove);
        removed
            .map_err(|error| format!("{path} was made for a disk that is not served, and cannot be removed: {error}; remove it"))
    }

    /// The unit of direct I/O in bytes; `None`: everything goes through the page cache.
    pub fn direct_unit_bytes(&self) -> Option<u64> {
        self.target.alignment.map(|alignment| alignment.unit_mask + 1)
    }

    /// The step for a request, with its offset and length; or the status if none is needed.
    fn plan(&self, request: &Request, spans: &[Span]) -> Result<(Step, u64, u64), Status> {
        let step = match request.operation {
            Operation::Flush => return Ok((Step::Sync, 0, 0)),
            Operation::Read => Step::Read,
            Operation::Write => Step::Write { durable: request.fua },
            Operation::Discard => Step::Discard,
            Operation::WriteZeroes => Step::Zero { unmap: request.unmap, durable: request.fua },
            Operation::GetInfo | Operation::AckEvent => return Err(Status::Unsupported),
        };
        if step != Step::Read && !self.info.can(CAPABILITY_WRITE) {
            return Err(Status::ReadOnly);
        }
        if step == Step::Discard && !self.info.can(CAPABILITY_DISCARD) {
            return Err(Status::Unsupported);
        }
        // The size may have changed since the request was checked.
        let sector_count = self.target.size_bytes() / SECTOR_BYTES;
        if request.sector > sector_count || request.length_sectors > sector_count - request.sector {
            return Err(Status::OutOfRange);
        }
        let has_memory = matches!(step, Step::Read | Step::Write { .. });
        let span_bytes = spans.iter().map(|span| span.length_bytes() as u64).sum::<u64>();
        if request.length_sectors == 0 || (has_memory && span_bytes != request.length_bytes()) || spans.len() > MAX_SPANS {
            return Err(Status::Invalid);
        }
        let (offset, length) = (request.offset_bytes(), request.length_bytes());
        if step != Step::Discard {
            return Ok((step, offset, length));
        }
        let (start, end) = self.target.whole_ranges(offset, length);
        if start == end { Err(Status::Ok) } else { Ok((step, start, end - start)) }
    }
}

impl Disk for FileDisk {
    const ANSWERS_AT_ONCE: bool = false;

    fn info(&self) -> BlockInfo {
        BlockInfo { sector_count: self.target.size_bytes() / SECTOR_BYTES, ..self.info }
    }

    unsafe fn submit(&self, request: &Request, spans: &[Span], ticket: Ticket, engine: &mut Engine) -> Submitted {
        let (step, offset, length) = match self.plan(request, spans) {
            Ok(plan) => plan,
            Err(status) => return Submitted::Done(status),
        };
        let spans = if matches!(step, Step::Read | Step::Write { .. }) { spans } else { &[] };
        // SAFETY: the spans stay valid until the ticket is reported, by this function's own contract.
        let begun = unsafe { engine.begin(ticket, |job| job.set_up(&self.target, step, offset, length, spans)) };
        if begun != Submitted::Pending {
            self.target.faults.failed(request.operation, request.sector, Some(engine.refusal()));
        }
        begun
    }

    /// A regular file is grown or truncated. A block device has its own size: `sector_count` must be that.
    fn resize(&self, sector_count: u64) -> Result<(), String> {
        let path = self.path.display();
        let new_bytes = bytes_of(sector_count)?;
        sectors_of(new_bytes, self.info.block_bytes)?;
        if !self.target.is_regular {
            let device_bytes = open::device_bytes(self.target.file()).map_err(|errno| format!("{path}: {errno}"))?;
            if device_bytes != new_bytes {
                return Err(format!(
                    "the device {path} has {device_bytes} bytes, not {new_bytes}; resize the device first, then give its size"
                ));
            }
            self.target.set_size_bytes(device_bytes);
            return Ok(());
        }
        if !self.info.can(CAPABILITY_WRITE) {
            return Err(format!("{path} is open for reading only; leave out ro to resize it"));
        }
        mode::check_whole_units(self.target.alignment, new_bytes).map_err(|text| format!("{path}: {text}"))?;
        self.target.resize(new_bytes).map_err(|errno| {
            format!("{path} cannot be made {new_bytes} bytes long ({errno}); the file system may be full or limit file sizes")
        })
    }

    fn faults(&self) -> Option<&Arc<Faults>> {
        Some(&self.target.faults)
    }
}
