//! `powercut:[survive=PERCENT][,seed=N][,cache=SIZE][,cut=N]:`: a disk with a cache that a power cut loses.
//!
//! Data written and not flushed is only in this process's memory, so that SIGKILL loses it, as a power cut loses the cache of a
//! drive. A flush, and FUA for its own blocks, writes it to the disk below and flushes that. With `cut=N` the power fails by
//! itself at the N-th step: a request, or a piece of a flush. With `survive=P` each sector that is written reaches the disk below
//! at once with a probability of P percent, as `seed` says: requests are torn, and later ones may survive where earlier ones do
//! not.
//!
//! For tests: it takes a lock and allocates for each request, and has no holes (a discard writes zeroes).

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fipsee_ring::memory::{Span, copy_from, copy_to};
use rustix::process::{Signal, getpid, kill_process};

use super::super::engine;
use super::super::spec::parse_size;
use super::super::{AnyDisk, Disk, Engine, Submitted, Ticket};
use super::{next_random, number, pairs};
use crate::request::Request;
use crate::wire::{CAPABILITY_WRITE, Operation, SECTOR_BYTES, Status};

/// Most sectors of one discard or write-zeroes: 8 MiB, since they are kept.
pub(super) const MAX_RANGE_SECTORS: u32 = 16 << 10;

/// How long a write-back to the disk below waits for another one.
const BUSY_PAUSE: Duration = Duration::from_micros(100);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PowerCutOptions {
    /// Percentage of sectors written and not flushed that survive.
    pub survive_percent: u64,
    pub seed: u64,
    /// Beyond this size all is written back, as a drive does whose cache is full. Writing back is not a flush.
    pub cache_bytes: u64,
    /// The step at which the power fails.
    pub cut: Option<u64>,
}

impl Default for PowerCutOptions {
    fn default() -> Self {
        Self { survive_percent: 0, seed: 0, cache_bytes: 64 << 20, cut: None }
    }
}

impl PowerCutOptions {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut options = Self::default();
        for (key, value) in pairs(text) {
            match key {
                "survive" => options.survive_percent = number(key, value)?,
                "seed" => options.seed = number(key, value)?,
                "cache" => options.cache_bytes = parse_size(value).map_err(|problem| format!("cache: {problem}"))?,
                "cut" => options.cut = Some(number(key, value)?),
                _ => return Err(format!("unknown option '{key}'; it takes survive=, seed=, cache= and cut=")),
            }
        }
        if options.survive_percent > 100 {
            return Err(format!("survive={} is more than all; use 0 to 100 percent", options.survive_percent));
        }
        Ok(options)
    }
}

/// A cache that is lost with the process.
#[derive(Debug)]
pub(super) struct PowerCut {
    inner: Arc<AnyDisk>,
    options: PowerCutOptions,
    cache: Mutex<Cache>,
}

impl PowerCut {
    pub(super) fn new(inner: Arc<AnyDisk>, options: &PowerCutOptions) -> Arc<Self> {
        Arc::new(Self { inner, options: options.clone(), cache: Mutex::new(Cache::new(options.seed)) })
    }

    pub(super) fn cut(&self, sector_count: u64) {
        self.cache().cut(sector_count);
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Count a step; at the chosen one the power fails.
    fn step(&self) {
        if self.options.cut == Some(self.cache().count_step()) {
            // It cannot fail, and no code of this process runs after it.
            let _ = kill_process(getpid(), Signal::KILL);
        }
    }

    /// Is it inside the disk, and writable?
    fn check_write(&self, request: &Request) -> Result<(), Status> {
        let info = self.inner.info();
        if info.capabilities & CAPABILITY_WRITE == 0 {
            return Err(Status::ReadOnly);
        }
        if request.sector > info.sector_count || request.length_sectors > info.sector_count - request.sector {
            return Err(Status::OutOfRange);
        }
        Ok(())
    }

    /// Store new contents of whole sectors, and write to the disk below those that must go there.
    fn put(self: &Arc<Self>, request: &Request, bytes: &[u8], ticket: Ticket, engine: &mut Engine) -> Submitted {
        let surviving = {
            let mut cache = self.cache();
            cache.put(request.sector, bytes);
            let is_full = cache.length_bytes() > self.options.cache_bytes;
            if is_full { Wanted::All } else { cache.choose(request.sector, request.length_sectors, self.options.survive_percent) }
        };
        match surviving {
            _ if request.fua => {
                let own = (request.sector..request.sector + request.length_sectors).collect();
                self.write_back(Wanted::Sectors(own), true, ticket, engine)
            }
            Wanted::Sectors(none) if none.is_empty() => Submitted::Done(Status::Ok),
            wanted => self.write_back(wanted, false, ticket, engine),
        }
    }

    /// Write sectors to the disk below; `flush` that, too. One at a time: of two writes of the same sector, the older could
    /// come last.
    fn write_back(self: &Arc<Self>, wanted: Wanted, flush: bool, ticket: Ticket, engine: &mut Engine) -> Submitted {
        let batch = self.cache().begin(&wanted, flush);
        if let Some(batch) = batch {
            return self.go_on(batch, ticket, engine);
        }
        let core = Arc::clone(self);
        let again = move |status, engine: &mut Engine| match status {
            Status::Ok => core.write_back(wanted, flush, ticket, engine),
            _ => Submitted::Done(status),
        };
        engine::wait(engine, BUSY_PAUSE, None, ticket, again)
    }

    fn go_on(self: &Arc<Self>, mut batch: Batch, ticket: Ticket, engine: &mut Engine) -> Submitted {
        while let Some(request) = batch.next_request() {
            self.step();
            let link = engine.link(ticket);
            let spans = span_of(&mut batch.buffer);
            // SAFETY: the batch keeps the buffer in place until what follows this step has run.
            match unsafe { self.inner.submit(&request, &spans, link, engine) } {
                Submitted::Done(status) => {
                    engine.unlink(link);
                    batch.status = status;
                }
                Submitted::Pending => {
                    let core = Arc::clone(self);
                    let then = move |status, engine: &mut Engine| {
                        let mut batch = batch;
                        batch.status = status;
                        core.go_on(batch, ticket, engine)
                    };
                    engine.follow(link, Box::new(then));
                    return Submitted::Pending;
                }
            }
        }
        Submitted::Done(self.cache().end(batch))
    }

    /// Read from the disk below, and overlay newer data from here.
    ///
    /// # Safety
    /// As [`Disk::submit`].
    unsafe fn read(self: &Arc<Self>, request: &Request, spans: &[Span], ticket: Ticket, engine: &mut Engine) -> Submitted {
        let newer = self.cache().get(request.sector, request.length_sectors);
        let (link, first, spans) = (engine.link(ticket), request.sector, spans.to_vec());
        let patch = move |status, spans: &[Span]| {
            if status == Status::Ok {
                for (sector, bytes) in &newer {
                    scatter(spans, (sector - first) * SECTOR_BYTES, &bytes[..]);
                }
            }
            Submitted::Done(status)
        };
        // SAFETY: the contract is passed on.
        match unsafe { self.inner.submit(request, &spans, link, engine) } {
            Submitted::Done(status) => {
                engine.unlink(link);
                patch(status, &spans)
            }
            Submitted::Pending => {
                engine.follow(link, Box::new(move |status, _| patch(status, &spans)));
                Submitted::Pending
            }
        }
    }

    /// # Safety
    /// As [`Disk::submit`].
    pub(super) unsafe fn submit(
        self: &Arc<Self>,
        request: &Request,
        spans: &[Span],
        ticket: Ticket,
        engine: &mut Engine,
    ) -> Submitted {
        self.step();
        match request.operation {
            // SAFETY: the contract is passed on.
            Operation::Read => return unsafe { self.read(request, spans, ticket, engine) },
            Operation::Flush => return self.write_back(Wanted::All, true, ticket, engine),
            Operation::GetInfo | Operation::AckEvent => return Submitted::Done(Status::Unsupported),
            Operation::Write | Operation::Discard | Operation::WriteZeroes => {}
        }
        if let Err(status) = self.check_write(request) {
            return Submitted::Done(status);
        }
        let Ok(length_bytes) = usize::try_from(request.length_bytes()) else {
            return Submitted::Done(Status::TooLong);
        };
        let bytes = if request.operation == Operation::Write { gather(spans) } else { vec![0; length_bytes] };
        if bytes.len() != length_bytes {
            return Submitted::Done(Status::Invalid);
        }
        self.put(request, &bytes, ticket, engine)
    }
}

/// A copy of all that spans hold. Called only by `submit`, while they are valid.
fn gather(spans: &[Span]) -> Vec<u8> {
    let mut bytes = vec![0; spans.iter().map(Span::length_bytes).sum()];
    // SAFETY: the spans are valid by the contract of `submit`.
    unsafe { copy_from(spans, &mut bytes) };
    bytes
}

/// Copy `bytes` into spans from `offset_bytes` on. Called only before their request is reported.
fn scatter(spans: &[Span], offset_bytes: u64, bytes: &[u8]) {
    let mut skip = usize::try_from(offset_bytes).unwrap_or(usize::MAX);
    let rest = spans.iter().map(|span| {
        let skipped = skip.min(span.length_bytes());
        skip -= skipped;
        span.without_first(skipped)
    });
    // SAFETY: the spans are valid until their request is reported; the source is ours.
    let fits = unsafe { copy_to(&rest.collect::<Vec<_>>(), bytes) };
    debug_assert!(fits, "a sector of the request is within its memory");
}

/// The span of memory of our own; none if empty.
fn span_of(bytes: &mut [u8]) -> Vec<Span> {
    let length = bytes.len();
    let base = NonNull::from(bytes).cast();
    // SAFETY: the submitter keeps the memory until the request is reported.
    if length == 0 { Vec::new() } else { vec![unsafe { Span::new(base, length) }] }
}

const SECTOR_LENGTH: usize = 512;
const _: () = assert!(SECTOR_LENGTH as u64 == SECTOR_BYTES);

/// Most sectors that go to the disk below in one request: 256 KiB.
const MOST_SECTORS: usize = 512;

/// The data of a write: another write has other data, even if equal.
type Bytes = Arc<[u8; SECTOR_LENGTH]>;

#[derive(Debug)]
enum Wanted {
    All,
    /// Those of these that are here.
    Sectors(Vec<u64>),
}

#[derive(Debug)]
struct Cache {
    sectors: BTreeMap<u64, Bytes>,
    random: u64,
    steps: u64,
    /// A write-back to the disk below is running.
    is_busy: bool,
}

#[derive(Debug)]
struct Batch {
    /// By sector, ascending; those behind `next` were not submitted yet.
    sectors: Vec<(u64, Bytes)>,
    next: usize,
    flush: bool,
    status: Status,
    /// The content of the request in flight.
    buffer: Vec<u8>,
}

impl Cache {
    const fn new(seed: u64) -> Self {
        Self { sectors: BTreeMap::new(), random: seed, steps: 0, is_busy: false }
    }

    /// The number of this step; the first is 1.
    const fn count_step(&mut self) -> u64 {
        self.steps += 1;
        self.steps
    }

    fn length_bytes(&self) -> u64 {
        self.sectors.len() as u64 * SECTOR_BYTES
    }

    /// `bytes`: whole sectors, from `first` on.
    fn put(&mut self, first: u64, bytes: &[u8]) {
        for (sector, bytes) in (first..).zip(bytes.as_chunks::<SECTOR_LENGTH>().0) {
            self.sectors.insert(sector, Arc::new(*bytes));
        }
    }

    fn get(&self, first: u64, count: u64) -> Vec<(u64, Bytes)> {
        let range = self.sectors.range(first..first.saturating_add(count));
        range.map(|(sector, bytes)| (*sector, Arc::clone(bytes))).collect()
    }

    fn choose(&mut self, first: u64, count: u64, percent: u64) -> Wanted {
        let chosen = (first..first + count).filter(|_| percent > 0 && next_random(&mut self.random) % 100 < percent);
        Wanted::Sectors(chosen.collect())
    }

    fn cut(&mut self, sector_count: u64) {
        self.sectors.split_off(&sector_count);
    }

    /// `None`: another write-back to the disk below is running.
    fn begin(&mut self, wanted: &Wanted, flush: bool) -> Option<Batch> {
        if self.is_busy {
            return None;
        }
        self.is_busy = true;
        let copy = |(sector, bytes): (&u64, &Bytes)| (*sector, Arc::clone(bytes));
        let sectors = match wanted {
            Wanted::All => self.sectors.iter().map(copy).collect(),
            Wanted::Sectors(some) => some.iter().filter_map(|sector| self.sectors.get_key_value(sector).map(copy)).collect(),
        };
        Some(Batch { sectors, next: 0, flush, status: Status::Ok, buffer: Vec::new() })
    }

    /// The batch is done: sectors not rewritten meanwhile need not be kept.
    fn end(&mut self, batch: Batch) -> Status {
        self.is_busy = false;
        if batch.status == Status::Ok {
            for (sector, bytes) in batch.sectors {
                if self.sectors.get(&sector).is_some_and(|found| Arc::ptr_eq(found, &bytes)) {
                    self.sectors.remove(&sector);
                }
            }
        }
        batch.status
    }
}

impl Batch {
    /// The next request to the disk below, its content in the buffer; `None`: the batch is done or has failed.
    fn next_request(&mut self) -> Option<Request> {
        self.buffer.clear();
        if self.status != Status::Ok {
            return None;
        }
        let mut request =
            Request { operation: Operation::Write, tag: 0, fua: false, unmap: false, sector: 0, length_sectors: 0, aux: 0 };
        let rest = &self.sectors[self.next..];
        if let Some((first, _)) = rest.first() {
            let run = (*first..).zip(rest).take(MOST_SECTORS).take_while(|(expected, (sector, _))| expected == sector).count();
            for (_, bytes) in &rest[..run] {
                self.buffer.extend_from_slice(&bytes[..]);
            }
            (request.sector, request.length_sectors) = (*first, run as u64);
            self.next += run;
            return Some(request);
        }
        request.operation = Operation::Flush;
        std::mem::take(&mut self.flush).then_some(request)
    }
}
