//! A client that calls: the product's end of the channel, and the handshake packet by packet.

use std::collections::VecDeque;

use fipsee_call::raw::RawClient;
use fipsee_call::{ConnectOptions, PROFILE, SERVICE_CALLS, WaitMode};
use fipsee_ring::Message;
use fipsee_ring::control::{Control, Refusal, RefusalCode, Wanted};

use super::Calls;
use super::ledger::{Ledger, reply_to};
use super::server::{NAME, NO_CALL};
use crate::context::Context;
use crate::link::{Awake, Down, Link, Up, is_rung, open};
use crate::rng::Rng;

/// A client that is refused, or has lost its server, tries again after so long.
const RETRY_US: u64 = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Not connected before this time.
    Away(u64),
    Greeting,
    Attaching,
    Running,
    /// It asked for the end.
    Detaching,
    /// It has found the server gone, and waits for its connection to say so.
    Losing,
    Ended,
}

pub(super) struct CallClient {
    pub(super) stage: Stage,
    pub(super) link: usize,
    depth: u32,
    end: usize,
    index: usize,
    raw: Option<RawClient>,
    /// Its number at the server, which every reply names.
    session: u64,
    /// Calls without a reply, oldest first.
    due: VecDeque<u64>,
    awake: Awake,
    is_stirred: bool,
    pub(super) sends_nonsense: bool,
    pub(super) may_be_refused: bool,
    pub(super) may_be_drained: bool,
}

impl CallClient {
    pub(super) const fn new(layout: &Calls, index: usize) -> Self {
        Self {
            stage: Stage::Away(0),
            link: index,
            depth: layout.depth,
            end: layout.end,
            index,
            raw: None,
            session: 0,
            due: VecDeque::new(),
            awake: Awake::Yes,
            is_stirred: true,
            sends_nonsense: false,
            may_be_refused: false,
            may_be_drained: false,
        }
    }

    /// Calls without a reply.
    pub(super) fn due(&self) -> usize {
        self.due.len()
    }

    /// An actor that may have rung has run.
    pub(super) const fn stir(&mut self) {
        self.is_stirred = true;
    }

    /// When it goes on by itself.
    pub(super) const fn wakes_at(&self) -> Option<u64> {
        if let Stage::Away(until) = self.stage { Some(until) } else { None }
    }

    /// May it be scheduled?
    pub(super) fn may_run(&mut self, links: &[Link], now_us: u64) -> bool {
        match self.stage {
            Stage::Ended => false,
            _ if !links[self.link].down.is_empty() => true,
            Stage::Away(until) => now_us >= until,
            Stage::Running if self.awake == Awake::No => {
                std::mem::take(&mut self.is_stirred) && self.raw.as_ref().is_some_and(is_rung)
            }
            Stage::Running => true,
            _ => false,
        }
    }

    /// One step.
    pub(super) fn run(&mut self, context: &Context, ledger: &mut Ledger, link: &mut Link, rng: &mut Rng, now_us: u64) {
        if let Some(down) = link.down.pop_front() {
            return self.take(context, ledger, link, down, now_us);
        }
        match self.stage {
            Stage::Away(_) if ledger.is_used_up() => self.stage = Stage::Ended,
            Stage::Away(_) => {
                link.greet(0, 0);
                (self.stage, self.may_be_drained) = (Stage::Greeting, false);
                context.say(|| format!("caller {}: connects", self.index));
            }
            Stage::Running => self.work(context, ledger, link, rng),
            _ => {}
        }
    }

    fn take(&mut self, context: &Context, ledger: &mut Ledger, link: &mut Link, down: Down, now_us: u64) {
        context.say(|| format!("caller {}: takes {down:?}", self.index));
        match (down, self.stage) {
            (Down::Packet(Control::Welcome { .. }, _), Stage::Greeting) => {
                let (name, depth) = (NAME.to_owned(), self.depth);
                let (service, queue_count, flags, pool_bytes) = (SERVICE_CALLS, 1, 0, 0);
                link.send(&Control::Attach(Wanted { service, queue_count, depth, flags, pool_bytes, name }));
                self.stage = Stage::Attaching;
            }
            (Down::Packet(Control::Attached { region_bytes, service_info, .. }, files), Stage::Attaching) => {
                let options = ConnectOptions { depth: self.depth, wait: WaitMode::Sleep, ..ConnectOptions::default() };
                match RawClient::over(open(&PROFILE, region_bytes, service_info, files), &options) {
                    Ok(raw) => {
                        (self.raw, self.stage, self.awake) = (Some(raw), Stage::Running, Awake::Yes);
                        self.session = link.attached_as.unwrap_or(0);
                    }
                    Err(error) => context.violated(|| format!("the client cannot attach: {error}")),
                }
            }
            (Down::Packet(Control::Refused(Refusal { code: RefusalCode::Malformed, text }), _), _) if !self.may_be_refused => {
                context.violated(|| format!("the client is refused, and nothing was wrong with its packets: {text}"));
            }
            (Down::Packet(Control::Refused(_), _), _) => {}
            (Down::Packet(Control::Detached, _), stage) => {
                self.reap(context, ledger);
                // What is published beside a drain may come too late.
                if !self.due.is_empty() && !self.may_be_drained {
                    let due = self.due.len();
                    context.violated(|| format!("the client is detached, and {due} of its calls are not answered"));
                }
                if stage == Stage::Detaching && self.due.is_empty() {
                    (self.stage, self.raw) = (Stage::Ended, None);
                }
            }
            (Down::Packet(message, _), stage) => {
                context.violated(|| format!("the client receives {message:?} while {stage:?}"));
            }
            (Down::Closed, Stage::Ended) => {}
            (Down::Closed, _) => {
                self.reap(context, ledger);
                self.lose(ledger);
                self.stage = Stage::Away(now_us + RETRY_US);
            }
        }
    }

    fn lose(&mut self, ledger: &mut Ledger) {
        self.due.drain(..).for_each(|call| ledger.lose(call));
        self.raw = None;
    }

    fn work(&mut self, context: &Context, ledger: &mut Ledger, link: &mut Link, rng: &mut Rng) {
        let Some(raw) = &mut self.raw else { return };
        match self.awake {
            Awake::Drowsy => {
                let remains = raw.arm_and_reply_is_there();
                context.say(|| format!("caller {}: {}", self.index, if remains { "stays awake" } else { "sleeps" }));
                (self.awake, self.is_stirred) = (if remains { Awake::Yes } else { Awake::No }, true);
                return;
            }
            Awake::No => {
                self.awake = Awake::Yes;
                if let Err(error) = raw.woken() {
                    context.say(|| format!("caller {}: finds the server gone: {error}", self.index));
                    self.stage = Stage::Losing;
                }
                return;
            }
            Awake::Yes => {}
        }
        let reaped = self.reap(context, ledger);
        if context.has_failed() || self.stage != Stage::Running {
            return;
        }
        let started = self.start_some(context, ledger, rng);
        if ledger.is_used_up() && started == 0 {
            if self.end == 2 {
                context.say(|| format!("caller {}: hangs up, {} calls due", self.index, self.due.len()));
                link.up.push_back(Up::Gone);
                self.lose(ledger);
                self.stage = Stage::Ended;
                return;
            }
            if self.end == 1 || self.due.is_empty() {
                context.say(|| format!("caller {}: detaches, {} calls due", self.index, self.due.len()));
                link.send(&Control::Detach);
                self.stage = Stage::Detaching;
                return;
            }
        }
        if reaped + started == 0 {
            self.awake = Awake::Drowsy;
        }
    }

    fn start_some(&mut self, context: &Context, ledger: &mut Ledger, rng: &mut Rng) -> usize {
        let Some(raw) = &mut self.raw else { return 0 };
        let free = (raw.depth() - raw.outstanding()) as usize;
        let wanted = if self.due.is_empty() { rng.below(free) + 1 } else { rng.below(free + 1) };
        let mut started = 0;
        while started < wanted.min(free) && !ledger.is_used_up() {
            let mut message = Message::ZERO;
            if std::mem::take(&mut self.sends_nonsense) {
                self.may_be_refused = true;
                message.set_word(1, NO_CALL);
            }
            let call = ledger.start();
            message.set_word(0, call);
            let filled = raw.request_payload().and_then(|payload| match payload.length_bytes() {
                0 => Ok(()),
                _ => payload.write(0, &call.to_le_bytes()),
            });
            if let Err(error) = filled.and_then(|()| raw.start(&message)) {
                context.violated(|| format!("a call cannot be started with {free} of its places free: {error}"));
                return started;
            }
            self.due.push_back(call);
            started += 1;
        }
        raw.submit();
        if started > 0 {
            context.say(|| format!("caller {}: {started} calls, up to {:?}", self.index, self.due.back()));
        }
        started
    }

    fn reap(&mut self, context: &Context, ledger: &mut Ledger) -> usize {
        let Some(raw) = &mut self.raw else { return 0 };
        let (mut reply, mut count) = (Message::ZERO, 0);
        loop {
            match raw.poll(&mut reply) {
                Ok(false) => return count,
                Ok(true) => {}
                Err(error) => {
                    context.say(|| format!("caller {}: finds the server gone: {error}", self.index));
                    self.stage = if self.stage == Stage::Running { Stage::Losing } else { self.stage };
                    return count;
                }
            }
            count += 1;
            let Some(call) = self.due.pop_front() else {
                context.violated(|| format!("there is a reply {} and no call", reply.word(0)));
                return count;
            };
            ledger.answer(context, call);
            let expected = reply_to(call, self.session);
            let mut payload = [0; 8];
            let is_other = raw.reply_payload(0).read(0, &mut payload).is_err() || payload != expected.to_le_bytes();
            if raw.info().reply_payload_bytes > 0 && is_other {
                context.violated(|| format!("the payload of call {call} holds {payload:x?} instead of {expected:x}"));
            }
            if reply.word(0) != expected {
                context.violated(|| format!("call {call} is answered with {:x} instead of {expected:x}", reply.word(0)));
            }
        }
    }

    /// The process ends without DETACH; another goes on in its place, at a new connection.
    pub(super) fn die(&mut self, ledger: &mut Ledger, link: &mut Link, next_link: usize, now_us: u64) {
        link.up.push_back(Up::Gone);
        self.lose(ledger);
        (self.link, self.stage) = (next_link, Stage::Away(now_us));
    }
}
