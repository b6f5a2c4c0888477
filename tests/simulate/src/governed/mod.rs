//! Clients come and go under the product's governor: its sessions, workers and queue servers on a simulated machine of several CPUs. Each
//! worker has a clock of its own, so that they work side by side; what a pass takes of it follows from the requests that it served.

mod scaling;

use std::sync::Arc;
use std::time::{Duration, Instant};

use fipsee_serve::governor::Mode;

pub(crate) use self::scaling::Scaling;
use crate::context::Context;
use crate::daemon::Daemon;
use crate::disks::{Client, ClientParameters, Disks, Pool, Stage, Terms};
use crate::link::{Awake, Link};
use crate::moves::Tally;
use crate::rng::Rng;
use crate::script::Script;
use crate::variant::Variant;

/// CPUs of the machine. One is not the workers'.
const CPUS: usize = 8;
const WORKERS: usize = CPUS - 1;
/// Clients at the most.
const CLIENTS: usize = 16;
/// An overload is answered within this time, and room within that.
const ADDED_WITHIN_US: u64 = 100_000;
const REMOVED_WITHIN_US: u64 = 5_000_000;
/// Nothing changes at a constant load for so long.
const CONSTANT_US: u64 = 10_000_000;

/// Passes, steps and wake-ups that do little.
const LOOK_US: u64 = 1;
const MAIN_US: u64 = 20;
const DISK_US: u64 = 2;
const WAKE_US: u64 = 5;
/// Empty passes before a worker arms its doorbells.
const IDLE_PASSES: u32 = 2;

/// What came of it.
#[derive(Debug, Default)]
pub struct Summary {
    /// Of queues between workers.
    pub moves: Tally,
    /// Those that were answered.
    pub requests: u64,
    /// Simulated time.
    pub simulated_us: u64,
    /// The longest time from a client's attachment to one more worker,
    pub slowest_added_us: u64,
    /// and from its departure to one less.
    pub slowest_removed_us: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Actor {
    Worker(usize),
    Disk,
    Client(usize),
    Main,
    Sample,
}

/// A worker's clock.
#[derive(Clone, Copy, Default)]
struct Clock {
    /// It does what it did last until then.
    free_at: u64,
    /// Time in which it found work, since the last sample.
    busy_us: u64,
}

struct World {
    context: Arc<Context>,
    daemon: Daemon,
    links: Vec<Link>,
    clients: Vec<Client>,
    client_at: Vec<u64>,
    clocks: Vec<Clock>,
    pool: Pool,
    rng: Rng,
    start: Instant,
    now_us: u64,
    main_at: u64,
    disk_at: u64,
    sample_at: u64,
    sampled_at: u64,
    /// What a request takes of its worker.
    request_us: u64,
    summary: Summary,
}

/// From one client to many and back. What was wrong, if anything was.
pub fn follow(seed: u64, variant: Option<Variant>) -> Result<Summary, String> {
    let mut world = World::new(seed, variant);
    let outcome = world.come_and_go();
    if let Some(violated) = world.context.verdict() {
        return Err(format!("seed {seed}, at {} us: {violated}", world.now_us));
    }
    outcome.map_err(|error| format!("seed {seed}, at {} us: {error}; workers {:?}", world.now_us, world.scaling().uses))?;
    world.summary.moves = world.context.moves().tally;
    (world.summary.requests, world.summary.simulated_us) = (u64::from(world.pool.answered), world.now_us);
    Ok(world.summary)
}

impl World {
    fn new(seed: u64, variant: Option<Variant>) -> Self {
        let mut rng = Rng::new(seed, 20);
        let context = Context::new(variant, Rng::new(seed, 2), false);
        let mut daemon = Daemon::new(&context, WORKERS, true, 0);
        let host = &mut daemon.transport.sessions.host;
        host.scaling = Some(Scaling::new(Mode::AUTO, &daemon.handles));
        host.max_clients = (2 * CLIENTS, None);
        let parameters =
            (0..CLIENTS).map(|_| ClientParameters { queues: 1, ..ClientParameters::draw(&mut rng, Terms::default()) });
        let parameters: Vec<ClientParameters> = parameters.collect();
        let layout = Disks {
            workers: WORKERS,
            idle_passes: IDLE_PASSES,
            shared: true,
            overlaps: true,
            adds: false,
            is_restless: false,
            clients: parameters.clone(),
            ports: Vec::new(),
        };
        let script = Script { seed, schedule: seed, requests: u32::MAX, first: 0, layout, faults: Vec::new(), choices: None };
        Self {
            daemon,
            links: (0..CLIENTS).map(|_| Link::default()).collect(),
            clients: parameters.iter().enumerate().map(|(index, one)| Client::new(*one, true, index)).collect(),
            // Until it is to come.
            client_at: vec![u64::MAX; CLIENTS],
            clocks: vec![Clock::default(); WORKERS],
            pool: Pool::new(&script),
            start: Instant::now(),
            now_us: 0,
            main_at: 0,
            disk_at: 0,
            sample_at: 0,
            sampled_at: 0,
            request_us: 200 + u64::from(rng.small(300)),
            rng,
            context,
            summary: Summary::default(),
        }
    }

    const fn scaling(&self) -> &Scaling {
        self.daemon.transport.sessions.host.scaling.as_ref().expect("it was given one")
    }

    fn come_and_go(&mut self) -> Result<(), String> {
        for count in 1..=CLIENTS {
            let client = count - 1;
            self.client_at[client] = self.now_us;
            self.until(ADDED_WITHIN_US, |world| world.clients[client].stage == Stage::Running, "a client attaches")?;
            let expected = count.min(WORKERS);
            let what = format!("{expected} workers for {count} clients");
            let took = self.until(ADDED_WITHIN_US, |world| world.scaling().count() == expected, &what)?;
            self.summary.slowest_added_us = self.summary.slowest_added_us.max(took);
            let until_next = 200_000 + u64::from(self.rng.small(400)) * 1000;
            self.pass_time(until_next)?;
        }
        self.stay_constant()?;
        for count in (0..CLIENTS).rev() {
            let present: Vec<usize> = (0..CLIENTS).filter(|client| self.clients[*client].stage == Stage::Running).collect();
            let client = present[self.rng.below(present.len())];
            self.clients[client].leave();
            self.until(ADDED_WITHIN_US, |world| world.clients[client].stage == Stage::Ended, "a client leaves")?;
            let expected = count.clamp(1, WORKERS);
            let what = format!("{expected} workers for {count} clients");
            let took = self.until(REMOVED_WITHIN_US, |world| world.scaling().count() == expected, &what)?;
            self.summary.slowest_removed_us = self.summary.slowest_removed_us.max(took);
            let until_next = 100_000 + u64::from(self.rng.small(400)) * 1000;
            self.pass_time(until_next)?;
        }
        self.pass_time(1_000_000)?;
        self.check_end()
    }

    /// All clients work: no worker is added or removed, and each client gets its share of one.
    fn stay_constant(&mut self) -> Result<(), String> {
        let before: Vec<u64> = self.clients.iter().map(|client| client.answered).collect();
        self.pass_time(CONSTANT_US)?;
        let answered: Vec<u64> = self.clients.iter().zip(before).map(|(client, before)| client.answered - before).collect();
        let (least, most) = (answered.iter().min().copied().unwrap_or(0), answered.iter().max().copied().unwrap_or(0));
        if least * 3 < most {
            return Err(format!("of {CLIENTS} clients with the same load one has {least} answers and one {most}"));
        }
        Ok(())
    }

    /// From 1 up to all workers and back, each once.
    fn check_end(&self) -> Result<(), String> {
        let counts: Vec<usize> = self.scaling().uses.iter().map(|(_, count)| *count).collect();
        let expected: Vec<usize> = (2..=WORKERS).chain((1..WORKERS).rev()).collect();
        if counts != expected {
            return Err(format!("numbers of workers are {counts:?}, not {expected:?}"));
        }
        self.context.oracle().check_all(&self.context);
        let left = self.daemon.what_is_left();
        left.map_or(Ok(()), |left| Err(format!("after the end there are left: {left}")))
    }

    fn pass_time(&mut self, us: u64) -> Result<(), String> {
        let until = self.now_us + us;
        self.until(us + 1, |world| world.now_us >= until, "time passes").map(|_| ())
    }

    /// Go on until this is so; how long that takes.
    fn until(&mut self, within_us: u64, is_so: impl Fn(&Self) -> bool, what: &str) -> Result<u64, String> {
        let began = self.now_us;
        while !is_so(self) {
            if self.now_us > began + within_us {
                return Err(format!("not within {within_us} us: {what}"));
            }
            self.step();
            if self.context.has_failed() {
                return Err(String::new());
            }
        }
        Ok(self.now_us - began)
    }

    /// The actor whose time is next; of several, any.
    fn step(&mut self) {
        let mut next = (self.sample_at, Actor::Sample);
        let mut ties = 1;
        for (at, actor) in self.due() {
            if at < next.0 {
                (next, ties) = ((at, actor), 1);
            } else if at == next.0 {
                ties += 1;
                if self.rng.below(ties) == 0 {
                    next = (at, actor);
                }
            }
        }
        self.now_us = self.now_us.max(next.0);
        self.run(next.1);
        let is_moving = self.daemon.transport.sessions.is_moving();
        self.context.moves().settle(is_moving);
    }

    /// When which actor goes on, but the sample.
    fn due(&mut self) -> Vec<(u64, Actor)> {
        let mut due = Vec::with_capacity(2 + WORKERS + CLIENTS);
        for (index, clock) in self.clocks.iter_mut().enumerate() {
            let slept = self.daemon.workers[index].awake == Awake::No;
            if self.daemon.may_run(index) {
                clock.free_at = if slept { self.now_us + WAKE_US } else { clock.free_at };
                due.push((clock.free_at, Actor::Worker(index)));
            }
        }
        if self.context.disk().in_flight() > 0 {
            due.push((self.disk_at, Actor::Disk));
        }
        for (index, client) in self.clients.iter_mut().enumerate().filter(|(index, _)| self.client_at[*index] < u64::MAX) {
            if client.may_run(&self.links, self.now_us) {
                due.push((self.client_at[index], Actor::Client(index)));
            }
        }
        if self.daemon.transport.has_reports() || self.links.iter().any(|link| !link.up.is_empty()) {
            due.push((self.main_at, Actor::Main));
        }
        due
    }

    fn run(&mut self, actor: Actor) {
        let now_us = self.now_us;
        match actor {
            Actor::Worker(index) => self.run_worker(index),
            Actor::Disk => {
                let place = self.rng.below(self.context.disk().in_flight());
                self.context.disk().end_one(&self.context, place);
                self.disk_at = now_us + DISK_US;
            }
            Actor::Client(index) => {
                let client = &mut self.clients[index];
                client.run(&self.context, &mut self.pool, &mut self.links[client.link], now_us);
                self.client_at[index] = now_us + LOOK_US;
                if client.take_rung() {
                    self.daemon.stir();
                }
            }
            Actor::Main => {
                let now = self.start + Duration::from_micros(now_us);
                let transport = &mut self.daemon.transport;
                match self.links.iter().position(|link| !link.up.is_empty()) {
                    Some(link) if !transport.has_reports() => transport.take(&mut self.links, link, now),
                    _ => {
                        transport.take_reports(&mut self.links);
                        transport.tick(&mut self.links, now);
                    }
                }
                self.main_at = now_us + MAIN_US;
                self.stir();
            }
            Actor::Sample => self.sample(),
        }
    }

    fn run_worker(&mut self, index: usize) {
        let served = self.daemon.run(index, IDLE_PASSES);
        let clock = &mut self.clocks[index];
        let took = LOOK_US + served.map_or(0, |requests| requests * self.request_us);
        clock.free_at = self.now_us + took;
        if served.is_some() {
            clock.busy_us += took;
            self.clients.iter_mut().for_each(Client::stir);
        }
    }

    fn stir(&mut self) {
        self.daemon.stir();
        self.clients.iter_mut().for_each(Client::stir);
    }

    #[allow(clippy::cast_precision_loss, reason = "a share needs few digits")]
    fn sample(&mut self) {
        let now_us = self.now_us;
        let elapsed = (now_us - self.sampled_at).max(1) as f64;
        let busy = |clock: &mut Clock| {
            // What it is in the middle of counts at the next sample.
            let later = if clock.busy_us > 0 { clock.free_at.saturating_sub(now_us).min(clock.busy_us) } else { 0 };
            let now = std::mem::replace(&mut clock.busy_us, later) - later;
            (now as f64 / elapsed).min(1.0)
        };
        let busy: Vec<f64> = self.clocks.iter_mut().map(busy).collect();
        let transport = &mut self.daemon.transport;
        let is_moving = transport.sessions.is_moving();
        let Some(scaling) = &mut transport.sessions.host.scaling else { return };
        let next = scaling.tick(Duration::from_micros(now_us), &busy, is_moving);
        self.sampled_at = now_us;
        self.sample_at = now_us + u64::try_from(next.as_micros()).unwrap_or(u64::MAX);
        transport.tick(&mut self.links, self.start + Duration::from_micros(now_us));
        self.stir();
    }
}
