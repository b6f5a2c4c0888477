//! Workers that stand still between two passes, so that another process can go on where they stopped.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use fipsee_block::server::Standing;
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
    stands: Sender<Vec<(QueueName, Standing)>>,
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

/// Workers that stand still until [`go_on`](Self::go_on), or until this is dropped.
pub struct Standstill {
    standings: HashMap<QueueName, Standing>,
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
        let (mut still, mut replies) = (Self { standings: HashMap::new(), go: Vec::new() }, Vec::new());
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
                Ok(standings) => still.standings.extend(standings),
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
        self.standings.get(&queue)
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
        while self.engine.in_flight() > 0 {
            if self.run_engine() == 0 {
                if Instant::now() >= deadline {
                    return;
                }
                self.await_engine(deadline);
            }
        }
        // Nothing is in flight: whoever waited for that gets it now.
        self.settle();
        let standing = |slot: &super::Slot| match &slot.service {
            Service::Ring(server) => server.standing(),
            Service::Virtqueue(_) => None,
        };
        let slots = self.roster.iter_mut();
        let standings =
            slots.filter_map(|(_, slot)| Some((QueueName { client: slot.client, index: slot.index }, standing(slot)?)));
        let _ = stands.send(standings.collect());
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

    fn await_engine(&self, deadline: Instant) {
        let Some(fd) = self.engine.as_fd() else { return };
        let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now()));
        // Whatever it says, we look again.
        let _ = rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], left.ok().as_ref());
    }
}
