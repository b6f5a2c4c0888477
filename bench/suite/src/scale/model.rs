//! A machine of any size in simulated time: the workers are those of the product (`serve::Worker`, with its poll set and its
//! assignment of queues), each step costs what was measured of it, and clients keep their queues full, as `crowd` does.
//!
//! Workers and clients have clocks of their own. The worker whose clock is least goes next, by a whole pass; before each of its
//! visits the clients go on until then, but not beyond the clock of any other worker, whose answers are not known yet. A worker that shares the
//! CPU of the clients' thread has its turns between those of that thread: then no client waits for its clock.

use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use fipsee::load::count_f64;
use fipsee_ring::wait::{Backoff, WaitMode};
use fipsee_serve::{
    Assignment, Command, Group, Pass, Queue, QueueName, Share, Taken, Turn, Worker, WorkerHandle, WorkerPlacement,
};

use super::costs::Costs;
use super::shared_cpu::SharedCpu;

/// Empty passes after which a worker gives its CPU to another thread of it, after each further one.
const PASSES_BEFORE_YIELD: u32 = 256;
/// Equal parts of the time of `simulate`; the first one warms up and is not counted.
const SLICES: usize = 4;

/// A machine and its load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Machine {
    pub(super) workers: usize,
    /// Threads that drive clients, each on a CPU of its own.
    pub(super) drivers: usize,
    /// The first driver shares the first worker's CPU.
    pub(super) shared: Option<SharedCpu>,
    pub(super) queues: usize,
    pub(super) depth: u32,
    /// Of each request, of 512 bytes.
    pub(super) blocks: u64,
}

/// What both sides know of a queue: when messages of so many requests, and answers, were published that the other side has not taken.
#[derive(Default)]
struct Lane {
    requests: VecDeque<(f64, u32)>,
    answers: VecDeque<f64>,
    /// If its worker shares the CPU of its clients' thread: what that thread's steps cost.
    local: Option<Costs>,
    /// Requests that a visit takes: doubled when it was full, a quarter when it was not (decision 0005).
    budget: u32,
}

impl Lane {
    /// So many requests are published at once.
    fn ask(&mut self, published: f64, count: u32) {
        let (full, rest) = (count / REQUESTS_PACKED, count % REQUESTS_PACKED);
        let full = std::iter::repeat_n((published, REQUESTS_PACKED), full as usize);
        self.requests.extend(full.chain((rest > 0).then_some((published, rest))));
    }
}

struct Driver {
    lanes: Vec<usize>,
    next: usize,
    now: f64,
    costs: Costs,
    /// Not while the worker of its CPU has that.
    is_running: bool,
    /// Looks since the last that found something.
    empty: usize,
    is_first: bool,
}

/// Of the worker that has its pass now.
#[derive(Clone, Copy, Default)]
struct Running {
    now: f64,
    costs: Costs,
    /// No other worker is beyond this.
    limit: f64,
}

struct World {
    running: Running,
    lanes: Vec<Lane>,
    drivers: Vec<Driver>,
    answered: Answered,
}

/// Completions of all drivers, in slices of the first one's time: one ends when that driver looks at the clock after so long, as those of a crowd do.
struct Answered {
    slice: f64,
    began: f64,
    count: u64,
    rates: Vec<f64>,
}

impl Answered {
    fn add(&mut self, count: usize, driver: &Driver) {
        self.count += count as u64;
        let lasted = driver.now - self.began;
        if driver.is_first && lasted >= self.slice {
            self.rates.push(count_f64(self.count) * 1e9 / lasted);
            (self.began, self.count) = (driver.now, 0);
        }
    }
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
    /// The worker that shares the first driver's CPU; none while it runs.
    static SHARED: RefCell<Option<SimWorker>> = const { RefCell::new(None) };
}

fn world<T>(act: impl FnOnce(&mut World) -> T) -> T {
    WORLD.with_borrow_mut(|world| act(world.as_mut().expect("a simulation is under way")))
}

impl Driver {
    /// Look at one queue.
    fn turn(&mut self, lanes: &mut [Lane], answered: &mut Answered) {
        let Some(lane) = self.lanes.get(self.next).and_then(|lane| lanes.get_mut(*lane)) else {
            self.now = f64::MAX;
            return;
        };
        self.next = if self.next + 1 == self.lanes.len() { 0 } else { self.next + 1 };
        let count = lane.answers.iter().take_while(|published| **published <= self.now).count();
        let costs = lane.local.unwrap_or(self.costs);
        if count == 0 {
            self.now += costs.look;
            self.empty += 1;
            answered.add(0, self);
            return;
        }
        lane.answers.drain(..count);
        self.now += costs.take + costs.completion * count_f64(count as u64);
        lane.ask(self.now - costs.ahead, u32::try_from(count).unwrap_or(u32::MAX));
        self.empty = 0;
        answered.add(count, self);
    }

    /// Has it just ended a round over all its queues that found nothing?
    fn found_nothing(&self) -> bool {
        self.next == 0 && self.empty >= self.lanes.len()
    }

    /// After a round that found nothing, go on at the next answer that is known: the looks in between find nothing either.
    fn skip_looks(&mut self, lanes: &[Lane], until: f64) {
        if self.empty >= self.lanes.len() && self.costs.look > 0.0 {
            let next = self.lanes.iter().filter_map(|lane| lanes[*lane].answers.front().copied()).fold(until, f64::min);
            let looks = ((next - self.now) / self.costs.look).floor();
            if looks > 0.0 {
                self.now += looks * self.costs.look;
            }
            self.empty = 0;
        }
    }
}

impl World {
    fn drive(&mut self, until: f64) {
        for driver in self.drivers.iter_mut().filter(|driver| driver.is_running) {
            while driver.now < until {
                driver.turn(&mut self.lanes, &mut self.answered);
                driver.skip_looks(&self.lanes, until);
            }
        }
    }

    fn has_request(&self, lane: usize) -> bool {
        self.lanes[lane].requests.front().is_some_and(|(published, _)| *published <= self.running.now)
    }

    /// The next message of a queue; how many requests it has.
    fn serve(&mut self, lane: usize, answers: &mut u32) -> u32 {
        let (_, requests) = self.lanes[lane].requests.pop_front().unwrap_or_default();
        for _ in 0..requests {
            self.running.now += self.running.costs.request;
            *answers += 1;
            if *answers == ANSWERS_PACKED {
                self.publish(lane, answers);
            }
        }
        requests
    }

    fn publish(&mut self, lane: usize, answers: &mut u32) {
        let (count, published) = (std::mem::take(answers) as usize, self.running.now - self.running.costs.ahead);
        self.lanes[lane].answers.extend(std::iter::repeat_n(published, count));
    }
}

/// Has this queue a request now?
fn is_ready(lane: usize) -> bool {
    let known = world(|world| world.running.now.min(world.running.limit));
    share_cpu(known);
    world(|world| {
        world.drive(known);
        world.has_request(lane)
    })
}

fn visit(lane: usize, blocks: u64, turn: Turn) -> u32 {
    if !is_ready(lane) {
        world(|World { running, .. }| running.now += running.costs.empty_visit);
        return 0;
    }
    world(|World { running, .. }| running.now += running.costs.visit);
    let most = if turn.alone { MOST_ALONE } else { MOST };
    let limit = world(|world| world.lanes[lane].budget).clamp(1, most).min(turn.requests);
    let has_units = |taken: u32| taken == 0 || Taken::new(taken, u64::from(taken) * blocks).units < turn.units;
    let (mut taken, mut answers) = (0, 0);
    while taken < limit && has_units(taken) && is_ready(lane) {
        taken += world(|world| world.serve(lane, &mut answers));
    }
    world(|world| {
        world.publish(lane, &mut answers);
        world.lanes[lane].budget = if taken >= limit { (limit * 2).min(most) } else { (limit / 4).max(1) };
    });
    taken
}

fn sample(lane: usize) -> bool {
    world(|World { running, .. }| running.now += running.costs.sample);
    is_ready(lane)
}

/// Requests of a visit, and of one to the only queue (decision 0005).
const MOST: u32 = 14;
const MOST_ALONE: u32 = 56;
/// Of one message (decision 0018).
const REQUESTS_PACKED: u32 = 3;
const ANSWERS_PACKED: u32 = 14;

/// By its number, and what each of its requests moves, in 512 bytes.
struct SimQueue(usize, u64);

impl Queue<()> for SimQueue {
    fn visit(&mut self, (): &mut (), turn: Turn) -> Taken {
        let taken = visit(self.0, self.1, turn);
        Taken::new(taken, u64::from(taken) * self.1)
    }

    fn has_work(&self) -> bool {
        sample(self.0)
    }

    fn moved(&mut self, _id: u32) {}

    fn saved_state(&mut self, _own: bool) -> Option<Box<dyn Any + Send>> {
        None
    }
}

struct SimWorker {
    worker: Worker<()>,
    now: f64,
    costs: Costs,
    idle_passes: u32,
    /// If the first driver shares its CPU.
    shared: Option<SharedCpu>,
    /// When it began its turn on that.
    turn_began: f64,
    /// The first driver has its CPU.
    is_waiting: bool,
}

impl SimWorker {
    fn pass(&mut self, limit: f64) {
        // Another worker's pass may be under way.
        let running = Running { now: self.now, costs: self.costs, limit };
        let other = world(|world| std::mem::replace(&mut world.running, running));
        let pass = self.worker.pass();
        let ended = world(|world| std::mem::replace(&mut world.running, other)).now;
        // One that visits and samples nothing takes time, too.
        self.now = ended.max(self.now + self.costs.sample);
        if pass == Pass::Worked {
            self.idle_passes = 0;
        } else {
            self.now += self.costs.idle_pass;
            self.idle_passes += 1;
        }
        let ends = |shared: SharedCpu| self.idle_passes > PASSES_BEFORE_YIELD || shared.has_ticked(self.turn_began, self.now);
        self.is_waiting = self.shared.is_some_and(ends);
    }
}

/// Workers with their queues, by the product's own assignment, and the worker of each queue.
fn workers(machine: &Machine, measured: &[Costs]) -> Result<(Vec<SimWorker>, Vec<usize>), String> {
    let make = |_| Worker::new(WorkerPlacement::default(), Backoff::new(WaitMode::Pause, Duration::ZERO), ());
    let made = (0..machine.workers).map(make).collect::<Result<Vec<_>, _>>();
    let made = made.map_err(|error| format!("cannot make {} workers: {error}", machine.workers))?;
    let handles: Vec<WorkerHandle<()>> = made.iter().map(|(_, handle)| handle.clone()).collect();
    let (mut assigned, blocks, user) = (Vec::new(), machine.blocks, Arc::new(Group::new("user")));
    for lane in 0..machine.queues {
        let assignment = Assignment::choose(&handles);
        let name = QueueName { client: lane as u64, index: 0 };
        let share = Share::of(Arc::clone(&user));
        handles[assignment.worker].mailbox.send(Command::add(name, share, move |_| Ok(SimQueue(lane, blocks)), |_| {}));
        assigned.push(assignment);
    }
    let of_lanes: Vec<usize> = assigned.iter().map(|assignment| assignment.worker).collect();
    let with_costs = |(number, (worker, _)): (usize, (Worker<()>, _))| {
        let count = of_lanes.iter().filter(|worker| **worker == number).count();
        let shared = machine.shared.filter(|_| number == 0);
        let costs = shared.map_or_else(|| Costs::at(measured, count_f64(count.max(1) as u64)), |shared| shared.local);
        SimWorker { worker, now: 0.0, costs, idle_passes: 0, shared, turn_began: 0.0, is_waiting: false }
    };
    Ok((made.into_iter().enumerate().map(with_costs).collect(), of_lanes))
}

/// Requests per second of all clients together, over so much simulated time.
pub(super) fn simulate(machine: &Machine, measured: &[Costs], seconds: f64) -> Result<f64, String> {
    let rates = simulate_slices(machine, measured, seconds / count_f64(SLICES as u64), SLICES - 1)?;
    Ok(rates.iter().sum::<f64>() / count_f64(rates.len() as u64))
}

/// The same in each of so many slices, after one more.
pub(super) fn simulate_slices(machine: &Machine, measured: &[Costs], seconds: f64, slices: usize) -> Result<Vec<f64>, String> {
    let (workers, of_lanes) = workers(machine, measured)?;
    let local = |worker: usize| machine.shared.filter(|_| worker == 0).map(|shared| shared.local);
    let lane = |worker: usize| {
        let mut lane = Lane { local: local(worker), ..Lane::default() };
        lane.ask(0.0, machine.depth);
        lane
    };
    let driver = |number: usize| {
        let lanes: Vec<usize> = (number..machine.queues).step_by(machine.drivers).collect();
        let costs = Costs::at(measured, count_f64(lanes.len().max(1) as u64));
        let is_first = number == 0;
        Driver { lanes, next: 0, now: 0.0, costs, is_running: !(machine.shared.is_some() && is_first), empty: 0, is_first }
    };
    let made = World {
        running: Running::default(),
        lanes: of_lanes.into_iter().map(lane).collect(),
        drivers: (0..machine.drivers).map(driver).collect(),
        answered: Answered { slice: seconds * 1e9, began: 0.0, count: 0, rates: Vec::new() },
    };
    WORLD.set(Some(made));
    run(workers, slices + 1);
    let rates = WORLD.take().map_or_else(Vec::new, |world| world.answered.rates);
    Ok(rates[1..=slices].to_vec())
}

fn run(mut workers: Vec<SimWorker>, slices: usize) {
    let shared = workers.iter().position(|worker| worker.shared.is_some());
    SHARED.set(shared.map(|shared| workers.remove(shared)));
    let (slice, mut now) = (world(|world| world.answered.slice), 0.0);
    while world(|world| world.answered.rates.len()) < slices {
        let next = (0..workers.len()).min_by(|one, other| workers[*one].now.total_cmp(&workers[*other].now));
        now = next.map_or(now + slice, |next| workers[next].now);
        share_cpu(now);
        let Some(next) = next else { continue };
        let others = workers.iter().enumerate().filter(|(number, _)| *number != next).map(|(_, worker)| worker.now);
        let limit = others.fold(f64::MAX, f64::min);
        workers[next].pass(limit);
    }
    SHARED.take();
}

/// The first driver and the worker on its CPU go on until then, by turns. While one of them has its turn the other one does nothing that it could find.
fn share_cpu(until: f64) {
    let Some(mut worker) = SHARED.take() else { return };
    while worker.now < until {
        match worker.shared.filter(|_| worker.is_waiting) {
            Some(shared) => shared_driver(&mut worker, shared, until),
            None => worker.pass(f64::MAX),
        }
    }
    SHARED.set(Some(worker));
}

/// The driver has the CPU until then, or until it finds nothing in a whole round or its time is over.
fn shared_driver(worker: &mut SimWorker, shared: SharedCpu, until: f64) {
    world(|world| {
        let World { lanes, drivers, answered, .. } = world;
        let Some(driver) = drivers.first_mut() else { return };
        if !driver.is_running {
            (driver.now, driver.empty, driver.is_running) = (worker.now + shared.switch, 0, true);
            worker.turn_began = driver.now;
        }
        while driver.now < until {
            driver.turn(lanes, answered);
            if driver.found_nothing() || shared.has_ticked(worker.turn_began, driver.now) {
                (driver.is_running, worker.is_waiting) = (false, false);
                worker.now = driver.now + shared.switch;
                worker.turn_began = worker.now;
                return;
            }
        }
        worker.now = driver.now;
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: [Costs; 1] = [Costs {
        queues: 1.0,
        idle_pass: 10.0,
        sample: 2.0,
        empty_visit: 20.0,
        visit: 100.0,
        request: 100.0,
        look: 20.0,
        take: 50.0,
        completion: 20.0,
        ahead: 0.0,
    }];

    fn rate(workers: usize, drivers: usize, queues: usize, depth: u32) -> f64 {
        let machine = Machine { workers, drivers, shared: None, queues, depth, blocks: 8 };
        simulate(&machine, &COSTS, 0.005).expect("a simulation")
    }

    #[test]
    fn one_request_at_a_time_takes_a_step_of_each_side_and_what_looks_in_vain_take() {
        let round_trip_ns = 1e9 / rate(1, 1, 1, 1);
        let least = 100.0 + 100.0 + 50.0 + 20.0;
        assert!((least..least + 80.0).contains(&round_trip_ns), "{round_trip_ns}");
    }

    #[test]
    fn a_worker_that_always_finds_requests_is_the_limit_and_a_second_doubles_it() {
        // Fourteen in a visit.
        let limit = 1e9 * 14.0 / (100.0 + 14.0 * 100.0);
        let one = rate(1, 1, 64, 64);
        assert!((one / limit - 1.0).abs() < 0.05, "{one} of {limit}");
        let two = rate(2, 4, 64, 64);
        assert!((two / one - 2.0).abs() < 0.1, "{two} and {one}");
    }

    #[test]
    fn a_worker_and_clients_on_one_cpu_take_turns() {
        let machine = Machine {
            workers: 1,
            drivers: 1,
            shared: Some(SharedCpu { switch: 1000.0, tick: 3e6, local: COSTS[0] }),
            queues: 16,
            depth: 8,
            blocks: 8,
        };
        let shared = simulate(&machine, &COSTS, 0.01).expect("a simulation");
        let apart = rate(1, 1, 16, 8);
        assert!(shared > 0.1 * apart && shared < 0.9 * apart, "{shared} and {apart}");
    }

    #[test]
    fn a_client_is_served_while_another_worker_has_no_queues() {
        let shared = Some(SharedCpu { switch: 1000.0, tick: 4e6, local: COSTS[0] });
        let machine = |workers| Machine { workers, drivers: 1, shared, queues: 1, depth: 1, blocks: 8 };
        let rates = [1, 2].map(|workers| simulate(&machine(workers), &COSTS, 0.01).expect("a simulation"));
        assert!(rates[0] > 0.0 && rates[0] == rates[1], "{rates:?}");
    }

    #[test]
    fn clients_that_find_something_in_each_round_keep_their_cpu_until_the_tick() {
        // In a round of the clients the other worker answers two queues. Both workers have more to do than they can in a tick; the first one has a little more
        // than half of its CPU, as its turn ends with a pass.
        let costs = Costs { request: 1000.0, take: 1.0, completion: 1.0, ..COSTS[0] };
        let shared = Some(SharedCpu { switch: 1000.0, tick: 4e5, local: costs });
        let machine = Machine { workers: 2, drivers: 1, shared, queues: 400, depth: 4, blocks: 8 };
        let rate = simulate(&machine, &[costs], 0.4).expect("a simulation");
        let of_a_worker = 1e9 * 4.0 / (100.0 + 4.0 * 1000.0);
        assert!((1.5..1.75).contains(&(rate / of_a_worker)), "{rate} of {of_a_worker}");
    }

    #[test]
    fn every_queue_of_many_is_served() {
        let machine = Machine { workers: 32, drivers: 96, shared: None, queues: 2000, depth: 1, blocks: 8 };
        assert!(simulate(&machine, &COSTS, 0.0005).expect("a simulation") > 32e6);
    }
}
