//! Workers that stand still between two passes, so that another process can go on where they stopped.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use fipsee_block::server::Standing;
use fipsee_virtio::upgrade::GuestStanding;
use rustix::event::{PollFd, PollFlags, Timespec};

use super::service::Service;
use super::{Command, QueueName, Worker, WorkerHandle};

/// Longer than any worker needs between two looks into its mailbox, unless it is not given a CPU.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Asks a worker to finish what is in flight and then to do nothing until it is told to go on.
pub struct StandStill {
    /// How long requests in flight are waited for.
    patience: Duration,
    /// Where its queues stand. Dropped instead: requests are still in flight, and the worker goes on.
    stands: Sender<Standings>,
    go: Receiver<()>,
    unless_told: Otherwise,
}

/// What becomes of a worker that stands still when nobody is left to tell it to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Otherwise {
    /// It goes on: the queues are its own.
    GoesOn,
    /// It lets go of its queues untouched and ends: they are another daemon's.
    LetsGo,
}

/// Where the queues of a worker stand.
#[derive(Debug, Default)]
pub(super) struct Standings {
    rings: HashMap<QueueName, Standing>,
    guests: HashMap<QueueName, GuestStanding>,
}

/// Workers that stand still until [`go_on`](Self::go_on), or until this is dropped.
pub struct Standstill {
    standings: Standings,
    go: Vec<Sender<()>>,
}

impl Standstill {
    /// Have all workers stand still; what each is told in `before` takes effect first, with no queue visited in between.
    ///
    /// # Errors
    /// In words: requests are still in flight after `patience`. As when this is dropped.
    pub fn begin(
        workers: &[WorkerHandle],
        mut before: Vec<Vec<Command>>,
        patience: Duration,
        unless_told: Otherwise,
    ) -> Result<Self, String> {
        before.resize_with(workers.len(), Vec::new);
        let (mut still, mut replies) = (Self { standings: Standings::default(), go: Vec::new() }, Vec::new());
        for (worker, mut commands) in workers.iter().zip(before) {
            let ((stands, reply), (sender, go)) = (channel(), channel());
            commands.push(Command::StandStill(StandStill { patience, stands, go, unless_told }));
            // Together: no queue may be visited between the first command and the last.
            worker.mailbox.send_all(commands);
            still.go.push(sender);
            replies.push(reply);
        }
        let deadline = Instant::now() + patience + ANSWER_TIMEOUT;
        for (index, reply) in replies.iter().enumerate() {
            match reply.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Standings { rings, guests }) => {
                    still.standings.rings.extend(rings);
                    still.standings.guests.extend(guests);
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(format!(
                        "requests are still in flight at a disk after {} ms; try again when it is less busy, or with a longer --takeover-wait-ms",
                        patience.as_millis()
                    ));
                }
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!("worker {index} does not answer; the machine is overloaded"));
                }
            }
        }
        Ok(still)
    }

    /// Where a queue stands, if it is served.
    #[must_use]
    pub fn of(&self, queue: QueueName) -> Option<&Standing> {
        self.standings.rings.get(&queue)
    }

    /// Where a virtqueue stands, if it is served.
    #[must_use]
    pub fn of_guest(&self, queue: QueueName) -> Option<&GuestStanding> {
        self.standings.guests.get(&queue)
    }

    /// The workers go on with what they have.
    pub fn go_on(self) {
        for worker in &self.go {
            let _ = worker.send(());
        }
    }
}

impl Worker {
    /// Finish what is in flight, then stand still until told to go on.
    #[cold]
    pub(super) fn stand_still(&mut self, order: StandStill) {
        let StandStill { patience, stands, go, unless_told } = order;
        let deadline = Instant::now() + patience;
        while self.pay_flushes() || self.engine.in_flight() > 0 {
            if self.run_engine() == 0 {
                if Instant::now() >= deadline {
                    return;
                }
                self.await_engine(deadline);
            }
        }
        // Nothing is in flight: whoever waited for that gets it now.
        self.settle();
        let _ = stands.send(self.standings(unless_told == Otherwise::GoesOn));
        let goes_on = go.recv().is_ok() || unless_told == Otherwise::GoesOn;
        let ids: Vec<usize> = self.roster.iter_mut().map(|(id, _)| id).collect();
        for id in ids {
            if goes_on {
                self.roster.heat(id);
            } else {
                self.drop_slot(id, None);
            }
        }
        self.stopping |= !goes_on;
    }

    fn pay_flushes(&mut self) -> bool {
        let mut paid = false;
        for (_, slot) in self.roster.iter_mut() {
            paid |= slot.service.pay_flushes(slot.export.disk(), &mut self.engine);
        }
        paid
    }

    /// `own`: the queues are served here. Those of another daemon are not touched.
    fn standings(&mut self, own: bool) -> Standings {
        let mut standings = Standings::default();
        for (_, slot) in self.roster.iter_mut() {
            let name = QueueName { client: slot.client, index: slot.index };
            match &mut slot.service {
                Service::Ring(server) => standings.rings.extend(server.standing().map(|standing| (name, standing))),
                Service::Virtqueue(queue) => {
                    if own {
                        queue.server.flush();
                    }
                    standings.guests.extend(queue.server.standing().map(|standing| (name, standing)));
                }
            }
        }
        standings
    }

    fn await_engine(&self, deadline: Instant) {
        let Some(fd) = self.engine.as_fd() else { return };
        let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now()));
        // Whatever it says, we look again.
        let _ = rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], left.ok().as_ref());
    }
}

#[cfg(test)]
mod tests {
    use fipsee_ring::wait::WaitMode;

    use super::super::{Place, spawn};
    use super::*;

    /// Nothing that is waited for here takes long, unless it never comes.
    const PATIENCE: Duration = Duration::from_secs(30);

    fn still(workers: &[WorkerHandle], unless_told: Otherwise) -> Standstill {
        Standstill::begin(workers, Vec::new(), Duration::ZERO, unless_told).expect("nothing is in flight")
    }

    fn worker() -> (Vec<WorkerHandle>, std::thread::JoinHandle<()>) {
        let (handle, thread) = spawn(0, Place::default(), WaitMode::Sleep, Duration::ZERO, Duration::MAX).expect("a thread");
        (vec![handle], thread)
    }

    #[test]
    fn worker_of_a_new_daemon_that_is_never_told_lets_go() {
        let (workers, thread) = worker();
        drop(still(&workers, Otherwise::LetsGo));
        let (ended, end) = channel();
        std::thread::spawn(move || ended.send(thread.join().is_ok()));
        assert_eq!(end.recv_timeout(PATIENCE), Ok(true), "it ends, and nobody told it to");
    }

    #[test]
    fn worker_that_is_told_goes_on_and_so_does_an_old_daemons_that_is_not() {
        let (workers, thread) = worker();
        still(&workers, Otherwise::LetsGo).go_on();
        drop(still(&workers, Otherwise::GoesOn));
        // It obeys, so it lives.
        still(&workers, Otherwise::GoesOn).go_on();
        workers[0].mailbox.send(Command::Stop);
        thread.join().expect("it ends in order");
    }
}
