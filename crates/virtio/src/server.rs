//! One virtqueue of a vhost-user-blk device, as a worker serves it. The counterpart of `fipsee_block::server::QueueServer`.

mod answer;
mod copy;
mod interrupt;
mod question;
mod rare;
mod serve;
mod standing;

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fipsee_block::request::Facts;
use fipsee_block::stats::{QueueCounters, Tally};
use fipsee_block::wire::{BlockInfo, CAPABILITY_FLUSH, CAPABILITY_WRITE, MAX_INDIRECT_ENTRIES, Status};
use fipsee_ring::memory::Span;
use virtio_bindings::virtio_blk::{VIRTIO_BLK_F_CONFIG_WCE, VIRTIO_BLK_F_FLUSH};
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

use self::interrupt::Interrupt;
pub use self::interrupt::make_spare_rings;
pub use self::question::{QuestionToken, TakenQuestion};
pub use self::standing::VirtqueueStanding;
use crate::config::has;
use crate::fault_guard;
use crate::inflight::InflightQueue;
use crate::memory::{DirtyLog, Finder, GuestMemory};
use crate::queue::chain::{Chain, MAX_TABLE_ENTRIES, Piece};
use crate::queue::{Layout, Virtqueue};

/// Bytes of a serial number, as GET_ID answers it.
pub const SERIAL_BYTES: usize = 20;

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
    /// From SET_VRING_BASE. With an inflight area that was used before, what that says counts.
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
    /// The queue's part of the inflight area.
    pub inflight: Option<InflightQueue>,
    /// Where to log the pages that are written.
    pub log: Option<Arc<DirtyLog>>,
    /// Guest-physical address under which writes to the used ring are logged (VHOST_VRING_F_LOG).
    pub used_log_address: Option<u64>,
    /// Does the owner of the server answer upgrade requests ([`VirtqueueServer::next_question`])? If not, they are unsupported.
    pub takes_questions: bool,
}

impl VirtqueueSetup {
    const fn layout(&self) -> Layout {
        Layout {
            size: self.size,
            descriptor_address: self.descriptor_address,
            available_address: self.available_address,
            used_address: self.used_address,
        }
    }

    const fn event_index(&self) -> bool {
        has(self.features, VIRTIO_RING_F_EVENT_IDX)
    }
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
    index: u16,
    queue: Virtqueue,
    layout: Layout,
    finder: Finder,
    chain: Chain,
    spans: Vec<Span>,
    facts: Facts,
    features: u64,
    read_only: bool,
    writeback: Arc<AtomicBool>,
    serial: [u8; SERIAL_BYTES],
    /// By head: taken and not answered?
    busy: Vec<bool>,
    jobs: Vec<Job>,
    in_flight: u32,
    /// Something stands in `resubmit` or `owed_flushes`.
    needs_care: bool,
    /// Chains that were in flight when we came, oldest first.
    resubmit: VecDeque<u16>,
    /// Heads of writes that are done and must be flushed; they count as in flight.
    owed_flushes: Vec<u16>,
    inflight: Option<InflightQueue>,
    /// Answered and not published; kept with an inflight area only.
    batch: Vec<u16>,
    log: Option<Arc<DirtyLog>>,
    used_log_address: Option<u64>,
    takes_questions: bool,
    taken_questions: VecDeque<TakenQuestion>,
    unanswered: u32,
    questions: u32,
    kick: OwnedFd,
    call: Option<Interrupt>,
    error: Option<OwnedFd>,
    visits: u64,
    tally: Tally,
    counters: Arc<QueueCounters>,
    /// Faults of guests' memory when we last looked at ours.
    faults_seen: u64,
    fault: Option<String>,
}

// SAFETY: the pointers lead into guest memory, which `finder` keeps mapped and any thread may access.
unsafe impl Send for VirtqueueServer {}

impl VirtqueueServer {
    /// Serve a virtqueue, whose requests the worker knows as `id`.
    ///
    /// # Errors
    /// A ring lies outside the guest's memory, or is misaligned; a descriptor is no eventfd.
    pub fn new(id: u32, mut setup: VirtqueueSetup) -> Result<Self, String> {
        let faults_seen = fault_guard::fault_count();
        if setup.memory.is_broken() {
            return Err(broken_memory());
        }
        let mut queue = Virtqueue::new(&setup.memory, &setup.layout(), setup.next_available, setup.event_index())?;
        let resubmit = match setup.inflight.as_mut() {
            Some(area) => recover(area, &mut queue)?,
            None => VecDeque::new(),
        };
        let server = Self::over(id, setup, queue, resubmit, faults_seen)?;
        server.log_words();
        Ok(server)
    }

    /// `resubmit`: chains that were taken from `queue` and not answered.
    fn over(id: u32, setup: VirtqueueSetup, queue: Virtqueue, resubmit: VecDeque<u16>, faults_seen: u64) -> Result<Self, String> {
        let layout = setup.layout();
        let size = usize::from(setup.size);
        let no_place = StatusPlace { head: 0, address: 0, place: NonNull::dangling(), used_bytes: 0, failed_bytes: 0 };
        let idle =
            || Job { place: no_place, parts: 0, status: Status::Ok, then_flush: false, written: Vec::new(), question: None };
        let mut server = Self {
            id,
            index: setup.index,
            queue,
            layout,
            finder: Finder::new(setup.memory),
            chain: Chain::with_capacity(size + MAX_TABLE_ENTRIES),
            spans: Vec::with_capacity(MAX_INDIRECT_ENTRIES + 1),
            facts: Facts::new(&setup.info),
            features: setup.features,
            read_only: setup.read_only,
            writeback: setup.writeback,
            serial: serial_bytes(&setup.serial),
            busy: vec![false; size],
            jobs: (0..size).map(|_| idle()).collect(),
            in_flight: 0,
            needs_care: !resubmit.is_empty(),
            resubmit,
            owed_flushes: Vec::new(),
            inflight: setup.inflight,
            batch: Vec::with_capacity(size),
            log: setup.log,
            used_log_address: setup.used_log_address,
            takes_questions: setup.takes_questions,
            taken_questions: VecDeque::new(),
            unanswered: 0,
            questions: 0,
            kick: setup.kick,
            call: setup.call.map(|fd| Interrupt::new("call", fd)).transpose()?,
            error: setup.error,
            visits: 0,
            tally: Tally::default(),
            counters: setup.counters,
            faults_seen,
            fault: None,
        };
        server.set_info(&setup.info);
        Ok(server)
    }

    /// Number of the queue in its device.
    #[must_use]
    pub const fn index(&self) -> u16 {
        self.index
    }

    /// Requests that the disk works on. Questions that wait for an answer are not among them.
    #[must_use]
    pub const fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Questions that wait for an answer.
    #[must_use]
    pub const fn unanswered(&self) -> u32 {
        self.unanswered
    }

    /// Why the queue is not served any more, if it is not. It stays so: a new server is made when the device was reset.
    #[must_use]
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// Is a request waiting that may be taken? One load.
    #[must_use]
    #[inline(always)]
    pub fn has_work(&self) -> bool {
        self.fault.is_none() && (self.queue.waiting() != 0 || self.needs_care)
    }

    /// Ask for kicks, then look once more: is there work after all?
    #[must_use = "sleeping while work remains loses a kick"]
    pub fn arm_and_work_remains(&mut self) -> bool {
        if self.fault.is_some() {
            return false;
        }
        self.queue.arm();
        self.log_words();
        self.has_work()
    }

    /// Does the guest kick?
    #[must_use]
    pub const fn is_armed(&self) -> bool {
        self.queue.is_armed()
    }

    /// We are awake: kicks are not needed, and none is outstanding.
    pub fn bell_rang(&mut self) {
        self.disarm();
    }

    #[inline(always)]
    fn disarm(&mut self) {
        if self.queue.is_armed() {
            self.queue.disarm();
            self.log_words();
        }
    }

    /// Where kicks arrive.
    #[must_use]
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.kick.as_fd()
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
        self.call = None;
        self.call = call.map(|fd| Interrupt::new("call", fd)).transpose()?;
        if let Some(call) = &mut self.call {
            call.raise();
        }
        Ok(())
    }

    /// Log, or stop logging, the pages that are written from now on; and those of requests in flight.
    pub fn set_log(&mut self, log: Option<Arc<DirtyLog>>, used_log_address: Option<u64>) {
        self.log = log;
        self.used_log_address = used_log_address;
        self.log_words();
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
        if self.in_flight > 0 {
            return Err(format!("{} requests are in flight: memory can be changed when they are done", self.in_flight));
        }
        self.flush();
        let layout = Layout { size: self.layout.size, descriptor_address, available_address, used_address };
        self.queue.move_to(&memory, &layout)?;
        self.layout = layout;
        self.finder = Finder::new(memory);
        self.faults_seen = fault_guard::fault_count();
        if self.finder.memory().is_broken() {
            self.break_down(broken_memory());
        }
        Ok(())
    }

    /// Look whether memory was taken from under us: for who serves something else in it. The queue stops then, as it does when it finds
    /// out by itself before it publishes anything.
    #[inline(always)]
    pub fn check_memory(&mut self) {
        if fault_guard::fault_count() != self.faults_seen && self.fault.is_none() {
            self.memory_is_gone();
        }
    }

    /// The queue is idle and goes: the index of the next available entry, for GET_VRING_BASE.
    #[must_use]
    pub fn stop(mut self) -> u16 {
        self.flush();
        let nothing_is_taken = self.unanswered == 0 && self.resubmit.is_empty() && self.in_flight == 0;
        if let Some(inflight) = self.inflight.as_mut().filter(|_| nothing_is_taken && self.fault.is_none()) {
            inflight.end();
        }
        self.queue.next_available()
    }

    /// Must a write be durable before it is answered?
    #[inline(always)]
    fn writes_through(&self) -> bool {
        if self.facts.capabilities & CAPABILITY_FLUSH == 0 {
            return false;
        }
        if has(self.features, VIRTIO_BLK_F_CONFIG_WCE) {
            !self.writeback.load(std::sync::atomic::Ordering::Relaxed)
        } else {
            // Who cannot flush relies on every write.
            !has(self.features, VIRTIO_BLK_F_FLUSH)
        }
    }

    #[inline(always)]
    const fn indirect_offered(&self) -> bool {
        has(self.features, VIRTIO_RING_F_INDIRECT_DESC)
    }
}

/// The chains that were in flight, to be served again; the ring is continued behind them.
fn recover(area: &mut InflightQueue, queue: &mut Virtqueue) -> Result<VecDeque<u16>, String> {
    let Some(heads) = area.begin(queue.size(), queue.published(), queue.available_index())? else {
        return Ok(VecDeque::new());
    };
    // At most the size of the queue, which is at most 32768.
    let count = u16::try_from(heads.len()).unwrap_or(0);
    queue.set_next_available(queue.published().wrapping_add(count));
    Ok(heads.into())
}

fn serial_bytes(serial: &str) -> [u8; SERIAL_BYTES] {
    let mut bytes = [0; SERIAL_BYTES];
    let length = serial.len().min(SERIAL_BYTES);
    bytes[..length].copy_from_slice(&serial.as_bytes()[..length]);
    bytes
}

fn broken_memory() -> String {
    "a file of guest memory was truncated; the hypervisor is at fault, restart the machine".to_owned()
}
