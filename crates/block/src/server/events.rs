//! The rare path: queries of the disk's description, events, and the state of a queue between two visits: all that another server
//! needs to continue.

use fipsee_ring::doorbell::ClientDoorbell;
use fipsee_ring::memory::{Memory, copy_to};
use fipsee_ring::ring::Cursor;

use super::QueueServer;
use crate::disk::Disk;
use crate::request::{Request, RequestLimits};
use crate::wire::{BlockInfo, KIND_DETACH, KIND_RESIZE, Operation, Status, event};

/// An event that waits for its credit, or for its acknowledgement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventState {
    /// Sent to the client and not acknowledged.
    pub unacknowledged: bool,
    /// To be sent after the acknowledgement.
    pub wanted: Option<u64>,
}

/// The state of a queue. Nothing is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueState {
    pub request: Cursor,
    pub completion: Cursor,
    /// Changes of the size.
    pub resize: EventState,
    pub detach: EventState,
    pub detached: bool,
}

impl<M: Memory, C: ClientDoorbell, O> QueueServer<M, C, O> {
    #[cold]
    pub(super) fn serve_service<D: Disk>(&mut self, request: &Request, disk: &D) {
        self.counters.rest.add(1);
        let status = match request.operation {
            Operation::GetInfo => self.put_info(disk),
            _ => self.acknowledge(request.aux),
        };
        self.answer(request.tag, status);
    }

    fn put_info<D: Disk>(&self, disk: &D) -> Status {
        let mut info = disk.info();
        info.capabilities = self.limits.capabilities;
        // SAFETY: `parse` found the spans just now, in memory that the client lets us write.
        if unsafe { copy_to(&self.spans, &info.to_bytes()) } { Status::Ok } else { Status::Invalid }
    }

    fn acknowledge(&mut self, kind: u32) -> Status {
        let event = match u8::try_from(kind) {
            Ok(KIND_RESIZE) => &mut self.resize,
            Ok(KIND_DETACH) => &mut self.detach,
            _ => return Status::Invalid,
        };
        if !std::mem::take(&mut event.unacknowledged) {
            return Status::Invalid;
        }
        self.send_events();
        Status::Ok
    }

    pub fn announce_resize(&mut self, info: &BlockInfo) {
        self.limits = RequestLimits::new(info, self.read_only);
        self.resize.wanted = (info.sector_count != self.announced_sectors).then_some(info.sector_count);
        self.send_events();
        self.flush();
    }

    /// The disk is being removed: answer everything with [`Status::Detached`] from here on.
    pub fn announce_detach(&mut self) {
        self.detached = true;
        self.detach.wanted = Some(0);
        self.send_events();
        self.flush();
    }

    fn send_events(&mut self) {
        if !self.resize.unacknowledged
            && let Some(sector_count) = self.resize.wanted.take()
        {
            self.resize.unacknowledged = true;
            self.announced_sectors = sector_count;
            self.publish_event(KIND_RESIZE, sector_count);
        }
        if !self.detach.unacknowledged && self.detach.wanted.take().is_some() {
            self.detach.unacknowledged = true;
            self.publish_event(KIND_DETACH, 0);
        }
    }

    fn publish_event(&mut self, kind: u8, value: u64) {
        self.queue.completions.publish(&event(kind, value));
        self.published = true;
    }

    /// The queue's state; `None` while requests are in flight, or some of a message are left.
    pub fn state(&self) -> Option<QueueState> {
        (self.in_flight == 0 && self.packer.count == 0 && self.left.from == 0).then(|| QueueState {
            request: self.queue.requests.cursor(),
            completion: self.queue.completions.cursor(),
            resize: self.resize,
            detach: self.detach,
            detached: self.detached,
        })
    }

    /// Continue where another server left off; the channel's end was opened with its cursors.
    pub fn restore(&mut self, state: &QueueState) {
        self.resize = state.resize;
        if state.resize.wanted.is_some() {
            self.announced_sectors = 0;
        }
        self.detach = state.detach;
        self.detached = state.detached;
    }
}
