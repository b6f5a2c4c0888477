//! The daemon's end of a channel as a queue of a worker, and the commands for those of a client.

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use fipsee_block::disk::{AnyDisk, Ticket};
use fipsee_block::server::QueueServer;
use fipsee_block::wire::{BlockInfo, Status};
use fipsee_ring::mapped::NextStamp;
use fipsee_ring::region::Region;
use fipsee_ring::wait::Watch;
use fipsee_serve::{Add, NotAdded, Queue, QueueName, When, Which};

use super::{Ack, Command, DiskEngine, as_mut};
use crate::export::Export;

/// The daemon's end of a channel's queue.
pub(super) struct BlockQueue {
    server: QueueServer,
    export: Arc<Export>,
}

impl Queue<DiskEngine> for BlockQueue {
    fn visit(&mut self, engine: &mut DiskEngine, alone: bool) -> u32 {
        self.server.hold(alone);
        // Most looks find nothing: they are not to pay for the registers that serving needs.
        if self.server.has_work() { self.serve(engine) } else { 0 }
    }

    fn in_flight(&self) -> u32 {
        self.server.in_flight()
    }

    fn depth(&self) -> u32 {
        self.server.depth()
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
        self.server.queue().our_bell.as_fd()
    }

    fn next_stamp(&self) -> Option<NextStamp> {
        Some(self.server.next_stamp())
    }

    fn watch(&self) -> Option<Watch<'_>> {
        Some(self.server.watch())
    }

    fn saved_state(&mut self, _own: bool) -> Option<Box<dyn Any + Send>> {
        Some(Box::new(self.server.standing()?))
    }
}

impl BlockQueue {
    #[inline(never)]
    fn serve(&mut self, DiskEngine(engine): &mut DiskEngine) -> u32 {
        match self.export.disk() {
            AnyDisk::Null(disk) => self.server.visit(disk, engine),
            AnyDisk::Memory(disk) => self.server.visit(disk, engine),
            AnyDisk::File(disk) => self.server.visit(disk, engine),
            other => self.server.visit(other, engine),
        }
    }

    pub(super) fn announce_resize(&mut self, export: &Arc<Export>, info: &BlockInfo) {
        if Arc::ptr_eq(&self.export, export) {
            self.server.announce_resize(info);
        }
    }
}

/// Serve a queue; `make` builds its server once the worker knows its number.
pub fn add(
    name: QueueName,
    export: &Arc<Export>,
    make: impl FnOnce(u32) -> Result<QueueServer, Status> + Send + 'static,
) -> Command {
    let (client, export) = (name.client, Arc::clone(export));
    let make = move |id| -> Result<Box<dyn Queue<DiskEngine>>, String> {
        let server = make(id).map_err(|_| "it does not fit the region that was laid out for it".to_owned())?;
        Ok(Box::new(BlockQueue { server, export }))
    };
    let added = move |added| match added {
        Ok(()) => {}
        Err(NotAdded::NotMade(reason)) => tracing::error!(client, reason, "a queue is not served"),
        Err(NotAdded::Bell(error)) => tracing::error!(client, %error, "cannot watch a doorbell; the queue is not served"),
    };
    Command::Add(Add { name, make: Box::new(make), added: Box::new(added) })
}

/// Give the client's queues a region under this id; `access`: `ACCESS_*` bits.
pub fn add_region(client: u64, id: u16, region: &Arc<Region>, access: u16, ack: Ack) -> Command {
    let region = Arc::clone(region);
    change(client, When::Now, ack, move |server| {
        let added = server.regions_mut().insert(id, &region, 0, region.length_bytes(), access);
        debug_assert!(added.is_ok(), "the front keeps the ids");
    })
}

/// Take a region away once nothing of the client is in flight.
pub fn remove_region(client: u64, id: u16, ack: Ack) -> Command {
    change(client, When::Idle, ack, move |server| {
        let _ = server.regions_mut().remove(id);
    })
}

fn change(client: u64, when: When, ack: Ack, change: impl Fn(&mut QueueServer) + Send + 'static) -> Command {
    let change = move |queue: &mut dyn Queue<DiskEngine>| {
        let _until_dropped = &ack;
        if let Some(BlockQueue { server, .. }) = as_mut(queue) {
            change(server);
        }
    };
    Command::Change { which: Which::Client(client), when, change: Box::new(change) }
}
