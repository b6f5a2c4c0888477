//! Calls that return when they are done, for buffers of any kind.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use fipsee_block::client::{Completion, Error, ReconnectPolicy};
use fipsee_block::wire::{Operation, SECTOR_SHIFT, Status};
use rustix::io::Errno;

use crate::failure::{Failure, guarded, null};
use crate::memory::{Range, is_aligned};
use crate::queue::OpenQueue;
use crate::stage::{WRITE_FLAGS, WRITE_ZEROES_FLAGS, flags_of};

/// Data that must be copied moves in pieces of this size, several in flight.
pub(crate) const PIECE_BYTES: u64 = 256 << 10;
/// Parts in flight at most: enough to keep a disk busy while we copy.
pub(crate) const MAX_PIECES: usize = 8;

/// What is to be moved, and where the next part begins.
struct Transfer {
    operation: Operation,
    buffer: *mut u8,
    length_bytes: u64,
    offset_bytes: u64,
    fua: bool,
    /// The memory that holds the whole buffer; `None`: it is copied.
    direct: Option<Range>,
    next_bytes: u64,
}

/// One request of a transfer: where in the buffer, and how long. Length 0: not in flight.
type Part = (u64, u64);

/// Completions of one wait: at most as many as parts are in flight.
#[derive(Default)]
struct Finished {
    completions: [Option<Completion>; MAX_PIECES],
    count: usize,
}

impl OpenQueue {
    fn check_idle(&self) -> Result<(), Failure> {
        match self.outstanding() {
            0 => Ok(()),
            count => Err(Failure::new(
                Errno::BUSY,
                format!("{count} staged requests are not reaped; reap them first, or use another queue for blocking calls"),
            )),
        }
    }

    /// Connect anew, for as long as was asked for when opening. The disk has one queue, this one.
    pub(crate) fn reconnect(&mut self) -> Result<(), Failure> {
        let common = Arc::clone(&self.common);
        let policy = ReconnectPolicy { give_up_after: common.reconnect.unwrap_or_default(), ..ReconnectPolicy::default() };
        Ok(common.disk.reconnect(std::slice::from_mut(self), &policy, &mut |_| {})?)
    }

    /// Nothing of the caller is in flight, but the acknowledgement of an event may hold the only place of the queue.
    #[inline(always)]
    fn await_room(&mut self) -> Result<(), Failure> {
        while self.queue.free() == 0 {
            let waited = self.queue.wait(&mut |_| {});
            self.settle(waited)?;
        }
        Ok(())
    }

    /// Wait for something to finish, across a reconnection if that was asked for when opening.
    #[inline(always)]
    fn wait_own(&mut self) -> Result<Finished, Failure> {
        let mut finished = Finished::default();
        loop {
            let waited = self.queue.wait(&mut |completion| {
                if let Some(place) = finished.completions.get_mut(finished.count) {
                    *place = Some(completion);
                    finished.count += 1;
                }
            });
            match waited {
                _ if finished.count > 0 => return Ok(finished),
                Ok(_) if self.queue.outstanding() > 0 => {} // An event woke us.
                Ok(_) => return Err(Error::Disconnected.into()),
                Err(Error::Disconnected) if self.common.reconnect.is_some() => self.reconnect()?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Stage with `stage` one after the other what `length_bytes` is split into, and wait for each.
    fn ranges(
        &mut self,
        (offset_bytes, length_bytes): (u64, u64),
        stage: impl Fn(&mut Self, u64, u64) -> Result<(), Error>,
    ) -> Result<c_int, Failure> {
        self.check_idle()?;
        if length_bytes == 0 {
            return Ok(0);
        }
        self.check_range(offset_bytes, length_bytes, u64::MAX)?;
        let end_bytes = offset_bytes.checked_add(length_bytes).ok_or_else(past_the_end)?;
        let step_bytes = if self.max_range_bytes == 0 { u64::MAX } else { self.max_range_bytes };
        let mut at_bytes = offset_bytes;
        while at_bytes < end_bytes {
            let part_bytes = step_bytes.min(end_bytes - at_bytes);
            self.await_room()?;
            stage(self, at_bytes >> SECTOR_SHIFT, part_bytes >> SECTOR_SHIFT)?;
            self.wait_one()?;
            at_bytes += part_bytes;
        }
        Ok(0)
    }

    fn wait_one(&mut self) -> Result<(), Failure> {
        let finished = self.wait_own().inspect_err(|_| self.queue.abandon())?;
        match finished.completions[0].map_or(Status::Ok, |completion| completion.status) {
            Status::Ok => Ok(()),
            status => Err(Error::Request(status).into()),
        }
    }

    /// # Safety
    /// The buffer is valid for the transfer.
    #[inline(always)]
    unsafe fn move_data(&mut self, mut transfer: Transfer) -> Result<c_int, Failure> {
        self.check_idle()?;
        if transfer.length_bytes == 0 {
            return Ok(0);
        }
        if transfer.buffer.is_null() {
            return Err(null("buffer"));
        }
        self.check_range(transfer.offset_bytes, transfer.length_bytes, u64::MAX)?;
        transfer.offset_bytes.checked_add(transfer.length_bytes).ok_or_else(past_the_end)?;
        let address = transfer.buffer.addr();
        if is_aligned(address) {
            transfer.direct = self.places.find(&self.common.registry, address, transfer.length_bytes);
        }
        if transfer.direct.is_none() {
            self.take_pieces()?;
        }
        // SAFETY: promised by the caller.
        let outcome = unsafe { self.run(&mut transfer) };
        if outcome.is_err() && self.queue.outstanding() > 0 {
            self.queue.abandon();
        }
        outcome
    }

    /// Take from the pool what there is, up to what keeps a disk busy.
    fn take_pieces(&mut self) -> Result<(), Failure> {
        if !self.pieces.is_empty() {
            return Ok(());
        }
        let mut piece_bytes = PIECE_BYTES.min(self.max_transfer_bytes);
        loop {
            let wanted = MAX_PIECES.min(self.queue.depth());
            let taken: Vec<_> = (0..wanted).map_while(|_| self.common.disk.allocate(piece_bytes).ok()).collect();
            if !taken.is_empty() {
                self.pieces = taken;
                return Ok(());
            }
            if piece_bytes / 2 < self.block_bytes {
                let text = "no room in the pool to copy through; ask for more options.pool_bytes, or use memory of the disk";
                return Err(Failure::new(Errno::NOMEM, text));
            }
            piece_bytes /= 2;
        }
    }

    /// Keep parts in flight until all is moved or one failed.
    ///
    /// # Safety
    /// As [`Self::move_data`].
    unsafe fn run(&mut self, transfer: &mut Transfer) -> Result<c_int, Failure> {
        let window = if transfer.direct.is_some() { self.queue.depth().min(MAX_PIECES) } else { self.pieces.len() };
        let mut parts: [Part; MAX_PIECES] = [(0, 0); MAX_PIECES];
        let mut failure = None;
        loop {
            if self.queue.outstanding() == 0 {
                self.await_room()?;
            }
            for (slot, part) in parts.iter_mut().enumerate().take(window).filter(|(_, part)| part.1 == 0) {
                if transfer.next_bytes == transfer.length_bytes || failure.is_some() || self.queue.free() == 0 {
                    break;
                }
                // SAFETY: promised by the caller.
                *part = unsafe { self.stage_part(transfer, slot) }?;
            }
            if self.queue.outstanding() == 0 {
                return failure.map_or(Ok(0), |status| Err(Error::Request(status).into()));
            }
            let finished = self.wait_own()?;
            for completion in finished.completions.iter().flatten() {
                let slot = usize::try_from(completion.token).unwrap_or(usize::MAX);
                let Some(part) = parts.get_mut(slot) else { continue };
                if completion.status == Status::Ok {
                    // SAFETY: promised by the caller.
                    unsafe { self.take_part(transfer, slot, *part) };
                } else {
                    failure = Some(completion.status);
                }
                part.1 = 0;
            }
        }
    }

    /// # Safety
    /// As [`Self::move_data`].
    unsafe fn stage_part(&mut self, transfer: &mut Transfer, slot: usize) -> Result<Part, Failure> {
        let (start_bytes, left_bytes) = (transfer.next_bytes, transfer.length_bytes - transfer.next_bytes);
        let start = usize::try_from(start_bytes).unwrap_or(usize::MAX);
        let from = transfer.buffer.wrapping_add(start);
        let (segment, length_bytes) = match &transfer.direct {
            Some(range) => {
                let length_bytes = left_bytes.min(self.max_transfer_bytes);
                let segment = range.segment(from.addr(), length_bytes);
                (segment.ok_or_else(|| Failure::new(Errno::FAULT, "the buffer lies outside its memory"))?, length_bytes)
            }
            None => {
                let piece = &self.pieces[slot];
                let length_bytes = left_bytes.min(piece.length_bytes());
                if transfer.operation == Operation::Write {
                    // SAFETY: the caller's buffer is valid for the whole transfer and is not the pool.
                    unsafe { piece.copy_from_raw(0, from, length_bytes) };
                }
                (piece.segment(0, length_bytes), length_bytes)
            }
        };
        let (sector, token) = ((transfer.offset_bytes + start_bytes) >> SECTOR_SHIFT, slot as u64);
        let staged = match transfer.operation {
            Operation::Read => self.queue.read(sector, segment, token),
            _ => self.queue.write(sector, segment, transfer.fua, token),
        };
        staged.map_err(Error::from)?;
        transfer.next_bytes += length_bytes;
        Ok((start_bytes, length_bytes))
    }

    /// # Safety
    /// As [`Self::move_data`].
    unsafe fn take_part(&self, transfer: &Transfer, slot: usize, (start_bytes, length_bytes): Part) {
        if transfer.direct.is_none() && transfer.operation == Operation::Read {
            let to = transfer.buffer.wrapping_add(usize::try_from(start_bytes).unwrap_or(usize::MAX));
            // SAFETY: the caller's buffer is valid for the whole transfer and is not the pool.
            unsafe { self.pieces[slot].copy_to_raw(0, to, length_bytes) };
        }
    }
}

#[cold]
fn past_the_end() -> Failure {
    Failure::new(Errno::NXIO, "the request reaches past the end of the disk; see fipsee_info.capacity_bytes")
}

/// See the header.
///
/// # Safety
/// `queue` is null or of an open disk, and no other call on it runs meanwhile; the buffer is valid for `length_bytes`.
/// So for all functions below.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fipsee_read(
    queue: *mut OpenQueue,
    buffer: *mut c_void,
    length_bytes: usize,
    offset_bytes: u64,
) -> c_int {
    guarded(|| {
        // SAFETY: promised by the caller.
        let queue = unsafe { OpenQueue::from_c(queue) }?;
        let (operation, buffer, length_bytes) = (Operation::Read, buffer.cast(), length_bytes as u64);
        let transfer = Transfer { operation, buffer, length_bytes, offset_bytes, fua: false, direct: None, next_bytes: 0 };
        // SAFETY: promised by the caller.
        unsafe { queue.move_data(transfer) }
    })
}

/// See the header.
///
/// # Safety
/// As [`fipsee_read`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fipsee_write(
    queue: *mut OpenQueue,
    buffer: *const c_void,
    length_bytes: usize,
    offset_bytes: u64,
    flags: u32,
) -> c_int {
    guarded(|| {
        // SAFETY: promised by the caller.
        let queue = unsafe { OpenQueue::from_c(queue) }?;
        let (fua, _) = flags_of(flags, WRITE_FLAGS)?;
        let (operation, buffer, length_bytes) = (Operation::Write, buffer.cast_mut().cast(), length_bytes as u64);
        let transfer = Transfer { operation, buffer, length_bytes, offset_bytes, fua, direct: None, next_bytes: 0 };
        // SAFETY: promised by the caller; a write only reads the buffer.
        unsafe { queue.move_data(transfer) }
    })
}

/// See the header.
///
/// # Safety
/// As [`fipsee_read`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fipsee_flush(queue: *mut OpenQueue) -> c_int {
    guarded(|| {
        // SAFETY: promised by the caller.
        let queue = unsafe { OpenQueue::from_c(queue) }?;
        queue.check_idle()?;
        queue.await_room()?;
        queue.queue.flush(0).map_err(Error::from)?;
        queue.wait_one()?;
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// As [`fipsee_read`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fipsee_discard(queue: *mut OpenQueue, length_bytes: u64, offset_bytes: u64) -> c_int {
    guarded(|| {
        // SAFETY: promised by the caller.
        let queue = unsafe { OpenQueue::from_c(queue) }?;
        let stage = |queue: &mut OpenQueue, sector, sectors| Ok(queue.queue.discard(sector, sectors, 0)?);
        queue.ranges((offset_bytes, length_bytes), stage)
    })
}

/// See the header.
///
/// # Safety
/// As [`fipsee_read`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fipsee_write_zeroes(
    queue: *mut OpenQueue,
    length_bytes: u64,
    offset_bytes: u64,
    flags: u32,
) -> c_int {
    guarded(|| {
        // SAFETY: promised by the caller.
        let queue = unsafe { OpenQueue::from_c(queue) }?;
        let (fua, unmap) = flags_of(flags, WRITE_ZEROES_FLAGS)?;
        let stage = |queue: &mut OpenQueue, sector, sectors| Ok(queue.queue.write_zeroes(sector, sectors, unmap, fua, 0)?);
        queue.ranges((offset_bytes, length_bytes), stage)
    })
}
