//! A client of vhost-user-blk: libblkio, which polls the used ring or sleeps on its eventfd.

use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use blkio::{Blkio, Blkioq, Completion, MemoryRegion, ReqFlags};
use fipsee::load::{count_f64, new_histogram};
use fipsee_ring::clock;
use hdrhistogram::Histogram;

use super::{Measured, Way};
use crate::generator::Random;
use crate::matrix::Cell;
use crate::place;
use crate::server::Server;

/// libblkio's default.
const QUEUE_SIZE: i32 = 256;
/// Requests in flight at most.
const MAX_DEPTH: usize = 64;

pub(super) struct Vhost {
    /// The server, if it is there for this way alone.
    pub(super) server: Option<Server>,
    /// Its process.
    pub(super) pid: u32,
    pub(super) socket: PathBuf,
    pub(super) polling: bool,
    pub(super) cpu: usize,
    pub(super) disk_bytes: u64,
}

impl Way for Vhost {
    fn measure(&mut self, cell: Cell, seconds: f64) -> Result<Measured, String> {
        let run = || load(&self.socket, self.polling, self.disk_bytes, cell, Duration::from_secs_f64(seconds));
        let seen = place::on(self.cpu, || run().map_err(|error| format!("libblkio: {error}")));
        let Seen { requests, iops, ticks } = seen.map_err(|error| match &mut self.server {
            Some(server) => server.explain(error),
            None => error,
        })?;
        let quantile_ns = |quantile| count_f64(clock::ticks_to_ns(ticks.value_at_quantile(quantile)));
        let latency_ns = Some((quantile_ns(0.5), quantile_ns(0.99)));
        Ok(Measured { iops: Some(iops), latency_ns, requests: Some(count_f64(requests)) })
    }

    fn servers(&self) -> Vec<u32> {
        vec![self.pid]
    }

    fn placeable(&self) -> Vec<u32> {
        self.server.iter().map(Server::pid).collect()
    }
}

/// What the client has seen.
pub(crate) struct Seen {
    pub(crate) requests: u64,
    pub(crate) iops: f64,
    /// From submitting to reaping, in ticks of the time-stamp counter.
    pub(crate) ticks: Histogram<u64>,
}

/// Put `cell` on the first `disk_bytes` of the device at `socket`, on the calling thread.
pub(crate) fn load(socket: &Path, polling: bool, disk_bytes: u64, cell: Cell, duration: Duration) -> Result<Seen, blkio::Error> {
    let mut device = Blkio::new("virtio-blk-vhost-user")?;
    device.set_str("path", &socket.to_string_lossy())?;
    device.connect()?;
    device.set_i32("num-queues", i32::from(!polling))?;
    device.set_i32("num-poll-queues", i32::from(polling))?;
    device.set_i32("queue-size", QUEUE_SIZE)?;
    let mut started = device.start()?;
    let queues = if polling { &mut started.poll_queues } else { &mut started.queues };
    let queue = queues.first_mut().ok_or_else(|| blkio::Error::from(blkio::Errno::NOENT))?;
    let depth = usize::try_from(cell.depth).unwrap_or(MAX_DEPTH).min(MAX_DEPTH);
    let block_bytes = usize::try_from(cell.block_bytes).unwrap_or(0);
    let region = device.alloc_mem_region((depth * block_bytes).next_multiple_of(4096))?;
    device.map_mem_region(&region)?;
    let blocks = disk_bytes / cell.block_bytes;
    Client { queue, region, cell, block_bytes, blocks, depth, random: Random::default() }.run(duration)
}

struct Client<'a> {
    queue: &'a mut Blkioq,
    region: MemoryRegion,
    cell: Cell,
    block_bytes: usize,
    blocks: u64,
    depth: usize,
    random: Random,
}

impl Client<'_> {
    /// Keep `depth` requests in flight, as the generator of our own clients does, and sample latency as it does: every slot
    /// in turn, from submitting to reaping.
    fn run(mut self, duration: Duration) -> Result<Seen, blkio::Error> {
        let mut ticks = new_histogram();
        let mut done = [const { MaybeUninit::<Completion>::uninit() }; MAX_DEPTH];
        let mut started_ticks = [0; MAX_DEPTH];
        let (mut free, mut probe, mut requests): (Vec<usize>, _, _) = ((0..self.depth).collect(), 0, 0_u64);
        let duration_ticks = clock::duration_to_ticks(duration);
        let (started, started_at_ticks) = (Instant::now(), clock::ticks());
        loop {
            let now_ticks = clock::ticks();
            // Once at least, however slow the disk.
            if requests > 0 && now_ticks.saturating_sub(started_at_ticks) >= duration_ticks {
                break;
            }
            while let Some(slot) = free.pop() {
                self.submit(slot);
                started_ticks[slot] = now_ticks;
            }
            let count = self.queue.do_io(&mut done[..self.depth], 1, None, None)?;
            requests += count as u64;
            for completion in &done[..count] {
                // SAFETY: do_io wrote as many completions as it returned.
                let completion = unsafe { completion.assume_init_ref() };
                if completion.ret != 0 {
                    return Err(blkio::Error::from(blkio::Errno::from_raw_os_error(-completion.ret)));
                }
                let slot = completion.user_data;
                if slot == probe {
                    ticks.saturating_record(clock::ticks().saturating_sub(started_ticks[slot]));
                    probe = (probe + 7) % self.depth;
                }
                free.push(slot);
            }
        }
        let iops = count_f64(requests) / started.elapsed().as_secs_f64();
        while free.len() < self.depth {
            let count = self.queue.do_io(&mut done[..self.depth], 1, None, None)?;
            free.extend(0..count);
        }
        Ok(Seen { requests, iops, ticks })
    }

    #[inline(always)]
    fn submit(&mut self, slot: usize) {
        let offset = self.random.below(self.blocks) * self.cell.block_bytes;
        let buffer = (self.region.addr + slot * self.block_bytes) as *mut u8;
        if self.cell.write {
            self.queue.write(offset, buffer, self.block_bytes, slot, ReqFlags::empty());
        } else {
            self.queue.read(offset, buffer, self.block_bytes, slot, ReqFlags::empty());
        }
    }
}
