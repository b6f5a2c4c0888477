//! What a worker serves: the queue of a channel, or the virtqueue of a virtual machine.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use fipsee_block::disk::{AnyDisk, Engine, Ticket};
use fipsee_block::server::QueueServer;
use fipsee_block::wire::{BlockInfo, Status};
use fipsee_ring::mailbox::Mailbox;
use fipsee_virtio::memory::GuestMemory;
use fipsee_virtio::upgrade::GuestQueue;

use crate::front::vhost_user::Notice;

/// One of them. Matched once per visit.
#[expect(clippy::large_enum_variant, reason = "queues are few and live in their slots: a box would cost each visit a load")]
pub(super) enum Service {
    /// The daemon's end of a channel.
    Ring(QueueServer),
    /// A queue of a vhost-user device.
    Virtqueue(Virtqueue),
}

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

/// What a virtqueue does once nothing is in flight.
pub(super) enum Pending {
    /// Go on in other memory.
    Memory { memory: Arc<GuestMemory>, rings: RingAddresses, reply: Sender<Result<(), String>> },
    /// Go; the reply is the index of the next available entry.
    Stop { reply: Sender<u16> },
}

/// A virtqueue and what the worker needs to know of it.
pub(super) struct Virtqueue {
    pub(super) server: GuestQueue,
    /// Its number in the device.
    pub(super) index: u16,
    /// Who hears of faults.
    device: Arc<Mailbox<Notice>>,
    pub(super) pending: Option<Pending>,
    told: bool,
}

impl Virtqueue {
    pub(super) const fn new(server: GuestQueue, index: u16, device: Arc<Mailbox<Notice>>) -> Self {
        Self { server, index, device, pending: None, told: false }
    }

    /// May requests be taken?
    #[inline(always)]
    pub(super) const fn takes_requests(&self) -> bool {
        self.pending.is_none()
    }

    /// Have the device's thread log why the queue stopped, once.
    #[inline(always)]
    pub(super) fn report_fault(&mut self) {
        if !self.told && self.server.fault().is_some() {
            self.tell();
        }
    }

    #[cold]
    fn tell(&mut self) {
        self.told = true;
        if let Some(reason) = self.server.fault() {
            self.device.send(Notice::Fault { queue: self.index, reason: reason.to_owned() });
        }
    }
}

impl Service {
    pub(super) fn in_flight(&self) -> u32 {
        match self {
            Self::Ring(server) => server.in_flight(),
            Self::Virtqueue(queue) => queue.server.in_flight(),
        }
    }

    /// Requests a correct client has outstanding at most, as far as the end of a channel waits for them.
    pub(super) fn depth(&self) -> u32 {
        match self {
            Self::Ring(server) => server.depth(),
            Self::Virtqueue(_) => 0,
        }
    }

    pub(super) fn has_work(&self) -> bool {
        match self {
            Self::Ring(server) => server.has_work(),
            Self::Virtqueue(queue) => queue.takes_requests() && queue.server.has_work(),
        }
    }

    pub(super) fn finish(&mut self, ticket: Ticket, status: Status) {
        match self {
            Self::Ring(server) => server.finish(ticket, status),
            Self::Virtqueue(queue) => queue.server.finish(ticket, status),
        }
    }

    /// Have the disk begin what it owes to requests in flight. Was there anything?
    pub(super) fn pay_flushes(&mut self, disk: &AnyDisk, engine: &mut Engine) -> bool {
        match self {
            Self::Ring(_) => false,
            Self::Virtqueue(queue) => queue.server.pay_flushes(disk, engine),
        }
    }

    pub(super) fn flush(&mut self) {
        match self {
            Self::Ring(server) => server.flush(),
            Self::Virtqueue(queue) => queue.server.flush(),
        }
    }

    /// Ask for the doorbell unless that is done, then look once more: is there work after all?
    pub(super) fn arm_and_work_remains(&mut self) -> bool {
        match self {
            Self::Ring(server) => !server.is_armed() && server.arm_and_work_remains(),
            Self::Virtqueue(queue) => queue.takes_requests() && !queue.server.is_armed() && queue.server.arm_and_work_remains(),
        }
    }

    pub(super) fn bell_rang(&mut self) {
        match self {
            Self::Ring(server) => server.bell_rang(),
            Self::Virtqueue(queue) => queue.server.bell_rang(),
        }
    }

    /// Where the doorbell is heard.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        match self {
            Self::Ring(server) => server.queue().our_bell.as_fd(),
            Self::Virtqueue(queue) => queue.server.bell(),
        }
    }

    pub(super) fn announce_resize(&mut self, info: &BlockInfo) {
        match self {
            Self::Ring(server) => server.announce_resize(info),
            Self::Virtqueue(queue) => queue.server.set_info(info),
        }
    }
}
