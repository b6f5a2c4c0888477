//! The daemon's end of one block queue: visits and completions.

mod events;
mod notify;
mod packed;

use std::any::Any;
use std::mem::offset_of;
use std::sync::Arc;

pub use self::events::{EventState, QueueState};
use self::notify::Moderated;
use self::packed::Left;
use fipsee_ring::channel::ServerQueue;
use fipsee_ring::doorbell::{ClientDoorbell, EventDoorbell, SocketDoorbell};
use fipsee_ring::mapped::MappedRing;
use fipsee_ring::memory::{Memory, RegionTable, Span};
use fipsee_ring::notify::SharedPolicy;
use fipsee_ring::pace::{MAX_BUDGET, Visits};
use fipsee_ring::{Message, clock};
use fipsee_serve::{Queue, Taken, Turn, probe};

use crate::disk::{AnyDisk, Disk, Engine, Submitted, Ticket};
use crate::packed::is_packed;
use crate::request::{Request, RequestLimits, parse, tag_of};
use crate::stats::{QueueCounters, Tally};
use crate::wire::{
    BlockInfo, CompletionEntry, CompletionHead, KIND_COMPLETIONS, MAX_INDIRECT_ENTRIES, MAX_PACKED, Operation, RawCompletion,
    Status,
};

/// Most requests taken in a visit when there is no other queue to poll and the disk answers at once: four full completion
/// messages, of which `MAX_BUDGET` is one. At depth 64 that is a tenth more requests per second than with one (decision 0005).
const MAX_BUDGET_ALONE: u32 = 56;
/// One visit in this many is timed when the disk answers at once: two time stamps cost as much as three requests.
pub const VISITS_PER_SAMPLE: u64 = 64;

/// Collects completions until a message is full or the visit ends.
#[derive(Debug)]
struct Packer {
    message: Message,
    count: usize,
}

impl Packer {
    #[inline(always)]
    fn push(&mut self, tag: u16, status: Status) {
        // So entry n, counted from 1, is half word n.
        const { assert!(offset_of!(RawCompletion, entries) == size_of::<CompletionEntry>()) };
        self.count += 1;
        self.put(self.count, zerocopy::transmute!(CompletionEntry { tag, status: status.to_wire() }));
    }

    /// Half words into whole ones, not fields: narrower stores would make the wide load of the message wait.
    #[inline(always)]
    fn put(&mut self, index: usize, half: u32) {
        let (word, shift) = (index / 2, 32 * (index % 2));
        self.message.set_word(word, self.message.word(word) | u64::from(half) << shift);
    }

    #[inline(always)]
    fn take(&mut self) -> Message {
        let count = u8::try_from(self.count).unwrap_or(0);
        let head = CompletionHead { count, kind: KIND_COMPLETIONS, reserved: 0 };
        self.put(offset_of!(RawCompletion, head) / size_of::<CompletionHead>(), zerocopy::transmute!(head));
        self.count = 0;
        std::mem::replace(&mut self.message, Message::ZERO)
    }
}

#[derive(Debug)]
pub struct QueueSetup<M = RegionTable> {
    pub depth: u32,
    pub info: BlockInfo,
    pub read_only: bool,
    pub memory: M,
    pub counters: Arc<QueueCounters>,
}

#[derive(Debug)]
pub struct QueueServer<M = RegionTable, C = SocketDoorbell, O = EventDoorbell> {
    pub queue: ServerQueue<C, O>,
    id: u32,
    depth: u32,
    limits: RequestLimits,
    read_only: bool,
    pub memory: M,
    spans: Vec<Span>,
    packer: Packer,
    in_flight: u32,
    left: Left,
    visits: u64,
    resize: EventState,
    /// The size that was last announced to the client; 0 if unknown.
    announced_sectors: u64,
    detach: EventState,
    detached: bool,
    tally: Tally,
    counters: Arc<QueueCounters>,
    pace: Visits,
    /// A message was published since it was last seen whether the client sleeps.
    published: bool,
    /// Doorbells that a policy may hold back. None: each is rung at once.
    moderated: Option<Box<Moderated>>,
}

impl<M: Memory, C: ClientDoorbell, O> QueueServer<M, C, O> {
    /// Serve `queue`, whose requests the worker knows as `id`.
    pub fn new(queue: ServerQueue<C, O>, id: u32, setup: QueueSetup<M>) -> Self {
        Self {
            queue,
            id,
            depth: setup.depth,
            limits: RequestLimits::new(&setup.info, setup.read_only),
            read_only: setup.read_only,
            memory: setup.memory,
            spans: Vec::with_capacity(MAX_INDIRECT_ENTRIES),
            packer: Packer { message: Message::ZERO, count: 0 },
            in_flight: 0,
            left: Left::NOTHING,
            visits: 0,
            resize: EventState::default(),
            announced_sectors: setup.info.sector_count,
            detach: EventState::default(),
            detached: false,
            tally: Tally::default(),
            counters: setup.counters,
            pace: Visits::default(),
            published: false,
            moderated: None,
        }
    }

    /// Requests started and not yet finished: while there are any, regions must stay.
    pub const fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Requests a correct client has outstanding at most.
    pub const fn depth(&self) -> u32 {
        self.depth
    }

    /// Another worker serves it from now on, which knows its requests as `id`. It has missed changes of the disk announced
    /// meanwhile.
    pub fn moved(&mut self, id: u32, info: &BlockInfo) {
        self.id = id;
        if info.sector_count != self.limits.sector_count {
            self.announce_resize(info);
        }
    }

    /// Continue with the same rings and memory, mapped elsewhere. The caller has checked that no request is in flight.
    pub fn move_to(&mut self, requests: MappedRing, completions: MappedRing, memory: M) {
        debug_assert_eq!(self.in_flight, 0, "requests in flight name the old mapping");
        self.queue.requests.move_to(requests);
        self.queue.completions.move_to(completions);
        self.memory = memory;
    }

    #[inline(always)]
    pub fn has_work(&self) -> bool {
        self.in_flight < self.depth && (self.queue.requests.has_message() || self.left.from > 0)
    }

    /// Ask for the doorbell, then check once more: is there work after all?
    #[must_use = "sleeping while work remains loses a wake-up"]
    pub fn arm_and_work_remains(&mut self) -> bool {
        (self.queue.requests.arm_and_work_remains() || self.left.from > 0) && self.in_flight < self.depth
    }

    /// Before a visit: if the caller has no other queue to poll, wait until the next request can arrive, a fraction of
    /// a microsecond.
    #[inline(always)]
    pub fn hold(&mut self, alone: bool) {
        self.pace.hold(alone);
    }

    /// Take up to a budget of requests, within `turn`, and complete those that `disk` finishes at once. Returns what was taken.
    #[inline(always)]
    pub fn visit<D: Disk>(&mut self, disk: &D, engine: &mut Engine, turn: Turn) -> Taken {
        let most = if turn.alone && D::ANSWERS_AT_ONCE { MAX_BUDGET_ALONE } else { MAX_BUDGET };
        // A packed message may bring more than are expected, from a faulty client.
        let limit = self.pace.limit(most).min(turn.requests).min(self.depth.saturating_sub(self.in_flight));
        let mut message = Message::ZERO;
        self.queue.requests.begin_run();
        let goes_on = self.left.from > 0;
        if limit == 0 || !(goes_on || self.queue.requests.receive(&mut message)) {
            return Taken::NOTHING;
        }
        self.queue.requests.disarm();
        probe!(take, self.id);
        self.visits += 1;
        let sampled = !D::ANSWERS_AT_ONCE || self.visits.is_multiple_of(VISITS_PER_SAMPLE);
        let started_ticks = if sampled { clock::ticks() } else { 0 };
        let mut taken = if goes_on {
            self.serve_left(disk, engine, turn.units, started_ticks)
        } else {
            self.serve_message(&message, disk, engine, (0, turn.units), started_ticks)
        };
        while taken < limit && !self.is_spent(taken, turn.units) && self.queue.requests.receive(&mut message) {
            taken += self.serve_message(&message, disk, engine, (taken, turn.units), started_ticks);
        }
        self.flush();
        let ServerQueue { requests, completions, .. } = &mut self.queue;
        self.pace.end((taken, most), D::ANSWERS_AT_ONCE, requests, completions);
        if D::ANSWERS_AT_ONCE && sampled {
            self.counters.latency.record(clock::ticks().wrapping_sub(started_ticks), taken.into());
        }
        let all = Taken::new(taken, self.tally.moved_sectors());
        std::mem::take(&mut self.tally).write_to(&self.counters);
        all
    }

    /// Has this visit spent so many units with the requests that it has taken?
    #[inline(always)]
    fn is_spent(&self, taken: u32, units: u32) -> bool {
        Taken::new(taken, self.tally.moved_sectors()).units >= units
    }

    /// `taken`: by this visit before, and the units that it may spend.
    #[inline(always)]
    fn serve_message<D: Disk>(
        &mut self,
        message: &Message,
        disk: &D,
        engine: &mut Engine,
        taken: (u32, u32),
        started_ticks: u64,
    ) -> u32 {
        if !is_packed(message) {
            let parsed = parse(message, &self.limits, &self.memory, &mut self.spans);
            self.serve(tag_of(message), parsed, disk, engine, started_ticks);
            return 1;
        }
        let count = self.serve_packed(message, 0, disk, engine, taken, started_ticks);
        if count == 0 {
            self.refuse(tag_of(message), Status::Invalid);
            return 1;
        }
        count
    }

    /// `checked`: a request whose memory is in `spans`, or its error.
    #[inline(always)]
    fn serve<D: Disk>(&mut self, tag: u16, checked: Result<Request, Status>, disk: &D, engine: &mut Engine, started_ticks: u64) {
        let request = match checked {
            // Events can be acknowledged to the end.
            Ok(request) if !self.detached || request.operation == Operation::AckEvent => request,
            Ok(_) => return self.refuse(tag, Status::Detached),
            Err(status) => return self.refuse(tag, status),
        };
        match request.operation {
            Operation::Read => {
                self.tally.reads += 1;
                self.tally.read_sectors += request.length_sectors;
            }
            Operation::Write => {
                self.tally.writes += 1;
                self.tally.written_sectors += request.length_sectors;
            }
            Operation::GetInfo | Operation::AckEvent => return self.serve_service(&request, disk),
            other => self.counters.count_other(other),
        }
        let ticket = Ticket { queue: self.id, tag: request.tag, started_ticks };
        // SAFETY: the spans come from `self.memory`, which keeps them mapped; regions are removed, and this server is
        // dropped, only when nothing is in flight (`in_flight`).
        match unsafe { disk.submit(&request, &self.spans, ticket, engine) } {
            Submitted::Done(status) => self.answer(request.tag, status),
            Submitted::Pending => {
                probe!(submit, self.id, request.tag, request.operation.to_wire(), request.sector, request.length_sectors);
                self.in_flight += 1;
            }
        }
    }

    #[cold]
    fn refuse(&mut self, tag: u16, status: Status) {
        self.counters.rest.add(1);
        self.answer(tag, status);
    }

    #[inline(always)]
    fn answer(&mut self, tag: u16, status: Status) {
        if status != Status::Ok {
            self.tally.errors += 1;
        }
        self.packer.push(tag, status);
        if self.packer.count == MAX_PACKED {
            self.publish_packed();
        }
    }

    #[inline(always)]
    fn publish_packed(&mut self) {
        probe!(publish, self.id, self.packer.count);
        let message = self.packer.take();
        self.queue.completions.publish(&message);
        self.published = true;
        self.queue.completions.prefetch(1);
    }

    /// A request that was pending is finished. [`flush`](Self::flush) publishes it.
    pub fn finish(&mut self, ticket: Ticket, status: Status) {
        probe!(complete, self.id, ticket.tag, status.to_wire());
        self.in_flight -= 1;
        self.counters.latency.record(clock::ticks().wrapping_sub(ticket.started_ticks), 1);
        self.answer(ticket.tag, status);
    }

    /// Publish what is complete and wake the client if it sleeps, at once or as a policy says. A client for which nothing was
    /// published goes on sleeping.
    #[inline(always)]
    pub fn flush(&mut self) {
        if self.packer.count > 0 {
            self.publish_packed();
        }
        if self.moderated.is_some() {
            return self.flush_moderated();
        }
        if std::mem::take(&mut self.published) && self.queue.completions.reader_needs_doorbell() {
            self.ring();
        }
    }

    #[cold]
    fn ring(&mut self) {
        probe!(doorbell, self.id);
        self.counters.doorbells.add(1);
        self.queue.client_doorbell.ring();
    }
}

#[derive(Debug)]
pub struct DiskQueue {
    pub server: QueueServer,
    disk: Arc<AnyDisk>,
    policy: Arc<SharedPolicy>,
}

impl DiskQueue {
    /// Serve `disk`. If its size has changed since it was announced to the client, announce it: earlier announcements went only
    /// to queues that existed.
    pub fn new(server: QueueServer, disk: Arc<AnyDisk>) -> Self {
        let mut queue = Self { server, disk, policy: Arc::default() };
        queue.server.moved(queue.server.id, &queue.disk.info());
        queue
    }

    /// Ring the client's doorbell as `policy` says, from now on and after each change.
    #[must_use]
    pub fn notifying_by(mut self, policy: Arc<SharedPolicy>) -> Self {
        self.policy = policy;
        self.policy_changed();
        self
    }

    pub fn policy_changed(&mut self) {
        self.server.set_policy(self.policy.get());
    }

    /// The size of `disk` changed; it may be a disk of another queue.
    pub fn announce_resize(&mut self, disk: &Arc<AnyDisk>, info: &BlockInfo) {
        if Arc::ptr_eq(&self.disk, disk) {
            self.server.announce_resize(info);
        }
    }

    #[inline(never)]
    fn serve(&mut self, engine: &mut Engine, turn: Turn) -> Taken {
        match &*self.disk {
            AnyDisk::Null(disk) => self.server.visit(disk, engine, turn),
            AnyDisk::Memory(disk) => self.server.visit(disk, engine, turn),
            AnyDisk::File(disk) => self.server.visit(disk, engine, turn),
            other => self.server.visit(other, engine, turn),
        }
    }
}

impl Queue<Engine> for DiskQueue {
    fn end(&self) -> Option<&ServerQueue> {
        Some(&self.server.queue)
    }

    fn end_mut(&mut self) -> Option<&mut ServerQueue> {
        Some(&mut self.server.queue)
    }

    fn visit(&mut self, engine: &mut Engine, turn: Turn) -> Taken {
        self.server.hold(turn.alone);
        // Most polls find nothing: they must not pay for the registers that serving needs.
        if self.server.has_work() { self.serve(engine, turn) } else { Taken::NOTHING }
    }

    fn in_flight(&self) -> u32 {
        self.server.in_flight()
    }

    fn is_asynchronous(&self) -> bool {
        !self.disk.answers_at_once()
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

    fn due(&self) -> Option<u64> {
        self.server.due()
    }

    fn arm_and_work_remains(&mut self) -> bool {
        !self.server.queue.requests.is_armed() && self.server.arm_and_work_remains()
    }

    fn begin_deferred(&mut self, engine: &mut Engine) -> bool {
        self.server.begin_deferred(&*self.disk, engine)
    }

    fn may_hold_back(&self) -> bool {
        self.server.has_policy()
    }

    fn count_doorbell(&mut self) {
        self.server.count_doorbell();
    }

    fn doorbell_rang(&mut self) {
        self.server.doorbell_rang();
    }

    fn moved(&mut self, id: u32) {
        self.server.moved(id, &self.disk.info());
        self.policy_changed();
    }

    fn saved_state(&mut self, own: bool) -> Option<Box<dyn Any + Send>> {
        if own {
            self.server.ring_what_is_held();
        }
        Some(Box::new(self.server.state()?))
    }
}
