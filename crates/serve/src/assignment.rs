//! Assigning queues of any transport to workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Engine, WorkerCounters, WorkerHandle, WorkerPlacement};

/// Which queues a worker is for: the number of a pool. A queue that is there already stays until it is moved.
#[derive(Debug, Default)]
pub struct Pool(AtomicU64);

impl Pool {
    /// The pool of all workers, unless they are given another.
    pub const SHARED: u64 = 0;
    /// For no queue: the worker sleeps until it is used.
    pub const PARKED: u64 = u64::MAX;

    pub fn number(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub fn set(&self, number: u64) {
        self.0.store(number, Ordering::Relaxed);
    }

    #[inline(always)]
    pub fn is_parked(&self) -> bool {
        self.number() == Self::PARKED
    }
}

/// One queue's share of a worker; given back when dropped.
#[derive(Debug)]
pub struct Assignment {
    pub worker: usize,
    pub place: WorkerPlacement,
    counters: Arc<WorkerCounters>,
}

impl Assignment {
    /// To the worker of the shared pool with the fewest queues.
    pub fn choose<E: Engine>(workers: &[WorkerHandle<E>]) -> Self {
        Self::choose_in(workers, Pool::SHARED)
    }

    /// To the worker of this pool with the fewest queues; of the shared pool if this one has none.
    pub fn choose_in<E: Engine>(workers: &[WorkerHandle<E>], pool: u64) -> Self {
        // Two threads that choose at once may choose the same; that costs balance, nothing else.
        let fewest = |pool| of_pool(workers, pool).min_by_key(|index| assigned_to(workers, *index));
        let worker = fewest(pool).or_else(|| fewest(Pool::SHARED)).unwrap_or(0);
        Self::to(worker, &workers[worker])
    }

    /// The move that balances the shared workers: from the one with the most queues to the one with the fewest, if that has at
    /// least two fewer.
    pub fn uneven<E: Engine>(workers: &[WorkerHandle<E>]) -> Option<(usize, Self)> {
        let shared = || of_pool(workers, Pool::SHARED);
        let assigned_to = |index: &usize| assigned_to(workers, *index);
        let (from, to) = (shared().max_by_key(assigned_to)?, shared().min_by_key(assigned_to)?);
        (assigned_to(&from) >= assigned_to(&to) + 2).then(|| (from, Self::to(to, &workers[to])))
    }

    pub fn to<E: Engine>(worker: usize, handle: &WorkerHandle<E>) -> Self {
        handle.counters.assigned.fetch_add(1, Ordering::Relaxed);
        Self { worker, place: handle.place(), counters: Arc::clone(&handle.counters) }
    }
}

impl Drop for Assignment {
    fn drop(&mut self) {
        self.counters.assigned.fetch_sub(1, Ordering::Relaxed);
    }
}

fn of_pool<E: Engine>(workers: &[WorkerHandle<E>], pool: u64) -> impl Iterator<Item = usize> {
    (0..workers.len()).filter(move |index| workers[*index].counters.pool.number() == pool)
}

fn assigned_to<E: Engine>(workers: &[WorkerHandle<E>], index: usize) -> u64 {
    workers[index].counters.assigned.load(Ordering::Relaxed)
}
