//! The serving end: one thread with the channels of many clients, which drives a worker of the runtime.

use std::io;
use std::sync::Arc;

use fipsee_ring::mailbox::Mailbox;
use fipsee_ring::wait::Backoff;
use fipsee_ring::{Message, clock};
use fipsee_serve::{Pass, Turn, Worker};

use super::clients::Event;
use super::queue::{CallServerQueue, Turns};
use crate::server::Call;
use crate::wire::ServiceInfo;

/// Looks for the next call of a client alone before its turn is over, a few microseconds.
const LOOKS_IN_TURN: u32 = 64;

/// The result of waiting for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// A call.
    Call,
    /// None came in time.
    TimedOut,
    /// The server stopped, and every client has been released.
    Stopped,
}

/// One thread's share of a service.
///
/// Clients are visited in turn; one that has many calls outstanding has a budget that grows from 1 while it uses it up.
pub struct RawWorker {
    id: usize,
    info: ServiceInfo,
    /// The channel whose turn it is.
    turn: Option<Box<CallServerQueue>>,
    /// A call was taken and not answered.
    has_unanswered: bool,
    worker: Worker<Turns>,
    events: Arc<Mailbox<Event>>,
}

impl RawWorker {
    pub(super) fn new(id: usize, info: ServiceInfo, backoff: Backoff, events: Arc<Mailbox<Event>>) -> io::Result<Self> {
        let (worker, handle) = Worker::new(fipsee_serve::WorkerPlacement::default(), backoff, Turns::default())?;
        events.send(Event::Joined { worker: id, handle });
        Ok(Self { id, info, turn: None, has_unanswered: false, worker, events })
    }

    /// What this worker serves.
    pub const fn info(&self) -> ServiceInfo {
        self.info
    }

    /// To be driven from outside while no call is taken.
    #[doc(hidden)]
    pub const fn runtime(&mut self) -> &mut Worker<Turns> {
        &mut self.worker
    }

    /// Take the next call, waiting for it at most until `deadline_ticks`.
    ///
    /// # Panics
    /// When the last call was not answered by [`reply`](Self::reply) or [`refuse`](Self::refuse).
    #[inline(always)]
    pub fn take(&mut self, request: &mut Message, deadline_ticks: Option<u64>) -> Taken {
        assert!(!self.has_unanswered, "answer the call that was taken before taking another");
        loop {
            if self.take_in_turn(request) {
                self.has_unanswered = true;
                return Taken::Call;
            }
            self.turn = self.worker.engine().0.pop();
            if self.turn.is_some() {
                continue;
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

    /// The next call of the client whose turn it is. When there is none the turn is over; but a client alone at its worker is
    /// looked at for a while first: a pass of the worker takes some 25 cycles of a round trip of 350.
    #[inline(always)]
    fn take_in_turn(&mut self, request: &mut Message) -> bool {
        let Some(channel) = &mut self.turn else { return false };
        if channel.take(request) {
            return true;
        }
        channel.end_turn();
        for _ in 0..LOOKS_IN_TURN {
            if !self.worker.has_one_queue_only() {
                break;
            }
            if channel.begin_turn(Turn::whole(true)) && channel.take(request) {
                return true;
            }
            std::hint::spin_loop();
        }
        self.give_back();
        false
    }

    /// Answer the call that was taken.
    ///
    /// # Panics
    /// When none was taken.
    #[inline(always)]
    pub fn reply(&mut self, reply: &Message) {
        assert!(std::mem::take(&mut self.has_unanswered), "a reply without a call");
        if let Some(channel) = &mut self.turn {
            channel.reply(reply);
        }
    }

    /// Instead of a reply: close the channel of the client whose call was taken, and send it `why`.
    ///
    /// # Panics
    /// When none was taken.
    #[cold]
    pub fn refuse(&mut self, why: &str) {
        assert!(std::mem::take(&mut self.has_unanswered), "a refusal without a call");
        if let Some(channel) = &mut self.turn {
            channel.refuse();
            // That thread has the queue removed.
            self.events.send(Event::Refused { client: channel.client, text: why.to_owned() });
        }
        self.give_back();
    }

    #[inline(always)]
    fn give_back(&mut self) {
        if let Some(channel) = self.turn.take() {
            channel.give_back(&mut self.worker);
        }
    }

    /// The call that was taken: its client, and its payloads. `None` when none was taken.
    #[inline(always)]
    pub fn call(&self) -> Option<Call<'_>> {
        self.turn.as_ref().filter(|_| self.has_unanswered).map(|channel| channel.call(&self.info))
    }
}

impl Drop for RawWorker {
    fn drop(&mut self) {
        // Before the channels go: a client gets the reason, not a message that all is finished.
        self.events.send(Event::Left { worker: self.id });
    }
}
