//! Which queues are looked at, visited, and sampled.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread;

use fipsee_ring::mapped::{MappedRing, NextStamp};
use fipsee_ring::ring::{Cursor, RingMemory};

use super::slot::EMPTY_VISITS_BEFORE_IDLE;
use super::*;
use crate::share::Taken;
use crate::{Queue, QueueName, Share};

const SLOTS: u32 = 4;

/// A cache line of ordinary memory, so that Miri checks every access.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line([AtomicU32; 16]);

fn ring() -> (MappedRing, MappedRing) {
    let lines: Arc<Vec<Line>> = Arc::new((0..SLOTS + 2).map(|_| Line::default()).collect());
    let at = |line: usize| NonNull::from(&lines[line].0).cast();
    let (slots, cold) = (NonNull::from(&lines[..]).cast(), at(SLOTS as usize));
    // SAFETY: both addresses lie in the vector, which has as many lines as the ring and its cold words; it does not change, `lines` keeps
    // it, and it consists of atomics.
    let open = || unsafe { MappedRing::over(Arc::<Vec<Line>>::clone(&lines), slots, SLOTS, cold) }.expect("it is aligned");
    (open(), open())
}

/// A queue whose only message may be in the first slot.
struct OneMessage(Option<MappedRing>);

impl Queue<()> for OneMessage {
    fn visit(&mut self, (): &mut (), _turn: Turn) -> Taken {
        Taken::NOTHING
    }

    fn next_stamp(&self) -> Option<NextStamp> {
        Some(self.0.as_ref()?.next_stamp(Cursor::at_start(0)))
    }

    fn moved(&mut self, _id: u32) {}

    fn saved_state(&mut self, _own: bool) -> Option<Box<dyn Any + Send>> {
        None
    }
}

/// Must not be looked at.
struct Unvisited;

impl Queue<()> for Unvisited {
    fn visit(&mut self, (): &mut (), _turn: Turn) -> Taken {
        panic!("it is visited")
    }

    fn has_work(&self) -> bool {
        panic!("it is sampled")
    }

    fn is_visited(&self) -> bool {
        false
    }

    fn moved(&mut self, _id: u32) {}

    fn saved_state(&mut self, _own: bool) -> Option<Box<dyn Any + Send>> {
        None
    }
}

#[test]
fn queue_that_is_not_visited_costs_no_look() {
    let mut queues = PollSet::default();
    queues.add(Slot::new(Box::new(Unvisited), QueueName { client: 1, index: 0 }, Share::own("")));
    queues.activate(0);
    assert_eq!((queues.active.len(), queues.visit_active(&mut ()), queues.sample_idle()), (0, 0, 0));
    assert!(queues.remove(0).is_some());
}

/// What is left of its work, and how often it was visited.
#[derive(Clone, Default)]
struct Counted(Arc<[AtomicU32; 2]>);

impl Queue<()> for Counted {
    fn visit(&mut self, (): &mut (), _turn: Turn) -> Taken {
        let [work, visits] = &*self.0;
        visits.fetch_add(1, Ordering::Relaxed);
        let taken = work.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        Taken::new(taken.is_ok().into(), 0)
    }

    fn has_work(&self) -> bool {
        self.0[0].load(Ordering::Relaxed) > 0
    }

    fn moved(&mut self, _id: u32) {}

    fn saved_state(&mut self, _own: bool) -> Option<Box<dyn Any + Send>> {
        None
    }
}

#[test]
fn of_a_few_queues_those_with_work_are_visited_and_the_others_become_idle() {
    let (mut queues, all) = (PollSet::default(), [(); 3].map(|()| Counted::default()));
    for (queue, client) in all.iter().zip(1..) {
        queues.add(Slot::new(Box::new(queue.clone()), QueueName { client, index: 0 }, Share::own("")));
    }
    let visits = || all.each_ref().map(|queue| queue.0[1].load(Ordering::Relaxed));
    all[1].0[0].store(3 * EMPTY_VISITS_BEFORE_IDLE, Ordering::Relaxed);
    assert!((0..10).all(|_| queues.visit_active(&mut ()) == 1));
    assert_eq!(visits(), [0, 10, 0]);
    all[2].0[0].store(5, Ordering::Relaxed);
    assert!((0..5).all(|_| queues.visit_active(&mut ()) == 2));
    assert_eq!((visits()[1..].to_vec(), queues.active_count()), (vec![15, 5], 3));
    // The third begins again to count its empty passes.
    (0..EMPTY_VISITS_BEFORE_IDLE).for_each(|_| assert_eq!(queues.visit_active(&mut ()), 1));
    assert_eq!(queues.active_count(), 2);
    (0..20).for_each(|_| assert_eq!(queues.visit_active(&mut ()), 1));
    assert_eq!(queues.active.only(), Some(1));
}

#[test]
fn idle_queue_is_polled_in_memory_that_stays_until_it_is_active_or_gone() {
    let mut queues = PollSet::default();
    let rings = [(); 3].map(|()| ring());
    let clients = rings.into_iter().zip(0..).map(|((ours, theirs), index)| {
        queues.add(Slot::new(Box::new(OneMessage(Some(ours))), QueueName { client: 1, index }, Share::own("")));
        theirs
    });
    let [first, second, third] = clients.collect::<Vec<_>>().try_into().expect("three");
    for _ in 0..=EMPTY_VISITS_BEFORE_IDLE {
        assert_eq!(queues.visit_active(&mut ()), 0);
    }
    assert_eq!((queues.active.len(), queues.sample_idle()), (0, 0));
    // Each drops its ring: only the poll set keeps that mapped now.
    for (_, slot) in queues.iter_mut() {
        (&mut *slot.queue as &mut dyn Any).downcast_mut::<OneMessage>().expect("one of ours").0 = None;
    }
    drop(third);
    assert_eq!(queues.sample_idle(), 0);
    let writer = thread::spawn(move || first.stamp(0).store(1, Ordering::Release));
    while queues.sample_idle() == 0 {
        thread::yield_now();
    }
    writer.join().expect("it stores");
    assert_eq!(queues.active.only(), Some(0));
    drop((queues.remove(1), second));
    assert_eq!(queues.sample_idle(), 0, "what was removed is not looked at");
    queues.activate(2);
    assert_eq!(queues.sample_idle(), 0);
}
