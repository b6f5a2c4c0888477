//! How much of its worker's time each queue took: a worker's busy time between two reports is divided by what its queues were served.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use fipsee_ring::clock;
use fipsee_serve::QueueName;

use crate::live::Live;

/// How often the times are published, and workers are asked that are hardly busy.
pub(super) const PUBLISHED_EVERY: Duration = Duration::from_millis(250);

/// What a worker is not asked for: more than it takes to answer, or every answer would be a reason to ask again.
const LITTLE: Duration = Duration::from_micros(100);

#[derive(Clone, Copy, Default)]
struct OfWorker {
    /// Busy time that is no queue's yet.
    open_ticks: u64,
    asked_ticks: u64,
    /// Until then all busy time is some queue's.
    counted_ticks: u64,
    published_ticks: u64,
}

pub(super) struct QueueTimes {
    workers: Vec<OfWorker>,
    /// What is not published yet: the worker, and ticks.
    queues: HashMap<QueueName, (usize, u64)>,
    little_ticks: u64,
    next: Instant,
}

impl QueueTimes {
    pub(super) fn new(workers: usize, now_ticks: u64) -> Self {
        let of = OfWorker { asked_ticks: now_ticks, counted_ticks: now_ticks, published_ticks: now_ticks, open_ticks: 0 };
        let little_ticks = clock::duration_to_ticks(LITTLE);
        Self { workers: vec![of; workers], queues: HashMap::new(), little_ticks, next: Instant::now() }
    }

    /// What queues were served until their workers were asked.
    pub(super) fn served(&mut self, loads: &[(QueueName, usize, u64)]) {
        let mut sums = vec![0_u64; self.workers.len()];
        loads.iter().for_each(|(_, worker, units)| sums[*worker] += units);
        for &(queue, worker, units) in loads {
            let ticks = u128::from(self.workers[worker].open_ticks) * u128::from(units) / u128::from(sums[worker].max(1));
            let time = self.queues.entry(queue).or_insert((worker, 0));
            *time = (worker, time.1 + u64::try_from(ticks).unwrap_or(0));
        }
        for (of, _) in self.workers.iter_mut().zip(sums).filter(|(_, units)| *units > 0) {
            (of.open_ticks, of.counted_ticks) = (0, of.counted_ticks.max(of.asked_ticks));
        }
    }

    /// A worker was busy for so long until now.
    pub(super) fn busy(&mut self, worker: usize, busy_ticks: u64, now_ticks: u64) {
        let of = &mut self.workers[worker];
        of.open_ticks += busy_ticks;
        if of.open_ticks < self.little_ticks {
            of.counted_ticks = now_ticks;
        }
    }

    /// Is it to be asked although it is hardly busy?
    pub(super) fn wants_to_know(&self, worker: usize) -> bool {
        self.workers[worker].open_ticks >= self.little_ticks && Instant::now() >= self.next
    }

    pub(super) fn asked(&mut self, worker: usize, now_ticks: u64) {
        self.workers[worker].asked_ticks = now_ticks;
    }

    pub(super) fn has_unpublished(&self) -> bool {
        !self.queues.is_empty()
    }

    /// When the published times of a worker's queues were counted last.
    pub(super) fn published_ticks(&self, worker: usize) -> u64 {
        self.workers[worker].published_ticks
    }

    /// Add them to the queues' counters, if it is time.
    pub(super) fn publish(&mut self, live: &Live) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + PUBLISHED_EVERY;
        self.workers.iter_mut().for_each(|of| of.published_ticks = of.counted_ticks);
        if self.queues.is_empty() {
            return;
        }
        for export in &live.now().exports {
            export.for_each_attached(|client| {
                for (counters, index) in client.queues.iter().zip(0_u16..) {
                    if let Some((worker, ticks)) = self.queues.remove(&QueueName { client: client.client, index }) {
                        counters.worked(worker, clock::ticks_to_ns(ticks));
                    }
                }
            });
        }
        // Those that are left are of clients that are gone.
        self.queues.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn queue(client: u64) -> QueueName {
        QueueName { client, index: 0 }
    }

    #[test]
    fn busy_time_of_a_worker_is_divided_by_what_its_queues_were_served() {
        let mut times = QueueTimes { little_ticks: 10, ..QueueTimes::new(2, 0) };
        times.busy(0, 900, 1000);
        times.busy(1, 9, 1000);
        assert_eq!((times.wants_to_know(0), times.wants_to_know(1)), (true, false));
        times.asked(0, 1000);
        times.served(&[(queue(1), 0, 20), (queue(2), 0, 10)]);
        assert_eq!((times.queues[&queue(1)], times.queues[&queue(2)]), ((0, 600), (0, 300)));
        assert_eq!((times.workers[0].open_ticks, times.workers[0].counted_ticks), (0, 1000));
        assert_eq!(times.workers[1].counted_ticks, 1000, "it did next to nothing");
        times.busy(0, 50, 2000);
        times.served(&[]);
        assert_eq!((times.workers[0].open_ticks, times.workers[0].counted_ticks), (50, 1000), "no one's yet");
        times.asked(0, 2000);
        times.served(&[(queue(1), 0, 1)]);
        assert_eq!((times.queues[&queue(1)], times.workers[0].counted_ticks), ((0, 650), 2000));
    }
}
