//! A worker: one thread with a list of queues, which it visits by turns.
//!
//! Active queues are visited every pass, unless their group has had its share ([`crate::share`]); of the idle ones a few are sampled per pass, by looking at 16 bytes each
//! (docs/decisions/0004-hot-and-cold-queues.md). A worker that finds nothing for a while arms all doorbells and sleeps.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fipsee_ring::clock;
use fipsee_ring::mailbox::Mailbox;
use fipsee_ring::tuning::Choices;
use fipsee_ring::wait::{Backoff, Next, WaitMode};
use fipsee_topology::pin;
use rustix::event::{Timespec, epoll};

use crate::assignment::Pool;
use crate::meter::{IdleTime, Meter, WakesUp};
use crate::poll_set::{PollSet, Slot};
use crate::{Added, Change, Command, Engine, Make, NotAdded, Queue, QueueName, Quiesce, Removed, Share, When, Which, probe};

/// Most completions of asynchronous work that are looked at before the first of them are answered, so that the clients' next requests
/// are under way: what ends at once may be a queue's worth.
const MOST_REPORTED: usize = 14;

const TOKEN_MAILBOX: u64 = u64::MAX;
const TOKEN_ENGINE: u64 = u64::MAX - 1;

/// Why a worker woke, for tracers (docs/guide/tracing.md).
const WAKE_TIME: u32 = 0;
const WAKE_DOORBELL: u32 = 1;
const WAKE_COMMAND: u32 = 2;
const WAKE_ENGINE: u32 = 3;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerPlacement {
    /// The CPU it is bound to, if any.
    pub cpu: Option<usize>,
    /// The NUMA node of that, on a machine with several.
    pub node: Option<usize>,
    /// How its ends of rings go about their work, and what its clients are advised.
    pub choices: Choices,
}

#[derive(Debug, Default)]
pub struct WorkerCounters {
    pub queues: AtomicU64,
    pub sleeps: AtomicU64,
    /// Queues that were assigned to it.
    pub assigned: AtomicU64,
    /// The kernel's number of its thread, if it has one of its own.
    pub thread: AtomicI32,
    /// Which queues are assigned to it.
    pub pool: Pool,
    pub idle: IdleTime,
    pub wakes_up: WakesUp,
}

pub struct WorkerHandle<E: Engine> {
    pub mailbox: Arc<Mailbox<Command<E>>>,
    pub counters: Arc<WorkerCounters>,
    place: Arc<Mutex<WorkerPlacement>>,
}

impl<E: Engine> Clone for WorkerHandle<E> {
    fn clone(&self) -> Self {
        Self { mailbox: Arc::clone(&self.mailbox), counters: Arc::clone(&self.counters), place: Arc::clone(&self.place) }
    }
}

impl<E: Engine> WorkerHandle<E> {
    pub fn place(&self) -> WorkerPlacement {
        *self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is there from now on. Without a CPU of its own, it runs on any of these.
    pub fn set_place(&self, place: WorkerPlacement, any: &[usize]) {
        *self.place.lock().unwrap_or_else(PoisonError::into_inner) = place;
        self.mailbox.send(Command::Bind(place.cpu.map_or_else(|| any.to_vec(), |cpu| vec![cpu])));
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// There was work: there may be more.
    Worked,
    /// There was none: [`rest`](Worker::rest) waits for some.
    Idle,
    /// It was asked to stop, and every queue is gone.
    Stopped,
}

/// A worker, on a thread of its own ([`spawn`]), or driven pass by pass.
pub struct Worker<E: Engine> {
    pub(crate) queues: PollSet<E>,
    /// Queues that are closing or have changes that wait.
    unsettled: Vec<u32>,
    touched: Vec<u32>,
    pub(crate) engine: E,
    engine_watched: bool,
    epoll: OwnedFd,
    handle: WorkerHandle<E>,
    backoff: Backoff,
    meter: Meter,
    /// Commands that came together with one that has the worker quiesce.
    pub(crate) deferred: Vec<Command<E>>,
    /// It is to quiesce, or has; the deadline for requests in flight.
    pub(crate) quiescing: Option<(Quiesce, Instant)>,
    pub(crate) stopping: bool,
}

/// Start a worker on a thread of its own; `engine` is made there.
pub fn spawn<E: Engine>(
    index: usize,
    place: WorkerPlacement,
    wait: WaitMode,
    look: Duration,
    engine: impl FnOnce() -> io::Result<E> + Send + 'static,
) -> io::Result<(WorkerHandle<E>, JoinHandle<()>)> {
    let (handle, epoll) = prepare(place)?;
    let given = handle.clone();
    let thread = std::thread::Builder::new().name(format!("fip-worker-{index}")).spawn(move || {
        let _guard = AbortOnPanic;
        given.counters.thread.store(rustix::thread::gettid().as_raw_pid(), Ordering::Relaxed);
        if let Some(cpu) = place.cpu
            && let Err(error) = pin::bind(cpu)
        {
            tracing::warn!(cpu, %error, "cannot bind the worker to its CPU; it runs wherever the scheduler puts it");
        }
        match engine() {
            Ok(engine) => Worker::assemble(given, epoll, Backoff::new(wait, look), engine).run(),
            Err(error) => tracing::error!(index, %error, "a worker cannot prepare for asynchronous I/O"),
        }
    })?;
    Ok((handle, thread))
}

fn prepare<E: Engine>(place: WorkerPlacement) -> io::Result<(WorkerHandle<E>, OwnedFd)> {
    let handle =
        WorkerHandle { mailbox: Arc::new(Mailbox::new()?), counters: Arc::default(), place: Arc::new(Mutex::new(place)) };
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let on = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&epoll, &*handle.mailbox, epoll::EventData::new_u64(TOKEN_MAILBOX), on)?;
    Ok((handle, epoll))
}

/// A thread that panics while it has this aborts the process: clients then see a hang-up instead of silence.
#[derive(Debug)]
pub struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

impl<E: Engine> Worker<E> {
    /// A worker of the caller's thread, and how to reach it.
    pub fn new(place: WorkerPlacement, backoff: Backoff, engine: E) -> io::Result<(Self, WorkerHandle<E>)> {
        let (handle, epoll) = prepare(place)?;
        Ok((Self::assemble(handle.clone(), epoll, backoff, engine), handle))
    }

    fn assemble(handle: WorkerHandle<E>, epoll: OwnedFd, backoff: Backoff, engine: E) -> Self {
        Self {
            queues: PollSet::default(),
            unsettled: Vec::new(),
            touched: Vec::new(),
            engine,
            engine_watched: false,
            epoll,
            handle,
            backoff,
            meter: Meter::default(),
            deferred: Vec::new(),
            quiescing: None,
            stopping: false,
        }
    }

    fn run(mut self) {
        loop {
            match self.pass() {
                Pass::Worked => self.worked(),
                Pass::Idle => self.rest(None),
                Pass::Stopped => return,
            }
        }
    }

    /// Look at what the engine has ended and into the mailbox, then at every active queue and a few idle ones, without waiting.
    /// Queues come last, so that a caller with queues that hand requests out gets them with nothing in between.
    #[inline(always)]
    pub fn pass(&mut self) -> Pass {
        if self.quiescing.is_some() {
            return self.quiesce();
        }
        let mut work = 0;
        if self.engine.in_flight() > 0 {
            work += self.run_engine();
        }
        if !self.unsettled.is_empty() {
            self.settle();
        }
        if self.handle.mailbox.has_messages() {
            self.run_commands();
            work += 1;
            if self.quiescing.is_some() {
                return Pass::Worked;
            }
        }
        if self.queues.has_due() {
            self.queues.flush_due();
        }
        work += self.queues.visit_active(&mut self.engine) + self.queues.sample_idle();
        match work {
            0 if self.stopping && self.queues.is_empty() => Pass::Stopped,
            0 => Pass::Idle,
            _ => Pass::Worked,
        }
    }

    /// Does it serve a single queue, and has it nothing else to do? Then a caller that has what the queue handed out may look for
    /// more by itself for a while.
    #[inline(always)]
    pub fn has_one_queue_only(&self) -> bool {
        self.queues.has_one() && self.unsettled.is_empty() && !self.handle.mailbox.has_messages()
    }

    /// There was work: the next wait begins with looking.
    #[inline(always)]
    pub const fn worked(&mut self) {
        self.backoff.reset();
        self.meter.worked();
    }

    /// After a pass that found nothing: one step of waiting, of which the last is to sleep, until `deadline_ticks` at most. While
    /// work is under way, what comes next is no write to a ring.
    #[inline(always)]
    pub fn rest(&mut self, deadline_ticks: Option<u64>) {
        if self.quiescing.is_some() {
            return self.rest_quiesced();
        }
        self.meter.idle(&self.handle.counters.idle);
        if self.queues.is_empty() && self.handle.counters.pool.is_unused() && self.nothing_remains_after_arming() {
            // However it waits otherwise: nothing can come but a command.
            let _ = self.sleep(deadline_ticks);
            return;
        }
        let expected = self.engine.in_flight() > 0;
        let next = self.backoff.step_watching(expected, || if expected { None } else { self.queues.watch() });
        if next == Next::Sleep && self.nothing_remains_after_arming() {
            self.sleep(deadline_ticks);
            self.backoff.reset();
        }
    }

    /// Where its queues begin asynchronous work.
    #[inline(always)]
    pub const fn engine(&mut self) -> &mut E {
        &mut self.engine
    }

    #[inline(always)]
    pub fn queue(&mut self, id: u32) -> Option<&mut dyn Queue<E>> {
        self.queues.get_mut(id as usize).map(|slot| &mut *slot.queue)
    }

    /// The caller has published for this queue, outside of a pass, and may have held a notification back.
    pub fn published(&mut self, id: u32) {
        self.queues.list_due(id as usize);
    }

    /// Begin what was submitted, and report what has ended. A pass has asked every active queue, so it makes room for as many requests: with
    /// fewer places than queues each would be asked in vain many times before its turn.
    pub(crate) fn run_engine(&mut self) -> u32 {
        self.engine.flush();
        let (most, mut finished) = (self.queues.active_count(), 0);
        loop {
            let reported = self.report_ended();
            finished += reported;
            if reported < MOST_REPORTED || finished >= most {
                return u32::try_from(finished).unwrap_or(u32::MAX);
            }
        }
    }

    fn report_ended(&mut self) -> usize {
        let (queues, touched) = (&mut self.queues, &mut self.touched);
        let finished = self.engine.poll(MOST_REPORTED, &mut |ticket, status| {
            let id = E::queue_of(ticket);
            if let Some(slot) = queues.get_mut(id as usize) {
                slot.queue.finish(ticket, status);
                if touched.last() != Some(&id) {
                    touched.push(id);
                }
            }
        });
        for id in self.touched.drain(..) {
            if let Some(slot) = self.queues.get_mut(id as usize) {
                slot.queue.flush();
                if slot.due.may_be {
                    self.queues.list_due(id as usize);
                }
            }
            self.queues.ended(id as usize);
        }
        finished
    }

    #[cold]
    pub(crate) fn settle(&mut self) {
        for id in std::mem::take(&mut self.unsettled) {
            let Some(slot) = self.queues.get_mut(id as usize) else { continue };
            let idle = !slot.queue.begin_deferred(&mut self.engine) && slot.queue.in_flight() == 0;
            if idle && !slot.changes.is_empty() {
                slot.apply_changes();
                self.queues.changed(id as usize);
            }
            let Some(slot) = self.queues.get_mut(id as usize) else { continue };
            if idle && slot.closing.is_some() && (slot.left == 0 || !slot.queue.has_work()) {
                self.remove(id as usize).into_iter().for_each(Slot::hand_back);
            } else if !idle || slot.closing.is_some() {
                self.unsettled.push(id);
                self.queues.activate(id as usize);
            }
        }
    }

    pub(crate) fn remove(&mut self, id: usize) -> Option<Slot<E>> {
        let slot = self.queues.remove(id)?;
        let _ = slot.queue.doorbell().map(|doorbell| epoll::delete(&self.epoll, doorbell));
        self.handle.counters.queues.fetch_sub(1, Ordering::Relaxed);
        Some(slot)
    }

    #[cold]
    pub(crate) fn run_commands(&mut self) {
        let mut commands = std::mem::take(&mut self.deferred);
        commands.append(&mut self.handle.mailbox.take());
        let mut commands = commands.into_iter();
        while let Some(command) = commands.next() {
            match command {
                Command::Add { name, share, make, added } => self.add(name, share, make, added),
                Command::Change { which, when, change } => self.change(which, when, change),
                Command::Remove { which, finish, removed } => self.begin_removal(which, finish, removed),
                Command::Loads(report) => report(self.queues.take_loads()),
                Command::Bind(cpus) => {
                    if let Err(error) = pin::bind_to_any(&cpus) {
                        tracing::warn!(?cpus, %error, "cannot bind a worker; it runs wherever the scheduler puts it");
                    }
                }
                Command::StartEngine(done) => {
                    if let Err(error) = self.engine.start() {
                        tracing::error!(error, "a worker has no asynchronous I/O");
                    }
                    drop(done);
                }
                Command::Quiesce(order) => {
                    let deadline = Instant::now() + order.timeout;
                    self.quiescing = Some((order, deadline));
                    self.deferred = commands.collect();
                    return;
                }
                Command::LimitsChanged => self.queues.limits_changed(),
                Command::LiftLimits => self.queues.lift_limits(),
                Command::Stop => self.stopping = true,
            }
        }
    }

    fn add(&mut self, name: QueueName, share: Share, make: Make<E>, added: Added<E>) {
        let id = self.queues.next_id();
        let queue = make(u32::try_from(id).unwrap_or(u32::MAX)).map_err(NotAdded::NotMade);
        added(queue.and_then(|queue| {
            let on = epoll::EventFlags::IN | epoll::EventFlags::ET;
            let watch = |doorbell| epoll::add(&self.epoll, doorbell, epoll::EventData::new_u64(id as u64), on);
            if let Err(error) = queue.doorbell().map_or(Ok(()), watch) {
                return Err(NotAdded::Doorbell(error.into(), queue, share));
            }
            self.queues.add(Slot::new(queue, name, share));
            self.handle.counters.queues.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }));
    }

    fn change(&mut self, which: Which, when: When, mut change: Change<E>) {
        if when == When::Now {
            let meant = self.queues.meant(which);
            let changed: Vec<usize> = meant.map(|(id, slot)| (id, change(&mut *slot.queue)).0).collect();
            return changed.into_iter().for_each(|id| self.queues.changed(id));
        }
        let change = Arc::new(Mutex::new(change));
        self.unsettle(which, |slot| slot.changes.push(Arc::clone(&change)));
    }

    fn begin_removal(&mut self, which: Which, finish: bool, removed: Removed<E>) {
        let removed = Arc::new(Mutex::new(removed));
        self.unsettle(which, |slot| {
            let left = if finish { slot.queue.depth() } else { 0 };
            slot.left = left;
            slot.closing = Some(Arc::clone(&removed));
        });
        self.queues.closing();
    }

    fn unsettle(&mut self, which: Which, mut order: impl FnMut(&mut Slot<E>)) {
        for (id, slot) in self.queues.meant(which) {
            order(slot);
            self.unsettled.push(u32::try_from(id).unwrap_or(u32::MAX));
        }
        self.settle();
    }

    /// Before [`sleep`](Self::sleep): ask every client for its doorbell, then look once more. `false`: the worker has something
    /// to do.
    pub fn nothing_remains_after_arming(&mut self) -> bool {
        let settles = self.engine.in_flight() == 0 && self.unsettled.iter().any(|id| !self.queues.is_throttled(*id as usize));
        if self.quiescing.is_some() || self.engine.has_unsent() || settles {
            return false;
        }
        let mut waiting = Vec::new();
        for (id, slot) in self.queues.iter_mut().filter(|(_, slot)| slot.takes_requests() && !slot.is_held_back()) {
            if slot.queue.arm_and_work_remains() {
                waiting.push(id);
            }
        }
        for id in &waiting {
            self.queues.activate(*id);
        }
        waiting.is_empty() && !self.handle.mailbox.has_messages()
    }

    /// Wait for a doorbell, a command or the engine, until `deadline_ticks` at most. Was it one of these?
    #[cold]
    pub fn sleep(&mut self, deadline_ticks: Option<u64>) -> bool {
        if self.engine.in_flight() > 0 {
            self.watch_engine();
        }
        self.handle.counters.sleeps.fetch_add(1, Ordering::Relaxed);
        probe!(sleep, self.handle.counters.queues.load(Ordering::Relaxed));
        self.meter.falls_asleep(&self.handle.counters.idle);
        let mut events = Vec::<epoll::Event>::with_capacity(64);
        let deadlines = [deadline_ticks, self.queues.next_due(), self.queues.throttled_until()].into_iter().flatten();
        let until = self.engine.time_to_look().into_iter().chain(deadlines.map(clock::until)).min();
        let timeout = until.and_then(|left| Timespec::try_from(left).ok());
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
            Ok(0) => self.engine.look_for_stalled(),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => tracing::error!(%error, "epoll failed"),
        }
        self.meter.wakes(&self.handle.counters.idle, &self.handle.counters.wakes_up);
        let is_woken = !events.is_empty();
        if !is_woken {
            probe!(wake, WAKE_TIME, 0, 0);
        }
        for event in events {
            // Those of the mailbox and the engine are no queue's.
            let id = usize::try_from(event.data.u64()).unwrap_or(usize::MAX);
            if let Some(slot) = self.queues.get_mut(id) {
                probe!(wake, WAKE_DOORBELL, slot.name.client, slot.name.index);
                // A doorbell that ever rang is ready as soon as it is watched.
                if !std::mem::take(&mut slot.is_newly_watched) {
                    slot.queue.count_doorbell();
                }
                slot.queue.doorbell_rang();
                self.queues.activate(id);
            } else {
                probe!(wake, if event.data.u64() == TOKEN_ENGINE { WAKE_ENGINE } else { WAKE_COMMAND }, 0, 0);
            }
        }
        is_woken
    }

    /// Have the kernel ring wake us; from its first use on.
    fn watch_engine(&mut self) {
        let Some(fd) = self.engine.as_fd().filter(|_| !self.engine_watched) else { return };
        match epoll::add(&self.epoll, fd, epoll::EventData::new_u64(TOKEN_ENGINE), epoll::EventFlags::IN) {
            Ok(()) => self.engine_watched = true,
            Err(error) => tracing::error!(%error, "cannot watch the kernel ring"),
        }
    }
}
