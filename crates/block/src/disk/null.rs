//! `null:SIZE`: a disk without contents, for measuring everything but the disk.

use fipsee_ring::memory::Span;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Disk, Engine, Submitted, Ticket, bytes_of, capabilities, check_block, description, sectors_of};
use crate::request::Request;
use crate::wire::{BlockInfo, CAPABILITY_WRITE, Operation, Status};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NullOptions {
    pub size_bytes: u64,
    /// Logical block size: 512 or 4096. Without, 512.
    pub block_bytes: Option<u32>,
    pub read_only: bool,
}

/// Writes are dropped; reads succeed and leave the buffer unchanged, so a client reads the previous contents of its own memory.
#[derive(Debug)]
pub struct NullDisk {
    sector_count: AtomicU64,
    info: BlockInfo,
}

impl NullDisk {
    /// A disk of this description. Its identity depends on `name` alone: all null disks have the same contents.
    pub fn new(name: &str, options: &NullOptions) -> Result<Self, String> {
        let block_bytes = check_block(options.block_bytes)?;
        let sector_count = sectors_of(options.size_bytes, block_bytes)?;
        let info = description(sector_count, block_bytes, capabilities(options.read_only), name_identity(name));
        Ok(Self { sector_count: AtomicU64::new(sector_count), info })
    }
}

impl Disk for NullDisk {
    const ANSWERS_AT_ONCE: bool = true;

    fn info(&self) -> BlockInfo {
        BlockInfo { sector_count: self.sector_count.load(Ordering::Relaxed), ..self.info }
    }

    #[inline(always)]
    unsafe fn submit(&self, request: &Request, _: &[Span], _: Ticket, _: &mut Engine) -> Submitted {
        Submitted::Done(match request.operation {
            Operation::Read | Operation::Flush => Status::Ok,
            Operation::GetInfo | Operation::AckEvent => Status::Unsupported,
            _ if !self.info.can(CAPABILITY_WRITE) => Status::ReadOnly,
            _ => Status::Ok,
        })
    }

    fn resize(&self, sector_count: u64) -> Result<(), String> {
        let sector_count = sectors_of(bytes_of(sector_count)?, self.info.block_bytes)?;
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
