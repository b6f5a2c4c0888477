//! Answering: status bytes, the used ring, interrupts; and the end when the guest lies.

use std::sync::atomic::Ordering;

use fipsee_block::disk::Ticket;
use fipsee_block::wire::Status;
use fipsee_ring::clock;
use virtio_bindings::virtio_blk::{VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP};

use super::{StatusPlace, VirtqueueServer, broken_memory};
use crate::core::fault_guard;
use crate::core::interrupt::Interrupt;
use crate::core::queue::chain::Piece;

const fn status_byte(status: Status) -> u8 {
    let status = match status {
        Status::Ok => VIRTIO_BLK_S_OK,
        Status::Unsupported => VIRTIO_BLK_S_UNSUPP,
        _ => VIRTIO_BLK_S_IOERR,
    };
    status.to_le_bytes()[0]
}

impl VirtqueueServer {
    /// Answer a request, in a way that [`flush`](Self::flush) publishes.
    #[inline(always)]
    pub(super) fn answer(&mut self, at: &StatusPlace, status: Status) {
        let is_ok = status == Status::Ok;
        if !is_ok {
            self.tally.errors += 1;
        }
        // SAFETY: the place was found in guest memory for one byte, and that memory is still what `finder` keeps mapped.
        unsafe { at.place.as_ptr().write_volatile(status_byte(status)) };
        if let Some(log) = &self.log {
            log.mark(at.address, 1);
        }
        self.queue.put_used(at.head, if is_ok { at.used_bytes } else { at.failed_bytes });
        if self.inflight.is_some() {
            self.batch.push(at.head);
        }
    }

    /// A request that was pending is finished. [`flush`](Self::flush) publishes it.
    pub fn finish(&mut self, ticket: Ticket, status: Status) {
        self.in_flight -= 1;
        self.counters.latency.record(clock::ticks().wrapping_sub(ticket.started_ticks), 1);
        self.part_is_done(ticket.tag, status);
    }

    /// The disk is done with a part of the request at `head`.
    pub(super) fn part_is_done(&mut self, head: u16, status: Status) {
        if self.fault.is_some() {
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
            self.in_flight += 1;
            self.owed_flushes.push(head);
            self.needs_care = true;
            return;
        }
        let (at, status) = (job.place, job.status);
        let written = std::mem::take(&mut job.written);
        self.log_pieces(&written);
        self.jobs[usize::from(head)].written = written;
        self.busy[usize::from(head)] = false;
        self.answer(&at, status);
    }

    /// Publish what is finished, and interrupt the guest if it wants that.
    #[inline(always)]
    pub fn flush(&mut self) {
        if self.queue.has_unpublished() {
            self.publish();
        }
    }

    #[inline(always)]
    fn publish(&mut self) {
        if fault_guard::fault_count() != self.faults_seen && self.memory_is_gone() {
            return;
        }
        if let Some(inflight) = &mut self.inflight {
            inflight.about_to_publish(&self.batch);
        }
        if let (Some(log), Some(address)) = (&self.log, self.used_log_address) {
            self.queue.log_entries(log, address);
        }
        let wants_interrupt = self.queue.publish();
        if let Some(inflight) = &mut self.inflight {
            inflight.published(&self.batch, self.queue.published());
            self.batch.clear();
        }
        self.log_words();
        if wants_interrupt {
            self.interrupt();
        }
    }

    #[cold]
    fn interrupt(&mut self) {
        if let Some(call) = &mut self.call {
            self.counters.doorbells.add(1);
            call.raise();
        }
    }

    /// Some guest's memory was truncated. Ours? Then what we answered is not so: it is not published.
    #[cold]
    pub(super) fn memory_is_gone(&mut self) -> bool {
        // First the count, then the look: a fault in between is looked at again.
        self.faults_seen = fault_guard::fault_count();
        std::sync::atomic::fence(Ordering::Acquire);
        let is_gone = self.finder.memory().is_broken() || self.log.as_ref().is_some_and(|log| log.is_broken());
        if is_gone {
            self.queue.forget_unpublished();
            self.break_down(broken_memory());
        }
        is_gone
    }

    /// Stop for good: what stands in the rings or in memory cannot be served.
    #[cold]
    pub(super) fn break_down(&mut self, why: String) {
        if self.fault.is_some() {
            return;
        }
        // Rings that are gone read as zeroes, which looks like a lie.
        let why = if self.finder.memory().is_broken() { broken_memory() } else { why };
        self.fault = Some(why);
        // They will not be flushed; their blocks were written and nobody was told.
        self.in_flight -= u32::try_from(self.owed_flushes.len()).unwrap_or(0);
        self.owed_flushes.clear();
        self.resubmit.clear();
        self.needs_care = false;
        if let Some(Ok(mut error)) = self.error.take().map(|fd| Interrupt::new("error", fd)) {
            error.raise();
        }
    }

    /// Log what was written to the used ring beside its entries.
    #[inline(always)]
    pub(super) fn log_words(&self) {
        if let (Some(log), Some(address)) = (&self.log, self.used_log_address) {
            self.queue.log_words(log, address);
        }
    }

    /// Log memory that was written to.
    #[inline(always)]
    pub(super) fn log_pieces(&self, pieces: &[Piece]) {
        if let Some(log) = &self.log {
            for piece in pieces {
                log.mark(piece.address, piece.length_bytes.into());
            }
        }
    }
}
