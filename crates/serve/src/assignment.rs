//! Dealing queues to workers, wherever they come from.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Engine, WorkerHandle};

/// One queue's share of a worker; given back when dropped.
#[derive(Debug)]
pub struct Assignment {
    worker: usize,
    queues: Arc<AtomicU64>,
}

impl Assignment {
    /// To the worker with the fewest queues.
    #[must_use]
    pub fn choose<E: Engine>(workers: &[WorkerHandle<E>]) -> Self {
        // Two threads that choose at once may choose the same; that costs balance, nothing else.
        let assigned_to = |index: &usize| workers[*index].assigned.load(Ordering::Relaxed);
        let worker = (0..workers.len()).min_by_key(assigned_to).unwrap_or(0);
        Self::to(worker, &workers[worker])
    }

    /// To this worker.
    #[must_use]
    pub fn to<E: Engine>(worker: usize, handle: &WorkerHandle<E>) -> Self {
        handle.assigned.fetch_add(1, Ordering::Relaxed);
        Self { worker, queues: Arc::clone(&handle.assigned) }
    }

    /// Number of the worker.
    #[must_use]
    pub const fn worker(&self) -> usize {
        self.worker
    }
}

impl Drop for Assignment {
    fn drop(&mut self) {
        self.queues.fetch_sub(1, Ordering::Relaxed);
    }
}
