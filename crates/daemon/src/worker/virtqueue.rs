//! Commands for the virtqueues of a virtual machine.

use std::any::Any;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use fipsee_block::disk::Engine;
use fipsee_serve::{NotAdded, Queue, QueueName, When, Which};
use fipsee_virtio::blk::server::{GuestDiskQueue, VirtqueueServer};

use super::Command;
use crate::export::Export;

/// Serve a virtqueue; `make` builds it once the worker knows its number. `reply`: is it served?
pub fn add(
    name: QueueName,
    export: &Export,
    make: impl FnOnce(u32) -> Result<VirtqueueServer, String> + Send + 'static,
    reply: Sender<Result<(), String>>,
) -> Command {
    let disk = Arc::clone(export.disk());
    let added = move |added: Result<(), NotAdded>| {
        let _ = reply.send(added.map_err(|error| match error {
            NotAdded::NotMade(reason) => reason,
            NotAdded::Bell(error) => format!("its kick descriptor cannot be watched ({error}); it must be an eventfd"),
        }));
    };
    Command::add(name, move |id| Ok(GuestDiskQueue::new(make(id)?, disk)), added)
}

/// Change a virtqueue between two visits; `reply`: what `change` returns. If it is not there, `reply` is dropped.
pub fn change<T: Send + 'static>(
    name: QueueName,
    when: When,
    change: impl FnOnce(&mut VirtqueueServer) -> T + Send + 'static,
    reply: Sender<T>,
) -> Command {
    let mut change = Some(change);
    Command::change(Which::Queue(name), when, move |GuestDiskQueue { queue, .. }| {
        if let Some(change) = change.take() {
            let _ = reply.send(change(queue));
        }
    })
}

/// Let go of a virtqueue once nothing is in flight; the reply is the index of the next available entry.
pub fn stop(name: QueueName, reply: Sender<u16>) -> Command {
    let removed = move |queue: Box<dyn Queue<Engine>>| {
        if let Ok(queue) = (queue as Box<dyn Any>).downcast::<GuestDiskQueue>() {
            let _ = reply.send(queue.queue.stop());
        }
    };
    Command::Remove { which: Which::Queue(name), finish: false, removed: Box::new(removed) }
}
