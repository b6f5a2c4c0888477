//! The queues of a machine at their workers: of a disk or of a port.

use std::any::Any;
use std::sync::Arc;
use std::sync::mpsc::channel;

use fipsee_serve::{Assignment, NotAdded, Queue, QueueName};
use fipsee_virtio::blk::server::GuestDiskQueue;
use fipsee_virtio::core::{DeviceQueueSetup, ServedVirtqueue};
use fipsee_virtio::net::Role;
use fipsee_virtio::net::server::PortQueue;

use super::Notice;
use super::connection::{FrontendConnection, Order, not_served};
use super::socket::SharedSocket;
use super::target::Target;
use crate::live::FixedQueues;
use crate::worker::{Command, DiskEngine};

/// What can be changed of any queue of a machine.
pub(super) fn served(queue: &mut dyn Queue<DiskEngine>) -> Option<&mut dyn ServedVirtqueue> {
    let queue: &mut dyn Any = queue;
    if queue.is::<PortQueue>() {
        return queue.downcast_mut::<PortQueue>().map(|queue| queue as &mut dyn ServedVirtqueue);
    }
    queue.downcast_mut().map(|GuestDiskQueue { queue, .. }| queue as &mut dyn ServedVirtqueue)
}

/// A queue of a machine was removed: the next entry of its available ring.
pub(super) fn stop(queue: Box<dyn Queue<DiskEngine>>) -> Option<u16> {
    let queue: Box<dyn Any> = queue;
    match queue.downcast::<PortQueue>() {
        Ok(queue) => Some(queue.stop()),
        Err(queue) => queue.downcast::<GuestDiskQueue>().ok().map(|queue| queue.queue.stop()),
    }
}

impl FrontendConnection {
    /// Choose a worker for a queue of a port, and have it made there: where the others of its network are.
    pub(super) fn order_port(&self, index: u16, (role, pairs): (Role, u16), setup: DeviceQueueSetup) -> Result<Order, String> {
        let SharedSocket { workers, target, notices, live, .. } = &*self.shared;
        let Target::Port(name, port) = target else { return Err("it is a queue of a disk".to_owned()) };
        let own = self.assigned().iter().flatten().next().map(|first| first.worker);
        let assignment = own.map(|worker| Assignment::to(worker, &workers[worker]));
        let assignment = assignment.or_else(|| port.assign(workers, 1).pop()).ok_or("there is no worker")?;
        let (worker, (reply, served)) = (assignment.worker, channel());
        let added = move |added: Result<(), NotAdded<DiskEngine>>| {
            let _ = reply.send(added.map_err(not_served));
        };
        let (notices, port, share) = (Arc::clone(notices), port.clone(), self.share.with(port.limiter()));
        let broke = Box::new(move |reason: &str| notices.send(Notice::Fault { queue: index, reason: reason.to_owned() }));
        let make = move |_| PortQueue::new(port, role, pairs, setup, broke);
        let command = Command::add(QueueName { client: self.client, index }, share, make, added);
        self.assign(index, Some(assignment));
        let queues = self.assigned().iter().flatten().count();
        let share = Some(self.share.clone());
        live.set_fixed(self.client, Some(FixedQueues { port: name.clone(), worker, queues, share }));
        Ok((worker, command, served))
    }
}
