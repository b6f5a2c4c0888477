//! Plain reads and writes that return when they are done.

use std::path::Path;

use fipsee_ring::port::ReconnectPolicy;
use fipsee_ring::ring::Full;

use super::connection::{AttachOptions, Disk, ReconnectEvent};
use super::error::Error;
use super::memory::Buffer;
use super::queue::{Completion, Queue};
use crate::wire::{BlockInfo, SECTOR_BYTES, SECTOR_SHIFT, Status};

/// Data moves in pieces of this size, several in flight.
const PIECE_BYTES: u64 = 256 << 10;
/// Pieces in flight at most: enough to keep a disk busy while we copy.
const MAX_PIECES: usize = 8;

type Hook = Box<dyn FnMut(ReconnectEvent<'_>) + Send>;

/// A disk with blocking calls, for one thread at a time. Offsets and lengths are in bytes and must be multiples of the
/// logical block size.
pub struct Blocking {
    disk: Disk,
    queues: Vec<Queue>,
    pieces: Vec<Buffer>,
    reconnect: Option<(ReconnectPolicy, Hook)>,
}

impl Blocking {
    /// Attach with one queue; `options.queue_count` and a small `options.pool_bytes` are overridden.
    ///
    /// # Errors
    /// As [`Disk::attach`].
    pub fn attach(socket_path: &Path, options: &AttachOptions) -> Result<Self, Error> {
        let pieces = MAX_PIECES.min(options.depth.max(1) as usize);
        let pool_bytes = options.pool_bytes.max(pieces as u64 * PIECE_BYTES);
        let options = AttachOptions { queue_count: 1, pool_bytes, ..options.clone() };
        let (disk, queues) = Disk::attach(socket_path, &options)?;
        let pieces = pieces.min(queues.first().map_or(1, Queue::depth));
        let pieces = (0..pieces).map(|_| disk.allocate(PIECE_BYTES)).collect::<Result<_, _>>()?;
        Ok(Self { disk, queues, pieces, reconnect: None })
    }

    /// From now on, outlive the daemon: reconnect as `policy` says and submit again; `hook` is told of each step.
    #[must_use]
    pub fn with_reconnect(mut self, policy: ReconnectPolicy, hook: Hook) -> Self {
        self.reconnect = Some((policy, hook));
        self
    }

    /// What the daemon says of the disk.
    #[must_use]
    pub fn info(&self) -> BlockInfo {
        self.disk.info()
    }

    /// The disk below, for memory of its own and the like.
    #[must_use]
    pub const fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Read `into.len()` bytes at `offset_bytes`.
    ///
    /// # Errors
    /// [`Error::Request`] with the disk's status; connection errors.
    pub fn read_at(&mut self, into: &mut [u8], offset_bytes: u64) -> Result<(), Error> {
        self.transfer(Data::Read(into), offset_bytes)
    }

    /// Write `from` at `offset_bytes`. Durable after the next [`flush`](Self::flush).
    ///
    /// # Errors
    /// [`Error::Request`] with the disk's status, some of the data may have been written; connection errors.
    pub fn write_at(&mut self, from: &[u8], offset_bytes: u64) -> Result<(), Error> {
        self.transfer(Data::Write { from, fua: false }, offset_bytes)
    }

    /// Write `from` at `offset_bytes`, durable on return.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub fn write_durably_at(&mut self, from: &[u8], offset_bytes: u64) -> Result<(), Error> {
        self.transfer(Data::Write { from, fua: true }, offset_bytes)
    }

    /// Make everything written so far durable.
    ///
    /// # Errors
    /// [`Error::Request`] with the disk's status; connection errors.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.one(|queue| queue.flush(0))
    }

    /// Tell the disk that a range's content is no longer needed.
    ///
    /// # Errors
    /// [`Error::Request`] with the disk's status; connection errors.
    pub fn discard(&mut self, offset_bytes: u64, length_bytes: u64) -> Result<(), Error> {
        check_sectors(offset_bytes | length_bytes)?;
        self.one(|queue| queue.discard(offset_bytes >> SECTOR_SHIFT, length_bytes >> SECTOR_SHIFT, 0))
    }

    /// Make a range read as zeroes; `unmap`: its blocks may be deallocated.
    ///
    /// # Errors
    /// [`Error::Request`] with the disk's status; connection errors.
    pub fn write_zeroes(&mut self, offset_bytes: u64, length_bytes: u64, unmap: bool) -> Result<(), Error> {
        check_sectors(offset_bytes | length_bytes)?;
        self.one(|queue| queue.write_zeroes(offset_bytes >> SECTOR_SHIFT, length_bytes >> SECTOR_SHIFT, unmap, false, 0))
    }

    /// Let go in order.
    ///
    /// # Errors
    /// As [`Disk::detach`].
    pub fn detach(self) -> Result<(), Error> {
        drop(self.pieces);
        self.disk.detach(self.queues)
    }

    /// The acknowledgement of an event may hold the only place of a queue of which we use none.
    fn await_room(&mut self) -> Result<(), Error> {
        while self.queues[0].free() == 0 {
            self.wait()?;
        }
        Ok(())
    }

    fn one(&mut self, stage: impl FnOnce(&mut Queue) -> Result<(), Full>) -> Result<(), Error> {
        self.await_room()?;
        stage(&mut self.queues[0]).map_err(|Full| Error::QueueFull)?;
        match self.wait()?.first() {
            Some(Completion { status: Status::Ok, .. }) => Ok(()),
            Some(completion) => Err(Error::Request(completion.status)),
            None => Err(Error::Disconnected),
        }
    }

    /// Wait until something completed, across a reconnection if that was asked for.
    fn wait(&mut self) -> Result<Vec<Completion>, Error> {
        let mut finished = Vec::new();
        loop {
            let waited = self.queues[0].wait(&mut |completion| finished.push(completion));
            match (waited, &mut self.reconnect) {
                (Ok(_), _) if !finished.is_empty() || self.queues[0].outstanding() == 0 => return Ok(finished),
                (Ok(_), _) => {}
                (Err(_), _) if !finished.is_empty() => return Ok(finished),
                (Err(Error::Disconnected), Some((policy, hook))) => self.disk.reconnect(&mut self.queues, policy, hook)?,
                (Err(error), _) => return Err(error),
            }
        }
    }

    fn transfer(&mut self, mut data: Data<'_>, offset_bytes: u64) -> Result<(), Error> {
        let total_bytes = data.length_bytes();
        check_sectors(offset_bytes | total_bytes)?;
        let mut in_flight: Vec<Option<(u64, u64)>> = vec![None; self.pieces.len()];
        let (mut next_bytes, mut failure) = (0, None);
        loop {
            if in_flight.iter().all(Option::is_none) {
                self.await_room()?;
            }
            for (slot, place) in in_flight.iter_mut().enumerate().filter(|(_, place)| place.is_none()) {
                let length_bytes = PIECE_BYTES.min(total_bytes - next_bytes);
                if length_bytes == 0 || failure.is_some() || self.queues[0].free() == 0 {
                    break;
                }
                data.stage(&mut self.queues[0], &self.pieces[slot], offset_bytes, (next_bytes, length_bytes), slot)?;
                *place = Some((next_bytes, length_bytes));
                next_bytes += length_bytes;
            }
            if in_flight.iter().all(Option::is_none) {
                return failure.map_or(Ok(()), |status| Err(Error::Request(status)));
            }
            for completion in self.wait()? {
                let slot = usize::try_from(completion.token).unwrap_or(usize::MAX);
                let Some((start_bytes, length_bytes)) = in_flight.get_mut(slot).and_then(Option::take) else { continue };
                if completion.status == Status::Ok {
                    data.take(&self.pieces[slot], start_bytes, length_bytes);
                } else {
                    failure = Some(completion.status);
                }
            }
        }
    }
}

enum Data<'a> {
    Read(&'a mut [u8]),
    Write { from: &'a [u8], fua: bool },
}

impl Data<'_> {
    const fn length_bytes(&self) -> u64 {
        match self {
            Self::Read(into) => into.len() as u64,
            Self::Write { from, .. } => from.len() as u64,
        }
    }

    fn stage(&self, queue: &mut Queue, piece: &Buffer, offset_bytes: u64, part: (u64, u64), slot: usize) -> Result<(), Error> {
        let (start_bytes, length_bytes) = part;
        let sector = (offset_bytes + start_bytes) >> SECTOR_SHIFT;
        let (segment, token) = (piece.segment(0, length_bytes), slot as u64);
        let staged = match self {
            Self::Read(_) => queue.read(sector, segment, token),
            Self::Write { from, fua } => {
                piece.fill(0, &from[range(start_bytes, length_bytes)]);
                queue.write(sector, segment, *fua, token)
            }
        };
        staged.map_err(|Full| Error::QueueFull)
    }

    fn take(&mut self, piece: &Buffer, start_bytes: u64, length_bytes: u64) {
        if let Self::Read(into) = self {
            piece.copy_to(0, &mut into[range(start_bytes, length_bytes)]);
        }
    }
}

fn range(start_bytes: u64, length_bytes: u64) -> std::ops::Range<usize> {
    let index = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
    index(start_bytes)..index(start_bytes + length_bytes)
}

/// Whole sectors can be put on the wire; whether they are whole blocks, the disk says.
const fn check_sectors(bytes: u64) -> Result<(), Error> {
    if bytes.is_multiple_of(SECTOR_BYTES) { Ok(()) } else { Err(Error::Request(Status::Misaligned)) }
}

impl std::fmt::Debug for Blocking {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Blocking").field("disk", &self.disk).finish_non_exhaustive()
    }
}
