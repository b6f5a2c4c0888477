//! Dealing queues to workers, whichever front they come from.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::WorkerHandle;

/// A place for one queue at a worker; given back when dropped.
#[derive(Debug)]
pub struct Seat {
    worker: usize,
    taken: Arc<AtomicU64>,
}

impl Seat {
    /// A place at the worker with the fewest queues.
    #[must_use]
    pub fn take(workers: &[WorkerHandle]) -> Self {
        // Two fronts that choose at once may choose the same; that costs balance, nothing else.
        let taken_at = |index: &usize| workers[*index].seats.load(Ordering::Relaxed);
        let worker = (0..workers.len()).min_by_key(taken_at).unwrap_or(0);
        let taken = Arc::clone(&workers[worker].seats);
        taken.fetch_add(1, Ordering::Relaxed);
        Self { worker, taken }
    }

    /// Number of the worker.
    #[must_use]
    pub const fn worker(&self) -> usize {
        self.worker
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
    }
}
