//! The load generator: keeps queues full and measures, for `fipsee bench`, the demo and the benchmark suite.

mod share;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use fipsee_block::client::{AttachOptions, Buffer, Claim, Completion, Disk, Error, Queue};
use fipsee_block::wire::{SECTOR_SHIFT, Segment, Status};
use fipsee_ring::clock;
use fipsee_ring::doorbell::DoorbellCounts;
use fipsee_ring::notify::Policy;
use fipsee_ring::wait::WaitMode;
use fipsee_topology::pin;
use hdrhistogram::Histogram;

use crate::claim;
use crate::cpus::CpuChoice;
use crate::pattern::{Blocks, Mismatch};

const PAGE_BYTES: u64 = 4096;

/// The kind of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mix {
    /// Random reads.
    #[value(name = "randread")]
    RandRead,
    /// Random writes.
    #[value(name = "randwrite")]
    RandWrite,
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Random, half reads, half writes.
    #[value(name = "randrw")]
    RandRw,
}

impl Report {
    /// The latency that `quantile` (0 to 1) of the sampled requests did not exceed, in nanoseconds.
    #[must_use]
    pub fn latency_ns(&self, quantile: f64) -> u64 {
        clock::ticks_to_ns(self.latency.value_at_quantile(quantile))
    }
}

impl Mix {
    const fn is_random(self) -> bool {
        matches!(self, Self::RandRead | Self::RandWrite | Self::RandRw)
    }

    /// Does this load write?
    pub const fn writes(self) -> bool {
        matches!(self, Self::RandWrite | Self::Write | Self::RandRw)
    }
}

/// The memory of requests' data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum DataPath {
    /// The client's own memory, mapped whole by the daemon: no copy.
    #[default]
    Memshare,
    /// The channel's pool.
    Pool,
}

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The daemon.
    pub socket: PathBuf,
    /// The export.
    pub disk: String,
    /// The claim of a load that writes.
    pub claim: Claim,
    /// The kind of requests.
    pub mix: Mix,
    /// Bytes of one request.
    pub block_bytes: u64,
    /// Requests outstanding per queue.
    pub depth: u32,
    /// Queues, each on a thread of its own.
    pub queues: u16,
    /// How long.
    pub duration: Duration,
    /// How clients wait.
    pub wait: WaitMode,
    /// When clients wake a daemon that sleeps.
    pub notify: Option<Policy>,
    /// The memory of the data.
    pub data_path: DataPath,
    /// CPUs to bind the threads to.
    pub cpus: CpuChoice,
    /// Check every byte that is read against what was written.
    pub verify: bool,
    /// The part of the disk to use, in bytes: start and length; length 0: to the end.
    pub range_bytes: (u64, u64),
}

/// The results.
#[derive(Debug)]
pub struct Report {
    /// Requests finished per second.
    pub iops: f64,
    /// Bytes per second.
    pub bandwidth_bytes_per_s: f64,
    /// Requests per second in each tenth of the time, for the spread.
    pub interval_iops: Vec<f64>,
    /// Time from submission to reaping, in ticks of the time-stamp counter; a sample of the requests that covers every slot in
    /// turn.
    pub latency: Histogram<u64>,
    /// Processor time of this process per request, in nanoseconds.
    pub cpu_ns_per_io: f64,
    /// Requests finished.
    pub requests: u64,
    /// How often daemon and clients woke each other.
    pub doorbells: DoorbellCounts,
    /// Blocks compared with what was written.
    pub verified_blocks: u64,
    /// Queues that the daemon granted.
    pub queues: usize,
    /// Requests outstanding per queue, as the daemon granted.
    pub depth: usize,
    /// The time measured.
    pub elapsed: Duration,
}

/// The error of a run.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Set-up, or the connection.
    #[error("{0}")]
    Client(#[from] Error),
    /// A request failed.
    #[error("a request at sector {sector} failed: {}", status.text())]
    Request {
        /// Its status.
        status: Status,
        /// First sector of the request.
        sector: u64,
    },
    /// Data read is not data written.
    #[error("{0}")]
    Mismatch(Mismatch),
    /// The settings do not fit the disk.
    #[error("{0}")]
    Settings(String),
}

struct Shared {
    stop: AtomicBool,
    finished: Vec<AtomicU64>,
    verified: AtomicU64,
}

/// Attach, run for the time set, and report.
///
/// # Errors
/// See [`LoadError`].
pub fn run(settings: &Settings) -> Result<Report, LoadError> {
    run_until(settings, &|| false)
}

/// The same, but end early once `is_asked_to_end`.
///
/// # Errors
/// See [`LoadError`].
pub fn run_until(settings: &Settings, is_asked_to_end: &dyn Fn() -> bool) -> Result<Report, LoadError> {
    let mut options = AttachOptions::new(&settings.disk);
    options.queue_count = settings.queues;
    options.depth = settings.depth;
    options.wait = settings.wait;
    options.notify = settings.notify;
    options.read_only = !settings.mix.writes();
    options.claim = settings.claim;
    // Buffers of the pool start at pages.
    let buffer_bytes = settings.block_bytes.saturating_add(PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    let data_bytes = buffer_bytes.saturating_mul(u64::from(settings.depth) * u64::from(settings.queues));
    options.pool_bytes = if settings.data_path == DataPath::Pool { data_bytes } else { 0 };
    let (disk, queues) = claim::attach(&settings.socket, &options, &|note| eprintln!("note: {note}"))?;
    let (queue_count, most) = (queues.len(), usize::try_from(settings.depth).unwrap_or(usize::MAX));
    let depth = queues.iter().map(Queue::depth).fold(most, usize::min);
    let parts = share::divide(settings, &disk.info(), queue_count as u64, depth as u64)?;
    let buffers = allocate(settings, &disk, queue_count, depth as u64)?;
    let shared = Arc::new(Shared {
        stop: AtomicBool::new(false),
        finished: queues.iter().map(|_| AtomicU64::new(0)).collect(),
        verified: AtomicU64::new(0),
    });
    let cpus = settings.cpus.for_queues(&queues.iter().map(Queue::worker_cpu).collect::<Vec<_>>());
    let all_are_there = Arc::new(Barrier::new(queue_count + 1));
    let mut threads = Vec::new();
    for (index, (((queue, buffers), blocks), cpu)) in queues.into_iter().zip(buffers).zip(parts).zip(cpus).enumerate() {
        let generator = Generator::new(settings, queue, buffers, blocks, Arc::clone(&shared), index);
        let all_are_there = Arc::clone(&all_are_there);
        threads.push(std::thread::spawn(move || {
            bind_to(cpu);
            all_are_there.wait();
            generator.run()
        }));
    }
    all_are_there.wait();
    let (cpu_before, started) = (cpu_time(), Instant::now());
    let interval_iops = watch(settings.duration, &shared, &threads, is_asked_to_end);
    shared.stop.store(true, Ordering::Relaxed);
    let elapsed = started.elapsed();
    let requests: u64 = shared.finished.iter().map(|counter| counter.load(Ordering::Relaxed)).sum();
    let cpu_ns = cpu_time().saturating_sub(cpu_before).as_nanos();
    let (mut latency, mut doorbells) = (new_histogram(), DoorbellCounts::default());
    for thread in threads {
        let (part, counts) = thread.join().map_err(|_| LoadError::Settings("a generator thread panicked".to_owned()))??;
        latency += part;
        doorbells += counts;
    }
    let seconds = elapsed.as_secs_f64();
    let iops = count_f64(requests) / seconds;
    Ok(Report {
        iops,
        bandwidth_bytes_per_s: iops * count_f64(settings.block_bytes),
        interval_iops,
        latency,
        cpu_ns_per_io: count_f64(u64::try_from(cpu_ns).unwrap_or(u64::MAX)) / count_f64(requests.max(1)),
        requests,
        doorbells,
        verified_blocks: shared.verified.load(Ordering::Relaxed),
        queues: queue_count,
        depth,
        elapsed,
    })
}

/// Sleep through the run, counting the requests of each tenth of it; of one cut short only if it is the first.
fn watch<T>(
    duration: Duration,
    shared: &Shared,
    threads: &[std::thread::JoinHandle<T>],
    is_asked_to_end: &dyn Fn() -> bool,
) -> Vec<f64> {
    let mut intervals = Vec::new();
    let (started, mut last_count, mut last_time) = (Instant::now(), 0, Instant::now());
    for tenth in 1..=10_u32 {
        let until = started + duration * tenth / 10;
        while Instant::now() < until && !is_asked_to_end() && threads.iter().any(|thread| !thread.is_finished()) {
            let left = until.saturating_duration_since(Instant::now());
            std::thread::sleep(left.min(Duration::from_millis(50))); // tidy: allow sleep, the run lasts as long as asked
        }
        if is_asked_to_end() && !intervals.is_empty() {
            break;
        }
        let count: u64 = shared.finished.iter().map(|counter| counter.load(Ordering::Relaxed)).sum();
        let now = Instant::now();
        intervals.push(count_f64(count - last_count) / (now - last_time).as_secs_f64().max(1e-9));
        (last_count, last_time) = (count, now);
    }
    intervals
}

fn allocate(settings: &Settings, disk: &Disk, queues: usize, depth: u64) -> Result<Vec<Vec<Buffer>>, Error> {
    let mut all = Vec::with_capacity(queues);
    for _ in 0..queues {
        all.push(match settings.data_path {
            DataPath::Pool => (0..depth).map(|_| disk.allocate(settings.block_bytes)).collect::<Result<_, _>>()?,
            DataPath::Memshare => {
                let memory = disk.create_memory(depth * settings.block_bytes)?;
                (0..depth)
                    .map(|slot| memory.buffer(slot * settings.block_bytes, settings.block_bytes))
                    .collect::<Result<_, _>>()?
            }
        });
    }
    Ok(all)
}

struct Generator {
    queue: Queue,
    buffers: Vec<Buffer>,
    segments: Vec<Segment>,
    blocks: Blocks,
    mix: Mix,
    block_sectors: u64,
    shared: Arc<Shared>,
    index: usize,
    random: u64,
    next: u64,
    free_slots: Vec<usize>,
    /// By slot: the block in flight, and whether the request is a write.
    in_flight: Vec<(u64, bool)>,
    started_ticks: Vec<u64>,
    probe: usize,
    latency: Histogram<u64>,
    verified: u64,
}

/// Three significant digits from one tick to about a minute; longer times count as that.
#[must_use]
pub fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 1 << 37, 3).unwrap_or_else(|_| unreachable!("the bounds are in order"))
}

impl Generator {
    fn new(settings: &Settings, queue: Queue, buffers: Vec<Buffer>, blocks: Blocks, shared: Arc<Shared>, index: usize) -> Self {
        let depth = queue.depth().min(buffers.len());
        let segments = buffers.iter().map(|buffer| buffer.segment(0, settings.block_bytes)).collect();
        Self {
            queue,
            segments,
            blocks,
            mix: settings.mix,
            block_sectors: settings.block_bytes >> SECTOR_SHIFT,
            shared,
            index,
            random: 0x9e37_79b9_7f4a_7c15 ^ (index as u64) << 32,
            next: 0,
            free_slots: (0..depth).rev().collect(),
            in_flight: vec![(0, false); depth],
            started_ticks: vec![0; depth],
            probe: 0,
            latency: new_histogram(),
            verified: 0,
            buffers,
        }
    }

    fn run(mut self) -> Result<(Histogram<u64>, DoorbellCounts), LoadError> {
        let mut finished = Vec::with_capacity(self.in_flight.len());
        let mut total = 0;
        // Once at least: on a busy machine a short run may be over before its thread has begun.
        loop {
            self.fill();
            self.queue.wait(&mut |completion| finished.push(completion))?;
            total += finished.len() as u64;
            self.settle(&mut finished)?;
            self.shared.finished[self.index].store(total, Ordering::Relaxed);
            if self.shared.stop.load(Ordering::Relaxed) {
                break;
            }
        }
        while self.queue.outstanding() > 0 {
            self.queue.wait(&mut |completion| finished.push(completion))?;
            self.settle(&mut finished)?;
        }
        if self.blocks.verifies() {
            self.read_back()?;
        }
        self.shared.verified.fetch_add(self.verified, Ordering::Relaxed);
        Ok((self.latency, self.queue.doorbell_counts()))
    }

    #[inline(always)]
    fn fill(&mut self) {
        let now_ticks = clock::ticks_fenced();
        while let Some(slot) = self.free_slots.pop() {
            let block = self.choose();
            let write = match self.mix {
                Mix::RandRw => self.random >> 20 & 1 == 1,
                other => other.writes(),
            };
            self.start(slot, block, write, now_ticks);
        }
    }

    #[inline(always)]
    fn start(&mut self, slot: usize, block: u64, write: bool, now_ticks: u64) {
        if self.blocks.verifies() {
            self.blocks.begin(block);
            if write {
                self.blocks.write_pattern(block, &self.buffers[slot]);
            }
        }
        let sector = self.blocks.number(block) * self.block_sectors;
        let token = slot as u64;
        let staged = if write {
            self.queue.write(sector, self.segments[slot], false, token)
        } else {
            self.queue.read(sector, self.segments[slot], token)
        };
        debug_assert!(staged.is_ok(), "as many slots as the queue is deep");
        self.in_flight[slot] = (block, write);
        self.started_ticks[slot] = now_ticks;
    }

    #[inline(always)]
    fn choose(&mut self) -> u64 {
        loop {
            let block = if self.mix.is_random() {
                self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                ((self.random >> 32) * self.blocks.count()) >> 32
            } else {
                self.next = if self.next + 1 >= self.blocks.count() { 0 } else { self.next + 1 };
                self.next
            };
            // Requests in flight have no order, so a block that is verified has one request at a time.
            if !self.blocks.verifies() || !self.blocks.is_busy(block) {
                return block;
            }
        }
    }

    #[inline(always)]
    fn settle(&mut self, finished: &mut Vec<Completion>) -> Result<(), LoadError> {
        for completion in finished.drain(..) {
            let slot = usize::try_from(completion.token).unwrap_or(0);
            if completion.status != Status::Ok {
                let sector = self.blocks.number(self.in_flight[slot].0) * self.block_sectors;
                return Err(LoadError::Request { status: completion.status, sector });
            }
            if slot == self.probe {
                let ticks = clock::ticks_fenced().saturating_sub(self.started_ticks[slot]);
                self.latency.saturating_record(ticks);
                self.probe = (self.probe + 7) % self.in_flight.len();
            }
            if self.blocks.verifies() {
                let (block, write) = self.in_flight[slot];
                if !write && self.blocks.check(block, &self.buffers[slot]).map_err(LoadError::Mismatch)? {
                    self.verified += 1;
                }
                self.blocks.end(block, write);
            }
            self.free_slots.push(slot);
        }
        Ok(())
    }

    /// Read everything that was written and compare.
    fn read_back(&mut self) -> Result<(), LoadError> {
        let mut finished = Vec::new();
        let written: Vec<u64> = self.blocks.written().collect();
        let mut next = written.into_iter().peekable();
        while next.peek().is_some() || self.queue.outstanding() > 0 {
            while next.peek().is_some()
                && let Some(slot) = self.free_slots.pop()
            {
                let block = next.next().unwrap_or(0);
                self.start(slot, block, false, clock::ticks_fenced());
            }
            self.queue.wait(&mut |completion| finished.push(completion))?;
            self.settle(&mut finished)?;
        }
        Ok(())
    }
}

fn bind_to(cpu: Option<usize>) {
    if let Some(cpu) = cpu
        && let Err(error) = pin::bind(cpu)
    {
        eprintln!("warning: cannot bind to CPU {cpu}: {error}");
    }
}

fn cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// A count as a float: exact up to 2^53, which is all a rate needs.
#[expect(clippy::cast_precision_loss, reason = "rates are rounded for people")]
pub fn count_f64(count: u64) -> f64 {
    count as f64
}
