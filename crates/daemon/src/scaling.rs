//! The workers under their governor: samples of how busy they are, taken by the thread that accepts clients, and what it decides of them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fipsee_ring::clock;
use fipsee_serve::governor::{Action, Governor, Mode, Move, SLOW_TICK, Sample, TICK};
use fipsee_serve::{Assignment, Command, Pool, QueueName, WakeUp};

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
    /// What the governor wants moved.
    wanted: VecDeque<Move>,
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
            }),
            workers,
        };
        if scaling.is_needed() {
            for worker in &scaling.workers {
                let _ = worker.counters.wakes_up.set(Arc::clone(&scaling.wake_up));
            }
            let mut state = scaling.state();
            let _ = scaling.park(&state);
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
    /// use any more.
    pub(crate) fn tick(&self, is_moving: bool) -> Vec<usize> {
        let (mut state, mut left) = (self.state(), Vec::new());
        if state.next.is_none_or(|next| Instant::now() < next) {
            return left;
        }
        let busy = self.busy_shares(&mut state);
        let loads = std::mem::take(&mut *self.reported.lock().unwrap_or_else(PoisonError::into_inner));
        let is_moving = is_moving || !state.wanted.is_empty();
        let State { governor, usable, .. } = &mut *state;
        let now = Duration::from_nanos(clock::ticks_to_ns(clock::ticks()));
        let actions = governor.sample(&Sample { now, busy: &busy, loads: &loads, usable, is_moving });
        for action in actions {
            match action {
                Action::Use(workers) => {
                    tracing::info!(workers, "another number of workers serves");
                    left.extend(self.park(&state));
                }
                Action::Move(wanted) => state.wanted.push_back(wanted),
            }
        }
        let busiest = busy.iter().copied().fold(0.0, f64::max);
        state.next = Some(Instant::now() + if busiest > HARDLY_BUSY { TICK } else { SLOW_TICK });
        self.ask_for_loads(&busy);
        if state.governor.is_at_rest(state.usable.len()) && state.wanted.is_empty() {
            self.wait_for_work(&mut state);
        }
        left
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

    /// New queues go to the workers in use alone. Returns the others.
    fn park(&self, state: &State) -> Vec<usize> {
        let (in_use, parked) = state.usable.split_at(state.governor.count().min(state.usable.len()));
        in_use.iter().for_each(|worker| self.workers[*worker].counters.pool.set(Pool::SHARED));
        parked.iter().for_each(|worker| self.workers[*worker].counters.pool.set(Pool::PARKED));
        parked.to_vec()
    }

    /// The next move that the governor wants.
    pub(crate) fn wanted_move(&self) -> Option<(QueueName, usize)> {
        self.state().wanted.pop_front().map(|Move { queue, to }| (queue, to))
    }

    /// The worker that is to have a queue less, and where that goes: no queue stays at a worker that is not in use; those that do not work
    /// are shared by their number.
    pub(crate) fn uneven(&self) -> Option<(usize, Assignment)> {
        let has_strays = |worker: &WorkerHandle| {
            let counters = &worker.counters;
            counters.pool.is_parked() && counters.queues.load(std::sync::atomic::Ordering::Relaxed) > 0
        };
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
