//! Workers that are quiesced between two passes, so that another process can continue where they stopped.

use std::any::Any;
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use fipsee_ring::clock;
use fipsee_ring::doorbell::await_readable;

use crate::poll_set::Slot;
use crate::{Command, Engine, Pass, QueueName, Worker, WorkerHandle};

/// Longer than any worker needs between two looks into its mailbox, unless it gets no CPU.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Asks a worker to finish what is in flight and then to stay quiesced until it is to resume.
pub struct Quiesce {
    /// How long requests in flight are waited for.
    pub(crate) timeout: Duration,
    /// The state of its queues, until that is sent. Dropped instead: requests are still in flight, and the worker resumes.
    states: Option<Sender<States>>,
    resume: Receiver<()>,
    if_abandoned: IfAbandoned,
}

/// What becomes of a quiesced worker when nothing is left to resume it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfAbandoned {
    /// It resumes: the queues are its own.
    Resume,
    /// It releases its queues untouched and ends: they are another daemon's.
    Release,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotQuiesced {
    /// Requests are still in flight after the timeout.
    InFlight,
    /// This worker does not answer.
    NoAnswer(usize),
}

/// The state of each queue, which its service understands.
type States = HashMap<QueueName, Box<dyn Any + Send>>;

/// Workers that were asked and have not all answered.
pub struct AskedToQuiesce {
    quiesced: Quiesced,
    replies: Vec<Receiver<States>>,
    answered: usize,
}

/// Workers that do nothing until they are to [`resume`](Self::resume), or until this is dropped.
pub struct Quiesced {
    states: States,
    resume: Vec<Sender<()>>,
}

impl Quiesced {
    /// Quiesce all workers; what each is asked for in `before` takes effect first, with no queue visited in between.
    pub fn begin<E: Engine>(
        workers: &[WorkerHandle<E>],
        before: Vec<Vec<Command<E>>>,
        timeout: Duration,
        if_abandoned: IfAbandoned,
    ) -> Result<Self, NotQuiesced> {
        let deadline = Instant::now() + timeout + ANSWER_TIMEOUT;
        let mut asked = Self::ask(workers, before, timeout, if_abandoned);
        asked.await_answers(deadline)?;
        Ok(asked.quiesced)
    }

    /// As [`begin`](Self::begin), without waiting: [`AskedToQuiesce::poll`] says when all have answered.
    pub fn ask<E: Engine>(
        workers: &[WorkerHandle<E>],
        mut before: Vec<Vec<Command<E>>>,
        timeout: Duration,
        if_abandoned: IfAbandoned,
    ) -> AskedToQuiesce {
        before.resize_with(workers.len(), Vec::new);
        let (mut quiesced, mut replies) = (Self { states: States::new(), resume: Vec::new() }, Vec::new());
        for (worker, mut commands) in workers.iter().zip(before) {
            let ((states, reply), (sender, resume)) = (channel(), channel());
            commands.push(Command::Quiesce(Quiesce { timeout, states: Some(states), resume, if_abandoned }));
            // Together: no queue may be visited between the first command and the last.
            worker.mailbox.send_all(commands);
            quiesced.resume.push(sender);
            replies.push(reply);
        }
        AskedToQuiesce { quiesced, replies, answered: 0 }
    }

    /// The state of a queue, if it is served and has one of this kind.
    pub fn state<T: Any>(&self, queue: QueueName) -> Option<&T> {
        self.states.get(&queue)?.downcast_ref()
    }

    /// Are these the states of a client's queues, in order?
    pub fn has_states<T: Any + PartialEq>(&self, client: u64, states: &[T]) -> bool {
        states.iter().zip(0_u16..).all(|(state, index)| self.state(QueueName { client, index }) == Some(state))
    }

    /// The workers continue with the queues that they have.
    pub fn resume(self) {
        for worker in &self.resume {
            let _ = worker.send(());
        }
    }
}

impl AskedToQuiesce {
    /// All workers, once each has answered; until then, this again.
    pub fn poll(mut self) -> Result<Result<Quiesced, Self>, NotQuiesced> {
        match self.await_answers(Instant::now()) {
            Ok(()) => Ok(Ok(self.quiesced)),
            Err(NotQuiesced::NoAnswer(_)) => Ok(Err(self)),
            Err(error) => Err(error),
        }
    }

    fn await_answers(&mut self, deadline: Instant) -> Result<(), NotQuiesced> {
        while let Some(reply) = self.replies.get(self.answered) {
            let states = reply.recv_timeout(deadline.saturating_duration_since(Instant::now()));
            self.quiesced.states.extend(states.map_err(|error| match error {
                RecvTimeoutError::Disconnected => NotQuiesced::InFlight,
                RecvTimeoutError::Timeout => NotQuiesced::NoAnswer(self.answered),
            })?);
            self.answered += 1;
        }
        Ok(())
    }
}

impl<E: Engine> Worker<E> {
    /// Finish what is in flight, then do nothing until it is to resume.
    #[cold]
    pub(crate) fn quiesce(&mut self) -> Pass {
        let Some((order, deadline)) = self.quiescing.take() else { return Pass::Worked };
        if order.states.is_some() {
            return self.drain(order, deadline);
        }
        match order.resume.try_recv() {
            Err(TryRecvError::Empty) => {
                self.quiescing = Some((order, deadline));
                Pass::Idle
            }
            resumed => self.resume(resumed.is_ok() || order.if_abandoned == IfAbandoned::Resume),
        }
    }

    fn drain(&mut self, mut order: Quiesce, deadline: Instant) -> Pass {
        // Queues of another daemon must not be touched.
        let own = order.if_abandoned == IfAbandoned::Resume;
        if own {
            self.queues.flush_due();
        }
        let begin = |begun, (_, slot): (_, &mut Slot<E>)| slot.queue.begin_deferred(&mut self.engine) || begun;
        let begun = own && self.queues.iter_mut().fold(false, begin);
        if begun {
            // What was deferred may have been answered at once, and its notification held back.
            self.queues.list_all_due();
        }
        if begun || self.engine.in_flight() > 0 {
            let finished = self.run_engine();
            if finished == 0 && Instant::now() >= deadline {
                // Dropping the order says so.
                drop(order);
                return self.resume(own);
            }
            self.quiescing = Some((order, deadline));
            return if finished > 0 { Pass::Worked } else { Pass::Idle };
        }
        // Nothing is in flight: changes that waited for that are made now.
        self.settle();
        let queues = self.queues.iter_mut();
        let states = queues.filter_map(|(_, slot)| Some((slot.name, slot.queue.saved_state(own)?))).collect();
        let _ = order.states.take().map(|reply| reply.send(states));
        self.quiescing = Some((order, deadline));
        Pass::Idle
    }

    fn resume(&mut self, resumes: bool) -> Pass {
        let ids: Vec<usize> = self.queues.iter_mut().map(|(id, _)| id).collect();
        for id in ids {
            if resumes {
                self.queues.activate(id);
            } else {
                drop(self.remove(id));
            }
        }
        self.stopping |= !resumes;
        self.run_commands();
        Pass::Worked
    }

    /// Sleep until the engine reports, or until it is to resume.
    #[cold]
    pub(crate) fn rest_quiesced(&mut self) {
        let Some((order, deadline)) = self.quiescing.take() else { return };
        if order.states.is_none() {
            self.resume(order.resume.recv().is_ok() || order.if_abandoned == IfAbandoned::Resume);
            return;
        }
        if let Some(fd) = self.engine.as_fd() {
            let left = deadline.saturating_duration_since(Instant::now());
            let until_due = self.queues.next_due().map_or(left, clock::until);
            // Whatever it returns, we look again.
            let _ = await_readable(fd, Some(left.min(until_due)));
        }
        self.quiescing = Some((order, deadline));
    }
}

#[cfg(test)]
mod tests {
    use std::thread::JoinHandle;

    use fipsee_ring::wait::WaitMode;

    use super::*;
    use crate::{WorkerPlacement, spawn};

    /// Longer than any wait here takes, unless it never ends.
    const TIMEOUT: Duration = Duration::from_secs(30);

    fn quiesce(workers: &[WorkerHandle<()>], if_abandoned: IfAbandoned) -> Quiesced {
        Quiesced::begin(workers, Vec::new(), Duration::ZERO, if_abandoned).expect("nothing is in flight")
    }

    fn worker() -> (Vec<WorkerHandle<()>>, JoinHandle<()>) {
        let (handle, thread) =
            spawn(0, WorkerPlacement::default(), WaitMode::Sleep, Duration::ZERO, || Ok(())).expect("a thread");
        (vec![handle], thread)
    }

    #[test]
    fn abandoned_worker_of_a_new_daemon_releases_its_queues_and_ends() {
        let (workers, thread) = worker();
        drop(quiesce(&workers, IfAbandoned::Release));
        let (ended, end) = channel();
        std::thread::spawn(move || ended.send(thread.join().is_ok()));
        assert_eq!(end.recv_timeout(TIMEOUT), Ok(true), "it ends without a command");
    }

    #[test]
    fn resumed_worker_goes_on_and_so_does_an_abandoned_one_of_an_old_daemon() {
        let (workers, thread) = worker();
        quiesce(&workers, IfAbandoned::Release).resume();
        drop(quiesce(&workers, IfAbandoned::Resume));
        // It answers, so it goes on.
        quiesce(&workers, IfAbandoned::Resume).resume();
        workers[0].mailbox.send(Command::Stop);
        thread.join().expect("it ends in order");
    }
}
