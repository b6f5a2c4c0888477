//! Lifetimes of typed calls: the server of calls, its workers and its clients.

mod client;
mod ledger;
mod server;

use std::sync::Arc;

use self::client::{CallClient, Stage};
use self::ledger::Ledger;
use self::server::CallServer;
use crate::context::Context;
use crate::course::{Course, Outcome};
use crate::link::{Damaged, Link, Up};
use crate::rng::Rng;
use crate::script::{Kind, Planned, Script};
use crate::variant::Variant;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The client's process ends, and another goes on.
    ClientGone,
    /// The client sends a packet that no correct one sends.
    PacketDamaged(Damaged),
    /// A worker does nothing for so many steps.
    WorkerSlow(u32),
    /// Every call takes so many steps more, from now on.
    CallsSlow(u32),
    /// A thread that answers calls goes, and another comes.
    WorkerGone,
    /// The client's next message is not one of the service.
    NoCall,
    /// A client connects and says nothing.
    Silent,
    /// The server lets all clients finish and ends; another is started.
    Drained,
    /// The server is killed and started again.
    Killed,
}

/// Clients and workers.
#[derive(Clone, Debug)]
pub struct Calls {
    clients: usize,
    workers: usize,
    depth: u32,
    idle_passes: u32,
    /// Bytes of payload with each call and each reply.
    payload_bytes: u32,
    /// How clients end: 0: they detach when all is answered; 1: they detach at once; 2: they hang up.
    end: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Actor {
    Worker(usize),
    Link(usize),
    Server,
    Client(usize),
}

struct World<'a> {
    course: Course<'a, Calls>,
    script: &'a Script<Calls>,
    context: Arc<Context>,
    server: CallServer,
    links: Vec<Link>,
    clients: Vec<CallClient>,
    ledger: Ledger,
    slow_until: u32,
    candidates: Vec<Actor>,
}

impl Kind for Calls {
    type Fault = Fault;

    const NAME: &'static str = "calls";

    fn draw(rng: &mut Rng) -> Self {
        Self {
            clients: 1 + rng.below(3),
            workers: 1 + rng.below(2),
            depth: 1 + rng.small(8),
            idle_passes: rng.small(3),
            payload_bytes: if rng.percent(50) { 64 } else { 0 },
            end: rng.below(4).saturating_sub(1),
        }
    }

    fn draw_fault(&self, rng: &mut Rng) -> Fault {
        match rng.below(11) {
            0 | 1 => Fault::ClientGone,
            2 => Fault::PacketDamaged(Damaged::draw(rng)),
            3 => Fault::WorkerSlow(10 + rng.small(100)),
            4 => Fault::CallsSlow(1 + rng.small(12)),
            5 => Fault::WorkerGone,
            6 => Fault::NoCall,
            7 => Fault::Silent,
            8 | 9 => Fault::Drained,
            _ => Fault::Killed,
        }
    }

    fn simpler(&self) -> Vec<Self> {
        let fewer = |clients: usize| Self { clients, ..self.clone() };
        let mut simpler: Vec<Self> = (1..self.clients).map(fewer).collect();
        if self.workers > 1 {
            simpler.push(Self { workers: 1, ..self.clone() });
        }
        if self.payload_bytes > 0 {
            simpler.push(Self { payload_bytes: 0, ..self.clone() });
        }
        simpler
    }

    fn play(script: &Script<Self>, variant: Option<Variant>, keeps: bool) -> Outcome {
        let context = Context::new(variant, Rng::new(script.seed, 2), keeps);
        let layout = &script.layout;
        let clients: Vec<CallClient> = (0..layout.clients).map(|index| CallClient::new(layout, index)).collect();
        let mut world = World {
            course: Course::new(script, keeps),
            script,
            server: CallServer::new(&context, layout.workers, layout.depth, layout.payload_bytes),
            links: clients.iter().map(|_| Link::default()).collect(),
            clients,
            ledger: Ledger::new(script.requests, script.first),
            slow_until: 0,
            candidates: Vec::new(),
            context,
        };
        while !world.context.has_failed() && world.step() {}
        world.finish()
    }
}

impl World<'_> {
    fn step(&mut self) -> bool {
        if !self.course.advance(&self.context) {
            return false;
        }
        if let Some(planned) = self.course.due(&self.context, self.ledger.answered()) {
            let has_effect = self.begin(planned);
            if self.course.begun(&self.context, has_effect) {
                self.begin(Planned { fault: Fault::Killed, ..planned });
            }
        }
        let mut candidates = std::mem::take(&mut self.candidates);
        candidates.clear();
        candidates.extend((0..self.server.workers.len()).map(Actor::Worker));
        let (links, is_stopping) = (&self.links, self.server.is_stopping());
        // A client that connects while it stops waits for the next.
        let is_taken = |up: Option<&Up>| up.is_some_and(|up| !(is_stopping && matches!(up, Up::Connect(_))));
        candidates.extend((0..links.len()).filter(|link| is_taken(links[*link].up.front())).map(Actor::Link));
        candidates.extend((0..self.clients.len()).map(Actor::Client));
        candidates.push(Actor::Server);
        let (steps, now_us) = (self.course.steps, self.course.now_us);
        let (server, clients, links, slow_until) = (&mut self.server, &mut self.clients, &self.links, self.slow_until);
        let picked = self.course.pick(&mut candidates, |actor| match actor {
            Actor::Worker(index) => !(index == 0 && steps < slow_until) && server.may_run(index),
            Actor::Link(_) => true,
            Actor::Server => server.has_reports(),
            Actor::Client(index) => clients[index].may_run(links, now_us),
        });
        self.candidates = candidates;
        match picked {
            Some(actor) => {
                self.run(actor);
                true
            }
            None => self.wait(),
        }
    }

    fn run(&mut self, actor: Actor) {
        let now = self.course.now();
        match actor {
            Actor::Worker(index) => self.server.run(index, self.script.layout.idle_passes, &mut self.ledger),
            Actor::Link(link) => self.server.transport.take(&mut self.links, link, now),
            Actor::Server => self.server.take_reports(&mut self.links, now),
            Actor::Client(index) => {
                let client = &mut self.clients[index];
                let mut rng = Rng::new(self.script.schedule, (index as u64 + 1) << 32 | u64::from(self.course.steps));
                client.run(&self.context, &mut self.ledger, &mut self.links[client.link], &mut rng, self.course.now_us);
            }
        }
        // A client may have rung for a worker, a worker for a client, and the others for both.
        if !matches!(actor, Actor::Worker(_)) {
            self.server.stir();
        }
        if !matches!(actor, Actor::Client(_)) {
            self.clients.iter_mut().for_each(CallClient::stir);
        }
    }

    /// No actor can go on: one waits for a fault to pass or for time, or the lifetime is over.
    fn wait(&mut self) -> bool {
        if self.slow_until > self.course.steps {
            self.slow_until = 0;
            return true;
        }
        if self.server.has_stopped() {
            self.context.say(|| "the server ends; another is started".to_owned());
            self.restart();
            return true;
        }
        let sessions = &self.server.transport.sessions;
        let ticks = sessions.next_tick().map(|after| self.course.now_us + u64::try_from(after.as_micros()).unwrap_or(u64::MAX));
        let wakes = self.clients.iter().filter_map(CallClient::wakes_at);
        if let Some(until) = wakes.chain(ticks).min() {
            self.course.sleep_until(&self.context, until);
            self.server.transport.tick(&mut self.links, self.course.now());
            self.server.stir();
            return true;
        }
        if let Some(client) = self.clients.iter().find(|client| client.stage != Stage::Ended) {
            self.context
                .violated(|| format!("all actors wait: a client is {:?}, {} calls unanswered", client.stage, client.due()));
        }
        false
    }

    /// Does it do anything?
    fn begin(&mut self, Planned { fault, victim, .. }: Planned<Fault>) -> bool {
        let next_link = self.links.len();
        let index = victim % self.clients.len();
        let client = &mut self.clients[index];
        let link = &mut self.links[client.link];
        let has_effect = match fault {
            Fault::ClientGone => client.stage != Stage::Ended,
            Fault::PacketDamaged(_) => self.server.transport.looks_at(link),
            Fault::NoCall => client.stage != Stage::Ended && !self.ledger.is_used_up(),
            Fault::WorkerGone | Fault::Drained => !self.server.is_stopping(),
            Fault::CallsSlow(steps) => self.server.call_steps != steps,
            Fault::WorkerSlow(_) | Fault::Silent | Fault::Killed => true,
        };
        match fault {
            Fault::ClientGone => {
                if has_effect {
                    client.die(&mut self.ledger, link, next_link, self.course.now_us);
                    self.links.push(Link::default());
                }
            }
            Fault::PacketDamaged(damaged) => {
                client.may_be_refused = true;
                damaged.send(link);
            }
            Fault::WorkerSlow(steps) => self.slow_until = self.course.steps + steps,
            Fault::CallsSlow(steps) => self.server.call_steps = steps,
            Fault::WorkerGone => self.server.replace_worker(victim),
            Fault::NoCall => client.sends_nonsense = true,
            Fault::Silent => {
                let mut silent = Link::default();
                silent.up.push_back(Up::Connect(0));
                self.links.push(silent);
            }
            Fault::Drained => {
                self.clients.iter_mut().for_each(|client| client.may_be_drained = true);
                self.server.stop(&mut self.links);
            }
            Fault::Killed => self.restart(),
        }
        self.server.stir();
        self.clients.iter_mut().for_each(CallClient::stir);
        has_effect
    }

    fn restart(&mut self) {
        let layout = &self.script.layout;
        self.server = CallServer::new(&self.context, layout.workers, layout.depth, layout.payload_bytes);
        self.links.iter_mut().for_each(Link::is_cut);
    }

    fn finish(mut self) -> Outcome {
        if !self.context.has_failed() {
            self.ledger.check_end(&self.context);
            if !self.server.transport.sessions.is_empty() {
                self.context.violated(|| "the server has clients after the last has gone".to_owned());
            }
            self.server.check_stop(&mut self.links);
        }
        self.course.outcome(&self.context, (self.ledger.made(), self.ledger.answered()))
    }
}
