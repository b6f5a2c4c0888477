//! A queue and the disk that it is of, as a worker has them.

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use fipsee_ring::mapped::NextStamp;
use fipsee_ring::memory::RegionTable;
use fipsee_ring::wait::Watch;
use fipsee_serve::Queue;

use super::QueueServer;
use crate::disk::{AnyDisk, Engine, Ticket};
use crate::wire::{BlockInfo, Status};

/// The daemon's end of one queue, and its disk.
#[derive(Debug)]
pub struct DiskQueue {
    server: QueueServer,
    disk: Arc<AnyDisk>,
}

impl DiskQueue {
    /// Serve `disk`.
    #[must_use]
    pub const fn new(server: QueueServer, disk: Arc<AnyDisk>) -> Self {
        Self { server, disk }
    }

    /// The memory the client has handed over.
    pub const fn regions_mut(&mut self) -> &mut RegionTable {
        self.server.regions_mut()
    }

    /// The size of `disk` changed, which may be another.
    pub fn announce_resize(&mut self, disk: &Arc<AnyDisk>, info: &BlockInfo) {
        if Arc::ptr_eq(&self.disk, disk) {
            self.server.announce_resize(info);
        }
    }

    #[inline(never)]
    fn serve(&mut self, engine: &mut Engine) -> u32 {
        match &*self.disk {
            AnyDisk::Null(disk) => self.server.visit(disk, engine),
            AnyDisk::Memory(disk) => self.server.visit(disk, engine),
            AnyDisk::File(disk) => self.server.visit(disk, engine),
            other => self.server.visit(other, engine),
        }
    }
}

impl Queue<Engine> for DiskQueue {
    fn visit(&mut self, engine: &mut Engine, alone: bool) -> u32 {
        self.server.hold(alone);
        // Most looks find nothing: they are not to pay for the registers that serving needs.
        if self.server.has_work() { self.serve(engine) } else { 0 }
    }

    fn in_flight(&self) -> u32 {
        self.server.in_flight()
    }

    fn depth(&self) -> u32 {
        self.server.depth
    }

    fn has_work(&self) -> bool {
        self.server.has_work()
    }

    fn finish(&mut self, ticket: Ticket, status: Status) {
        self.server.finish(ticket, status);
    }

    fn flush(&mut self) {
        self.server.flush();
    }

    fn arm_and_work_remains(&mut self) -> bool {
        !self.server.is_armed() && self.server.arm_and_work_remains()
    }

    fn bell_rang(&mut self) {
        self.server.bell_rang();
    }

    fn bell(&self) -> BorrowedFd<'_> {
        self.server.queue.our_bell.as_fd()
    }

    fn next_stamp(&self) -> Option<NextStamp> {
        let requests = &self.server.queue.requests;
        Some(requests.memory().next_stamp(requests.cursor()))
    }

    fn watch(&self) -> Option<Watch<'_>> {
        Some(self.server.queue.requests.watch())
    }

    fn saved_state(&mut self, _own: bool) -> Option<Box<dyn Any + Send>> {
        Some(Box::new(self.server.standing()?))
    }
}
