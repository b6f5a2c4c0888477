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
    version: u64,
    is_reading: bool,
}

impl Lane {
    fn submit(&mut self, queue: &mut Queue, token: u64) {
        let segment = self.buffer.segment(0, BLOCK_BYTES as u64);
        if self.is_reading {
            self.buffer.fill(0, &[0xee; BLOCK_BYTES]);
            queue.read(self.sector, segment, token).expect("room");
        } else {
            self.version += 1;
            self.buffer.fill(0, &stamp(BLOCK_BYTES, token, self.version));
            queue.write(self.sector, segment, token.is_multiple_of(8), token).expect("room");
        }
    }

    fn check(&mut self, token: u64) {
        if self.is_reading {
            // A lost write, or one repeated after the next, would leave an older version.
            assert!(bytes_of(&self.buffer) == stamp(BLOCK_BYTES, token, self.version), "block {token} is not as it was written");
        }
        self.is_reading = !self.is_reading;
    }
}

impl Load {
    /// Attach, and keep `depth` requests outstanding.
    pub fn start(daemon: &Daemon, disk: &str, depth: u32) -> Self {
        let options = AttachOptions { depth, ..Daemon::options(disk) };
        let (stop, done) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (socket, stopped, count) = (daemon.socket(), Arc::clone(&stop), Arc::clone(&done));
        let thread = std::thread::spawn(move || run(&socket, &options, depth, &stopped, &count));
        Self { disk: disk.to_owned(), stop, done, thread }
    }

    /// Wait until some hundred more requests are finished.
    #[track_caller]
    pub fn await_progress(&self) {
        let before = self.done.load(Ordering::Relaxed);
        eventually(&format!("the load on '{}' makes progress", self.disk), || {
            assert!(!self.thread.is_finished(), "the load ended early; see above");
            self.done.load(Ordering::Relaxed) >= before + 500
        });
    }

    /// Let the outstanding requests finish; the number of requests done, all without an error.
    pub fn finish(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("no request failed, and everything written was read")
    }
}

fn run(socket: &Path, options: &AttachOptions, depth: u32, stop: &AtomicBool, done: &AtomicU64) -> u64 {
    let (disk, mut queues) = Disk::attach(socket, options).expect("attached");
    let queue = &mut queues[0];
    let mut lanes: Vec<Lane> = (0..u64::from(depth))
        .map(|place| {
            let buffer = disk.allocate(BLOCK_BYTES as u64).expect("a pool");
            Lane { buffer, sector: place * BLOCK_BYTES as u64 / SECTOR_BYTES, version: 0, is_reading: false }
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
            lanes[lane].check(completion.token);
            done.fetch_add(1, Ordering::Relaxed);
            if !stop.load(Ordering::Relaxed) {
                lanes[lane].submit(queue, completion.token);
                outstanding[lane] = true;
            }
        }
        queue.submit();
    }
    done.load(Ordering::Relaxed)
}
