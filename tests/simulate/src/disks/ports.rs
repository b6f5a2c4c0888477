//! Lifetimes of a network beside a disk: the same daemon, its ends and takeovers, and clients of ports.

use fipsee_serve::session::State;

use super::World;
use super::layout::{Disks, Fault};
use super::moving::draw_in_move;
use crate::context::Context;
use crate::course::Outcome;
use crate::lan::port::{Misuse, PortClient, Stage};
use crate::lan::{Lan, PortParameters};
use crate::link::Link;
use crate::rng::Rng;
use crate::script::{Kind, Script};
use crate::variant::Variant;

/// Frames that may be sent before the first request, and to each request one more.
const FIRST_FRAMES: u32 = 20;

/// Lifetimes of a network beside a disk.
#[derive(Clone, Debug)]
pub struct Ports(Disks);

impl Kind for Ports {
    type Fault = Fault;

    const NAME: &'static str = "ports";

    fn draw(rng: &mut Rng) -> Self {
        let ports = PortParameters::draw_all(rng);
        let workers = 1 + rng.below(3);
        // Queues of disks move beside the network, and those of ports do.
        let is_restless = workers > 1 && rng.percent(40);
        Self(Disks { ports, is_restless, workers, ..Disks::draw(rng) })
    }

    fn draw_fault(&self, rng: &mut Rng) -> Fault {
        match rng.below(10) {
            0..4 => Fault::Port(Misuse::draw(rng)),
            4..7 if self.0.is_restless => draw_in_move(rng),
            _ => self.0.draw_fault(rng),
        }
    }

    fn simpler(&self) -> Vec<Self> {
        let fewer = |ports: usize| Self(Disks { ports: self.0.ports[..ports].to_vec(), ..self.0.clone() });
        let mut simpler: Vec<Self> = (2..self.0.ports.len()).map(fewer).collect();
        simpler.extend(self.0.simpler().into_iter().filter(|simpler| simpler.workers > 1 || !simpler.is_restless).map(Self));
        simpler
    }

    fn play(script: &Script<Self>, variant: Option<Variant>, keeps: bool) -> Outcome {
        let Script { seed, schedule, requests, first, layout, faults, choices } = script.clone();
        super::play(&Script { seed, schedule, requests, first, layout: layout.0, faults, choices }, variant, keeps)
    }
}

/// The clients of the ports, with the links from this one on.
pub(super) fn clients(context: &Context, script: &Script<Disks>, first_link: usize) -> Vec<PortClient> {
    let ports = &script.layout.ports;
    *context.lan() = Lan::new(ports.clone());
    let client = |(port, parameters): (usize, &PortParameters)| {
        PortClient::new(parameters.clone(), port, first_link + port, Rng::new(script.seed, 30 + port as u64))
    };
    ports.iter().enumerate().map(client).collect()
}

impl World<'_> {
    /// What the daemon has published for ports since the last step is as the rules say.
    pub(super) fn watch_ports(&mut self) {
        if self.ports.is_empty() {
            return;
        }
        let (issued, left) = self.pool.progress();
        let sessions = self.daemon.as_ref().map(|daemon| &daemon.transport.sessions);
        let is_attached = |port: &PortClient| {
            let session = self.links[port.link].session;
            let held = sessions.and_then(|sessions| sessions.iter().find(|(client, _)| Some(*client) == session));
            port.stage == Stage::Running
                && held.is_some_and(|(client, session)| {
                    matches!(session.state, State::Attached(_)) && !self.context.moves().has_lost(client)
                })
        };
        let is_up: Vec<bool> = self.ports.iter().map(is_attached).collect();
        let mut lan = self.context.lan();
        lan.allow(FIRST_FRAMES + issued, left > 0);
        lan.watch(&self.context, &is_up);
        self.ports.iter().for_each(|port| port.check_rung(&self.context, &lan));
    }

    /// A client of a port ends, and another goes on in its place.
    pub(super) fn kill_port(&mut self, victim: usize) -> bool {
        let (next_link, now_us, count) = (self.links.len(), self.course.now_us, self.ports.len().max(1));
        let Some(port) = self.ports.get_mut(victim / 2 % count) else { return false };
        if port.stage == Stage::Ended {
            return false;
        }
        port.die(&self.context, &mut self.links[port.link], next_link, now_us);
        self.links.push(Link::default());
        true
    }

    /// One of them is faulty from now on.
    pub(super) fn misuse_port(&mut self, misuse: Misuse, victim: usize) -> bool {
        let count = self.ports.len().max(1);
        let Some(port) = self.ports.get_mut(victim % count).filter(|port| port.stage != Stage::Ended) else { return false };
        port.begin_misuse(misuse);
        true
    }

    pub(super) fn ports_have_ended(&self) -> bool {
        self.ports.iter().all(|port| port.stage == Stage::Ended)
    }
}
