//! Queues that are to be flushed at a time although nothing happens: a notification is held back until then.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fipsee_ring::clock;

use crate::Engine;
use crate::poll_set::{PollSet, Slot};

/// Times with the numbers of queues, the earliest first. A queue may be gone, or its time may have changed: it is flushed once
/// without need then.
#[derive(Debug, Default)]
pub(crate) struct DueQueues {
    times: BinaryHeap<Reverse<(u64, u32)>>,
    /// Those whose time has come, while they are flushed: kept for its memory.
    now: Vec<u32>,
}

/// Of a queue that is not to be flushed at a time.
const NEVER: u64 = u64::MAX;

/// A queue's part of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due {
    /// May the queue hold something back?
    pub(crate) may_be: bool,
    /// The earliest of its entries in the list.
    listed_ticks: u64,
}

impl Default for Due {
    fn default() -> Self {
        Self { may_be: false, listed_ticks: NEVER }
    }
}

impl DueQueues {
    /// The queue may have published: has it held something back?
    #[inline(never)]
    pub(crate) fn list<E: Engine>(&mut self, id: u32, slot: &mut Slot<E>) {
        if let Some(ticks) = slot.queue.due().filter(|ticks| *ticks < slot.due.listed_ticks) {
            slot.due.listed_ticks = ticks;
            self.times.push(Reverse((ticks, id)));
        }
    }
}

impl<E: Engine> PollSet<E> {
    /// The queue was added or changed: may it hold something back from now on, and does it?
    #[cold]
    pub(crate) fn changed(&mut self, id: usize) {
        let Some(slot) = self.get_mut(id) else { return };
        slot.due.may_be = slot.queue.may_hold_back();
        if slot.due.may_be {
            self.list_due(id);
        }
    }

    pub(crate) fn list_due(&mut self, id: usize) {
        if let Some(slot) = self.slots.get_mut(id).and_then(Option::as_mut) {
            self.due.list(u32::try_from(id).unwrap_or(u32::MAX), slot);
        }
    }

    /// Is there a queue that is to be flushed at a time?
    #[inline(always)]
    pub(crate) fn has_due(&self) -> bool {
        !self.due.times.is_empty()
    }

    /// The first such time.
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.due.times.peek().map(|Reverse((ticks, _))| *ticks)
    }

    /// Flush the queues whose time has come, each once: one whose next time is past already waits for the next call.
    #[cold]
    pub(crate) fn flush_due(&mut self) {
        let now_ticks = clock::ticks();
        let mut now = std::mem::take(&mut self.due.now);
        while let Some(&Reverse((ticks, id))) = self.due.times.peek()
            && ticks <= now_ticks
        {
            self.due.times.pop();
            if let Some(slot) = self.get_mut(id as usize) {
                if slot.due.listed_ticks == ticks {
                    slot.due.listed_ticks = NEVER;
                }
                now.push(id);
            }
        }
        for id in now.drain(..) {
            if let Some(slot) = self.get_mut(id as usize) {
                slot.queue.flush();
            }
            self.list_due(id as usize);
        }
        self.due.now = now;
    }

    /// All queues may have published.
    pub(crate) fn list_all_due(&mut self) {
        for (id, slot) in self.slots.iter_mut().enumerate() {
            if let Some(slot) = slot.as_mut().filter(|slot| slot.due.may_be) {
                self.due.list(u32::try_from(id).unwrap_or(u32::MAX), slot);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::any::Any;
    use std::sync::Arc;
    use std::time::Duration;

    use fipsee_ring::wait::{Backoff, WaitMode};
    use fipsee_ring::{AtomicU32, AtomicU64, Ordering};

    use super::*;
    use crate::{IfAbandoned, Pass, Queue, QueueName, Quiesced, Share, Taken, Turn, Worker, WorkerPlacement};

    /// Its next notification is due then; each flush sends it.
    struct Timed {
        due: Arc<AtomicU64>,
        flushed: Arc<AtomicU32>,
        may_hold_back: bool,
        /// What it takes in a visit.
        taken: u32,
        /// When the next is due after a flush; 0: there is none.
        next: u64,
        /// When one is due after what was deferred has begun.
        after_deferred: u64,
    }

    impl Queue<()> for Timed {
        fn visit(&mut self, (): &mut (), _turn: Turn) -> Taken {
            Taken { requests: self.taken, units: self.taken, work_units: 0 }
        }

        fn has_work(&self) -> bool {
            self.taken > 0
        }

        fn flush(&mut self) {
            self.flushed.fetch_add(1, Ordering::Relaxed);
            self.due.store(self.next, Ordering::Relaxed);
        }

        fn due(&self) -> Option<u64> {
            Some(self.due.load(Ordering::Relaxed)).filter(|due| *due != 0)
        }

        fn may_hold_back(&self) -> bool {
            self.may_hold_back
        }

        fn begin_deferred(&mut self, (): &mut ()) -> bool {
            let begins = self.after_deferred != 0;
            if begins {
                self.due.store(self.after_deferred, Ordering::Relaxed);
            }
            begins
        }

        fn moved(&mut self, _id: u32) {}

        fn saved_state(&mut self, _own: bool) -> Option<Box<dyn Any + Send>> {
            None
        }
    }

    type Outside = (Arc<AtomicU64>, Arc<AtomicU32>);

    fn add(queues: &mut PollSet<()>, may_hold_back: bool, due: u64) -> Outside {
        add_with(queues, due, |queue| queue.may_hold_back = may_hold_back)
    }

    fn add_with(queues: &mut PollSet<()>, due: u64, change: impl FnOnce(&mut Timed)) -> Outside {
        let (due, flushed) = (Arc::new(AtomicU64::new(due)), Arc::<AtomicU32>::default());
        let outside = (Arc::clone(&due), Arc::clone(&flushed));
        let mut queue = Timed { due, flushed, may_hold_back: true, taken: 1, next: 0, after_deferred: 0 };
        change(&mut queue);
        queues.add(Slot::new(Box::new(queue), QueueName { client: 1, index: 0 }, Share::own("test")));
        outside
    }

    fn flushed(of: &Outside) -> u32 {
        of.1.load(Ordering::Relaxed)
    }

    const LATER: u64 = u64::MAX - 1;

    #[test]
    fn queue_is_flushed_when_its_time_has_come_and_not_before() {
        let mut queues = PollSet::default();
        let early = add(&mut queues, true, 0);
        let late = add(&mut queues, true, LATER);
        let never = add(&mut queues, false, 1);
        assert_eq!(queues.next_due(), Some(LATER), "one that is added, from another worker, may hold something back");
        early.0.store(1, Ordering::Relaxed);
        assert_eq!(queues.visit_active(&mut ()), 3);
        assert_eq!(queues.next_due(), Some(1));
        queues.flush_due();
        assert_eq!([&early, &late, &never].map(flushed), [1, 0, 0]);
        assert_eq!(queues.next_due(), Some(LATER));
        // It holds back again, listed once however often it is visited.
        early.0.store(2, Ordering::Relaxed);
        (0..3).for_each(|_| _ = queues.visit_active(&mut ()));
        queues.flush_due();
        assert_eq!((flushed(&early), queues.next_due()), (2, Some(LATER)));
        // An earlier time than the one that is listed.
        late.0.store(3, Ordering::Relaxed);
        queues.changed(1);
        queues.flush_due();
        assert_eq!((flushed(&late), queues.next_due()), (1, Some(LATER)));
    }

    #[test]
    fn queue_whose_next_time_is_past_already_is_flushed_once() {
        let mut queues = PollSet::default();
        let [first, second] = [1, 2].map(|due| add_with(&mut queues, due, |queue| queue.next = 1));
        for round in 1..4 {
            queues.flush_due();
            assert_eq!([&first, &second].map(flushed), [round, round]);
            assert_eq!(queues.next_due(), Some(1));
        }
    }

    #[test]
    fn visit_that_takes_nothing_may_hold_back_what_was_taken_before() {
        let mut queues = PollSet::default();
        let queue = add_with(&mut queues, 0, |queue| queue.taken = 0);
        queue.0.store(LATER, Ordering::Relaxed);
        assert_eq!((queues.visit_active(&mut ()), queues.next_due()), (0, Some(LATER)));
    }

    #[test]
    fn what_begins_in_a_drain_may_be_held_back_and_a_drain_that_fails_forgets_no_queue() {
        let backoff = Backoff::new(WaitMode::Sleep, Duration::ZERO);
        let (mut worker, handle) = Worker::new(WorkerPlacement::default(), backoff, ()).expect("a worker");
        let _queue = add_with(&mut worker.queues, 0, |queue| (queue.taken, queue.after_deferred) = (0, LATER));
        while worker.queues.active_count() > 0 {
            assert_eq!(worker.pass(), Pass::Idle);
        }
        let _asked = Quiesced::ask(&[handle], Vec::new(), Duration::ZERO, IfAbandoned::Resume);
        assert_eq!(worker.pass(), Pass::Worked);
        assert!(worker.quiescing.is_some());
        assert_eq!(worker.pass(), Pass::Worked, "it fails at once");
        assert!(worker.quiescing.is_none());
        assert_eq!((worker.queues.next_due(), worker.queues.active_count()), (Some(LATER), 1));
    }

    #[test]
    fn times_of_queues_that_are_gone_are_left_out() {
        let mut queues = PollSet::default();
        let gone = add(&mut queues, true, 1);
        let _ = queues.remove(0).expect("it is there");
        queues.flush_due();
        assert_eq!((flushed(&gone), queues.next_due()), (0, None));
    }
}
