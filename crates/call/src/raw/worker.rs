//! The serving end: one thread with the channels of many clients, which drives a worker of the runtime.

use std::any::Any;
use std::io;
use std::sync::Arc;

use fipsee_ring::mailbox::Mailbox;
use fipsee_ring::wait::Backoff;
use fipsee_ring::{Message, clock};
use fipsee_serve::{Pass, Worker};

use super::front::Event;
use super::queue::{CallQueue, Inbox};
use crate::server::Call;
use crate::wire::ServiceInfo;

/// What [`RawWorker::take`] came back with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// A call, to be answered.
    Call,
    /// None came in time.
    TimedOut,
    /// The server stopped, and every client has been let go.
    Stopped,
}

/// One thread's share of a service.
///
/// Clients are visited in turn; one that has many calls outstanding has a budget that grows from 1 while it uses it up.
pub struct RawWorker {
    info: ServiceInfo,
    /// The queue whose call was taken and not answered.
    owing: Option<u32>,
    worker: Worker<Inbox>,
    /// After the worker, whose queues go first.
    front: Link,
}

/// The front, which learns when the worker is gone.
struct Link {
    worker: u64,
    front: Arc<Mailbox<Event>>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.front.send(Event::Left { worker: self.worker });
    }
}

impl RawWorker {
    pub(super) fn new(id: u64, info: ServiceInfo, backoff: Backoff, front: Arc<Mailbox<Event>>) -> io::Result<Self> {
        let (worker, handle) = Worker::new(fipsee_serve::Place::default(), backoff, Inbox::default())?;
        front.send(Event::Joined { worker: id, handle });
        Ok(Self { info, owing: None, worker, front: Link { worker: id, front } })
    }

    /// What this worker serves.
    #[must_use]
    pub const fn info(&self) -> ServiceInfo {
        self.info
    }

    /// Take the next call, waiting for it at most until `deadline_ticks`.
    ///
    /// # Panics
    /// When the last call was not answered by [`reply`](Self::reply) or [`refuse`](Self::refuse).
    #[inline(always)]
    pub fn take(&mut self, request: &mut Message, deadline_ticks: Option<u64>) -> Taken {
        assert!(self.owing.is_none(), "answer the call that was taken before taking another");
        loop {
            if let Some((queue, message)) = self.worker.engine().0.pop_front() {
                *request = message;
                self.owing = Some(queue);
                return Taken::Call;
            }
            match self.worker.pass() {
                Pass::Worked => self.worker.worked(),
                Pass::Stopped => return Taken::Stopped,
                Pass::Idle if deadline_ticks.is_some_and(|deadline| clock::ticks() >= deadline) => {
                    self.worker.worked();
                    return Taken::TimedOut;
                }
                Pass::Idle => self.worker.rest(deadline_ticks),
            }
        }
    }

    /// Answer the call that was taken.
    ///
    /// # Panics
    /// When none was taken.
    #[inline(always)]
    pub fn reply(&mut self, reply: &Message) {
        assert!(self.owing.is_some(), "a reply without a call");
        if let Some(queue) = self.owing.take().and_then(|queue| self.queue(queue)) {
            queue.reply(reply);
        }
    }

    /// Instead of a reply: close the channel of the client whose call was taken, and tell it `why`.
    ///
    /// # Panics
    /// When none was taken.
    #[cold]
    pub fn refuse(&mut self, why: &str) {
        assert!(self.owing.is_some(), "a refusal without a call");
        let Some(id) = self.owing.take() else { return };
        self.worker.engine().0.retain(|(queue, _)| *queue != id);
        if let Some(queue) = self.queue(id) {
            queue.refuse();
            // The front has the queue removed.
            let refused = Event::Refused { client: queue.client, text: why.to_owned() };
            self.front.front.send(refused);
        }
    }

    /// The call that was taken: whose it is, and its payloads. `None` when none was taken.
    #[must_use]
    #[inline(always)]
    pub fn call(&self) -> Option<Call<'_>> {
        let queue: &dyn Any = self.worker.queue(self.owing?)?;
        queue.downcast_ref::<CallQueue>().map(|queue| queue.call(&self.info))
    }

    #[inline(always)]
    fn queue(&mut self, id: u32) -> Option<&mut CallQueue> {
        let queue: &mut dyn Any = self.worker.queue_mut(id)?;
        queue.downcast_mut()
    }
}
