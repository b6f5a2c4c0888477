//! One client's channel as a queue of the runtime: a visit moves calls from the ring to the inbox of the thread that carries them
//! out.

use std::any::Any;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use fipsee_ring::Message;
use fipsee_ring::channel::ServerQueue;
use fipsee_ring::mapped::NextStamp;
use fipsee_ring::pace::{MAX_BUDGET, Visits};
use fipsee_ring::region::Region;
use fipsee_ring::wait::Watch;
use fipsee_serve::{Engine, Queue};

use crate::payload::Payload;
use crate::server::{Call, Credentials};
use crate::wire::{Place, ServiceInfo};

/// Calls that were taken from their rings, with the numbers of their queues, in the order in which they are to be carried out.
/// The worker makes no pass before it is empty, so what is in it is never in flight between two passes.
#[derive(Default)]
pub(super) struct Inbox(pub(super) VecDeque<(u32, Message)>);

impl Engine for Inbox {
    type Ticket = Infallible;
    type Status = ();

    fn queue_of(ticket: Infallible) -> u32 {
        match ticket {}
    }

    fn in_flight(&self) -> usize {
        0
    }

    fn poll(&mut self, _: usize, _: &mut impl FnMut(Infallible, ())) -> usize {
        0
    }
}

/// The server's end of a client's channel.
pub(super) struct CallQueue {
    /// The number by which the worker knows it.
    pub(super) id: u32,
    pub(super) client: u64,
    pub(super) credentials: Credentials,
    pub(super) queue: ServerQueue,
    pub(super) region: Arc<Region>,
    pub(super) pool_offset_bytes: u64,
    pub(super) depth: u32,
    /// Of the oldest call that is not answered.
    pub(super) place: Place,
    pub(super) visits: Visits,
    /// Calls that the last visit took, and those of them that are not answered.
    pub(super) taken: u32,
    pub(super) unanswered: u32,
    /// The client is not served any more, and about to be removed.
    pub(super) refused: bool,
}

impl CallQueue {
    #[inline(always)]
    fn take(&mut self, inbox: &mut Inbox) -> u32 {
        let limit = self.visits.limit(MAX_BUDGET).min(self.depth);
        let (mut message, mut taken) = (Message::ZERO, 0);
        self.queue.requests.begin_run();
        while taken < limit && self.queue.requests.receive(&mut message) {
            inbox.0.push_back((self.id, message));
            taken += 1;
        }
        self.queue.requests.disarm();
        (self.taken, self.unanswered) = (taken, taken);
        taken
    }

    /// Answer the oldest call.
    #[inline(always)]
    pub(super) fn reply(&mut self, reply: &Message) {
        self.queue.completions.publish(reply);
        self.queue.completions.prefetch(self.taken as usize);
        self.place.advance();
        self.unanswered -= 1;
        if self.unanswered == 0 {
            self.flush();
            let ServerQueue { requests, completions, .. } = &mut self.queue;
            self.visits.end((self.taken, MAX_BUDGET), true, requests, completions);
        } else if self.queue.completions.reader_seems_asleep() {
            // A client that sleeps is woken before the next call is carried out, which may take long. One that goes to sleep just
            // now is seen at the next reply, or at the last of the visit: looking safely costs a fence each time.
            self.flush();
        }
    }

    /// Serve it no more: what was taken of it is not answered.
    pub(super) fn refuse(&mut self) {
        (self.refused, self.unanswered) = (true, 0);
    }

    /// The oldest call that is not answered.
    #[inline(always)]
    pub(super) fn call(&self, info: &ServiceInfo) -> Call<'_> {
        let (request_bytes, reply_bytes) = self.place.offsets_bytes(info);
        let payload =
            |offset_bytes, length_bytes| Payload::new(&self.region, self.pool_offset_bytes + offset_bytes, length_bytes);
        Call {
            client: self.client,
            credentials: self.credentials,
            request_payload: payload(request_bytes, info.request_payload_bytes),
            reply_payload: payload(reply_bytes, info.reply_payload_bytes),
        }
    }
}

impl Queue<Inbox> for CallQueue {
    fn visit(&mut self, inbox: &mut Inbox, alone: bool) -> u32 {
        self.visits.hold(alone);
        if self.has_work() { self.take(inbox) } else { 0 }
    }

    fn in_flight(&self) -> u32 {
        self.unanswered
    }

    fn depth(&self) -> u32 {
        self.depth
    }

    #[inline(always)]
    fn has_work(&self) -> bool {
        self.queue.requests.has_message() && !self.refused
    }

    fn finish(&mut self, ticket: Infallible, (): ()) {
        match ticket {}
    }

    #[inline(always)]
    fn flush(&mut self) {
        if self.queue.completions.reader_needs_doorbell() {
            self.queue.client_bell.ring();
        }
    }

    fn arm_and_work_remains(&mut self) -> bool {
        !self.queue.requests.is_armed() && self.queue.requests.arm_and_work_remains() && !self.refused
    }

    fn bell_rang(&mut self) {
        self.queue.requests.disarm();
    }

    fn bell(&self) -> BorrowedFd<'_> {
        self.queue.our_bell.as_fd()
    }

    fn next_stamp(&self) -> Option<NextStamp> {
        Some(self.queue.requests.memory().next_stamp(self.queue.requests.cursor()))
    }

    fn watch(&self) -> Option<Watch<'_>> {
        Some(self.queue.requests.watch())
    }

    /// Calls stay with their process.
    fn saved_state(&mut self, _own: bool) -> Option<Box<dyn Any + Send>> {
        None
    }
}
