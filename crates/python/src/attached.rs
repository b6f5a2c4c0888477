//! An attached disk and its queues, each borrowed by one thread at a time.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use fipsee_block::client::transfer::{BOUNCE_BYTES, Transfers};
use fipsee_block::client::{AttachOptions, Disk, Error, Memory as ClientMemory, Queue};
use fipsee_block::wire::BlockInfo;
use fipsee_ring::doorbell::DoorbellCounts;
use fipsee_topology::near::Near;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::error::Failure;
use crate::memory::{Registered, View, lock};
use crate::opened::{Opener, closed, detached, keep_trying};
use crate::wait::SIGNAL_PERIOD;

/// How long a thread that has a lane may take it again before waiting threads: handing it over costs a wake-up.
const LONGEST_OVERTAKING: Duration = Duration::from_millis(1);

/// A queue and its state.
pub(crate) struct Lane {
    pub(crate) queue: Queue,
    pub(crate) transfers: Transfers,
    /// For data of unregistered buffers; allocated when first needed.
    pub(crate) bounce: Option<Arc<Registered>>,
    /// Memory of requests whose caller was interrupted; they may still be executed.
    pub(crate) kept: Vec<(View, Arc<Registered>)>,
    /// The daemon broke the protocol here.
    pub(crate) is_faulty: bool,
    index: usize,
}

struct Lanes {
    free: Vec<Lane>,
    borrowers: Vec<ThreadId>,
    /// Threads that wait for a lane, the longest-waiting first.
    waiting: VecDeque<(u64, Instant)>,
    last_ticket: u64,
    is_closed: bool,
    /// By lane, as of its last return: one that is in use cannot be looked at.
    counts: Vec<DoorbellCounts>,
}

impl Lanes {
    /// Is a lane free for this thread? Lanes go to the first that asks, unless another thread has waited too long.
    fn may_take(&self, ticket: Option<u64>) -> bool {
        let is_reserved = |(first, since): &(u64, Instant)| Some(*first) != ticket && since.elapsed() > LONGEST_OVERTAKING;
        !self.free.is_empty() && !self.waiting.front().is_some_and(is_reserved)
    }

    fn take_back(&mut self, lane: Lane) {
        if let Some(counts) = self.counts.get_mut(lane.index) {
            *counts = lane.queue.doorbell_counts();
        }
        self.free.push(lane);
    }
}

/// A place in the queue for a lane, given up when dropped.
struct Ticket<'a> {
    disk: &'a DiskConnection,
    number: u64,
}

impl<'a> Ticket<'a> {
    fn new(disk: &'a DiskConnection) -> Self {
        let mut lanes = lock(&disk.lanes);
        lanes.last_ticket += 1;
        let number = lanes.last_ticket;
        lanes.waiting.push_back((number, Instant::now()));
        Self { disk, number }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        lock(&self.disk.lanes).waiting.retain(|(number, _)| *number != self.number);
        self.disk.returned.notify_all();
    }
}

/// Registered memory, by address.
struct Known {
    start: usize,
    registered: Weak<Registered>,
}

pub(crate) struct DiskConnection {
    disk: Mutex<Option<Disk>>,
    pub(crate) name: String,
    pub(crate) info: BlockInfo,
    pub(crate) near: Near,
    pub(crate) depth: usize,
    reconnect_for: Duration,
    opener: Opener,
    lanes: Mutex<Lanes>,
    returned: Condvar,
    known: Mutex<Vec<Known>>,
}

/// A borrowed lane; returned when dropped.
pub(crate) struct Borrowed<'a> {
    disk: &'a DiskConnection,
    lane: Option<Lane>,
}

impl Borrowed<'_> {
    pub(crate) const fn lane(&mut self) -> Option<&mut Lane> {
        self.lane.as_mut()
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        let mut lanes = lock(&self.disk.lanes);
        let own = std::thread::current().id();
        if let Some(index) = lanes.borrowers.iter().position(|borrower| *borrower == own) {
            lanes.borrowers.swap_remove(index);
        }
        if let Some(lane) = self.lane.take() {
            lanes.take_back(lane);
        }
        self.disk.returned.notify_all();
    }
}

impl DiskConnection {
    pub(crate) fn open(socket: Option<PathBuf>, options: &AttachOptions, reconnect_for: Duration) -> Result<Arc<Self>, Error> {
        let socket = socket.unwrap_or_else(fipsee_block::client::default_socket_path);
        let (disk, queues) = Disk::attach(&socket, options)?;
        let near = Near::new(queues.iter().map(Queue::worker_cpu).collect());
        let depth = queues.first().map_or(1, Queue::depth);
        let transfers = || Transfers::new(&disk.info(), Some(SIGNAL_PERIOD));
        let lane =
            |(index, queue)| Lane { queue, transfers: transfers(), bounce: None, kept: Vec::new(), is_faulty: false, index };
        let counts = vec![DoorbellCounts::default(); queues.len()];
        let free = queues.into_iter().enumerate().map(lane).collect();
        let lanes = Lanes { free, borrowers: Vec::new(), waiting: VecDeque::new(), last_ticket: 0, is_closed: false, counts };
        Ok(Arc::new(Self {
            info: disk.info(),
            disk: Mutex::new(Some(disk)),
            name: options.name.clone(),
            near,
            depth,
            reconnect_for,
            opener: Opener::this("disk"),
            lanes: Mutex::new(lanes),
            returned: Condvar::new(),
            known: Mutex::default(),
        }))
    }

    pub(crate) const fn reconnects(&self) -> bool {
        !self.reconnect_for.is_zero()
    }

    pub(crate) fn check_process(&self) -> PyResult<()> {
        self.opener.check()
    }

    pub(crate) fn is_closed(&self) -> bool {
        !self.opener.is_inherited() && lock(&self.lanes).is_closed
    }

    /// Of all lanes together.
    pub(crate) fn doorbell_counts(&self) -> PyResult<DoorbellCounts> {
        self.check_process()?;
        let lanes = lock(&self.lanes);
        if lanes.is_closed {
            return Err(closed("disk"));
        }
        let mut sum = DoorbellCounts::default();
        lanes.counts.iter().for_each(|counts| sum += *counts);
        Ok(sum)
    }

    /// Borrow a lane, waiting for one if all are in use.
    pub(crate) fn borrow(&self, py: Python<'_>) -> PyResult<Borrowed<'_>> {
        self.check_process()?;
        if let Some(borrowed) = self.try_borrow()? {
            return Ok(borrowed);
        }
        let ticket = Ticket::new(self);
        loop {
            if let Some(borrowed) = py.detach(|| self.wait_to_borrow(&ticket))? {
                return Ok(borrowed);
            }
            py.check_signals()?;
        }
    }

    /// Borrow a lane if one is free.
    pub(crate) fn try_borrow(&self) -> PyResult<Option<Borrowed<'_>>> {
        self.borrow_of(&mut lock(&self.lanes), None)
    }

    /// Wait a little for a lane.
    fn wait_to_borrow(&self, ticket: &Ticket<'_>) -> PyResult<Option<Borrowed<'_>>> {
        let number = Some(ticket.number);
        let is_met = |lanes: &Lanes| lanes.is_closed || lanes.may_take(number);
        let waited = self.returned.wait_timeout_while(lock(&self.lanes), SIGNAL_PERIOD, |lanes| !is_met(lanes));
        let (mut lanes, _) = waited.unwrap_or_else(PoisonError::into_inner);
        self.borrow_of(&mut lanes, number)
    }

    fn borrow_of(&self, lanes: &mut Lanes, ticket: Option<u64>) -> PyResult<Option<Borrowed<'_>>> {
        if lanes.is_closed {
            return Err(closed("disk"));
        }
        let own = std::thread::current().id();
        if let Some(lane) = lanes.may_take(ticket).then(|| lanes.free.pop()).flatten() {
            lanes.borrowers.push(own);
            return Ok(Some(Borrowed { disk: self, lane: Some(lane) }));
        }
        if lanes.borrowers.contains(&own) {
            let text =
                "a signal handler or destructor uses the disk while the same thread waits for it; open it a second time for that";
            return Err(PyRuntimeError::new_err(text));
        }
        Ok(None)
    }

    /// Wait a little for `is_met`.
    fn wait_for_lane(&self, is_met: impl Fn(&Lanes) -> bool) {
        let lanes = lock(&self.lanes);
        drop(self.returned.wait_timeout_while(lanes, SIGNAL_PERIOD, |lanes| !is_met(lanes)));
    }

    /// Refuse new calls, wait until none is running, and detach in order.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.opener.is_inherited() {
            return Ok(());
        }
        loop {
            let lanes = self.take_lanes()?;
            if let Some(lanes) = lanes {
                return py.detach(|| self.detach(lanes)).map_err(|error| Failure::from(error).into());
            }
            py.detach(|| self.wait_for_lane(|lanes| lanes.borrowers.is_empty()));
            py.check_signals()?;
        }
    }

    /// All lanes once none is borrowed; an empty list when they were taken before.
    fn take_lanes(&self) -> PyResult<Option<Vec<Lane>>> {
        let mut lanes = lock(&self.lanes);
        lanes.is_closed = true;
        if lanes.borrowers.contains(&std::thread::current().id()) {
            let text = "a signal handler or destructor closes the disk while the same thread waits for it; close it afterwards";
            return Err(PyRuntimeError::new_err(text));
        }
        self.returned.notify_all();
        Ok(lanes.borrowers.is_empty().then(|| std::mem::take(&mut lanes.free)))
    }

    fn detach(&self, lanes: Vec<Lane>) -> Result<(), Error> {
        let Some(disk) = lock(&self.disk).take() else { return Ok(()) };
        let (mut queues, mut memories) = (Vec::new(), Vec::new());
        for lane in lanes {
            queues.push(lane.queue);
            memories.push((lane.bounce, lane.kept));
        }
        detached(disk.detach(queues))
    }

    fn with_disk<R>(&self, call: impl FnOnce(&Disk) -> Result<R, Error>) -> Result<R, Failure> {
        match &*lock(&self.disk) {
            Some(disk) => Ok(call(disk)?),
            None => Err(Failure::Python(closed("disk"))),
        }
    }

    /// The disk's current description.
    pub(crate) fn newest_info(&self) -> Result<BlockInfo, Failure> {
        self.with_disk(|disk| Ok(disk.info()))
    }

    /// New memory shared with the daemon.
    pub(crate) fn allocate(self: &Arc<Self>, length_bytes: u64) -> Result<Arc<Registered>, Failure> {
        let memory = self.with_disk(|disk| disk.create_memory(length_bytes))?;
        let start = memory.base().as_ptr().addr();
        let registered = Arc::new(Registered::new(memory, Arc::downgrade(self))?);
        lock(&self.known).push(Known { start, registered: Arc::downgrade(&registered) });
        Ok(registered)
    }

    /// The same, and reconnect if the disk was opened so.
    pub(crate) fn allocate_across(self: &Arc<Self>, lane: &mut Lane, length_bytes: u64) -> Result<Arc<Registered>, Failure> {
        loop {
            match self.allocate(length_bytes) {
                Err(Failure::Client(Error::Disconnected)) => self.reconnect(&mut lane.queue)?,
                done => return done,
            }
        }
    }

    /// The lane's bounce memory.
    pub(crate) fn bounce_of(self: &Arc<Self>, lane: &mut Lane) -> Result<Arc<Registered>, Failure> {
        if let Some(bounce) = &lane.bounce {
            return Ok(Arc::clone(bounce));
        }
        let bounce = self.allocate_across(lane, BOUNCE_BYTES)?;
        lane.bounce = Some(Arc::clone(&bounce));
        Ok(bounce)
    }

    /// Take a lane away for good.
    pub(crate) fn take_lane(&self) -> PyResult<Lane> {
        self.check_process()?;
        let mut lanes = lock(&self.lanes);
        if lanes.is_closed {
            return Err(closed("disk"));
        }
        lanes.free.pop().ok_or_else(|| PyRuntimeError::new_err("every queue of the disk is in use; open it with more"))
    }

    /// Bring a lane back.
    pub(crate) fn give_lane(&self, lane: Lane) {
        lock(&self.lanes).take_back(lane);
        self.returned.notify_all();
    }

    /// The memory of this disk that holds a view, and the offset; `None` if it is not registered.
    pub(crate) fn find(&self, view: &View) -> Option<(Arc<Registered>, u64)> {
        let known = lock(&self.known);
        let (start, length_bytes) = (view.address(), view.length_bytes());
        let candidates = known.iter().filter(|known| known.start <= start);
        let registered = candidates.max_by_key(|known| known.start)?.registered.upgrade()?;
        drop(known);
        let offset_bytes = registered.offset_of(start, length_bytes)?;
        Some((registered, offset_bytes))
    }

    /// `memory` is no longer in use.
    pub(crate) fn forget(&self, memory: &ClientMemory) {
        // The last use in a child is not that of the parent.
        if self.opener.is_inherited() {
            return;
        }
        let start = memory.base().as_ptr().addr();
        lock(&self.known).retain(|known| known.start != start);
        // A daemon that is gone has unmapped it; one that refuses keeps it until the disk is closed.
        let _ = self.with_disk(|disk| disk.unregister(memory));
    }

    /// After the daemon was lost: attach again if the disk was opened so, and resubmit what has no answer.
    pub(crate) fn reconnect(&self, queue: &mut Queue) -> Result<(), Failure> {
        if !self.reconnects() {
            return Err(Error::Disconnected.into());
        }
        let attempt = || self.with_disk(|disk| disk.attach_again(std::slice::from_mut(queue)));
        let is_transient = |failure: &Failure| matches!(failure, Failure::Client(error) if error.is_transient());
        keep_trying(self.reconnect_for, attempt, is_transient)
    }
}
