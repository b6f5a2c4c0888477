//! Random reads of 4 KiB.

use std::path::Path;

use fipsee_block::client::{AttachOptions, Buffer, Disk, Queue};
use fipsee_testkit::Random;

use super::{DEPTH, Victim};

const BLOCK_BYTES: u64 = 4096;

/// A correct client of a disk.
pub(in super::super) struct DiskClient {
    disk: Disk,
    queue: Queue,
    buffer: Buffer,
    random: Random,
}

impl DiskClient {
    pub(in super::super) fn attach(socket: &Path, disk: &str) -> Result<Self, String> {
        let mut options = AttachOptions::new(disk);
        options.depth = DEPTH;
        let (disk, mut queues) = Disk::attach(socket, &options).map_err(|error| format!("cannot attach: {error}"))?;
        let queue = queues.pop().ok_or("no queue")?;
        let buffer = disk.allocate(u64::from(DEPTH) * BLOCK_BYTES).map_err(|error| error.to_string())?;
        Ok(Self { disk, queue, buffer, random: Random(7) })
    }
}

impl Victim for DiskClient {
    fn fill(&mut self, now: u64) -> Result<(), String> {
        let sectors = BLOCK_BYTES / 512;
        let blocks = self.disk.info().sector_count / sectors;
        let mut token = now;
        while self.queue.free() > 0 {
            let place = self.random.number() % u64::from(DEPTH) * BLOCK_BYTES;
            let sector = self.random.number() % blocks * sectors;
            let staged = self.queue.read(sector, self.buffer.segment(place, BLOCK_BYTES), token);
            staged.map_err(|_| "a queue with room is full".to_owned())?;
            token = 0;
        }
        self.queue.submit();
        Ok(())
    }

    fn look(&mut self, mut came: impl FnMut(u64)) -> Result<u64, String> {
        let reaped = self.queue.reap(&mut |completion| came(completion.token));
        u64::try_from(reaped.map_err(|error| error.to_string())?).map_err(|error| error.to_string())
    }

    fn is_idle(&self) -> bool {
        self.queue.outstanding() == 0
    }
}
