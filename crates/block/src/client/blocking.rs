//! Plain reads and writes that return when they are done.

use std::path::Path;

use fipsee_ring::port::ReconnectPolicy;

use super::connection::{AttachOptions, Disk, ReconnectEvent};
use super::memory::{Buffer, Bytes};
use super::queue::Queue;
use super::transfer::{Action, BOUNCE_BYTES, Plan, TransferMemory, Transfers};
use super::{DiskError, Error};
use crate::wire::BlockInfo;

type Hook = Box<dyn FnMut(ReconnectEvent<'_>) + Send>;

/// A disk with blocking calls, for one thread at a time. Offsets and lengths are in bytes and must be multiples of the
/// logical block size.
///
/// A call fails with [`DiskError::Request`] and the disk's status (some of the data may have been written), or because of the
/// connection.
pub struct Blocking {
    disk: Disk,
    queues: Vec<Queue>,
    bounce: Buffer,
    transfers: Transfers,
    reconnect: Option<(ReconnectPolicy, Hook)>,
}

impl Blocking {
    /// Attach with one queue; `options.queue_count` and a small `options.pool_bytes` are overridden.
    pub fn attach(socket_path: &Path, options: &AttachOptions) -> Result<Self, Error> {
        let pool_bytes = options.pool_bytes.max(BOUNCE_BYTES);
        let options = AttachOptions { queue_count: 1, pool_bytes, ..options.clone() };
        let (disk, queues) = Disk::attach(socket_path, &options)?;
        let (bounce, transfers) = (disk.allocate_bounce()?, Transfers::new(&disk.info(), None));
        Ok(Self { disk, queues, bounce, transfers, reconnect: None })
    }

    /// From now on, reconnect as `policy` says when the daemon is gone, and resubmit; `hook` is called for each step.
    #[must_use]
    pub fn with_reconnect(mut self, policy: ReconnectPolicy, hook: Hook) -> Self {
        self.reconnect = Some((policy, hook));
        self
    }

    /// The disk's description.
    pub fn info(&self) -> BlockInfo {
        self.disk.info()
    }

    /// Read `into.len()` bytes at `offset_bytes`.
    pub fn read_at(&mut self, into: &mut [u8], offset_bytes: u64) -> Result<(), Error> {
        self.run(Action::Read, (offset_bytes, into.len() as u64), Some(Bytes::of_slice(into)))
    }

    /// Write `from` at `offset_bytes`. Durable after the next [`flush`](Self::flush).
    pub fn write_at(&mut self, from: &[u8], offset_bytes: u64) -> Result<(), Error> {
        let range = (offset_bytes, from.len() as u64);
        // SAFETY: a slice is readable memory, and a write does not read into it.
        let bytes = unsafe { Bytes::from_raw(from.as_ptr().cast_mut(), range.1) };
        self.run(Action::Write { fua: false }, range, Some(bytes))
    }

    /// Make everything written so far durable.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.run(Action::Flush, (0, 0), None)
    }

    /// Discard a range: its contents are no longer needed.
    pub fn discard(&mut self, offset_bytes: u64, length_bytes: u64) -> Result<(), Error> {
        self.run(Action::Discard, (offset_bytes, length_bytes), None)
    }

    /// Make a range read as zeroes; `unmap`: its blocks may be deallocated.
    pub fn write_zeroes(&mut self, offset_bytes: u64, length_bytes: u64, unmap: bool) -> Result<(), Error> {
        self.run(Action::WriteZeroes { unmap, fua: false }, (offset_bytes, length_bytes), None)
    }

    /// Detach in order.
    pub fn detach(self) -> Result<(), Error> {
        drop(self.bounce);
        self.disk.detach(self.queues)
    }

    fn run(&mut self, action: Action, range: (u64, u64), bytes: Option<Bytes<'_>>) -> Result<(), Error> {
        let Self { disk, queues, bounce, transfers, reconnect } = self;
        let place = bytes.map_or(TransferMemory::None, |bytes| TransferMemory::Bounce(bytes, bounce));
        let plan = Plan { action, disk_offsets: &[range.0], length_bytes: range.1, keep_going: false, place };
        let done = transfers.run(&mut queues[0], &plan, |queue, waited| match (waited, &mut *reconnect) {
            (Err(Error::Disconnected), Some((policy, hook))) => disk.reconnect(std::slice::from_mut(queue), policy, hook),
            (waited, _) => waited.map(drop),
        });
        match done.inspect_err(|_| queues[0].abandon())?.first() {
            Some((_, status)) => Err(Error::Service(DiskError::Request(*status))),
            None => Ok(()),
        }
    }
}

impl std::fmt::Debug for Blocking {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Blocking").field("disk", &self.disk).finish_non_exhaustive()
    }
}
