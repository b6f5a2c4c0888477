//! The virtqueue of a virtual machine as a queue of a worker, and the commands for it.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use fipsee_block::disk::{AnyDisk, Ticket};
use fipsee_block::wire::{BlockInfo, Status};
use fipsee_serve::{Add, NotAdded, Queue, QueueName, When, Which};
use fipsee_virtio::blk::upgrade::GuestQueue;
use fipsee_virtio::core::memory::GuestMemory;

use super::{Command, DiskEngine, as_mut};
use crate::export::Export;

/// Guest-physical addresses of a virtqueue's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingAddresses {
    /// The descriptor table.
    pub descriptor: u64,
    /// The available ring.
    pub available: u64,
    /// The used ring.
    pub used: u64,
}

/// Called with the reason if the queue breaks.
pub type OnFault = Box<dyn FnOnce(&str) + Send>;

/// A queue of a vhost-user device.
pub(super) struct Virtqueue {
    server: GuestQueue,
    export: Arc<Export>,
    /// Until it was called.
    on_fault: Option<OnFault>,
}

impl Queue<DiskEngine> for Virtqueue {
    fn visit(&mut self, DiskEngine(engine): &mut DiskEngine, alone: bool) -> u32 {
        self.server.hold(alone);
        let taken = match self.export.disk() {
            AnyDisk::Null(disk) => self.server.visit(disk, engine),
            AnyDisk::Memory(disk) => self.server.visit(disk, engine),
            AnyDisk::File(disk) => self.server.visit(disk, engine),
            other => self.server.visit(other, engine),
        };
        if self.server.fault().is_some() && self.on_fault.is_some() {
            self.report_fault();
        }
        taken
    }

    fn in_flight(&self) -> u32 {
        self.server.in_flight()
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
        self.server.bell()
    }

    fn begin_owed(&mut self, DiskEngine(engine): &mut DiskEngine) -> bool {
        self.server.pay_flushes(self.export.disk(), engine)
    }

    fn saved_state(&mut self, own: bool) -> Option<Box<dyn Any + Send>> {
        if own {
            self.server.flush();
        }
        Some(Box::new(self.server.standing()?))
    }
}

impl Virtqueue {
    #[cold]
    fn report_fault(&mut self) {
        if let (Some(reason), Some(on_fault)) = (self.server.fault(), self.on_fault.take()) {
            on_fault(reason);
        }
    }

    pub(super) fn announce_resize(&mut self, export: &Arc<Export>, info: &BlockInfo) {
        if Arc::ptr_eq(&self.export, export) {
            self.server.set_info(info);
        }
    }
}

/// Serve a virtqueue; `make` builds its server once the worker knows its number. `reply`: is it served?
pub fn add(
    name: QueueName,
    export: &Arc<Export>,
    make: impl FnOnce(u32) -> Result<GuestQueue, String> + Send + 'static,
    on_fault: OnFault,
    reply: Sender<Result<(), String>>,
) -> Command {
    let export = Arc::clone(export);
    let make = move |id| -> Result<Box<dyn Queue<DiskEngine>>, String> {
        Ok(Box::new(Virtqueue { server: make(id)?, export, on_fault: Some(on_fault) }))
    };
    let added = move |added: Result<(), NotAdded>| {
        let _ = reply.send(added.map_err(|error| match error {
            NotAdded::NotMade(reason) => reason,
            NotAdded::Bell(error) => format!("its kick descriptor cannot be watched ({error}); it must be an eventfd"),
        }));
    };
    Command::Add(Add { name, make: Box::new(make), added: Box::new(added) })
}

/// Change the queue's memory, and its place there to `rings`, when nothing is in flight in the old one. The reply is an error if `rings`
/// is not within that memory: then the queue serves nothing until it is stopped.
pub fn set_memory(name: QueueName, memory: Arc<GuestMemory>, rings: RingAddresses, reply: Sender<Result<(), String>>) -> Command {
    change(name, When::Idle, move |server| {
        let _ = reply.send(server.set_memory(memory, rings.descriptor, rings.available, rings.used));
    })
}

/// Do something to a virtqueue between two visits. If it is not there, `set` is dropped.
pub fn set(name: QueueName, set: impl FnOnce(&mut GuestQueue) + Send + 'static) -> Command {
    change(name, When::Now, set)
}

fn change(name: QueueName, when: When, change: impl FnOnce(&mut GuestQueue) + Send + 'static) -> Command {
    let mut change = Some(change);
    let change = move |queue: &mut dyn Queue<DiskEngine>| {
        if let (Some(Virtqueue { server, .. }), Some(change)) = (as_mut(queue), change.take()) {
            change(server);
        }
    };
    Command::Change { which: Which::Queue(name), when, change: Box::new(change) }
}

/// Let go of a virtqueue once nothing is in flight; the reply is the index of the next available entry.
pub fn stop(name: QueueName, reply: Sender<u16>) -> Command {
    let removed = move |queue: Box<dyn Queue<DiskEngine>>| {
        if let Ok(queue) = (queue as Box<dyn Any>).downcast::<Virtqueue>() {
            let _ = reply.send(queue.server.stop());
        }
    };
    Command::Remove { which: Which::Queue(name), finish: false, removed: Box::new(removed) }
}
