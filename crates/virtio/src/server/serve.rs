//! Taking requests: the visit, reads and writes.

use std::ptr::NonNull;

use fipsee_block::disk::{Disk, Engine, Submitted, Ticket};
use fipsee_block::request::Request;
use fipsee_block::wire::{CAPABILITY_FUA, CAPABILITY_WRITE, MAX_INDIRECT_ENTRIES, Operation, SECTOR_BYTES, Status};
use fipsee_ring::memory::Span;
use fipsee_ring::{AtomicU64, Ordering, clock};
use virtio_bindings::virtio_blk::{VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT};

use super::copy::copy_in;
use super::{StatusPlace, VirtqueueServer};
use crate::queue::chain::{drop_first, take_last_byte, total_bytes};
use crate::queue::{Descriptor, prefetch_for_read, prefetch_for_write};

/// Most requests taken in one visit. The guest says how many there are, so looking ahead costs nothing; other queues wait for no
/// longer than these take.
const MAX_BUDGET: u16 = 32;
/// Once a visit has moved so much data (1 MiB) it ends, so that a guest with long requests does not hold up the others.
const MAX_VISIT_SECTORS: u64 = 2048;
/// One visit in so many is timed when the disk answers at once.
const VISITS_PER_SAMPLE: u64 = 64;
/// Bytes of a request's header.
const HEADER_BYTES: u32 = 16;

/// Type and sector of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) kind: u32,
    pub(super) io_priority: u32,
    pub(super) sector: u64,
}

impl Header {
    #[inline(always)]
    const fn from_words(first: u64, sector: u64) -> Self {
        let [a, b, c, d, e, f, g, h] = first.to_le_bytes();
        Self { kind: u32::from_le_bytes([a, b, c, d]), io_priority: u32::from_le_bytes([e, f, g, h]), sector }
    }
}

impl VirtqueueServer {
    /// Take up to a budget of requests; answer what `disk` finishes at once. How many were taken.
    #[inline(always)]
    pub fn visit<D: Disk>(&mut self, disk: &D, engine: &mut Engine) -> u32 {
        if self.needs_care {
            return self.visit_with_care(disk, engine);
        }
        let waiting = self.queue.waiting();
        if waiting == 0 || self.fault.is_some() {
            return 0;
        }
        self.visit_ring(waiting, disk, engine)
    }

    #[inline(always)]
    fn visit_ring<D: Disk>(&mut self, waiting: u16, disk: &D, engine: &mut Engine) -> u32 {
        if waiting > self.queue.size() {
            let (next, size) = (self.queue.next_available(), self.queue.size());
            self.break_down(format!("the available ring went from {next} on by {waiting} entries, and the queue has {size}"));
            return 0;
        }
        self.disarm();
        self.visits += 1;
        let sampled = !D::ANSWERS_AT_ONCE || self.visits.is_multiple_of(VISITS_PER_SAMPLE);
        let started_ticks = if sampled { clock::ticks() } else { 0 };
        let limit = waiting.min(MAX_BUDGET);
        let mut first = [(0, Descriptor::default()); MAX_BUDGET as usize];
        let first = &mut first[..usize::from(limit)];
        self.look_ahead(limit, first);
        let mut taken = 0;
        for (head, descriptor) in first.iter().copied() {
            self.queue.advance(1);
            taken += 1;
            self.serve(head, descriptor, true, disk, engine, started_ticks);
            if self.tally.moved_sectors() >= MAX_VISIT_SECTORS || self.fault.is_some() {
                break;
            }
        }
        self.flush();
        if D::ANSWERS_AT_ONCE && sampled {
            self.counters.latency.record(clock::ticks().wrapping_sub(started_ticks), taken.into());
        }
        std::mem::take(&mut self.tally).write_to(&self.counters);
        taken
    }

    /// Copy the first descriptors of the next chains, with their lines fetched side by side, and have what they lead to fetched.
    #[inline(always)]
    fn look_ahead(&mut self, limit: u16, first: &mut [(u16, Descriptor)]) {
        for (ahead, (head, _)) in (0..limit).zip(first.iter_mut()) {
            *head = self.queue.head(ahead);
            self.queue.prefetch(*head);
        }
        for (head, descriptor) in first.iter_mut() {
            *descriptor = self.queue.descriptor(*head).unwrap_or_default();
            if let Some(place) = self.finder.host(descriptor.address, 1) {
                prefetch_for_read(place.as_ptr());
            }
        }
    }

    /// Requests that were in flight when we came, and flushes that are owed, come first.
    #[cold]
    fn visit_with_care<D: Disk>(&mut self, disk: &D, engine: &mut Engine) -> u32 {
        self.pay_flushes(disk, engine);
        let mut taken = 0;
        while taken < u32::from(MAX_BUDGET)
            && self.fault.is_none()
            && let Some(head) = self.resubmit.pop_front()
        {
            let descriptor = self.queue.descriptor(head).unwrap_or_default();
            taken += 1;
            self.serve(head, descriptor, false, disk, engine, clock::ticks());
        }
        self.needs_care = !self.resubmit.is_empty() || !self.owed_flushes.is_empty();
        self.flush();
        std::mem::take(&mut self.tally).write_to(&self.counters);
        if taken == 0 && self.fault.is_none() {
            let waiting = self.queue.waiting();
            if waiting > 0 {
                taken = self.visit_ring(waiting, disk, engine);
            }
        }
        taken
    }

    /// Begin the flushes that are owed. Were there any?
    #[cold]
    pub fn pay_flushes<D: Disk>(&mut self, disk: &D, engine: &mut Engine) -> bool {
        let owed = std::mem::take(&mut self.owed_flushes);
        for head in owed.iter().copied() {
            let request = self.plain_request(Operation::Flush, head);
            let started_ticks = clock::ticks();
            // SAFETY: a flush has no memory.
            match unsafe { self.submit(&request, disk, engine, started_ticks) } {
                Submitted::Done(status) => {
                    self.in_flight -= 1;
                    self.part_is_done(head, status);
                }
                Submitted::Pending => {}
            }
        }
        !owed.is_empty()
    }

    /// `is_new`: it comes from the available ring, not from the inflight area.
    #[inline(always)]
    fn serve<D: Disk>(&mut self, head: u16, first: Descriptor, is_new: bool, disk: &D, engine: &mut Engine, started_ticks: u64) {
        match self.busy.get(usize::from(head)) {
            Some(false) => {}
            Some(true) => return self.break_down(format!("chain {head} was made available again before it was used")),
            None => {
                let size = self.queue.size();
                return self.break_down(format!("the available ring names descriptor {head}, and the queue has {size}"));
            }
        }
        if let Some(inflight) = self.inflight.as_mut().filter(|_| is_new) {
            inflight.taken(head);
        }
        let indirect_offered = self.indirect_offered();
        if let Err(fault) = self.chain.gather(&self.queue, &mut self.finder, first, indirect_offered) {
            return self.break_down(format!("{fault} (chain {head})"));
        }
        let Some(header) = self.take_header() else {
            return self.break_down(format!("the header of a request is shorter than 16 bytes or no memory (chain {head})"));
        };
        let Some(at) = self.take_status_place(head) else {
            return self.break_down(format!("a request has no status byte, or it is no memory (chain {head})"));
        };
        match header.kind {
            VIRTIO_BLK_T_IN => self.transfer(Operation::Read, &header, &at, disk, engine, started_ticks),
            VIRTIO_BLK_T_OUT => self.transfer(Operation::Write, &header, &at, disk, engine, started_ticks),
            _ => self.serve_rare(&header, &at, disk, engine, started_ticks),
        }
    }

    /// Copy the header and take its bytes off the readable pieces.
    #[inline(always)]
    fn take_header(&mut self) -> Option<Header> {
        let readable = self.chain.readable;
        if let [first, ..] = &mut self.chain.pieces[..readable]
            && first.length_bytes >= HEADER_BYTES
            && let Some(place) = self.finder.host(first.address, HEADER_BYTES.into())
            && place.addr().get().is_multiple_of(8)
        {
            first.address = first.address.wrapping_add(HEADER_BYTES.into());
            first.length_bytes -= HEADER_BYTES;
            // SAFETY: 16 bytes of mapped guest memory, aligned to 8; read once.
            let first = unsafe { AtomicU64::from_ptr(place.as_ptr().cast()) }.load(Ordering::Relaxed);
            // SAFETY: as above.
            let sector = unsafe { AtomicU64::from_ptr(place.as_ptr().wrapping_add(8).cast()) }.load(Ordering::Relaxed);
            return Some(Header::from_words(u64::from_le(first), u64::from_le(sector)));
        }
        self.take_scattered_header()
    }

    /// A header that stands in several descriptors, across regions or at an odd address.
    #[cold]
    fn take_scattered_header(&mut self) -> Option<Header> {
        let mut pieces = self.chain.readable().to_vec();
        let mut rest = HEADER_BYTES;
        for piece in &mut pieces {
            piece.length_bytes = piece.length_bytes.min(rest);
            rest -= piece.length_bytes;
        }
        let bytes = copy_in(self.finder.memory(), &pieces, HEADER_BYTES as usize)?;
        let ([first, sector], []) = bytes.as_chunks::<8>() else { return None };
        let header = Header::from_words(u64::from_le_bytes(*first), u64::from_le_bytes(*sector));
        let readable = self.chain.readable;
        drop_first(&mut self.chain.pieces[..readable], HEADER_BYTES).then_some(header)
    }

    /// Take the status byte, the last that we may write, off the writable pieces.
    #[inline(always)]
    fn take_status_place(&mut self, head: u16) -> Option<StatusPlace> {
        let readable = self.chain.readable;
        let address = take_last_byte(&mut self.chain.pieces[readable..])?;
        let place = self.finder.host(address, 1)?;
        prefetch_for_write(place.as_ptr());
        // More than the status may be written; until the operation says so, it is not.
        let alone = total_bytes(self.chain.writable()) == 0;
        let used_bytes = u32::from(alone);
        Some(StatusPlace { head, address, place, used_bytes, failed_bytes: used_bytes })
    }

    #[inline(always)]
    fn transfer<D: Disk>(
        &mut self,
        operation: Operation,
        header: &Header,
        at: &StatusPlace,
        disk: &D,
        engine: &mut Engine,
        started_ticks: u64,
    ) {
        let is_read = operation == Operation::Read;
        let (length_sectors, fua) = match self.check_transfer(is_read, header.sector) {
            Ok(checked) => checked,
            Err(status) => {
                self.tally.others += 1;
                return self.answer(at, status);
            }
        };
        let mut at = *at;
        if is_read {
            self.tally.reads += 1;
            self.tally.read_sectors += length_sectors;
            // The status stands behind the data.
            at.used_bytes = u32::try_from((length_sectors * SECTOR_BYTES).saturating_add(1)).unwrap_or(u32::MAX);
        } else {
            self.tally.writes += 1;
            self.tally.written_sectors += length_sectors;
        }
        let has_fua = self.facts.capabilities & CAPABILITY_FUA != 0;
        let mut request = self.plain_request(operation, at.head);
        (request.sector, request.length_sectors, request.fua) = (header.sector, length_sectors, fua && has_fua);
        // SAFETY: the spans lie in the memory that `finder` keeps mapped, which changes, and goes with this server, only when nothing
        // is in flight.
        match unsafe { self.submit(&request, disk, engine, started_ticks) } {
            Submitted::Done(status) if !fua || has_fua || status != Status::Ok => {
                if is_read {
                    self.log_pieces(self.chain.writable());
                }
                self.answer(&at, status);
            }
            submitted => self.keep(&at, is_read, fua && !has_fua, submitted),
        }
    }

    /// Find the data; its sectors, and whether it must be durable.
    #[inline(always)]
    fn check_transfer(&mut self, is_read: bool, sector: u64) -> Result<(u64, bool), Status> {
        let total_bytes = self.gather_spans(is_read).ok_or(Status::BadMemory)?;
        if total_bytes == 0 {
            return Err(Status::NoSegments);
        }
        if !total_bytes.is_multiple_of(SECTOR_BYTES) {
            return Err(Status::Misaligned);
        }
        let length_sectors = total_bytes / SECTOR_BYTES;
        if length_sectors > self.facts.max_transfer_sectors || self.spans.len() > MAX_INDIRECT_ENTRIES {
            return Err(Status::TooLong);
        }
        self.facts.range(sector, length_sectors)?;
        if is_read {
            return Ok((length_sectors, false));
        }
        self.facts.needs(CAPABILITY_WRITE)?;
        Ok((length_sectors, self.writes_through()))
    }

    /// Turn the data's pieces into spans; the bytes they hold together, or nothing if a piece is no memory.
    #[inline(always)]
    fn gather_spans(&mut self, is_read: bool) -> Option<u64> {
        self.spans.clear();
        let pieces = if is_read { self.chain.writable() } else { self.chain.readable() };
        let mut total_bytes = 0;
        let spans = &mut self.spans;
        for piece in pieces {
            let length = u64::from(piece.length_bytes);
            total_bytes += length;
            match self.finder.host(piece.address, length) {
                _ if length == 0 => {}
                Some(place) => add_span(spans, place, usize::try_from(length).ok()?),
                None => {
                    let memory = self.finder.memory();
                    if !memory.pieces(piece.address, length, &mut |place, length| add_span(spans, place, length)) {
                        return None;
                    }
                    // Too many: looking for more of them costs time that others wait for.
                    if spans.len() > MAX_INDIRECT_ENTRIES {
                        break;
                    }
                }
            }
        }
        Some(total_bytes)
    }

    /// The disk has not finished the request, or must flush after it: keep what belongs to it.
    #[inline(never)]
    fn keep(&mut self, at: &StatusPlace, is_read: bool, then_flush: bool, submitted: Submitted) {
        let job = &mut self.jobs[usize::from(at.head)];
        (job.place, job.parts, job.status, job.then_flush) = (*at, 1, Status::Ok, then_flush);
        job.written.clear();
        if is_read {
            // Logging may begin before it is done.
            job.written.extend_from_slice(self.chain.writable());
        }
        self.busy[usize::from(at.head)] = true;
        match submitted {
            Submitted::Done(status) => self.part_is_done(at.head, status),
            Submitted::Pending => self.in_flight += 1,
        }
    }

    /// A request without range and flags.
    pub(super) const fn plain_request(&self, operation: Operation, head: u16) -> Request {
        Request { operation, tag: head, fua: false, unmap: false, sector: 0, length_sectors: 0, aux: 0 }
    }

    /// # Safety
    /// The spans stay valid until the request is finished.
    #[inline(always)]
    pub(super) unsafe fn submit<D: Disk>(
        &self,
        request: &Request,
        disk: &D,
        engine: &mut Engine,
        started_ticks: u64,
    ) -> Submitted {
        let ticket = Ticket { queue: self.id, tag: request.tag, started_ticks };
        let spans = match request.operation {
            Operation::Read | Operation::Write => self.spans.as_slice(),
            _ => &[],
        };
        // SAFETY: by the caller.
        unsafe { disk.submit(request, spans, ticket, engine) }
    }
}

/// Add a span, to the last one if it goes on there: drivers cut memory that is whole for us.
#[inline(always)]
fn add_span(spans: &mut Vec<Span>, place: NonNull<u8>, length_bytes: usize) {
    if let Some(last) = spans.last_mut()
        && last.base().as_ptr().wrapping_add(last.length_bytes()) == place.as_ptr()
    {
        // SAFETY: both are mapped guest memory, one behind the other.
        *last = unsafe { Span::new(last.base(), last.length_bytes() + length_bytes) };
        return;
    }
    // One more than any disk takes says "too many".
    if spans.len() <= MAX_INDIRECT_ENTRIES {
        // SAFETY: mapped guest memory of that length, kept as long as the request is in flight.
        spans.push(unsafe { Span::new(place, length_bytes) });
    }
}
