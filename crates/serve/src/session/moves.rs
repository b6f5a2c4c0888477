//! A queue moves from one worker to another, one at a time: the worker that has it lifts it once nothing of it is in flight, the
//! other one adds it, and what the client's workers were asked for in between follows. A client that leaves, or is drained,
//! meanwhile does so after that; a takeover waits.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use fipsee_ring::control::RefusalCode;
use fipsee_ring::handshake::refuse;

use super::service::Reporter;
use super::{Ack, Action, Attachment, Done, Host, Session, Sessions, State};
use crate::{Assignment, Command, Engine, Queue, QueueName, Share, Which};

/// What the workers of a client are to be asked for; `None`: nothing.
pub(super) type Order<E> = Box<dyn Fn(&dyn Attachment<E>, Ack) -> Option<Command<E>> + Send>;

pub(super) struct Move<E: Engine> {
    index: u16,
    to: Assignment,
    lifted: Receiver<(Box<dyn Queue<E>>, Share)>,
    /// What its client's workers are to be asked for afterwards.
    pub(super) held_back: Vec<(Done, Order<E>)>,
}

impl<E: Engine, H: Host<E>> Sessions<E, H> {
    pub const fn is_moving(&self) -> bool {
        self.moving.is_some()
    }

    /// Move the queue that the host wants elsewhere; else one from the worker with the most to the one with the fewest, if the host says
    /// so and one may move.
    pub fn balance(&mut self) {
        while !self.is_moving()
            && let Some((queue, to)) = self.host.wanted_move()
        {
            self.move_queue(queue.client, queue.index, to);
        }
        if self.is_moving() {
            return;
        }
        for nth in 0.. {
            let Some((from, to)) = self.host.uneven(nth) else {
                if nth > 0 {
                    self.host.stays_uneven();
                }
                return;
            };
            if let Some(QueueName { client, index }) = self.movable(from, to.worker) {
                return self.move_queue(client, index, to);
            }
        }
    }

    /// The first queue that may go from the one worker to the other.
    fn movable(&self, from: usize, to: usize) -> Option<QueueName> {
        let of_client = |client: u64| {
            // The queues of one that detaches are finished where they are.
            let Some(Session { state: State::Attached(held), .. }) = self.sessions.get(&client) else { return None };
            let on_it = (0_u16..).zip(&held.assignments).filter(|(_, assignment)| assignment.worker == from);
            on_it.map(|(index, _)| QueueName { client, index }).find(|queue| self.host.may_balance(*queue, from, to))
        };
        self.ids(|_| true).into_iter().find_map(of_client)
    }

    /// Move this queue of an attached client, unless it is there or another one is on its way.
    pub fn move_queue(&mut self, id: u64, index: u16, to: Assignment) {
        let State::Attached(held) = (match self.sessions.get_mut(&id) {
            Some(session) if self.moving.is_none() => &mut session.state,
            _ => return,
        }) else {
            return;
        };
        let Some(worker) = held.worker(index).filter(|worker| *worker != to.worker) else { return };
        let (lift, lifted) = channel();
        held.moving = Some(Move { index, to, lifted, held_back: Vec::new() });
        self.moving = Some(id);
        let ack = Reporter { report: Arc::clone(&self.report), client: id, done: Done::Lifted };
        let removed = move |queue, share| {
            let _until_dropped = &ack;
            let _ = lift.send((queue, share));
        };
        let which = Which::Queue(QueueName { client: id, index });
        let command = Command::Remove { which, finish: false, removed: Box::new(removed) };
        self.actions.push(Action::Command { worker, command });
    }

    /// Nothing of the queue is in flight, and no worker has it.
    pub(super) fn lifted(&mut self, id: u64) {
        let Some(Move { index, to, lifted, .. }) = self.held(id).and_then(|held| held.moving.as_ref()) else { return };
        let Ok((mut queue, share)) = lifted.try_recv() else {
            // It could not be served from the start, as the log says: there is nothing to move but its share.
            return self.moved(id, true);
        };
        let (worker, name, report) = (to.worker, QueueName { client: id, index: *index }, Arc::clone(&self.report));
        let make = move |number| {
            // Whether it rang meanwhile is not known: the doorbell is asked for again.
            queue.disarm();
            queue.moved(number);
            Ok(queue)
        };
        let added = move |added: Result<(), _>| report(id, if added.is_ok() { Done::Moved } else { Done::NotMoved });
        let command = Command::Add { name, share, make: Box::new(make), added: Box::new(added) };
        self.actions.push(Action::Command { worker, command });
    }

    /// The queue is where it was to go, or where it was.
    pub(super) fn moved(&mut self, id: u64, has_moved: bool) {
        self.moving = None;
        let Some(held) = self.held(id) else { return };
        let Some(Move { index, to, held_back, .. }) = held.moving.take() else { return };
        if has_moved {
            held.attachment.moved(id, index, to.place);
            held.assignments[usize::from(index)] = to;
        }
        for (done, order) in held_back {
            self.command_workers(id, done, order);
        }
    }

    /// The worker that was to add the queue cannot watch its doorbell: it is not served. The client attaches again, and nothing
    /// is lost.
    pub(super) fn not_moved(&mut self, id: u64) {
        self.moved(id, false);
        let text = "a queue could not go to another worker, which cannot watch its doorbell; raise the limit of watches \
                    (fs.epoll.max_user_watches) and attach again";
        self.refuse_and_close(id, refuse(RefusalCode::Limit, text));
    }
}
