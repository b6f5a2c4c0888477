//! The channel as the product uses it: the caller's side as `client::Queue` of crates/block, the answerer's as
//! `server::QueueServer` under a worker of the daemon that serves nothing else.

use std::convert::Infallible;
use std::os::fd::AsFd;

use fipsee_ring::Message;
use fipsee_ring::channel::{ClientQueue, ServerQueue};
use fipsee_ring::doorbell::EventDoorbell;
use fipsee_ring::error::Error;
use fipsee_ring::mapped::MappedRing;
use fipsee_ring::pace::{AnswererPace, Delays, let_answers_gather};
use fipsee_ring::port::Port;
use fipsee_ring::ring::{Reader, StreamWriter};
use fipsee_ring::seqpacket::Seqpacket;
use fipsee_ring::wait::{Backoff, DEFAULT_LOOK, Next};
use rustix::event::epoll;

use super::bare;
use super::drive::{Answers, Calls, PeerError, Receives, Sends};
use super::endpoints::fault;
use super::plan::HotPathOptions;
use super::spin::Spin;
use super::visits::{Taken, Visits};

/// Empty polls between two checks whether the other side is alive.
const LOOKS_PER_LIVENESS_CHECK: u32 = 4096;
/// Without PAUSE: the number of polls before the usual wait.
const BARE_LOOKS: u32 = 4096;

/// The wait of the answerer of calls and of the receiver of a stream.
struct Idle<'a> {
    backoff: Backoff,
    pause: bool,
    looks: u32,
    other: &'a Seqpacket,
}

impl<'a> Idle<'a> {
    fn new(options: &HotPathOptions, other: &'a Seqpacket) -> Self {
        Self { backoff: Backoff::new(options.wait, DEFAULT_LOOK), pause: options.pause, looks: 0, other }
    }

    #[inline(always)]
    const fn reset(&mut self) {
        self.backoff.reset();
        self.looks = 0;
    }

    #[inline(always)]
    fn step(&mut self, expected: bool, reader: &Reader<MappedRing>) -> Result<Next, PeerError> {
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(LOOKS_PER_LIVENESS_CHECK) && self.other.is_hung_up() {
            return Err(PeerError::Gone);
        }
        if !self.pause && self.looks < BARE_LOOKS {
            return Ok(Next::Look);
        }
        Ok(self.backoff.step_watching(expected, || Some(reader.watch())))
    }
}

pub(super) struct Caller<'a> {
    port: Port,
    other: &'a Seqpacket,
    options: HotPathOptions,
}

impl<'a> Caller<'a> {
    pub(super) fn new(queue: ClientQueue, options: HotPathOptions, other: &'a Seqpacket) -> Self {
        Self { port: Port::new(queue, Backoff::new(options.wait, DEFAULT_LOOK)), other, options }
    }

    #[inline(always)]
    fn ring_if_asleep(&mut self) {
        if self.options.doorbells && self.port.queue.requests.reader_needs_doorbell() {
            self.port.queue.daemon_doorbell.ring();
        }
    }

    #[inline(always)]
    fn publish(&mut self, calls: &[Message]) {
        for call in calls {
            let published = self.port.queue.requests.publish(call);
            debug_assert!(published.is_ok(), "bursts are no larger than the ring");
            self.port.queue.requests.prefetch(calls.len());
            if !self.options.batch {
                self.ring_if_asleep();
            }
        }
        if self.options.batch {
            self.ring_if_asleep();
        }
    }

    /// A poll found nothing, the `looks`-th in a row.
    #[inline(always)]
    fn pause(&mut self, looks: u32) -> Result<(), PeerError> {
        if !self.options.pause && looks < BARE_LOOKS {
            if self.options.gather {
                let_answers_gather(self.port.queue.requests.outstanding() as usize);
            }
            return Ok(());
        }
        match self.port.pause::<Infallible>(None, self.options.gather, || self.other.is_hung_up()) {
            Ok(_) => Ok(()),
            Err(Error::Disconnected) => Err(PeerError::Gone),
            Err(error) => Err(PeerError::Wrong(format!("cannot wait for an answer: {error:?}"))),
        }
    }
}

impl Calls for Caller<'_> {
    #[inline(always)]
    fn exchange(&mut self, calls: &[Message], answers: &mut [Message]) -> Result<(), PeerError> {
        self.publish(calls);
        self.port.pace_first_look();
        self.port.pace.hold.wait();
        for answer in answers {
            let mut looks = 0;
            while !self.port.queue.completions.receive(answer) {
                looks += 1;
                self.pause(looks)?;
            }
            self.port.queue.requests.answered();
            self.port.backoff.reset();
        }
        if self.options.look_twice && self.port.queue.completions.has_message() {
            return Err(PeerError::Wrong("an answer without a request came; report this".to_owned()));
        }
        Ok(())
    }

    fn send(&mut self, message: &Message) {
        let _ = self.port.queue.requests.publish(message);
        self.ring_if_asleep();
    }

    fn delays(&self) -> Delays {
        self.port.pace.delays()
    }
}

/// Sleeps until the doorbell rings or the other side is gone: as the daemon, which watches an eventfd and never reads it.
struct EpollWaiter(rustix::fd::OwnedFd);

impl EpollWaiter {
    fn new(doorbell: &EventDoorbell, other: &Seqpacket) -> Result<Self, PeerError> {
        let made = || {
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let nothing = epoll::EventData::new_u64(0);
            epoll::add(&epoll, doorbell, nothing, epoll::EventFlags::IN | epoll::EventFlags::ET)?;
            epoll::add(&epoll, other.as_fd(), nothing, epoll::EventFlags::RDHUP)?;
            Ok(Self(epoll))
        };
        made().map_err(|error: rustix::io::Errno| PeerError::Wrong(format!("cannot watch the doorbell: {error}")))
    }

    fn sleep(&self, other: &Seqpacket) -> Result<(), PeerError> {
        let mut events = Vec::<epoll::Event>::with_capacity(2);
        let _ = epoll::wait(&self.0, rustix::buffer::spare_capacity(&mut events), None);
        if other.is_hung_up() { Err(PeerError::Gone) } else { Ok(()) }
    }
}

pub(super) struct Answerer<'a> {
    queue: ServerQueue,
    idle: Idle<'a>,
    waiter: EpollWaiter,
    pace: AnswererPace,
    options: HotPathOptions,
}

impl<'a> Answerer<'a> {
    pub(super) fn new(queue: ServerQueue, options: HotPathOptions, other: &'a Seqpacket) -> Result<Self, PeerError> {
        let waiter = EpollWaiter::new(&queue.our_doorbell, other)?;
        let pace = AnswererPace::default();
        Ok(Self { queue, idle: Idle::new(&options, other), waiter, pace, options })
    }

    #[inline(always)]
    fn ring_if_asleep(&mut self) {
        if self.options.doorbells && self.queue.completions.reader_needs_doorbell() {
            self.queue.client_doorbell.ring();
        }
    }

    #[cold]
    fn sleep(&mut self) -> Result<(), PeerError> {
        if !self.queue.requests.arm_and_work_remains() {
            self.waiter.sleep(self.idle.other)?;
        }
        self.queue.requests.disarm();
        self.idle.reset();
        Ok(())
    }
}

impl Answers for Answerer<'_> {
    #[inline(always)]
    fn serve(&mut self, answer: &mut impl FnMut(&Message) -> Option<Message>) -> Result<(), PeerError> {
        let (mut taken, mut visits) = (Taken::new(self.options.tuning.take), Visits::new(self.options.look_twice));
        loop {
            self.pace.hold.wait();
            while !self.queue.requests.has_message() {
                if self.idle.step(false, &self.queue.requests)? == Next::Sleep {
                    self.sleep()?;
                }
            }
            self.queue.requests.disarm();
            self.idle.reset();
            self.queue.requests.begin_run();
            let mut count = 0;
            while count < visits.limit() {
                let messages = taken.take(&mut self.queue.requests, visits.limit() - count);
                if messages.is_empty() {
                    break;
                }
                for message in messages {
                    let Some(reply) = answer(message) else { return Ok(()) };
                    count += 1;
                    self.queue.completions.publish(&reply);
                    self.queue.completions.prefetch(1);
                    if !self.options.batch {
                        self.ring_if_asleep();
                    }
                }
            }
            if self.options.batch {
                self.ring_if_asleep();
            }
            if visits.end(count) {
                let answers = self.queue.completions.memory();
                let asked = self.pace.begin(answers.asked_hold(), answers.asked_choices());
                if let Some(ownership) = asked.and_then(|choices| choices.apply_to_lone(&mut self.queue.requests)) {
                    self.queue.completions.set_ownership(ownership);
                }
            } else {
                self.pace.interrupt();
            }
        }
    }
}

/// The sending end of a stream. It polls for free slots: no doorbell announces them.
pub(super) struct Source<'a> {
    pub(super) writer: StreamWriter<MappedRing>,
    pub(super) doorbell: EventDoorbell,
    pub(super) slot_count: u32,
    pub(super) spin: Spin<'a>,
    pub(super) options: HotPathOptions,
}

impl Source<'_> {
    /// Publish as many as fit; their number.
    #[inline(always)]
    fn publish(&mut self, messages: &[Message]) -> Result<usize, PeerError> {
        let count = self.writer.publish_burst(messages).map_err(fault)?;
        if count > 0 && self.options.doorbells && self.writer.reader_needs_doorbell() {
            self.doorbell.ring();
        }
        Ok(count)
    }
}

impl Sends for Source<'_> {
    #[inline(always)]
    fn send(&mut self, messages: &[Message]) -> Result<(), PeerError> {
        let together = if self.options.batch { messages.len() } else { 1 };
        let mut sent = 0;
        loop {
            let rest = messages.get(sent..).unwrap_or_default();
            let count = self.publish(rest.get(..together).unwrap_or(rest))?;
            sent += count;
            if sent == messages.len() {
                self.spin.reset();
                return Ok(());
            }
            if count == 0 {
                self.spin.step()?;
            }
        }
    }

    fn drain(&mut self) -> Result<(), PeerError> {
        bare::drain(&mut self.writer, self.slot_count, &mut self.spin)
    }
}

pub(super) struct Sink<'a> {
    reader: Reader<MappedRing>,
    idle: Idle<'a>,
    waiter: EpollWaiter,
}

impl<'a> Sink<'a> {
    pub(super) fn new(
        reader: Reader<MappedRing>,
        doorbell: &EventDoorbell,
        options: &HotPathOptions,
        other: &'a Seqpacket,
    ) -> Result<Self, PeerError> {
        Ok(Self { reader, idle: Idle::new(options, other), waiter: EpollWaiter::new(doorbell, other)? })
    }

    #[cold]
    fn sleep(&mut self) -> Result<(), PeerError> {
        self.reader.release_all();
        if !self.reader.arm_and_work_remains() {
            self.waiter.sleep(self.idle.other)?;
        }
        self.reader.disarm();
        self.idle.reset();
        Ok(())
    }
}

impl Receives for Sink<'_> {
    #[inline(always)]
    fn receive(&mut self, take: &mut impl FnMut(&Message) -> bool) -> Result<(), PeerError> {
        let mut message = Message::ZERO;
        loop {
            if self.reader.receive_streamed(&mut message) {
                self.reader.disarm();
                self.idle.reset();
                if !take(&message) {
                    self.reader.release_all();
                    return Ok(());
                }
                self.reader.release_some();
                continue;
            }
            if self.idle.looks % bare::LOOKS_PER_RELEASE == bare::LOOKS_PER_RELEASE - 1 {
                self.reader.release_all();
            }
            if self.idle.step(false, &self.reader)? == Next::Sleep {
                self.sleep()?;
            }
        }
    }
}
