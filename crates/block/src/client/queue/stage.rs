//! Requests on their way into the ring: staged by their fields. With `depth` requests outstanding there is no room: [`Full`].

use fipsee_ring::Message;
use fipsee_ring::ring::Full;

use super::{Queue, Use};
use crate::client::{DiskError, Error};
use crate::packed::Short;
use crate::wire::{
    self, FLAG_FUA, FLAG_UNMAP, MAX_INDIRECT_ENTRIES, MAX_INLINE_SEGMENTS, Operation, SECTOR_BYTES, Segment, Status,
};

impl Queue {
    #[inline(always)]
    fn stage(&mut self, token: u64, build: impl FnOnce(u16) -> Option<Short>) -> Result<u16, Full> {
        let tag = self.free_tags.pop().ok_or(Full)?;
        let index = usize::from(tag);
        self.requests[index] = build(tag);
        self.tokens[index] = token;
        self.uses[index] = Use::Caller;
        self.staged.push(tag);
        Ok(tag)
    }

    fn stage_other(&mut self, token: u64, build: impl FnOnce(u16) -> Message) -> Result<(), Full> {
        let tag = self.stage(token, |_| None)?;
        self.others[usize::from(tag)] = build(tag);
        Ok(())
    }

    /// Stage a read of `segment` from `sector` on.
    #[inline(always)]
    pub fn read(&mut self, sector: u64, segment: Segment, token: u64) -> Result<(), Full> {
        self.stage(token, |tag| Some(Short::new(false, tag, sector, segment))).map(drop)
    }

    /// Stage a write of `segment` to `sector` on; `fua`: durable before its completion.
    #[inline(always)]
    pub fn write(&mut self, sector: u64, segment: Segment, fua: bool, token: u64) -> Result<(), Full> {
        if !fua {
            return self.stage(token, |tag| Some(Short::new(true, tag, sector, segment))).map(drop);
        }
        self.stage_other(token, |tag| wire::request_one_segment(Operation::Write, FLAG_FUA, tag, sector, segment))
    }

    /// Stage a read into several pieces of memory; more than five go through a table in the pool.
    ///
    /// # Errors
    /// [`Error::Full`] when `depth` requests are outstanding; [`DiskError::Request`] with [`Status::TooLong`] beyond
    /// 256 pieces, or fewer if the disk takes fewer; [`DiskError::PoolExhausted`] when the pool has no room for the table.
    pub fn read_vectored(&mut self, sector: u64, segments: &[Segment], token: u64) -> Result<(), Error> {
        match segments {
            [one] => Ok(self.read(sector, *one, token)?),
            _ => self.stage_segments(Operation::Read, 0, sector, segments, token),
        }
    }

    /// Stage a write of several pieces of memory; otherwise as [`read_vectored`](Self::read_vectored).
    pub fn write_vectored(&mut self, sector: u64, segments: &[Segment], fua: bool, token: u64) -> Result<(), Error> {
        match segments {
            [one] => Ok(self.write(sector, *one, fua, token)?),
            _ => self.stage_segments(Operation::Write, if fua { FLAG_FUA } else { 0 }, sector, segments, token),
        }
    }

    fn stage_segments(
        &mut self,
        operation: Operation,
        flags: u16,
        sector: u64,
        segments: &[Segment],
        token: u64,
    ) -> Result<(), Error> {
        let tag = self.free_tags.last().copied().ok_or(Error::Full)?;
        if segments.len() > self.max_segments {
            return Err(Error::Service(DiskError::Request(Status::TooLong)));
        }
        if segments.len() <= MAX_INLINE_SEGMENTS {
            let build = |tag| wire::request_inline(operation, flags, tag, sector, segments);
            return Ok(self.stage_other(token, build)?);
        }
        let entry_count = u32::try_from(segments.len()).unwrap_or(u32::MAX);
        let table_bytes = (MAX_INDIRECT_ENTRIES * 8) as u64;
        let slot = &mut self.tables[usize::from(tag)];
        let table = match slot.take() {
            Some(table) => table,
            None => self.shared.pool.allocate(table_bytes)?,
        };
        let bytes: Vec<u8> = segments.iter().flat_map(|segment| segment.to_word().to_le_bytes()).collect();
        table.fill(0, &bytes);
        let place = table.segment(0, (bytes.len() as u64).next_multiple_of(SECTOR_BYTES));
        *slot = Some(table);
        let build = |tag| wire::request_indirect(operation, flags, tag, sector, place, entry_count);
        Ok(self.stage_other(token, build)?)
    }

    /// Stage a flush: everything completed before is durable after.
    pub fn flush(&mut self, token: u64) -> Result<(), Full> {
        self.stage_other(token, wire::request_flush)
    }

    /// Stage a discard.
    pub fn discard(&mut self, sector: u64, length_sectors: u64, token: u64) -> Result<(), Full> {
        self.stage_other(token, |tag| wire::request_range(Operation::Discard, 0, tag, sector, length_sectors))
    }

    /// Stage a write of zeroes; `unmap`: the blocks may be deallocated; `fua`: durable before its completion.
    pub fn write_zeroes(&mut self, sector: u64, length_sectors: u64, unmap: bool, fua: bool, token: u64) -> Result<(), Full> {
        let flags = if unmap { FLAG_UNMAP } else { 0 } | if fua { FLAG_FUA } else { 0 };
        self.stage_other(token, |tag| wire::request_range(Operation::WriteZeroes, flags, tag, sector, length_sectors))
    }

    /// Stage a query of the disk's description, written into `segment` (64 bytes of a sector).
    pub fn get_info(&mut self, segment: Segment, token: u64) -> Result<(), Full> {
        self.stage_other(token, |tag| wire::request_one_segment(Operation::GetInfo, 0, tag, 0, segment))
    }

    #[cold]
    pub(super) fn stage_acknowledgements(&mut self) {
        while let Some(kind) = self.unacknowledged.last().copied() {
            if self.stage_other(0, |tag| wire::request_ack_event(tag, kind)).is_err() {
                return;
            }
            if let Some(tag) = self.staged.last() {
                self.uses[usize::from(*tag)] = Use::Internal;
                self.acknowledging += 1;
            }
            self.unacknowledged.pop();
        }
    }
}
