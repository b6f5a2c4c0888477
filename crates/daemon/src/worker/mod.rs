//! A worker: one thread with a list of queues, which it visits round-robin.
//!
//! Recently active queues form the hot list and are visited every pass; of the others a few are sampled per pass, by
//! looking at 16 bytes each (docs/decisions/0004-hot-and-cold-queues.md). A worker that finds nothing for a while arms
//! all doorbells and sleeps.

mod engines;
mod roster;
mod seat;
mod service;
mod standstill;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use fipsee_block::disk::{Engine, Ticket};
use fipsee_block::server::QueueServer;
use fipsee_block::wire::{BlockInfo, MAX_PACKED, Status};
use fipsee_ring::mailbox::Mailbox;
use fipsee_ring::region::Region;
use fipsee_ring::wait::{Backoff, Next, WaitMode};
use fipsee_topology::pin;
use fipsee_virtio::memory::GuestMemory;
use fipsee_virtio::upgrade::{GuestQueue, QUEUE_OF_TICKET};
use rustix::event::{Timespec, epoll};

pub use self::engines::{make_rings_for_machines, start_engines};
use self::roster::{Closing, Roster, Slot};
pub use self::seat::Seat;
pub use self::service::RingAddresses;
use self::service::{Pending, Service, Virtqueue};
pub use self::standstill::{Otherwise, StandStill, Standstill};
use crate::export::Export;
use crate::front::vhost_user::Notice;
use crate::placement::Place;

/// Operations in flight that the kernel ring of a worker holds; more wait in the engine.
const ENGINE_ENTRIES: u32 = 256;

/// Finished operations looked at per pass: one completion message's worth.
const FINISHED_PER_PASS: usize = MAX_PACKED;

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
        /// Whose it is, and which of its queues.
        queue: QueueName,
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
    /// Serve a virtqueue.
    AddVirtqueue {
        /// Builds the queue's server once the worker knows its number.
        server: Box<dyn FnOnce(u32) -> Result<GuestQueue, String> + Send>,
        /// The disk behind it.
        export: Arc<Export>,
        /// Whose it is, and which of its queues.
        queue: QueueName,
        /// Who hears when it breaks.
        device: Arc<Mailbox<Notice>>,
        /// Is it served?
        reply: Sender<Result<(), String>>,
    },
    /// Change how a virtqueue is served. One that is not there drops the change, and the sender in it.
    ChangeVirtqueue {
        /// Which.
        queue: QueueName,
        /// How.
        change: VirtqueueChange,
    },
    /// Tell every client of the export its new size.
    Resized {
        /// Which.
        export: Arc<Export>,
        /// The new description.
        info: BlockInfo,
    },
    /// Make the kernel's ring for file disks now, while the process may: dropping the sender says that it is there.
    StartEngine(Sender<()>),
    /// Do nothing for a while.
    StandStill(StandStill),
    /// Stop when every queue is gone.
    Stop,
}

/// A queue, named by its client and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueName {
    /// Whose.
    pub client: u64,
    /// Which.
    pub index: u16,
}

/// What may change of a virtqueue while it is served.
pub enum VirtqueueChange {
    /// Nothing in flight is left in the old memory when the reply comes.
    Memory {
        /// The new memory.
        memory: Arc<GuestMemory>,
        /// Where the queue lies in it.
        rings: RingAddresses,
        /// Does it lie there? Otherwise the queue goes on nowhere, and waits to be stopped.
        reply: Sender<Result<(), String>>,
    },
    /// Go, once nothing is in flight.
    Stop {
        /// The index of the next available entry.
        reply: Sender<u16>,
    },
    /// What takes effect between two visits.
    Set(Box<dyn FnOnce(&mut GuestQueue) + Send>),
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
    /// Where it runs.
    pub place: Place,
    /// Queues that the fronts have dealt to it.
    pub seats: Arc<AtomicU64>,
}

/// The worker's own state; lives on its thread.
struct Worker {
    roster: Roster,
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
pub fn spawn(
    index: usize,
    place: Place,
    wait: WaitMode,
    look: Duration,
    stall_limit: Duration,
) -> io::Result<(WorkerHandle, std::thread::JoinHandle<()>)> {
    let handle = WorkerHandle { mailbox: Arc::new(Mailbox::new()?), counters: Arc::default(), place, seats: Arc::default() };
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let on = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&epoll, &*handle.mailbox, epoll::EventData::new_u64(TOKEN_MAILBOX), on)?;
    let given = handle.clone();
    let thread = std::thread::Builder::new().name(format!("fip-worker-{index}")).spawn(move || {
        let _guard = AbortOnPanic;
        bind_to(place.cpu);
        let mut engine = match Engine::new(ENGINE_ENTRIES) {
            Ok(engine) => engine,
            Err(error) => return tracing::error!(index, %error, "a worker cannot prepare for asynchronous I/O"),
        };
        engine.set_stall_limit(stall_limit);
        let worker = Worker {
            roster: Roster::default(),
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

/// A worker that panics takes the process with it: its clients then see a hang-up instead of silence.
pub(crate) struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

fn bind_to(cpu: Option<usize>) {
    let Some(cpu) = cpu else { return };
    if let Err(error) = pin::bind(cpu) {
        tracing::warn!(cpu, %error, "cannot bind the worker to its CPU; it runs wherever the scheduler puts it");
    }
}

impl Worker {
    fn run(mut self, mut backoff: Backoff) {
        loop {
            let mut work = self.roster.visit_hot(&mut self.engine) + self.roster.sample_cold();
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
            } else if self.stopping && self.roster.is_empty() {
                return;
            } else if self.wait(&mut backoff) == Next::Sleep && self.nothing_remains_after_arming() {
                self.sleep();
                backoff.reset();
            }
        }
    }

    /// After a pass that found nothing. While a disk is at work, what comes next is no write to a ring.
    #[inline(always)]
    fn wait(&self, backoff: &mut Backoff) -> Next {
        let expected = self.engine.in_flight() > 0;
        backoff.step_watching(expected, || if expected { None } else { self.roster.watch() })
    }

    fn run_engine(&mut self) -> u32 {
        let (roster, touched) = (&mut self.roster, &mut self.touched);
        self.engine.flush();
        let finished = self.engine.poll(FINISHED_PER_PASS, &mut |ticket: Ticket, status| {
            let id = ticket.queue & QUEUE_OF_TICKET;
            if let Some(slot) = roster.get_mut(id as usize) {
                slot.service.finish(ticket, status);
                if touched.last() != Some(&id) {
                    touched.push(id);
                }
            }
        });
        for id in std::mem::take(&mut self.touched) {
            if let Some(slot) = self.roster.get_mut(id as usize) {
                slot.service.flush();
            }
            // A request may have waited for this one's place among those in flight.
            self.roster.heat(id as usize);
        }
        u32::try_from(finished).unwrap_or(u32::MAX)
    }

    /// Let go of what waited for requests in flight.
    #[cold]
    fn settle(&mut self) {
        for id in std::mem::take(&mut self.unsettled) {
            let Some(slot) = self.roster.get_mut(id as usize) else { continue };
            let idle = slot.service.in_flight() == 0;
            let stop = if idle { slot.apply_what_waited() } else { None };
            let gone = match slot.closing {
                Closing::No => stop.is_some(),
                Closing::Finish { left, .. } => idle && (left == 0 || !slot.service.has_work()),
                Closing::Now { .. } => idle,
            };
            if gone {
                self.drop_slot(id as usize, stop);
            } else if !idle || !matches!(slot.closing, Closing::No) {
                self.unsettled.push(id);
                self.roster.heat(id as usize);
            }
        }
    }

    /// `stop`: who wants to know where a virtqueue stopped.
    fn drop_slot(&mut self, id: usize, stop: Option<Sender<u16>>) {
        let Some(slot) = self.roster.remove(id) else { return };
        let _ = epoll::delete(&self.epoll, slot.service.bell());
        self.handle.counters.queues.fetch_sub(1, Ordering::Relaxed);
        if let (Service::Virtqueue(queue), Some(reply)) = (slot.service, stop) {
            let _ = reply.send(queue.server.stop());
        }
    }

    #[cold]
    fn obey(&mut self) {
        for command in self.handle.mailbox.take() {
            match command {
                Command::AddQueue { server, export, queue } => self.add_queue(server, export, queue),
                Command::AddRegion { client, id, region, access, ack } => {
                    let length_bytes = region.length_bytes();
                    for (_, slot) in self.roster.iter_mut().filter(|(_, slot)| slot.client == client) {
                        if let Service::Ring(server) = &mut slot.service {
                            let added = server.regions_mut().insert(id, &region, 0, length_bytes, access);
                            debug_assert!(added.is_ok(), "the front keeps the ids");
                        }
                    }
                    drop(ack);
                }
                Command::RemoveRegion { client, id, ack } => {
                    self.unsettle(client, |slot| slot.removals.push((id, Arc::clone(&ack))));
                }
                Command::RemoveClient { client, finish, ack } => self.unsettle(client, |slot| {
                    let _ack = Arc::clone(&ack);
                    slot.closing =
                        if finish { Closing::Finish { left: slot.service.depth(), _ack } } else { Closing::Now { _ack } };
                }),
                Command::Resized { export, info } => {
                    for (_, slot) in self.roster.iter_mut().filter(|(_, slot)| Arc::ptr_eq(&slot.export, &export)) {
                        slot.service.announce_resize(&info);
                    }
                }
                Command::AddVirtqueue { server, export, queue, device, reply } => {
                    let _ = reply.send(self.add_virtqueue(server, export, queue, device));
                }
                Command::ChangeVirtqueue { queue, change } => self.change_virtqueue(queue, change),
                Command::StartEngine(done) => engines::start(&mut self.engine, done),
                Command::StandStill(order) => self.stand_still(order),
                Command::Stop => self.stopping = true,
            }
        }
    }

    fn unsettle(&mut self, client: u64, mut change: impl FnMut(&mut Slot)) {
        for (id, slot) in self.roster.iter_mut().filter(|(_, slot)| slot.client == client) {
            change(slot);
            self.unsettled.push(u32::try_from(id).unwrap_or(u32::MAX));
        }
        self.settle();
    }

    fn add_queue(
        &mut self,
        server: Box<dyn FnOnce(u32) -> Result<QueueServer, Status> + Send>,
        export: Arc<Export>,
        queue: QueueName,
    ) {
        let client = queue.client;
        let id = self.roster.next_id();
        let Ok(server) = server(u32::try_from(id).unwrap_or(u32::MAX)) else {
            tracing::error!(client, "a queue does not fit the region that was laid out for it");
            return;
        };
        if let Err(error) = self.add_slot(id, Slot::new(Service::Ring(server), export, queue)) {
            tracing::error!(client, %error, "cannot watch a doorbell; the queue is not served");
        }
    }

    fn add_virtqueue(
        &mut self,
        server: Box<dyn FnOnce(u32) -> Result<GuestQueue, String> + Send>,
        export: Arc<Export>,
        queue: QueueName,
        device: Arc<Mailbox<Notice>>,
    ) -> Result<(), String> {
        let id = self.roster.next_id();
        let server = server(u32::try_from(id).unwrap_or(u32::MAX))?;
        let service = Service::Virtqueue(Virtqueue::new(server, queue.index, device));
        self.add_slot(id, Slot::new(service, export, queue))
            .map_err(|error| format!("its kick descriptor cannot be watched ({error}); it must be an eventfd"))
    }

    /// Watch the doorbell of what gets the number `id`, and serve it.
    fn add_slot(&mut self, id: usize, slot: Slot) -> io::Result<()> {
        let on = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.epoll, slot.service.bell(), epoll::EventData::new_u64(id as u64), on)?;
        self.roster.add(slot);
        self.handle.counters.queues.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    #[cold]
    fn change_virtqueue(&mut self, name: QueueName, change: VirtqueueChange) {
        let found = self.roster.iter_mut().find_map(|(id, slot)| match &mut slot.service {
            Service::Virtqueue(queue) if slot.client == name.client && queue.index == name.index => Some((id, queue)),
            _ => None,
        });
        let Some((id, queue)) = found else { return };
        match change {
            VirtqueueChange::Set(set) => return set(&mut queue.server),
            VirtqueueChange::Memory { memory, rings, reply } => queue.pending = Some(Pending::Memory { memory, rings, reply }),
            VirtqueueChange::Stop { reply } => queue.pending = Some(Pending::Stop { reply }),
        }
        self.unsettled.push(u32::try_from(id).unwrap_or(u32::MAX));
        self.settle();
    }

    /// Ask every client for its doorbell, then look once more.
    fn nothing_remains_after_arming(&mut self) -> bool {
        if self.engine.has_unsent() || (!self.unsettled.is_empty() && self.engine.in_flight() == 0) {
            return false;
        }
        let mut waiting = Vec::new();
        for (id, slot) in self.roster.iter_mut().filter(|(_, slot)| slot.takes_requests()) {
            if slot.service.arm_and_work_remains() {
                waiting.push(id);
            }
        }
        for id in &waiting {
            self.roster.heat(*id);
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
        let timeout = self.engine.time_to_look().and_then(|left| Timespec::try_from(left).ok());
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
            Ok(0) => self.engine.look_for_stalled(),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => tracing::error!(%error, "epoll failed"),
        }
        for event in events {
            let token = event.data.u64();
            if token == TOKEN_MAILBOX || token == TOKEN_ENGINE {
                continue;
            }
            let id = usize::try_from(token).unwrap_or(usize::MAX);
            if let Some(slot) = self.roster.get_mut(id) {
                slot.service.bell_rang();
                self.roster.heat(id);
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
