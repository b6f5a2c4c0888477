//! Any number of requests through one queue: as many at a time as it takes, each into its place.

use std::sync::Arc;

use fipsee_block::client::{Buffer, Error};
use fipsee_block::wire::{SECTOR_BYTES, SECTOR_SHIFT, Segment, Status};
use fipsee_ring::ring::Full;

use crate::attached::{Attached, BOUNCE_PIECE_BYTES, Lane};
use crate::error::Failure;
use crate::memory::{Bytes, Registered};
use crate::wait::wait;

/// Most data of one request straight into shared memory: large enough to hide what a request costs, small enough
/// that several of a long read are in flight.
const DIRECT_PIECE_BYTES: u64 = 1 << 20;
/// Pieces of the bounce memory: enough to keep a disk busy while we copy.
const BOUNCE_PIECES: u64 = 8;
/// Bounce memory of one queue.
pub(crate) const BOUNCE_BYTES: u64 = BOUNCE_PIECE_BYTES * BOUNCE_PIECES;
/// What a request without data names.
pub(crate) const NO_SEGMENT: Segment = Segment { offset_sectors: 0, length_sectors: 0, region: 0 };

/// What is asked of the disk.
#[derive(Clone, Copy)]
pub(crate) enum Action {
    Read,
    Write { fua: bool },
    Flush,
    Discard,
    WriteZeroes { unmap: bool },
}

/// One request.
#[derive(Clone, Copy, Default)]
struct Job {
    /// Which of the plan's it belongs to.
    index: usize,
    disk_offset_bytes: u64,
    /// Where in the caller's memory.
    place_bytes: u64,
    length_bytes: u64,
}

impl Job {
    const fn is_misaligned(&self) -> bool {
        !(self.disk_offset_bytes | self.length_bytes).is_multiple_of(SECTOR_BYTES)
    }
}

/// Where the data is.
pub(crate) enum Place<'a> {
    /// In memory that the daemon reaches, from this offset on.
    Direct(&'a Registered, u64),
    /// Elsewhere: it goes through the lane's bounce memory.
    Bounce(Bytes<'a>),
    /// There is none.
    None,
}

impl Place<'_> {
    /// Longest piece of one request on a disk with such blocks.
    fn piece_bytes(&self, disk: &Attached, action: Action) -> u64 {
        let most = match (self, action) {
            (_, Action::Discard | Action::WriteZeroes { .. }) => {
                return (u64::from(disk.info.max_range_sectors.max(1)) << SECTOR_SHIFT).max(u64::from(disk.info.block_bytes));
            }
            (Place::Bounce(_), _) => BOUNCE_PIECE_BYTES,
            _ => DIRECT_PIECE_BYTES,
        };
        let (longest, block) = (u64::from(disk.info.max_transfer_bytes), u64::from(disk.info.block_bytes));
        let longest = most.min(longest);
        (longest - longest % block).max(block)
    }
}

/// What a call asks for: the same action at several offsets of the disk.
pub(crate) struct Plan<'a> {
    pub(crate) action: Action,
    /// Number `i` begins at `disk_offsets[i]`, and at `i * length_bytes` of the memory.
    pub(crate) disk_offsets: &'a [u64],
    /// Of each.
    pub(crate) length_bytes: u64,
    /// Begin more after a failure.
    pub(crate) keep_going: bool,
}

impl Plan<'_> {
    /// The requests, none longer than `piece_bytes`.
    fn jobs(&self, piece_bytes: u64) -> impl Iterator<Item = Job> {
        let pieces = self.length_bytes.div_ceil(piece_bytes).max(1);
        self.disk_offsets.iter().enumerate().flat_map(move |(index, disk_offset_bytes)| {
            (0..pieces).map(move |piece| {
                let start_bytes = piece * piece_bytes;
                Job {
                    index,
                    disk_offset_bytes: disk_offset_bytes.saturating_add(start_bytes),
                    place_bytes: index as u64 * self.length_bytes + start_bytes,
                    length_bytes: piece_bytes.min(self.length_bytes - start_bytes),
                }
            })
        })
    }
}

/// Carry out `plan`; returns the index and status of what failed.
pub(crate) fn run(
    disk: &Arc<Attached>,
    lane: &mut Lane,
    plan: &Plan<'_>,
    place: &Place<'_>,
) -> Result<Vec<(usize, Status)>, Failure> {
    let has_data = matches!(plan.action, Action::Read | Action::Write { .. });
    if has_data && plan.length_bytes == 0 {
        return Ok(Vec::new());
    }
    drain(disk, lane)?;
    let (action, keep_going) = (plan.action, plan.keep_going);
    let piece_bytes = place.piece_bytes(disk, action).min(plan.length_bytes.max(1));
    let mut jobs = plan.jobs(piece_bytes).fuse();
    let bounce;
    let stage = match place {
        Place::Direct(registered, offset_bytes) => Stage::Direct(&registered.whole, *offset_bytes),
        Place::Bounce(bytes) => {
            bounce = disk.bounce_of(lane)?;
            Stage::Bounce(*bytes, &bounce, piece_bytes)
        }
        Place::None => Stage::None,
    };
    let pieces = plan.length_bytes.div_ceil(piece_bytes).max(1).saturating_mul(plan.disk_offsets.len() as u64);
    let slots = stage.slots().min(lane.queue.depth()).min(usize::try_from(pieces).unwrap_or(usize::MAX));
    let mut free: Vec<usize> = (0..slots).rev().collect();
    let mut in_flight = vec![Job::default(); slots];
    let mut failures = Vec::new();
    loop {
        while lane.queue.free() > 0 && (keep_going || failures.is_empty()) {
            let Some(slot) = free.pop() else { break };
            let Some(job) = jobs.next() else {
                free.push(slot);
                break;
            };
            if job.is_misaligned() {
                failures.push((job.index, Status::Misaligned));
                free.push(slot);
                continue;
            }
            stage.stage(lane, action, &job, slot).map_err(|Full| Error::QueueFull)?;
            in_flight[slot] = job;
        }
        if free.len() == slots {
            return Ok(failures);
        }
        wait(disk, lane, &mut |completion| {
            let slot = usize::try_from(completion.token).unwrap_or(usize::MAX);
            let Some(job) = in_flight.get(slot) else { return };
            match completion.status {
                Status::Ok => stage.finish(action, job, slot),
                status => failures.push((job.index, status)),
            }
            free.push(slot);
        })?;
    }
}

/// Wait for what an interrupted call left behind.
fn drain(disk: &Attached, lane: &mut Lane) -> Result<(), Failure> {
    while lane.queue.outstanding() > 0 {
        wait(disk, lane, &mut |_| {})?;
    }
    lane.kept.clear();
    Ok(())
}

/// How the data of requests gets to memory that the daemon reaches, and back.
enum Stage<'a> {
    Direct(&'a Buffer, u64),
    /// With the length of a slot's piece.
    Bounce(Bytes<'a>, &'a Registered, u64),
    None,
}

impl Stage<'_> {
    fn slots(&self) -> usize {
        match self {
            Self::Bounce(_, _, piece_bytes) => usize::try_from(BOUNCE_BYTES / piece_bytes).unwrap_or(usize::MAX),
            _ => usize::MAX,
        }
    }

    #[inline]
    fn stage(&self, lane: &mut Lane, action: Action, job: &Job, slot: usize) -> Result<(), Full> {
        let (queue, sector) = (&mut lane.queue, job.disk_offset_bytes >> SECTOR_SHIFT);
        let (sectors, token) = (job.length_bytes >> SECTOR_SHIFT, slot as u64);
        let segment = match self {
            Self::Direct(whole, offset_bytes) => whole.segment(offset_bytes + job.place_bytes, job.length_bytes),
            Self::Bounce(bytes, bounce, piece_bytes) => {
                if let Action::Write { .. } = action {
                    bytes.copy_to(job.place_bytes, bounce.bytes(), token * piece_bytes, job.length_bytes);
                }
                bounce.whole.segment(token * piece_bytes, job.length_bytes)
            }
            Self::None => NO_SEGMENT,
        };
        match action {
            Action::Read => queue.read(sector, segment, token),
            Action::Write { fua } => queue.write(sector, segment, fua, token),
            Action::Discard => queue.discard(sector, sectors, token),
            Action::WriteZeroes { unmap } => queue.write_zeroes(sector, sectors, unmap, false, token),
            Action::Flush => queue.flush(token),
        }
    }

    #[inline]
    fn finish(&self, action: Action, job: &Job, slot: usize) {
        if let (Self::Bounce(bytes, bounce, piece_bytes), Action::Read) = (self, action) {
            bounce.bytes().copy_to(slot as u64 * piece_bytes, *bytes, job.place_bytes, job.length_bytes);
        }
    }
}
