//! The disk below the virtqueues, and what each of its sectors may hold.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};

use fipsee_block::disk::{Disk, Engine, NullDisk, NullOptions, Submitted, Ticket};
use fipsee_block::request::Request;
use fipsee_block::wire::{self, BlockInfo, Status};
use fipsee_ring::memory::Span;

use crate::context::{Context, lock};
use crate::disk::{bytes_of, word_in, word_of};
use crate::rng::Rng;

/// Sectors of the disk.
const SECTORS: usize = 48;
/// Sectors of a request at most.
pub(super) const MAX_COUNT: usize = 4;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Read { first: usize, count: usize },
    Write { first: usize, count: usize, version: u64 },
    Flush,
}

impl Operation {
    /// First sector, sectors, and what they are given: 0 for a read.
    pub(super) const fn range(self) -> (usize, usize, u64) {
        match self {
            Self::Read { first, count } => (first, count, 0),
            Self::Write { first, count, version } => (first, count, version),
            Self::Flush => (0, 0, 0),
        }
    }

    /// `virtio_blk_outhdr`: type and sector.
    pub(super) const fn header(self) -> (u32, u64) {
        match self {
            Self::Read { first, .. } => (0, first as u64),
            Self::Write { first, .. } => (1, first as u64),
            Self::Flush => (4, 0),
        }
    }

    /// What the device writes when all goes well: data and status.
    pub(super) fn written_bytes(self) -> u32 {
        match self {
            Self::Read { count, .. } => u32::try_from(count * 512 + 1).unwrap_or(0),
            _ => 1,
        }
    }
}

/// What each sector may hold. Requests that overlap one in flight are not begun.
pub(super) struct Expected {
    words: Vec<BTreeSet<u64>>,
    is_busy: Vec<bool>,
    versions: u64,
    /// The disk has been made to fail.
    pub(super) may_fail: bool,
    pub(super) completed: u32,
    disk: SharedDisk,
}

impl Expected {
    pub(super) fn new(disk: &SharedDisk) -> Self {
        let (words, is_busy) = (vec![BTreeSet::from([0]); SECTORS], vec![false; SECTORS]);
        Self { words, is_busy, versions: 0, may_fail: false, completed: 0, disk: disk.clone() }
    }

    pub(super) const fn new_version(&mut self) -> u64 {
        self.versions += 1;
        self.versions
    }

    /// The place of so many sectors that no request in flight touches.
    pub(super) fn free_range(&self, count: usize, rng: &mut Rng) -> Option<usize> {
        let first = rng.below(SECTORS - count + 1);
        (!self.is_busy[first..first + count].contains(&true)).then_some(first)
    }

    pub(super) fn begin(&mut self, operation: &Operation) {
        let (first, count, version) = operation.range();
        for place in first..first + count {
            self.is_busy[place] = true;
            if version > 0 {
                self.words[place].insert(word_of(version, place));
            }
        }
    }

    /// A request was answered; a read found this.
    pub(super) fn done(&mut self, operation: &Operation, found: impl Fn(usize) -> u64, context: &Context) {
        let (first, count, version) = operation.range();
        for place in first..first + count {
            let is_read = version == 0;
            let word = if is_read { found(place - first) } else { word_of(version, place) };
            let holds = self.disk.state().sectors[place];
            if holds != word || !self.words[place].contains(&word) {
                let words = &self.words[place];
                context.violated(|| {
                    format!("{operation:?}: sector {place} is {word:#x}; the disk has {holds:#x}, it may be {words:x?}")
                });
            }
            self.words[place] = BTreeSet::from([word]);
        }
        self.failed(operation);
    }

    /// A request was answered with an error: what it wrote may be there, or not.
    pub(super) fn failed(&mut self, operation: &Operation) {
        let (first, count, _) = operation.range();
        self.is_busy[first..first + count].fill(false);
        self.completed += 1;
    }

    /// The guest's device was reset: no request is in flight any more.
    pub(super) fn forget_requests(&mut self) {
        self.is_busy.fill(false);
    }

    /// Compare all content.
    pub(super) fn check(&self, context: &Context) {
        for (place, (word, words)) in self.disk.state().sectors.iter().zip(&self.words).enumerate() {
            if !words.contains(word) {
                context.violated(|| format!("sector {place} holds {word:#x}; it may be {words:x?}"));
            }
        }
    }
}

struct Operating {
    request: Request,
    spans: Vec<Span>,
    ticket: Ticket,
}

/// A disk. Its requests end when the scheduler says so.
pub(super) struct State {
    sectors: Vec<u64>,
    operating: Vec<Operating>,
    pub(super) errors_left: u32,
}

/// The disk, which outlives daemons.
#[derive(Clone)]
pub(super) struct SharedDisk {
    state: Arc<Mutex<State>>,
    info: BlockInfo,
}

impl SharedDisk {
    pub(super) fn new() -> Self {
        let options = NullOptions { size_bytes: SECTORS as u64 * 512, ..NullOptions::default() };
        let info = NullDisk::new("disk", &options).expect("a possible size").info();
        let state = State { sectors: vec![0; SECTORS], operating: Vec::new(), errors_left: 0 };
        Self { state: Arc::new(Mutex::new(state)), info }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(super) fn in_flight(&self) -> usize {
        self.state().operating.len()
    }

    /// One request ends, with this status.
    pub(super) fn end(&self, place: usize) -> (Ticket, Status) {
        let mut state = self.state();
        let Operating { request, spans, ticket } = state.operating.swap_remove(place);
        if state.errors_left > 0 {
            state.errors_left -= 1;
            return (ticket, Status::IoError);
        }
        let first = usize::try_from(request.sector).unwrap_or(SECTORS);
        let mut data = Vec::new();
        match request.operation {
            wire::Operation::Read => {
                let count = usize::try_from(request.length_sectors).unwrap_or(0);
                data.extend(state.sectors[first..first + count].iter().flat_map(|word| bytes_of(*word)));
                copy(&spans, &mut data, true);
            }
            wire::Operation::Write => {
                data.resize(spans.iter().map(Span::length_bytes).sum(), 0);
                copy(&spans, &mut data, false);
                for (place, bytes) in data.as_chunks::<512>().0.iter().enumerate() {
                    state.sectors[first + place] = word_in(bytes);
                }
            }
            _ => {}
        }
        (ticket, Status::Ok)
    }

    /// The daemon was killed: what was in flight was done, or was not.
    pub(super) fn daemon_is_gone(&self, rng: &mut Rng) {
        while self.in_flight() > 0 {
            let place = rng.below(self.in_flight());
            if rng.percent(50) {
                let _ = self.end(place);
            } else {
                self.state().operating.swap_remove(place);
            }
        }
    }
}

/// Between guest memory and a copy.
fn copy(spans: &[Span], bytes: &mut [u8], to_guest: bool) {
    let mut rest = bytes;
    for span in spans {
        let (now, later) = rest.split_at_mut(span.length_bytes());
        let (guest, ours) = (span.base().as_ptr(), now.as_mut_ptr());
        let (from, to) = if to_guest { (ours, guest) } else { (guest, ours) };
        // SAFETY: the span is in guest memory, which the queue's server keeps mapped while the request is in flight; one thread.
        unsafe { std::ptr::copy_nonoverlapping(from.cast_const(), to, now.len()) };
        rest = later;
    }
}

impl Disk for SharedDisk {
    const ANSWERS_AT_ONCE: bool = false;

    fn info(&self) -> BlockInfo {
        self.info
    }

    unsafe fn submit(&self, request: &Request, spans: &[Span], ticket: Ticket, _: &mut Engine) -> Submitted {
        self.state().operating.push(Operating { request: *request, spans: spans.to_vec(), ticket });
        Submitted::Pending
    }

    fn resize(&self, _: u64) -> Result<(), String> {
        Err("its size is fixed".to_owned())
    }
}
