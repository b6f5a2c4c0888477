//! How long a request waits beside others, in cost units served to them between its publishing and its being taken; and which gets how
//! much. Queues are counters here: what is published costs what its length says.

use std::any::Any;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use fipsee_ring::clock;
use fipsee_ring::mapped::NextStamp;

use super::slot::EMPTY_VISITS_BEFORE_IDLE;
use super::{PollSet, Slot};
use crate::limit::{Limiter, Rates};
use crate::share::{DEFAULT_WEIGHT, Group, QUANTUM, Share, Taken, Turn, UNITS_PER_REQUEST};
use crate::{Queue, QueueName, Removed};

/// What 1 MiB costs.
const LONG: u64 = 2048;
/// The bound, for each group, on what a request waits for: the round that is under way when it is published, and the next one. In each
/// a group spends its quantum and, in the visit that exceeds it, the rest of a visit and one request.
const UNITS_PER_GROUP: u64 = 2 * (2 * QUANTUM as u64 + LONG + UNITS_PER_REQUEST as u64);
const MAX_BUDGET: u32 = 14;

/// What the client of a queue publishes, and what was served of it.
#[derive(Debug, Default)]
struct Load {
    /// Requests that wait, if it is not endless.
    waiting: AtomicU64,
    length: u64,
    endless: bool,
    served: AtomicU64,
}

impl Load {
    fn endless(length: u64) -> Arc<Self> {
        Arc::new(Self { length, endless: true, ..Self::default() })
    }

    fn of_a_few(length: u64) -> Arc<Self> {
        Arc::new(Self { length, ..Self::default() })
    }

    fn take(&self) -> bool {
        self.endless || self.waiting.fetch_update(Relaxed, Relaxed, |waiting| waiting.checked_sub(1)).is_ok()
    }
}

struct Counted {
    load: Arc<Load>,
    /// Units served by the worker, in order.
    all: Arc<AtomicU64>,
    taken_at: Arc<Mutex<Vec<u64>>>,
}

impl Queue<()> for Counted {
    fn visit(&mut self, (): &mut (), turn: Turn) -> Taken {
        let mut taken = Taken::NOTHING;
        while taken.requests < MAX_BUDGET.min(turn.requests) && taken.units < turn.units && self.load.take() {
            if !self.load.endless {
                self.taken_at.lock().expect("one thread").push(self.all.load(Relaxed) + u64::from(taken.units));
            }
            taken = taken.and(Taken::new(1, self.load.length));
        }
        self.load.served.fetch_add(taken.units.into(), Relaxed);
        self.all.fetch_add(taken.units.into(), Relaxed);
        taken
    }

    fn has_work(&self) -> bool {
        self.load.endless || self.load.waiting.load(Relaxed) > 0
    }

    fn next_stamp(&self) -> Option<NextStamp> {
        None
    }

    fn moved(&mut self, _id: u32) {}

    fn saved_state(&mut self, _own: bool) -> Option<Box<dyn Any + Send>> {
        None
    }
}

#[derive(Default)]
struct World {
    queues: PollSet<()>,
    all: Arc<AtomicU64>,
    taken_at: Arc<Mutex<Vec<u64>>>,
    clients: u64,
    limit: Option<Arc<Limiter>>,
}

impl World {
    fn connect(&mut self, group: &Arc<Group>, loads: &[Arc<Load>]) {
        self.connect_with(&Share::of(Arc::clone(group)), loads);
    }

    fn connect_with(&mut self, connection: &Share, loads: &[Arc<Load>]) {
        self.clients += 1;
        for (load, index) in loads.iter().zip(0..) {
            let queue = Counted { load: Arc::clone(load), all: Arc::clone(&self.all), taken_at: Arc::clone(&self.taken_at) };
            let name = QueueName { client: self.clients, index };
            let mut share = connection.clone();
            share.more.extend(self.limit.clone());
            self.queues.add(Slot::new(Box::new(queue), name, share));
        }
    }

    fn pass(&mut self) {
        let _ = self.queues.visit_active(&mut ());
        self.queues.sample_idle();
    }

    /// Publish a request and run until it is taken: units served to others meanwhile. As the worker's passes are atomic here, what is
    /// published during a pass waits for at most one pass more, whose cost is counted too.
    fn wait_of(&mut self, load: &Load) -> u64 {
        let before_pass = self.all.load(Relaxed);
        self.pass();
        load.waiting.fetch_add(1, Relaxed);
        while self.taken_at.lock().expect("one thread").is_empty() {
            self.pass();
        }
        self.taken_at.lock().expect("one thread").drain(..).next().expect("it was taken") - before_pass
    }
}

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(0) };
}

fn group(key: impl std::fmt::Display, weight: u32) -> Arc<Group> {
    let group = Group::new(&key.to_string());
    group.weight.set(weight);
    Arc::new(group)
}

/// A victim beside `n` groups; `connect` makes each. The victim's worst wait.
fn worst_wait(n: u64, rounds: u64, silent_passes: u32, mut connect: impl FnMut(&mut World, u64)) -> u64 {
    let mut world = World::default();
    let victim = Load::of_a_few(8);
    // In the middle, as anywhere.
    (0..n / 2).for_each(|number| connect(&mut world, number));
    world.connect(&group("victim", DEFAULT_WEIGHT), &[Arc::clone(&victim)]);
    (n / 2..n).for_each(|number| connect(&mut world, number));
    (0..silent_passes).for_each(|_| world.pass());
    (0..rounds).map(|_| world.wait_of(&victim)).max().unwrap_or(0)
}

fn sixteen(length: u64) -> Vec<Arc<Load>> {
    (0..16).map(|_| Load::endless(length)).collect()
}

const GROUPS: [u64; 8] = [1, 2, 3, 8, 16, 64, 128, 256];

#[test]
fn a_request_waits_for_a_constant_number_of_units_per_group() {
    for n in GROUPS {
        let worst = worst_wait(n, 200, 0, |world, number| world.connect(&group(number, DEFAULT_WEIGHT), &sixteen(LONG)));
        assert!(worst <= n * UNITS_PER_GROUP, "{n} groups: {worst}");
    }
}

#[test]
fn a_group_with_many_connections_is_one() {
    for n in GROUPS {
        let many = |world: &mut World, number| {
            let group = group(number, DEFAULT_WEIGHT);
            (0..16).for_each(|_| world.connect(&group, &[Load::endless(LONG)]));
        };
        let worst = worst_wait(n, 200, 0, many);
        assert!(worst <= n * UNITS_PER_GROUP, "{n} groups: {worst}");
    }
}

#[test]
fn a_silent_client_that_speaks_again_waits_no_longer() {
    for n in GROUPS {
        for silent in [0, 1000] {
            let connect = |world: &mut World, number| {
                world.connect(&group(number, DEFAULT_WEIGHT), &sixteen(LONG));
                let others = (0..silent / n).map(|_| Load::of_a_few(8)).collect::<Vec<_>>();
                world.connect(&group(format!("silent {number}"), DEFAULT_WEIGHT), &others);
            };
            // So that it is found silent in each.
            let worst = worst_wait(n, 1, 2 * EMPTY_VISITS_BEFORE_IDLE, connect);
            assert!(worst <= n * UNITS_PER_GROUP, "{n} groups, {silent} silent: {worst}");
        }
    }
}

#[test]
fn greater_weights_of_others_make_the_wait_no_longer() {
    for n in [1, 16, 64] {
        let worst = worst_wait(n, 200, 0, |world, number| {
            let weight = if number % 2 == 0 { DEFAULT_WEIGHT * 100 } else { DEFAULT_WEIGHT / 4 };
            world.connect(&group(number, weight), &sixteen(LONG));
        });
        assert!(worst <= n * UNITS_PER_GROUP, "{n} groups: {worst}");
    }
}

/// What each has been served, after so many units in all.
fn served(world: &mut World, units: u64, loads: &[&Arc<Load>]) -> Vec<u64> {
    let end = world.all.load(Relaxed) + units;
    let before: Vec<u64> = loads.iter().map(|load| load.served.load(Relaxed)).collect();
    while world.all.load(Relaxed) < end {
        world.pass();
    }
    loads.iter().zip(before).map(|(load, before)| load.served.load(Relaxed) - before).collect()
}

fn assert_shares(served: &[u64], shares: &[u64]) {
    let (all, parts) = (served.iter().sum::<u64>(), shares.iter().sum::<u64>());
    for (&units, &share) in served.iter().zip(shares) {
        let fair = all * share / parts;
        assert!(units.abs_diff(fair) * 50 < fair, "{served:?} is not as {shares:?}");
    }
}

#[test]
fn groups_then_connections_then_queues_get_equal_shares_whatever_their_requests_cost() {
    let mut world = World::default();
    let loads: Vec<Arc<Load>> = [LONG, 8, 1, 256, 16, 0, 64].map(Load::endless).into();
    let (one, two) = (group("one", DEFAULT_WEIGHT), group("two", DEFAULT_WEIGHT));
    world.connect(&one, &loads[..1]);
    world.connect(&two, &loads[1..2]);
    world.connect(&two, &loads[2..5]);
    world.connect(&two, &loads[5..]);
    let served = served(&mut world, 20_000_000, &loads.iter().collect::<Vec<_>>());
    assert_shares(&served, &[18, 6, 2, 2, 2, 3, 3]);
}

#[test]
fn weights_are_kept_and_may_change() {
    let mut world = World::default();
    let (long, short) = (Load::endless(LONG), Load::endless(8));
    let (heavy, light) = (group("heavy", 400), group("light", 50));
    world.connect(&heavy, &[Arc::clone(&short)]);
    world.connect(&light, &[Arc::clone(&long)]);
    assert_shares(&served(&mut world, 20_000_000, &[&short, &long]), &[8, 1]);
    heavy.weight.set(1);
    light.weight.set(4);
    served(&mut world, 1_000_000, &[]);
    assert_shares(&served(&mut world, 20_000_000, &[&short, &long]), &[1, 4]);
}

#[test]
fn weights_of_connections_divide_the_share_of_their_group_and_make_it_no_greater() {
    let mut world = World::default();
    let loads: Vec<Arc<Load>> = [LONG, 8, 1, 64].map(Load::endless).into();
    let (one, two) = (group("one", DEFAULT_WEIGHT), group("two", DEFAULT_WEIGHT));
    world.connect(&one, &loads[..1]);
    let [heavy, light] = [(); 2].map(|()| Share::of(Arc::clone(&two)));
    world.connect_with(&heavy, &loads[1..3]);
    world.connect_with(&light, &loads[3..]);
    heavy.weight.set(600);
    light.weight.set(200);
    served(&mut world, 1_000_000, &[]);
    let all: Vec<_> = loads.iter().collect();
    assert_shares(&served(&mut world, 20_000_000, &all), &[8, 3, 3, 2]);
    heavy.weight.set(1);
    light.weight.set(3);
    served(&mut world, 1_000_000, &[]);
    assert_shares(&served(&mut world, 40_000_000, &all), &[8, 1, 1, 6]);
}

#[test]
fn light_load_of_many_leaves_the_rest_to_the_one_that_wants_it() {
    let mut world = World::default();
    let light: Vec<Arc<Load>> = (0..100).map(|_| Load::of_a_few(8)).collect();
    let heavy = Load::endless(LONG);
    for (number, load) in light.iter().enumerate() {
        world.connect(&group(number, DEFAULT_WEIGHT), &[Arc::clone(load)]);
    }
    world.connect(&group("heavy", DEFAULT_WEIGHT), &[Arc::clone(&heavy)]);
    // In every pass some other clients have a request: there is never one without.
    let passes = 10_000_u64;
    for pass in 0..passes {
        for place in 0..10 {
            light[usize::try_from((pass * 10 + place) % 100).expect("few")].waiting.fetch_add(1, Relaxed);
        }
        world.pass();
    }
    let of_light: u64 = light.iter().map(|load| load.served.load(Relaxed)).sum();
    assert!(of_light + 100 * 16 >= passes * 10 * 16, "light load is served at once: {of_light}");
    assert!(heavy.served.load(Relaxed) >= passes / 20 * LONG, "the worker has time: {}", heavy.served.load(Relaxed));
}

#[test]
fn group_without_work_saves_nothing() {
    let mut world = World::default();
    let (late, other) = (Load::of_a_few(8), Load::endless(8));
    world.connect(&group("late", DEFAULT_WEIGHT), &[Arc::clone(&late)]);
    world.connect(&group("other", DEFAULT_WEIGHT), &[Arc::clone(&other)]);
    served(&mut world, 10_000_000, &[]);
    late.waiting.store(u64::MAX, Relaxed);
    let of_both = served(&mut world, 20 * u64::from(QUANTUM), &[&late, &other]);
    assert!(of_both[0] <= of_both[1] + 2 * u64::from(QUANTUM), "{of_both:?}");
}

#[test]
fn queues_that_come_and_go_leave_the_schedule_whole() {
    let mut world = World::default();
    let group = group("one", DEFAULT_WEIGHT);
    for _ in 0..3 {
        world.connect(&group, &[Load::endless(1), Load::endless(1)]);
    }
    assert_eq!((world.queues.active.len(), world.queues.active.only()), (6, None));
    for id in [0, 5, 2, 3, 4] {
        world.pass();
        assert!(world.queues.remove(id).is_some());
    }
    assert_eq!((world.queues.active.len(), world.queues.active.only()), (1, Some(1)));
    world.pass();
    assert!(world.queues.remove(1).is_some());
    assert_eq!((world.queues.active.len(), world.queues.active.only()), (0, None));
    world.pass();
}

/// Passes of two workers with the same limiter, until then; the queues of each have endless work.
fn run_limited(worlds: &mut [World], end: u64) {
    while NOW.get() < end {
        worlds.iter_mut().for_each(World::pass);
        // A pass takes a microsecond; a worker sleeps if every queue is throttled, until the first is not.
        let all = |world: &World| world.queues.slots.iter().flatten().all(Slot::is_throttled);
        let first = worlds.iter().filter_map(|world| world.queues.throttled_until()).min().filter(|_| worlds.iter().all(all));
        NOW.set(first.unwrap_or(0).max(NOW.get() + clock::ticks_per_second() / 1_000_000));
    }
}

#[test]
fn common_limit_is_kept_by_several_workers_and_divided_between_groups() {
    let second = clock::ticks_per_second();
    for (iops, bytes, length) in [(Some(1000), None, 8), (Some(200_000), None, 1), (None, Some(200 << 20), LONG / 4)] {
        let common = Arc::<Limiter>::default();
        common.set(Rates::new(iops, bytes, None).expect("a limit"));
        NOW.set(clock::ticks());
        let begin = NOW.get();
        let loads: Vec<Arc<Load>> = (0..34).map(|_| Load::endless(length)).collect();
        let mut worlds = [World::default(), World::default()];
        for (world, loads) in worlds.iter_mut().zip(loads.chunks(17)) {
            world.queues.clock = || NOW.get();
            world.limit = Some(Arc::clone(&common));
            world.connect(&group("many", DEFAULT_WEIGHT), &loads[..16]);
            world.connect(&group("one", DEFAULT_WEIGHT), &loads[16..]);
        }
        run_limited(&mut worlds, begin + second);
        let of = |loads: &[Arc<Load>]| loads.iter().map(|load| load.served.load(Relaxed)).sum::<u64>();
        let (units, per_request) = (of(&loads), length + u64::from(UNITS_PER_REQUEST));
        let requests = iops.or(bytes.map(|bytes| bytes / (512 * length))).expect("a limit");
        let limit = requests * per_request;
        assert!(units <= limit * 102 / 100 + 2 * per_request, "{units} units, the limit is {limit}");
        assert!(units >= limit * 98 / 100, "{units} units, the limit is {limit}");
        let ones = loads[16].served.load(Relaxed) + loads[33].served.load(Relaxed);
        assert!(ones * 5 > units && ones * 5 < units * 3, "the one queue of a group gets {ones} of {units}");
        // The first one always looks first.
        let second_worlds = of(&loads[17..]);
        assert!(second_worlds * 5 > units * 2 && second_worlds * 5 < units * 3, "it gets {second_worlds} of {units}");
    }
}

/// A request of each is as much as the limit permits in 100 ms.
#[test]
fn limit_of_less_than_a_request_is_divided_between_workers_also_after_one_has_gone() {
    let second = clock::ticks_per_second();
    let common = Arc::<Limiter>::default();
    common.set(Rates::new(None, Some(10 << 20), None).expect("a limit"));
    NOW.set(clock::ticks());
    let begin = NOW.get();
    let loads: Vec<Arc<Load>> = (0..3).map(|_| Load::endless(LONG)).collect();
    let mut worlds = [World::default(), World::default(), World::default()];
    for (world, load) in worlds.iter_mut().zip(&loads) {
        world.queues.clock = || NOW.get();
        world.limit = Some(Arc::clone(&common));
        world.connect(&group("one", DEFAULT_WEIGHT), &[Arc::clone(load)]);
    }
    let requests = || loads.iter().map(|load| load.served.load(Relaxed) / (LONG + 8)).collect::<Vec<_>>();
    run_limited(&mut worlds, begin + 6 * second);
    let before = requests();
    assert!(before.iter().all(|count| (19..=22).contains(count)), "{before:?} of 60");
    // It waits for the limit, and is not seen again.
    let _ = worlds[1].queues.remove(0).expect("it is there");
    run_limited(&mut worlds, begin + 12 * second);
    let after: Vec<u64> = requests().iter().zip(before).map(|(after, before)| after - before).collect();
    assert!(after[1] == 0 && after[0] >= 29 && after[2] >= 29, "{after:?} of 60");
}

#[test]
fn what_closing_queues_have_left_is_served_without_limits_once_these_are_lifted() {
    let mut world = World::default();
    world.queues.clock = || NOW.get();
    let group = group("limited", DEFAULT_WEIGHT);
    group.limiter.set(Rates::new(Some(1), None, None).expect("a limit"));
    NOW.set(clock::ticks());
    let loads: Vec<Arc<Load>> = (0..2).map(|_| Load::endless(8)).collect();
    loads.iter().for_each(|load| world.connect(&group, &[Arc::clone(load)]));
    (0..10).for_each(|_| world.pass());
    let requests = |load: &Load| load.served.load(Relaxed) / 16;
    let before = [requests(&loads[0]), requests(&loads[1])];
    let close = |world: &mut World, id, left| {
        let removed: Removed<()> = Box::new(|_, _| {});
        let slot = world.queues.get_mut(id).expect("it is there");
        (slot.left, slot.closing) = (left, Some(Arc::new(Mutex::new(removed))));
        world.queues.closing();
    };
    close(&mut world, 0, 30);
    (0..10).for_each(|_| world.pass());
    assert_eq!([requests(&loads[0]), requests(&loads[1])], before, "a client that detaches is limited as before");
    world.queues.lift_limits();
    (0..10).for_each(|_| world.pass());
    let served = requests(&loads[0]) - before[0];
    assert!((30..30 + u64::from(MAX_BUDGET)).contains(&served), "what it had outstanding, and no more: {served}");
    assert_eq!(requests(&loads[1]), before[1], "it is not closing");
    close(&mut world, 1, 5);
    (0..10).for_each(|_| world.pass());
    assert!(requests(&loads[1]) >= before[1] + 5, "one that begins to close later");
}

#[test]
fn throttled_queue_keeps_no_worker_awake_and_goes_on_when_the_limit_is_raised() {
    let mut world = World::default();
    world.queues.clock = || NOW.get();
    let (limited, other) = (Load::endless(8), Load::of_a_few(8));
    let group = group("limited", DEFAULT_WEIGHT);
    group.limiter.set(Rates::new(Some(1), None, None).expect("a limit"));
    // After the limit is set, which takes the time itself.
    NOW.set(clock::ticks());
    world.connect(&group, &[Arc::clone(&limited)]);
    assert!(!world.queues.has_one(), "a caller that looks by itself would not see the limit");
    world.pass();
    assert_eq!(limited.served.load(Relaxed), 16);
    assert_eq!(world.queues.visit_active(&mut ()), 0);
    let until = world.queues.throttled_until().expect("it waits");
    assert_eq!(group.limiter.throttled(), 1, "one wait, however often it was looked at");
    assert!(world.queues.is_throttled(0) && until > NOW.get() && until <= NOW.get() + clock::ticks_per_second());
    world.connect(&self::group("other", DEFAULT_WEIGHT), &[Arc::clone(&other)]);
    for _ in 0..2 * EMPTY_VISITS_BEFORE_IDLE {
        other.waiting.fetch_add(1, Relaxed);
        world.pass();
    }
    assert_eq!(limited.served.load(Relaxed), 16);
    assert_eq!(other.served.load(Relaxed), 16 * 2 * u64::from(EMPTY_VISITS_BEFORE_IDLE), "it is visited in every pass");
    NOW.set(until);
    world.pass();
    assert_eq!(limited.served.load(Relaxed), 32);
    group.limiter.set(Rates::UNLIMITED);
    world.queues.limits_changed();
    world.pass();
    assert!(limited.served.load(Relaxed) > 32 && world.queues.throttled_until().is_none());
}

#[test]
fn a_queue_without_a_request_does_not_wait_for_its_limit() {
    let mut world = World::default();
    world.queues.clock = || NOW.get();
    let (load, group) = (Load::of_a_few(8), group("limited", DEFAULT_WEIGHT));
    group.limiter.set(Rates::new(Some(1), None, None).expect("a limit"));
    NOW.set(clock::ticks());
    world.connect(&group, &[Arc::clone(&load)]);
    load.waiting.store(1, Relaxed);
    (0..100).for_each(|_| world.pass());
    assert_eq!((load.served.load(Relaxed), group.limiter.throttled()), (16, 0), "it has used its limit and wants no more");
    load.waiting.store(1, Relaxed);
    (0..100).for_each(|_| world.pass());
    assert_eq!((load.served.load(Relaxed), group.limiter.throttled()), (16, 1));
}
