//! The workers under their governor: samples of how busy they are, taken by the thread that accepts clients, and what it decides of them.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fipsee_ring::clock;
use fipsee_serve::governor::{Action, Governor, Mode, Move, SLOW_TICK, Sample, TICK};
use fipsee_serve::{Assignment, Command, Pool, QueueName, WakeUp};
use fipsee_topology::{cpu_list, pin};

use crate::export::Export;
use crate::placement::{self, Places};
use crate::worker::{WorkerHandle, waited_for_cpu};

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
    waited: Vec<Duration>,
    /// In how many ticks in a row each was asked for the loads of its queues.
    asked: Vec<u32>,
    sampled_ticks: u64,
    /// When the next sample is to be taken; `None`: when a worker wakes up.
    next: Option<Instant>,
    /// What is to be moved.
    wanted: VecDeque<Move>,
    /// Since the last sample it was found that none of the queues that are to move because of [`Scaling::uneven`] may.
    stays_uneven: bool,
    dedicated: Vec<Dedicated>,
    /// The CPUs that may be used, and when they are to be looked at.
    cpus: Vec<usize>,
    next_cpus: Instant,
}

/// A disk with a worker to itself.
struct Dedicated {
    export: Arc<Export>,
    worker: usize,
    /// The queues of other disks have left it.
    is_ready: bool,
}

impl Scaling {
    pub(crate) fn new(workers: Vec<WorkerHandle>, mode: Mode, places: Arc<Places>) -> std::io::Result<Self> {
        let now = clock::ticks();
        let scaling = Self {
            wake_up: Arc::new(WakeUp::new()?),
            since_ticks: now,
            reported: Arc::default(),
            state: Mutex::new(State {
                governor: Governor::new(mode, workers.len()),
                usable: (0..workers.len()).collect(),
                idle_ticks: workers.iter().map(|worker| worker.counters.idle.until(now)).collect(),
                waited: vec![Duration::ZERO; workers.len()],
                asked: vec![0; workers.len()],
                sampled_ticks: now,
                next: None,
                wanted: VecDeque::new(),
                stays_uneven: false,
                dedicated: Vec::new(),
                cpus: places.usable().to_vec(),
                next_cpus: Instant::now(),
            }),
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
        state.waited = self.workers.iter().map(waited_for_cpu).collect();
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
        let (busy, waited) = self.busy_shares(&mut state);
        let loads = std::mem::take(&mut *self.reported.lock().unwrap_or_else(PoisonError::into_inner));
        // What the second of two questions is answered with was served between them.
        let is_exact = loads.iter().all(|(_, worker, _)| state.asked[*worker] >= 2);
        let is_moving = is_moving || !state.wanted.is_empty();
        self.dedicate_what_is_free(&mut state);
        let State { governor, usable, dedicated, .. } = &mut *state;
        let is_governed = |(queue, worker, _): &(QueueName, usize, u64)| {
            dedicated.iter().all(|of| of.worker != *worker && !of.export.queues().contains(queue))
        };
        let loads: Vec<_> = if dedicated.is_empty() { loads } else { loads.into_iter().filter(is_governed).collect() };
        let now = Duration::from_nanos(clock::ticks_to_ns(clock::ticks()));
        let actions = governor.sample(&Sample { now, busy: &busy, waited, loads: &loads, is_exact, usable, is_moving });
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
        let has_choice = self.workers.len() > 1;
        let tick = if busiest > HARDLY_BUSY { TICK } else { SLOW_TICK };
        state.next = Some(Instant::now() + if has_choice { tick } else { CPU_TICK });
        if has_choice {
            self.ask_for_loads(&busy, &mut state.asked);
        }
        let has_strays = self.strays().next().is_some();
        let is_settled =
            busiest <= HARDLY_BUSY && state.wanted.is_empty() && !has_strays && state.dedicated.iter().all(|of| of.is_ready);
        if is_settled && state.governor.is_at_rest(state.usable.len()) {
            self.wait_for_work(&mut state);
        }
        has_strays || !state.dedicated.is_empty()
    }

    /// The workers that are not in use and have queues.
    fn strays(&self) -> impl Iterator<Item = usize> + '_ {
        let is_stray = |worker: &WorkerHandle| worker.counters.pool.is_unused() && assigned_to(worker) > 0;
        (0..self.workers.len()).filter(move |worker| is_stray(&self.workers[*worker]))
    }

    /// Since the last sample, and for which share of the time workers waited for a CPU.
    #[allow(clippy::cast_precision_loss, reason = "a share needs few digits")]
    fn busy_shares(&self, state: &mut State) -> (Vec<f64>, f64) {
        let now = clock::ticks();
        let elapsed = now.saturating_sub(state.sampled_ticks).max(1);
        state.sampled_ticks = now;
        let share = |(worker, before): (&WorkerHandle, &mut u64)| {
            let idle = worker.counters.idle.until(now);
            let idle_since = idle.saturating_sub(std::mem::replace(before, idle));
            1.0 - (idle_since as f64 / elapsed as f64).min(1.0)
        };
        let busy = self.workers.iter().zip(&mut state.idle_ticks).map(share).collect();
        let waited = |(worker, before): (&WorkerHandle, &mut Duration)| {
            let waited = waited_for_cpu(worker);
            waited.saturating_sub(std::mem::replace(before, waited))
        };
        let waited: Duration = self.workers.iter().zip(&mut state.waited).map(waited).sum();
        (busy, waited.as_secs_f64() / Duration::from_nanos(clock::ticks_to_ns(elapsed)).as_secs_f64())
    }

    /// What each queue was served; the answers are there at the next sample. A worker that hardly works is not woken for that.
    fn ask_for_loads(&self, busy: &[f64], asked: &mut [u32]) {
        for (index, ((worker, busy), asked)) in self.workers.iter().zip(busy).zip(asked).enumerate() {
            *asked = if *busy > HARDLY_BUSY { asked.saturating_add(1) } else { 0 };
            if *asked > 0 {
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
            state.next = Some(Instant::now() + if self.workers.len() > 1 { SLOW_TICK } else { CPU_TICK });
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

    /// Workers without other queues serve the disks that they are for. Called by the thread that attaches clients, so that none is between
    /// the choice of its workers and its place in the list of the disk's queues.
    fn dedicate_what_is_free(&self, state: &mut State) {
        let State { dedicated, wanted, .. } = state;
        for Dedicated { export, worker, is_ready } in dedicated.iter_mut().filter(|of| !of.is_ready) {
            let counters = &self.workers[*worker].counters;
            if assigned_to(&self.workers[*worker]) == 0 {
                counters.pool.set(number_of(*worker));
                export.pool.set(number_of(*worker));
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
        let (disks, fewer) = match exports.len() {
            1 => (format!("disk {} is dedicated", names.join(", ")), "do not dedicate it"),
            count => (format!("{count} disks are dedicated ({})", names.join(", ")), "dedicate fewer disks"),
        };
        let workers = match started {
            1 => "1 worker was started, which".to_owned(),
            _ => format!("{started} workers were started, of which one"),
        };
        let needed = exports.len() + 1;
        Err(format!("{disks}, and {workers} is for all other disks; start {needed} (--workers, workers), or {fewer}"))
    }

    /// These have a worker each from now on, and no others; checked before.
    pub(crate) fn dedicate(&self, exports: &[Arc<Export>]) {
        let mut state = self.state();
        let is_meant = |of: &Dedicated| exports.iter().any(|export| Arc::ptr_eq(export, &of.export));
        let freed: Vec<_> = state.dedicated.extract_if(.., |of| !is_meant(of)).collect();
        for Dedicated { export, .. } in freed {
            export.pool.set(Pool::SHARED);
        }
        self.set_pools(&mut state);
        for export in exports {
            if state.dedicated.iter().any(|of| Arc::ptr_eq(&of.export, export)) {
                continue;
            }
            // The last is the first that is not needed otherwise.
            let is_free = |worker: &usize| state.dedicated.iter().all(|of| of.worker != *worker);
            let Some(worker) = (1..self.workers.len()).rev().find(is_free) else { return };
            state.dedicated.push(Dedicated { export: Arc::clone(export), worker, is_ready: false });
            self.set_pools(&mut state);
        }
        state.next = Some(Instant::now());
        self.wake_up.doorbell.ring();
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
            // Meanwhile the disk may have got a worker to itself, or the worker may be for another disk or in no use.
            let belongs = state.dedicated.iter().find(|of| of.is_ready && of.export.queues().contains(&queue));
            if self.workers[to].counters.pool.number() == belongs.map_or(Pool::SHARED, |of| number_of(of.worker)) {
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

/// The pool of a disk that has this worker to itself.
const fn number_of(worker: usize) -> u64 {
    worker as u64 + 1
}

fn assigned_to(worker: &WorkerHandle) -> u64 {
    worker.counters.assigned.load(Ordering::Relaxed)
}
