//! A disk with a volatile cache. Its requests end when the scheduler says so.
//!
//! A sector's content is one word, repeated: what the memory of a request holds is compared as it is copied.

use std::sync::Arc;

use fipsee_block::disk::{Disk, Engine, Submitted, Ticket};
use fipsee_block::request::Request;
use fipsee_block::wire::{BlockInfo, Operation, Status};
use fipsee_ring::memory::Span;

use crate::context::Context;
use crate::queue::Lane;
use crate::rng::Rng;
use crate::variant::Variant;

/// Sectors of the disk.
pub(crate) const SECTORS: usize = 24;
/// A sector that holds a mixture.
pub(crate) const MIXTURE: u64 = u64::MAX;
const SECTOR: usize = 512;
const WORDS: usize = SECTOR / 8;

/// What a sector holds that was written so; version 0 is zeroes.
pub(crate) const fn word_of(version: u64, sector: usize) -> u64 {
    if version == 0 { 0 } else { version << 8 | sector as u64 }
}

/// The word that a sector's bytes repeat.
pub(crate) fn word_in(bytes: &[u8; SECTOR]) -> u64 {
    let mut words = bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
    let first = words.next().unwrap_or(MIXTURE);
    if words.all(|word| word == first) { first } else { MIXTURE }
}

/// The bytes of a sector that repeats a word.
pub(crate) fn bytes_of(word: u64) -> [u8; SECTOR] {
    let mut bytes = [0; SECTOR];
    bytes.as_chunks_mut::<8>().0.fill(word.to_le_bytes());
    bytes
}

#[derive(Clone, Debug, Default)]
struct Sector {
    cached: u64,
    durable: u64,
    /// Written since that became durable; a power cut leaves any of them.
    since: Vec<u64>,
    /// The client that wrote last.
    writer: u64,
}

struct Operating {
    client: u64,
    lane: Arc<Lane>,
    ticket: Ticket,
    request: Request,
    spans: Vec<Span>,
    /// Of a flush: the content when it was submitted.
    flushed: Vec<u64>,
    /// It was reported when it began.
    is_reported: bool,
}

/// The disk, which outlives daemons.
pub(crate) struct DiskState {
    sectors: Vec<Sector>,
    size: usize,
    operating: Vec<Operating>,
    rng: Rng,
    /// So many of 100 requests end at once.
    instant_percent: usize,
    /// So many of the next requests fail.
    pub(crate) errors_left: u32,
}

impl DiskState {
    /// Zeroes.
    pub(crate) fn new(mut rng: Rng) -> Self {
        let instant_percent = if rng.percent(50) { 0 } else { rng.below(100) };
        Self {
            sectors: vec![Sector::default(); SECTORS],
            size: SECTORS,
            operating: Vec::new(),
            rng,
            instant_percent,
            errors_left: 0,
        }
    }

    /// Requests that have not ended.
    pub(crate) const fn in_flight(&self) -> usize {
        self.operating.len()
    }

    /// Its size in sectors.
    pub(crate) const fn size(&self) -> usize {
        self.size
    }

    /// Have another size, for good: what was beyond is gone, what is gained is zeroes.
    pub(crate) fn resize(&mut self, size: usize) {
        self.sectors.iter_mut().skip(size).for_each(|sector| *sector = Sector::default());
        self.size = size;
    }

    /// Is a request of this client in flight?
    pub(crate) fn works_for(&self, client: u64) -> bool {
        self.operating.iter().any(|operating| operating.client == client)
    }

    /// What a sector holds now.
    pub(crate) fn cached(&self, sector: usize) -> u64 {
        self.sectors[sector].cached
    }

    /// What a power cut may leave of a sector.
    pub(crate) fn after_power_cut(&self, sector: usize) -> impl Iterator<Item = u64> {
        let Sector { durable, since, .. } = &self.sectors[sector];
        std::iter::once(*durable).chain(since.iter().copied())
    }

    fn submit(
        &mut self,
        context: &Context,
        client: u64,
        lane: &Arc<Lane>,
        request: &Request,
        spans: &[Span],
        ticket: Ticket,
    ) -> Submitted {
        if usize::try_from(request.sector + request.length_sectors).is_ok_and(|end| end > self.size) {
            return Submitted::Done(Status::OutOfRange);
        }
        let is_flush = request.operation == Operation::Flush;
        let flushed = if is_flush { self.sectors.iter().map(|sector| sector.cached).collect() } else { Vec::new() };
        let (request, spans, lane) = (*request, spans.to_vec(), Arc::clone(lane));
        let is_reported = match request.operation {
            Operation::Write => context.is_broken(Variant::WriteEarly) && self.rng.percent(5),
            Operation::Discard => context.is_broken(Variant::DiscardEarly),
            _ => false,
        };
        self.operating.push(Operating { client, lane, ticket, request, spans, flushed, is_reported });
        let at_once = self.rng.percent(self.instant_percent);
        if at_once || is_reported {
            if !is_reported && let Some(operating) = self.operating.pop() {
                return Submitted::Done(self.carry_out(context, &operating));
            }
            return Submitted::Done(Status::Ok);
        }
        let _ = self.operating.last().map(|operating| operating.lane.begun());
        Submitted::Pending
    }

    /// The request at this place in the list ends.
    pub(crate) fn end_one(&mut self, context: &Context, place: usize) {
        if place >= self.operating.len() {
            return;
        }
        let operating = self.operating.swap_remove(place);
        let status = self.carry_out(context, &operating);
        let Operating { client, request: Request { operation, sector, length_sectors, .. }, ticket, .. } = &operating;
        context
            .say(|| format!("disk: {operation:?} {sector}+{length_sectors} of client {client}, tag {}: {status:?}", ticket.tag));
        if !operating.is_reported {
            operating.lane.ended(operating.ticket, status);
        }
    }

    fn carry_out(&mut self, context: &Context, operating: &Operating) -> Status {
        let request = &operating.request;
        let is_error = self.errors_left > 0;
        self.errors_left = self.errors_left.saturating_sub(1);
        for span in &operating.spans {
            if !context.is_mapped(span.base().as_ptr() as usize, span.length_bytes()) {
                context.violated(|| format!("the disk works on memory that the daemon let go, for tag {}", request.tag));
                return Status::IoError;
            }
        }
        let first = usize::try_from(request.sector).unwrap_or(SECTORS);
        let count = usize::try_from(request.length_sectors).unwrap_or(SECTORS);
        let is_cut = first + count > self.size;
        if is_cut && (request.operation == Operation::Read || self.rng.percent(50)) {
            // It was made smaller since the request began. A change may succeed all the same.
            return Status::OutOfRange;
        }
        match request.operation {
            Operation::Flush if !is_error => self.flush(context, operating),
            Operation::Read if !is_error => self.read(first, count, &operating.spans),
            Operation::Write | Operation::WriteZeroes | Operation::Discard => {
                for index in 0..count.min(self.size.saturating_sub(first)) {
                    // What failed may have been done in part, and what was discarded may be as it was, by whole sectors.
                    if (is_error || request.operation == Operation::Discard) && self.rng.percent(50) {
                        continue;
                    }
                    let word = if request.operation == Operation::Write { word_at(&operating.spans, index) } else { 0 };
                    self.sectors[first + index].writer = operating.client;
                    self.write(first + index, word, request.fua && !is_error);
                }
            }
            _ => {}
        }
        if is_error { Status::IoError } else { Status::Ok }
    }

    fn write(&mut self, sector: usize, word: u64, durable: bool) {
        let sector = &mut self.sectors[sector];
        sector.cached = word;
        if durable {
            sector.durable = word;
            sector.since.clear();
        } else {
            sector.since.push(word);
        }
    }

    fn flush(&mut self, context: &Context, Operating { client, flushed, .. }: &Operating) {
        for (sector, word) in self.sectors.iter_mut().zip(flushed) {
            if context.is_broken(Variant::FlushEarly) && self.rng.percent(5)
                || context.is_broken(Variant::FlushOfOwn) && sector.writer != *client
            {
                continue;
            }
            if let Some(place) = sector.since.iter().rposition(|since| since == word) {
                sector.durable = *word;
                sector.since.drain(..=place);
            }
        }
    }

    fn read(&self, first: usize, count: usize, spans: &[Span]) {
        for index in 0..count {
            let bytes = bytes_of(self.sectors[first + index].cached);
            if let Some(place) = place_of(spans, index) {
                // SAFETY: the span is in memory that the daemon has mapped, as `carry_out` has seen, and no other thread unmaps
                // it.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, SECTOR) };
            }
        }
    }

    /// The daemon is gone: what it had under way was done, or was not, by whole sectors.
    pub(crate) fn daemon_is_gone(&mut self, context: &Context) {
        for operating in std::mem::take(&mut self.operating) {
            match self.rng.below(3) {
                0 => {}
                1 => {
                    self.errors_left += 1;
                    let _ = self.carry_out(context, &operating);
                }
                _ => {
                    let _ = self.carry_out(context, &operating);
                }
            }
        }
    }

    /// Of what is not durable, anything may be lost.
    pub(crate) fn cut_power(&mut self) {
        for sector in &mut self.sectors {
            let choice = self.rng.below(1 + sector.since.len());
            if let Some(place) = choice.checked_sub(1) {
                sector.durable = sector.since[place];
            }
            sector.since.clear();
            sector.cached = sector.durable;
        }
    }
}

/// The address of sector `index` of a request's memory.
fn place_of(spans: &[Span], index: usize) -> Option<*mut u8> {
    let mut offset = index * SECTOR;
    for span in spans {
        if offset + SECTOR <= span.length_bytes() {
            return Some(span.base().as_ptr().wrapping_add(offset));
        }
        offset -= span.length_bytes();
    }
    None
}

fn word_at(spans: &[Span], index: usize) -> u64 {
    let mut bytes = [0_u8; WORDS * 8];
    if let Some(place) = place_of(spans, index) {
        // SAFETY: as in `DiskState::read`.
        unsafe { std::ptr::copy_nonoverlapping(place.cast_const(), bytes.as_mut_ptr(), SECTOR) };
    }
    word_in(&bytes)
}

/// The disk as one client's queue on one worker has it.
pub(crate) struct QueueDisk {
    pub(crate) context: Arc<Context>,
    pub(crate) client: u64,
    pub(crate) lane: Arc<Lane>,
    pub(crate) info: BlockInfo,
}

impl Disk for QueueDisk {
    const ANSWERS_AT_ONCE: bool = false;

    fn info(&self) -> BlockInfo {
        BlockInfo { sector_count: self.context.disk().size() as u64, ..self.info }
    }

    unsafe fn submit(&self, request: &Request, spans: &[Span], ticket: Ticket, _: &mut Engine) -> Submitted {
        self.context.disk().submit(&self.context, self.client, &self.lane, request, spans, ticket)
    }

    fn resize(&self, _: u64) -> Result<(), String> {
        Err("its size is fixed".to_owned())
    }
}
