//! The workers under their governor: samples of how busy they are, taken by the thread that accepts clients, and what it decides of them.

mod dedicated;
mod times;

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fipsee_ring::clock;
use fipsee_serve::governor::{Action, Governor, Mode, Move, SLOW_TICK, Sample, TICK};
use fipsee_serve::{Assignment, Command, Pool, QueueName, WakeUp};
use fipsee_topology::{cpu_list, pin};

use self::dedicated::{Dedicated, number_of};
use self::times::{PUBLISHED_EVERY, QueueTimes};
use crate::live::Live;
use crate::placement::{self, Places};
use crate::worker::{WaitedForCpu, WorkerHandle};

/// Below this busy share a worker is hardly busy, and is not asked for its queues.
const HARDLY_BUSY: f64 = 0.05;

/// How often the CPUs that may be used are looked at, while workers work.
const CPU_TICK: Duration = Duration::from_secs(1);

/// What workers reported of their queues since the last sample.
type Reported = Arc<Mutex<Vec<(QueueName, usize, u64)>>>;

pub(crate) struct Scaling {
    workers: Vec<WorkerHandle>,
    /// Rings when a worker wakes up while no sample is due.
    pub(crate) wake_up: Arc<WakeUp>,
    live: Arc<Live>,
    places: Arc<Places>,
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
    waited: Vec<WaitedForCpu>,
    /// In how many ticks in a row each was asked for the loads of its queues.
    asked: Vec<u32>,
    sampled_ticks: u64,
    /// When the next sample is to be taken; `None`: when a worker wakes up.
    next: Option<Instant>,
    times: QueueTimes,
    /// What is to be moved.
    wanted: VecDeque<Move>,
    /// Since the last sample it was found that none of the queues that are to move because of [`Scaling::uneven`] may.
    stays_uneven: bool,
    dedicated: Vec<Dedicated>,
    /// An owner has no worker to itself any more, and its queues may be there.
    has_freed: bool,
    /// The CPUs that may be used, and when they are to be looked at.
    cpus: Vec<usize>,
    next_cpus: Instant,
}

impl Scaling {
    pub(crate) fn new(live: Arc<Live>, workers: Vec<WorkerHandle>, mode: Mode, places: Arc<Places>) -> std::io::Result<Self> {
        let now = clock::ticks();
        let scaling = Self {
            wake_up: Arc::new(WakeUp::new()?),
            since_ticks: now,
            reported: Arc::default(),
            state: Mutex::new(State {
                governor: Governor::new(mode, workers.len()),
                usable: (0..workers.len()).collect(),
                idle_ticks: workers.iter().map(|worker| worker.counters.idle.until(now)).collect(),
                waited: workers.iter().map(|_| WaitedForCpu::default()).collect(),
                asked: vec![0; workers.len()],
                sampled_ticks: now,
                next: None,
                times: QueueTimes::new(workers.len(), now),
                wanted: VecDeque::new(),
                stays_uneven: false,
                dedicated: Vec::new(),
                has_freed: false,
                cpus: places.usable().to_vec(),
                next_cpus: Instant::now(),
            }),
            live,
            places,
            workers,
        };
        for worker in &scaling.workers {
            let _ = worker.counters.wakes_up.set(Arc::clone(&scaling.wake_up));
        }
        let mut state = scaling.state();
        scaling.set_pools(&mut state);
        scaling.wait_for_work(&mut state);
        drop(state);
        Ok(scaling)
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
        if state.governor.mode() != mode {
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

    /// Until when the times of its queues are counted, on the scale of the second of [`busy_ticks`](Self::busy_ticks).
    pub(crate) fn queues_measured_ticks(&self, worker: usize) -> u64 {
        self.state().times.published_ticks(worker).saturating_sub(self.since_ticks)
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
        for (worker, waited) in self.workers.iter().zip(&mut state.waited) {
            waited.since(worker);
        }
        state.sampled_ticks = now;
        state.next = Some(Instant::now() + TICK);
        state.stays_uneven = false;
    }

    /// Take a sample, if it is time, and do what follows from it; `is_moving`: a queue is on its way. May workers have queues that
    /// they are not for?
    pub(crate) fn tick(&self, is_moving: bool) -> bool {
        let mut state = self.state();
        if state.next.is_none_or(|next| Instant::now() < next) {
            return false;
        }
        state.stays_uneven = false;
        self.follow_cpus(&mut state);
        let loads = std::mem::take(&mut *self.reported.lock().unwrap_or_else(PoisonError::into_inner));
        state.times.served(&loads);
        let (busy, waited) = self.busy_shares(&mut state);
        let is_moving = is_moving || !state.wanted.is_empty();
        self.settle_dedicated(&mut state);
        let State { governor, usable, dedicated, asked, .. } = &mut *state;
        let has_choice = self.workers.len() > 1;
        // Of what is not where it belongs yet no move is carried out (`wanted_move`).
        let governs = |worker: &usize| has_choice && dedicated.iter().all(|of| of.worker != *worker);
        let is_governed = |(_, worker, _): &(QueueName, usize, u64)| busy[*worker] > HARDLY_BUSY && governs(worker);
        let loads: Vec<_> = loads.into_iter().filter(is_governed).collect();
        let fixed = loads.iter().map(|(queue, ..)| queue.client).filter(|client| self.live.stays(*client)).collect();
        let is_exact = are_exact(&loads, (0..busy.len()).filter(|worker| governs(worker) && busy[*worker] > HARDLY_BUSY), asked);
        let now = Duration::from_nanos(clock::ticks_to_ns(clock::ticks()));
        let sample = Sample { now, busy: &busy, waited, loads: &loads, fixed: &fixed, is_exact, usable, is_moving };
        let actions = governor.sample(&sample);
        for action in actions {
            match action {
                Action::Use(workers) => {
                    tracing::info!(workers, "another number of workers serves");
                }
                Action::Move(wanted) => state.wanted.push_back(wanted),
            }
        }
        self.set_pools(&mut state);
        let busiest = busy.iter().copied().fold(0.0, f64::max);
        let tick = if busiest > HARDLY_BUSY { TICK } else { SLOW_TICK };
        state.next = Some(Instant::now() + if has_choice { tick } else { PUBLISHED_EVERY });
        self.ask_for_loads(&busy, &mut state);
        state.times.publish(&self.live);
        let has_strays = self.strays().next().is_some();
        let is_waiting = !state.wanted.is_empty() || state.times.has_unpublished();
        let is_settled =
            busiest <= HARDLY_BUSY && !is_waiting && !has_strays && state.dedicated.iter().all(Dedicated::is_settled);
        if is_settled && state.governor.is_at_rest(state.usable.len()) {
            self.wait_for_work(&mut state);
        }
        has_strays || !state.dedicated.is_empty()
    }

    /// The workers that are not in use and have queues, beside those that stay.
    fn strays(&self) -> impl Iterator<Item = usize> + '_ {
        let is_stray = |index: usize, worker: &WorkerHandle| {
            let assigned = assigned_to(worker);
            worker.counters.pool.is_unused() && assigned > 0 && assigned > self.fixed_at(index)
        };
        (0..self.workers.len()).filter(move |index| is_stray(*index, &self.workers[*index]))
    }

    /// Its queues that stay.
    fn fixed_at(&self, worker: usize) -> u64 {
        self.live.fixed().values().filter(|queues| queues.worker == worker).map(|queues| queues.queues as u64).sum()
    }

    /// Since the last sample, and for which share of the time workers waited for a CPU.
    #[allow(clippy::cast_precision_loss, reason = "a share needs few digits")]
    fn busy_shares(&self, state: &mut State) -> (Vec<f64>, f64) {
        let now = clock::ticks();
        let elapsed = now.saturating_sub(state.sampled_ticks).max(1);
        state.sampled_ticks = now;
        let State { idle_ticks, times, waited: waits, .. } = state;
        let share = |(index, (worker, before)): (usize, (&WorkerHandle, &mut u64))| {
            let idle = worker.counters.idle.until(now);
            let idle_since = idle.saturating_sub(std::mem::replace(before, idle)).min(elapsed);
            times.busy(index, elapsed - idle_since, now);
            1.0 - idle_since as f64 / elapsed as f64
        };
        let busy = self.workers.iter().zip(idle_ticks).enumerate().map(share).collect();
        let waited: Duration = self.workers.iter().zip(waits).map(|(worker, waited)| waited.since(worker)).sum();
        (busy, waited.as_secs_f64() / Duration::from_nanos(clock::ticks_to_ns(elapsed)).as_secs_f64())
    }

    /// What each queue was served; the answers are there at the next sample. A worker that hardly works is seldom woken for that.
    fn ask_for_loads(&self, busy: &[f64], state: &mut State) {
        for (index, (worker, busy)) in self.workers.iter().zip(busy).enumerate() {
            let works = *busy > HARDLY_BUSY;
            state.asked[index] = if works { state.asked[index].saturating_add(1) } else { 0 };
            if works || state.times.wants_to_know(index) {
                state.times.asked(index, state.sampled_ticks);
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
            state.next = Some(Instant::now() + if self.workers.len() > 1 { SLOW_TICK } else { PUBLISHED_EVERY });
        }
    }

    /// The CPUs that may be used have changed: place all workers anew, and use no more than there are CPUs beside that of clients, if some
    /// have gone.
    fn follow_cpus(&self, state: &mut State) {
        let now = Instant::now();
        if now < state.next_cpus {
            return;
        }
        state.next_cpus = now + CPU_TICK;
        let Some(cpus) = self.places.usable_now().filter(|cpus| *cpus != state.cpus) else { return };
        let (list, before) = (cpu_list::format(&cpus), cpu_list::format(&state.cpus));
        tracing::warn!(cpus = list, before, "the CPUs that this daemon may use have changed; its workers are placed anew");
        let places = self.places.choose(&cpus);
        for (worker, place) in self.workers.iter().zip(&places) {
            worker.set_place(*place, &cpus);
        }
        state.cpus = cpus;
        self.set_pools(state);
        // This thread may have been left with a CPU that is a worker's alone now.
        if let Err(error) = pin::bind_to_any(&state.cpus) {
            tracing::warn!(%error, "the threads that attach clients keep to the CPUs that they had");
        }
        let least = state.governor.mode().bounds(state.usable.len()).map_or(0, |(least, _)| least);
        placement::leave_to_workers(&places[..state.governor.count().max(least).min(places.len())]);
    }

    /// New queues go to the workers in use alone.
    fn set_pools(&self, state: &mut State) {
        let State { usable, dedicated, governor, cpus, .. } = state;
        let most = if cpus.len() < self.places.usable().len() { cpus.len().saturating_sub(1) } else { usize::MAX };
        let is_free = |worker: &usize| dedicated.iter().all(|of| of.worker != *worker);
        *usable = (0..self.workers.len()).filter(is_free).take(most.saturating_sub(dedicated.len()).max(1)).collect();
        for (index, worker) in self.workers.iter().enumerate() {
            let place = usable.iter().position(|usable| *usable == index);
            let is_used = place.is_some_and(|place| place < governor.count());
            let own = dedicated.iter().any(|of| of.worker == index && of.is_ready);
            worker.counters.pool.set(match (own, is_used) {
                (true, _) => number_of(index),
                (false, true) => Pool::SHARED,
                (false, false) => Pool::UNUSED,
            });
        }
    }

    /// The next move that the governor wants.
    pub(crate) fn wanted_move(&self) -> Option<(QueueName, usize)> {
        let mut state = self.state();
        loop {
            let Move { queue, to } = state.wanted.pop_front()?;
            // Meanwhile its owner may have got a worker to itself, or the worker may be for others or in no use.
            if self.workers[to].counters.pool.number() == self.pool_of(queue) {
                return Some((queue, to));
            }
        }
    }

    /// The worker that is to have a queue less, and where that goes: no queue stays at a worker that is not in use; after these, those that
    /// do not work are shared by their number. Of a worker whose queues are all of machines, a session can move none: the next is asked for.
    pub(crate) fn uneven(&self, nth: usize) -> Option<(usize, Assignment)> {
        let state = self.state();
        if state.stays_uneven {
            return None;
        }
        if let Some(from) = self.strays().nth(nth) {
            return Some((from, Assignment::choose(&self.workers)));
        }
        let is_next = self.strays().count() == nth && state.governor.mode() != Mode::Off;
        if is_next { Assignment::uneven(&self.workers) } else { None }
    }

    /// No session has a queue that may move; another look is taken after the next sample.
    pub(crate) fn stays_uneven(&self) {
        let mut state = self.state();
        state.stays_uneven = state.next.is_some();
    }

    /// Queues that work are moved by what they take of their workers; by their number only if that makes none busier.
    pub(crate) fn may_balance(&self, queue: QueueName, from: usize, to: usize) -> bool {
        self.workers[from].counters.pool.is_unused() || self.state().governor.may_move(queue, to)
    }
}

/// Are these loads of all these workers, and served since the last sample? What the second of two questions is answered with was served
/// between them.
fn are_exact(loads: &[(QueueName, usize, u64)], mut workers: impl Iterator<Item = usize>, asked: &[u32]) -> bool {
    workers.all(|worker| asked[worker] >= 2 && loads.iter().any(|(_, of, _)| *of == worker))
}

fn assigned_to(worker: &WorkerHandle) -> u64 {
    worker.counters.assigned.load(Ordering::Relaxed)
}
