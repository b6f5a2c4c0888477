//! Disks: one file per kind, behind one small trait.
//!
//! A worker owns one [`Engine`] and shares the disks with the other workers. Null and memory disks finish every request in
//! [`Disk::submit`]; file disks leave it to the engine, as do most of those that wrap others, for tests ([`wrap`]). [`AnyDisk`]
//! lets a worker match once per visit to a queue and run a loop made for that kind.

use std::sync::Arc;

use crate::request::Request;
use crate::wire::{
    BlockInfo, CAPABILITY_DISCARD, CAPABILITY_FLUSH, CAPABILITY_FUA, CAPABILITY_PACKED, CAPABILITY_WRITE,
    CAPABILITY_WRITE_ZEROES, MAX_INDIRECT_ENTRIES, MAX_TRANSFER_BYTES, SECTOR_BYTES,
};
use fipsee_ring::memory::Span;

pub mod direct;
mod engine;
pub mod faults;
pub mod file;
pub mod memory;
pub mod null;
pub mod spec;
mod spec_text;
mod takeover;
pub mod wrap;

pub use engine::{Engine, Submitted};
pub use faults::Faults;
pub use file::{DirectMode, FileDisk, FileOptions};
pub use fipsee_serve::Ticket;
pub use memory::{MemoryDisk, MemoryOptions, usable_memory_bytes};
pub use null::{NullDisk, NullOptions};
pub use spec::{DiskSpec, KindSpec};
pub use wrap::{WrappedDisk, Wrapper};

pub trait Disk: Send + Sync {
    /// Does `submit` always return [`Submitted::Done`]? The server then times only a sample of its visits.
    const ANSWERS_AT_ONCE: bool;

    /// The description sent to clients. The size may change; everything else is fixed.
    fn info(&self) -> BlockInfo;

    /// Execute, or start, a read, write, flush, discard or write-zeroes. Requests may complete in any order; a flush covers
    /// the writes that were completed before it was submitted.
    ///
    /// # Safety
    /// The spans stay valid until the request is finished: on return for [`Submitted::Done`], when the engine reports
    /// the ticket for [`Submitted::Pending`].
    unsafe fn submit(&self, request: &Request, spans: &[Span], ticket: Ticket, engine: &mut Engine) -> Submitted;

    fn resize(&self, sector_count: u64) -> Result<(), String>;

    /// Errors are recorded here. `None`: there are none.
    fn faults(&self) -> Option<&Arc<Faults>> {
        None
    }
}

/// A disk of any kind, matched once per visit rather than once per request.
#[derive(Debug)]
pub enum AnyDisk {
    /// `null:SIZE`
    Null(NullDisk),
    /// `memory:SIZE`
    Memory(MemoryDisk),
    /// `file:PATH`
    File(FileDisk),
    /// `delay:`, `error:`, `powercut:`
    Wrapped(WrappedDisk),
}

impl AnyDisk {
    /// Does it answer requests when they are submitted, and nothing of them is in flight?
    pub const fn answers_at_once(&self) -> bool {
        matches!(self, Self::Null(_) | Self::Memory(_))
    }

    pub fn file_disk(&self) -> Option<&FileDisk> {
        match self {
            Self::Null(_) | Self::Memory(_) => None,
            Self::File(disk) => Some(disk),
            Self::Wrapped(disk) => disk.inner().file_disk(),
        }
    }

    /// Its kind, after those that it is wrapped in.
    pub fn kinds(&self) -> Vec<&'static str> {
        let mut kinds = vec![self.kind()];
        let mut disk = self;
        while let Self::Wrapped(wrapped) = disk {
            disk = wrapped.inner();
            kinds.push(disk.kind());
        }
        kinds
    }

    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Null(_) => "null",
            Self::Memory(_) => "memory",
            Self::File(_) => "file",
            Self::Wrapped(disk) => disk.kind(),
        }
    }
}

macro_rules! of_any {
    ($any:expr, $disk:ident => $what:expr) => {
        match $any {
            Self::Null($disk) => $what,
            Self::Memory($disk) => $what,
            Self::File($disk) => $what,
            Self::Wrapped($disk) => $what,
        }
    };
}

impl Disk for AnyDisk {
    const ANSWERS_AT_ONCE: bool = false;

    fn info(&self) -> BlockInfo {
        of_any!(self, disk => disk.info())
    }

    unsafe fn submit(&self, request: &Request, spans: &[Span], ticket: Ticket, engine: &mut Engine) -> Submitted {
        // SAFETY: the contract is passed on.
        of_any!(self, disk => unsafe { disk.submit(request, spans, ticket, engine) })
    }

    fn resize(&self, sector_count: u64) -> Result<(), String> {
        of_any!(self, disk => disk.resize(sector_count))
    }

    fn faults(&self) -> Option<&Arc<Faults>> {
        of_any!(self, disk => disk.faults())
    }
}

/// Largest size of a disk in bytes: file offsets are signed.
const MAX_SIZE_BYTES: u64 = i64::MAX as u64;

/// Every capability, or those of a disk that is only read.
const fn capabilities(read_only: bool) -> u32 {
    let of_writers = CAPABILITY_WRITE | CAPABILITY_FUA | CAPABILITY_DISCARD | CAPABILITY_WRITE_ZEROES;
    CAPABILITY_FLUSH | CAPABILITY_PACKED | if read_only { 0 } else { of_writers }
}

/// The values that all or most disks share.
fn description(sector_count: u64, block_bytes: u32, capabilities: u32, identity: [u8; 16]) -> BlockInfo {
    BlockInfo {
        first_sector: 0,
        sector_count,
        block_bytes,
        optimal_bytes: block_bytes,
        max_transfer_bytes: u32::try_from(MAX_TRANSFER_BYTES).unwrap_or(u32::MAX),
        // 4 GiB: the kernel does it on a thread of its own, so its duration delays no other request.
        max_range_sectors: 8 << 20,
        max_segments: u32::try_from(MAX_INDIRECT_ENTRIES).unwrap_or(u32::MAX),
        capabilities,
        identity,
    }
}

fn sectors_of(size_bytes: u64, block_bytes: u32) -> Result<u64, String> {
    let block = u64::from(block_bytes);
    if size_bytes == 0 {
        return Err(format!("the size is 0; a disk needs at least one block of {block} bytes"));
    }
    if size_bytes > MAX_SIZE_BYTES {
        return Err(format!("the size of {size_bytes} bytes is more than a disk can have; use at most {MAX_SIZE_BYTES}"));
    }
    if !size_bytes.is_multiple_of(block) {
        let (below, above) = (size_bytes / block * block, size_bytes.next_multiple_of(block));
        let possible = if below == 0 { above.to_string() } else { format!("{below} or {above}") };
        return Err(format!("the size of {size_bytes} bytes is not a multiple of the block size, {block} bytes; use {possible}"));
    }
    Ok(size_bytes / SECTOR_BYTES)
}

fn bytes_of(sector_count: u64) -> Result<u64, String> {
    sector_count.checked_mul(SECTOR_BYTES).ok_or_else(|| format!("{sector_count} sectors are more than a disk can have"))
}

fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// The requested block size; 512 by default.
fn check_block(wanted_bytes: Option<u32>) -> Result<u32, String> {
    match wanted_bytes.unwrap_or(512) {
        block_bytes @ (512 | 4096) => Ok(block_bytes),
        block_bytes => Err(format!("the block size {block_bytes} is not possible; use block=512 or block=4096")),
    }
}

/// The identity of a disk whose content is new: clients that reconnect must not mistake it for the one before.
fn random_identity() -> Result<[u8; 16], String> {
    let mut identity = [0; 16];
    let mut filled = 0;
    while filled < identity.len() {
        match rustix::rand::getrandom(&mut identity[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(bytes) => filled += bytes,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(format!("no random number for the disk's identity: getrandom says {errno}")),
        }
    }
    Ok(identity)
}
