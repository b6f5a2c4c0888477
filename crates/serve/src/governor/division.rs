//! Queues divided among workers.

use super::{MARGIN, NEGLIGIBLE, WORTH_A_WORKER};
use crate::QueueName;

/// Moves of one decision at most; others follow.
const MOST_MOVES: usize = 256;
/// Busy all the time, as measured.
const FULL: f64 = 0.97;
/// A difference between two workers that is not worth a move.
const SMALL: f64 = 0.02;

/// This queue is to be served by another worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    pub queue: QueueName,
    pub to: usize,
}

/// Divide these loads among so many workers, the largest first, each to the worker with the least. The load of the fullest worker that
/// has more than one that is worth it: one queue cannot be divided, however large it is.
pub(super) fn fullest_shared(mut loads: Vec<f64>, workers: usize) -> f64 {
    if workers == 0 {
        return f64::INFINITY;
    }
    loads.sort_unstable_by(|a, b| b.total_cmp(a));
    // Of each worker: all, and all but the largest, which is its first.
    let mut sums = vec![(0.0_f64, 0.0_f64); workers];
    for load in loads {
        if let Some((sum, rest)) = sums.iter_mut().min_by(|(a, _), (b, _)| a.total_cmp(b)) {
            *rest += if *sum > 0.0 { load } else { 0.0 };
            *sum += load;
        }
    }
    sums.into_iter().filter(|(_, rest)| *rest >= WORTH_A_WORKER).map(|(sum, _)| sum).fold(0.0, f64::max)
}

/// A queue that is served.
pub(super) struct Part {
    pub(super) queue: QueueName,
    pub(super) worker: usize,
    pub(super) load: f64,
    pub(super) may_move: bool,
}

/// A worker in use, and how busy it is with the queues that it has so far.
struct WorkerLoad {
    worker: usize,
    sum: f64,
    was: f64,
    /// Queues that take a good part of it.
    queues: usize,
    /// It is busy all the time: more queues would work there if they could.
    is_full: bool,
}

/// Which worker has which queues now.
pub(super) struct Division {
    workers: Vec<WorkerLoad>,
    /// Those that may move: the index in `workers`; `None`: its worker is not in use.
    queues: Vec<(QueueName, Option<usize>, f64)>,
    moves: Vec<Move>,
}

impl Division {
    pub(super) fn new(in_use: &[usize], busy: &[f64], parts: &[Part]) -> Self {
        let is_full = |worker: usize| busy.get(worker).is_some_and(|busy| *busy >= FULL);
        let load = |worker: &usize| WorkerLoad { worker: *worker, sum: 0.0, was: 0.0, queues: 0, is_full: is_full(*worker) };
        let mut workers: Vec<WorkerLoad> = in_use.iter().map(load).collect();
        let index_of = |worker| in_use.iter().position(|other| *other == worker);
        let mut queues = Vec::new();
        for Part { queue, worker, load, may_move } in parts {
            let on = index_of(*worker);
            if let Some(index) = on {
                workers[index].sum += load;
                workers[index].was += load;
                workers[index].queues += usize::from(*load >= WORTH_A_WORKER);
            }
            if *may_move {
                queues.push((*queue, on, *load));
            }
        }
        Self { workers, queues, moves: Vec::new() }
    }

    /// The moves after which no worker could be relieved by much; none, if they are not worth it.
    pub(super) fn even_out(mut self) -> Vec<Move> {
        self.assign_unassigned();
        let unassigned = self.moves.len();
        while self.moves.len() < MOST_MOVES && self.relieve_one() {}
        if !self.workers.iter().any(|worker| worker.was - worker.sum >= MARGIN) {
            self.moves.truncate(unassigned);
        }
        if self.moves.is_empty() {
            self.even_out_full();
        }
        self.moves
    }

    /// Queues of workers that are not in use any more, the largest first.
    fn assign_unassigned(&mut self) {
        let mut unassigned: Vec<usize> = (0..self.queues.len()).filter(|index| self.queues[*index].1.is_none()).collect();
        unassigned.sort_by(|a, b| self.queues[*b].2.total_cmp(&self.queues[*a].2));
        for index in unassigned {
            let least = (0..self.workers.len()).min_by(|a, b| self.workers[*a].sum.total_cmp(&self.workers[*b].sum));
            if let Some(to) = least {
                self.shift(index, to);
                // Not a relief of anything.
                self.workers[to].was += self.queues[index].2;
            }
        }
    }

    /// One move from the fullest worker that can be relieved to the emptiest.
    fn relieve_one(&mut self) -> bool {
        let mut order: Vec<usize> = (0..self.workers.len()).collect();
        order.sort_by(|a, b| self.workers[*b].sum.total_cmp(&self.workers[*a].sum));
        let Some(&to) = order.last() else { return false };
        for from in order {
            let gap = self.workers[from].sum - self.workers[to].sum;
            if gap < SMALL {
                return false;
            }
            // Its move halves the gap at best.
            let on_it = (0..self.queues.len()).filter(|index| {
                let (_, on, load) = self.queues[*index];
                on == Some(from) && load > NEGLIGIBLE && load < gap - SMALL
            });
            let off = |index: &usize| (self.queues[*index].2 - gap / 2.0).abs();
            let best = on_it.min_by(|a, b| off(a).total_cmp(&off(b)));
            if let Some(index) = best {
                self.shift(index, to);
                return true;
            }
        }
        false
    }

    /// Workers that are busy all the time look equally loaded, however many queues share them: one queue goes to the one with at least
    /// two fewer.
    fn even_out_full(&mut self) {
        let full = || self.workers.iter().enumerate().filter(|(_, worker)| worker.is_full);
        let (most, fewest) = (full().max_by_key(|(_, worker)| worker.queues), full().min_by_key(|(_, worker)| worker.queues));
        let (Some((from, most)), Some((to, fewest))) = (most, fewest) else { return };
        if most.queues < fewest.queues + 2 {
            return;
        }
        let found = self.queues.iter().position(|(_, on, load)| *on == Some(from) && *load >= WORTH_A_WORKER);
        found.into_iter().for_each(|index| self.shift(index, to));
    }

    fn shift(&mut self, index: usize, to: usize) {
        let (queue, from, load) = self.queues[index];
        if let Some(from) = from {
            self.workers[from].sum -= load;
            self.workers[from].queues -= usize::from(load >= WORTH_A_WORKER);
        }
        self.workers[to].sum += load;
        self.workers[to].queues += usize::from(load >= WORTH_A_WORKER);
        self.queues[index].1 = Some(to);
        let (moved, to) = (self.moves.iter().position(|other| other.queue == queue), self.workers[to].worker);
        match moved {
            Some(earlier) => self.moves[earlier].to = to,
            None => self.moves.push(Move { queue, to }),
        }
    }
}
