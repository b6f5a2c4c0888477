//! One lifetime, step by step: the scheduler chooses which actor runs.

mod ends;
mod kills;
mod moves;

use std::collections::VecDeque;
use std::sync::Arc;

use fipsee_block::disk::{Disk, Engine};
use fipsee_daemon::transport::vhost_user::device::{Acknowledgement, Action, Device, DiskDescription, NotServed};
use fipsee_ring::region::Region;
use fipsee_ring::tuning::Choices;
use fipsee_virtio::blk::server::VirtqueueServer;

use super::driver::{Driver, QUEUE_BYTES, draw, has_rung};
use super::hypervisor::{Hypervisor, Say};
use super::oracle::{Expected, SharedDisk};
use super::{Fault, Machine};
use crate::Outcome;
use crate::context::Context;
use crate::course::Course;
use crate::moves::Step;
use crate::rng::Rng;
use crate::script::{Planned, Script};
use crate::variant::Variant;

/// Bytes of a queue's part of the inflight area before its entries, and of an entry.
const INFLIGHT_HEADER: u64 = 16;
const INFLIGHT_ENTRY: u64 = 16;
const INFLIGHT_USED_INDEX: u64 = 14;
/// Why a worker does not serve a queue that moves.
const NO_WATCH: &str = "its doorbell cannot be watched";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Actor {
    Worker(usize),
    Disk,
    Driver(usize),
    Hypervisor,
    Mover,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awake {
    Looks,
    /// It found nothing: next it arms.
    Idle,
    Sleeps,
}

/// A queue at its worker.
struct Served {
    server: Option<VirtqueueServer>,
    /// On its way to another worker.
    lifted: Option<VirtqueueServer>,
    /// Of the server, among all of the lifetime.
    id: u32,
    awake: Awake,
    /// What the worker was asked for and has not done.
    orders: VecDeque<Action>,
    /// Elements of the used ring that are not written yet.
    hidden: Vec<(u16, [u8; 8])>,
    /// What the used ring held before.
    old: Vec<[u8; 8]>,
}

struct World<'a> {
    course: Course<'a, Machine>,
    script: &'a Script<Machine>,
    context: Arc<Context>,
    rng: Rng,
    ram: Arc<Region>,
    drivers: Vec<Driver>,
    queues: Vec<Served>,
    hypervisor: Hypervisor,
    device: Device,
    disk: SharedDisk,
    engine: Engine,
    expected: Expected,
    issued: u32,
    served: u32,
    /// A fault that waits until the hypervisor has nothing under way.
    due: Option<Planned<Fault>>,
    worker_slow_until: u32,
    disk_slow_until: u32,
    is_leaving: bool,
    /// A move has just ended so.
    just: Option<Step>,
    /// Answers when the last move began.
    moved_at: u32,
}

/// Play a lifetime; `keeps`: the trace is wanted.
pub(super) fn play(script: &Script<Machine>, variant: Option<Variant>, keeps: bool) -> Outcome {
    let disk = SharedDisk::new();
    let &Machine { queues, size, features, .. } = &script.layout;
    let ram = Region::create("fipsee-simulated-guest", u64::from(queues) * QUEUE_BYTES).expect("memory");
    let ram = Arc::new(ram);
    let served = || Served {
        server: None,
        lifted: None,
        id: 0,
        awake: Awake::Looks,
        orders: VecDeque::new(),
        hidden: Vec::new(),
        old: Vec::new(),
    };
    let mut world = World {
        course: Course::new(script, keeps),
        script,
        context: Context::new(variant, Rng::new(script.seed, 2), keeps),
        rng: Rng::new(script.schedule, 12),
        drivers: (0..queues).map(|index| Driver::new(&ram, index, size, features)).collect(),
        ram,
        queues: std::iter::repeat_with(served).take(queues.into()).collect(),
        hypervisor: Hypervisor::new(features, queues, size),
        device: device(&disk, queues),
        engine: Engine::new(1).expect("one entry is possible"),
        expected: Expected::new(&disk),
        disk,
        issued: 0,
        served: 0,
        due: None,
        worker_slow_until: 0,
        disk_slow_until: 0,
        is_leaving: false,
        just: None,
        moved_at: 0,
    };
    world.hypervisor.connect();
    while !world.context.has_failed() && world.step() {}
    world.course.outcome(&world.context, (world.issued, world.expected.completed))
}

/// Does it wait until nothing is in flight?
const fn waits(order: &Action) -> bool {
    matches!(order, Action::Stop(_) | Action::Move(..) | Action::Transfer(..))
}

/// For the trace, in which nothing may differ from one play to the next.
const fn name_of(order: &Action) -> &'static str {
    match order {
        Action::Serve(..) => "serves",
        Action::Stop(_) => "stops",
        Action::Move(..) => "has other memory",
        Action::Transfer(..) => "moves",
        _ => "changes",
    }
}

fn device(disk: &SharedDisk, queues: u16) -> Device {
    Device::new(DiskDescription { name: "disk".to_owned(), info: disk.info(), read_only: false }, queues)
}

impl World<'_> {
    /// One step of one actor; `false`: the lifetime is over.
    fn step(&mut self) -> bool {
        if !self.course.advance(&self.context) {
            return false;
        }
        self.fault_if_due();
        self.just = None;
        let mut actors: Vec<Actor> =
            (0..self.queues.len()).flat_map(|index| [Actor::Worker(index), Actor::Driver(index)]).collect();
        actors.extend([Actor::Disk, Actor::Hypervisor]);
        actors.extend(self.may_move().then_some(Actor::Mover));
        while !actors.is_empty() {
            let actor = actors.swap_remove(self.course.choose(actors.len()));
            if self.may_run(actor) {
                self.run(actor);
                return true;
            }
        }
        self.wait()
    }

    /// No actor can go on: a fault passes, or the lifetime is over.
    fn wait(&mut self) -> bool {
        let slow = self.worker_slow_until.max(self.disk_slow_until);
        if slow > self.course.steps {
            (self.worker_slow_until, self.disk_slow_until) = (0, 0);
            return true;
        }
        let outstanding: usize = self.drivers.iter().map(Driver::outstanding).sum();
        if outstanding > 0 || self.issued < self.script.requests {
            self.context.violated(|| format!("all actors wait, {outstanding} requests are outstanding"));
            return false;
        }
        if !self.is_leaving && self.disarm() {
            return true;
        }
        if !self.is_leaving {
            self.is_leaving = true;
            self.device.hung_up(false);
            self.carry_out();
            return true;
        }
        if !self.device.is_settled() || self.queues.iter().any(|queue| queue.server.is_some()) || self.disk.in_flight() > 0 {
            self.context.violated(|| "the hypervisor is gone, and something of it is left".to_owned());
        }
        self.expected.check(&self.context);
        false
    }

    fn may_run(&mut self, actor: Actor) -> bool {
        match actor {
            Actor::Worker(index) => {
                let Served { server, awake, orders, .. } = &mut self.queues[index];
                if self.course.steps < self.worker_slow_until {
                    return false;
                }
                let waits = orders.front().is_some_and(waits);
                let in_flight = server.as_ref().is_some_and(|server| server.in_flight() > 0);
                if waits && in_flight && !self.context.is_broken(Variant::StoppedInFlight) {
                    return false;
                }
                if !orders.is_empty() {
                    return true;
                }
                if let (Some(server), Awake::Sleeps) = (server, *awake)
                    && has_rung(&self.drivers[index].kick)
                {
                    server.doorbell_rang();
                    *awake = Awake::Looks;
                }
                self.queues[index].server.is_some() && self.queues[index].awake != Awake::Sleeps
            }
            Actor::Disk => self.course.steps >= self.disk_slow_until && self.disk.in_flight() > 0,
            Actor::Driver(index) => !self.is_leaving && self.drivers[index].may_run(),
            Actor::Hypervisor => {
                let may_speak = self.device.is_settled() && self.hypervisor.awaited.is_none();
                may_speak && !self.is_leaving && !self.hypervisor.to_say.is_empty()
            }
            Actor::Mover => true,
        }
    }

    fn run(&mut self, actor: Actor) {
        match actor {
            Actor::Worker(index) => self.run_worker(index),
            Actor::Disk => self.end_and_publish(),
            Actor::Driver(index) => self.run_driver(index),
            Actor::Hypervisor => self.speak(),
            Actor::Mover => self.move_one(),
        }
        self.carry_out();
    }

    fn run_worker(&mut self, index: usize) {
        let (driver, queue) = (&self.drivers[index], &mut self.queues[index]);
        if let Some(order) = queue.orders.front() {
            let is_to_be_idle = waits(order) && !self.context.is_broken(Variant::StoppedInFlight);
            if is_to_be_idle && queue.server.as_mut().is_some_and(|server| server.begin_deferred(&self.disk, &mut self.engine)) {
                return self.context.say(|| format!("worker {index}: begins what was deferred"));
            }
            if let Some(order) = queue.orders.pop_front() {
                self.handle(index, order);
            }
            return;
        }
        let Some(server) = &mut queue.server else { return };
        if queue.awake == Awake::Idle {
            let remains = server.arm_and_work_remains() && !self.context.is_broken(Variant::VirtqueueSleepsWithoutLook);
            queue.awake = if remains { Awake::Looks } else { Awake::Sleeps };
            return self.context.say(|| format!("worker {index}: {:?}", queue.awake));
        }
        let taken = server.visit(&self.disk, &mut self.engine, fipsee_serve::Turn::whole(false)).requests;
        queue.awake = if taken > 0 { Awake::Looks } else { Awake::Idle };
        self.context.say(|| format!("worker {index}: takes {taken}{}", server.queue.fault().map_or("", |_| ", and is over")));
        if let Some(fault) = server.queue.fault()
            && !driver.has_misbehaved
        {
            self.context.violated(|| format!("queue {index} is over, although nothing was wrong: {fault}"));
        }
    }

    /// Do what the device wants of this queue.
    fn handle(&mut self, index: usize, order: Action) {
        self.context.say(|| format!("worker {index}: {}", name_of(&order)));
        let queue = &mut self.queues[index];
        let acknowledgement = match (order, &mut queue.server) {
            (Action::Serve(number, _, setup), server) => {
                let mut setup = *setup;
                if self.context.is_broken(Variant::InflightIgnored) {
                    setup.queue.inflight = None;
                }
                self.served += 1;
                queue.id = self.served;
                let served = VirtqueueServer::new(self.served, setup, None).map(|made| *server = Some(made));
                queue.awake = Awake::Looks;
                Acknowledgement::Served(number, served.map(|()| Choices::default()))
            }
            (Action::Stop(number), server) => {
                let next = server.take().map(VirtqueueServer::stop);
                Acknowledgement::Stopped(number, next)
            }
            (Action::Move(number, memory, rings), Some(server)) => {
                let moved = server.set_memory(memory, rings);
                Acknowledgement::Moved(number, moved)
            }
            (Action::Transfer(number, worker), server) => match (server.take(), queue.lifted.take()) {
                (None, Some(lifted)) if std::mem::take(&mut self.context.moves().refuses_next) => {
                    self.just = Some(Step::Refused);
                    self.context.moves().tally.refused += 1;
                    // All that helps, as the log says.
                    self.hypervisor.restart(false);
                    let not_served = NotServed { problem: NO_WATCH.to_owned(), next_available: Some(lifted.stop()) };
                    Acknowledgement::Transferred(number, Err(not_served))
                }
                (None, Some(mut lifted)) => {
                    self.served += 1;
                    queue.id = self.served;
                    lifted.doorbell_rang();
                    if !self.context.is_broken(Variant::MovedVirtqueueKeepsNumber) {
                        lifted.moved(self.served, &self.disk.info());
                    }
                    *server = Some(lifted);
                    queue.awake = Awake::Looks;
                    self.just = Some(Step::Moved);
                    self.context.moves().tally.moves += 1;
                    Acknowledgement::Transferred(number, Ok(Choices::default()))
                }
                (lifted, _) => {
                    // No worker has it: the next step of this one is the other's first.
                    queue.lifted = lifted;
                    queue.orders.push_front(Action::Transfer(number, worker));
                    return;
                }
            },
            (Action::Change(_, change), Some(server)) => Acknowledgement::Done(change(server)),
            _ => Acknowledgement::Done(Ok(())),
        };
        if let Err(problem) = self.device.acknowledged(acknowledgement) {
            self.context.violated(|| format!("the hypervisor is refused, although nothing was wrong: {problem}"));
        }
    }

    /// Hand on what the device wants done.
    fn carry_out(&mut self) {
        loop {
            let actions = self.device.take_actions();
            if actions.is_empty() {
                return;
            }
            for action in actions {
                match action {
                    Action::Reply(bytes, file) => self.hypervisor.answered(&bytes, file, &self.drivers, &self.context),
                    Action::Claim => drop(self.device.acknowledged(Acknowledgement::Done(Ok(())))),
                    Action::Announce(_) | Action::EndClaim => {}
                    Action::ServePort(..) | Action::SendRarp(..) => unreachable!("the device is a disk"),
                    Action::Warn(_, _, why) if why == NO_WATCH => {}
                    Action::Warn(queue, what, why) => self.context.violated(|| format!("queue {queue}: {what}: {why}")),
                    Action::Serve(queue, ..)
                    | Action::Stop(queue)
                    | Action::Move(queue, ..)
                    | Action::Transfer(queue, _)
                    | Action::Change(queue, _)
                    | Action::Ring(queue, _) => self.queues[usize::from(queue)].orders.push_back(action),
                }
            }
        }
    }

    fn run_driver(&mut self, index: usize) {
        let driver = &mut self.drivers[index];
        if driver.has_misbehaved && has_rung(&driver.error) {
            self.context.say(|| format!("driver {index}: finds its device broken, and resets it"));
            return self.hypervisor.restart(true);
        }
        let reaped = driver.reap(&mut self.expected, &self.context);
        for (place, element) in self.queues[index].hidden.drain(..) {
            driver.set_used_element(place, element);
        }
        let mut issued = 0;
        // No request begins while a reset is under way: it would be gone with it.
        if !driver.has_misbehaved && !self.hypervisor.to_say.iter().any(|say| matches!(say, Say::ResetDriver)) {
            let wanted = self.rng.below(4) + usize::from(driver.outstanding() == 0);
            for _ in 0..wanted {
                if self.issued == self.script.requests {
                    break;
                }
                let operation = draw(&mut self.expected, &mut self.rng);
                if driver.issue(operation, &mut self.rng, &self.context) {
                    self.expected.begin(&operation);
                    (self.issued, issued) = (self.issued + 1, issued + 1);
                }
            }
            driver.publish(&self.context);
        }
        if reaped + issued == 0 {
            driver.sleep(&self.context);
        }
    }

    fn speak(&mut self) {
        let Some(say) = self.hypervisor.to_say.pop_front() else { return };
        self.context.say(|| format!("hypervisor: {say:?}"));
        let Some(message) = self.hypervisor.message(say, &self.ram, &self.drivers) else {
            // With the requests that it names the area goes, too, even if the daemon is killed before it is asked for another.
            self.hypervisor.inflight = None;
            self.drivers.iter_mut().for_each(Driver::reset);
            return self.expected.forget_requests();
        };
        if let Err(problem) = self.device.message(message) {
            self.context.violated(|| format!("the hypervisor is refused, although nothing was wrong: {problem}"));
        }
    }

    fn fault_if_due(&mut self) {
        if self.due.is_none() && !self.is_leaving {
            self.due = self.course.due(&self.context, self.expected.completed);
            self.context.moves().refuses_next = self.due.is_some_and(|due| due.fault == Fault::InMove(Step::Refused));
        }
        // What the hypervisor is in the middle of, a guest cannot interrupt; a kill can.
        let is_busy = !self.hypervisor.to_say.is_empty() || self.hypervisor.awaited.is_some();
        let waits =
            |fault| matches!(fault, Fault::Reset | Fault::Paused | Fault::Memory | Fault::Call | Fault::BadChain | Fault::HungUp);
        let reached = self.step_of_move();
        let is_so_far = |fault| if let Fault::InMove(step) = fault { reached == Some(step) } else { true };
        let due = self.due.take_if(|planned| !(is_busy && waits(planned.fault)) && is_so_far(planned.fault));
        if let Some(planned) = due {
            let has_effect = self.begin(planned.fault);
            if self.course.begun(&self.context, has_effect) {
                self.kill();
            }
            self.carry_out();
        }
    }

    fn begin(&mut self, fault: Fault) -> bool {
        match fault {
            Fault::WorkerSlow(steps) => self.worker_slow_until = self.course.steps + steps,
            Fault::DiskSlow(steps) => self.disk_slow_until = self.course.steps + steps,
            Fault::DiskErrors(count) => {
                self.expected.may_fail = true;
                self.disk.state().errors_left += count;
            }
            Fault::Killed => self.kill(),
            Fault::HungUp => {
                // The new connection is accepted when everything of the old one is released.
                self.device.hung_up(false);
                self.carry_out();
                self.finish_orders();
                self.device = device(&self.disk, self.script.layout.queues);
                self.hypervisor.connect();
            }
            Fault::Reset => self.hypervisor.restart(true),
            Fault::Paused => self.hypervisor.restart(false),
            Fault::Transfer => {
                let index = self.rng.below(self.queues.len());
                self.device.transfer(u16::try_from(index).expect("few"), 0);
                return self.queues[index].server.is_some();
            }
            Fault::InMove(step) => {
                self.context.moves().tally.kill(step);
                self.kill();
            }
            Fault::Memory => self.hypervisor.set_memory(),
            Fault::Call => {
                self.drivers.iter_mut().for_each(Driver::replace_call);
                self.hypervisor.set_calls();
            }
            Fault::BadChain => {
                let index = self.rng.below(self.drivers.len());
                return self.drivers[index].misbehave(&mut self.rng, &self.context);
            }
        }
        true
    }
}
