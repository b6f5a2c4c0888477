//! The conversation of two daemons in a takeover: the product's two state machines, a line between them, and faults at any step.
//! After each step at most one of them serves; at the end exactly one does, unless it has died; neither waits for ever.

use std::collections::VecDeque;
use std::time::Duration;

use fipsee_serve::takeover::{Answer, Giving, GivingStep, LineError, PacketKind, Taking, TakingStep};

use crate::course::Outcome;
use crate::rng::Rng;
use crate::variant::Variant;

/// More steps than any conversation takes.
const MAX_STEPS: u32 = 2_000;
/// Simulated time after which neither waits any more: all timeouts one after the other.
const MAX_TIME_MS: u64 = 60_000;
/// How long the old daemon waits for requests in flight.
const WAIT: Duration = Duration::from_secs(1);

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    OldDies,
    NewDies,
    /// It does nothing for so many milliseconds; 0: until the other one's deadline.
    OldStalls(u64),
    NewStalls(u64),
    /// Its next action fails.
    OldFails,
    NewFails,
    /// A packet, or an answer, that cannot be parsed arrives next.
    PacketCut,
    AnswerCut,
    /// A faulty old daemon drops, repeats, reorders or invents a packet; a faulty new one invents an answer.
    OldFaulty(usize),
    NewFaulty(usize),
}

/// The packets of the clients and virtual machines that are handed over: each is followed by its memories and records; and others.
fn draw_given(rng: &mut Rng) -> Vec<PacketKind> {
    let mut given = Vec::new();
    for client in 0..rng.below(4) as u64 {
        let (memories, records) = (rng.below(3), rng.below(3));
        given.push(PacketKind::Client { client, memories, records });
        given.extend(std::iter::repeat_n(PacketKind::Memory(client), memories));
        given.extend(std::iter::repeat_n(PacketKind::Record(client), records));
    }
    given.extend(std::iter::repeat_n(PacketKind::Late, rng.below(3)));
    given
}

fn draw_fault(rng: &mut Rng) -> (u32, Fault) {
    let stall = if rng.percent(50) { 0 } else { rng.below(15_000) as u64 };
    let fault = match rng.below(12) {
        0 | 1 => Fault::OldDies,
        2 => Fault::NewDies,
        3 => Fault::OldStalls(stall),
        4 | 5 => Fault::NewStalls(stall),
        6 => Fault::OldFails,
        7 => Fault::NewFails,
        8 => Fault::PacketCut,
        9 => Fault::AnswerCut,
        10 => Fault::OldFaulty(rng.below(9)),
        _ => Fault::NewFaulty(rng.below(3)),
    };
    (u32::try_from(rng.below(60)).unwrap_or(0), fault)
}

/// One end of the line, and the state of its daemon.
struct End<P> {
    /// What arrived and was not received; `None`: it cannot be parsed.
    unread: VecDeque<Option<P>>,
    /// This end of the line is open.
    is_open: bool,
    /// The process runs.
    lives: bool,
    /// Its workers serve.
    serves: bool,
    /// It has nothing more to do in this conversation.
    is_over: bool,
    /// Its next action fails.
    fails: bool,
    paused_until_ms: u64,
    deadline_ms: u64,
}

impl<P> End<P> {
    const fn new(serves: bool) -> Self {
        let unread = VecDeque::new();
        Self { unread, is_open: true, lives: true, serves, is_over: false, fails: false, paused_until_ms: 0, deadline_ms: 0 }
    }

    /// The outcome of an action.
    fn done(&mut self) -> Result<(), String> {
        if std::mem::take(&mut self.fails) { Err("it was to fail".to_owned()) } else { Ok(()) }
    }

    /// What a receiver finds; `None`: nothing yet.
    fn receive(&mut self, other_is_open: bool, now_ms: u64) -> Option<Result<P, LineError>> {
        match self.unread.pop_front() {
            Some(packet) => Some(packet.ok_or_else(|| LineError::Wrong("not understood".to_owned()))),
            None if !other_is_open => Some(Err(LineError::Ended)),
            None => (now_ms >= self.deadline_ms).then_some(Err(LineError::TimedOut)),
        }
    }

    /// The times at which it may go on without a packet.
    fn times(&self) -> Option<[u64; 2]> {
        (!self.is_over).then_some([self.paused_until_ms, self.deadline_ms])
    }

    fn die(&mut self) {
        (self.lives, self.is_open, self.serves, self.is_over) = (false, false, false, true);
    }

    fn end(&mut self, serves: bool) {
        (self.serves, self.is_over, self.is_open) = (serves, true, false);
    }
}

struct World {
    variant: Option<Variant>,
    rng: Rng,
    now_ms: u64,
    giving: Giving,
    old_step: GivingStep,
    old: End<Answer>,
    /// What the old one has still to send.
    to_send: VecDeque<PacketKind>,
    given: Vec<PacketKind>,
    /// The old one's end is shut down for reading.
    is_shut: bool,
    has_sent_end: bool,
    taking: Taking,
    new_step: TakingStep,
    new: End<PacketKind>,
    last: Option<PacketKind>,
    taken: Vec<PacketKind>,
    has_sent_taken: bool,
    restarts: bool,
    steps: u32,
    faults: Vec<Fault>,
    trace: Option<Vec<String>>,
    failure: Option<String>,
}

/// Play the conversation of a seed; the outcome has a line for each step if `keeps`.
pub(crate) fn play(seed: u64, variant: Option<Variant>, keeps: bool) -> Outcome {
    let mut rng = Rng::new(seed, 4);
    let planned = (0..1 + rng.below(2)).map(|_| draw_fault(&mut rng)).collect();
    let mut world = World::new(rng, variant, keeps);
    world.play(planned);
    let faults = u32::try_from(world.faults.len()).unwrap_or(0);
    Outcome { failure: world.failure, steps: world.steps, trace: world.trace.unwrap_or_default(), faults, ..Outcome::default() }
}

impl World {
    fn new(mut rng: Rng, variant: Option<Variant>, keeps: bool) -> Self {
        let given = draw_given(&mut rng);
        let ((giving, old_step), (taking, new_step)) = (Giving::begin(), Taking::begin(WAIT));
        Self {
            variant,
            rng,
            now_ms: 0,
            giving,
            old_step,
            old: End::new(true),
            to_send: VecDeque::new(),
            given,
            is_shut: false,
            has_sent_end: false,
            taking,
            new_step,
            new: End { deadline_ms: 2_000, ..End::new(false) },
            last: None,
            taken: Vec::new(),
            has_sent_taken: false,
            restarts: false,
            steps: 0,
            faults: Vec::new(),
            trace: keeps.then(Vec::new),
            failure: None,
        }
    }

    fn play(&mut self, mut planned: Vec<(u32, Fault)>) {
        self.begin_sending();
        for step in 0..MAX_STEPS {
            self.steps = step;
            while let Some(due) = planned.iter().position(|(at, _)| *at <= step) {
                self.begin(planned.swap_remove(due).1);
                self.check();
            }
            if self.failure.is_some() || !self.step() {
                break;
            }
            self.check();
        }
        self.check_end();
    }
}

impl World {
    fn say(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("takeover at {} ms: {}", self.now_ms, line()));
        }
    }

    fn violated(&mut self, what: &str) {
        self.say(|| format!("VIOLATED: {what}"));
        self.failure.get_or_insert_with(|| format!("takeover: {what}"));
    }

    fn is_broken(&self, variant: Variant) -> bool {
        self.variant == Some(variant)
    }

    fn is_faulty(&self) -> bool {
        self.faults.iter().any(|fault| matches!(fault, Fault::OldFaulty(_) | Fault::NewFaulty(_)))
    }

    fn begin(&mut self, fault: Fault) {
        self.say(|| format!("FAULT: {fault:?}"));
        self.faults.push(fault);
        let until = |ms: u64, deadline_ms: u64| if ms == 0 { deadline_ms } else { self.now_ms + ms };
        match fault {
            Fault::OldDies => self.old.die(),
            Fault::NewDies => self.new.die(),
            Fault::OldStalls(ms) => self.old.paused_until_ms = until(ms, self.new.deadline_ms),
            Fault::NewStalls(ms) => self.new.paused_until_ms = until(ms, self.old.deadline_ms),
            Fault::OldFails => self.old.fails = true,
            Fault::NewFails => self.new.fails = true,
            Fault::PacketCut => self.new.unread.push_front(None),
            Fault::AnswerCut => self.old.unread.push_front(None),
            Fault::OldFaulty(which) => self.inject_fault(which),
            Fault::NewFaulty(which) => {
                let refused = Answer::Refused { reason: "a fault".to_owned() };
                self.old.unread.push_front(Some([Answer::Prepared {}, Answer::Taken {}, refused][which].clone()));
            }
        }
    }

    fn inject_fault(&mut self, which: usize) {
        let unread = &mut self.new.unread;
        let client = 1;
        let injected = match which {
            0 => return drop(unread.pop_front()),
            1 => unread.front().cloned().flatten(),
            2 => return unread.rotate_left(1.min(unread.len())),
            3 => Some(PacketKind::Client { client, memories: 0, records: 0 }),
            4 => Some(PacketKind::Client { client, memories: usize::MAX, records: usize::MAX }),
            5 => Some(PacketKind::Record(client)),
            6 => Some(PacketKind::Prepare),
            7 => Some(PacketKind::Greeting),
            _ => Some(PacketKind::End),
        };
        unread.push_front(injected);
    }

    /// One step of one of them; `false`: both have ended.
    fn step(&mut self) -> bool {
        let runs = [self.old_may_run(), self.new_may_run()];
        match runs {
            [true, true] if self.rng.percent(50) => self.run_old(),
            [true, false] => self.run_old(),
            [_, true] => self.run_new(),
            [false, false] if self.old.is_over && self.new.is_over => return false,
            [false, false] => {
                let times = [self.old.times(), self.new.times()].into_iter().flatten().flatten();
                match times.filter(|time| *time > self.now_ms).min() {
                    Some(time) if time <= MAX_TIME_MS => self.now_ms = time,
                    _ => {
                        self.violated("one of the two waits for ever");
                        return false;
                    }
                }
            }
        }
        true
    }

    fn old_may_run(&self) -> bool {
        let waits = self.old_step == GivingStep::Receive;
        let is_due = !self.old.unread.is_empty() || !self.new.is_open || self.now_ms >= self.old.deadline_ms;
        !self.old.is_over && self.now_ms >= self.old.paused_until_ms && (!waits || is_due)
    }

    fn new_may_run(&self) -> bool {
        let waits = matches!(self.new_step, TakingStep::Receive(_));
        let is_due = !self.new.unread.is_empty() || !self.old.is_open || self.now_ms >= self.new.deadline_ms;
        !self.new.is_over && self.now_ms >= self.new.paused_until_ms && (!waits || is_due)
    }

    /// What the step of the old one is to send, if it is to send something.
    fn begin_sending(&mut self) {
        let (all, timeout) = match &self.old_step {
            GivingStep::Share(timeout) => {
                let shared = std::iter::repeat_n(PacketKind::Shared, self.rng.below(4));
                (std::iter::once(PacketKind::Greeting).chain(shared).chain([PacketKind::Prepare]).collect(), *timeout)
            }
            GivingStep::Give(timeout) => (self.given.iter().cloned().chain([PacketKind::End]).collect(), *timeout),
            _ => return,
        };
        self.to_send = all;
        self.old.deadline_ms = self.now_ms + u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
    }

    fn run_old(&mut self) {
        let step = std::mem::replace(&mut self.old_step, GivingStep::Receive);
        self.say(|| format!("old: {step:?}"));
        self.old_step = match step {
            GivingStep::Share(_) | GivingStep::Give(_) => match self.send_next() {
                Ok(true) => step,
                Ok(false) => self.giving.done(Ok(())),
                Err(reason) => {
                    self.to_send.clear();
                    self.giving.done(Err(reason))
                }
            },
            GivingStep::Receive => {
                let received = self.old.receive(self.new.is_open, self.now_ms);
                self.giving.received(received.unwrap_or(Err(LineError::TimedOut)))
            }
            GivingStep::Hold => self.giving.done(self.old.done()),
            GivingStep::Quiesce => {
                let done = self.old.done();
                self.old.serves = done.is_err();
                self.giving.done(done)
            }
            GivingStep::Withdraw => {
                self.is_shut |= !self.is_broken(Variant::WithdrawnWithoutShutdown);
                let looks = !self.is_broken(Variant::WithdrawnWithoutLook);
                let found = if looks { self.old.receive(self.new.is_open, u64::MAX) } else { None };
                self.giving.received(found.unwrap_or(Err(LineError::TimedOut)))
            }
            GivingStep::Resume(reason) => {
                self.new.unread.push_back(Some(PacketKind::Refused(reason)));
                self.old.end(true);
                return;
            }
            GivingStep::Leave => return self.old.end(false),
        };
        if self.to_send.is_empty() {
            self.begin_sending();
        }
    }

    /// Send the next packet. Is there a further one?
    fn send_next(&mut self) -> Result<bool, String> {
        self.old.done()?;
        if !self.new.is_open {
            return Err(LineError::Ended.describe("it was sent"));
        }
        let Some(packet) = self.to_send.pop_front() else { return Ok(false) };
        self.has_sent_end |= packet == PacketKind::End;
        self.new.unread.push_back(Some(packet));
        Ok(!self.to_send.is_empty())
    }

    fn run_new(&mut self) {
        let step = std::mem::replace(&mut self.new_step, TakingStep::Restart);
        self.say(|| format!("new: {step:?}"));
        self.new_step = match step {
            TakingStep::Receive(_) => {
                self.last = self.new.unread.front().cloned().flatten();
                let received = self.new.receive(self.old.is_open, self.now_ms);
                self.taking.received(received.unwrap_or(Err(LineError::TimedOut)))
            }
            TakingStep::Take => {
                let is_given = |kind: &PacketKind| {
                    use PacketKind::{Client, Late, Memory, Record};
                    matches!(kind, Client { .. } | Memory(_) | Record(_) | Late)
                };
                self.taken.extend(self.last.take().filter(is_given));
                self.taking.done(self.new.done())
            }
            TakingStep::Send(answer, _) => self.answer(answer),
            TakingStep::Serve => return self.new.end(true),
            TakingStep::Refuse(reason) => {
                self.old.unread.push_back(Some(Answer::Refused { reason }).filter(|_| !self.is_shut));
                return self.new.end(false);
            }
            TakingStep::Restart => {
                self.restarts = true;
                return self.new.end(false);
            }
        };
        if let TakingStep::Receive(timeout) = &self.new_step {
            self.new.deadline_ms = self.now_ms + u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        }
    }

    fn answer(&mut self, answer: Answer) -> TakingStep {
        if !self.old.is_open || self.is_shut {
            let unheard = answer == Answer::Taken {} && self.is_broken(Variant::ServedUnheard);
            return self.taking.sent(if unheard { Ok(()) } else { Err(LineError::Ended) });
        }
        self.has_sent_taken |= answer == Answer::Taken {};
        self.old.unread.push_back(Some(answer));
        self.taking.sent(Ok(()))
    }

    fn check(&mut self) {
        if self.old.is_over && self.old.lives && !self.old.serves && !self.has_sent_end {
            self.violated("the old daemon has left, and had not handed over everything");
        }
        if self.is_faulty() {
            return;
        }
        if self.old.serves && (self.new.serves || self.has_sent_taken) {
            self.violated("the old daemon serves, and the new one does, too, or has said so");
        }
        if self.new.serves && self.taken != self.given {
            self.violated("the new daemon serves, and has not what it was given");
        }
        if self.new.serves && self.old.lives && !self.has_sent_taken {
            self.violated("the new daemon serves, and the old one does not know it");
        }
    }

    fn check_end(&mut self) {
        if self.failure.is_some() {
            return;
        }
        if !self.old.is_over || !self.new.is_over {
            return self.violated("the conversation does not end");
        }
        if self.is_faulty() || self.old.serves || self.new.serves || self.restarts {
            return;
        }
        if self.old.lives && !self.has_sent_taken {
            return self.violated("the old daemon runs and does not serve, and the other has not taken over");
        }
        // A fault of another kind may have ended the new one's attempt before the old one was killed.
        let has_reasons = self.faults.iter().any(|fault| !matches!(fault, Fault::OldDies | Fault::NewDies));
        if self.new.lives && !has_reasons {
            self.violated("the old daemon was killed, and the new one neither serves nor starts afresh");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_fault_the_new_daemon_serves() {
        for seed in 0..50 {
            let mut world = World::new(Rng::new(seed, 4), None, false);
            world.play(Vec::new());
            assert_eq!(world.failure, None, "seed {seed}");
            assert!(world.new.serves && !world.old.serves && world.taken == world.given, "seed {seed}");
        }
    }
}
