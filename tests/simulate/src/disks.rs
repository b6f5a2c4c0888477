//! Lifetimes of a disk: clients over their queues, and the faults of clients, daemon and disk.

mod adder;
pub(crate) mod claims;
mod client;
mod layout;
mod moving;
mod ports;
mod second_client;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fipsee_serve::AskedToQuiesce;

use self::adder::Adder;
pub(crate) use self::claims::Terms;
pub(crate) use self::client::{Client, ClientParameters, Pool, Stage};
pub use self::layout::{Disks, Fault, InMove};
pub use self::moving::Moves;
pub use self::ports::Ports;
use self::second_client::{SecondClient, Visit};
use crate::context::Context;
use crate::course::{Course, Outcome};
use crate::daemon::Daemon;
use crate::lan::port::PortClient;
use crate::link::Link;
use crate::moves::Step;
use crate::rng::Rng;
use crate::script::{Planned, Script};
use crate::takeover;
use crate::variant::Variant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Actor {
    Worker(usize),
    Disk,
    Daemon(usize),
    Reports,
    Client(usize),
    SecondClient(usize),
    Adder,
    Port(usize),
    Takeover,
    Mover,
}

struct World<'a> {
    course: Course<'a, Disks>,
    layout: &'a Disks,
    context: Arc<Context>,
    daemon: Option<Daemon>,
    links: Vec<Link>,
    clients: Vec<Client>,
    second_clients: Vec<SecondClient>,
    adder: Option<Adder>,
    ports: Vec<PortClient>,
    pool: Pool,
    taking: Option<AskedToQuiesce>,
    /// A takeover is to begin when nothing moves.
    is_to_be_replaced: bool,
    /// What is to happen when a queue that moves is so far.
    armed: Option<(Step, InMove)>,
    /// Answers when the last move began.
    moved_at: u32,
    worker_slow_until: u32,
    disk_slow_until: u32,
    is_probing: bool,
    candidates: Vec<Actor>,
}

/// Play a lifetime.
fn play(script: &Script<Disks>, variant: Option<Variant>, keeps: bool) -> Outcome {
    let layout = &script.layout;
    let context = Context::new(variant, Rng::new(script.seed, 2), keeps);
    let clients = layout.clients.iter().enumerate();
    let clients: Vec<Client> = clients.map(|(index, parameters)| Client::new(*parameters, layout.shared, index)).collect();
    let ports = ports::clients(&context, script, clients.len() + 1);
    let mut world = World {
        course: Course::new(script, keeps),
        layout,
        daemon: Some(Daemon::new(&context, layout.workers, layout.shared, 0)),
        links: (0..=clients.len() + ports.len()).map(|_| Link::default()).collect(),
        adder: layout.adds.then(|| Adder::new(clients.len(), Rng::new(script.seed, 4))),
        clients,
        ports,
        second_clients: Vec::new(),
        pool: Pool::new(script),
        taking: None,
        is_to_be_replaced: false,
        armed: None,
        moved_at: 0,
        worker_slow_until: 0,
        disk_slow_until: 0,
        is_probing: false,
        candidates: Vec::new(),
        context,
    };
    while !world.context.has_failed() && world.step() {}
    world.finish()
}

impl World<'_> {
    /// One step of one actor; `false`: the lifetime is over.
    fn step(&mut self) -> bool {
        if !self.course.advance(&self.context) {
            return false;
        }
        if !self.is_probing
            && self.armed.is_none()
            && let Some(planned) = self.course.due(&self.context, self.pool.answered)
        {
            if let Fault::InMove(step, what) = planned.fault {
                self.armed = Some((step, what));
                self.context.moves().refuses_next = step == Step::Refused;
            } else {
                let has_effect = self.begin(planned);
                if self.course.begun(&self.context, has_effect) {
                    self.begin(Planned { fault: Fault::Killed, ..planned });
                }
            }
            self.stir_clients();
            self.stir_daemon();
        }
        match self.pick() {
            Some(actor) => {
                self.run(actor);
                self.stir(actor);
                self.watch_ports();
                self.watch_moves();
                true
            }
            None => self.wait(),
        }
    }

    fn pick(&mut self) -> Option<Actor> {
        let mut candidates = std::mem::take(&mut self.candidates);
        candidates.clear();
        candidates.extend((0..self.layout.workers).map(Actor::Worker));
        candidates.push(Actor::Disk);
        candidates.extend((0..self.clients.len()).map(Actor::Client));
        if self.taking.is_some() {
            candidates.push(Actor::Takeover);
        } else {
            let waiting = self.links.iter().enumerate().filter(|(_, link)| !link.up.is_empty());
            candidates.extend(waiting.map(|(index, _)| Actor::Daemon(index)));
            candidates.push(Actor::Reports);
        }
        candidates.extend((0..self.second_clients.len()).map(Actor::SecondClient));
        candidates.extend(self.adder.is_some().then_some(Actor::Adder));
        candidates.extend((0..self.ports.len()).map(Actor::Port));
        candidates.extend(self.may_move().then_some(Actor::Mover));
        let (steps, now_us) = (self.course.steps, self.course.now_us);
        let Self { daemon, clients, second_clients, adder, ports, links, context, .. } = self;
        let lan = context.lan();
        let (worker_slow_until, disk_slow_until) = (self.worker_slow_until, self.disk_slow_until);
        let picked = daemon.as_mut().and_then(|daemon| {
            self.course.pick(&mut candidates, |actor| match actor {
                Actor::Worker(index) => !(index == 0 && steps < worker_slow_until) && daemon.may_run(index),
                Actor::Disk => steps >= disk_slow_until && context.disk().in_flight() > 0,
                Actor::Daemon(_) | Actor::Takeover | Actor::Mover => true,
                Actor::Reports => daemon.transport.has_reports(),
                Actor::Client(index) => clients[index].may_run(links, now_us),
                Actor::SecondClient(index) => second_clients[index].may_run(&links[second_clients[index].link]),
                Actor::Adder => adder.as_mut().is_some_and(|adder| adder.may_run(links, now_us)),
                Actor::Port(index) => ports[index].may_run(&lan, links, now_us),
            })
        });
        drop(lan);
        self.candidates = candidates;
        picked
    }

    fn run(&mut self, actor: Actor) {
        let now = self.course.now();
        let Some(daemon) = &mut self.daemon else { return };
        match actor {
            Actor::Worker(index) => _ = daemon.run(index, self.layout.idle_passes),
            Actor::Disk => {
                let count = self.context.disk().in_flight();
                let place = self.course.choose(count);
                self.context.disk().end_one(&self.context, place);
            }
            Actor::Daemon(link) => daemon.transport.take(&mut self.links, link, now),
            Actor::Reports => {
                daemon.transport.take_reports(&mut self.links);
                daemon.transport.tick(&mut self.links, now);
            }
            Actor::Client(index) => {
                let client = &mut self.clients[index];
                client.run(&self.context, &mut self.pool, &mut self.links[client.link], self.course.now_us);
            }
            Actor::SecondClient(index) => {
                let second_client = &mut self.second_clients[index];
                second_client.run(&self.context, &mut self.links[second_client.link]);
            }
            Actor::Adder => {
                let Some(adder) = &mut self.adder else { return };
                adder.run(&self.context, &mut self.links[adder.link], self.course.now_us);
            }
            Actor::Port(index) => {
                let port = &mut self.ports[index];
                port.run(&self.context, &mut self.links[port.link], self.course.now_us);
            }
            Actor::Takeover => {
                self.take_over();
                self.stir_clients();
            }
            Actor::Mover => self.move_one(),
        }
    }

    /// Only the actors that this may have woken are asked.
    fn stir(&mut self, actor: Actor) {
        match actor {
            Actor::Worker(_) => self.stir_clients(),
            Actor::Disk | Actor::SecondClient(_) => {}
            Actor::Client(index) if !self.clients[index].take_rung() => {}
            _ => self.stir_daemon(),
        }
    }

    fn stir_clients(&mut self) {
        self.clients.iter_mut().for_each(Client::stir);
        self.adder.iter_mut().for_each(Adder::stir);
        self.ports.iter_mut().for_each(PortClient::stir);
    }

    fn stir_daemon(&mut self) {
        self.daemon.iter_mut().for_each(Daemon::stir);
    }

    /// No actor can go on: one waits for a fault to pass or for time, or the lifetime is over.
    fn wait(&mut self) -> bool {
        let slow = self.worker_slow_until.max(self.disk_slow_until);
        if slow > self.course.steps {
            (self.worker_slow_until, self.disk_slow_until) = (0, 0);
            return true;
        }
        let adds = self.adder.as_ref().filter(|adder| adder.stage != adder::Stage::Ended);
        let have_ended =
            self.clients.iter().all(|client| client.stage == Stage::Ended) && adds.is_none() && self.ports_have_ended();
        if have_ended && self.disarm() {
            return true;
        }
        if have_ended && !self.is_probing {
            // Does another client get what the clients had for themselves?
            self.is_probing = true;
            self.visit(Visit::Attach);
            return true;
        }
        let stayed = self.clients.iter_mut().map(|client| client.check_events(&self.context));
        if stayed.fold(false, |any, stayed| any | stayed) {
            return true;
        }
        let sent = |links: &[Link]| links.iter().map(|link| link.down.len()).sum::<usize>();
        let (before, now) = (sent(&self.links), self.course.now());
        let Some(daemon) = &mut self.daemon else { return false };
        daemon.transport.tick(&mut self.links, now);
        daemon.stir();
        if sent(&self.links) > before {
            return true;
        }
        let ticks = daemon.transport.sessions.next_tick();
        if let Some(terms) = self.unblocked_attach() {
            self.context.violated(|| format!("ATTACH is not answered although no client excludes {terms:?}"));
            return false;
        }
        let ticks = ticks.map(|after| self.course.now_us + u64::try_from(after.as_micros()).unwrap_or(u64::MAX));
        let wakes = self.clients.iter().filter_map(Client::wakes_at).chain(self.adder.iter().filter_map(Adder::wakes_at));
        let wakes = wakes.chain(self.ports.iter().filter_map(PortClient::wakes_at));
        if let Some(until) = wakes.chain(ticks).min() {
            self.course.sleep_until(&self.context, until);
            let now = self.course.now();
            if let Some(daemon) = &mut self.daemon {
                daemon.transport.tick(&mut self.links, now);
                daemon.stir();
            }
            return true;
        }
        if let Some(client) = self.clients.iter().find(|client| client.stage != Stage::Ended) {
            let (stage, outstanding) = (client.stage, client.outstanding());
            self.context.violated(|| format!("all actors wait: a client is {stage:?} with {outstanding} requests outstanding"));
        }
        if let Some(adder) = self.adder.as_ref().filter(|adder| adder.stage != adder::Stage::Ended) {
            self.context.violated(|| format!("all actors wait: the adder is {:?}", adder.stage));
        }
        if !self.ports_have_ended() {
            let stages: Vec<_> = self.ports.iter().map(|port| (port.stage, port.unanswered())).collect();
            self.context.violated(|| format!("all actors wait: ports, with frames unanswered, are {stages:?}"));
        }
        false
    }

    /// A client that waits to be attached although no other excludes it.
    fn unblocked_attach(&self) -> Option<Terms> {
        let clients = self.clients.iter().filter(|client| client.stage == Stage::Attaching);
        let second_clients =
            self.second_clients.iter().filter(|second_client| second_client.stage == second_client::Stage::Attaching);
        let wanted = clients.map(|client| (client.terms(), client.link));
        let wanted = wanted.chain(second_clients.map(|second_client| (SecondClient::TERMS, second_client.link)));
        let holders = self.context.holders();
        let waits = |link: usize| self.links[link].session.is_some() && self.links[link].down.is_empty();
        let is_free = |terms: Terms| !holders.iter().any(|holder| terms.is_kept_out_by(holder.terms, self.layout.shared));
        wanted.filter(|(terms, link)| waits(*link) && is_free(*terms)).map(|(terms, _)| terms).next()
    }

    fn visit(&mut self, visit: Visit) {
        self.links.push(Link::default());
        self.second_clients.push(SecondClient::new(visit, self.links.len() - 1));
    }

    /// Does it do anything?
    fn begin(&mut self, Planned { fault, victim, .. }: Planned<Fault>) -> bool {
        let (next_link, now_us) = (self.links.len(), self.course.now_us);
        if let (Fault::ClientGone, Some(adder), 0) = (fault, &mut self.adder, victim % 3) {
            let lives = adder.stage != adder::Stage::Ended;
            if lives {
                adder.die(&mut self.links[adder.link], next_link, now_us);
                self.links.push(Link::default());
            }
            return lives;
        }
        if fault == Fault::ClientGone && !self.ports.is_empty() && victim % 2 == 0 {
            return self.kill_port(victim);
        }
        let (is_moving, is_taken_over) = (self.is_moving(), self.taking.is_some());
        let Some(daemon) = &mut self.daemon else { return false };
        let index = victim % self.clients.len();
        let client = &mut self.clients[index];
        let link = &mut self.links[client.link];
        match fault {
            Fault::Port(misuse) => return self.misuse_port(misuse, victim),
            Fault::ClientGone => {
                if client.stage == Stage::Ended {
                    return false;
                }
                client.die(&self.context, link, next_link, now_us);
                self.links.push(Link::default());
            }
            Fault::PacketDamaged(damaged) => {
                let has_effect = daemon.transport.looks_at(link);
                client.may_be_refused = true;
                damaged.send(link);
                return has_effect;
            }
            Fault::WorkerSlow(steps) => self.worker_slow_until = self.course.steps + steps,
            Fault::DiskSlow(steps) => self.disk_slow_until = self.course.steps + steps,
            Fault::DiskErrors(count) => {
                self.context.oracle().has_errors = true;
                self.context.disk().errors_left += count;
            }
            // The thread that would carry it out is busy with the takeover.
            Fault::Replaced(_) | Fault::Resized(_) if is_taken_over => return false,
            Fault::Resized(sizes) => {
                let before = self.context.disk().size();
                sizes.into_iter().for_each(|size| self.resize(size));
                return sizes.into_iter().any(|size| size != before);
            }
            Fault::Drained => {
                let has_effect = daemon.transport.sessions.iter().next().is_some();
                daemon.transport.sessions.drain();
                self.clients.iter_mut().for_each(|client| client.may_be_drained = true);
                self.ports.iter_mut().for_each(|port| port.may_be_drained = true);
                daemon.transport.carry_out(&mut self.links);
                return has_effect;
            }
            // In the product it begins when the move has ended.
            Fault::Replaced(_) if is_moving || self.is_to_be_replaced => return false,
            Fault::Replaced(waits) => self.taking = Some(takeover::ask(daemon, waits)),
            Fault::Killed => self.restart(false),
            Fault::PowerCut => self.restart(true),
            Fault::SecondClient(visit) => self.visit(visit),
            Fault::Unregister => return client.unregister(link),
            Fault::Moved(index) => {
                let Some(client) = link.session else { return false };
                daemon.move_queue(client, index, 1);
                daemon.transport.carry_out(&mut self.links);
                return !is_moving && self.is_moving();
            }
            // Not before a queue moves.
            Fault::InMove(..) => return false,
        }
        true
    }

    fn is_moving(&self) -> bool {
        self.daemon.as_ref().is_some_and(|daemon| daemon.transport.sessions.is_moving())
    }

    fn resize(&mut self, size: usize) {
        self.context.disk().resize(size);
        self.context.oracle().resized(size);
        if let Some(daemon) = &self.daemon {
            daemon.transport.sessions.host.announce_resize();
        }
    }

    fn restart(&mut self, cuts_power: bool) {
        let Some(old) = self.daemon.take() else { return };
        (self.taking, self.is_to_be_replaced) = (None, false);
        self.context.moves().forget();
        if cuts_power {
            // What clients were sent before stays sent.
            self.clients.iter_mut().for_each(|client| _ = client.reap(&self.context, &mut self.pool));
        }
        self.context.disk().daemon_is_gone(&self.context);
        let next_client = old.transport.sessions.host.next_client;
        drop(old);
        self.context.holders().clear();
        self.context.oracle().released(None);
        if cuts_power {
            self.context.oracle().power_was_cut(&self.context);
            self.context.disk().cut_power();
        }
        self.links.iter_mut().for_each(Link::is_cut);
        self.context.lan().daemon_may_be_another();
        self.daemon = Some(Daemon::new(&self.context, self.layout.workers, self.layout.shared, next_client));
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
        self.context.lan().daemon_may_be_another();
    }

    /// What must be so after a lifetime.
    fn finish(mut self) -> Outcome {
        if !self.context.has_failed() {
            self.context.oracle().check_all(&self.context);
            self.check_empty();
        }
        let Self { context, course, pool, .. } = self;
        drop((self.daemon, self.clients, self.adder, self.ports, self.second_clients, self.links));
        let left = context.regions_left();
        if left > 0 {
            context.violated(|| format!("{left} regions are mapped after the end"));
        }
        course.outcome(&context, (pool.issued, pool.answered))
    }

    fn check_empty(&mut self) {
        let Some(daemon) = &mut self.daemon else { return };
        if let Some(left) = daemon.what_is_left() {
            return self.context.violated(|| format!("after the end there are left: {left}"));
        }
        if self.context.disk().in_flight() > 0 {
            return self.context.violated(|| "requests are in flight at the disk after the end".to_owned());
        }
        if self.second_clients.last().is_some_and(|probe| self.is_probing && !probe.was_attached) {
            return self.context.violated(|| "no client gets the disk that the clients had for themselves".to_owned());
        }
        let left = self.context.regions_left();
        if left > 0 {
            return self.context.violated(|| format!("the daemon maps {left} regions, and no client is attached"));
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
