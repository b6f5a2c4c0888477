//! What was written and did not reach the disk below.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::next_random;
use crate::request::Request;
use crate::wire::{Operation, SECTOR_BYTES, Status};

const SECTOR_LENGTH: usize = 512;
const _: () = assert!(SECTOR_LENGTH as u64 == SECTOR_BYTES);

/// Most sectors that go to the disk below in one request: 256 KiB.
const MOST_SECTORS: usize = 512;

/// What a write has brought: another write brings others, be they equal.
type Bytes = Arc<[u8; SECTOR_LENGTH]>;

/// Sectors to be brought to the disk below.
#[derive(Debug)]
pub(super) enum Wanted {
    All,
    /// Those of these that are here.
    Sectors(Vec<u64>),
}

#[derive(Debug)]
pub(super) struct Cache {
    sectors: BTreeMap<u64, Bytes>,
    random: u64,
    steps: u64,
    /// Someone writes to the disk below.
    is_busy: bool,
}

/// What someone brings to the disk below.
#[derive(Debug)]
pub(super) struct Batch {
    /// By sector, rising; those behind `next` were not submitted yet.
    sectors: Vec<(u64, Bytes)>,
    next: usize,
    flush: bool,
    /// How the last request ended.
    pub(super) status: Status,
    /// The content of the request in flight.
    pub(super) buffer: Vec<u8>,
}

impl Cache {
    pub(super) const fn new(seed: u64) -> Self {
        Self { sectors: BTreeMap::new(), random: seed, steps: 0, is_busy: false }
    }

    /// The number of this step; the first is 1.
    pub(super) const fn count_step(&mut self) -> u64 {
        self.steps += 1;
        self.steps
    }

    pub(super) fn length_bytes(&self) -> u64 {
        self.sectors.len() as u64 * SECTOR_BYTES
    }

    /// `bytes`: whole sectors, from `first` on.
    pub(super) fn put(&mut self, first: u64, bytes: &[u8]) {
        for (sector, bytes) in (first..).zip(bytes.as_chunks::<SECTOR_LENGTH>().0) {
            self.sectors.insert(sector, Arc::new(*bytes));
        }
    }

    /// Copies of what is here of a range.
    pub(super) fn get(&self, first: u64, count: u64) -> Vec<(u64, Bytes)> {
        let range = self.sectors.range(first..first.saturating_add(count));
        range.map(|(sector, bytes)| (*sector, Arc::clone(bytes))).collect()
    }

    /// A random choice of a range.
    pub(super) fn choose(&mut self, first: u64, count: u64, percent: u64) -> Wanted {
        let chosen = (first..first + count).filter(|_| percent > 0 && next_random(&mut self.random) % 100 < percent);
        Wanted::Sectors(chosen.collect())
    }

    /// Forget what lies beyond the end.
    pub(super) fn cut(&mut self, sector_count: u64) {
        self.sectors.split_off(&sector_count);
    }

    /// `None`: someone else writes to the disk below.
    pub(super) fn begin(&mut self, wanted: &Wanted, flush: bool) -> Option<Batch> {
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

    /// The batch is done: what of it was not written anew meanwhile need not be kept.
    pub(super) fn end(&mut self, batch: Batch) -> Status {
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
    pub(super) fn next_request(&mut self) -> Option<Request> {
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
