//! Staging requests: the caller's addresses and bytes become segments and sectors.

use std::ffi::{c_int, c_void};

use fipsee_block::client::Error;
use fipsee_block::wire::{MAX_INDIRECT_ENTRIES, Operation, SECTOR_SHIFT, Segment};
use rustix::io::Errno;

use crate::failure::{Failure, null};
use crate::function::functions;
use crate::memory::is_aligned;
use crate::options::Piece;
use crate::queue::OpenQueue;

const DURABLE: u32 = 1;
const UNMAP: u32 = 2;

impl OpenQueue {
    /// Offset and length are whole blocks of the disk, and the request fits into `most_bytes`.
    #[inline(always)]
    pub(crate) fn check_range(&self, offset_bytes: u64, length_bytes: u64, most_bytes: u64) -> Result<(), Failure> {
        let in_blocks = (offset_bytes | length_bytes) & (self.block_bytes - 1) == 0;
        if in_blocks && length_bytes != 0 && length_bytes <= most_bytes {
            return Ok(());
        }
        Err(self.bad_range(offset_bytes, length_bytes, most_bytes))
    }

    #[cold]
    fn bad_range(&self, offset_bytes: u64, length_bytes: u64, most_bytes: u64) -> Failure {
        let block_bytes = self.block_bytes;
        if length_bytes == 0 {
            return Failure::invalid(format!("the length is 0; a request is of at least one block of {block_bytes} bytes"));
        }
        if (offset_bytes | length_bytes) & (block_bytes - 1) != 0 {
            return Failure::invalid(format!(
                "offset {offset_bytes} and length {length_bytes} must be multiples of the disk's logical block size, {block_bytes}"
            ));
        }
        Failure::new(
            Errno::MSGSIZE,
            format!("a request of {length_bytes} bytes is longer than the disk takes, {most_bytes}; split it"),
        )
    }

    #[inline(always)]
    fn check_room(&self) -> Result<(), Failure> {
        if self.queue.free() > self.kept.len() { Ok(()) } else { Err(Error::Full.into_failure()) }
    }

    #[inline(always)]
    fn segment(&mut self, buffer: *const u8, length_bytes: u64) -> Result<Segment, Failure> {
        let address = buffer.addr();
        if is_aligned(address)
            && let Some(range) = self.places.find(&self.common.registry, address, length_bytes)
            && let Some(segment) = range.segment(address, length_bytes)
        {
            return Ok(segment);
        }
        Err(bad_buffer(address, length_bytes))
    }

    #[inline(always)]
    pub(crate) fn stage_one(
        &mut self,
        operation: Operation,
        buffer: *const u8,
        length_bytes: u64,
        offset_bytes: u64,
        (fua, token): (bool, u64),
    ) -> Result<c_int, Failure> {
        self.check_room()?;
        self.check_range(offset_bytes, length_bytes, self.max_transfer_bytes)?;
        let segment = self.segment(buffer, length_bytes)?;
        let sector = offset_bytes >> SECTOR_SHIFT;
        let staged = match operation {
            Operation::Read => self.queue.read(sector, segment, token),
            _ => self.queue.write(sector, segment, fua, token),
        };
        staged.map_err(|full| Error::from(full).into_failure())?;
        Ok(0)
    }

    fn stage_many(
        &mut self,
        operation: Operation,
        pieces: &[Piece],
        offset_bytes: u64,
        (fua, token): (bool, u64),
    ) -> Result<c_int, Failure> {
        self.check_room()?;
        let mut segments = [Segment { offset_sectors: 0, length_sectors: 0, region: 0 }; MAX_INDIRECT_ENTRIES];
        let mut total_bytes = 0_u64;
        for (segment, piece) in segments.iter_mut().zip(pieces) {
            let length_bytes = piece.length_bytes as u64;
            if length_bytes == 0 || !is_aligned(piece.length_bytes) {
                return Err(Failure::invalid(format!("a piece has {length_bytes} bytes; give each a multiple of 512")));
            }
            *segment = self.segment(piece.base, length_bytes)?;
            total_bytes += length_bytes;
        }
        self.check_range(offset_bytes, total_bytes, self.max_transfer_bytes)?;
        let segments = segments.get(..pieces.len()).unwrap_or(&[]);
        let sector = offset_bytes >> SECTOR_SHIFT;
        match operation {
            Operation::Read => self.queue.read_vectored(sector, segments, token)?,
            _ => self.queue.write_vectored(sector, segments, fua, token)?,
        }
        Ok(0)
    }
}

/// `Full` is common: its message is made without an allocation.
trait IntoFailure {
    fn into_failure(self) -> Failure;
}

impl IntoFailure for Error {
    #[cold]
    fn into_failure(self) -> Failure {
        match self {
            Self::Full => Failure::new(Errno::AGAIN, "as many requests are outstanding as the queue takes; reap results first"),
            other => other.into(),
        }
    }
}

#[cold]
fn bad_buffer(address: usize, length_bytes: u64) -> Failure {
    if is_aligned(address) {
        return Failure::new(
            Errno::FAULT,
            format!(
                "the {length_bytes} bytes at {address:#x} are not in memory of this disk; use fipsee_memory_create or \
                 fipsee_memory_register, or the blocking calls, which take any buffer"
            ),
        );
    }
    Failure::invalid(format!("the buffer at {address:#x} does not start at a multiple of 512 bytes; align it"))
}

/// Flags of a write among `known`: durable, unmap.
#[inline(always)]
pub(crate) fn flags_of(flags: u32, known: u32) -> Result<(bool, bool), Failure> {
    if flags & !known != 0 {
        return Err(bad_flags(flags, known));
    }
    Ok((flags & DURABLE != 0, flags & UNMAP != 0))
}

#[cold]
fn bad_flags(flags: u32, known: u32) -> Failure {
    let names = if known & UNMAP != 0 { "FIPSEE_DURABLE and FIPSEE_UNMAP" } else { "FIPSEE_DURABLE" };
    Failure::invalid(format!("flags {flags:#x} are not known here; this call takes {names}"))
}

/// Flags that a write takes.
pub(crate) const WRITE_FLAGS: u32 = DURABLE;
/// Flags that a write of zeroes takes.
pub(crate) const WRITE_ZEROES_FLAGS: u32 = DURABLE | UNMAP;

/// # Safety
/// `pieces` is null or leads to `piece_count` of them.
unsafe fn pieces_of<'a>(pieces: *const Piece, piece_count: u32) -> Result<&'a [Piece], Failure> {
    if pieces.is_null() {
        return Err(null("pieces"));
    }
    let most = MAX_INDIRECT_ENTRIES;
    if piece_count == 0 || piece_count as usize > most {
        return Err(Failure::invalid(format!("{piece_count} pieces were given; a request takes 1 to {most}")));
    }
    // SAFETY: promised by the caller; aligned as C's array of the same structure.
    Ok(unsafe { std::slice::from_raw_parts(pieces, piece_count as usize) })
}

functions! {
    "`queue` is null or of an open disk, no other call on it runs meanwhile, and buffers are valid and untouched until the result."

    fn fipsee_stage_read(queue: OpenQueue, buffer: *mut c_void, length_bytes: usize, offset_bytes: u64, token: u64) {
        queue.stage_one(Operation::Read, buffer.cast(), length_bytes as u64, offset_bytes, (false, token))
    }

    fn fipsee_stage_write(
        queue: OpenQueue,
        buffer: *const c_void,
        length_bytes: usize,
        offset_bytes: u64,
        flags: u32,
        token: u64,
    ) {
        let (fua, _) = flags_of(flags, WRITE_FLAGS)?;
        queue.stage_one(Operation::Write, buffer.cast(), length_bytes as u64, offset_bytes, (fua, token))
    }

    /// `pieces` is null or leads to `piece_count` of them.
    fn fipsee_stage_readv(queue: OpenQueue, pieces: *const Piece, piece_count: u32, offset_bytes: u64, token: u64) {
        // SAFETY: promised by the caller.
        let pieces = unsafe { pieces_of(pieces, piece_count) }?;
        queue.stage_many(Operation::Read, pieces, offset_bytes, (false, token))
    }

    fn fipsee_stage_writev(queue: OpenQueue, pieces: *const Piece, piece_count: u32, offset_bytes: u64, flags: u32, token: u64) {
        let (fua, _) = flags_of(flags, WRITE_FLAGS)?;
        // SAFETY: promised by the caller.
        let pieces = unsafe { pieces_of(pieces, piece_count) }?;
        queue.stage_many(Operation::Write, pieces, offset_bytes, (fua, token))
    }

    fn fipsee_stage_flush(queue: OpenQueue, token: u64) {
        queue.check_room()?;
        queue.queue.flush(token).map_err(|full| Error::from(full).into_failure())?;
        Ok(0)
    }

    fn fipsee_stage_discard(queue: OpenQueue, length_bytes: u64, offset_bytes: u64, token: u64) {
        queue.check_room()?;
        queue.check_range(offset_bytes, length_bytes, u64::MAX)?;
        let staged = queue.queue.discard(offset_bytes >> SECTOR_SHIFT, length_bytes >> SECTOR_SHIFT, token);
        staged.map_err(|full| Error::from(full).into_failure())?;
        Ok(0)
    }

    fn fipsee_stage_write_zeroes(queue: OpenQueue, length_bytes: u64, offset_bytes: u64, flags: u32, token: u64) {
        let (fua, unmap) = flags_of(flags, WRITE_ZEROES_FLAGS)?;
        queue.check_room()?;
        queue.check_range(offset_bytes, length_bytes, u64::MAX)?;
        let (sector, sectors) = (offset_bytes >> SECTOR_SHIFT, length_bytes >> SECTOR_SHIFT);
        let staged = queue.queue.write_zeroes(sector, sectors, unmap, fua, token);
        staged.map_err(|full| Error::from(full).into_failure())?;
        Ok(0)
    }
}
