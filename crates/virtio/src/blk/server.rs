//! One virtqueue of a vhost-user-blk device, as a worker serves it. The counterpart of `fipsee_block::server::QueueServer`.

mod answer;
mod question;
mod rare;
mod serve;

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fipsee_block::request::Facts;
use fipsee_block::stats::{QueueCounters, Tally};
use fipsee_block::wire::{BlockInfo, CAPABILITY_FLUSH, CAPABILITY_WRITE, MAX_INDIRECT_ENTRIES, Status};
use fipsee_ring::memory::Span;
use virtio_bindings::virtio_blk::{VIRTIO_BLK_F_CONFIG_WCE, VIRTIO_BLK_F_FLUSH};

pub use self::question::{QuestionToken, TakenQuestion};
use crate::core::memory::{DirtyLog, GuestMemory};
use crate::core::queue::chain::Piece;
use crate::core::{DeviceQueue, DeviceQueueSetup, VirtqueueStanding};

/// Bytes of a serial number, as GET_ID answers it.
pub const SERIAL_BYTES: usize = 20;

/// What a virtqueue is served with.
#[derive(Debug)]
pub struct VirtqueueSetup {
    /// The queue, whatever the device.
    pub queue: DeviceQueueSetup,
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
    /// Does the owner of the server answer upgrade requests ([`VirtqueueServer::next_question`])? If not, they are unsupported.
    pub takes_questions: bool,
}

/// What belongs to a chain that was taken and is not answered.
#[derive(Debug)]
struct Job {
    place: StatusPlace,
    /// Operations that the disk has not finished.
    parts: u32,
    /// The first status that is not ok.
    status: Status,
    /// The disk cannot make writes durable by themselves: flush after this one.
    then_flush: bool,
    /// What the disk writes, to be logged; or where the reply to a question goes.
    written: Vec<Piece>,
    /// A question that waits for its answer, by its number.
    question: Option<u32>,
}

/// Where a request's status goes and what the guest is told.
#[derive(Clone, Copy, Debug)]
struct StatusPlace {
    head: u16,
    address: u64,
    place: NonNull<u8>,
    /// Bytes written from the beginning of the writable part on, if all goes well, and otherwise.
    used_bytes: u32,
    failed_bytes: u32,
}

/// One virtqueue.
#[derive(Debug)]
pub struct VirtqueueServer {
    id: u32,
    queue: DeviceQueue,
    spans: Vec<Span>,
    facts: Facts,
    read_only: bool,
    writeback: Arc<AtomicBool>,
    serial: [u8; SERIAL_BYTES],
    /// By head: what the queue holds.
    jobs: Vec<Job>,
    /// Operations that the disk works on.
    operations: u32,
    /// There is something to be taken again, or in `owed_flushes`.
    needs_care: bool,
    /// Heads of writes that are done and must be flushed.
    owed_flushes: Vec<u16>,
    takes_questions: bool,
    taken_questions: VecDeque<TakenQuestion>,
    unanswered: u32,
    questions: u32,
    visits: u64,
    tally: Tally,
    counters: Arc<QueueCounters>,
}

// SAFETY: the pointers lead into guest memory, which `queue` keeps mapped and any thread may access.
unsafe impl Send for VirtqueueServer {}

impl VirtqueueServer {
    /// Serve a virtqueue, whose requests the worker knows as `id`.
    ///
    /// # Errors
    /// A ring lies outside the guest's memory, or is misaligned; a descriptor is no eventfd.
    pub fn new(id: u32, setup: VirtqueueSetup) -> Result<Self, String> {
        Self::over(id, setup, DeviceQueue::new)
    }

    /// Go on as another server of the queue left off. Nothing is written to memory of the guest or the inflight area before the first
    /// visit, so that the other one may go on after all.
    ///
    /// # Errors
    /// As [`new`](Self::new); and a queue cannot stand there.
    pub fn resume(id: u32, setup: VirtqueueSetup, standing: &VirtqueueStanding) -> Result<Self, String> {
        Self::over(id, setup, |setup| DeviceQueue::resume(setup, standing))
    }

    fn over(
        id: u32,
        setup: VirtqueueSetup,
        serve: impl FnOnce(DeviceQueueSetup) -> Result<DeviceQueue, String>,
    ) -> Result<Self, String> {
        let size = usize::from(setup.queue.size);
        let queue = serve(setup.queue)?;
        let no_place = StatusPlace { head: 0, address: 0, place: NonNull::dangling(), used_bytes: 0, failed_bytes: 0 };
        let idle =
            || Job { place: no_place, parts: 0, status: Status::Ok, then_flush: false, written: Vec::new(), question: None };
        let mut server = Self {
            id,
            needs_care: queue.has_resubmit(),
            queue,
            spans: Vec::with_capacity(MAX_INDIRECT_ENTRIES + 1),
            facts: Facts::new(&setup.info),
            read_only: setup.read_only,
            writeback: setup.writeback,
            serial: serial_bytes(&setup.serial),
            jobs: (0..size).map(|_| idle()).collect(),
            operations: 0,
            owed_flushes: Vec::new(),
            takes_questions: setup.takes_questions,
            taken_questions: VecDeque::new(),
            unanswered: 0,
            questions: 0,
            visits: 0,
            tally: Tally::default(),
            counters: setup.counters,
        };
        server.set_info(&setup.info);
        Ok(server)
    }

    /// Where the queue stands; `None` while requests are in flight.
    #[must_use]
    pub fn standing(&self) -> Option<VirtqueueStanding> {
        if self.in_flight() > 0 { None } else { self.queue.standing() }
    }

    /// Requests that the disk works on, or that wait for a flush. Questions that wait for an answer are not among them.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        // Of a queue that is over nothing is flushed: the blocks were written and nobody was told.
        let owed = if self.queue.is_over() { 0 } else { self.owed_flushes.len() };
        self.operations + u32::try_from(owed).unwrap_or(0)
    }

    /// Questions that wait for an answer.
    #[must_use]
    pub const fn unanswered(&self) -> u32 {
        self.unanswered
    }

    /// Why the queue is not served any more, if it is not. It stays so: a new server is made when the device was reset.
    #[must_use]
    pub fn fault(&self) -> Option<&str> {
        self.queue.fault()
    }

    /// Is a request waiting that may be taken? One load.
    #[must_use]
    #[inline(always)]
    pub fn has_work(&self) -> bool {
        !self.queue.is_over() && (self.queue.ring.waiting() != 0 || self.needs_care)
    }

    /// Ask for kicks, then look once more: is there work after all?
    #[must_use = "sleeping while work remains loses a kick"]
    pub fn arm_and_work_remains(&mut self) -> bool {
        if self.queue.is_over() {
            return false;
        }
        self.queue.arm();
        self.has_work()
    }

    /// Does the guest kick?
    #[must_use]
    pub const fn is_armed(&self) -> bool {
        self.queue.ring.is_armed()
    }

    /// We are awake: kicks are not needed, and none is outstanding.
    pub fn bell_rang(&mut self) {
        self.queue.disarm();
    }

    /// Where kicks arrive.
    #[must_use]
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.queue.bell()
    }

    /// The disk's size changed: requests are checked against the new one.
    pub fn set_info(&mut self, info: &BlockInfo) {
        self.facts = Facts::new(info);
        if self.read_only {
            self.facts.capabilities &= !CAPABILITY_WRITE;
        }
    }

    /// Interrupt the guest elsewhere from now on (SET_VRING_CALL while running). It is interrupted once, since an interrupt may
    /// have gone to the old place.
    ///
    /// # Errors
    /// The descriptor is no eventfd; the guest is not interrupted any more.
    pub fn set_call(&mut self, call: Option<OwnedFd>) -> Result<(), String> {
        self.queue.set_call(call)
    }

    /// Log, or stop logging, the pages that are written from now on; and those of requests in flight.
    pub fn set_log(&mut self, log: Option<Arc<DirtyLog>>, used_log_address: Option<u64>) {
        self.queue.set_log(log, used_log_address);
    }

    /// Go on in other memory, where the rings lie at these addresses. Nothing may be in flight; questions go on waiting.
    ///
    /// # Errors
    /// A ring does not lie in it, or requests are in flight. The queue is as it was, in the old memory.
    pub fn set_memory(
        &mut self,
        memory: Arc<GuestMemory>,
        descriptor_address: u64,
        available_address: u64,
        used_address: u64,
    ) -> Result<(), String> {
        match self.in_flight() {
            0 => self.flush(),
            count => return Err(format!("{count} requests are in flight: memory can be changed when they are done")),
        }
        self.queue.set_memory(memory, descriptor_address, available_address, used_address)
    }

    /// Look whether guest memory was truncated: for a caller that serves something else in it. The queue stops then, as it does when it finds
    /// out by itself before it publishes anything.
    #[inline(always)]
    pub fn check_memory(&mut self) {
        self.queue.check_memory();
    }

    /// The queue is idle and goes: the index of the next available entry, for GET_VRING_BASE.
    #[must_use]
    pub fn stop(mut self) -> u16 {
        self.flush();
        let is_idle = self.unanswered == 0 && self.in_flight() == 0;
        self.queue.stop(is_idle)
    }

    /// Must a write be durable before it is answered?
    #[inline(always)]
    fn writes_through(&self) -> bool {
        if self.facts.capabilities & CAPABILITY_FLUSH == 0 {
            return false;
        }
        if self.queue.has(VIRTIO_BLK_F_CONFIG_WCE) {
            !self.writeback.load(Ordering::Relaxed)
        } else {
            // Who cannot flush relies on every write.
            !self.queue.has(VIRTIO_BLK_F_FLUSH)
        }
    }
}

fn serial_bytes(serial: &str) -> [u8; SERIAL_BYTES] {
    let mut bytes = [0; SERIAL_BYTES];
    let length = serial.len().min(SERIAL_BYTES);
    bytes[..length].copy_from_slice(&serial.as_bytes()[..length]);
    bytes
}
