//! The serving end: one thread with the channels of many clients.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use fipsee_ring::channel::ServerQueue;
use fipsee_ring::mailbox::Mailbox;
use fipsee_ring::pace::AnswererPace;
use fipsee_ring::region::Region;
use fipsee_ring::wait::{Backoff, Next};
use fipsee_ring::{Message, clock};
use rustix::event::{Timespec, epoll};

use super::front::Event;
use crate::payload::Payload;
use crate::server::{Call, Credentials};
use crate::wire::{Place, ServiceInfo};

/// Most calls taken from one client before the next has its turn. A client with many outstanding gets them in bursts, which
/// cost half of what single calls cost; the others wait for at most so many.
const MAX_BUDGET: u32 = 16;
/// So many visits in a row that found a single call: the client calls and waits for the reply.
const LONE_VISITS_OF_CALLS: u32 = 4;
/// Then only one visit in so many looks whether there is a second call, at the cost of a line transfer.
const VISITS_PER_LOOK_AHEAD: u32 = 16;
/// Empty visits after which a client is cold,
const EMPTY_VISITS_BEFORE_COLD: u32 = 1000;
/// and visited once in so many passes, as long as others are not.
const PASSES_PER_COLD_VISIT: u32 = 16;
const TOKEN_MAILBOX: u64 = u64::MAX;

/// What the front asks of a worker.
pub(super) enum Command {
    /// Serve a client.
    Add(Box<Channel>),
    /// Let a client go; `finish`: first serve what it published.
    Remove { client: u64, finish: bool },
    /// No client will follow.
    Stop,
}

/// One client's channel.
pub(super) struct Channel {
    client: u64,
    credentials: Credentials,
    queue: ServerQueue,
    region: Arc<Region>,
    pool_offset_bytes: u64,
    depth: u32,
    place: Place,
    budget: u32,
    /// Visits in a row that found a single call.
    lone_visits: u32,
    /// Visits in a row that found none.
    empty_visits: u32,
    pace: AnswererPace,
    /// The client is leaving: calls that are served before it goes, at most.
    last_calls: Option<u32>,
}

impl Channel {
    pub(super) fn new(
        (client, credentials): (u64, Credentials),
        queue: ServerQueue,
        region: Arc<Region>,
        pool_offset_bytes: u64,
        depth: u32,
    ) -> Self {
        Self {
            client,
            credentials,
            queue,
            region,
            pool_offset_bytes,
            depth,
            place: Place::first(depth),
            budget: 1,
            lone_visits: 0,
            empty_visits: 0,
            pace: AnswererPace::default(),
            last_calls: None,
        }
    }

    #[inline(always)]
    const fn is_cold(&self) -> bool {
        self.empty_visits >= EMPTY_VISITS_BEFORE_COLD
    }

    #[inline(always)]
    fn wake_client(&mut self) {
        if self.queue.completions.reader_needs_doorbell() {
            self.queue.client_bell.ring();
        }
    }

    /// After a visit that took calls: wake the client if it sleeps, and guess what it does next.
    #[inline(always)]
    fn end_visit(&mut self, taken: u32) {
        self.wake_client();
        self.lone_visits = if taken == 1 { self.lone_visits.wrapping_add(1) } else { 0 };
        let calls = self.lone_visits >= LONE_VISITS_OF_CALLS;
        if calls {
            let answers = self.queue.completions.memory();
            let asked = self.pace.begin(answers.asked_hold(), answers.asked_choices());
            if let Some(ownership) = asked.and_then(|choices| choices.apply_to_lone(&mut self.queue.requests)) {
                self.queue.completions.set_ownership(ownership);
            }
        } else {
            self.pace.interrupt();
        }
        let look_ahead = !calls || self.lone_visits.is_multiple_of(VISITS_PER_LOOK_AHEAD);
        self.budget = if taken == self.budget && look_ahead { (self.budget * 2).min(MAX_BUDGET) } else { 1 };
    }
}

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
    id: u64,
    info: ServiceInfo,
    channels: Vec<Option<Box<Channel>>>,
    /// The channel that is being visited, how many more calls may be taken from it, and how many were.
    current: usize,
    left: u32,
    taken: u32,
    /// A call was taken and not answered.
    is_owing: bool,
    /// Did this pass over all channels find work?
    found_work: bool,
    passes: u32,
    /// Channels that are not cold.
    hot_count: usize,
    is_stopping: bool,
    backoff: Backoff,
    mailbox: Arc<Mailbox<Command>>,
    front: Arc<Mailbox<Event>>,
    epoll: OwnedFd,
}

impl RawWorker {
    pub(super) fn new(id: u64, info: ServiceInfo, backoff: Backoff, front: Arc<Mailbox<Event>>) -> io::Result<Self> {
        let mailbox = Arc::new(Mailbox::new()?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &*mailbox, epoll::EventData::new_u64(TOKEN_MAILBOX), edge)?;
        front.send(Event::Joined { worker: id, mailbox: Arc::clone(&mailbox) });
        Ok(Self {
            id,
            info,
            channels: Vec::new(),
            current: 0,
            left: 0,
            taken: 0,
            is_owing: false,
            found_work: false,
            passes: 0,
            hot_count: 0,
            is_stopping: false,
            backoff,
            mailbox,
            front,
            epoll,
        })
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
        assert!(!self.is_owing, "answer the call that was taken before taking another");
        loop {
            if self.left > 0
                && let Some(Some(channel)) = self.channels.get_mut(self.current)
                && channel.queue.requests.receive(request)
            {
                channel.queue.requests.disarm();
                self.left -= 1;
                self.taken += 1;
                self.is_owing = true;
                return Taken::Call;
            }
            self.leave_channel();
            if self.current >= self.channels.len()
                && let Some(outcome) = self.end_pass(deadline_ticks)
            {
                return outcome;
            }
        }
    }

    /// Answer the call that was taken.
    ///
    /// # Panics
    /// When none was taken.
    #[inline(always)]
    pub fn reply(&mut self, reply: &Message) {
        assert!(std::mem::take(&mut self.is_owing), "a reply without a call");
        if let Some(Some(channel)) = self.channels.get_mut(self.current) {
            channel.queue.completions.publish(reply);
            channel.queue.completions.prefetch(channel.budget as usize);
            // A client that sleeps is woken before the next call is carried out, which may take long. One that goes to sleep
            // just now is seen at the next reply, or at the end of the visit: looking safely costs a fence each time.
            if channel.queue.completions.reader_seems_asleep() {
                channel.wake_client();
            }
            channel.place.advance();
        }
    }

    /// Instead of a reply: close the channel of the client whose call was taken, and tell it `why`.
    ///
    /// # Panics
    /// When none was taken.
    #[cold]
    pub fn refuse(&mut self, why: &str) {
        assert!(std::mem::take(&mut self.is_owing), "a refusal without a call");
        if let Some(channel) = self.channels.get_mut(self.current).and_then(Option::take) {
            self.front.send(Event::Refused { client: channel.client, text: why.to_owned() });
            self.drop_channel(*channel);
        }
    }

    /// The call that was taken: whose it is, and its payloads. `None` when none was taken.
    #[must_use]
    #[inline(always)]
    pub fn call(&self) -> Option<Call<'_>> {
        let channel = self.channels.get(self.current)?.as_ref().filter(|_| self.is_owing)?;
        let (request_bytes, reply_bytes) = channel.place.offsets_bytes(&self.info);
        let payload =
            |offset_bytes, length_bytes| Payload::new(&channel.region, channel.pool_offset_bytes + offset_bytes, length_bytes);
        Some(Call {
            client: channel.client,
            credentials: channel.credentials,
            request_payload: payload(request_bytes, self.info.request_payload_bytes),
            reply_payload: payload(reply_bytes, self.info.reply_payload_bytes),
        })
    }

    /// Finish the visit to the current channel and go on to the next.
    #[inline(always)]
    fn leave_channel(&mut self) {
        if let Some(Some(channel)) = self.channels.get_mut(self.current) {
            if self.taken > 0 {
                self.found_work = true;
                channel.end_visit(self.taken);
                self.heat(self.current);
            } else if self.left > 0 && !channel.is_cold() {
                channel.empty_visits += 1;
                self.hot_count -= usize::from(channel.is_cold());
            }
            self.settle_if_leaving();
        }
        self.enter_channel(self.current + 1);
    }

    /// This client is visited every pass from now on.
    #[inline(always)]
    fn heat(&mut self, index: usize) {
        if let Some(Some(channel)) = self.channels.get_mut(index) {
            self.hot_count += usize::from(channel.is_cold());
            channel.empty_visits = 0;
        }
    }

    #[inline(always)]
    fn enter_channel(&mut self, index: usize) {
        self.current = index;
        self.taken = 0;
        self.left = 0;
        if let Some(Some(channel)) = self.channels.get_mut(index) {
            if channel.is_cold() && self.hot_count > 0 && !self.passes.is_multiple_of(PASSES_PER_COLD_VISIT) {
                return;
            }
            // With nobody else to look at, wait until the next call can be there, a fraction of a microsecond.
            if self.hot_count == 1 && !channel.is_cold() {
                channel.pace.hold();
            } else {
                channel.pace.interrupt();
            }
            self.left = channel.budget.min(channel.last_calls.unwrap_or(u32::MAX));
        }
    }

    #[inline(always)]
    fn settle_if_leaving(&mut self) {
        if let Some(Some(Channel { last_calls: Some(_), .. })) = self.channels.get(self.current).map(Option::as_deref) {
            self.settle_leaving();
        }
    }

    /// A client that is leaving is let go when it has had its share, or nothing is left.
    #[cold]
    fn settle_leaving(&mut self) {
        let taken = self.taken;
        let Some(place) = self.channels.get_mut(self.current) else { return };
        let is_done = place.as_mut().is_some_and(|channel| {
            let left = channel.last_calls.unwrap_or(0).saturating_sub(taken);
            channel.last_calls = Some(left);
            left == 0 || !channel.queue.requests.has_message()
        });
        if is_done && let Some(channel) = place.take() {
            self.drop_channel(*channel);
        }
    }

    fn drop_channel(&mut self, channel: Channel) {
        self.hot_count -= usize::from(!channel.is_cold());
        let _ = epoll::delete(&self.epoll, &channel.queue.our_bell);
        let client = channel.client;
        // Its memory and doorbells first: the front counts them as free from then on.
        drop(channel);
        self.front.send(Event::Released { client });
        while self.channels.last().is_some_and(Option::is_none) {
            self.channels.pop();
        }
    }

    /// All channels were visited.
    #[inline(always)]
    fn end_pass(&mut self, deadline_ticks: Option<u64>) -> Option<Taken> {
        if self.mailbox.has_messages() {
            self.obey();
            self.found_work = true;
        }
        if std::mem::take(&mut self.found_work) {
            self.backoff.reset();
        } else if self.is_stopping && self.channels.is_empty() {
            return Some(Taken::Stopped);
        } else if deadline_ticks.is_some_and(|deadline| clock::ticks() >= deadline) {
            self.backoff.reset();
            return Some(Taken::TimedOut);
        } else if self.backoff.step(false) == Next::Sleep && self.nothing_remains_after_arming() {
            self.sleep(deadline_ticks);
            self.backoff.reset();
        }
        self.passes = self.passes.wrapping_add(1);
        self.enter_channel(0);
        None
    }

    #[cold]
    fn obey(&mut self) {
        for command in self.mailbox.take() {
            match command {
                Command::Add(channel) => self.add(channel),
                Command::Remove { client, finish } => {
                    let is_it =
                        |place: &&mut Option<Box<Channel>>| place.as_ref().is_some_and(|channel| channel.client == client);
                    let Some(place) = self.channels.iter_mut().find(is_it) else { continue };
                    match place {
                        // A correct client has no more outstanding, and one that goes on calling must not keep us.
                        Some(channel) if finish => channel.last_calls = Some(channel.depth),
                        _ => {
                            if let Some(channel) = place.take() {
                                self.drop_channel(*channel);
                            }
                        }
                    }
                }
                Command::Stop => self.is_stopping = true,
            }
        }
    }

    fn add(&mut self, channel: Box<Channel>) {
        let index = self.channels.iter().position(Option::is_none).unwrap_or(self.channels.len());
        self.hot_count += 1;
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        if epoll::add(&self.epoll, &channel.queue.our_bell, epoll::EventData::new_u64(index as u64), edge).is_err() {
            let text = "the server cannot watch the channel's doorbell; raise its limit of watches (fs.epoll.max_user_watches)";
            self.front.send(Event::Refused { client: channel.client, text: text.to_owned() });
            return self.drop_channel(*channel);
        }
        if index == self.channels.len() { self.channels.push(Some(channel)) } else { self.channels[index] = Some(channel) }
    }

    /// Ask every client for its doorbell, then look once more.
    #[cold]
    fn nothing_remains_after_arming(&mut self) -> bool {
        let mut nothing_remains = true;
        for index in 0..self.channels.len() {
            let Some(Some(channel)) = self.channels.get_mut(index) else { continue };
            let requests = &mut channel.queue.requests;
            if channel.last_calls.is_some() || (!requests.is_armed() && requests.arm_and_work_remains()) {
                // Armed or not, no doorbell will ring for what is there: it must be taken, however cold the client is.
                requests.disarm();
                self.heat(index);
                nothing_remains = false;
            }
        }
        nothing_remains && !self.mailbox.has_messages()
    }

    #[cold]
    fn sleep(&mut self, deadline_ticks: Option<u64>) {
        let left = deadline_ticks.and_then(|deadline| Timespec::try_from(clock::until(deadline)).ok());
        let mut events = Vec::<epoll::Event>::with_capacity(64);
        // An error other than an interruption leaves us looking without sleep, which works.
        let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), left.as_ref());
        for event in events {
            let index = usize::try_from(event.data.u64()).unwrap_or(usize::MAX);
            // Whoever rang has taken the flag down: it must be raised again before the next sleep.
            if let Some(Some(channel)) = self.channels.get_mut(index) {
                channel.queue.requests.disarm();
                self.heat(index);
            }
        }
    }
}

impl Drop for RawWorker {
    fn drop(&mut self) {
        self.channels.clear();
        self.front.send(Event::Left { worker: self.id });
    }
}
