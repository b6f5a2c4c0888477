//! Places among what is in flight, between groups, connections and queues with more requests than an engine takes: it ends them only when
//! it is to.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering}; // tidy: allow atomic, the test's own, not shared memory
use std::time::Duration;

use fipsee_ring::wait::{Backoff, WaitMode};
use fipsee_serve::{Command, Engine, Group, Pass, Queue, QueueName, Share, Taken, Turn, Worker, WorkerHandle, WorkerPlacement};

const PLACES: u32 = 64;
const BUDGET: u32 = 14;

/// In flight, oldest first, by the queue that began it; and how many are to end.
#[derive(Default)]
struct Device {
    in_flight: VecDeque<u32>,
    ending: usize,
}

impl Engine for Device {
    type Ticket = u32;
    type Status = ();

    fn queue_of(ticket: u32) -> u32 {
        ticket
    }

    fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    fn places(&self) -> usize {
        PLACES as usize
    }

    fn poll(&mut self, limit: usize, finished: &mut impl FnMut(u32, ())) -> usize {
        let count = self.ending.min(limit).min(self.in_flight.len());
        self.ending -= count;
        self.in_flight.drain(..count).for_each(|ticket| finished(ticket, ()));
        count
    }
}

/// How many requests of a queue wait, are in flight, and have ended.
#[derive(Default)]
struct Counts {
    waiting: AtomicU32,
    in_flight: AtomicU32,
    ended: AtomicU32,
    asked: AtomicU32,
}

struct Requests {
    id: u32,
    depth: u32,
    counts: Arc<Counts>,
}

impl Queue<Device> for Requests {
    fn visit(&mut self, engine: &mut Device, turn: Turn) -> Taken {
        let room = self.depth - self.in_flight();
        let count = BUDGET.min(turn.requests).min(room).min(self.counts.waiting.load(Ordering::Relaxed));
        self.counts.waiting.fetch_sub(count, Ordering::Relaxed);
        self.counts.in_flight.fetch_add(count, Ordering::Relaxed);
        (0..count).for_each(|_| engine.in_flight.push_back(self.id));
        Taken::new(count, 8 * u64::from(count))
    }

    fn is_asynchronous(&self) -> bool {
        true
    }

    fn in_flight(&self) -> u32 {
        self.counts.in_flight.load(Ordering::Relaxed)
    }

    fn has_work(&self) -> bool {
        self.counts.asked.fetch_add(1, Ordering::Relaxed);
        self.in_flight() < self.depth && self.counts.waiting.load(Ordering::Relaxed) > 0
    }

    fn arm_and_work_remains(&mut self) -> bool {
        self.has_work()
    }

    fn finish(&mut self, _ticket: u32, (): ()) {
        self.counts.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.counts.ended.fetch_add(1, Ordering::Relaxed);
    }

    fn moved(&mut self, id: u32) {
        self.id = id;
    }

    fn saved_state(&mut self, _own: bool) -> Option<Box<dyn Any + Send>> {
        None
    }
}

struct Fixture {
    worker: Worker<Device>,
    handle: WorkerHandle<Device>,
    clients: u64,
}

impl Fixture {
    fn new() -> Self {
        let backoff = Backoff::new(WaitMode::Sleep, Duration::ZERO);
        let (worker, handle) = Worker::new(WorkerPlacement::default(), backoff, Device::default()).expect("descriptors");
        Self { worker, handle, clients: 0 }
    }

    /// Queues of a group, each with this depth and number of requests.
    fn add(&mut self, weight: u32, queues: u16, depth: u32, waiting: u32) -> Vec<Arc<Counts>> {
        let group = Arc::new(Group::new("one"));
        group.weight.set(weight);
        self.add_connection(&group, 100, queues, depth, waiting)
    }

    /// Queues of a connection of this weight within its group.
    fn add_connection(&mut self, group: &Arc<Group>, weight: u32, queues: u16, depth: u32, waiting: u32) -> Vec<Arc<Counts>> {
        let share = Share::of(Arc::clone(group));
        share.weight.set(weight);
        self.clients += 1;
        let add = |index| {
            let counts = Arc::new(Counts { waiting: waiting.into(), ..Counts::default() });
            let (given, name) = (Arc::clone(&counts), QueueName { client: self.clients, index });
            let make = move |id| Ok(Requests { id, depth, counts: given });
            self.handle.mailbox.send(Command::add(name, share.clone(), make, |added| assert!(added.is_ok())));
            counts
        };
        (0..queues).map(add).collect()
    }

    /// Passes until nothing begins any more.
    fn settle(&mut self) {
        (0..1000).find(|_| self.worker.pass() == Pass::Idle).expect("it takes no more at some time");
    }

    /// The device ends so many, the oldest; what that permits begins.
    fn end(&mut self, count: usize) {
        self.worker.engine().ending = count;
        self.settle();
    }
}

fn in_flight(queues: &[Arc<Counts>]) -> u32 {
    queues.iter().map(|counts| counts.in_flight.load(Ordering::Relaxed)).sum()
}

#[test]
fn a_group_may_have_all_places_and_no_more() {
    for queues in [1, 16] {
        let mut fixture = Fixture::new();
        let greedy = fixture.add(100, queues, 256, 100_000);
        fixture.settle();
        assert_eq!(in_flight(&greedy), PLACES);
        assert!(fixture.worker.nothing_remains_after_arming(), "it sleeps until something has ended");
        fixture.end(10);
        assert_eq!(in_flight(&greedy), PLACES, "places do not stay free");
    }
}

#[test]
fn a_request_waits_for_no_more_than_the_places_whatever_others_want() {
    let mut fixture = Fixture::new();
    let greedy = fixture.add(100, 16, 256, 100_000);
    fixture.settle();
    let victim = &fixture.add(100, 1, 1, 0)[0];
    for request in 1..=50 {
        victim.waiting.fetch_add(1, Ordering::Relaxed);
        fixture.settle();
        assert_eq!(victim.in_flight.load(Ordering::Relaxed), 1, "it begins at once");
        let place = fixture.worker.engine().in_flight.iter().position(|id| *id == 16).expect("in flight");
        assert!(place <= PLACES as usize, "behind {place} others");
        fixture.end(place + 1);
        assert_eq!(victim.ended.load(Ordering::Relaxed), request);
        assert_eq!(in_flight(&greedy), PLACES, "the greedy user has what the victim leaves");
    }
}

#[test]
fn groups_that_want_more_get_places_by_their_weights() {
    let mut fixture = Fixture::new();
    let greedy = fixture.add(100, 16, 256, 100_000);
    fixture.settle();
    let other = fixture.add(300, 1, 256, 100_000);
    for _ in 0..500 {
        fixture.end(3);
        assert!(in_flight(&greedy) + in_flight(&other) <= 2 * PLACES);
    }
    let (first, others) = (in_flight(&greedy), in_flight(&other));
    assert!((PLACES..=PLACES + 3).contains(&(first + others)), "{first} and {others}");
    assert!((PLACES / 4 - 4..=PLACES / 4 + 4).contains(&first), "{first} and {others} at 1 to 3");
    other[0].waiting.store(0, Ordering::Relaxed);
    for _ in 0..200 {
        fixture.end(3);
    }
    assert_eq!((in_flight(&greedy), in_flight(&other)), (PLACES, 0), "nothing is kept for a group that wants nothing");
}

#[test]
fn connections_of_a_group_get_places_by_their_weights_whatever_number_of_queues_they_have() {
    let (mut fixture, group) = (Fixture::new(), Arc::new(Group::new("one")));
    let greedy = fixture.add_connection(&group, 100, 16, 256, 100_000);
    fixture.settle();
    assert_eq!(in_flight(&greedy), PLACES, "what no other wants");
    let lone = fixture.add_connection(&group, 100, 1, 1, 1);
    fixture.settle();
    fixture.end(1);
    assert_eq!((in_flight(&greedy), in_flight(&lone)), (PLACES - 1, 1), "it begins with the first place");
    let other = fixture.add_connection(&group, 300, 1, 256, 100_000);
    for _ in 0..500 {
        fixture.end(3);
    }
    let (of_greedy, of_other) = (in_flight(&greedy), in_flight(&other));
    assert!((PLACES..=PLACES + 3).contains(&(of_greedy + of_other)), "{of_greedy} and {of_other}");
    assert!((PLACES / 4 - 4..=PLACES / 4 + 4).contains(&of_greedy), "{of_greedy} and {of_other} at 1 to 3");
    other[0].waiting.store(0, Ordering::Relaxed);
    for _ in 0..200 {
        fixture.end(3);
    }
    assert_eq!((in_flight(&greedy), in_flight(&other)), (PLACES, 0), "nothing is kept for a connection that wants nothing");
}

#[test]
fn queues_of_a_connection_get_as_many_places_each() {
    let (mut fixture, group) = (Fixture::new(), Arc::new(Group::new("one")));
    let queues = fixture.add_connection(&group, 100, 4, 256, 0);
    queues[0].waiting.store(100_000, Ordering::Relaxed);
    fixture.settle();
    assert_eq!(in_flight(&queues), PLACES, "one has them all");
    for queue in &queues[1..] {
        queue.waiting.store(100_000, Ordering::Relaxed);
        fixture.settle();
        fixture.end(1);
        assert_eq!(queue.in_flight.load(Ordering::Relaxed), 1, "it begins with the first place");
        for _ in 0..100 {
            fixture.end(3);
        }
    }
    let of_each: Vec<_> = queues.iter().map(|queue| in_flight(std::slice::from_ref(queue))).collect();
    assert!(of_each.iter().all(|count| (PLACES / 4 - 4..=PLACES / 4 + 4).contains(count)), "{of_each:?}");
}

#[test]
fn connections_of_a_group_that_come_one_after_the_other_get_no_further_places() {
    let (mut fixture, group) = (Fixture::new(), Arc::new(Group::new("one")));
    let mut queues = Vec::new();
    for _ in 0..64 {
        queues.extend(fixture.add_connection(&group, 100, 1, 256, 100_000));
        fixture.settle();
        fixture.end(1);
        assert_eq!(in_flight(&queues), PLACES);
    }
    for _ in 0..8 * PLACES {
        fixture.end(1);
    }
    let of_each: Vec<_> = queues.iter().map(|queue| in_flight(std::slice::from_ref(queue))).collect();
    assert_eq!(of_each, [1; 64], "each has one");
    let victim = fixture.add(100, 1, 1, 1);
    fixture.settle();
    assert_eq!(in_flight(&victim), 1, "it begins at once");
}

/// What they get of places that are taken is never more than as many again, and each begins something as soon as some are free.
#[test]
fn many_groups_that_come_one_after_the_other_get_twice_the_places_at_most() {
    let mut fixture = Fixture::new();
    let mut groups = Vec::new();
    for _ in 0..64 {
        groups.push(fixture.add(100, 1, 256, 100_000));
        fixture.settle();
        let all: u32 = groups.iter().map(|queues| in_flight(queues)).sum();
        assert!(all <= 2 * PLACES, "{all} in flight of {} groups", groups.len());
    }
    for _ in 0..2 * PLACES {
        fixture.end(1);
    }
    for (number, queues) in groups.iter().enumerate() {
        let counts = [&queues[0].in_flight, &queues[0].ended].map(|count| count.load(Ordering::Relaxed));
        assert_ne!(counts, [0, 0], "group {number} has begun nothing");
    }
}

/// Requests that end at once make room for as many in the next pass: otherwise each pass would ask all the others in vain.
#[test]
fn queues_ten_times_as_many_as_places_are_asked_fifteen_times_for_each_request_at_most() {
    const EACH: u32 = 10;
    let mut fixture = Fixture::new();
    let queues = fixture.add(100, 10 * u16::try_from(PLACES).expect("few"), 1, EACH);
    let sum = |of: fn(&Counts) -> &AtomicU32| queues.iter().map(|counts| of(counts).load(Ordering::Relaxed)).sum::<u32>();
    let requests = 10 * PLACES * EACH;
    let all_end = (0..requests).any(|_| {
        let engine = fixture.worker.engine();
        engine.ending = engine.in_flight.len();
        let _ = fixture.worker.pass();
        sum(|counts| &counts.ended) == requests
    });
    assert!(all_end, "some requests have not ended");
    let asked = f64::from(sum(|counts| &counts.asked)) / f64::from(requests);
    assert!(asked <= 15.0, "{asked} times");
}
