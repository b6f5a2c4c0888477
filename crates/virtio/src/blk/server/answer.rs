//! Answering: status bytes, and flushes that come before them.

use fipsee_block::disk::Ticket;
use fipsee_block::wire::Status;
use fipsee_ring::clock;
use virtio_bindings::virtio_blk::{VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP};

use super::{StatusPlace, VirtqueueServer};

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
        self.operations -= 1;
        self.counters.latency.record(clock::ticks().wrapping_sub(ticket.started_ticks), 1);
        self.part_is_done(ticket.tag, status);
    }

    /// The disk is done with a part of the request at `head`.
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
            self.owed_flushes.push(head);
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
        if self.queue.flush() {
            self.counters.doorbells.add(1);
        }
    }

    /// Publish what is finished, and wake the guest if it wants that.
    pub fn flush(&mut self) {
        if let Some(ring) = &mut self.ring {
            ring.server.flush();
            self.ring_was_served();
        }
        self.publish();
    }
}
