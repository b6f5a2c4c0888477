//! A server of calls: its sessions, and workers that run when the scheduler says so.

use std::sync::Arc;
use std::time::Instant;

use fipsee_call::raw::{RawServer, RawWorker, Serving, Taken, Turns};
use fipsee_call::{ServerOptions, WaitMode};
use fipsee_ring::Message;
use fipsee_ring::tuning::Tuning;

use super::ledger::{Ledger, reply_to};
use crate::context::Context;
use crate::link::{Awake, Link, Transport};
use crate::variant::Variant;

/// The name of the service.
pub(super) const NAME: &str = "calls";
/// In the second word of a message that is no call.
pub(super) const NO_CALL: u64 = 1;

/// Bytes of a request: two words. Of a reply: one.
const SIZES_BYTES: (u32, u32) = (16, 8);

/// One thread that answers calls.
pub(super) struct CallWorker {
    raw: RawWorker,
    awake: Awake,
    is_stirred: bool,
    idle: u32,
    /// The call that was taken, and the steps that it still takes.
    taken: Option<(Message, u32)>,
    /// Calls that were answered and not carried out, which only a known-bad variant has.
    due: Vec<u64>,
    has_stopped: bool,
}

pub(super) struct CallServer {
    pub(super) transport: Transport<Turns, Serving>,
    pub(super) workers: Vec<CallWorker>,
    server: RawServer,
    context: Arc<Context>,
    /// Steps that each call takes.
    pub(super) call_steps: u32,
}

impl CallServer {
    pub(super) fn new(context: &Arc<Context>, workers: usize, depth: u32, payload_bytes: u32) -> Self {
        let options = ServerOptions {
            max_depth: depth,
            request_payload_bytes: payload_bytes,
            reply_payload_bytes: payload_bytes,
            wait: WaitMode::Sleep,
            allow: Some(Box::new(|_| true)),
            // Not those that were measured where it runs: a seed means the same on every machine.
            choices: Tuning::default().to_choices(),
            ..ServerOptions::default()
        };
        let (server, serving) = RawServer::without_socket(NAME, SIZES_BYTES, options).expect("a possible service");
        let transport = Transport::new(context, serving);
        let (context, workers_wanted) = (Arc::clone(context), workers);
        let mut server = Self { transport, workers: Vec::new(), server, context, call_steps: 0 };
        (0..workers_wanted).for_each(|_| server.add_worker());
        server.transport.take_reports(&mut []);
        server
    }

    fn add_worker(&mut self) {
        let raw = self.server.worker().expect("descriptors");
        self.workers.push(CallWorker {
            raw,
            awake: Awake::Yes,
            is_stirred: true,
            idle: 0,
            taken: None,
            due: Vec::new(),
            has_stopped: false,
        });
    }

    /// A thread ends during its work, and another begins.
    pub(super) fn replace_worker(&mut self, index: usize) {
        if !self.is_stopping() {
            drop(self.workers.remove(index % self.workers.len()));
            self.add_worker();
        }
    }

    /// Let all clients finish, then end.
    pub(super) fn stop(&mut self, links: &mut [Link]) {
        self.server.stopper().stop();
        self.transport.take_reports(links);
    }

    /// Is there something for the thread that has the clients?
    pub(super) fn has_reports(&self) -> bool {
        self.transport.has_reports() || self.transport.sessions.host.has_events()
    }

    /// Take it.
    pub(super) fn take_reports(&mut self, links: &mut [Link], now: Instant) {
        self.transport.take_reports(links);
        self.transport.tick(links, now);
    }

    /// It was to stop, and has no client any more.
    pub(super) fn has_stopped(&self) -> bool {
        self.is_stopping() && self.transport.sessions.is_empty()
    }

    /// Does it refuse every new client?
    pub(super) const fn is_stopping(&self) -> bool {
        self.transport.sessions.host.ending.is_some()
    }

    /// An actor that may have rung has run.
    pub(super) fn stir(&mut self) {
        self.workers.iter_mut().for_each(|worker| worker.is_stirred = true);
    }

    /// May this worker be scheduled?
    pub(super) fn may_run(&mut self, index: usize) -> bool {
        let worker = &mut self.workers[index];
        if worker.has_stopped {
            return false;
        }
        if worker.awake == Awake::No && std::mem::take(&mut worker.is_stirred) && worker.raw.runtime().sleep(Some(0)) {
            self.context.say(|| format!("worker {index}: wakes"));
            worker.awake = Awake::Yes;
        }
        worker.awake != Awake::No
    }

    /// A step of a worker: it takes a call, works on it, or answers it; or it goes from looking to sleeping.
    pub(super) fn run(&mut self, index: usize, idle_passes: u32, ledger: &mut Ledger) {
        let (worker, context) = (&mut self.workers[index], &self.context);
        if worker.awake == Awake::Drowsy {
            let remains = !worker.raw.runtime().nothing_remains_after_arming();
            let sleeps = !remains || context.is_broken(Variant::SleepWithoutLook);
            context.say(|| format!("worker {index}: {}", if sleeps { "sleeps" } else { "stays awake" }));
            (worker.awake, worker.is_stirred) = (if sleeps { Awake::No } else { Awake::Yes }, true);
            return;
        }
        worker.due.drain(..).for_each(|call| ledger.carry_out(context, call));
        if let Some((message, left)) = worker.taken.take() {
            if left > 0 {
                worker.taken = Some((message, left - 1));
                return;
            }
            return answer(context, ledger, worker, index, &message);
        }
        let mut message = Message::ZERO;
        match worker.raw.take(&mut message, Some(0)) {
            Taken::Call => {
                context.say(|| format!("worker {index}: takes call {}", message.word(0)));
                (worker.idle, worker.taken) = (0, Some((message, self.call_steps)));
            }
            Taken::TimedOut => {
                worker.idle += 1;
                if worker.idle > idle_passes {
                    worker.awake = Awake::Drowsy;
                }
            }
            Taken::Stopped => worker.has_stopped = true,
        }
    }

    /// What must be so after the last client: workers that are to stop do.
    pub(super) fn check_stop(&mut self, links: &mut [Link]) {
        self.transport.take_reports(links);
        self.transport.sessions.host.stop_workers();
        let mut message = Message::ZERO;
        let mut ends = |worker: &mut CallWorker| {
            worker.has_stopped || worker.taken.is_none() && worker.raw.take(&mut message, Some(0)) == Taken::Stopped
        };
        if !self.workers.iter_mut().all(&mut ends) {
            self.context.violated(|| "workers that are to stop take calls instead".to_owned());
        }
    }
}

fn answer(context: &Context, ledger: &mut Ledger, worker: &mut CallWorker, index: usize, message: &Message) {
    let number = message.word(0);
    if message.word(1) == NO_CALL {
        context.say(|| format!("worker {index}: refuses what is no call"));
        return worker.raw.refuse("a message is no call");
    }
    let Some(call) = worker.raw.call() else {
        return context.violated(|| "a call that was taken belongs to no client".to_owned());
    };
    if context.is_broken(Variant::AnsweredFirst) && number.is_multiple_of(8) {
        worker.due.push(number);
    } else {
        ledger.carry_out(context, number);
    }
    let reply = reply_to(number, call.client);
    let mut payload = [0; 8];
    let has_payload = call.request_payload.length_bytes() > 0;
    if has_payload && (call.request_payload.read(0, &mut payload).is_err() || payload != number.to_le_bytes()) {
        context.violated(|| format!("the payload of call {number} is another's: {payload:x?}"));
    }
    if has_payload {
        let _ = call.reply_payload.write(0, &reply.to_le_bytes());
    }
    let mut message = Message::ZERO;
    message.set_word(0, reply);
    context.say(|| format!("worker {index}: answers call {number}"));
    worker.raw.reply(&message);
}
