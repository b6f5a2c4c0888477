//! A worker: one thread with a list of queues, which it visits round-robin.
//!
//! Recently active queues form the hot list and are visited every pass; of the others a few are sampled per pass, by
//! looking at 16 bytes each (docs/decisions/0004-hot-and-cold-queues.md). A worker that finds nothing for a while arms
//! all doorbells and sleeps.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fipsee_block::disk::{AnyDisk, Engine, Ticket};
use fipsee_block::server::QueueServer;
use fipsee_block::wire::{BlockInfo, Status};
use fipsee_ring::{AtomicU32, Ordering as RingOrdering};
use fipsee_ring::region::Region;
use fipsee_ring::wait::{Backoff, Next, WaitMode};
use rustix::event::epoll;

use crate::export::Export;
use crate::mailbox::Mailbox;

/// Empty visits after which a queue is sampled instead of visited every pass.
const EMPTY_VISITS_BEFORE_COLD: u32 = 1000;
/// Cold queues looked at per pass.
const COLD_SAMPLES_PER_PASS: usize = 16;
/// Operations in flight that the kernel ring of a worker holds; more wait in the engine.
const ENGINE_ENTRIES: u32 = 256;

const TOKEN_MAILBOX: u64 = u64::MAX;
const TOKEN_ENGINE: u64 = u64::MAX - 1;

/// Told when the last worker concerned has done its part: dropping the last clone reports to the front.
pub type Ack = Arc<dyn Send + Sync>;

/// What the front asks of a worker.
pub enum Command {
    /// Serve a queue.
    AddQueue {
        /// Builds the queue's server once the worker knows its number.
        server: Box<dyn FnOnce(u32) -> Result<QueueServer, Status> + Send>,
        /// The disk behind it.
        export: Arc<Export>,
        /// Whose it is.
        client: u64,
    },
    /// Give the client's queues here a region.
    AddRegion {
        /// Whose.
        client: u64,
        /// Under which id.
        id: u16,
        /// The memory.
        region: Arc<Region>,
        /// `ACCESS_*` bits.
        access: u16,
        /// Done when dropped.
        ack: Ack,
    },
    /// Take a region away once nothing of the client is in flight here.
    RemoveRegion {
        /// Whose.
        client: u64,
        /// Which.
        id: u16,
        /// Done when dropped.
        ack: Ack,
    },
    /// Drop the client's queues here once nothing is in flight; `finish`: first serve what was published.
    RemoveClient {
        /// Whose.
        client: u64,
        /// In order, or at once?
        finish: bool,
        /// Done when dropped.
        ack: Ack,
    },
    /// Tell every client of the export its new size.
    Resized {
        /// Which.
        export: Arc<Export>,
        /// The new description.
        info: BlockInfo,
    },
    /// Stop when every queue is gone.
    Stop,
}

/// What a worker tells about itself.
#[derive(Debug, Default)]
pub struct WorkerCounters {
    /// Queues it serves.
    pub queues: AtomicU64,
    /// Times it went to sleep.
    pub sleeps: AtomicU64,
}

/// How to reach a worker.
#[derive(Clone)]
pub struct WorkerHandle {
    /// Commands to it.
    pub mailbox: Arc<Mailbox<Command>>,
    /// Its numbers.
    pub counters: Arc<WorkerCounters>,
    /// The CPU it is bound to, if any.
    pub cpu: Option<usize>,
}

enum Closing {
    No,
    /// Serve what was published, then go: at most so many requests, because a correct client has no more outstanding,
    /// and one that goes on publishing must not keep us.
    Finish { left: u32, _ack: Ack },
    /// Go as soon as nothing is in flight.
    Now { _ack: Ack },
}

struct Slot {
    server: QueueServer,
    export: Arc<Export>,
    client: u64,
    hot: bool,
    empty_visits: u32,
    closing: Closing,
    removals: Vec<(u16, Ack)>,
}

impl Slot {
    /// May requests be taken? Not while memory waits to be removed, nor when the client is gone.
    #[inline(always)]
    fn takes_requests(&self) -> bool {
        self.removals.is_empty() && !matches!(self.closing, Closing::Now { .. } | Closing::Finish { left: 0, .. })
    }

    #[inline(always)]
    fn visit(&mut self, engine: &mut Engine) -> u32 {
        if !self.takes_requests() {
            return 0;
        }
        let taken = match self.export.disk() {
            AnyDisk::Null(disk) => self.server.visit(disk, engine),
            AnyDisk::Memory(disk) => self.server.visit(disk, engine),
            AnyDisk::File(disk) => self.server.visit(disk, engine),
        };
        if let Closing::Finish { left, .. } = &mut self.closing {
            *left = left.saturating_sub(taken);
        }
        taken
    }
}

/// What a poller needs of a cold queue.
#[derive(Clone, Copy)]
struct Poll {
    stamp: *const AtomicU32,
    expected: u32,
}

const NOTHING_TO_POLL: Poll = Poll { stamp: std::ptr::null(), expected: 0 };

/// The worker's own state; lives on its thread.
struct Worker {
    slots: Vec<Option<Slot>>,
    polls: Vec<Poll>,
    hot: Vec<u32>,
    cold_cursor: usize,
    /// Queues that are closing or have memory to remove.
    unsettled: Vec<u32>,
    /// Queues with completions to publish.
    touched: Vec<u32>,
    engine: Engine,
    engine_watched: bool,
    epoll: std::os::fd::OwnedFd,
    handle: WorkerHandle,
    stopping: bool,
}

/// Start a worker.
///
/// # Errors
/// No descriptor or thread left.
pub fn spawn(index: usize, cpu: Option<usize>, wait: WaitMode, look: Duration) -> io::Result<(WorkerHandle, std::thread::JoinHandle<()>)> {
    let handle = WorkerHandle { mailbox: Arc::new(Mailbox::new()?), counters: Arc::default(), cpu };
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let on = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&epoll, &*handle.mailbox, epoll::EventData::new_u64(TOKEN_MAILBOX), on)?;
    let given = handle.clone();
    let thread = std::thread::Builder::new().name(format!("fip-worker-{index}")).spawn(move || {
        bind_to(cpu);
        let engine = match Engine::new(ENGINE_ENTRIES) {
            Ok(engine) => engine,
            Err(error) => return tracing::error!(index, %error, "a worker cannot prepare for asynchronous I/O"),
        };
        let worker = Worker {
            slots: Vec::new(),
            polls: Vec::new(),
            hot: Vec::new(),
            cold_cursor: 0,
            unsettled: Vec::new(),
            touched: Vec::new(),
            engine,
            engine_watched: false,
            epoll,
            handle: given,
            stopping: false,
        };
        worker.run(Backoff::new(wait, look));
    })?;
    Ok((handle, thread))
}

fn bind_to(cpu: Option<usize>) {
    let Some(cpu) = cpu else { return };
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        tracing::warn!(cpu, %error, "cannot bind the worker to its CPU; it runs wherever the scheduler puts it");
    }
}

impl Worker {
    fn run(mut self, mut backoff: Backoff) {
        loop {
            let mut work = self.visit_hot() + self.sample_cold();
            if self.engine.in_flight() > 0 {
                work += self.run_engine();
            }
            if !self.unsettled.is_empty() {
                self.settle();
            }
            if self.handle.mailbox.has_messages() {
                self.obey();
                work += 1;
            }
            if work > 0 {
                backoff.reset();
            } else if self.stopping && self.slots.iter().all(Option::is_none) {
                return;
            } else if backoff.step() == Next::Sleep && self.nothing_remains_after_arming() {
                self.sleep();
                backoff.reset();
            }
        }
    }

    #[inline(always)]
    fn visit_hot(&mut self) -> u32 {
        let mut work = 0;
        let mut place = 0;
        while let Some(&id) = self.hot.get(place) {
            let Some(slot) = self.slots.get_mut(id as usize).and_then(Option::as_mut) else {
                self.hot.swap_remove(place);
                continue;
            };
            let taken = slot.visit(&mut self.engine);
            work += taken;
            if taken > 0 {
                slot.empty_visits = 0;
            } else {
                slot.empty_visits += 1;
                if slot.empty_visits > EMPTY_VISITS_BEFORE_COLD {
                    self.cool(place);
                    continue;
                }
            }
            place += 1;
        }
        work
    }

    #[cold]
    fn cool(&mut self, place: usize) {
        // The last hot queue stays so: sampling would cost it nothing less.
        let id = self.hot[place] as usize;
        self.hot.swap_remove(place);
        if let Some(slot) = self.slots.get_mut(id).and_then(Option::as_mut) {
            slot.hot = false;
            let (stamp, expected) = slot.server.next_stamp();
            self.polls[id] = Poll { stamp, expected };
        }
    }

    #[cold]
    fn heat(&mut self, id: usize) {
        if let Some(slot) = self.slots.get_mut(id).and_then(Option::as_mut) {
            slot.empty_visits = 0;
            if !slot.hot {
                slot.hot = true;
                self.polls[id] = NOTHING_TO_POLL;
                self.hot.push(u32::try_from(id).unwrap_or(u32::MAX));
            }
        }
    }

    #[inline(always)]
    fn sample_cold(&mut self) -> u32 {
        if self.hot.len() == self.slots.len() {
            return 0;
        }
        let mut work = 0;
        for _ in 0..COLD_SAMPLES_PER_PASS.min(self.polls.len()) {
            let id = self.cold_cursor;
            self.cold_cursor = if id + 1 >= self.polls.len() { 0 } else { id + 1 };
            let poll = self.polls[id];
            if poll.stamp.is_null() {
                continue;
            }
            // SAFETY: the address lies in the region of a queue that this worker holds: `polls[id]` is cleared when
            // slot `id` is dropped or becomes hot. Every access to a stamp is atomic.
            let stamp = unsafe { &*poll.stamp };
            if stamp.load(RingOrdering::Acquire) == poll.expected {
                self.heat(id);
                work += 1;
            }
        }
        work
    }

    fn run_engine(&mut self) -> u32 {
        let (slots, touched) = (&mut self.slots, &mut self.touched);
        self.engine.flush();
        let finished = self.engine.poll(&mut |ticket: Ticket, status| {
            if let Some(slot) = slots.get_mut(ticket.queue as usize).and_then(Option::as_mut) {
                slot.server.finish(ticket, status);
                if touched.last() != Some(&ticket.queue) {
                    touched.push(ticket.queue);
                }
            }
        });
        for id in std::mem::take(&mut self.touched) {
            if let Some(slot) = self.slots.get_mut(id as usize).and_then(Option::as_mut) {
                slot.server.flush();
            }
            // A request may have waited for this one's place among those in flight.
            self.heat(id as usize);
        }
        u32::try_from(finished).unwrap_or(u32::MAX)
    }

    /// Let go of what waited for requests in flight.
    #[cold]
    fn settle(&mut self) {
        for id in std::mem::take(&mut self.unsettled) {
            let Some(slot) = self.slots.get_mut(id as usize).and_then(Option::as_mut) else { continue };
            let idle = slot.server.in_flight() == 0;
            if idle {
                for (region, _ack) in slot.removals.drain(..) {
                    let _ = slot.server.regions_mut().remove(region);
                }
            }
            let gone = match slot.closing {
                Closing::No => false,
                Closing::Finish { left, .. } => idle && (left == 0 || !slot.server.has_work()),
                Closing::Now { .. } => idle,
            };
            if gone {
                self.drop_slot(id as usize);
            } else if !idle || !matches!(slot.closing, Closing::No) {
                self.unsettled.push(id);
                self.heat(id as usize);
            }
        }
    }

    fn drop_slot(&mut self, id: usize) {
        self.polls[id] = NOTHING_TO_POLL;
        let Some(slot) = self.slots[id].take() else { return };
        let _ = epoll::delete(&self.epoll, &slot.server.queue().our_bell);
        if slot.hot {
            self.hot.retain(|hot| *hot as usize != id);
        }
        self.handle.counters.queues.fetch_sub(1, Ordering::Relaxed);
        while self.slots.last().is_some_and(Option::is_none) {
            self.slots.pop();
            self.polls.pop();
        }
        self.cold_cursor = 0;
    }

    #[cold]
    fn obey(&mut self) {
        for command in self.handle.mailbox.take() {
            match command {
                Command::AddQueue { server, export, client } => self.add_queue(server, export, client),
                Command::AddRegion { client, id, region, access, ack } => {
                    let length_bytes = region.length_bytes();
                    for slot in self.slots.iter_mut().flatten().filter(|slot| slot.client == client) {
                        let added = slot.server.regions_mut().insert(id, &region, 0, length_bytes, access);
                        debug_assert!(added.is_ok(), "the front keeps the ids");
                    }
                    drop(ack);
                }
                Command::RemoveRegion { client, id, ack } => {
                    self.unsettle(client, |slot| slot.removals.push((id, Arc::clone(&ack))));
                }
                Command::RemoveClient { client, finish, ack } => self.unsettle(client, |slot| {
                    let _ack = Arc::clone(&ack);
                    slot.closing = if finish { Closing::Finish { left: slot.server.depth(), _ack } } else { Closing::Now { _ack } };
                }),
                Command::Resized { export, info } => {
                    for slot in self.slots.iter_mut().flatten().filter(|slot| Arc::ptr_eq(&slot.export, &export)) {
                        slot.server.announce_resize(&info);
                    }
                }
                Command::Stop => self.stopping = true,
            }
        }
    }

    fn unsettle(&mut self, client: u64, mut change: impl FnMut(&mut Slot)) {
        for (id, slot) in self.slots.iter_mut().enumerate() {
            if let Some(slot) = slot.as_mut().filter(|slot| slot.client == client) {
                change(slot);
                self.unsettled.push(u32::try_from(id).unwrap_or(u32::MAX));
            }
        }
        self.settle();
    }

    fn add_queue(&mut self, server: Box<dyn FnOnce(u32) -> Result<QueueServer, Status> + Send>, export: Arc<Export>, client: u64) {
        let id = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        let Ok(server) = server(u32::try_from(id).unwrap_or(u32::MAX)) else {
            tracing::error!(client, "a queue does not fit the region that was laid out for it");
            return;
        };
        let on = epoll::EventFlags::IN | epoll::EventFlags::ET;
        if let Err(error) = epoll::add(&self.epoll, &server.queue().our_bell, epoll::EventData::new_u64(id as u64), on) {
            tracing::error!(client, %error, "cannot watch a doorbell; the queue is not served");
            return;
        }
        let slot = Slot { server, export, client, hot: false, empty_visits: 0, closing: Closing::No, removals: Vec::new() };
        if id == self.slots.len() {
            self.slots.push(Some(slot));
            self.polls.push(NOTHING_TO_POLL);
        } else {
            self.slots[id] = Some(slot);
        }
        self.handle.counters.queues.fetch_add(1, Ordering::Relaxed);
        self.heat(id);
    }

    /// Ask every client for its doorbell, then look once more.
    fn nothing_remains_after_arming(&mut self) -> bool {
        if self.engine.has_unsent() || (!self.unsettled.is_empty() && self.engine.in_flight() == 0) {
            return false;
        }
        let mut waiting = Vec::new();
        for (id, slot) in self.slots.iter_mut().enumerate() {
            let Some(slot) = slot.as_mut().filter(|slot| slot.takes_requests()) else { continue };
            if !slot.server.is_armed() && slot.server.arm_and_work_remains() {
                waiting.push(id);
            }
        }
        for id in &waiting {
            self.heat(*id);
        }
        waiting.is_empty() && !self.handle.mailbox.has_messages()
    }

    #[cold]
    fn sleep(&mut self) {
        if self.engine.in_flight() > 0 {
            self.watch_engine();
        }
        self.handle.counters.sleeps.fetch_add(1, Ordering::Relaxed);
        let mut events = Vec::<epoll::Event>::with_capacity(64);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => tracing::error!(%error, "epoll failed"),
        }
        for event in events {
            let token = event.data.u64();
            if token == TOKEN_MAILBOX || token == TOKEN_ENGINE {
                continue;
            }
            let id = usize::try_from(token).unwrap_or(usize::MAX);
            if let Some(slot) = self.slots.get_mut(id).and_then(Option::as_mut) {
                slot.server.bell_rang();
                self.heat(id);
            }
        }
    }

    /// Have the kernel ring wake us; from its first use on.
    fn watch_engine(&mut self) {
        if self.engine_watched {
            return;
        }
        if let Some(fd) = self.engine.as_fd() {
            match epoll::add(&self.epoll, fd, epoll::EventData::new_u64(TOKEN_ENGINE), epoll::EventFlags::IN) {
                Ok(()) => self.engine_watched = true,
                Err(error) => tracing::error!(%error, "cannot watch the kernel ring"),
            }
        }
    }
}
