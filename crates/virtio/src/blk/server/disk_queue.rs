//! A guest's queue and the disk that it is of, as a worker has them.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use fipsee_block::disk::{AnyDisk, Engine, Ticket};
use fipsee_block::wire::{BlockInfo, Status};
use fipsee_serve::Queue;

use super::VirtqueueServer;

/// A virtqueue, with its ring, and its disk.
#[derive(Debug)]
pub struct GuestDiskQueue {
    /// The virtqueue.
    pub queue: VirtqueueServer,
    disk: Arc<AnyDisk>,
    fault_is_told: bool,
}

impl GuestDiskQueue {
    /// Serve `disk`.
    #[must_use]
    pub const fn new(queue: VirtqueueServer, disk: Arc<AnyDisk>) -> Self {
        Self { queue, disk, fault_is_told: false }
    }

    /// The size of `disk` changed, which may be another.
    pub fn announce_resize(&mut self, disk: &Arc<AnyDisk>, info: &BlockInfo) {
        if Arc::ptr_eq(&self.disk, disk) {
            self.queue.set_info(info);
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
        if let Some(reason) = self.queue.queue.fault()
            && !self.fault_is_told
        {
            self.fault_is_told = true;
            self.queue.device.iter_mut().for_each(|device| device.broke(reason));
        }
        taken
    }

    fn in_flight(&self) -> u32 {
        self.queue.in_flight()
    }

    fn has_work(&self) -> bool {
        self.queue.has_work()
    }

    fn finish(&mut self, ticket: Ticket, status: Status) {
        self.queue.finish(ticket, status);
    }

    fn flush(&mut self) {
        self.queue.flush();
    }

    fn arm_and_work_remains(&mut self) -> bool {
        !self.queue.is_armed() && self.queue.arm_and_work_remains()
    }

    fn bell_rang(&mut self) {
        self.queue.bell_rang();
    }

    fn bell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.queue.queue.bell())
    }

    fn begin_owed(&mut self, engine: &mut Engine) -> bool {
        self.queue.begin_owed(&*self.disk, engine)
    }

    fn saved_state(&mut self, own: bool) -> Option<Box<dyn Any + Send>> {
        if own {
            self.flush();
        }
        Some(Box::new(self.queue.standing()?))
    }
}
