//! Calls that return when they are done, for buffers of any kind.

use std::ffi::{c_int, c_void};

use fipsee_block::client::transfer::{Action, Plan, TransferMemory};
use fipsee_block::client::{Buffer, Bytes, DiskError, Error, Queue};
use rustix::io::Errno;

use crate::disk::Common;
use crate::failure::{Failure, null};
use crate::function::functions;
use crate::memory::is_aligned;
use crate::queue::OpenQueue;
use crate::stage::{WRITE_FLAGS, WRITE_ZEROES_FLAGS, flags_of};

/// Reconnect after a loss if the options say so; the caller waits again. The disk has one queue, this one.
#[inline(always)]
pub(crate) fn settle(common: &Common, queue: &mut Queue, waited: Result<usize, Error>) -> Result<(), Failure> {
    match waited {
        Ok(_) => Ok(()),
        Err(error) => reconnect(common, queue, error),
    }
}

#[cold]
fn reconnect(common: &Common, queue: &mut Queue, error: Error) -> Result<(), Failure> {
    match (error, &common.reconnect) {
        (Error::Disconnected, Some(policy)) => Ok(common.disk.reconnect(std::slice::from_mut(queue), policy, &mut |_| {})?),
        (error, _) => Err(error.into()),
    }
}

/// The bounce memory of a queue, taken from the pool when first needed.
fn bounce_of<'a>(bounce: &'a mut Option<Buffer>, common: &Common) -> Result<&'a Buffer, Failure> {
    if bounce.is_none() {
        *bounce = Some(common.disk.allocate_bounce().map_err(|_| {
            let text = "no room in the pool to copy through; ask for more options.pool_bytes, or use memory of the disk";
            Failure::new(Errno::NOMEM, text)
        })?);
    }
    bounce.as_ref().ok_or_else(|| null("the bounce memory"))
}

impl OpenQueue {
    /// Carry out one operation, in as many requests as it takes.
    ///
    /// # Safety
    /// `buffer`, if the operation has data, is valid for it.
    #[inline(always)]
    unsafe fn run(
        &mut self,
        action: Action,
        buffer: Option<*mut u8>,
        (length_bytes, offset_bytes): (u64, u64),
    ) -> Result<c_int, Failure> {
        match self.outstanding() {
            0 => {}
            count => return Err(busy(count)),
        }
        if action != Action::Flush {
            if length_bytes == 0 {
                return Ok(0);
            }
            if buffer.is_some_and(<*mut u8>::is_null) {
                return Err(null("buffer"));
            }
            self.check_range(offset_bytes, length_bytes, u64::MAX)?;
            offset_bytes.checked_add(length_bytes).ok_or_else(past_the_end)?;
        }
        let Self { queue, common, places, bounce, transfers, .. } = self;
        let aligned = buffer.filter(|buffer| is_aligned(buffer.addr()));
        let direct = aligned.and_then(|buffer| places.find(&common.registry, buffer.addr(), length_bytes));
        let place = match (buffer, direct) {
            (None, _) => TransferMemory::None,
            (Some(buffer), Some(range)) => range.place(buffer.addr()),
            (Some(buffer), None) => {
                // SAFETY: promised by the caller.
                TransferMemory::Bounce(unsafe { Bytes::from_raw(buffer, length_bytes) }, bounce_of(bounce, common)?)
            }
        };
        let plan = Plan { action, disk_offsets: &[offset_bytes], length_bytes, keep_going: false, place };
        let done = transfers.run(queue, &plan, |queue, waited| settle(common, queue, waited));
        match done.inspect_err(|_| queue.abandon())?.first() {
            Some((_, status)) => Err(Error::Service(DiskError::Request(*status)).into()),
            None => Ok(0),
        }
    }
}

#[cold]
fn busy(count: usize) -> Failure {
    let text = format!("{count} staged requests are not reaped; reap them first, or use another queue for blocking calls");
    Failure::new(Errno::BUSY, text)
}

#[cold]
fn past_the_end() -> Failure {
    Failure::new(Errno::NXIO, "the request reaches past the end of the disk; see fipsee_info.capacity_bytes")
}

functions! {
    "`queue` is null or of an open disk, and no other call on it runs meanwhile; buffers are valid for their length."

    fn fipsee_read(queue: OpenQueue, buffer: *mut c_void, length_bytes: usize, offset_bytes: u64) {
        // SAFETY: promised by the caller.
        unsafe { queue.run(Action::Read, Some(buffer.cast()), (length_bytes as u64, offset_bytes)) }
    }

    fn fipsee_write(queue: OpenQueue, buffer: *const c_void, length_bytes: usize, offset_bytes: u64, flags: u32) {
        let (fua, _) = flags_of(flags, WRITE_FLAGS)?;
        let buffer = buffer.cast_mut().cast();
        // SAFETY: promised by the caller; a write only reads the buffer.
        unsafe { queue.run(Action::Write { fua }, Some(buffer), (length_bytes as u64, offset_bytes)) }
    }

    fn fipsee_flush(queue: OpenQueue) {
        // SAFETY: there is no data.
        unsafe { queue.run(Action::Flush, None, (0, 0)) }
    }

    fn fipsee_discard(queue: OpenQueue, length_bytes: u64, offset_bytes: u64) {
        // SAFETY: there is no data.
        unsafe { queue.run(Action::Discard, None, (length_bytes, offset_bytes)) }
    }

    fn fipsee_write_zeroes(queue: OpenQueue, length_bytes: u64, offset_bytes: u64, flags: u32) {
        let (fua, unmap) = flags_of(flags, WRITE_ZEROES_FLAGS)?;
        // SAFETY: there is no data.
        unsafe { queue.run(Action::WriteZeroes { unmap, fua }, None, (length_bytes, offset_bytes)) }
    }
}
