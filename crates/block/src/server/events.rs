//! What is rare: questions for the disk's description, events, and where a queue stands between two visits: all that another server of it
//! must know to go on.

use fipsee_ring::doorbell::ClientDoorbell;
use fipsee_ring::memory::{Memory, copy_to};
use fipsee_ring::ring::Cursor;

use super::QueueServer;
use crate::disk::Disk;
use crate::request::{Request, RequestLimits};
use crate::wire::{BlockInfo, KIND_DETACH, KIND_RESIZE, Operation, Status, event};

/// An event that waits for its credit, or to be acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventState {
    /// The client has it and has not acknowledged it.
    pub unacknowledged: bool,
    /// What is to be sent when it has.
    pub wanted: Option<u64>,
}

/// Where a queue stands. Nothing is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueState {
    /// The next request.
    pub request: Cursor,
    /// The next completion.
    pub completion: Cursor,
    /// Changes of the size.
    pub resize: EventState,
    /// The end of the disk.
    pub detach: EventState,
    /// Has the disk gone?
    pub detached: bool,
}

impl<M: Memory, C: ClientDoorbell, O> QueueServer<M, C, O> {
    #[cold]
    pub(super) fn serve_service<D: Disk>(&mut self, request: &Request, disk: &D) {
        self.tally.others += 1;
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

    /// The disk's size changed.
    pub fn announce_resize(&mut self, info: &BlockInfo) {
        self.limits = RequestLimits::new(info, self.read_only);
        self.resize.wanted = (info.sector_count != self.told_sectors).then_some(info.sector_count);
        self.send_events();
        self.flush();
    }

    /// The disk goes away: answer everything with [`Status::Detached`] from here on.
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
            self.told_sectors = sector_count;
            self.queue.completions.publish(&event(KIND_RESIZE, sector_count));
        }
        if !self.detach.unacknowledged && self.detach.wanted.take().is_some() {
            self.detach.unacknowledged = true;
            self.queue.completions.publish(&event(KIND_DETACH, 0));
        }
    }
    /// Where the queue stands; `None` while requests are in flight.
    #[must_use]
    pub fn state(&self) -> Option<QueueState> {
        (self.in_flight == 0 && self.packer.count == 0).then(|| QueueState {
            request: self.queue.requests.cursor(),
            completion: self.queue.completions.cursor(),
            resize: self.resize,
            detach: self.detach,
            detached: self.detached,
        })
    }

    /// Go on as another server left off, whose cursors the channel's end was opened with.
    pub fn restore(&mut self, state: &QueueState) {
        self.resize = state.resize;
        if state.resize.wanted.is_some() {
            self.told_sectors = 0;
        }
        self.detach = state.detach;
        self.detached = state.detached;
    }
}
