//! A client of a service of calls and streams (tests/service), served beside the disk: numbers go in by a stream, calls come back
//! with their sum.

use std::collections::VecDeque;

use fipsee_ring::Message;
use fipsee_ring::control::{Control, Refusal, RefusalCode, Wanted};
use fipsee_ring::handshake::AttachedChannel;
use fipsee_ring::mapped::MappedRing;
use fipsee_ring::ring::{Cursor, StreamWriter};
use fipsee_service::{DEPTH, PROFILE, QUEUES, SERVICE_SUMS};

use crate::context::Context;
use crate::link::{Awake, Down, Link, is_rung, open};
use crate::rng::Rng;

/// Tries again after so long.
const RETRY_US: u64 = 10_000;
/// Numbers that it adds.
const NUMBERS: u32 = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Away(u64),
    Greeting,
    Attaching,
    Running,
    /// Its connection is about to say that the daemon is gone.
    Losing,
    Detaching,
    Ended,
}

/// Both ends of the service as the client has them.
struct StreamChannel {
    attached: AttachedChannel,
    stream: StreamWriter<MappedRing>,
}

pub(crate) struct Adder {
    pub(crate) stage: Stage,
    pub(crate) link: usize,
    channel: Option<StreamChannel>,
    /// What the sum is after each number of the stream, but for those that are known to have arrived.
    sums: VecDeque<u64>,
    /// Calls without a reply, oldest first.
    calls: VecDeque<u64>,
    added: u32,
    called: u64,
    awake: Awake,
    is_stirred: bool,
    rng: Rng,
}

impl Adder {
    pub(crate) fn new(link: usize, rng: Rng) -> Self {
        Self {
            stage: Stage::Away(0),
            link,
            channel: None,
            sums: VecDeque::new(),
            calls: VecDeque::new(),
            added: 0,
            called: 0,
            awake: Awake::Yes,
            is_stirred: true,
            rng,
        }
    }

    /// An actor that may have rung has run.
    pub(crate) const fn stir(&mut self) {
        self.is_stirred = true;
    }

    /// When it goes on by itself.
    pub(crate) const fn wakes_at(&self) -> Option<u64> {
        if let Stage::Away(until) = self.stage { Some(until) } else { None }
    }

    /// May it be scheduled?
    pub(crate) fn may_run(&mut self, links: &[Link], now_us: u64) -> bool {
        match self.stage {
            Stage::Ended => false,
            _ if !links[self.link].down.is_empty() => true,
            Stage::Away(until) => now_us >= until,
            Stage::Running if self.awake == Awake::No => {
                let doorbell = self.channel.as_ref().map(|channel| &channel.attached.queues[0].our_doorbell);
                std::mem::take(&mut self.is_stirred) && doorbell.is_some_and(is_rung)
            }
            Stage::Running => true,
            _ => false,
        }
    }

    /// One step.
    pub(crate) fn run(&mut self, context: &Context, link: &mut Link, now_us: u64) {
        if let Some(down) = link.down.pop_front() {
            return self.take(context, link, down, now_us);
        }
        match self.stage {
            Stage::Away(_) => {
                link.greet(0, 0);
                self.stage = Stage::Greeting;
            }
            Stage::Running => self.work(context, link),
            _ => {}
        }
    }

    fn take(&mut self, context: &Context, link: &mut Link, down: Down, now_us: u64) {
        context.say(|| format!("adder: takes {down:?}"));
        match (down, self.stage) {
            (Down::Packet(Control::Welcome { .. }, _), Stage::Greeting) => {
                let (service, queue_count, depth, name) = (SERVICE_SUMS, QUEUES, DEPTH, "sums".to_owned());
                link.send(&Control::Attach(Wanted { service, queue_count, depth, flags: 0, pool_bytes: 0, name }));
                self.stage = Stage::Attaching;
            }
            (Down::Packet(Control::Attached { region_bytes, service_info, .. }, files), Stage::Attaching) => {
                let attached = open(&PROFILE, region_bytes, service_info, files);
                let geometry = attached.layout.queues[1];
                let ring = geometry.request_ring(&attached.region, &geometry.tuning()).expect("it fits");
                let stream = StreamWriter::new(ring, Cursor::at_start(geometry.request_start), &geometry.tuning());
                self.channel = Some(StreamChannel { attached, stream });
                (self.stage, self.awake, self.sums) = (Stage::Running, Awake::Yes, VecDeque::from([0]));
            }
            (Down::Packet(Control::Refused(Refusal { code: RefusalCode::Malformed, text }), _), _) => {
                context.violated(|| format!("the adder is refused: {text}"));
            }
            (Down::Packet(Control::Detached, _), Stage::Detaching) => self.end(),
            (Down::Packet(Control::Detached | Control::Refused(_), _), _) | (Down::Closed, Stage::Ended) => {}
            (Down::Packet(message, _), stage) => context.violated(|| format!("the adder receives {message:?} while {stage:?}")),
            (Down::Closed, _) => {
                (self.channel, self.stage) = (None, Stage::Away(now_us + RETRY_US));
                self.calls.clear();
            }
        }
    }

    fn end(&mut self) {
        (self.channel, self.stage) = (None, Stage::Ended);
    }

    /// The process ends; another begins.
    pub(crate) fn die(&mut self, link: &mut Link, next_link: usize, now_us: u64) {
        link.up.push_back(crate::link::Up::Gone);
        self.calls.clear();
        (self.channel, self.link, self.stage) = (None, next_link, Stage::Away(now_us));
    }

    fn work(&mut self, context: &Context, link: &mut Link) {
        let Some(StreamChannel { attached, .. }) = &mut self.channel else { return };
        let queue = &mut attached.queues[0];
        match self.awake {
            Awake::Drowsy => {
                let remains = queue.completions.arm_and_work_remains();
                (self.awake, self.is_stirred) = (if remains { Awake::Yes } else { Awake::No }, true);
                return;
            }
            Awake::No => {
                self.awake = Awake::Yes;
                self.stage = if queue.woken() { self.stage } else { Stage::Losing };
                return;
            }
            Awake::Yes => {}
        }
        let replies = self.take_replies(context);
        let (added, is_full) = self.add_some(context);
        // All have arrived when a reply says so; until then it asks again.
        let has_all = self.added == NUMBERS && self.sums.len() == 1;
        if has_all && self.calls.is_empty() {
            context.say(|| "adder: detaches".to_owned());
            link.send(&Control::Detach);
            self.stage = Stage::Detaching;
            return;
        }
        // A full stream says nothing when there is room again: the reply to a call does.
        let called = !has_all && self.calls.len() < DEPTH as usize && (self.calls.is_empty() || !is_full && self.rng.percent(20));
        if called {
            self.call(context);
        }
        if replies + added == 0 && !called {
            self.awake = Awake::Drowsy;
        }
    }

    fn add_some(&mut self, context: &Context) -> (u32, bool) {
        let Some(StreamChannel { attached, stream }) = &mut self.channel else { return (0, false) };
        let wanted = self.rng.small(6).min(NUMBERS - self.added);
        for added in 0..wanted {
            let number = 1 + u64::from(self.rng.small(1000));
            let mut message = Message::ZERO;
            message.set_word(0, number);
            if stream.try_publish(&message).is_err() {
                self.added += added;
                return (added, true);
            }
            context.say(|| format!("adder: adds {number}"));
            self.sums.push_back(self.sums.back().copied().unwrap_or(0) + number);
        }
        if wanted > 0 && stream.reader_needs_doorbell() {
            attached.queues[1].daemon_doorbell.ring();
        }
        self.added += wanted;
        (wanted, false)
    }

    fn call(&mut self, context: &Context) {
        let Some(StreamChannel { attached, .. }) = &mut self.channel else { return };
        let queue = &mut attached.queues[0];
        self.called += 1;
        let mut message = Message::ZERO;
        message.set_word(0, self.called);
        if queue.requests.publish(&message).is_err() {
            context.violated(|| format!("a call does not fit the ring, with {} in flight", self.calls.len()));
        }
        if queue.requests.reader_needs_doorbell() {
            queue.daemon_doorbell.ring();
        }
        self.calls.push_back(self.called);
    }

    fn take_replies(&mut self, context: &Context) -> u32 {
        let Some(StreamChannel { attached, .. }) = &mut self.channel else { return 0 };
        let queue = &mut attached.queues[0];
        let (mut message, mut count) = (Message::ZERO, 0);
        while !self.calls.is_empty() && queue.completions.receive(&mut message) {
            count += 1;
            queue.requests.answered();
            let (call, sum, due) = (message.word(0), message.word(1), self.calls.pop_front());
            context.say(|| format!("adder: call {call} is answered: {sum}"));
            if due != Some(call) {
                context.violated(|| format!("call {call} of the adder is answered, and {due:?} is due"));
            }
            match self.sums.iter().position(|possible| *possible == sum) {
                Some(place) => drop(self.sums.drain(..place)),
                None => context.violated(|| format!("the sum is {sum}; it may be {:?}", self.sums)),
            }
        }
        count
    }
}
