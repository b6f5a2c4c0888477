//! A guest's queue and the disk that it is of, as a worker has them.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use fipsee_block::disk::{AnyDisk, Engine, Ticket};
use fipsee_block::wire::{BlockInfo, Status};
use fipsee_serve::Queue;

use super::queue::GuestQueue;

/// A virtqueue, with its ring, and its disk.
#[derive(Debug)]
pub struct GuestDiskQueue {
    /// The virtqueue.
    pub queue: GuestQueue,
    disk: Arc<AnyDisk>,
    fault_is_told: bool,
}

impl GuestDiskQueue {
    /// Serve `disk`.
    #[must_use]
    pub const fn new(queue: GuestQueue, disk: Arc<AnyDisk>) -> Self {
        Self { queue, disk, fault_is_told: false }
    }

    /// The size of `disk` changed, which may be another.
    pub fn announce_resize(&mut self, disk: &Arc<AnyDisk>, info: &BlockInfo) {
        if Arc::ptr_eq(&self.disk, disk) {
            self.queue.set_info(info);
        }
    }

    #[cold]
    fn report_fault(&mut self) {
        if !std::mem::replace(&mut self.fault_is_told, true) {
            self.queue.report_fault();
        }
    }
}

impl Queue<Engine> for GuestDiskQueue {
    fn visit(&mut self, engine: &mut Engine, alone: bool) -> u32 {
        if let Some(ring) = &mut self.queue.ring {
            ring.server.hold(alone);
        }
        let taken = match &*self.disk {
            AnyDisk::Null(disk) => self.queue.visit(disk, engine),
            AnyDisk::Memory(disk) => self.queue.visit(disk, engine),
            AnyDisk::File(disk) => self.queue.visit(disk, engine),
            other => self.queue.visit(other, engine),
        };
        if self.queue.virtqueue.fault().is_some() {
            self.report_fault();
        }
        taken
    }

    fn in_flight(&self) -> u32 {
        self.queue.virtqueue.in_flight() + self.queue.ring.as_ref().map_or(0, |ring| ring.server.in_flight())
    }

    fn has_work(&self) -> bool {
        let GuestQueue { virtqueue, ring, .. } = &self.queue;
        let on_ring = || ring.as_ref().is_some_and(|ring| !ring.ending && ring.server.has_work());
        virtqueue.has_work() || (virtqueue.fault().is_none() && on_ring())
    }

    fn finish(&mut self, ticket: Ticket, status: Status) {
        match &mut self.queue.ring {
            Some(ring) if ticket.queue & Ticket::PART != 0 => ring.server.finish(ticket, status),
            _ => self.queue.virtqueue.finish(ticket, status),
        }
    }

    fn flush(&mut self) {
        self.queue.flush();
    }

    fn arm_and_work_remains(&mut self) -> bool {
        let GuestQueue { virtqueue, ring, .. } = &mut self.queue;
        let mut ring = ring.as_mut().filter(|ring| !ring.ending);
        // What is served no more needs no kicks.
        if virtqueue.fault().is_some() || (virtqueue.is_armed() && ring.as_ref().is_none_or(|ring| ring.server.is_armed())) {
            return false;
        }
        let on_ring = ring.as_mut().is_some_and(|ring| {
            let remains = ring.server.arm_and_work_remains();
            ring.mark();
            remains
        });
        on_ring | virtqueue.arm_and_work_remains()
    }

    fn bell_rang(&mut self) {
        if let Some(ring) = &mut self.queue.ring {
            ring.server.bell_rang();
            ring.mark();
        }
        self.queue.virtqueue.bell_rang();
    }

    fn bell(&self) -> BorrowedFd<'_> {
        self.queue.virtqueue.bell()
    }

    fn begin_owed(&mut self, engine: &mut Engine) -> bool {
        self.queue.virtqueue.pay_flushes(&*self.disk, engine)
    }

    fn saved_state(&mut self, own: bool) -> Option<Box<dyn Any + Send>> {
        if own {
            self.flush();
        }
        Some(Box::new(self.queue.standing()?))
    }
}
