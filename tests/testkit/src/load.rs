//! A client that verifies under load, on a thread of its own.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use fipsee_block::client::{AttachOptions, Buffer, Disk, Queue};
use fipsee_block::wire::{SECTOR_BYTES, Status};

use crate::{Daemon, bytes_of, eventually, stamp};

/// Bytes of one request.
const BLOCK_BYTES: usize = 4096;

/// What a block holds that is written and read back, in turns.
#[derive(Default)]
pub(crate) struct Turns {
    version: u64,
    pub(crate) is_reading: bool,
}

impl Turns {
    /// The content of block `number` for the next request: a read begins with bytes that are never written.
    pub(crate) fn next(&mut self, number: u64) -> Vec<u8> {
        if self.is_reading {
            return vec![0xee; BLOCK_BYTES];
        }
        self.version += 1;
        stamp(BLOCK_BYTES, number, self.version)
    }

    /// A request is done, and `found` in its memory.
    pub(crate) fn check(&mut self, number: u64, found: &[u8]) {
        // A lost write, or one repeated after the next, would leave an older version.
        let is_good = !self.is_reading || found == stamp(BLOCK_BYTES, number, self.version);
        assert!(is_good, "block {number} is not as it was written");
        self.is_reading = !self.is_reading;
    }
}

/// A client that keeps its queue full, and reads back everything that it wrote.
pub struct Load {
    disk: String,
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    thread: JoinHandle<u64>,
}

/// One outstanding request: it writes to a block of its own and reads it back, in turns.
struct Lane {
    buffer: Buffer,
    sector: u64,
    turns: Turns,
}

impl Lane {
    fn submit(&mut self, queue: &mut Queue, token: u64) {
        let segment = self.buffer.segment(0, BLOCK_BYTES as u64);
        self.buffer.fill(0, &self.turns.next(token));
        if self.turns.is_reading {
            queue.read(self.sector, segment, token).expect("room");
        } else {
            queue.write(self.sector, segment, token.is_multiple_of(8), token).expect("room");
        }
    }
}

impl Load {
    /// Attach, and keep `depth` requests outstanding.
    pub fn start(daemon: &Daemon, disk: &str, depth: u32) -> Self {
        let options = AttachOptions { depth, ..Daemon::options(disk) };
        let socket = daemon.socket();
        Self::on_thread(disk, move |stop, done| run(&socket, &options, depth, stop, done))
    }

    /// `work` counts what is done until it is to stop.
    pub(crate) fn on_thread(disk: &str, work: impl FnOnce(&AtomicBool, &AtomicU64) + Send + 'static) -> Self {
        let (stop, done) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&done));
        let thread = std::thread::spawn(move || {
            work(&stopped, &count);
            count.load(Ordering::Relaxed)
        });
        Self { disk: disk.to_owned(), stop, done, thread }
    }

    /// Wait until some hundred more requests are finished.
    #[track_caller]
    pub fn await_progress(&self) {
        let before = self.done.load(Ordering::Relaxed);
        eventually(&format!("the load on '{}' makes progress", self.disk), || {
            assert!(!self.thread.is_finished(), "the load on '{}' ended early; see above", self.disk);
            self.done.load(Ordering::Relaxed) >= before + 500
        });
    }

    /// Let the outstanding requests finish; the number of requests done, all without an error.
    pub fn finish(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("no request failed, and everything written was read")
    }
}

fn run(socket: &Path, options: &AttachOptions, depth: u32, stop: &AtomicBool, done: &AtomicU64) {
    let (disk, mut queues) = Disk::attach(socket, options).expect("attached");
    let queue = &mut queues[0];
    let mut lanes: Vec<Lane> = (0..u64::from(depth))
        .map(|place| {
            let buffer = disk.allocate(BLOCK_BYTES as u64).expect("a pool");
            Lane { buffer, sector: place * BLOCK_BYTES as u64 / SECTOR_BYTES, turns: Turns::default() }
        })
        .collect();
    let mut outstanding = vec![true; lanes.len()];
    for (token, lane) in (0..).zip(&mut lanes) {
        lane.submit(queue, token);
    }
    queue.submit();
    while outstanding.contains(&true) {
        let mut finished = Vec::new();
        queue.wait(&mut |completion| finished.push(completion)).expect("the daemon is there");
        for completion in finished {
            assert_eq!(completion.status, Status::Ok);
            let lane = usize::try_from(completion.token).expect("small");
            assert!(std::mem::take(&mut outstanding[lane]), "completed twice");
            let Lane { buffer, turns, .. } = &mut lanes[lane];
            turns.check(completion.token, &bytes_of(buffer));
            done.fetch_add(1, Ordering::Relaxed);
            if !stop.load(Ordering::Relaxed) {
                lanes[lane].submit(queue, completion.token);
                outstanding[lane] = true;
            }
        }
        queue.submit();
    }
}
