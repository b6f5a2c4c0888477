//! Many clients of many users, driven by one thread.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fipsee::load::count_f64;
use fipsee_block::client::{AttachOptions, Buffer, Disk, Queue};
use fipsee_block::wire::SECTOR_BYTES;
use fipsee_ring::clock;
use fipsee_ring::wait::WaitMode;
use fipsee_testkit::{as_user, is_root};

use super::costs::{Found, Rounds};
use crate::generator::Random;

/// The first of the users.
pub(super) const FIRST_USER: u32 = 20_000;
const ROUNDS_PER_CHECK: u32 = 64;

/// What a client keeps in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) queues: u16,
    pub(crate) depth: u32,
    pub(crate) bytes: u64,
}

/// One block at a time.
pub(crate) const ORDINARY: Shape = Shape { queues: 1, depth: 1, bytes: 4096 };
/// A mebibyte at a time.
pub(super) const LONG: Shape = Shape { queues: 1, depth: 1, bytes: 1 << 20 };
/// A greedy user with one queue full of requests of a mebibyte each.
pub(super) const GREEDY: Shape = Shape { queues: 1, depth: 256, bytes: 1 << 20 };
/// A greedy user with as many such queues as a client can have.
pub(super) const GREEDIEST: Shape = Shape { queues: 16, ..GREEDY };

/// A queue that is kept full of reads of random places. All name the same memory, which costs their client next to nothing.
pub(super) struct Lane {
    queue: Queue,
    client: usize,
    bytes: u64,
    blocks: u64,
    pub(super) completed: u64,
}

pub(crate) struct Crowd {
    pub(super) lanes: Vec<Lane>,
    clients: Vec<(Disk, Buffer)>,
    random: Random,
    next: usize,
    is_silent: bool,
    /// Give the CPU away after a round that found nothing: a worker has the same one.
    pub(super) yields: bool,
}

/// A client: its queues, and the memory that all its requests name.
pub(crate) type CrowdClient = (Disk, Vec<Queue>, Buffer);

/// Attach to the disk `m`, as `user` if that can be chosen.
pub(super) fn attach(socket: &Path, user: u32, shape: Shape) -> Result<CrowdClient, String> {
    attach_to(socket, "m", user, shape, WaitMode::Adaptive)
}

/// As [`attach`], to another disk, and with another way to wait.
pub(crate) fn attach_to(socket: &Path, disk: &str, user: u32, shape: Shape, wait: WaitMode) -> Result<CrowdClient, String> {
    let Shape { queues, depth, bytes } = shape;
    let pool_bytes = bytes.max(4096);
    let options = AttachOptions { queue_count: queues, depth, pool_bytes, read_only: true, wait, ..AttachOptions::new(disk) };
    let socket: PathBuf = socket.to_owned();
    let act = move || Disk::attach(&socket, &options);
    let attached = if is_root() { as_user(user, &[], act) } else { act() };
    let (disk, granted) = attached.map_err(|error| format!("cannot attach as user {user}: {error}"))?;
    if granted.len() != usize::from(queues) || granted.iter().any(|queue| queue.depth() != depth as usize) {
        return Err(format!("the daemon did not grant {queues} queues of depth {depth}"));
    }
    let buffer = disk.allocate(bytes).map_err(|error| error.to_string())?;
    Ok((disk, granted, buffer))
}

impl Lane {
    fn fill(&mut self, buffer: &Buffer, random: &mut Random) {
        let sectors = self.bytes / SECTOR_BYTES;
        while self.queue.free() > 0 {
            let staged = self.queue.read(random.below(self.blocks) * sectors, buffer.segment(0, self.bytes), 0);
            debug_assert!(staged.is_ok(), "a queue with room takes a request");
        }
        self.queue.submit();
    }
}

impl Crowd {
    pub(crate) fn new() -> Self {
        Self { lanes: Vec::new(), clients: Vec::new(), random: Random::default(), next: 0, is_silent: false, yields: false }
    }

    /// One whose clients ask for nothing.
    pub(super) fn silent() -> Self {
        Self { is_silent: true, ..Self::new() }
    }

    /// A client more, whose queues are filled at once.
    pub(super) fn join(&mut self, socket: &Path, user: u32, shape: Shape) -> Result<(), String> {
        self.join_with(attach(socket, user, shape)?, shape);
        Ok(())
    }

    /// Likewise, of one that is attached.
    pub(crate) fn join_with(&mut self, (disk, queues, buffer): CrowdClient, shape: Shape) {
        let blocks = disk.info().sector_count * SECTOR_BYTES / shape.bytes;
        for queue in queues {
            let mut lane = Lane { queue, client: self.clients.len(), bytes: shape.bytes, blocks, completed: 0 };
            if !self.is_silent {
                lane.fill(&buffer, &mut self.random);
            }
            self.lanes.push(lane);
        }
        self.clients.push((disk, buffer));
    }

    /// The last client leaves.
    pub(super) fn leave(&mut self) {
        let last = self.clients.len().saturating_sub(1);
        self.lanes.retain(|lane| lane.client != last);
        self.clients.pop();
        self.next = 0;
    }

    /// Look at the next queue and fill it again; how many of its requests were answered.
    pub(super) fn turn(&mut self) -> Result<u64, String> {
        let lane_count = self.lanes.len();
        let Some(lane) = self.lanes.get_mut(self.next) else { return Ok(0) };
        self.next = if self.next + 1 == lane_count { 0 } else { self.next + 1 };
        let count = lane.queue.reap(&mut |_| {}).map_err(|error| error.to_string())? as u64;
        if count > 0 {
            lane.completed += count;
            lane.fill(&self.clients[lane.client].1, &mut self.random);
        }
        Ok(count)
    }

    /// Look at every queue once.
    pub(super) fn round(&mut self) -> Result<u64, String> {
        let count = (0..self.lanes.len()).try_fold(0, |count, _| Ok::<_, String>(count + self.turn()?))?;
        if count == 0 && self.yields {
            std::thread::yield_now();
        }
        Ok(count)
    }

    /// Go on for so long, and time each round.
    pub(super) fn run_timed(&mut self, duration: Duration) -> Result<Rounds, String> {
        let (mut rounds, started) = (Rounds::default(), Instant::now());
        while started.elapsed() < duration {
            for _ in 0..ROUNDS_PER_CHECK {
                if !self.time_round(&mut rounds)? && self.yields {
                    std::thread::yield_now();
                }
            }
        }
        Ok(rounds)
    }

    /// Whether it found something.
    fn time_round(&mut self, rounds: &mut Rounds) -> Result<bool, String> {
        let (mut found, before) = (Found::default(), clock::ticks());
        for _ in 0..self.lanes.len() {
            match self.turn()? {
                0 => found.empty += 1,
                count => (found.full, found.requests) = (found.full + 1, found.requests + count),
            }
        }
        rounds.add(clock::ticks().wrapping_sub(before), found);
        Ok(found.full > 0)
    }

    /// Go on for so long: requests per second in each slice of it.
    pub(super) fn rates(&mut self, duration: Duration, slice: Duration) -> Result<Vec<f64>, String> {
        let (mut rates, started) = (Vec::new(), Instant::now());
        while started.elapsed() < duration {
            let (seconds, completed) = self.run(slice)?;
            rates.push(count_f64(completed.iter().sum()) / seconds);
        }
        Ok(rates)
    }

    /// Go on for so long; how long it was in the end, and what each client had answered meanwhile.
    pub(crate) fn run(&mut self, duration: Duration) -> Result<(f64, Vec<u64>), String> {
        self.lanes.iter_mut().for_each(|lane| lane.completed = 0);
        let started = Instant::now();
        while started.elapsed() < duration {
            for _ in 0..ROUNDS_PER_CHECK {
                self.round()?;
            }
        }
        let seconds = started.elapsed().as_secs_f64();
        let mut completed = vec![0; self.clients.len()];
        self.lanes.iter().for_each(|lane| completed[lane.client] += lane.completed);
        Ok((seconds, completed))
    }
}
