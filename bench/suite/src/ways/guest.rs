//! A guest in user space on rings in its own memory (docs/protocol.md section 9).

use std::path::PathBuf;
use std::time::{Duration, Instant};

use fipsee::load::count_f64;
use fipsee_block::stats::Histogram;
use fipsee_block::wire::{Operation, request_one_segment};
use fipsee_ring::clock;
use fipsee_testkit::guest::device::{Guest, Options};
use fipsee_testkit::guest::machine::attach_request;
use fipsee_testkit::guest::ring::{GuestRing, Incoming, plan, segment};
use fipsee_virtio::blk::upgrade::wire::DONE;

use super::{Measured, Site, Way};
use crate::generator::Random;
use crate::matrix::Cell;
use crate::place;

/// Rounds of submitting and reaping between two looks at the wall clock.
const ROUNDS_PER_LOOK: u32 = 64;

struct Rings {
    socket: PathBuf,
    daemon_pid: u32,
    cpu: usize,
    disk_bytes: u64,
}

/// A guest that polls, as one does with a CPU of its own.
pub(super) fn open(site: &Site) -> Result<Box<dyn Way>, String> {
    let (socket, cpu) = (site.vhost_user.clone(), site.cpus.client);
    Ok(Box::new(Rings { socket, daemon_pid: site.daemon_pid, cpu, disk_bytes: site.null_bytes }))
}

impl Way for Rings {
    fn measure(&mut self, cell: Cell, seconds: f64) -> Result<Measured, String> {
        place::on(self.cpu, || self.run(cell, Duration::from_secs_f64(seconds)))
    }

    fn servers(&self) -> Vec<u32> {
        vec![self.daemon_pid]
    }
}

impl Rings {
    fn run(&self, cell: Cell, duration: Duration) -> Result<Measured, String> {
        let mut guest = Guest::start(&self.socket, &Options::default()).map_err(|error| format!("vhost-user: {error}"))?;
        let entry = plan(&guest.ram, 64, 0);
        let reply = guest.ask_bytes(0, &attach_request(&[entry]));
        if reply.result != DONE {
            return Err(format!("attach: {reply:?}"));
        }
        let ring = GuestRing::open(&guest.ram, entry, 0);
        let depth = u16::try_from(cell.depth).unwrap_or(64).min(64);
        let buffers = guest.ram.allocate(u64::from(depth) * cell.block_bytes.next_multiple_of(4096), 4096);
        let blocks = self.disk_bytes / cell.block_bytes;
        Load { guest, ring, cell, depth, buffers, blocks, random: Random::default() }.run(duration)
    }
}

struct Load {
    guest: Guest,
    ring: GuestRing,
    cell: Cell,
    depth: u16,
    buffers: u64,
    blocks: u64,
    random: Random,
}

impl Load {
    /// As the client of the virtqueue: keep `depth` in flight, sample the latency of every tag in turn.
    fn run(mut self, duration: Duration) -> Result<Measured, String> {
        let ticks = Histogram::default();
        let mut started_ticks = vec![0; usize::from(self.depth)];
        let (mut free, mut batch): (Vec<u16>, Vec<_>) = ((0..self.depth).collect(), Vec::new());
        let (mut probe, mut requests, mut failed) = (0, 0_u64, None);
        let started = Instant::now();
        while started.elapsed() < duration {
            for _ in 0..ROUNDS_PER_LOOK {
                let now_ticks = clock::ticks();
                while let Some(tag) = free.pop() {
                    batch.push(self.request(tag));
                    started_ticks[usize::from(tag)] = now_ticks;
                }
                if !batch.is_empty() {
                    self.ring.submit(&batch, &self.guest.queues[0]);
                    batch.clear();
                }
                self.ring.reap_each(&mut |one| match one {
                    Incoming::Answer(tag, 0) => {
                        requests += 1;
                        if tag == probe {
                            ticks.record(clock::ticks().saturating_sub(started_ticks[usize::from(tag)]), 1);
                            probe = (probe + 7) % self.depth;
                        }
                        free.push(tag);
                    }
                    other => failed = Some(format!("{other:?}")),
                });
                if let Some(failed) = failed {
                    return Err(failed);
                }
                if free.is_empty() {
                    std::hint::spin_loop();
                }
            }
        }
        let iops = count_f64(requests) / started.elapsed().as_secs_f64();
        while free.len() < usize::from(self.depth) {
            self.ring.reap_each(&mut |_| free.push(0));
        }
        let quantile_ns = |percent| count_f64(clock::ticks_to_ns(ticks.quantile(percent, 100)));
        let latency_ns = Some((quantile_ns(50), quantile_ns(99)));
        Ok(Measured { iops: Some(iops), latency_ns, requests: Some(count_f64(requests)) })
    }

    #[inline(always)]
    fn request(&mut self, tag: u16) -> fipsee_ring::Message {
        let block = self.random.below(self.blocks);
        let operation = if self.cell.write { Operation::Write } else { Operation::Read };
        let buffer = self.buffers + u64::from(tag) * self.cell.block_bytes;
        request_one_segment(operation, 0, tag, block * (self.cell.block_bytes / 512), segment(buffer, self.cell.block_bytes))
    }
}
