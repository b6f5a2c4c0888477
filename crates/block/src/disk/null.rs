//! `null:SIZE`: a disk without content, which measures everything but the disk.

use fipsee_ring::memory::Span;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Disk, Engine, Submitted, Ticket, bytes_of, capabilities, check_block, description, sectors_of};
use crate::request::Request;
use crate::wire::{BlockInfo, Operation, Status};

/// What a null disk is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NullOptions {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Logical block size: 512 or 4096.
    pub block_bytes: u32,
    /// Refuse writes.
    pub read_only: bool,
}

impl Default for NullOptions {
    fn default() -> Self {
        Self { size_bytes: 0, block_bytes: 512, read_only: false }
    }
}

/// Writes vanish; reads succeed and leave the buffer as it was. It holds nothing, so what a client reads is whatever
/// was in the client's own memory.
#[derive(Debug)]
pub struct NullDisk {
    sector_count: AtomicU64,
    options: NullOptions,
    identity: [u8; 16],
}

impl NullDisk {
    /// A disk of this description. Its identity depends on `name` alone: all content is alike.
    ///
    /// # Errors
    /// A size or block size that no disk can have.
    pub fn new(name: &str, options: &NullOptions) -> Result<Self, String> {
        check_block(options.block_bytes)?;
        let sector_count = AtomicU64::new(sectors_of(options.size_bytes, options.block_bytes)?);
        Ok(Self { sector_count, options: options.clone(), identity: name_identity(name) })
    }
}

impl Disk for NullDisk {
    const ANSWERS_AT_ONCE: bool = true;

    fn info(&self) -> BlockInfo {
        let (sector_count, capabilities) = (self.sector_count.load(Ordering::Relaxed), capabilities(self.options.read_only));
        description(sector_count, self.options.block_bytes, capabilities, self.identity)
    }

    #[inline(always)]
    unsafe fn submit(&self, request: &Request, _: &[Span], _: Ticket, _: &mut Engine) -> Submitted {
        Submitted::Done(match request.operation {
            Operation::Read | Operation::Flush => Status::Ok,
            Operation::Write | Operation::Discard | Operation::WriteZeroes if self.options.read_only => Status::ReadOnly,
            Operation::Write | Operation::Discard | Operation::WriteZeroes => Status::Ok,
            Operation::GetInfo | Operation::AckEvent => Status::Unsupported,
        })
    }

    fn resize(&self, sector_count: u64) -> Result<(), String> {
        let sector_count = sectors_of(bytes_of(sector_count)?, self.options.block_bytes)?;
        self.sector_count.store(sector_count, Ordering::Relaxed);
        Ok(())
    }
}

/// FNV-1a in 128 bits: the same in every run and version.
fn name_identity(name: &str) -> [u8; 16] {
    let basis = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128;
    let mix = |hash: u128, byte: &u8| (hash ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
    name.as_bytes().iter().fold(basis, mix).to_le_bytes()
}
