//! One virtqueue of a vhost-user-blk device, as a worker serves it. The counterpart of `fipsee_block::server::QueueServer`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fipsee_block::disk::{Disk, Engine, Ticket};
use fipsee_block::stats::QueueCounters;
use fipsee_block::wire::{BlockInfo, Status};

use crate::memory::GuestMemory;

/// What a virtqueue is served with.
#[derive(Debug)]
pub struct VirtqueueSetup {
    /// The guest's memory.
    pub memory: Arc<GuestMemory>,
    /// Number of the queue in its device.
    pub index: u16,
    /// Descriptors in the table, a power of two, at most 32768.
    pub size: u16,
    /// Guest-physical address of the descriptor table.
    pub descriptor_address: u64,
    /// Guest-physical address of the available ring.
    pub available_address: u64,
    /// Guest-physical address of the used ring.
    pub used_address: u64,
    /// From SET_VRING_BASE.
    pub next_available: u16,
    /// Virtio features in force (`VIRTIO_BLK_F_*`, `VIRTIO_RING_F_*`).
    pub features: u64,
    /// Wakes us; the hypervisor's eventfd.
    pub kick: OwnedFd,
    /// Interrupts the guest; none: the driver polls.
    pub call: Option<OwnedFd>,
    /// Reports that the queue broke.
    pub error: Option<OwnedFd>,
    /// The disk's description.
    pub info: BlockInfo,
    /// Refuse writes?
    pub read_only: bool,
    /// The device's cache mode (CONFIG_WCE): false, every write is durable before it is answered.
    pub writeback: Arc<AtomicBool>,
    /// The serial number that GET_ID answers, at most 20 bytes.
    pub serial: String,
    /// Where the queue counts what it does.
    pub counters: Arc<QueueCounters>,
}

/// One virtqueue.
#[derive(Debug)]
pub struct VirtqueueServer {
    setup: VirtqueueSetup,
    in_flight: u32,
}

impl VirtqueueServer {
    /// Serve a virtqueue, whose requests the worker knows as `id`.
    ///
    /// # Errors
    /// A ring lies outside the guest's memory, or is misaligned.
    pub fn new(_id: u32, setup: VirtqueueSetup) -> Result<Self, String> {
        Ok(Self { setup, in_flight: 0 })
    }

    /// Take up to a budget of requests; answer what `disk` finishes at once. How many were taken.
    #[inline(always)]
    pub fn visit<D: Disk>(&mut self, _disk: &D, _engine: &mut Engine) -> u32 {
        0
    }

    /// A request that was pending is finished. [`flush`](Self::flush) publishes it.
    pub fn finish(&mut self, _ticket: Ticket, _status: Status) {}

    /// Publish what is finished, and interrupt the guest if it wants that.
    pub fn flush(&mut self) {}

    /// Requests begun and not finished.
    #[must_use]
    pub const fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Is a request waiting that may be taken?
    #[must_use]
    pub fn has_work(&self) -> bool {
        false
    }

    /// Ask for kicks, then look once more: is there work after all?
    #[must_use = "sleeping while work remains loses a kick"]
    pub fn arm_and_work_remains(&mut self) -> bool {
        false
    }

    /// Does the guest kick?
    #[must_use]
    pub const fn is_armed(&self) -> bool {
        false
    }

    /// We are awake: kicks are not needed, and none is outstanding.
    pub fn bell_rang(&mut self) {}

    /// Where kicks arrive.
    #[must_use]
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.setup.kick.as_fd()
    }

    /// The disk's size changed: requests are checked against the new one.
    pub fn set_info(&mut self, info: &BlockInfo) {
        self.setup.info = *info;
    }

    /// Interrupt the guest elsewhere from now on (SET_VRING_CALL while running).
    pub fn set_call(&mut self, call: Option<OwnedFd>) {
        self.setup.call = call;
    }

    /// The queue is idle and goes: the index of the next available entry, for GET_VRING_BASE.
    #[must_use]
    pub fn stop(self) -> u16 {
        self.setup.next_available
    }
}
