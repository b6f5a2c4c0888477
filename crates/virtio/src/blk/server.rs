//! One virtqueue of a vhost-user-blk device, and the ring beside it while its guest is attached, as a worker serves them: by one
//! thread, woken by one eventfd (docs/decisions/0014-in-band-upgrade.md). The counterpart of `fipsee_block::server::QueueServer`.

mod notify;
mod rare;
mod ring;
mod serve;

use std::any::Any;
use std::fmt::Debug;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fipsee_block::disk::{AnyDisk, Disk, Engine, Ticket};
use fipsee_block::request::RequestLimits;
use fipsee_block::server::QueueState;
use fipsee_block::stats::{QueueCounters, Tally};
use fipsee_block::wire::{BlockInfo, CAPABILITY_FLUSH, MAX_INDIRECT_ENTRIES, Status};
use fipsee_ring::memory::Span;
use fipsee_ring::notify::SharedPolicy;
use fipsee_serve::{Queue, Taken, Turn};
use virtio_bindings::virtio_blk::{VIRTIO_BLK_F_CONFIG_WCE, VIRTIO_BLK_F_FLUSH};

use self::notify::Moderated;
use self::ring::Ring;
pub use self::ring::UpgradeToken;
use super::upgrade::rings::GuestView;
use super::upgrade::wire::UpgradeRequest;
use super::upgrade::{self, controller::Grant};
use crate::core::memory::{DirtyLog, GuestMemory};
use crate::core::queue::chain::Piece;
use crate::core::{DeviceQueue, DeviceQueueSetup, RingAddresses, ServedVirtqueue, VirtqueueState};

/// Bytes of a serial number, as GET_ID answers it.
pub const SERIAL_BYTES: usize = 20;

#[derive(Debug)]
pub struct VirtqueueSetup {
    /// The part of the queue common to all devices.
    pub queue: DeviceQueueSetup,
    pub info: BlockInfo,
    pub read_only: bool,
    /// The device's cache mode (CONFIG_WCE): false, every write is durable before it is completed.
    pub writeback: Arc<AtomicBool>,
    /// The serial number that GET_ID answers, at most 20 bytes.
    pub serial: String,
    pub counters: Arc<QueueCounters>,
}

/// Handles the upgrade requests that concern a device as a whole.
pub trait Device: Debug + Send {
    /// Reply later, by [`VirtqueueServer::answer_upgrade_request`] of the same queue.
    fn asked(&mut self, token: UpgradeToken, upgrade_request: UpgradeRequest);

    /// The queue is no longer served, for this reason. Called once.
    fn broke(&mut self, reason: &str);
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceQueueState {
    /// The virtqueue. A pending doorbell request is among the chains taken and not answered.
    pub virtqueue: VirtqueueState,
    /// The ring beside it, if the guest is attached.
    pub ring: Option<GuestRingState>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestRingState {
    /// Its number in the attachment.
    pub queue: u16,
    /// Rung while no doorbell request was pending.
    pub kept: bool,
    pub state: QueueState,
}

#[derive(Debug)]
struct Job {
    place: StatusAddress,
    /// Operations that the disk has not finished.
    parts: u32,
    /// The first status that is not ok.
    status: Status,
    /// The disk has no FUA: flush after this write.
    then_flush: bool,
    /// Memory that the disk writes, to be logged; or memory for the reply to an upgrade request.
    written: Vec<Piece>,
    /// A pending upgrade request, by its number.
    upgrade_request: Option<u32>,
}

/// Address of a request's status byte, and the used length reported to the guest.
#[derive(Clone, Copy, Debug)]
struct StatusAddress {
    head: u16,
    address: u64,
    place: NonNull<u8>,
    /// Bytes written from the start of the writable part, on success and on failure.
    used_bytes: u32,
    failed_bytes: u32,
}

/// One virtqueue and, while its guest is attached, a ring.
#[derive(Debug)]
pub struct VirtqueueServer {
    id: u32,
    pub queue: DeviceQueue,
    ring: Option<Ring>,
    /// None: upgrade requests are unsupported.
    device: Option<Box<dyn Device>>,
    spans: Vec<Span>,
    info: BlockInfo,
    limits: RequestLimits,
    read_only: bool,
    writeback: Arc<AtomicBool>,
    serial: [u8; SERIAL_BYTES],
    /// By head: the chains that the queue holds.
    jobs: Vec<Job>,
    /// Operations that the disk works on.
    operations: u32,
    /// There is something to be taken again, or in `deferred_flushes`.
    needs_care: bool,
    /// Heads of writes that are done and need a flush.
    deferred_flushes: Vec<u16>,
    unanswered: u32,
    upgrade_requests: u32,
    visits: u64,
    ring_visits: u32,
    tally: Tally,
    counters: Arc<QueueCounters>,
    /// Interrupts that a policy may hold back. None: each is raised at once.
    moderated: Option<Box<Moderated>>,
}

// SAFETY: the pointers lead into guest memory, which `queue` keeps mapped and any thread may access.
unsafe impl Send for VirtqueueServer {}

impl VirtqueueServer {
    /// Serve a virtqueue, whose requests the worker knows as `id`. Upgrade requests that concern the whole device go to `device`.
    ///
    /// # Errors
    /// A ring is outside the guest's memory, or is misaligned; a descriptor is not an eventfd.
    pub fn new(id: u32, setup: VirtqueueSetup, device: Option<Box<dyn Device>>) -> Result<Self, String> {
        Self::over(id, setup, device, DeviceQueue::new)
    }

    /// Continue where another server left off. Nothing is written to memory of the guest or the inflight area before the first
    /// visit, so that the other server may still continue. `grant`: the ring, if there is one.
    ///
    /// # Errors
    /// As [`new`](Self::new); and the state of the queue or ring is impossible, or the ring is missing.
    pub fn resume(
        id: u32,
        setup: VirtqueueSetup,
        device: Option<Box<dyn Device>>,
        state: &DeviceQueueState,
        grant: Option<Grant>,
    ) -> Result<Self, String> {
        let log = setup.queue.log.clone();
        let mut server = Self::over(id, setup, device, |setup| DeviceQueue::resume(setup, &state.virtqueue))?;
        let (ring, grant) = match (&state.ring, grant) {
            (None, None) => return Ok(server),
            (Some(ring), Some(grant)) if ring.queue == grant.queue => (ring, grant),
            _ => return Err("its ring is not the one that it has".to_owned()),
        };
        let QueueState { request, completion, .. } = ring.state;
        if request.index() >= grant.entry.request_slots || completion.index() >= grant.entry.completion_slots {
            return Err("the positions of its ring are outside the ring".to_owned());
        }
        server.attach_at(grant, (request, completion));
        if let Some(resumed) = &mut server.ring {
            resumed.server.restore(&ring.state);
            (resumed.kept, resumed.log) = (ring.kept, log);
        }
        Ok(server)
    }

    fn over(
        id: u32,
        setup: VirtqueueSetup,
        device: Option<Box<dyn Device>>,
        serve: impl FnOnce(DeviceQueueSetup) -> Result<DeviceQueue, String>,
    ) -> Result<Self, String> {
        let size = usize::from(setup.queue.size);
        let queue = serve(setup.queue)?;
        let no_place = StatusAddress { head: 0, address: 0, place: NonNull::dangling(), used_bytes: 0, failed_bytes: 0 };
        let idle = || Job {
            place: no_place,
            parts: 0,
            status: Status::Ok,
            then_flush: false,
            written: Vec::new(),
            upgrade_request: None,
        };
        Ok(Self {
            id,
            needs_care: queue.has_resubmit(),
            queue,
            ring: None,
            device,
            spans: Vec::with_capacity(MAX_INDIRECT_ENTRIES + 1),
            info: setup.info,
            limits: RequestLimits::new(&setup.info, setup.read_only),
            read_only: setup.read_only,
            writeback: setup.writeback,
            serial: std::array::from_fn(|index| setup.serial.as_bytes().get(index).copied().unwrap_or(0)),
            jobs: (0..size).map(|_| idle()).collect(),
            operations: 0,
            deferred_flushes: Vec::new(),
            unanswered: 0,
            upgrade_requests: 0,
            visits: 0,
            ring_visits: 0,
            tally: Tally::default(),
            counters: setup.counters,
            moderated: None,
        })
    }

    /// Its state; `None` while requests are in flight, or the device is about to end the attachment.
    pub fn state(&self) -> Option<DeviceQueueState> {
        if self.in_flight() > 0 {
            return None;
        }
        let ring = match &self.ring {
            Some(ring) => Some(ring.state()?),
            None => None,
        };
        Some(DeviceQueueState { virtqueue: self.queue.state()?, ring })
    }

    /// Requests that the disk works on, or that wait for a flush. Pending upgrade requests are not counted.
    pub fn in_flight(&self) -> u32 {
        // A queue that is over flushes nothing: the blocks were written, and no completion was sent.
        let deferred = if self.queue.is_over() { 0 } else { self.deferred_flushes.len() };
        let on_ring = self.ring.as_ref().map_or(0, |ring| ring.server.in_flight());
        self.operations + u32::try_from(deferred).unwrap_or(0) + on_ring
    }

    /// Pending upgrade requests.
    pub const fn unanswered(&self) -> u32 {
        self.unanswered
    }

    #[inline(always)]
    pub fn has_work(&self) -> bool {
        let on_ring = || self.ring.as_ref().is_some_and(|ring| !ring.ending && ring.server.has_work());
        !self.queue.is_over() && (self.queue.ring.waiting() != 0 || self.needs_care || on_ring())
    }

    /// Ask for kicks, then look once more: is there work after all?
    #[must_use = "sleeping while work remains loses a kick"]
    pub fn arm_and_work_remains(&mut self) -> bool {
        // A queue that is no longer served needs no kicks.
        if self.queue.is_over() {
            return false;
        }
        let on_ring = self.ring.as_mut().filter(|ring| !ring.ending).is_some_and(|ring| {
            let remains = ring.server.arm_and_work_remains();
            ring.mark();
            remains
        });
        self.queue.arm();
        on_ring || self.has_work()
    }

    /// Does the guest kick?
    pub fn is_armed(&self) -> bool {
        let ring = self.ring.as_ref().filter(|ring| !ring.ending);
        self.queue.ring.is_armed && ring.is_none_or(|ring| ring.server.queue.requests.is_armed())
    }

    /// The worker is awake: kicks are not needed, and none is outstanding.
    pub fn doorbell_rang(&mut self) {
        if let Some(ring) = &mut self.ring {
            ring.server.queue.requests.disarm();
            ring.mark();
        }
        self.queue.disarm();
    }

    /// The disk's size changed: requests are checked against the new one, and an attached guest is sent an event.
    pub fn set_info(&mut self, info: &BlockInfo) {
        let is_resized = std::mem::replace(&mut self.info, *info).sector_count != info.sector_count;
        self.limits = RequestLimits::new(info, self.read_only);
        if let Some(ring) = self.ring.as_mut().filter(|_| is_resized) {
            ring.server.announce_resize(info);
            self.ring_was_served();
        }
    }

    /// Log, or stop logging, the pages that are written from now on; and those of requests in flight. The ring must have been
    /// [left](Self::leave).
    pub fn set_log(&mut self, log: Option<Arc<DirtyLog>>, used_log_address: Option<u64>) {
        if let Some(ring) = &mut self.ring {
            ring.log.clone_from(&log);
            ring.mark();
        }
        self.queue.set_log(log, used_log_address);
    }

    /// Continue in other memory, with the rings at these addresses. Nothing may be in flight; upgrade requests stay pending. A
    /// ring that is missing there ends: the device handled it before.
    ///
    /// # Errors
    /// The virtqueue is not in it, or requests are in flight. The server is unchanged, in the old memory.
    pub fn set_memory(&mut self, memory: Arc<GuestMemory>, rings: RingAddresses) -> Result<(), String> {
        match self.in_flight() {
            0 => self.publish(),
            count => return Err(format!("{count} requests are in flight: memory can be changed when they are done")),
        }
        if let Some(ring) = &mut self.ring {
            match upgrade::rings::open(&memory, &ring.entry) {
                Some((requests, completions)) => ring.server.move_to(requests, completions, GuestView::new(&memory)),
                None => self.ring = None,
            }
        }
        self.queue.set_memory(memory, rings)
    }

    /// Another worker serves it from now on, which knows its requests as `id`. Nothing is in flight. It has missed changes of the disk
    /// announced meanwhile.
    pub fn moved(&mut self, id: u32, info: &BlockInfo) {
        self.id = id;
        self.set_info(info);
        self.ring.iter_mut().for_each(|ring| ring.server.moved(id | Ticket::PART, info));
    }

    /// The queue is idle and is removed, with its ring: returns the index of the next available entry, for GET_VRING_BASE.
    #[must_use]
    pub fn stop(mut self) -> u16 {
        self.publish();
        self.interrupt_for_what_is_held();
        let is_idle = self.unanswered == 0 && self.in_flight() == 0;
        self.queue.stop(is_idle)
    }

    /// Must a write be durable before it is answered?
    #[inline(always)]
    fn writes_through(&self) -> bool {
        if self.limits.capabilities & CAPABILITY_FLUSH == 0 {
            return false;
        }
        if self.queue.has(VIRTIO_BLK_F_CONFIG_WCE) {
            !self.writeback.load(Ordering::Relaxed)
        } else {
            // A driver that cannot flush relies on every write.
            !self.queue.has(VIRTIO_BLK_F_FLUSH)
        }
    }
}

impl ServedVirtqueue for VirtqueueServer {
    fn set_call(&mut self, call: Option<OwnedFd>) -> Result<(), String> {
        self.queue.set_call(call)
    }

    fn set_log(&mut self, log: Option<Arc<DirtyLog>>, used_log_address: Option<u64>) {
        Self::set_log(self, log, used_log_address);
    }

    fn set_memory(&mut self, memory: Arc<GuestMemory>, rings: RingAddresses) -> Result<(), String> {
        Self::set_memory(self, memory, rings)
    }
}

#[derive(Debug)]
pub struct GuestDiskQueue {
    pub queue: VirtqueueServer,
    disk: Arc<AnyDisk>,
    policy: Arc<SharedPolicy>,
    fault_is_reported: bool,
}

impl GuestDiskQueue {
    /// Serve `disk`.
    pub fn new(queue: VirtqueueServer, disk: Arc<AnyDisk>) -> Self {
        Self { queue, disk, policy: Arc::default(), fault_is_reported: false }
    }

    /// Interrupt the guest as `policy` says, from now on and after each change.
    #[must_use]
    pub fn notifying_by(mut self, policy: Arc<SharedPolicy>) -> Self {
        self.policy = policy;
        self.policy_changed();
        self
    }

    pub fn policy_changed(&mut self) {
        self.queue.set_policy(self.policy.get());
    }

    /// The size of `disk` changed; it may be a disk of another queue.
    pub fn announce_resize(&mut self, disk: &Arc<AnyDisk>, info: &BlockInfo) {
        if Arc::ptr_eq(&self.disk, disk) {
            self.queue.set_info(info);
        }
    }
}

impl Queue<Engine> for GuestDiskQueue {
    fn visit(&mut self, engine: &mut Engine, turn: Turn) -> Taken {
        if let Some(ring) = &mut self.queue.ring {
            ring.server.hold(turn.alone);
        }
        let taken = match &*self.disk {
            AnyDisk::Null(disk) => self.queue.visit(disk, engine, turn),
            AnyDisk::Memory(disk) => self.queue.visit(disk, engine, turn),
            AnyDisk::File(disk) => self.queue.visit(disk, engine, turn),
            other => self.queue.visit(other, engine, turn),
        };
        if let Some(reason) = self.queue.queue.fault()
            && !self.fault_is_reported
        {
            self.fault_is_reported = true;
            self.queue.device.iter_mut().for_each(|device| device.broke(reason));
        }
        taken
    }

    fn in_flight(&self) -> u32 {
        self.queue.in_flight()
    }

    fn is_asynchronous(&self) -> bool {
        !self.disk.answers_at_once()
    }

    fn has_work(&self) -> bool {
        self.queue.has_work()
    }

    /// A visit reports a fault.
    fn is_quiet(&self) -> bool {
        !self.queue.has_work() && (self.fault_is_reported || self.queue.queue.fault().is_none())
    }

    fn finish(&mut self, ticket: Ticket, status: Status) {
        self.queue.finish(ticket, status);
    }

    fn flush(&mut self) {
        self.queue.flush();
    }

    fn due(&self) -> Option<u64> {
        self.queue.due()
    }

    fn may_hold_back(&self) -> bool {
        self.queue.policy().is_some()
    }

    fn arm_and_work_remains(&mut self) -> bool {
        !self.queue.is_armed() && self.queue.arm_and_work_remains()
    }

    fn count_doorbell(&mut self) {
        self.queue.counters.spurious.add((!self.queue.has_work()).into());
    }

    fn doorbell_rang(&mut self) {
        self.queue.doorbell_rang();
    }

    fn disarm(&mut self) {
        self.queue.doorbell_rang();
    }

    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.queue.queue.doorbell())
    }

    fn begin_deferred(&mut self, engine: &mut Engine) -> bool {
        self.queue.begin_deferred(&*self.disk, engine)
    }

    fn moved(&mut self, id: u32) {
        self.queue.moved(id, &self.disk.info());
        self.policy_changed();
    }

    fn saved_state(&mut self, own: bool) -> Option<Box<dyn Any + Send>> {
        if own {
            self.flush();
            self.queue.interrupt_for_what_is_held();
        }
        Some(Box::new(self.queue.state()?))
    }
}
