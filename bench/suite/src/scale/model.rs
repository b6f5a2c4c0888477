//! A machine of any size in simulated time: the workers are those of the product (`serve::Worker`, with its poll set and its
//! assignment of queues), each step costs what was measured of it, and clients keep their queues full, as `crowd` does.
//!
//! Workers and clients have clocks of their own. The worker whose clock is least goes next, by a whole pass; before each of its
//! visits the clients go on until then, but not beyond the clock of any other worker, whose answers are not known yet.

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
/// The part of the time that is not counted.
const WARM_UP: f64 = 0.25;

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
}

struct World {
    /// Of the worker that has its pass now.
    now: f64,
    costs: Costs,
    /// No other worker is beyond this.
    limit: f64,
    lanes: Vec<Lane>,
    drivers: Vec<Driver>,
    counts_from: f64,
    answered: u64,
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

fn world<T>(act: impl FnOnce(&mut World) -> T) -> T {
    WORLD.with_borrow_mut(|world| act(world.as_mut().expect("a simulation is under way")))
}

impl Driver {
    /// Look at one queue.
    fn turn(&mut self, lanes: &mut [Lane], counts_from: f64, answered: &mut u64) {
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
            return;
        }
        lane.answers.drain(..count);
        self.now += costs.take + costs.completion * count_f64(count as u64);
        lane.ask(self.now - costs.ahead, u32::try_from(count).unwrap_or(u32::MAX));
        self.empty = 0;
        if self.now >= counts_from {
            *answered += count as u64;
        }
    }
}

impl Driver {
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
                driver.turn(&mut self.lanes, self.counts_from, &mut self.answered);
                driver.skip_looks(&self.lanes, until);
            }
        }
    }

    /// Has this queue a request now?
    fn is_ready(&mut self, lane: usize) -> bool {
        self.drive(self.now.min(self.limit));
        self.lanes[lane].requests.front().is_some_and(|(published, _)| *published <= self.now)
    }

    fn publish(&mut self, lane: usize, answers: &mut u32) {
        let count = std::mem::take(answers) as usize;
        self.lanes[lane].answers.extend(std::iter::repeat_n(self.now - self.costs.ahead, count));
    }

    fn visit(&mut self, lane: usize, blocks: u64, turn: Turn) -> u32 {
        if !self.is_ready(lane) {
            self.now += self.costs.empty_visit;
            return 0;
        }
        self.now += self.costs.visit;
        let most = if turn.alone { MOST_ALONE } else { MOST };
        let limit = self.lanes[lane].budget.clamp(1, most).min(turn.requests);
        let has_units = |taken: u32| taken == 0 || Taken::new(taken, u64::from(taken) * blocks).units < turn.units;
        let (mut taken, mut answers) = (0, 0);
        while taken < limit && has_units(taken) && self.is_ready(lane) {
            let (_, requests) = self.lanes[lane].requests.pop_front().unwrap_or_default();
            for _ in 0..requests {
                self.now += self.costs.request;
                answers += 1;
                if answers == ANSWERS_PACKED {
                    self.publish(lane, &mut answers);
                }
            }
            taken += requests;
        }
        self.publish(lane, &mut answers);
        self.lanes[lane].budget = if taken >= limit { (limit * 2).min(most) } else { (limit / 4).max(1) };
        taken
    }

    fn sample(&mut self, lane: usize) -> bool {
        self.now += self.costs.sample;
        self.is_ready(lane)
    }
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
        let taken = world(|world| world.visit(self.0, self.1, turn));
        Taken::new(taken, u64::from(taken) * self.1)
    }

    fn has_work(&self) -> bool {
        world(|world| world.sample(self.0))
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
        world(|world| (world.now, world.costs, world.limit) = (self.now, self.costs, limit));
        let pass = self.worker.pass();
        // One that visits and samples nothing takes time, too.
        self.now = world(|world| world.now).max(self.now + self.costs.sample);
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
    let duration = seconds * 1e9;
    let (mut workers, of_lanes) = workers(machine, measured)?;
    let local = |worker: usize| machine.shared.filter(|_| worker == 0).map(|shared| shared.local);
    let lane = |worker: usize| {
        let mut lane = Lane { local: local(worker), ..Lane::default() };
        lane.ask(0.0, machine.depth);
        lane
    };
    let driver = |number: usize| {
        let lanes: Vec<usize> = (number..machine.queues).step_by(machine.drivers).collect();
        let costs = Costs::at(measured, count_f64(lanes.len().max(1) as u64));
        Driver { lanes, next: 0, now: 0.0, costs, is_running: !(machine.shared.is_some() && number == 0), empty: 0 }
    };
    let made = World {
        now: 0.0,
        costs: Costs::default(),
        limit: 0.0,
        lanes: of_lanes.into_iter().map(lane).collect(),
        drivers: (0..machine.drivers).map(driver).collect(),
        counts_from: duration * WARM_UP,
        answered: 0,
    };
    WORLD.set(Some(made));
    run(&mut workers, duration);
    let answered = WORLD.take().map_or(0, |world| world.answered);
    Ok(count_f64(answered) / (seconds * (1.0 - WARM_UP)))
}

fn run(workers: &mut [SimWorker], duration: f64) {
    loop {
        let least = (0..workers.len()).min_by(|one, other| workers[*one].now.total_cmp(&workers[*other].now));
        let Some(next) = least.filter(|next| workers[*next].now < duration) else { return };
        let others = workers.iter().enumerate().filter(|(number, _)| *number != next).map(|(_, worker)| worker.now);
        let limit = others.fold(f64::MAX, f64::min);
        match workers[next].shared.filter(|_| workers[next].is_waiting) {
            Some(shared) => shared_driver(&mut workers[next], shared, limit),
            None => workers[next].pass(limit),
        }
    }
}

/// The driver that shares this worker's CPU has it, until it finds nothing in a whole round or its time is over; until another worker is due,
/// first.
fn shared_driver(worker: &mut SimWorker, shared: SharedCpu, limit: f64) {
    world(|world| {
        let World { lanes, drivers, counts_from, answered, .. } = world;
        let Some(driver) = drivers.first_mut() else { return };
        if !driver.is_running {
            (driver.now, driver.empty, driver.is_running) = (worker.now + shared.switch, 0, true);
            worker.turn_began = driver.now;
        }
        loop {
            driver.turn(lanes, *counts_from, answered);
            if driver.empty >= driver.lanes.len() || shared.has_ticked(worker.turn_began, driver.now) {
                (driver.is_running, worker.is_waiting) = (false, false);
                worker.now = driver.now + shared.switch;
                worker.turn_began = worker.now;
                return;
            }
            if driver.now > limit {
                worker.now = driver.now;
                return;
            }
        }
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
    fn every_queue_of_many_is_served() {
        let machine = Machine { workers: 32, drivers: 96, shared: None, queues: 2000, depth: 1, blocks: 8 };
        assert!(simulate(&machine, &COSTS, 0.0005).expect("a simulation") > 32e6);
    }
}
