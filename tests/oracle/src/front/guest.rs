//! What both fronts of a guest share: its memory as an arena, and sleeping until an interrupt comes.

use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use fipsee_testkit::guest::device::{Guest, Options};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Limits, Piece};
use crate::content::SECTOR_BYTES;
use crate::interrupt;

/// How long a daemon may be away.
const RETURN_WITHIN: Duration = Duration::from_secs(60);
/// A second piece of memory, behind a hole as machines have one.
const HIGH_ADDRESS: u64 = 4 << 30;
/// Memory for what is not payload.
const OWN_BYTES: u64 = 16 << 20;
const SECTOR: u64 = SECTOR_BYTES as u64;
const IDLE_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
/// Where its configuration space has the capacity, in sectors.
const CAPACITY: Range<usize> = 12..20;

#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub queues: u16,
    pub arena_bytes: u64,
    /// It negotiates FLUSH; without, every write is durable when it completes.
    pub write_cache: bool,
}

/// A guest with an arena as its memory.
pub(super) struct Machine {
    pub(super) guest: Guest,
    low_address: u64,
    half_sectors: u64,
}

impl Machine {
    /// Start it at the socket of a disk; the last hypervisor may be about to leave.
    pub(super) fn start(socket: &Path, size: u16, setup: Setup) -> Result<Self, String> {
        let Setup { queues, arena_bytes, write_cache } = setup;
        let half_bytes = (arena_bytes / 2).next_multiple_of(4096);
        let memory = vec![(0, half_bytes + OWN_BYTES), (HIGH_ADDRESS, half_bytes)];
        let options = Options { memory, queues, size, write_cache, ..Options::default() };
        let guest = again(|| Guest::start(socket, &options)).map_err(|error| format!("the guest does not start: {error}"))?;
        let low_address = guest.ram.allocate(half_bytes, 4096);
        Ok(Self { guest, low_address, half_sectors: half_bytes / SECTOR })
    }

    pub(super) fn reconnect(&mut self) -> Result<(), String> {
        again(|| self.guest.reconnect()).map_err(|error| format!("the daemon does not come back: {error}"))
    }

    pub(super) fn areas(&self) -> Vec<Piece> {
        // One sector is between the halves, so that no piece spans them.
        vec![(0, self.half_sectors), (self.half_sectors + 1, self.half_sectors)]
    }

    pub(super) const fn address(&self, sector: u64) -> u64 {
        if sector < self.half_sectors {
            self.low_address + sector * SECTOR
        } else {
            HIGH_ADDRESS + (sector - self.half_sectors - 1) * SECTOR
        }
    }

    /// A piece as the address and length of guest memory.
    pub(super) const fn span(&self, (sector, count): Piece) -> (u64, u64) {
        (self.address(sector), count * SECTOR)
    }

    pub(super) fn fill(&self, sector: u64, bytes: &[u8]) {
        self.guest.ram.write(self.address(sector), bytes);
    }

    pub(super) fn copy(&self, sector: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.guest.ram.read(self.address(sector), into.len()));
    }

    /// The disk in the words of its configuration space, without FUA.
    pub(super) fn limits(&mut self, pieces: usize) -> Result<Limits, String> {
        let header = [0_u32.to_le_bytes(), 60_u32.to_le_bytes(), [0; 4]].concat();
        let body = [header, vec![0; 60]].concat();
        let answer = self.guest.frontend.call(fipsee_testkit::guest::frontend::Request::GetConfig, &body, &[]);
        let (config, _) = answer.map_err(|error| format!("the configuration space: {error}"))?;
        let word =
            |at: usize| config.get(at..at + 4).and_then(|bytes| bytes.first_chunk()).map(|bytes| u32::from_le_bytes(*bytes));
        let capacity = config.get(CAPACITY).and_then(|bytes| bytes.first_chunk()).map(|bytes| u64::from_le_bytes(*bytes));
        let (Some(sector_count), Some(block), Some(range)) = (capacity, word(12 + 20), word(12 + 36)) else {
            return Err("the configuration space is too short".to_owned());
        };
        Ok(Limits {
            sector_count,
            block_sectors: u64::from(block) / SECTOR,
            transfer_sectors: 32768,
            range_sectors: range.into(),
            pieces,
            piece_sectors: u16::MAX.into(),
            queues: self.guest.queues.len(),
            has_fua: false,
            has_discard: range > 0,
            has_zeroes: true,
            can_resize: true,
        })
    }

    /// Sleep until an interrupt comes, the daemon goes, or a moment has passed.
    pub(super) fn sleep(&self) {
        let queues = self.guest.queues.iter().map(|queue| PollFd::from_borrowed_fd(queue.interrupt(), PollFlags::IN));
        let socket = PollFd::from_borrowed_fd(self.guest.frontend.socket(), PollFlags::RDHUP);
        let mut fds: Vec<PollFd<'_>> = queues.chain([socket]).collect();
        let _ = poll(&mut fds, Some(&IDLE_WAIT));
        for queue in &self.guest.queues {
            let _ = rustix::io::read(queue.interrupt(), &mut [0_u8; 8][..]);
        }
    }
}

/// Until it succeeds, or the time is up.
fn again<T>(mut action: impl FnMut() -> std::io::Result<T>) -> Result<T, String> {
    let begun = Instant::now();
    loop {
        match action() {
            Ok(value) => return Ok(value),
            Err(error) if begun.elapsed() > RETURN_WITHIN => return Err(error.to_string()),
            Err(_) => {
                interrupt::check()?;
                // tidy: allow sleep, nothing notifies when a socket is there
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
