//! The Rust library. Half of the arena is the pool, which moves with each connection, half is memory of the client's own.

use std::path::Path;
use std::time::Duration;

use fipsee_block::client::{AttachOptions, Buffer, Completion, Disk, Error, Memory, Queue, ReconnectPolicy};
use fipsee_block::wire::{CAPABILITY_DISCARD, CAPABILITY_FUA, CAPABILITY_WRITE_ZEROES, MAX_INDIRECT_ENTRIES, Segment};

use super::{Action, Done, Front, Limits, Piece, Request, Waited};
use crate::content::SECTOR_BYTES;

/// Room in the pool for the table of each request of many segments.
const TABLE_BYTES: u64 = 4096;
const SECTOR: u64 = SECTOR_BYTES as u64;
const IDLE_WAIT: Duration = Duration::from_millis(1);

pub struct Library {
    disk: Disk,
    queues: Vec<Queue>,
    halves: [Buffer; 2],
    _memory: Memory,
    half_sectors: u64,
    turn: usize,
}

impl Library {
    pub fn attach(socket: &Path, queue_count: u16, depth: u32, arena_bytes: u64) -> Result<Self, String> {
        let half_bytes = (arena_bytes / 2).next_multiple_of(4096);
        let tables = u64::from(queue_count) * u64::from(depth) * TABLE_BYTES;
        let options = AttachOptions { queue_count, depth, pool_bytes: half_bytes + tables, ..AttachOptions::new("d") };
        let text = |error: Error| error.to_string();
        let (disk, queues) = Disk::attach(socket, &options).map_err(text)?;
        let memory = disk.create_memory(half_bytes).map_err(text)?;
        let halves = [disk.allocate(half_bytes).map_err(text)?, memory.buffer(0, half_bytes).map_err(text)?];
        Ok(Self { disk, queues, halves, _memory: memory, half_sectors: half_bytes / SECTOR, turn: 0 })
    }

    fn place(&self, sector: u64) -> (&Buffer, u64) {
        // One sector is between the halves, so that no piece spans them.
        if sector < self.half_sectors {
            (&self.halves[0], sector * SECTOR)
        } else {
            (&self.halves[1], (sector - self.half_sectors - 1) * SECTOR)
        }
    }

    fn segment(&self, (sector, count): (u64, u64)) -> Segment {
        let (buffer, offset_bytes) = self.place(sector);
        buffer.segment(offset_bytes, count * SECTOR)
    }
}

impl Front for Library {
    fn limits(&self) -> Limits {
        let info = self.disk.info();
        Limits {
            sector_count: info.sector_count,
            block_sectors: u64::from(info.block_bytes) / SECTOR,
            transfer_sectors: u64::from(info.max_transfer_bytes) / SECTOR,
            range_sectors: info.max_range_sectors.into(),
            pieces: MAX_INDIRECT_ENTRIES.min(info.max_segments as usize),
            piece_sectors: u16::MAX.into(),
            queues: self.queues.len(),
            has_fua: info.can(CAPABILITY_FUA),
            has_discard: info.can(CAPABILITY_DISCARD),
            has_zeroes: info.can(CAPABILITY_WRITE_ZEROES),
            can_resize: true,
        }
    }

    fn areas(&self) -> Vec<Piece> {
        vec![(0, self.half_sectors), (self.half_sectors + 1, self.half_sectors)]
    }

    fn fill(&mut self, sector: u64, bytes: &[u8]) {
        let (buffer, offset_bytes) = self.place(sector);
        buffer.fill(offset_bytes, bytes);
    }

    fn copy(&self, sector: u64, into: &mut [u8]) {
        let (buffer, offset_bytes) = self.place(sector);
        buffer.copy_to(offset_bytes, into);
    }

    fn has_room(&self, queue: usize, _pieces: usize) -> bool {
        self.queues[queue].free() > 0
    }

    fn stage(&mut self, request: &Request<'_>) -> Result<(), String> {
        let segments: Vec<Segment> = request.pieces.iter().map(|piece| self.segment(*piece)).collect();
        let (sector, count, token) = (request.sector, request.count, request.token);
        let queue = &mut self.queues[request.queue];
        let full = |_| "the queue has no room".to_owned();
        match request.action {
            Action::Read => queue.read_vectored(sector, &segments, token).map_err(|error| error.to_string()),
            Action::Write { fua } => queue.write_vectored(sector, &segments, fua, token).map_err(|error| error.to_string()),
            Action::Flush => queue.flush(token).map_err(full),
            Action::Discard => queue.discard(sector, count, token).map_err(full),
            Action::WriteZeroes { unmap, fua } => queue.write_zeroes(sector, count, unmap, fua, token).map_err(full),
        }
    }

    fn publish(&mut self) {
        self.queues.iter_mut().for_each(Queue::submit);
    }

    fn wait(&mut self, done: &mut Vec<Done>) -> Result<Waited, String> {
        let mut take = |completion: Completion| done.push((completion.token, completion.status as u64));
        let mut came = 0;
        for queue in &mut self.queues {
            came += queue.reap(&mut take).map_err(|error| error.to_string())?;
            while queue.next_event().is_some() {} // a new size; the caller asked for it
        }
        if came > 0 {
            return Ok(Waited::Alive);
        }
        let count = self.queues.len();
        let busy = (self.turn + 1..=self.turn + count).map(|turn| turn % count).find(|turn| self.queues[*turn].outstanding() > 0);
        let Some(turn) = busy else { return Ok(Waited::Alive) };
        self.turn = turn;
        match self.queues[turn].wait_timeout(IDLE_WAIT, &mut take) {
            Ok(_) => Ok(Waited::Alive),
            Err(Error::Disconnected) => {
                // What the daemon answered before it ended, in every queue.
                self.queues
                    .iter_mut()
                    .try_for_each(|queue| queue.reap(&mut take).map(drop))
                    .map_err(|error| error.to_string())?;
                Ok(Waited::Gone)
            }
            Err(error) => Err(error.to_string()),
        }
    }

    fn reconnect(&mut self) -> Result<(), String> {
        self.disk.reconnect(&mut self.queues, &ReconnectPolicy::default(), &mut |_| {}).map_err(|error| error.to_string())
    }
}
