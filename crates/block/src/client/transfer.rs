//! Transfers of any length: split into requests, as many at a time as the queue takes, and through bounce memory where the
//! caller's is not registered.

use std::time::Duration;

use fipsee_ring::clock;
use fipsee_ring::ring::Full;

use super::Error;
use super::memory::{Buffer, Bytes};
use super::queue::Queue;
use crate::wire::{BlockInfo, SECTOR_BYTES, SECTOR_SHIFT, Segment, Status};

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

/// What is done with a range of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read its data.
    Read,
    /// Write its data; `fua`: durable before the completion.
    Write {
        /// Force unit access.
        fua: bool,
    },
    /// Make everything written before durable; of no range.
    Flush,
    /// Its contents are no longer needed.
    Discard,
    /// Make it read as zeroes.
    WriteZeroes {
        /// The blocks may be deallocated.
        unmap: bool,
        /// Force unit access.
        fua: bool,
    },
}

/// One action on several ranges of the disk.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// What is done.
    pub action: Action,
    /// Offsets of the ranges, in bytes. The data of number `i` is at `i * length_bytes` of the memory.
    pub disk_offsets: &'a [u64],
    /// Bytes of each.
    pub length_bytes: u64,
    /// Continue after a failure.
    pub keep_going: bool,
    /// Their memory.
    pub place: TransferMemory<'a>,
}

/// What one request of a plan moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Number of its range.
    pub index: usize,
    /// Where it begins in the memory of all the ranges.
    pub start_bytes: u64,
    /// Where it begins on the disk.
    pub offset_bytes: u64,
    /// How long it is.
    pub length_bytes: u64,
}

/// Ranges of the same length, cut into pieces in order.
#[derive(Debug)]
pub struct Pieces {
    range_bytes: u64,
    piece_bytes: u64,
    /// Where the next piece begins, in all the ranges.
    next_bytes: u64,
    end_bytes: u64,
}

impl Pieces {
    /// Of `range_count` ranges of `range_bytes`, in pieces of at most `piece_bytes`.
    pub const fn new(range_count: usize, range_bytes: u64, piece_bytes: u64) -> Self {
        Self { range_bytes, piece_bytes, next_bytes: 0, end_bytes: range_bytes.saturating_mul(range_count as u64) }
    }

    /// Has every piece been handed out?
    #[inline]
    pub const fn is_over(&self) -> bool {
        self.next_bytes >= self.end_bytes
    }

    /// The next piece of the ranges that begin at `disk_offsets`.
    #[inline]
    pub fn next(&mut self, disk_offsets: &[u64]) -> Option<Piece> {
        if self.is_over() {
            return None;
        }
        let (start_bytes, range_bytes) = (self.next_bytes, self.range_bytes);
        // Most plans have one range; a division takes longer than the rest.
        let (index, within_bytes) =
            if start_bytes < range_bytes { (0, start_bytes) } else { (start_bytes / range_bytes, start_bytes % range_bytes) };
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        let length_bytes = self.piece_bytes.min(range_bytes - within_bytes);
        self.next_bytes += length_bytes;
        Some(Piece { index, start_bytes, offset_bytes: disk_offsets[index].saturating_add(within_bytes), length_bytes })
    }
}

impl Plan<'_> {
    /// Stage the request for `piece`, whose place in the bounce memory begins at `slot_bytes`.
    ///
    /// # Errors
    /// The queue is full.
    #[inline]
    pub fn stage(&self, queue: &mut Queue, piece: &Piece, slot_bytes: u64, token: u64) -> Result<(), Full> {
        let Piece { start_bytes, offset_bytes, length_bytes, .. } = *piece;
        let segment = match self.place {
            TransferMemory::None => Segment { offset_sectors: 0, length_sectors: 0, region: 0 },
            TransferMemory::Direct(region, base_bytes) => Segment {
                offset_sectors: u32::try_from((base_bytes + start_bytes) >> SECTOR_SHIFT).unwrap_or(u32::MAX),
                length_sectors: u16::try_from(length_bytes >> SECTOR_SHIFT).unwrap_or(u16::MAX),
                region,
            },
            TransferMemory::Bounce(bytes, bounce) => {
                if matches!(self.action, Action::Write { .. }) {
                    bounce.copy(false, slot_bytes, bytes, start_bytes, length_bytes);
                }
                bounce.segment(slot_bytes, length_bytes)
            }
        };
        let (sector, sectors) = (offset_bytes >> SECTOR_SHIFT, length_bytes >> SECTOR_SHIFT);
        match self.action {
            Action::Read => queue.read(sector, segment, token),
            Action::Write { fua } => queue.write(sector, segment, fua, token),
            Action::Flush => queue.flush(token),
            Action::Discard => queue.discard(sector, sectors, token),
            Action::WriteZeroes { unmap, fua } => queue.write_zeroes(sector, sectors, unmap, fua, token),
        }
    }

    /// The request for `piece` succeeded: bring what it read to where it belongs.
    #[inline]
    pub fn deliver(&self, piece: &Piece, slot_bytes: u64) {
        if let (Action::Read, TransferMemory::Bounce(bytes, bounce)) = (self.action, self.place) {
            bounce.copy(true, slot_bytes, bytes, piece.start_bytes, piece.length_bytes);
        }
    }
}

/// Executes plans on a queue, one at a time.
#[derive(Debug)]
pub struct Transfers {
    /// Most of one request: whole blocks.
    max_data_bytes: u64,
    max_range_bytes: u64,
    period: Option<Duration>,
    /// By token.
    in_flight: Vec<Piece>,
    /// Tokens to use again.
    free: Vec<usize>,
}

impl Transfers {
    /// For a disk like this. `period`: how often the caller must run during a wait.
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

    /// The pieces of `plan`, and how many may be in flight.
    #[inline]
    pub fn pieces(&self, plan: &Plan<'_>, depth: usize) -> (Pieces, usize) {
        let (most_bytes, bounce_bytes) = match plan.place {
            TransferMemory::None => (self.max_range_bytes, u64::MAX),
            TransferMemory::Direct(..) => (self.max_data_bytes, u64::MAX),
            TransferMemory::Bounce(_, bounce) => (self.max_data_bytes.min(BOUNCE_PIECE_BYTES), bounce.length_bytes()),
        };
        let range_bytes = plan.length_bytes.max(1); // A flush has no length, and is one request.
        let piece_bytes = most_bytes.min(bounce_bytes).min(range_bytes);
        let slots = usize::try_from(bounce_bytes / piece_bytes).unwrap_or(usize::MAX).min(depth);
        (Pieces::new(plan.disk_offsets.len(), range_bytes, piece_bytes), slots)
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
        let (mut pieces, slots) = self.pieces(plan, queue.depth());
        let piece_bytes = pieces.piece_bytes;
        let Self { in_flight, free, .. } = self;
        in_flight.clear();
        free.clear();
        let goes_on = |pieces: &Pieces, failures: &[_]| !pieces.is_over() && (plan.keep_going || failures.is_empty());
        loop {
            // The acknowledgement of an event may hold the only place of the queue: nothing is in flight then, but not all is done.
            while goes_on(&pieces, &failures) && queue.free() > 0 && (in_flight.len() < slots || !free.is_empty()) {
                let Some(piece) = pieces.next(plan.disk_offsets) else { break };
                if !(piece.offset_bytes | plan.length_bytes).is_multiple_of(SECTOR_BYTES) {
                    failures.push((piece.index, Status::Misaligned));
                    continue;
                }
                let slot = free.pop().unwrap_or(in_flight.len());
                if slot == in_flight.len() {
                    in_flight.push(piece);
                }
                in_flight[slot] = piece;
                plan.stage(queue, &piece, slot as u64 * piece_bytes, slot as u64).map_err(Error::from)?;
            }
            if !goes_on(&pieces, &failures) && free.len() == in_flight.len() {
                return Ok(failures);
            }
            let deadline_ticks = self.period.map(|period| clock::ticks().saturating_add(clock::duration_to_ticks(period)));
            let waited = queue.wait_until(deadline_ticks, &mut |completion| {
                let slot = usize::try_from(completion.token).unwrap_or(usize::MAX);
                let Some(piece) = in_flight.get(slot) else { return };
                match completion.status {
                    Status::Ok => plan.deliver(piece, slot as u64 * piece_bytes),
                    status => failures.push((piece.index, status)),
                }
                free.push(slot);
            });
            settle(queue, waited)?;
        }
    }
}
