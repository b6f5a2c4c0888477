//! One client's channel as a queue of the runtime: a visit that finds a call gives the client its turn, in which the thread that
//! drives the worker has the channel.

use std::any::Any;
use std::convert::Infallible;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use fipsee_ring::channel::ServerQueue;
use fipsee_ring::doorbell::EventDoorbell;
use fipsee_ring::notify::{Moderator, Policy, to_come};
use fipsee_ring::pace::{MAX_BUDGET, Visits};
use fipsee_ring::region::Region;
use fipsee_ring::{Message, clock};
use fipsee_serve::{Engine, Queue, Taken, Turn, Worker};

use crate::payload::Payload;
use crate::server::{Call, Credentials};
use crate::wire::{PayloadSlot, ServiceInfo};

/// The channels whose turn it is. The worker makes no pass before every turn is over: none is in flight between two passes, and
/// in which order they are taken makes no difference.
#[derive(Default)]
#[expect(clippy::vec_box, reason = "what changes hands is the box; the channel is not moved")]
pub struct Turns(pub(super) Vec<Box<CallServerQueue>>);

impl Engine for Turns {
    type Ticket = Infallible;
    type Status = ();

    fn queue_of(ticket: Infallible) -> u32 {
        match ticket {}
    }
}

/// The server's end of a client's channel.
///
/// Calls stay in the ring until they are carried out: to copy them out in advance made a burst of 64 slower by a quarter, because
/// what comes and what goes then does not overlap.
pub(super) struct CallServerQueue {
    /// The number by which the worker knows the queue.
    id: u32,
    pub(super) client: u64,
    credentials: Credentials,
    queue: ServerQueue,
    region: Arc<Region>,
    pool_offset_bytes: u64,
    /// Of the next reply.
    place: PayloadSlot,
    visits: Visits,
    /// Calls taken in this turn, and those that still may be.
    taken: u32,
    left: u32,
    /// The client is not served any more, and about to be removed.
    refused: bool,
    /// Doorbells that a policy may hold back. None: each is rung at once.
    moderator: Option<Box<Moderator>>,
    /// Replies since it was last seen whether the client sleeps.
    replies: u32,
}

impl CallServerQueue {
    #[inline(always)]
    fn has_work(&self) -> bool {
        self.queue.requests.has_message() && !self.refused
    }

    /// Begin a turn; `false`: there is no call.
    #[inline(always)]
    pub(super) fn begin_turn(&mut self, turn: Turn) -> bool {
        self.visits.hold(turn.alone);
        if !self.has_work() {
            return false;
        }
        self.queue.requests.begin_run();
        self.left = self.visits.limit(MAX_BUDGET).min(turn.requests);
        true
    }

    /// Take the next call of this turn; `false`: there is none.
    #[inline(always)]
    pub(super) fn take(&mut self, request: &mut Message) -> bool {
        if self.left == 0 || !self.queue.requests.receive(request) {
            return false;
        }
        self.queue.requests.disarm();
        self.left -= 1;
        self.taken += 1;
        true
    }

    /// Answer the call that was taken.
    #[inline(always)]
    pub(super) fn reply(&mut self, reply: &Message) {
        self.queue.completions.publish(reply);
        self.replies += 1;
        self.queue.completions.prefetch(self.visits.limit(MAX_BUDGET) as usize);
        self.place.advance();
        // A client that sleeps is woken before the next call is carried out, which may take long. One that goes to sleep just
        // now is seen at the next reply, or at the end of the turn: looking safely costs a fence each time.
        if self.left > 0 && self.queue.completions.reader_seems_asleep() {
            self.wake_client();
        }
        if self.left == 0 {
            self.end_turn();
        }
    }

    /// Wake the client if it sleeps, and guess what it does next.
    #[inline(always)]
    pub(super) fn end_turn(&mut self) {
        let taken = std::mem::take(&mut self.taken);
        if taken > 0 {
            self.wake_client();
            let ServerQueue { requests, completions, .. } = &mut self.queue;
            self.visits.end((taken, MAX_BUDGET), true, requests, completions);
        }
        self.left = 0;
    }

    /// As the policy says. A client that has got no reply goes on sleeping.
    #[inline(always)]
    fn wake_client(&mut self) {
        let count = std::mem::take(&mut self.replies);
        if self.moderator.is_some() {
            self.wake_moderated(count);
        } else if count > 0 && self.queue.completions.reader_needs_doorbell() {
            self.queue.client_doorbell.ring();
        }
    }

    #[inline(never)]
    fn wake_moderated(&mut self, count: u32) {
        let to_come = to_come(0, self.queue.requests.has_message().into());
        let Some(moderator) = self.moderator.as_deref_mut() else { return };
        if count == 0 && moderator.due().is_none() {
            return;
        }
        if !self.queue.completions.reader_sleeps() {
            moderator.reader_is_awake(count);
        } else if moderator.reader_sleeps(clock::ticks(), count, to_come) && self.queue.completions.reader_needs_doorbell() {
            self.queue.client_doorbell.ring();
        }
    }

    /// Serve the client no more.
    pub(super) const fn refuse(&mut self) {
        self.refused = true;
    }

    /// To its queue.
    #[inline(always)]
    pub(super) fn give_back(mut self: Box<Self>, worker: &mut Worker<Turns>) {
        self.end_turn();
        let queue = worker.queue(self.id).map(|queue| queue as &mut dyn Any);
        if let Some(queue) = queue.and_then(<dyn Any>::downcast_mut::<CallQueue>) {
            let (id, may_hold_back) = (self.id, self.moderator.is_some());
            queue.channel = Some(self);
            if may_hold_back {
                worker.published(id);
            }
        }
    }

    /// The call that was taken.
    #[inline(always)]
    pub(super) fn call(&self, info: &ServiceInfo) -> Call<'_> {
        let (request_bytes, reply_bytes) = self.place.offsets_bytes(info);
        let payload =
            |offset_bytes, length_bytes| Payload::new(&self.region, self.pool_offset_bytes + offset_bytes, length_bytes);
        Call {
            client: self.client,
            credentials: &self.credentials,
            request_payload: payload(request_bytes, info.request_payload_bytes),
            reply_payload: payload(reply_bytes, info.reply_payload_bytes),
        }
    }
}

pub(super) struct CallQueue {
    /// Away during the client's turn.
    channel: Option<Box<CallServerQueue>>,
    doorbell: EventDoorbell,
    depth: u32,
}

impl CallQueue {
    /// A client's; its payloads are in the region from that offset on.
    pub(super) fn new(
        id: u32,
        (client, credentials): (u64, Credentials),
        queue: ServerQueue,
        (region, pool_offset_bytes): (Arc<Region>, u64),
        depth: u32,
        notify: Option<Policy>,
    ) -> Self {
        let (doorbell, place, visits) = (queue.our_doorbell.clone(), PayloadSlot::first(depth), Visits::default());
        let moderator = notify.map(|policy| Box::new(Moderator::new(policy, clock::ticks_per_second())));
        let channel = CallServerQueue {
            id,
            client,
            credentials,
            queue,
            region,
            pool_offset_bytes,
            place,
            visits,
            taken: 0,
            left: 0,
            refused: false,
            moderator,
            replies: 0,
        };
        Self { channel: Some(Box::new(channel)), doorbell, depth }
    }
}

impl Queue<Turns> for CallQueue {
    fn end(&self) -> Option<&ServerQueue> {
        self.channel.as_ref().map(|channel| &channel.queue)
    }

    fn end_mut(&mut self) -> Option<&mut ServerQueue> {
        self.channel.as_mut().map(|channel| &mut channel.queue)
    }

    /// Returns how many calls may be taken in the turn.
    fn visit(&mut self, turns: &mut Turns, turn: Turn) -> Taken {
        let Some(channel) = &mut self.channel else { return Taken::NOTHING };
        if !channel.begin_turn(turn) {
            return Taken::NOTHING;
        }
        let most = channel.left;
        turns.0.extend(self.channel.take());
        Taken::new(most, 0)
    }

    /// A turn counts as work in flight.
    fn in_flight(&self) -> u32 {
        self.channel.is_none().into()
    }

    fn depth(&self) -> u32 {
        self.depth
    }

    fn has_work(&self) -> bool {
        self.channel.as_ref().is_some_and(|channel| channel.has_work())
    }

    /// Replies are published at once, and the client may have to be woken.
    fn flush(&mut self) {
        self.channel.iter_mut().for_each(|channel| channel.wake_client());
    }

    fn due(&self) -> Option<u64> {
        self.channel.as_ref()?.moderator.as_ref()?.due()
    }

    fn may_hold_back(&self) -> bool {
        self.channel.as_ref().is_some_and(|channel| channel.moderator.is_some())
    }

    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.doorbell.as_fd())
    }

    fn moved(&mut self, id: u32) {
        self.channel.iter_mut().for_each(|channel| channel.id = id);
    }

    /// Calls stay with their process.
    fn saved_state(&mut self, _own: bool) -> Option<Box<dyn Any + Send>> {
        None
    }
}
