//! What is rare: questions for the disk's description, and events.

use fipsee_ring::doorbell::ClientBell;
use fipsee_ring::memory::{Memory, copy_to};

use super::QueueServer;
use crate::disk::Disk;
use crate::request::{Facts, Request};
use crate::wire::{BlockInfo, KIND_DETACH, KIND_RESIZE, Operation, Status, event_detach, event_resize};

impl<M: Memory, C: ClientBell, O> QueueServer<M, C, O> {
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
        info.capabilities = self.facts.capabilities;
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
        self.facts = Facts::new(info, self.read_only);
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
            self.queue.completions.publish(&event_resize(sector_count));
        }
        if !self.detach.unacknowledged && self.detach.wanted.take().is_some() {
            self.detach.unacknowledged = true;
            self.queue.completions.publish(&event_detach());
        }
    }
}
