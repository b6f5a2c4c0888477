//! A queue in the poll set, and what a visit to it depends on beside its share.

use std::sync::{Arc, Mutex, PoisonError};

use fipsee_ring::mapped::{Mapping, NextStamp};

use super::Poll;
use super::places::Places;
use crate::due::{Due, DueQueues};
use crate::share::{Share, Taken, Turn};
use crate::{Change, Engine, Queue, QueueName, Removed, probe};

/// Empty visits after which a queue is sampled instead of visited every pass.
pub(super) const EMPTY_VISITS_BEFORE_IDLE: u32 = 1000;

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Ticks now.
pub(super) type Clock = fn() -> u64;

/// One queue and what belongs to it. What is dropped last may be waited for.
pub(crate) struct Slot<E: Engine> {
    pub(crate) queue: Box<dyn Queue<E>>,
    pub(crate) name: QueueName,
    pub(super) share: Share,
    pub(super) active: bool,
    pub(super) empty_visits: u32,
    /// What it was served since the worker last reported its loads, in cost units.
    pub(super) load: u64,
    pub(crate) due: Due,
    /// Has its share a limit?
    pub(super) limited: bool,
    /// A number of the worker.
    pub(super) worker: u32,
    /// Does it begin work with the engine?
    asynchronous: bool,
    /// Its connection's entry among the places, and how many of its requests were counted there last.
    pub(super) entry: usize,
    in_flight: u32,
    /// It got no place among what is in flight.
    refused: bool,
    /// Its limit is used up until then; 0: it is not.
    pub(super) throttled_until: u64,
    /// Nothing has been seen yet of its doorbell, which may have rung for another worker.
    pub(crate) is_newly_watched: bool,
    /// Keeps mapped what an idle queue is polled at.
    pub(super) polled: Option<Arc<dyn Mapping>>,
    /// What waits until nothing is in flight.
    pub(crate) changes: Vec<Arc<Mutex<Change<E>>>>,
    /// It goes as soon as nothing is in flight, to this.
    pub(crate) closing: Option<Arc<Mutex<Removed<E>>>>,
    /// Most requests that are still taken of one that is closing: what was published is served first, but a correct client has no
    /// more than so many outstanding, and one that publishes more must not delay the others. Not in `closing`: the compiler reads it
    /// before it knows whether there is one, which valgrind reports.
    pub(crate) left: u32,
}

impl<E: Engine> Slot<E> {
    pub(crate) fn new(queue: Box<dyn Queue<E>>, name: QueueName, share: Share) -> Self {
        let (limited, asynchronous) = (share.is_limited(), queue.is_asynchronous());
        Self {
            queue,
            name,
            share,
            active: false,
            empty_visits: 0,
            load: 0,
            due: Due::default(),
            limited,
            worker: 0,
            asynchronous,
            entry: 0,
            in_flight: 0,
            refused: false,
            throttled_until: 0,
            is_newly_watched: true,
            polled: None,
            changes: Vec::new(),
            closing: None,
            left: u32::MAX,
        }
    }

    /// May requests be taken? Not while a change waits, nor when the client is gone.
    #[inline(always)]
    pub(crate) fn takes_requests(&self) -> bool {
        self.changes.is_empty() && self.left > 0
    }

    pub(crate) const fn is_throttled(&self) -> bool {
        self.throttled_until != 0
    }

    /// Is it of no interest that it has work?
    pub(crate) const fn is_held_back(&self) -> bool {
        self.is_throttled() || self.refused
    }

    /// Nothing is in flight: do what waited for that.
    #[cold]
    pub(crate) fn apply_changes(&mut self) {
        for change in self.changes.drain(..) {
            change.lock().unwrap_or_else(PoisonError::into_inner)(&mut *self.queue);
        }
    }

    pub(crate) fn hand_back(self) {
        if let Some(removed) = self.closing {
            removed.lock().unwrap_or_else(PoisonError::into_inner)(self.queue, self.share);
        }
    }

    /// Its share has another limit, or, of a queue that is closing while limits are lifted, none any more.
    #[cold]
    pub(super) fn limit_changed(&mut self, lifted: bool) {
        self.limited = self.share.is_limited() && !(lifted && self.closing.is_some());
        self.throttled_until = 0;
    }

    /// Returns what was taken, and whether the queue stays active.
    #[inline(always)]
    pub(super) fn visit(
        &mut self,
        id: u32,
        engine: &mut E,
        turn: Turn,
        clock: Clock,
        places: &mut Places,
        due: &mut DueQueues,
    ) -> (Taken, bool) {
        let visited = match (self.limited, self.asynchronous) {
            (false, false) => self.visit_within(engine, turn),
            (false, true) => self.visit_asynchronous(engine, turn, places),
            (true, _) => self.visit_limited(engine, turn, clock(), places),
        };
        if visited.0.requests > 0 {
            probe!(visit, id, self.name.client, self.name.index, visited.0.requests);
        }
        // It may have published what was taken long ago.
        if self.due.may_be {
            due.list(id, self);
        }
        visited
    }

    #[inline(never)]
    fn visit_asynchronous(&mut self, engine: &mut E, mut turn: Turn, places: &mut Places) -> (Taken, bool) {
        let (taken, all) = (count(engine.in_flight()), count(engine.places()));
        self.refused = false;
        if taken >= all / 2 {
            let allowed = (!turn.alone).then(|| places.allows(self.entry, self.in_flight, taken, all));
            let most = allowed.as_ref().map_or_else(|| all.saturating_sub(taken), |allowed| allowed.places);
            if most == 0 {
                if !self.takes_requests() || !self.queue.has_work() {
                    return self.visited(Taken::NOTHING);
                }
                self.refused = true;
                if let Some(allowed) = allowed {
                    places.refused(self.entry, self.in_flight, &allowed);
                }
                return (Taken::NOTHING, true);
            }
            turn.requests = turn.requests.min(most);
        }
        let visited = self.visit_within(engine, turn);
        self.recount(places);
        visited
    }

    /// Requests may have begun or ended.
    #[inline(always)]
    pub(super) fn recount(&mut self, places: &mut Places) {
        let before = std::mem::replace(&mut self.in_flight, self.queue.in_flight());
        places.count(self.entry, before, self.in_flight);
    }

    /// It is served here no more.
    pub(super) fn leave(&mut self, places: &mut Places) {
        places.leave(self.entry, std::mem::take(&mut self.in_flight));
    }

    #[inline(never)]
    fn visit_limited(&mut self, engine: &mut E, turn: Turn, now: u64, places: &mut Places) -> (Taken, bool) {
        if now < self.throttled_until {
            return (Taken::NOTHING, true);
        }
        self.throttled_until = 0;
        match self.share.limit(now, self.worker, turn) {
            Ok(turn) => {
                let (taken, stays) = if self.asynchronous {
                    self.visit_asynchronous(engine, turn, places)
                } else {
                    self.visit_within(engine, turn)
                };
                self.share.served(now, self.worker, taken);
                (taken, stays)
            }
            Err(until) if self.takes_requests() && self.queue.has_work() => {
                self.share.waits(now, self.worker);
                self.throttled_until = until;
                self.share.count_throttled(now);
                (Taken::NOTHING, true)
            }
            Err(_) => self.visited(Taken::NOTHING),
        }
    }

    #[inline(always)]
    fn visit_within(&mut self, engine: &mut E, turn: Turn) -> (Taken, bool) {
        let taken = if self.takes_requests() { self.queue.visit(engine, turn) } else { Taken::NOTHING };
        if self.closing.is_some() {
            self.left = self.left.saturating_sub(taken.requests);
        }
        self.visited(taken)
    }

    /// Would a visit find nothing?
    #[inline(always)]
    pub(super) fn is_quiet(&self) -> bool {
        self.takes_requests() && self.queue.is_quiet()
    }

    /// In place of a visit that finds nothing. `true`: it is to be idle, which a visit brings about.
    #[inline(always)]
    pub(super) const fn has_been_empty(&mut self) -> bool {
        let is_over = self.empty_visits >= EMPTY_VISITS_BEFORE_IDLE;
        self.empty_visits += if is_over { 0 } else { 1 };
        is_over
    }

    #[inline(always)]
    const fn visited(&mut self, taken: Taken) -> (Taken, bool) {
        if taken.requests > 0 {
            self.empty_visits = 0;
            self.load += taken.units as u64;
            return (taken, true);
        }
        self.empty_visits += 1;
        (taken, self.empty_visits <= EMPTY_VISITS_BEFORE_IDLE)
    }

    /// From now on it is sampled: how.
    #[cold]
    pub(super) fn make_idle(&mut self) -> Poll {
        self.active = false;
        match self.queue.next_stamp().map(NextStamp::split) {
            Some(((stamp, expected), mapping)) => {
                self.polled = Some(mapping);
                Poll::Stamp(stamp, expected)
            }
            None => Poll::Ask,
        }
    }
}
