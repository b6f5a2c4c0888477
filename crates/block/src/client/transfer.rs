//! Transfers of any length: split into requests, as many at a time as the queue takes, and through bounce memory where the
//! caller's is not registered.

use std::time::Duration;

use fipsee_ring::clock;
use fipsee_ring::ring::Full;

use super::Error;
use super::memory::{Buffer, Bytes};
use super::queue::Queue;
use crate::wire::{BlockInfo, Operation, SECTOR_BYTES, SECTOR_SHIFT, Segment, Status};

/// Most data of one request through bounce memory.
pub const BOUNCE_PIECE_BYTES: u64 = 256 << 10;
/// Bounce memory of one queue: enough pieces to keep a disk busy during copies.
pub const BOUNCE_BYTES: u64 = 8 * BOUNCE_PIECE_BYTES;
/// Most data of one request straight into memory of the disk: large enough to hide the cost of a request, small enough that
/// several of a long read are in flight.
const DIRECT_PIECE_BYTES: u64 = 1 << 20;

/// The memory of a transfer's data.
#[derive(Clone, Copy, Debug)]
pub enum TransferMemory<'a> {
    /// There is none.
    None,
    /// In this region of the disk's memory, at this offset in bytes, a multiple of 512.
    Direct(u16, u64),
    /// Elsewhere: it goes through the buffer.
    Bounce(Bytes<'a>, &'a Buffer),
}

/// The same on several ranges of the disk.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// The operation.
    pub operation: Operation,
    /// `FLAG_*`.
    pub flags: u16,
    /// Offsets of the ranges, in bytes. The data of number `i` is at `i * length_bytes` of the memory.
    pub disk_offsets: &'a [u64],
    /// Bytes of each.
    pub length_bytes: u64,
    /// Continue after a failure.
    pub keep_going: bool,
    /// Their memory.
    pub place: TransferMemory<'a>,
}

impl Plan<'_> {
    /// The request at `at_bytes` of all the ranges: its range, its offset on the disk, its length.
    fn request(&self, at_bytes: u64, piece_bytes: u64) -> (usize, u64, u64) {
        let range_bytes = self.length_bytes.max(1);
        // Most plans have one range; a division takes longer than the rest.
        let (index, start_bytes) =
            if at_bytes < range_bytes { (0, at_bytes) } else { (at_bytes / range_bytes, at_bytes % range_bytes) };
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        (index, self.disk_offsets[index].saturating_add(start_bytes), piece_bytes.min(range_bytes - start_bytes))
    }

    #[inline]
    fn stage(&self, queue: &mut Queue, at_bytes: u64, range: (u64, u64), slot_bytes: u64, token: u64) -> Result<(), Full> {
        let (offset_bytes, length_bytes) = range;
        let segment = match self.place {
            TransferMemory::None => Segment { offset_sectors: 0, length_sectors: 0, region: 0 },
            TransferMemory::Direct(region, base_bytes) => Segment {
                offset_sectors: u32::try_from((base_bytes + at_bytes) >> SECTOR_SHIFT).unwrap_or(u32::MAX),
                length_sectors: u16::try_from(length_bytes >> SECTOR_SHIFT).unwrap_or(u16::MAX),
                region,
            },
            TransferMemory::Bounce(bytes, bounce) => {
                if self.operation == Operation::Write {
                    bounce.copy(false, slot_bytes, bytes, at_bytes, length_bytes);
                }
                bounce.segment(slot_bytes, length_bytes)
            }
        };
        queue.request(self.operation, self.flags, (offset_bytes >> SECTOR_SHIFT, length_bytes >> SECTOR_SHIFT), segment, token)
    }
}

/// Executes plans on a queue, one at a time.
#[derive(Debug)]
pub struct Transfers {
    /// Most of one request: whole blocks.
    max_data_bytes: u64,
    max_range_bytes: u64,
    period: Option<Duration>,
    /// By token: the request's offset in all the ranges.
    in_flight: Vec<u64>,
    /// Free tokens.
    free: Vec<usize>,
}

impl Transfers {
    /// For a disk like this. `period`: how often the caller must run during a wait.
    #[must_use]
    pub fn new(info: &BlockInfo, period: Option<Duration>) -> Self {
        let block_bytes = u64::from(info.block_bytes);
        let whole_blocks = |bytes: u64| (bytes - bytes % block_bytes).max(block_bytes);
        let max_range_bytes = match info.max_range_sectors {
            0 => u64::MAX, // The disk does not report it.
            sectors => whole_blocks(u64::from(sectors) << SECTOR_SHIFT),
        };
        let max_data_bytes = whole_blocks(u64::from(info.max_transfer_bytes).min(DIRECT_PIECE_BYTES));
        Self { max_data_bytes, max_range_bytes, period, in_flight: Vec::new(), free: Vec::new() }
    }

    /// Longest piece of one request, and the most in flight.
    fn pieces(&self, plan: &Plan<'_>, depth: usize) -> (u64, usize) {
        let (most_bytes, bounce_bytes) = match plan.place {
            TransferMemory::None => (self.max_range_bytes, u64::MAX),
            TransferMemory::Direct(..) => (self.max_data_bytes, u64::MAX),
            TransferMemory::Bounce(_, bounce) => (self.max_data_bytes.min(BOUNCE_PIECE_BYTES), bounce.length_bytes()),
        };
        let piece_bytes = most_bytes.min(bounce_bytes).min(plan.length_bytes.max(1));
        (piece_bytes, usize::try_from(bounce_bytes / piece_bytes).unwrap_or(usize::MAX).min(depth))
    }

    /// Execute `plan`; returns the failures: number of the range, and status. Each wait, of at most the period, ends in `settle`,
    /// which gets its outcome, restores a lost connection, or fails. When a plan starts, nothing may be outstanding on the queue;
    /// after an error requests may be, which the caller waits for or [abandons](Queue::abandon).
    ///
    /// # Errors
    /// The error of `settle`.
    #[inline]
    pub fn run<E: From<Error>>(
        &mut self,
        queue: &mut Queue,
        plan: &Plan<'_>,
        mut settle: impl FnMut(&mut Queue, Result<usize, Error>) -> Result<(), E>,
    ) -> Result<Vec<(usize, Status)>, E> {
        let mut failures = Vec::new();
        if plan.length_bytes == 0 && !matches!(plan.place, TransferMemory::None) {
            return Ok(failures);
        }
        let (piece_bytes, slots) = self.pieces(plan, queue.depth());
        let (mut at_bytes, end_bytes) = (0, plan.length_bytes.max(1).saturating_mul(plan.disk_offsets.len() as u64));
        let Self { in_flight, free, .. } = self;
        in_flight.clear();
        free.clear();
        let goes_on = |at_bytes, failures: &[_]| at_bytes < end_bytes && (plan.keep_going || failures.is_empty());
        loop {
            // The acknowledgement of an event may hold the only tag of the queue: then nothing is in flight, but not all is done.
            while goes_on(at_bytes, &failures) && queue.free() > 0 && (in_flight.len() < slots || !free.is_empty()) {
                let (index, offset_bytes, length_bytes) = plan.request(at_bytes, piece_bytes);
                if (offset_bytes | plan.length_bytes).is_multiple_of(SECTOR_BYTES) {
                    let slot = free.pop().unwrap_or(in_flight.len());
                    if slot == in_flight.len() {
                        in_flight.push(at_bytes);
                    }
                    in_flight[slot] = at_bytes;
                    let range = (offset_bytes, length_bytes);
                    let staged = plan.stage(queue, at_bytes, range, slot as u64 * piece_bytes, slot as u64);
                    staged.map_err(Error::from)?;
                } else {
                    failures.push((index, Status::Misaligned));
                }
                at_bytes += length_bytes;
            }
            if !goes_on(at_bytes, &failures) && free.len() == in_flight.len() {
                return Ok(failures);
            }
            let deadline_ticks = self.period.map(|period| clock::ticks().saturating_add(clock::duration_to_ticks(period)));
            let waited = queue.wait_until(deadline_ticks, &mut |completion| {
                let slot = usize::try_from(completion.token).unwrap_or(usize::MAX);
                let Some(at_bytes) = in_flight.get(slot).copied() else { return };
                let (index, _, length_bytes) = plan.request(at_bytes, piece_bytes);
                match (completion.status, plan.place) {
                    (Status::Ok, TransferMemory::Bounce(bytes, bounce)) if plan.operation == Operation::Read => {
                        bounce.copy(true, slot as u64 * piece_bytes, bytes, at_bytes, length_bytes);
                    }
                    (Status::Ok, _) => {}
                    (status, _) => failures.push((index, status)),
                }
                free.push(slot);
            });
            settle(queue, waited)?;
        }
    }
}
