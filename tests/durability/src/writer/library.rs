//! By the Rust library, which reconnects and submits again.

use std::path::Path;
use std::time::Duration;

use fipsee_block::client::{AttachOptions, Buffer, Disk, Error, Memory, Queue, ReconnectPolicy};
use fipsee_block::wire::SECTOR_BYTES;

use super::{Port, Request, SLOT_BYTES, SLOTS, Waited};
use crate::record::Action;

/// A library client. Half of its buffers are in the pool, which moves with each connection, half in memory of its own.
pub struct Library {
    disk: Disk,
    queues: Vec<Queue>,
    buffers: Vec<Buffer>,
    _memory: Memory,
}

impl Library {
    /// Attach; the daemon may not be there yet.
    ///
    /// # Errors
    /// As the library says it.
    pub fn attach(socket: &Path, name: &str) -> Result<Self, String> {
        let options = AttachOptions::new(name);
        let (disk, queues) = Disk::attach(socket, &options).map_err(|error| error.to_string())?;
        let memory = disk.create_memory(SLOTS as u64 * SLOT_BYTES).map_err(|error| error.to_string())?;
        let buffer = |slot: usize| match slot % 2 {
            0 => disk.allocate(SLOT_BYTES),
            _ => memory.buffer(slot as u64 * SLOT_BYTES, SLOT_BYTES),
        };
        let buffers = (0..SLOTS).map(buffer).collect::<Result<_, _>>().map_err(|error| error.to_string())?;
        Ok(Self { disk, queues, buffers, _memory: memory })
    }
}

impl Port for Library {
    const HAS_FUA: bool = true;

    fn fill(&mut self, slot: usize, bytes: &[u8]) {
        self.buffers[slot].fill(0, bytes);
    }

    fn content(&mut self, slot: usize, length_bytes: usize) -> Vec<u8> {
        let mut bytes = vec![0; length_bytes];
        self.buffers[slot].copy_to(0, &mut bytes);
        bytes
    }

    fn submit(&mut self, request: Request) -> Result<(), String> {
        let (queue, sector) = (&mut self.queues[0], request.sector);
        let segment = self.buffers[request.slot].segment(0, request.count.max(1) * SECTOR_BYTES);
        let staged = match request.action {
            Action::Write => queue.write(sector, segment, false, request.token),
            Action::WriteDurably => queue.write(sector, segment, true, request.token),
            Action::Flush => queue.flush(request.token),
            Action::Read => queue.read(sector, segment, request.token),
        };
        staged.map_err(|_| "the queue has no room".to_owned())
    }

    fn wait(&mut self, done: &mut Vec<(u64, u64)>) -> Result<Waited, String> {
        let mut take = |completion: fipsee_block::client::Completion| done.push((completion.token, completion.status as u64));
        match self.queues[0].wait_timeout(Duration::from_millis(100), &mut take) {
            Ok(_) => Ok(Waited::Alive),
            Err(Error::Disconnected) => Ok(Waited::Gone),
            Err(error) => Err(error.to_string()),
        }
    }

    fn reconnect(&mut self) -> Result<(), String> {
        self.disk.reconnect(&mut self.queues, &ReconnectPolicy::default(), &mut |_| {}).map_err(|error| error.to_string())
    }
}
