//! Assigning queues of any transport to workers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::{Engine, WorkerCounters, WorkerHandle, WorkerPlacement};

/// One queue's share of a worker; given back when dropped.
#[derive(Debug)]
pub struct Assignment {
    pub worker: usize,
    pub place: WorkerPlacement,
    counters: Arc<WorkerCounters>,
}

impl Assignment {
    /// To the worker with the fewest queues.
    pub fn choose<E: Engine>(workers: &[WorkerHandle<E>]) -> Self {
        // Two threads that choose at once may choose the same; that costs balance, nothing else.
        let assigned_to = |index: &usize| workers[*index].counters.assigned.load(Ordering::Relaxed);
        let worker = (0..workers.len()).min_by_key(assigned_to).unwrap_or(0);
        Self::to(worker, &workers[worker])
    }

    /// The move that balances the workers: from the worker with the most queues to the one with the fewest, if that has at least
    /// two fewer.
    pub fn uneven<E: Engine>(workers: &[WorkerHandle<E>]) -> Option<(usize, Self)> {
        let assigned_to = |index: &usize| workers[*index].counters.assigned.load(Ordering::Relaxed);
        let (from, to) = ((0..workers.len()).max_by_key(assigned_to)?, (0..workers.len()).min_by_key(assigned_to)?);
        (assigned_to(&from) >= assigned_to(&to) + 2).then(|| (from, Self::to(to, &workers[to])))
    }

    pub fn to<E: Engine>(worker: usize, handle: &WorkerHandle<E>) -> Self {
        handle.counters.assigned.fetch_add(1, Ordering::Relaxed);
        Self { worker, place: handle.place, counters: Arc::clone(&handle.counters) }
    }
}

impl Drop for Assignment {
    fn drop(&mut self) {
        self.counters.assigned.fetch_sub(1, Ordering::Relaxed);
    }
}
