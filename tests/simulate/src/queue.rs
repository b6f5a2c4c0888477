//! Queues as workers serve them, and the engine that reports what the disk has ended.

use std::any::Any;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use fipsee_block::disk::{self, Ticket};
use fipsee_block::server::QueueServer;
use fipsee_block::wire::Status;
use fipsee_ring::channel::{QueueGeometry, ServerQueue};
use fipsee_ring::region::Region;
use fipsee_ring::ring::{Cursor, Reader};
use fipsee_serve::{Engine, Queue, QueueName, Taken, Turn};

use crate::context::lock;
use crate::disk::QueueDisk;
use crate::variant::Variant;

/// Ends reported at a time.
const REPORTS: usize = 14;

/// What the disk has to say to one worker.
#[derive(Default)]
pub(crate) struct Lane {
    ended: Mutex<Vec<(Ticket, Status)>>,
    in_flight: AtomicUsize,
    /// Requests that its worker took since that was asked.
    taken: AtomicU64,
}

impl Lane {
    /// A request began.
    pub(crate) fn begun(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    /// It ended.
    pub(crate) fn ended(&self, ticket: Ticket, status: Status) {
        lock(&self.ended).push((ticket, status));
    }

    /// Requests that its worker took since this was asked last.
    pub(crate) fn take_taken(&self) -> u64 {
        self.taken.swap(0, Ordering::Relaxed)
    }

    /// Is there something to report?
    pub(crate) fn has_ended(&self) -> bool {
        !lock(&self.ended).is_empty()
    }
}

/// A worker's engine.
pub(crate) struct SimEngine {
    lane: Arc<Lane>,
    unused: disk::Engine,
}

impl SimEngine {
    /// Reports what ends in `lane`.
    pub(crate) fn new(lane: Arc<Lane>) -> Self {
        Self { lane, unused: disk::Engine::new(1).expect("one entry is possible") }
    }
}

impl Engine for SimEngine {
    type Ticket = Ticket;
    type Status = Status;

    fn queue_of(ticket: Ticket) -> u32 {
        ticket.queue
    }

    fn in_flight(&self) -> usize {
        self.lane.in_flight.load(Ordering::Relaxed)
    }

    fn poll(&mut self, _limit: usize, finished: &mut impl FnMut(Ticket, Status)) -> usize {
        let mut ended = lock(&self.lane.ended);
        let count = ended.len().min(REPORTS);
        let ended: Vec<_> = ended.drain(..count).collect();
        self.lane.in_flight.fetch_sub(count, Ordering::Relaxed);
        ended.into_iter().for_each(|(ticket, status)| finished(ticket, status));
        count
    }
}

/// A queue of the daemon.
pub(crate) struct SimQueue {
    pub(crate) name: QueueName,
    /// Its rings, which a correct move leaves alone.
    pub(crate) place: (Arc<Region>, QueueGeometry),
    pub(crate) server: QueueServer,
    pub(crate) disk: QueueDisk,
    /// Where it was before the last visit that took something.
    pub(crate) before_last: Option<Cursor>,
}

impl Queue<SimEngine> for SimQueue {
    fn end(&self) -> Option<&ServerQueue> {
        Some(&self.server.queue)
    }

    fn end_mut(&mut self) -> Option<&mut ServerQueue> {
        Some(&mut self.server.queue)
    }

    fn visit(&mut self, engine: &mut SimEngine, turn: Turn) -> Taken {
        if !self.disk.context.is_broken(Variant::MoveKeepsEngine) && !Arc::ptr_eq(&self.disk.lane, &engine.lane) {
            self.disk.lane = Arc::clone(&engine.lane);
        }
        self.server.hold(turn.alone);
        if !self.server.has_work() {
            return Taken::NOTHING;
        }
        let before = self.server.queue.requests.cursor();
        let taken = self.server.visit(&self.disk, &mut engine.unused, turn);
        if taken.requests > 0 {
            self.disk.lane.taken.fetch_add(u64::from(taken.requests), Ordering::Relaxed);
            self.before_last = Some(before);
        }
        self.disk.context.say(|| format!("queue of client {}: {} taken", self.disk.client, taken.requests));
        taken
    }

    fn in_flight(&self) -> u32 {
        let context = &self.disk.context;
        if context.is_broken(Variant::MoveLosesInFlight) && context.moves().takes(self.name) {
            return 0;
        }
        self.server.in_flight()
    }

    fn depth(&self) -> u32 {
        self.server.depth()
    }

    fn has_work(&self) -> bool {
        self.server.has_work()
    }

    fn finish(&mut self, ticket: Ticket, status: Status) {
        if self.server.in_flight() == 0 {
            return self.disk.context.violated(|| format!("client {} has nothing in flight that could end", self.disk.client));
        }
        self.server.finish(ticket, status);
    }

    fn flush(&mut self) {
        self.server.flush();
    }

    fn arm_and_work_remains(&mut self) -> bool {
        let remains = !self.server.queue.requests.is_armed() && self.server.arm_and_work_remains();
        remains && !self.disk.context.is_broken(Variant::SleepWithoutLook)
    }

    fn moved(&mut self, id: u32) {
        if self.disk.context.is_broken(Variant::MoveRestoresStaleIndex)
            && let Some(cursor) = self.before_last
        {
            let (region, geometry) = &self.place;
            let ring = geometry.request_ring(region, &geometry.tuning()).expect("it fits");
            self.server.queue.requests = Reader::new(ring, cursor, &geometry.tuning());
        }
        self.server.moved(id, &disk::Disk::info(&self.disk));
    }

    fn saved_state(&mut self, _own: bool) -> Option<Box<dyn Any + Send>> {
        Some(Box::new(self.server.state()?))
    }
}
