//! What the daemon does around the governor (`daemon::scaling`), with simulated time: samples, pools, and the moves that are wanted.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fipsee_serve::governor::{Action, Governor, Mode, Move, SLOW_TICK, Sample, TICK};
use fipsee_serve::{Assignment, Command, Pool, QueueName, WorkerHandle};

use crate::context::lock;
use crate::queue::SimEngine;

/// Below this busy share a worker is not asked for its queues.
const HARDLY_BUSY: f64 = 0.05;

/// The governor of a daemon's workers, and what it wants.
pub(crate) struct Scaling {
    governor: Governor,
    workers: Vec<WorkerHandle<SimEngine>>,
    usable: Vec<usize>,
    wanted: VecDeque<Move>,
    /// Since the last sample it was found that no queue may be moved for the sake of their number.
    stays_uneven: bool,
    reported: Arc<Mutex<Vec<(QueueName, usize, u64)>>>,
    /// When another number of workers was to be used, and which.
    pub(crate) uses: Vec<(Duration, usize)>,
}

impl Scaling {
    pub(crate) fn new(mode: Mode, workers: &[WorkerHandle<SimEngine>]) -> Self {
        let scaling = Self {
            governor: Governor::new(mode, workers.len()),
            workers: workers.to_vec(),
            usable: (0..workers.len()).collect(),
            wanted: VecDeque::new(),
            stays_uneven: false,
            reported: Arc::default(),
            uses: Vec::new(),
        };
        scaling.set_pools();
        scaling
    }

    /// Workers in use.
    pub(crate) const fn count(&self) -> usize {
        self.governor.count()
    }

    /// Take a sample: after how long the next is due.
    pub(crate) fn tick(&mut self, now: Duration, busy: &[f64], is_moving: bool) -> Duration {
        self.stays_uneven = false;
        let loads = std::mem::take(&mut *lock(&self.reported));
        let is_moving = is_moving || !self.wanted.is_empty();
        let fixed = &BTreeSet::new();
        let sample = Sample { now, busy, waited: 0.0, loads: &loads, fixed, is_exact: true, usable: &self.usable, is_moving };
        for action in self.governor.sample(&sample) {
            match action {
                Action::Use(workers) => self.uses.push((now, workers)),
                Action::Move(wanted) => self.wanted.push_back(wanted),
            }
        }
        self.set_pools();
        for (index, worker) in self.workers.iter().enumerate().filter(|(index, _)| busy[*index] > HARDLY_BUSY) {
            let to = Arc::clone(&self.reported);
            let report = move |loads: Vec<(QueueName, u64)>| {
                lock(&to).extend(loads.into_iter().map(|(queue, units)| (queue, index, units)));
            };
            worker.mailbox.send(Command::Loads(Box::new(report)));
        }
        if busy.iter().any(|busy| *busy > HARDLY_BUSY) { TICK } else { SLOW_TICK }
    }

    /// New queues go to the workers in use alone.
    fn set_pools(&self) {
        for (index, worker) in self.workers.iter().enumerate() {
            worker.counters.pool.set(if index < self.governor.count() { Pool::SHARED } else { Pool::UNUSED });
        }
    }

    /// The next move that the governor wants, unless its worker is not in use any more.
    pub(crate) fn wanted_move(&mut self) -> Option<(QueueName, Assignment)> {
        loop {
            let Move { queue, to } = self.wanted.pop_front()?;
            if !self.workers[to].counters.pool.is_unused() {
                return Some((queue, Assignment::to(to, &self.workers[to])));
            }
        }
    }

    /// The worker that is to have a queue less, and where that goes.
    pub(crate) fn uneven(&self, nth: usize) -> Option<(usize, Assignment)> {
        if self.stays_uneven {
            return None;
        }
        let is_stray = |worker: &&WorkerHandle<SimEngine>| {
            worker.counters.pool.is_unused() && worker.counters.assigned.load(Ordering::Relaxed) > 0
        };
        let strays = || (0..self.workers.len()).filter(|index| is_stray(&&self.workers[*index]));
        match strays().nth(nth) {
            Some(from) => Some((from, Assignment::choose(&self.workers))),
            None => Assignment::uneven(&self.workers).filter(|_| strays().count() == nth),
        }
    }

    pub(crate) const fn stays_uneven(&mut self) {
        self.stays_uneven = true;
    }

    pub(crate) fn may_balance(&self, queue: QueueName, from: usize, to: usize) -> bool {
        self.workers[from].counters.pool.is_unused() || self.governor.may_move(queue, to)
    }
}
