//! Requests that need more than one request of the disk: parts of blocks, long ranges, writes that overlap others. A thread of
//! its own executes them one after the other, so that the threads that serve the kernel never wait for them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};

use fipsee_block::client::transfer::{Piece, Pieces};
use fipsee_block::wire::{CAPABILITY_FLUSH, CAPABILITY_FUA, CAPABILITY_WRITE_ZEROES};
use fuser::{Errno, ReplyData, ReplyEmpty, ReplyWrite};

use super::answer::Answer;
use super::lane::{Lane, MAX_DATA_BYTES, Work};
use super::link::MountedDisk;
use super::ranges::Ranges;

/// Such a request.
#[derive(Debug)]
pub(super) enum Job {
    Read { bytes: Range<u64>, reply: ReplyData },
    Write { offset_bytes: u64, data: Vec<u8>, durably: bool, reply: ReplyWrite },
    Zero { bytes: Range<u64>, unmap: bool, reply: ReplyEmpty },
}

/// The state of the thread.
pub(super) struct CompoundRequests {
    pub(super) lane: Arc<Lane>,
    pub(super) mounted: Arc<MountedDisk>,
    pub(super) ranges: Arc<Ranges>,
}

impl CompoundRequests {
    /// Work until all senders are gone.
    pub(super) fn run(&self, jobs: &Receiver<Job>) {
        while let Ok(job) = jobs.recv() {
            match job {
                Job::Read { bytes, reply } => match self.read(bytes) {
                    Ok(data) => reply.data(&data),
                    Err(errno) => reply.error(errno),
                },
                Job::Write { offset_bytes, data, durably, reply } => match self.write(offset_bytes, &data, durably) {
                    Ok(()) => reply.written(u32::try_from(data.len()).unwrap_or(u32::MAX)),
                    Err(errno) => reply.error(errno),
                },
                Job::Zero { bytes, unmap, reply } => match self.zero(&bytes, unmap) {
                    Ok(()) => reply.ok(),
                    Err(errno) => reply.error(errno),
                },
            }
        }
    }

    /// Make everything written so far durable.
    pub(super) fn flush(&self) -> Result<(), Errno> {
        if !self.mounted.can(CAPABILITY_FLUSH) {
            return Ok(());
        }
        self.one(Work::Flush).map(drop)
    }

    fn one(&self, work: Work<'_>) -> Result<Vec<u8>, Errno> {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.lane.submit(work, Answer::Thread(sender), None);
        receiver.recv().unwrap_or(Err(Errno::EIO))
    }

    /// The whole blocks that `bytes` touch.
    fn blocks(&self, bytes: &Range<u64>) -> Range<u64> {
        whole_blocks(bytes, self.mounted.block_bytes())
    }

    /// Whole blocks in pieces that one request moves.
    fn data_pieces(&self, blocks: &Range<u64>) -> Pieces {
        Pieces::new(1, blocks.end - blocks.start, MAX_DATA_BYTES.min(self.mounted.max_transfer_bytes()))
    }

    fn read(&self, bytes: Range<u64>) -> Result<Vec<u8>, Errno> {
        let blocks = self.blocks(&bytes);
        let (mut data, mut pieces) = (Vec::new(), self.data_pieces(&blocks));
        while let Some(Piece { offset_bytes, length_bytes, .. }) = pieces.next(&[blocks.start]) {
            data.append(&mut self.one(Work::Read { offset_bytes, length_bytes })?);
        }
        let index = |offset_bytes| usize::try_from(offset_bytes - blocks.start).unwrap_or(usize::MAX);
        data.get(index(bytes.start)..index(bytes.end)).map(<[u8]>::to_vec).ok_or(Errno::EIO)
    }

    fn write(&self, offset_bytes: u64, data: &[u8], durably: bool) -> Result<(), Errno> {
        let bytes = offset_bytes..offset_bytes + data.len() as u64;
        let _claim = self.ranges.claim(self.blocks(&bytes));
        self.write_claimed(&bytes, data, durably)
    }

    /// Write whole blocks, with the disk's data around `bytes`. The caller holds the claim.
    fn write_claimed(&self, bytes: &Range<u64>, data: &[u8], durably: bool) -> Result<(), Errno> {
        let blocks = self.blocks(bytes);
        let mut whole = if blocks.start < bytes.start { self.read(blocks.start..bytes.start)? } else { Vec::new() };
        whole.extend_from_slice(data);
        if bytes.end < blocks.end {
            whole.append(&mut self.read(bytes.end..blocks.end)?);
        }
        let by_flag = durably && self.mounted.can(CAPABILITY_FUA);
        let (mut rest, mut pieces) = (whole.as_slice(), self.data_pieces(&blocks));
        while let Some(Piece { offset_bytes, length_bytes, .. }) = pieces.next(&[blocks.start]) {
            let (data, later) = rest.split_at(usize::try_from(length_bytes).unwrap_or(usize::MAX).min(rest.len()));
            rest = later;
            self.one(Work::Write { offset_bytes, data, durably: by_flag })?;
        }
        if durably && !by_flag { self.flush() } else { Ok(()) }
    }

    fn zero(&self, bytes: &Range<u64>, unmap: bool) -> Result<(), Errno> {
        let max_range_bytes = self.mounted.max_range_bytes();
        if !self.mounted.can(CAPABILITY_WRITE_ZEROES) || max_range_bytes == 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let _claim = self.ranges.claim(self.blocks(bytes));
        let block_bytes = self.mounted.block_bytes();
        let first = bytes.start.next_multiple_of(block_bytes);
        let last = bytes.end / block_bytes * block_bytes;
        if first > last {
            return self.write_zeroes(bytes); // Within one block.
        }
        self.write_zeroes(&(bytes.start..first))?;
        let mut pieces = Pieces::new(1, last - first, max_range_bytes);
        while let Some(Piece { offset_bytes, length_bytes, .. }) = pieces.next(&[first]) {
            self.one(Work::Zero { offset_bytes, length_bytes, unmap })?;
        }
        self.write_zeroes(&(last..bytes.end))
    }

    /// Zeroes as data, for a part of a block.
    fn write_zeroes(&self, bytes: &Range<u64>) -> Result<(), Errno> {
        if bytes.is_empty() {
            return Ok(());
        }
        let zeroes = vec![0; usize::try_from(bytes.end - bytes.start).unwrap_or(usize::MAX)];
        self.write_claimed(bytes, &zeroes, false)
    }
}

/// The whole blocks that `bytes` touch.
pub(super) const fn whole_blocks(bytes: &Range<u64>, block_bytes: u64) -> Range<u64> {
    bytes.start / block_bytes * block_bytes..bytes.end.next_multiple_of(block_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_are_touched_are_whole() {
        assert_eq!(whole_blocks(&(1..2), 512), 0..512);
        assert_eq!(whole_blocks(&(512..1024), 512), 512..1024);
        assert_eq!(whole_blocks(&(4095..4097), 4096), 0..8192);
    }
}
