//! One virtqueue as the hypervisor describes it, piece by piece, and its way to a worker and back.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use fipsee_block::stats::QueueCounters;
use fipsee_ring::mailbox::Mailbox;
use fipsee_serve::{Assignment, QueueName};
use fipsee_virtio::blk::server::VirtqueueSetup;
use fipsee_virtio::blk::upgrade::desk::Grant;
use fipsee_virtio::blk::upgrade::{GuestQueue, GuestStanding};
use fipsee_virtio::core::memory::{DirtyLog, GuestMemory};

use super::Notice;
use super::upgrade::Asker;
use crate::export::Export;
use crate::worker::virtqueue::{self, RingAddresses};
use crate::worker::{Command, WorkerHandle};

/// Descriptors in a queue at most (virtio 1.x).
pub(super) const MAX_SIZE: u32 = 32768;

/// SET_VRING_ADDR: addresses as the hypervisor sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UserRings {
    pub(super) descriptor: u64,
    pub(super) available: u64,
    pub(super) used: u64,
    /// Where writes to the used ring are logged, as the guest sees it, if they are.
    pub(super) log: Option<u64>,
}

impl UserRings {
    /// As the guest sees them.
    fn translate(&self, memory: &GuestMemory) -> Option<RingAddresses> {
        Some(RingAddresses {
            descriptor: memory.guest_address(self.descriptor)?,
            available: memory.guest_address(self.available)?,
            used: memory.guest_address(self.used)?,
        })
    }
}

/// Everything that queues of a device share.
pub(super) struct Serving {
    pub(super) workers: Vec<WorkerHandle>,
    pub(super) export: Arc<Export>,
    pub(super) client: u64,
    /// Who hears of faults.
    pub(super) notices: Arc<Mailbox<Notice>>,
}

/// A queue of a device.
#[derive(Default)]
pub(super) struct Queue {
    pub(super) size: u16,
    pub(super) rings: Option<UserRings>,
    pub(super) next_available: u16,
    pub(super) kick: Option<OwnedFd>,
    pub(super) call: Option<OwnedFd>,
    pub(super) error: Option<OwnedFd>,
    /// SET_VRING_ENABLE.
    pub(super) enabled: bool,
    pub(super) counters: Arc<QueueCounters>,
    /// While a worker serves it.
    assignment: Option<Assignment>,
    /// Which run of the queue this is, among all of this daemon.
    start: u64,
}

/// What a queue is served with, beside what it knows itself.
pub(super) type Fill = Box<dyn FnOnce(QueueParts) -> VirtqueueSetup>;

/// Does a worker serve the queue?
pub(super) type Served = Receiver<Result<(), String>>;

/// What a worker is to be told to serve a queue.
pub(super) struct Ordered {
    pub(super) worker: usize,
    pub(super) command: Command,
    pub(super) served: Served,
}

/// The queue's own part of a set-up.
pub(super) struct QueueParts {
    pub(super) size: u16,
    pub(super) rings: RingAddresses,
    pub(super) next_available: u16,
    pub(super) kick: OwnedFd,
    pub(super) call: Option<OwnedFd>,
    pub(super) error: Option<OwnedFd>,
    pub(super) used_log_address: Option<u64>,
    pub(super) counters: Arc<QueueCounters>,
}

impl Queue {
    /// Is it served, and has been since the run that is named so?
    pub(super) const fn is_current(&self, start: u64) -> bool {
        self.is_served() && self.start == start
    }

    pub(super) const fn is_served(&self) -> bool {
        self.assignment.is_some()
    }

    /// Is all known that it needs to be served?
    pub(super) const fn is_described(&self) -> bool {
        self.rings.is_some() && self.kick.is_some() && self.size > 0
    }

    /// As if nothing had been said of it; what it counted stays.
    pub(super) fn forget(&mut self) {
        *self = Self { counters: Arc::clone(&self.counters), ..Self::default() };
    }

    /// The worker that serves it, if one does.
    pub(super) fn worker(&self) -> Option<usize> {
        self.assignment.as_ref().map(Assignment::worker)
    }

    /// SET_VRING_NUM; of a queue that nobody serves.
    pub(super) fn set_size(&mut self, size: u32) -> Result<(), String> {
        let is_possible = size.is_power_of_two() && size <= MAX_SIZE;
        let size = u16::try_from(size).ok().filter(|_| is_possible);
        self.size = size.ok_or_else(|| format!("the size of a queue is a power of two, at most {MAX_SIZE}"))?;
        Ok(())
    }

    /// SET_VRING_BASE; of a queue that nobody serves.
    pub(super) fn set_next_available(&mut self, index: u32) -> Result<(), String> {
        self.next_available = u16::try_from(index).map_err(|_| "the base of a queue has 16 bits".to_owned())?;
        Ok(())
    }

    /// Have a worker serve the queue, if all is known that it needs. `Ok(false)`: something is missing yet.
    ///
    /// # Errors
    /// Why it cannot be served, in words.
    pub(super) fn start(&mut self, index: u16, serving: &Serving, memory: &GuestMemory, fill: Fill) -> Result<bool, String> {
        if self.is_served() {
            return Ok(false);
        }
        let Some(setup) = self.setup(memory, fill)? else { return Ok(false) };
        let (assignment, command, served) = self.order(index, serving, move |id, asker| GuestQueue::new(id, setup, asker));
        serving.workers[assignment.worker()].mailbox.send(command);
        served.recv().unwrap_or_else(|_| Err("its worker is gone".to_owned()))?;
        self.assignment = Some(assignment);
        Ok(true)
    }

    /// Have a worker go on with the queue where another daemon left off: its number, what it is to be told, and whether it does.
    ///
    /// # Errors
    /// Something is missing or impossible.
    pub(super) fn resume(
        &mut self,
        index: u16,
        serving: &Serving,
        memory: &GuestMemory,
        fill: Fill,
        (standing, grant): (GuestStanding, Option<Grant>),
    ) -> Result<Ordered, String> {
        let setup = self.setup(memory, fill)?.ok_or("a part of it is missing")?;
        let (assignment, command, served) =
            self.order(index, serving, move |id, asker| GuestQueue::resume(id, setup, asker, &standing, grant));
        let worker = assignment.worker();
        self.assignment = Some(assignment);
        Ok(Ordered { worker, command, served })
    }

    fn order(
        &mut self,
        index: u16,
        serving: &Serving,
        serve: impl FnOnce(u32, Box<Asker>) -> Result<GuestQueue, String> + Send + 'static,
    ) -> (Assignment, Command, Served) {
        let asker = Box::new(Asker::new(index, &serving.notices));
        self.start = asker.start;
        let (reply, served) = channel();
        let name = QueueName { client: serving.client, index };
        let command = virtqueue::add(name, &serving.export, move |id| serve(id, asker), reply);
        (Assignment::choose(&serving.workers), command, served)
    }

    /// What it is served with; `None`: something is missing yet.
    fn setup(&self, memory: &GuestMemory, fill: Fill) -> Result<Option<VirtqueueSetup>, String> {
        let (Some(user), Some(kick), true) = (&self.rings, &self.kick, self.size > 0) else { return Ok(None) };
        let rings = user.translate(memory).ok_or("its rings do not lie in the memory that was handed over")?;
        let copy = |descriptor: &OwnedFd| descriptor.try_clone().map_err(|error| format!("no descriptor is left: {error}"));
        let setup = fill(QueueParts {
            size: self.size,
            rings,
            next_available: self.next_available,
            kick: copy(kick)?,
            call: self.call.as_ref().map(copy).transpose()?,
            error: self.error.as_ref().map(copy).transpose()?,
            used_log_address: user.log,
            counters: Arc::clone(&self.counters),
        });
        Ok(Some(setup))
    }

    /// Ask the worker to let the queue go; `None`: nobody serves it. [`finish_stop`](Self::finish_stop) waits for that.
    pub(super) fn begin_stop(&self, index: u16, serving: &Serving) -> Option<Receiver<u16>> {
        self.change(index, serving, virtqueue::stop)
    }

    /// Nothing of the queue is in flight any more when this returns, and its worker has forgotten it.
    pub(super) fn finish_stop(&mut self, stopped: Option<&Receiver<u16>>) {
        if let Some(next_available) = stopped.and_then(|stopped| stopped.recv().ok()) {
            self.next_available = next_available;
        }
        self.assignment = None;
    }

    /// Ask for other memory; `None`: nobody serves the queue.
    ///
    /// # Errors
    /// Its rings do not lie in that memory.
    pub(super) fn begin_memory(
        &self,
        index: u16,
        serving: &Serving,
        memory: &Arc<GuestMemory>,
    ) -> Result<Option<Receiver<Result<(), String>>>, String> {
        let (Some(user), true) = (&self.rings, self.is_served()) else { return Ok(None) };
        let rings = user.translate(memory).ok_or("its rings do not lie in the guest's new memory")?;
        let memory = Arc::clone(memory);
        Ok(self.change(index, serving, |name, reply| virtqueue::set_memory(name, memory, rings, reply)))
    }

    /// Do something to the running server, between two of its visits. `None`: there is none.
    pub(super) fn set<R: Send + 'static>(
        &self,
        index: u16,
        serving: &Serving,
        set: impl FnOnce(&mut GuestQueue) -> R + Send + 'static,
    ) -> Option<R> {
        let set = |name, reply: Sender<R>| {
            virtqueue::set(name, move |server| {
                let _ = reply.send(set(server));
            })
        };
        self.change(index, serving, set)?.recv().ok()
    }

    /// Log what is written from now on, or no more.
    pub(super) fn set_log(&self, index: u16, serving: &Serving, log: Option<Arc<DirtyLog>>) {
        let address = self.rings.and_then(|rings| rings.log).filter(|_| log.is_some());
        self.set(index, serving, move |server| server.set_log(log, address));
    }

    fn change<T>(
        &self,
        index: u16,
        serving: &Serving,
        change: impl FnOnce(QueueName, Sender<T>) -> Command,
    ) -> Option<Receiver<T>> {
        let worker = self.worker()?;
        let (reply, done) = channel();
        let name = QueueName { client: serving.client, index };
        serving.workers[worker].mailbox.send(change(name, reply));
        Some(done)
    }
}
