//! One lifetime, step by step.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fipsee_serve::AskedToQuiesce;

use crate::client::{self, Client};
use crate::context::Context;
use crate::daemon::{Daemon, Down, Link, Up};
use crate::disk::DiskState;
use crate::referee::Referee;
use crate::rng::Rng;
use crate::script::{Fault, Planned, Script};
use crate::takeover;
use crate::variant::Variant;
use crate::visitor::{self, Visit, Visitor};

/// Steps of the longest lifetime that gets anywhere: some twenty times the usual.
const MAX_STEPS: u32 = 20_000;
/// Simulated time after which nobody waits for anything any more.
const MAX_TIME_US: u64 = 120_000_000;

/// What became of a lifetime.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What was violated.
    pub failure: Option<String>,
    /// Steps that were made.
    pub steps: u32,
    /// Requests that were answered.
    pub requests: u32,
    /// A line for each step, if it was asked for.
    pub trace: Vec<String>,
    /// The scheduler's choices, if they were to be kept.
    pub choices: Vec<u8>,
    /// The faults that came to pass.
    pub faults: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Actor {
    Worker(usize),
    Disk,
    Daemon(usize),
    Reports,
    Client,
    Visitor(usize),
    Takeover,
}

struct World<'a> {
    script: &'a Script,
    context: Arc<Context>,
    daemon: Option<Daemon>,
    links: Vec<Link>,
    client: Client,
    visitors: Vec<Visitor>,
    referee: Referee,
    taking: Option<AskedToQuiesce>,
    rng: Rng,
    start: Instant,
    now_us: u64,
    steps: u32,
    answered_at: Option<u32>,
    next_fault: usize,
    worker_slow_until: u32,
    disk_slow_until: u32,
    is_probing: bool,
    choices: Option<Vec<u8>>,
    chosen: usize,
    candidates: Vec<Actor>,
}

/// Play a lifetime; `keeps`: trace and choices are wanted.
#[must_use]
pub fn play(script: &Script, variant: Option<Variant>, keeps: bool) -> Outcome {
    let context = Context::new(variant, DiskState::new(Rng::new(script.seed, 2)), keeps);
    let daemon = Daemon::new(&context, script.workers, 0);
    let mut world = World {
        script,
        daemon: Some(daemon),
        links: vec![Link::default()],
        client: Client::new(script.habits, (script.seed, script.schedule), 0),
        visitors: Vec::new(),
        referee: Referee::default(),
        taking: None,
        rng: Rng::new(script.schedule, 3),
        start: Instant::now(),
        now_us: 0,
        steps: 0,
        answered_at: None,
        next_fault: 0,
        worker_slow_until: 0,
        disk_slow_until: 0,
        is_probing: false,
        choices: keeps.then(Vec::new),
        chosen: 0,
        candidates: Vec::new(),
        context,
    };
    while !world.context.has_failed() && world.step() {}
    world.finish()
}

impl World<'_> {
    fn now(&self) -> Instant {
        self.start + Duration::from_micros(self.now_us)
    }

    fn choose(&mut self, count: usize) -> usize {
        self.chosen += 1;
        let choice = match &self.script.choices {
            None => self.rng.below(count),
            // Everybody has its turn when the choices are used up.
            Some(choices) => choices.get(self.chosen - 1).map_or(self.chosen, |choice| usize::from(*choice)) % count,
        };
        if let Some(kept) = &mut self.choices {
            kept.push(u8::try_from(choice).unwrap_or(u8::MAX));
        }
        choice
    }

    /// One step of somebody; `false`: the lifetime is over.
    fn step(&mut self) -> bool {
        self.steps += 1;
        self.now_us += 1;
        if self.steps > MAX_STEPS || self.now_us > MAX_TIME_US {
            self.context.violated(|| format!("after {} steps and {} us the lifetime has not ended", self.steps, self.now_us));
            return false;
        }
        self.fault_if_due();
        match self.pick() {
            Some(actor) => {
                self.run(actor);
                self.stir(actor);
            }
            None => return self.wait(),
        }
        true
    }

    fn pick(&mut self) -> Option<Actor> {
        let mut candidates = std::mem::take(&mut self.candidates);
        candidates.clear();
        candidates.extend((0..self.script.workers).map(Actor::Worker));
        candidates.push(Actor::Disk);
        candidates.push(Actor::Client);
        if self.taking.is_some() {
            candidates.push(Actor::Takeover);
        } else {
            let waiting = self.links.iter().enumerate().filter(|(_, link)| !link.up.is_empty());
            candidates.extend(waiting.map(|(index, _)| Actor::Daemon(index)));
            candidates.push(Actor::Reports);
        }
        candidates.extend((0..self.visitors.len()).map(Actor::Visitor));
        let mut picked = None;
        while picked.is_none() && !candidates.is_empty() {
            let actor = candidates.swap_remove(self.choose(candidates.len()));
            picked = self.may_run(actor).then_some(actor);
        }
        self.candidates = candidates;
        picked
    }

    fn may_run(&mut self, actor: Actor) -> bool {
        let Some(daemon) = &mut self.daemon else { return false };
        match actor {
            Actor::Worker(index) => !(index == 0 && self.steps < self.worker_slow_until) && daemon.may_run(index),
            Actor::Disk => self.steps >= self.disk_slow_until && self.context.disk().in_flight() > 0,
            Actor::Daemon(_) | Actor::Takeover => true,
            Actor::Reports => daemon.has_reports(),
            Actor::Client => self.client.may_run(&self.links[self.client.link], self.now_us),
            Actor::Visitor(index) => self.visitors[index].may_run(&self.links[self.visitors[index].link]),
        }
    }

    fn run(&mut self, actor: Actor) {
        let now = self.now();
        let Some(daemon) = &mut self.daemon else { return };
        match actor {
            Actor::Worker(index) => daemon.run(index, self.script.idle_passes),
            Actor::Disk => {
                let count = self.context.disk().in_flight();
                let place = self.choose(count);
                self.context.disk().end_one(&self.context, place);
            }
            Actor::Daemon(link) => daemon.take(&mut self.links, link, now),
            Actor::Reports => {
                daemon.take_reports(&mut self.links);
                daemon.tick(&mut self.links, now);
            }
            Actor::Client => {
                let link = &mut self.links[self.client.link];
                self.client.run(&self.context, &mut self.referee, link, self.now_us);
            }
            Actor::Visitor(index) => {
                let visitor = &mut self.visitors[index];
                visitor.run(&self.context, &mut self.links[visitor.link]);
            }
            Actor::Takeover => {
                self.take_over();
                self.client.stir();
            }
        }
    }

    /// Whom may that have woken? Only those are asked.
    fn stir(&mut self, actor: Actor) {
        match (actor, &mut self.daemon) {
            (Actor::Worker(_), _) => self.client.stir(),
            (Actor::Disk | Actor::Visitor(_), _) => {}
            (Actor::Client, _) if !self.client.take_rung() => {}
            (_, Some(daemon)) => daemon.stir(),
            _ => {}
        }
    }

    /// Nobody can go on: somebody waits for a fault to pass or for time, or the lifetime is over.
    fn wait(&mut self) -> bool {
        let slow = self.worker_slow_until.max(self.disk_slow_until);
        if slow > self.steps {
            (self.worker_slow_until, self.disk_slow_until) = (0, 0);
            return true;
        }
        if self.client.stage == client::Stage::Ended && !self.is_probing {
            // Does somebody else get what the client had for itself?
            self.is_probing = true;
            self.visit(Visit::Attach);
            return true;
        }
        let now = self.now();
        let Some(daemon) = &mut self.daemon else { return false };
        let told = |links: &[Link]| links.iter().map(|link| link.down.len()).sum::<usize>();
        let before = told(&self.links);
        daemon.tick(&mut self.links, now);
        daemon.stir();
        if told(&self.links) > before {
            return true;
        }
        let (links, holders) = (&self.links, self.context.holders().len());
        let waits = |link: usize| holders == 0 && links[link].session.is_some() && links[link].down.is_empty();
        if self.client.stage == client::Stage::Attaching && waits(self.client.link)
            || self.visitors.iter().any(|visitor| visitor.stage == visitor::Stage::Attaching && waits(visitor.link))
        {
            self.context.violated(|| "ATTACH is not answered although nobody is in the way".to_owned());
            return false;
        }
        let ticks = daemon.sessions.next_tick().map(|after| self.now_us + u64::try_from(after.as_micros()).unwrap_or(u64::MAX));
        if let Some(until) = [ticks, self.client.wakes_at()].into_iter().flatten().min() {
            self.context.say(|| format!("time: {} us", until.saturating_sub(self.now_us)));
            self.now_us = self.now_us.max(until);
            let now = self.now();
            if let Some(daemon) = &mut self.daemon {
                daemon.tick(&mut self.links, now);
                daemon.stir();
            }
            return true;
        }
        if self.client.stage != client::Stage::Ended {
            let (stage, outstanding) = (self.client.stage, self.client.outstanding.iter().flatten().count());
            self.context.violated(|| format!("everybody waits: the client is {stage:?} with {outstanding} requests outstanding"));
        }
        false
    }

    fn visit(&mut self, visit: Visit) {
        self.links.push(Link::default());
        self.visitors.push(Visitor::new(visit, self.links.len() - 1));
    }

    fn fault_if_due(&mut self) {
        let Some(Planned { answered, steps, fault }) = self.script.faults.get(self.next_fault).copied() else { return };
        if self.client.completed < answered || self.is_probing {
            return;
        }
        let since = *self.answered_at.get_or_insert(self.steps);
        if self.steps < since + steps {
            return;
        }
        (self.answered_at, self.next_fault) = (None, self.next_fault + 1);
        self.context.say(|| format!("FAULT: {fault:?}"));
        self.begin(fault);
        self.client.stir();
        self.stir(Actor::Takeover);
    }

    fn begin(&mut self, fault: Fault) {
        let link = &mut self.links[self.client.link];
        match fault {
            Fault::ClientGone => {
                if self.client.stage != client::Stage::Ended {
                    let next = self.links.len();
                    self.client.die(&mut self.links[self.client.link], next, self.now_us);
                    self.links.push(Link::default());
                }
            }
            Fault::PacketCut => {
                self.client.may_be_refused = true;
                link.up.push_back(Up::Packet(vec![1, 0, 5], Vec::new()));
            }
            Fault::WorkerSlow(steps) => self.worker_slow_until = self.steps + steps,
            Fault::DiskSlow(steps) => self.disk_slow_until = self.steps + steps,
            Fault::DiskErrors(count) => {
                self.client.errors_allowed = true;
                self.context.disk().errors_left += count;
            }
            Fault::Replaced(_) if self.taking.is_some() => {}
            Fault::Drained => {
                let Some(daemon) = &mut self.daemon else { return };
                daemon.sessions.drain();
                self.client.may_be_drained = true;
                daemon.carry_out(&mut self.links);
            }
            Fault::Replaced(waits) => self.taking = self.daemon.as_ref().map(|daemon| takeover::ask(daemon, waits)),
            Fault::Killed => self.restart(false),
            Fault::PowerCut => self.restart(true),
            Fault::Visitor(visit) => self.visit(visit),
            Fault::Unregister => {
                let _ = self.client.unregister(link);
            }
        }
    }

    fn restart(&mut self, cuts_power: bool) {
        let Some(old) = self.daemon.take() else { return };
        self.taking = None;
        if cuts_power {
            // What it was told before, it was told before.
            self.client.settle(&self.context, &mut self.referee);
        }
        self.context.disk().daemon_is_gone(&self.context);
        let next_client = old.sessions.host.next_client;
        drop(old);
        self.context.holders().clear();
        if cuts_power {
            self.referee.power_was_cut(&self.context);
            self.context.disk().cut_power();
        }
        for link in &mut self.links {
            if link.session.take().is_some() || !link.up.is_empty() {
                link.up.clear();
                link.down.push_back(Down::Closed);
            }
        }
        self.daemon = Some(Daemon::new(&self.context, self.script.workers, next_client));
    }

    fn take_over(&mut self) {
        let (Some(asked), Some(old)) = (self.taking.take(), self.daemon.take()) else { return };
        let (old, taking) = match asked.poll() {
            Ok(Ok(still)) => (takeover::go_on(old, still, &self.context, &mut self.links), None),
            Ok(Err(asked)) => (old, Some(asked)),
            Err(_) => {
                self.context.say(|| "takeover: refused, requests are in flight".to_owned());
                (old, None)
            }
        };
        (self.daemon, self.taking) = (Some(old), taking);
    }

    /// What must be so after a lifetime.
    fn finish(mut self) -> Outcome {
        if !self.context.has_failed() {
            self.referee.check_all(&self.context);
            self.check_empty();
        }
        let (steps, requests) = (self.steps, self.client.completed);
        let (faults, choices) = (u32::try_from(self.next_fault).unwrap_or(0), self.choices.take().unwrap_or_default());
        let context = Arc::clone(&self.context);
        drop(self);
        let left = context.regions_left();
        if left > 0 {
            context.violated(|| format!("{left} regions are mapped after the end"));
        }
        Outcome { failure: context.verdict(), steps, requests, trace: context.take_trace(), choices, faults }
    }

    fn check_empty(&mut self) {
        let Some(daemon) = &mut self.daemon else { return };
        if let Some(left) = daemon.what_is_left() {
            return self.context.violated(|| format!("after the end there are left: {left}"));
        }
        if self.context.disk().in_flight() > 0 {
            return self.context.violated(|| "requests are in flight at the disk after the end".to_owned());
        }
        if self.visitors.last().is_some_and(|probe| self.is_probing && !probe.was_attached) {
            return self.context.violated(|| "nobody gets the disk that the client had for itself".to_owned());
        }
        let left = self.context.regions_left();
        if left > 0 {
            return self.context.violated(|| format!("the daemon maps {left} regions, and nobody is attached"));
        }
        daemon.stop();
        for _ in 0..4 {
            daemon
                .workers
                .iter_mut()
                .for_each(|worker| worker.has_stopped |= worker.worker.pass() == fipsee_serve::Pass::Stopped);
        }
        let (stopped, queues) = (daemon.workers.iter().all(|worker| worker.has_stopped), daemon.queues());
        if !stopped || daemon.handles.iter().any(|handle| handle.counters.queues.load(Ordering::Relaxed) > 0) {
            self.context.violated(|| format!("workers that are to stop do not; they serve {queues} queues"));
        }
    }
}
