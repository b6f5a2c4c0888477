//! Taking requests: the visit, reads and writes; and completing them: status bytes, and the flushes before them.

use fipsee_block::disk::{Disk, Engine, Submitted, Ticket};
use fipsee_block::request::Request;
use fipsee_block::server::VISITS_PER_SAMPLE;
use fipsee_block::wire::{CAPABILITY_FUA, CAPABILITY_WRITE, MAX_INDIRECT_ENTRIES, Operation, SECTOR_BYTES, Status};
use fipsee_ring::clock;
use fipsee_ring::cpu::prefetch_for_write;
use fipsee_serve::{Taken, Turn, probe};
use virtio_bindings::virtio_blk::{VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT};

use super::{StatusAddress, VirtqueueServer};
use crate::core::queue::Descriptor;
use crate::core::queue::chain::{take_last_byte, total_bytes};

/// Most requests taken in one visit. The guest publishes how many there are, so looking ahead costs nothing; other queues wait no
/// longer than these take.
const MAX_BUDGET: u16 = 32;
/// A ring that is never empty must not keep its virtqueue waiting: one visit in this many checks both.
const VISITS_PER_LOOK_AT_VIRTQUEUE: u32 = 8;

fipsee_ring::wire_structures! {
    /// `struct virtio_blk_outhdr`: type and sector of a request.
    pub Header: 16 { 0 kind: u32, 4 io_priority: u32, 8 sector: u64 }
}

impl VirtqueueServer {
    /// Take up to a budget of requests, within `turn`; complete those that `disk` finishes at once. Returns what was taken.
    #[inline(always)]
    pub fn visit<D: Disk>(&mut self, disk: &D, engine: &mut Engine, turn: Turn) -> Taken {
        let mut taken = Taken::NOTHING;
        if let Some(ring) = &mut self.ring {
            self.queue.check_memory();
            if !ring.ending && !self.queue.is_over() {
                taken = ring.server.visit(disk, engine, turn);
                if taken.requests > 0 {
                    self.ring_was_served();
                }
            }
            self.ring_visits = self.ring_visits.wrapping_add(1);
            if taken.requests > 0 && !self.ring_visits.is_multiple_of(VISITS_PER_LOOK_AT_VIRTQUEUE) {
                return taken;
            }
        }
        let turn = turn.after(taken);
        if self.needs_care {
            return taken.and(self.visit_with_care(disk, engine, turn));
        }
        let waiting = self.queue.ring.waiting();
        if waiting == 0 || self.queue.is_over() {
            return taken;
        }
        taken.and(self.visit_virtqueue(waiting, disk, engine, turn))
    }

    #[inline(always)]
    fn visit_virtqueue<D: Disk>(&mut self, waiting: u16, disk: &D, engine: &mut Engine, turn: Turn) -> Taken {
        if !self.queue.begin_visit(waiting) {
            return Taken::NOTHING;
        }
        probe!(take, self.id);
        self.visits += 1;
        let sampled = !D::ANSWERS_AT_ONCE || self.visits.is_multiple_of(VISITS_PER_SAMPLE);
        let started_ticks = if sampled { clock::ticks() } else { 0 };
        let limit = waiting.min(MAX_BUDGET).min(u16::try_from(turn.requests).unwrap_or(u16::MAX));
        let mut first = [(0, Descriptor::default()); MAX_BUDGET as usize];
        let first = &mut first[..usize::from(limit)];
        self.queue.look_ahead(limit, first);
        let mut taken = 0;
        for (head, descriptor) in first.iter().copied() {
            self.queue.ring.advance(1);
            taken += 1;
            self.serve(head, descriptor, true, disk, engine, started_ticks);
            if Taken::new(taken, self.tally.moved_sectors()).units >= turn.units || self.queue.is_over() {
                break;
            }
        }
        self.publish();
        if D::ANSWERS_AT_ONCE && sampled {
            self.counters.latency.record(clock::ticks().wrapping_sub(started_ticks), taken.into());
        }
        let all = Taken::new(taken, self.tally.moved_sectors());
        std::mem::take(&mut self.tally).write_to(&self.counters);
        all
    }

    /// Requests that were in flight before this server started, and deferred flushes, come first.
    #[cold]
    fn visit_with_care<D: Disk>(&mut self, disk: &D, engine: &mut Engine, turn: Turn) -> Taken {
        let taken = self.take_again(disk, engine);
        let waiting = self.queue.ring.waiting();
        if taken.requests > 0 || self.queue.is_over() || waiting == 0 {
            return taken;
        }
        self.visit_virtqueue(waiting, disk, engine, turn)
    }

    /// Start requests that were in flight before this server started, deferred flushes, and what is left of a message of the ring. Was there anything?
    pub fn begin_deferred<D: Disk>(&mut self, disk: &D, engine: &mut Engine) -> bool {
        let has_deferred = self.needs_care && !self.queue.is_over();
        if has_deferred {
            self.take_again(disk, engine);
        }
        if self.ring.is_some() {
            self.queue.check_memory();
        }
        let is_over = self.queue.is_over();
        let on_ring = match self.ring.as_mut().filter(|ring| !ring.ending) {
            // Nothing is executed any more, and nothing may keep the queue from being handed over.
            Some(ring) if is_over => {
                ring.server.discard_left();
                false
            }
            Some(ring) => ring.server.begin_deferred(disk, engine),
            None => false,
        };
        if on_ring {
            self.ring_was_served();
        }
        has_deferred || on_ring
    }

    /// Start the deferred flushes, and resubmit some of the requests in flight before this server started; returns what.
    #[cold]
    fn take_again<D: Disk>(&mut self, disk: &D, engine: &mut Engine) -> Taken {
        self.issue_deferred_flushes(disk, engine);
        let mut taken = 0;
        while taken < u32::from(MAX_BUDGET)
            && !self.queue.is_over()
            && let Some((head, descriptor)) = self.queue.next_resubmit()
        {
            taken += 1;
            self.serve(head, descriptor, false, disk, engine, clock::ticks());
        }
        self.needs_care = self.queue.has_resubmit() || !self.deferred_flushes.is_empty();
        self.publish();
        let all = Taken::new(taken, self.tally.moved_sectors());
        std::mem::take(&mut self.tally).write_to(&self.counters);
        all
    }

    fn issue_deferred_flushes<D: Disk>(&mut self, disk: &D, engine: &mut Engine) {
        let deferred = std::mem::take(&mut self.deferred_flushes);
        if self.queue.is_over() {
            return;
        }
        for head in deferred {
            let request = self.plain_request(Operation::Flush, head);
            let started_ticks = clock::ticks();
            // SAFETY: a flush has no memory.
            match unsafe { self.submit(&request, disk, engine, started_ticks) } {
                Submitted::Done(status) => self.part_is_done(head, status),
                Submitted::Pending => self.operations += 1,
            }
        }
    }

    /// `is_new`: it comes from the available ring, not from the inflight area.
    #[inline(always)]
    fn serve<D: Disk>(&mut self, head: u16, first: Descriptor, is_new: bool, disk: &D, engine: &mut Engine, started_ticks: u64) {
        if !self.queue.take(head, first, is_new) {
            return;
        }
        let Some(words) = self.queue.take_words::<2>() else {
            return self
                .queue
                .break_down(format!("the header of a request is shorter than 16 bytes or no memory (chain {head})"));
        };
        let Some(at) = self.take_status_place(head) else {
            return self.queue.break_down(format!("a request has no status byte, or it is no memory (chain {head})"));
        };
        let header: Header = zerocopy::transmute!(words);
        match header.kind {
            VIRTIO_BLK_T_IN => self.transfer(Operation::Read, &header, &at, disk, engine, started_ticks),
            VIRTIO_BLK_T_OUT => self.transfer(Operation::Write, &header, &at, disk, engine, started_ticks),
            _ => self.serve_rare(&header, &at, disk, engine, started_ticks),
        }
    }

    /// Take the status byte, the last that we may write, off the writable pieces.
    #[inline(always)]
    fn take_status_place(&mut self, head: u16) -> Option<StatusAddress> {
        let readable = self.queue.chain.readable;
        let address = take_last_byte(&mut self.queue.chain.pieces[readable..])?;
        let place = self.queue.host(address, 1)?;
        prefetch_for_write(place.as_ptr());
        // Until the operation reports more, only the status counts as written.
        let alone = total_bytes(self.queue.chain.writable()) == 0;
        let used_bytes = u32::from(alone);
        Some(StatusAddress { head, address, place, used_bytes, failed_bytes: used_bytes })
    }

    #[inline(always)]
    fn transfer<D: Disk>(
        &mut self,
        operation: Operation,
        header: &Header,
        at: &StatusAddress,
        disk: &D,
        engine: &mut Engine,
        started_ticks: u64,
    ) {
        let is_read = operation == Operation::Read;
        let (length_sectors, fua) = match self.check_transfer(is_read, header.sector) {
            Ok(checked) => checked,
            Err(status) => {
                self.counters.rest.add(1);
                return self.answer(at, status);
            }
        };
        let mut at = *at;
        if is_read {
            self.tally.reads += 1;
            self.tally.read_sectors += length_sectors;
            // The status follows the data.
            at.used_bytes = u32::try_from((length_sectors * SECTOR_BYTES).saturating_add(1)).unwrap_or(u32::MAX);
        } else {
            self.tally.writes += 1;
            self.tally.written_sectors += length_sectors;
        }
        let has_fua = self.limits.capabilities & CAPABILITY_FUA != 0;
        let mut request = self.plain_request(operation, at.head);
        (request.sector, request.length_sectors, request.fua) = (header.sector, length_sectors, fua && has_fua);
        // SAFETY: the spans are in the memory that `queue` keeps mapped, which changes, and goes with this server, only when
        // nothing is in flight.
        match unsafe { self.submit(&request, disk, engine, started_ticks) } {
            Submitted::Done(status) if !fua || has_fua || status != Status::Ok => {
                if is_read {
                    self.queue.log_pieces(self.queue.chain.writable());
                }
                self.answer(&at, status);
            }
            submitted => self.keep(&at, is_read, fua && !has_fua, submitted),
        }
    }

    /// Find the data; its sectors, and whether it must be durable.
    #[inline(always)]
    fn check_transfer(&mut self, is_read: bool, sector: u64) -> Result<(u64, bool), Status> {
        let total_bytes = self.queue.gather_spans(is_read, &mut self.spans, MAX_INDIRECT_ENTRIES).ok_or(Status::BadMemory)?;
        if total_bytes == 0 {
            return Err(Status::NoSegments);
        }
        if !total_bytes.is_multiple_of(SECTOR_BYTES) {
            return Err(Status::Misaligned);
        }
        let length_sectors = total_bytes / SECTOR_BYTES;
        if length_sectors > self.limits.max_transfer_sectors || self.spans.len() > MAX_INDIRECT_ENTRIES {
            return Err(Status::TooLong);
        }
        self.limits.range(sector, length_sectors)?;
        if is_read {
            return Ok((length_sectors, false));
        }
        self.limits.needs(CAPABILITY_WRITE)?;
        Ok((length_sectors, self.writes_through()))
    }

    /// The disk has not finished the request, or must flush after it: keep its state.
    #[inline(never)]
    fn keep(&mut self, at: &StatusAddress, is_read: bool, then_flush: bool, submitted: Submitted) {
        let job = &mut self.jobs[usize::from(at.head)];
        (job.place, job.parts, job.status, job.then_flush) = (*at, 1, Status::Ok, then_flush);
        job.written.clear();
        if is_read {
            // Logging may start before the request is done.
            job.written.extend_from_slice(self.queue.chain.writable());
        }
        self.queue.hold(at.head);
        match submitted {
            Submitted::Done(status) => self.part_is_done(at.head, status),
            Submitted::Pending => self.operations += 1,
        }
    }

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
        let submitted = unsafe { disk.submit(request, spans, ticket, engine) };
        if submitted == Submitted::Pending {
            probe!(submit, self.id, request.tag, request.operation.to_wire(), request.sector, request.length_sectors);
        }
        submitted
    }
    /// Complete a request; [`flush`](Self::flush) publishes it.
    #[inline(always)]
    pub(super) fn answer(&mut self, at: &StatusAddress, status: Status) {
        let is_ok = status == Status::Ok;
        if !is_ok {
            self.tally.errors += 1;
        }
        // SAFETY: the place was found in guest memory for one byte, and that memory is still what `queue` keeps mapped.
        unsafe { at.place.as_ptr().write_volatile(status_byte(status)) };
        self.queue.log_bytes(at.address, 1);
        self.queue.put_used(at.head, if is_ok { at.used_bytes } else { at.failed_bytes });
    }

    /// A request that was pending is finished. [`flush`](Self::flush) publishes it.
    pub fn finish(&mut self, ticket: Ticket, status: Status) {
        if let Some(ring) = self.ring.as_mut().filter(|_| ticket.queue & Ticket::PART != 0) {
            return ring.server.finish(ticket, status);
        }
        probe!(complete, self.id, ticket.tag, status.to_wire());
        self.operations -= 1;
        self.counters.latency.record(clock::ticks().wrapping_sub(ticket.started_ticks), 1);
        self.part_is_done(ticket.tag, status);
    }

    /// The disk has finished a part of the request at `head`.
    pub(super) fn part_is_done(&mut self, head: u16, status: Status) {
        if self.queue.is_over() {
            return;
        }
        let job = &mut self.jobs[usize::from(head)];
        if job.status == Status::Ok {
            job.status = status;
        }
        job.parts -= 1;
        if job.parts > 0 {
            return;
        }
        if std::mem::take(&mut job.then_flush) && job.status == Status::Ok {
            job.parts = 1;
            self.deferred_flushes.push(head);
            self.needs_care = true;
            return;
        }
        let (at, status) = (job.place, job.status);
        self.queue.log_pieces(&job.written);
        self.queue.release(head);
        self.answer(&at, status);
    }

    /// Publish what is finished on the virtqueue, and interrupt the guest if it wants that.
    #[inline(always)]
    pub(super) fn publish(&mut self) {
        if self.moderated.is_some() {
            return self.publish_moderated();
        }
        if self.queue.flush() {
            let is_interrupted = self.queue.interrupt();
            self.count_interrupt(is_interrupted);
        }
    }

    pub fn flush(&mut self) {
        if let Some(ring) = &mut self.ring {
            ring.server.flush();
            self.ring_was_served();
        }
        self.publish();
    }
}

const fn status_byte(status: Status) -> u8 {
    let status = match status {
        Status::Ok => VIRTIO_BLK_S_OK,
        Status::Unsupported => VIRTIO_BLK_S_UNSUPP,
        _ => VIRTIO_BLK_S_IOERR,
    };
    status.to_le_bytes()[0]
}
