//! What a worker serves.

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd};

use fipsee_ring::channel::ServerQueue;
use fipsee_ring::mapped::NextStamp;
use fipsee_ring::wait::Watch;

use crate::{Engine, Taken, Turn};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueName {
    pub client: u64,
    pub index: u16,
}

/// A queue of some service, on its worker's thread. The worker calls [`visit`](Self::visit) once per pass, never anything per
/// request. The defaults are for a queue over one queue of a channel, and do what its doorbells and its rings need.
pub trait Queue<E: Engine>: Any + Send {
    /// Our end of the channel's queue, if there is one and it has it now.
    fn end(&self) -> Option<&ServerQueue> {
        None
    }

    /// As [`end`](Self::end).
    fn end_mut(&mut self) -> Option<&mut ServerQueue> {
        None
    }

    /// Take up to a budget of requests, within `turn`, and answer what can be answered at once. Returns what was taken.
    fn visit(&mut self, engine: &mut E, turn: Turn) -> Taken;

    /// Is it to be visited? Not if nothing comes by it that its worker has to look for, and it only belongs there. Always the same.
    fn is_visited(&self) -> bool {
        true
    }

    fn in_flight(&self) -> u32 {
        0
    }

    /// Does a visit begin work with the engine, which has a limited number of places for it? Always the same.
    fn is_asynchronous(&self) -> bool {
        false
    }

    /// Most requests of a correct client outstanding: this many are served of one that detaches in order. 0: it never does.
    fn depth(&self) -> u32 {
        0
    }

    /// Is a request waiting that may be taken?
    fn has_work(&self) -> bool {
        self.end().is_some_and(|end| end.requests.has_message())
    }

    /// Would a visit find nothing to do? A worker with a few active queues asks each of them, and visits none if that is so for all.
    fn is_quiet(&self) -> bool {
        !self.has_work()
    }

    /// A piece of work that [`visit`](Self::visit) began has ended; [`flush`](Self::flush) follows.
    fn finish(&mut self, _ticket: E::Ticket, _status: E::Status) {}

    /// Publish what is complete, and wake the client if it sleeps, unless that is held back until [`due`](Self::due).
    fn flush(&mut self) {
        if let Some(end) = self.end_mut()
            && end.completions.reader_needs_doorbell()
        {
            end.client_doorbell.ring();
        }
    }

    /// Ticks at which [`flush`](Self::flush) is to be called although nothing happens. Asked after each visit that took something and
    /// each flush, of a queue that [`may_hold_back`](Self::may_hold_back).
    fn due(&self) -> Option<u64> {
        None
    }

    /// May [`due`](Self::due) be `Some` before the next change? Asked when the queue is added, and after each change.
    fn may_hold_back(&self) -> bool {
        false
    }

    /// Ask for the doorbell unless that is done, then look once more: is there work after all?
    fn arm_and_work_remains(&mut self) -> bool {
        let remains = self.end_mut().is_some_and(|end| !end.requests.is_armed() && end.requests.arm_and_work_remains());
        remains && self.has_work()
    }

    /// The client rang while the worker slept. Called before [`doorbell_rang`](Self::doorbell_rang), which is also called where no
    /// client may have rung.
    fn count_doorbell(&mut self) {}

    /// The doorbell rang: it must be asked for again before sleeping.
    fn doorbell_rang(&mut self) {
        self.disarm();
    }

    /// Whether the doorbell rang is not known: it must be asked for again before sleeping.
    fn disarm(&mut self) {
        if let Some(end) = self.end_mut() {
            end.requests.disarm();
        }
    }

    /// Where the doorbell rings, if there is one.
    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.end()?.our_doorbell.as_fd())
    }

    /// What shows that there is work, as long as the queue is not visited. `None`: [`has_work`](Self::has_work) is to be asked.
    fn next_stamp(&self) -> Option<NextStamp> {
        let requests = &self.end()?.requests;
        Some(requests.memory().next_stamp(requests.cursor()))
    }

    /// As [`next_stamp`](Self::next_stamp), for a worker that waits for this queue alone.
    fn watch(&self) -> Option<Watch<'_>> {
        Some(self.end()?.requests.watch())
    }

    /// Begin what a visit would begin of requests that were taken before, and no others. Was there anything? A queue is asked
    /// that is not visited any more because it is to be idle.
    fn begin_deferred(&mut self, _engine: &mut E) -> bool {
        false
    }

    /// Another worker serves it from now on, which knows it by this number. Nothing of it is in flight. Any queue may be moved, so that there is
    /// no default: what is begun later under the old number would be reported to another queue.
    fn moved(&mut self, id: u32);

    /// All that another server must know to continue; `None` while requests are in flight. `own`: not to be taken for another
    /// process's, which must not be touched.
    fn saved_state(&mut self, own: bool) -> Option<Box<dyn Any + Send>>;
}
