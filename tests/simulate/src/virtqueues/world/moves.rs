//! Queues that go from worker to worker all the time, and a daemon that is killed in the middle of that.

use fipsee_daemon::transport::vhost_user::device::Action;

use super::World;
use crate::moves::Step;
use crate::virtqueues::Fault;

impl World<'_> {
    /// May a queue be sent to another worker? One after each answer at most: moves alone are no progress.
    pub(super) fn may_move(&self) -> bool {
        let is_settled = self.device.is_settled() && self.hypervisor.awaited.is_none() && !self.is_leaving;
        let is_wanted = self.script.layout.is_restless && self.expected.completed > self.moved_at;
        is_wanted && is_settled && self.queues.iter().any(|queue| queue.server.is_some())
    }

    pub(super) fn move_one(&mut self) {
        self.moved_at = self.expected.completed;
        let served: Vec<usize> = (0..self.queues.len()).filter(|index| self.queues[*index].server.is_some()).collect();
        let index = served[self.rng.below(served.len())];
        self.context.say(|| format!("queue {index} is to go to another worker"));
        self.device.transfer(u16::try_from(index).expect("few"), 0);
    }

    /// How far a queue is that moves.
    pub(super) fn step_of_move(&self) -> Option<Step> {
        let on_its_way = || {
            self.queues.iter().find_map(|queue| {
                if queue.lifted.is_some() {
                    return Some(Step::Lifted);
                }
                let is_asked = queue.orders.iter().any(|order| matches!(order, Action::Transfer(..)));
                let is_busy = queue.server.as_ref().is_some_and(|server| server.in_flight() > 0);
                is_asked.then_some(if is_busy { Step::Draining } else { Step::Ordered })
            })
        };
        self.just.or_else(on_its_way)
    }

    /// Nothing moves any more: the daemon is killed as it is, if nothing else has gone wrong.
    pub(super) fn disarm(&mut self) -> bool {
        let planned = self.due.take_if(|planned| matches!(planned.fault, Fault::InMove(_)));
        if planned.is_some() && self.course.begun(&self.context, false) {
            self.kill();
            self.carry_out();
        }
        planned.is_some()
    }
}
