//! The workers under their governor: samples of how busy they are, taken by the thread that accepts clients, and what it decides of them.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fipsee_ring::clock;
use fipsee_serve::governor::{Action, Governor, Mode, Move, SLOW_TICK, Sample, TICK};
use fipsee_serve::{Assignment, Command, Pool, QueueName, WakeUp};

use crate::export::Export;
use crate::worker::WorkerHandle;

/// Below this busy share a worker is hardly busy, and is not asked for its queues.
const HARDLY_BUSY: f64 = 0.05;

/// What workers reported of their queues since the last sample.
type Reported = Arc<Mutex<Vec<(QueueName, usize, u64)>>>;

pub(crate) struct Scaling {
    workers: Vec<WorkerHandle>,
    /// Rings when a worker wakes up while no sample is due.
    pub(crate) wake_up: Arc<WakeUp>,
    since_ticks: u64,
    reported: Reported,
    state: Mutex<State>,
}

struct State {
    governor: Governor,
    /// The workers that may be used, in the order in which they are.
    usable: Vec<usize>,
    /// Of each worker, when the last sample was taken.
    idle_ticks: Vec<u64>,
    sampled_ticks: u64,
    /// When the next sample is to be taken; `None`: when a worker wakes up.
    next: Option<Instant>,
    /// What is to be moved.
    wanted: VecDeque<Move>,
    dedicated: Vec<Dedicated>,
}

/// A disk with a worker to itself.
struct Dedicated {
    export: Arc<Export>,
    worker: usize,
    /// The queues of other disks have left it.
    is_ready: bool,
}

impl Scaling {
    pub(crate) fn new(workers: Vec<WorkerHandle>, mode: Mode) -> std::io::Result<Self> {
        let now = clock::ticks();
        let scaling = Self {
            wake_up: Arc::new(WakeUp::new()?),
            since_ticks: now,
            reported: Arc::default(),
            state: Mutex::new(State {
                governor: Governor::new(mode, workers.len()),
                usable: (0..workers.len()).collect(),
                idle_ticks: workers.iter().map(|worker| worker.counters.idle.until(now)).collect(),
                sampled_ticks: now,
                next: None,
                wanted: VecDeque::new(),
                dedicated: Vec::new(),
            }),
            workers,
        };
        if scaling.is_needed() {
            for worker in &scaling.workers {
                let _ = worker.counters.wakes_up.set(Arc::clone(&scaling.wake_up));
            }
            let mut state = scaling.state();
            scaling.park(&state);
            scaling.wait_for_work(&mut state);
        }
        Ok(scaling)
    }

    /// Is there anything to decide?
    fn is_needed(&self) -> bool {
        self.workers.len() > 1
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn mode(&self) -> Mode {
        self.state().governor.mode()
    }

    /// Workers in use.
    pub(crate) fn count(&self) -> usize {
        self.state().governor.count()
    }

    pub(crate) fn set_mode(&self, mode: Mode) {
        let mut state = self.state();
        if state.governor.mode() != mode && self.is_needed() {
            state.next = Some(Instant::now());
            self.wake_up.doorbell.ring();
        }
        state.governor.set_mode(mode);
    }

    /// For how long a worker was busy, and since when that is measured.
    pub(crate) fn busy_ticks(&self, worker: usize) -> (u64, u64) {
        let now = clock::ticks();
        let measured = now.saturating_sub(self.since_ticks);
        (measured.saturating_sub(self.workers[worker].counters.idle.until(now)), measured)
    }

    pub(crate) fn next_tick(&self) -> Option<Duration> {
        self.state().next.map(|next| next.saturating_duration_since(Instant::now()))
    }

    /// A worker has woken up.
    pub(crate) fn wake(&self) {
        let mut state = self.state();
        if state.next.is_none() {
            self.begin(&mut state);
        }
    }

    /// Samples from now on.
    fn begin(&self, state: &mut State) {
        let now = clock::ticks();
        state.idle_ticks = self.workers.iter().map(|worker| worker.counters.idle.until(now)).collect();
        state.sampled_ticks = now;
        state.next = Some(Instant::now() + TICK);
    }

    /// Take a sample, if it is time, and do what follows from it; `is_moving`: a queue is on its way. Returns the workers that are not in
    /// use and have queues.
    pub(crate) fn tick(&self, is_moving: bool) -> Vec<usize> {
        let mut state = self.state();
        if state.next.is_none_or(|next| Instant::now() < next) {
            return Vec::new();
        }
        let busy = self.busy_shares(&mut state);
        let loads = std::mem::take(&mut *self.reported.lock().unwrap_or_else(PoisonError::into_inner));
        let is_moving = is_moving || !state.wanted.is_empty();
        self.dedicate_what_is_free(&mut state);
        let State { governor, usable, dedicated, .. } = &mut *state;
        let is_governed = |(queue, worker, _): &(QueueName, usize, u64)| {
            dedicated.iter().all(|of| of.worker != *worker && !of.export.queues().contains(queue))
        };
        let loads: Vec<_> = if dedicated.is_empty() { loads } else { loads.into_iter().filter(is_governed).collect() };
        let now = Duration::from_nanos(clock::ticks_to_ns(clock::ticks()));
        let actions = governor.sample(&Sample { now, busy: &busy, loads: &loads, usable, is_moving });
        for action in actions {
            match action {
                Action::Use(workers) => {
                    tracing::info!(workers, "another number of workers serves");
                }
                Action::Move(wanted) => state.wanted.push_back(wanted),
            }
        }
        self.park(&state);
        let busiest = busy.iter().copied().fold(0.0, f64::max);
        state.next = Some(Instant::now() + if busiest > HARDLY_BUSY { TICK } else { SLOW_TICK });
        self.ask_for_loads(&busy);
        let is_stray = |worker: &WorkerHandle| worker.counters.pool.is_parked() && assigned_to(worker) > 0;
        let strays: Vec<_> = (0..self.workers.len()).filter(|worker| is_stray(&self.workers[*worker])).collect();
        let is_settled = state.wanted.is_empty() && strays.is_empty() && state.dedicated.iter().all(|of| of.is_ready);
        if is_settled && state.governor.is_at_rest(state.usable.len()) {
            self.wait_for_work(&mut state);
        }
        strays
    }

    /// Since the last sample.
    #[allow(clippy::cast_precision_loss, reason = "a share needs few digits")]
    fn busy_shares(&self, state: &mut State) -> Vec<f64> {
        let now = clock::ticks();
        let elapsed = now.saturating_sub(state.sampled_ticks).max(1);
        state.sampled_ticks = now;
        let share = |(worker, before): (&WorkerHandle, &mut u64)| {
            let idle = worker.counters.idle.until(now);
            let idle_since = idle.saturating_sub(std::mem::replace(before, idle));
            1.0 - (idle_since as f64 / elapsed as f64).min(1.0)
        };
        self.workers.iter().zip(&mut state.idle_ticks).map(share).collect()
    }

    /// What each queue was served; the answers are there at the next sample. A worker that sleeps is not woken for that.
    fn ask_for_loads(&self, busy: &[f64]) {
        for (index, (worker, busy)) in self.workers.iter().zip(busy).enumerate() {
            if *busy > HARDLY_BUSY && !worker.counters.idle.is_asleep() {
                let to = Arc::clone(&self.reported);
                let report = move |loads: Vec<(QueueName, u64)>| {
                    let mut to = to.lock().unwrap_or_else(PoisonError::into_inner);
                    to.extend(loads.into_iter().map(|(queue, units)| (queue, index, units)));
                };
                worker.mailbox.send(Command::Loads(Box::new(report)));
            }
        }
    }

    /// Take no samples while all workers sleep.
    fn wait_for_work(&self, state: &mut State) {
        state.next = None;
        self.wake_up.want();
        if self.workers.iter().any(|worker| !worker.counters.idle.is_asleep()) {
            state.next = Some(Instant::now() + SLOW_TICK);
        }
    }

    /// New queues go to the workers in use alone.
    fn park(&self, state: &State) {
        for (place, worker) in state.usable.iter().enumerate() {
            let pool = if place < state.governor.count() { Pool::SHARED } else { Pool::PARKED };
            self.workers[*worker].counters.pool.set(pool);
        }
    }

    /// Workers without other queues serve the disks that they are for.
    fn dedicate_what_is_free(&self, state: &mut State) {
        let State { dedicated, wanted, .. } = state;
        for Dedicated { export, worker, is_ready } in dedicated.iter_mut().filter(|of| !of.is_ready) {
            let counters = &self.workers[*worker].counters;
            if assigned_to(&self.workers[*worker]) == 0 {
                let number = *worker as u64 + 1;
                counters.pool.set(number);
                export.pool.set(number);
                wanted.extend(export.queues().into_iter().map(|queue| Move { queue, to: *worker }));
                *is_ready = true;
                tracing::info!(disk = export.name(), worker, "has a worker to itself");
            }
        }
    }

    /// Can these have a worker each?
    pub(crate) fn check_dedicated(&self, exports: &[Arc<Export>]) -> Result<(), String> {
        let started = self.workers.len();
        if exports.is_empty() || exports.len() < started {
            return Ok(());
        }
        let names: Vec<_> = exports.iter().take(8).map(|export| format!("'{}'", export.name())).collect();
        Err(format!(
            "{} with a worker to itself (dedicated: {}), and {started} started, of which one is for all other disks; start {} (--workers, \
             workers), or dedicate fewer",
            if exports.len() == 1 { "there is a disk".to_owned() } else { format!("there are {} disks, each", exports.len()) },
            names.join(", "),
            exports.len() + 1
        ))
    }

    /// These have a worker each from now on, and no others; checked before.
    pub(crate) fn dedicate(&self, exports: &[Arc<Export>]) {
        let mut state = self.state();
        let is_meant = |of: &Dedicated| exports.iter().any(|export| Arc::ptr_eq(export, &of.export));
        let freed: Vec<_> = state.dedicated.extract_if(.., |of| !is_meant(of)).collect();
        for Dedicated { export, worker, .. } in freed {
            export.pool.set(Pool::SHARED);
            state.usable.push(worker);
            state.usable.sort_unstable();
        }
        for export in exports {
            if state.dedicated.iter().any(|of| Arc::ptr_eq(&of.export, export)) || state.usable.len() < 2 {
                continue;
            }
            // The last is the first that is not needed otherwise.
            let Some(worker) = state.usable.pop() else { return };
            self.workers[worker].counters.pool.set(Pool::PARKED);
            state.dedicated.push(Dedicated { export: Arc::clone(export), worker, is_ready: false });
        }
        self.dedicate_what_is_free(&mut state);
        self.park(&state);
        if self.is_needed() {
            state.next = Some(Instant::now());
            self.wake_up.doorbell.ring();
        }
    }

    /// As [`dedicate`](Self::dedicate), for one disk.
    pub(crate) fn set_dedicated(&self, export: &Arc<Export>, dedicated: bool) -> Result<(), String> {
        let mut exports: Vec<_> = self.state().dedicated.iter().map(|of| Arc::clone(&of.export)).collect();
        exports.retain(|other| !Arc::ptr_eq(other, export));
        if dedicated {
            exports.push(Arc::clone(export));
            self.check_dedicated(&exports)?;
        }
        self.dedicate(&exports);
        Ok(())
    }

    /// The disk is served no longer.
    pub(crate) fn remove(&self, export: &Arc<Export>) {
        if self.is_dedicated(export) {
            let _ = self.set_dedicated(export, false);
        }
    }

    pub(crate) fn is_dedicated(&self, export: &Export) -> bool {
        self.state().dedicated.iter().any(|of| std::ptr::eq(&raw const *of.export, export))
    }

    /// The disk that has a worker to itself.
    pub(crate) fn dedicated_to(&self, worker: usize) -> Option<String> {
        self.state().dedicated.iter().find(|of| of.worker == worker).map(|of| of.export.name().to_owned())
    }

    /// The next move that the governor wants.
    pub(crate) fn wanted_move(&self) -> Option<(QueueName, usize)> {
        let mut state = self.state();
        loop {
            let Move { queue, to } = state.wanted.pop_front()?;
            // It may have become the queue of a disk with a worker to itself.
            let belongs = state.dedicated.iter().find(|of| of.is_ready && of.export.queues().contains(&queue));
            if belongs.is_none_or(|of| of.worker == to) {
                return Some((queue, to));
            }
        }
    }

    /// The worker that is to have a queue less, and where that goes: no queue stays at a worker that is not in use; those that do not work
    /// are shared by their number.
    pub(crate) fn uneven(&self) -> Option<(usize, Assignment)> {
        let has_strays = |worker: &WorkerHandle| worker.counters.pool.is_parked() && assigned_to(worker) > 0;
        if let Some(from) = self.workers.iter().position(has_strays) {
            return Some((from, Assignment::choose(&self.workers)));
        }
        if self.mode() == Mode::Off { None } else { Assignment::uneven(&self.workers) }
    }

    /// Queues that work are moved by what they take of their workers, not by their number: unless there is a worker that does nothing.
    pub(crate) fn may_balance(&self, queue: QueueName) -> bool {
        let state = self.state();
        let Some(worker) = state.governor.worker_of(queue) else { return true };
        let does_nothing = |(index, worker): (usize, &WorkerHandle)| {
            worker.counters.pool.number() == Pool::SHARED && state.governor.is_idle(index)
        };
        self.workers[worker].counters.pool.is_parked() || self.workers.iter().enumerate().any(does_nothing)
    }
}

fn assigned_to(worker: &WorkerHandle) -> u64 {
    worker.counters.assigned.load(Ordering::Relaxed)
}
