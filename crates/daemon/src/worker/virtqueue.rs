//! Commands for the virtqueues of a virtual machine.

use std::any::Any;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use fipsee_block::disk::Engine;
use fipsee_serve::{NotAdded, Queue, QueueName, When, Which};
use fipsee_virtio::blk::upgrade::{GuestDiskQueue, GuestQueue};
use fipsee_virtio::core::memory::GuestMemory;

use super::Command;
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

/// Serve a virtqueue; `make` builds it once the worker knows its number. `reply`: is it served?
pub fn add(
    name: QueueName,
    export: &Export,
    make: impl FnOnce(u32) -> Result<GuestQueue, String> + Send + 'static,
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

/// Change the queue's memory, and its place there to `rings`, when nothing is in flight in the old one. The reply is an error if `rings`
/// is not within that memory: then the queue serves nothing until it is stopped.
pub fn set_memory(name: QueueName, memory: Arc<GuestMemory>, rings: RingAddresses, reply: Sender<Result<(), String>>) -> Command {
    Command::change(Which::Queue(name), When::Idle, move |GuestDiskQueue { queue, .. }| {
        let _ = reply.send(queue.set_memory(Arc::clone(&memory), rings.descriptor, rings.available, rings.used));
    })
}

/// Do something to a virtqueue between two visits. If it is not there, `set` is dropped.
pub fn set(name: QueueName, set: impl FnOnce(&mut GuestQueue) + Send + 'static) -> Command {
    let mut set = Some(set);
    Command::change(Which::Queue(name), When::Now, move |GuestDiskQueue { queue, .. }| {
        set.take().into_iter().for_each(|set| set(queue))
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
