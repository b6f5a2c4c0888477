//! Queues that move all the time, and what happens in the middle of a move.

use fipsee_serve::QueueName;
use fipsee_serve::session::Held;

use super::World;
use super::adder;
use super::client::Stage;
use super::layout::{Disks, Fault, InMove};
use crate::course::Outcome;
use crate::lan::port;
use crate::link::Link;
use crate::moves::Step;
use crate::rng::Rng;
use crate::script::{Kind, Planned, Script};
use crate::takeover;
use crate::variant::Variant;

/// Lifetimes of a disk whose queues go from worker to worker all the time.
#[derive(Clone, Debug)]
pub struct Moves(Disks);

impl Kind for Moves {
    type Fault = Fault;

    const NAME: &'static str = "moves";

    fn draw(rng: &mut Rng) -> Self {
        let workers = 2 + rng.below(3);
        Self(Disks { workers, is_restless: true, ..Disks::draw(rng) })
    }

    fn draw_fault(&self, rng: &mut Rng) -> Fault {
        if rng.percent(25) { self.0.draw_fault(rng) } else { draw_in_move(rng) }
    }

    fn simpler(&self) -> Vec<Self> {
        // One worker has nowhere to move a queue.
        self.0.simpler().into_iter().filter(|simpler| simpler.workers > 1).map(Self).collect()
    }

    fn play(script: &Script<Self>, variant: Option<Variant>, keeps: bool) -> Outcome {
        let Script { seed, schedule, requests, first, layout, faults, choices } = script.clone();
        super::play(&Script { seed, schedule, requests, first, layout: layout.0, faults, choices }, variant, keeps)
    }
}

/// Something that happens in the middle of a move.
pub(super) fn draw_in_move(rng: &mut Rng) -> Fault {
    let what = match rng.below(6) {
        0 | 1 => InMove::ClientGone,
        2 => InMove::Killed,
        3 => InMove::PowerCut,
        4 => InMove::Replaced,
        _ => InMove::Drained,
    };
    Fault::InMove(Step::ALL[rng.below(Step::ALL.len())].0, what)
}

impl World<'_> {
    /// May a queue be sent to another worker? One after each answer at most: moves alone are no progress.
    pub(super) fn may_move(&self) -> bool {
        let is_wanted = self.layout.is_restless && self.pool.answered > self.moved_at && !self.is_probing;
        is_wanted && self.taking.is_none() && !self.is_to_be_replaced && !self.is_moving() && self.movable().next().is_some()
    }

    /// Queues of attached clients.
    fn movable(&self) -> impl Iterator<Item = QueueName> {
        let sessions = self.daemon.iter().flat_map(|daemon| daemon.transport.sessions.iter());
        let held = sessions.filter_map(|(client, session)| session.held().map(|held| (client, held)));
        let queue = |client, held: &Held<_>, index| held.worker(index).map(|_| QueueName { client, index });
        held.flat_map(move |(client, held)| (0_u16..).map_while(move |index| queue(client, held, index)))
    }

    /// A queue goes to another worker.
    pub(super) fn move_one(&mut self) {
        self.moved_at = self.pool.answered;
        let mut movable: Vec<QueueName> = self.movable().collect();
        movable.sort_unstable_by_key(|queue| (queue.client, queue.index));
        let QueueName { client, index } = movable[self.course.choose(movable.len())];
        let further = 1 + self.course.choose(self.layout.workers - 1);
        let Some(daemon) = &mut self.daemon else { return };
        daemon.move_queue(client, index, further);
        daemon.transport.carry_out(&mut self.links);
    }

    /// After a step: is it time for what is to happen in the middle of a move?
    pub(super) fn watch_moves(&mut self) {
        let is_moving = self.is_moving();
        let reached = self.context.moves().settle(is_moving);
        if let Some((step, queue)) = reached
            && let Some((_, what)) = self.armed.take_if(|(awaited, _)| *awaited == step)
        {
            self.interrupt(step, what, queue.client);
        }
        if self.is_to_be_replaced && !is_moving {
            // As in the product, it begins when the move has ended.
            self.is_to_be_replaced = false;
            self.taking = self.daemon.as_ref().map(|daemon| takeover::ask(daemon, true));
        }
    }

    fn interrupt(&mut self, step: Step, what: InMove, client: u64) {
        self.context.say(|| format!("FAULT: {what:?} while the move is {step:?}"));
        let has_effect = match what {
            InMove::ClientGone => self.kill_owner(client),
            InMove::Killed | InMove::PowerCut => {
                self.restart(what == InMove::PowerCut);
                true
            }
            InMove::Replaced => {
                self.is_to_be_replaced = true;
                true
            }
            InMove::Drained => {
                let victim = Planned { answered: 0, steps: 0, victim: 0, fault: Fault::Drained };
                self.begin(victim)
            }
        };
        if has_effect {
            self.context.moves().tally.kill(step);
        }
        if self.course.begun(&self.context, has_effect) {
            self.restart(false);
        }
        self.stir_clients();
        self.stir_daemon();
    }

    /// The process that has this number at the daemon ends.
    fn kill_owner(&mut self, client: u64) -> bool {
        let (next_link, now_us) = (self.links.len(), self.course.now_us);
        let is_its = |link: &Link| link.session == Some(client);
        if let Some(owner) = self.clients.iter_mut().find(|owner| is_its(&self.links[owner.link])) {
            if owner.stage == Stage::Ended {
                return false;
            }
            owner.die(&self.context, &mut self.links[owner.link], next_link, now_us);
        } else if let Some(adder) = self.adder.as_mut().filter(|adder| is_its(&self.links[adder.link])) {
            if adder.stage == adder::Stage::Ended {
                return false;
            }
            adder.die(&mut self.links[adder.link], next_link, now_us);
        } else if let Some(port) = self.ports.iter_mut().find(|port| is_its(&self.links[port.link])) {
            if port.stage == port::Stage::Ended {
                return false;
            }
            port.die(&self.context, &mut self.links[port.link], next_link, now_us);
        } else {
            return false;
        }
        self.links.push(Link::default());
        true
    }

    /// Nothing moves any more: what was to happen in a move happens as it is.
    pub(super) fn disarm(&mut self) -> bool {
        let was_armed = self.armed.take().is_some();
        if was_armed && self.course.begun(&self.context, false) {
            self.restart(false);
        }
        was_armed
    }
}
