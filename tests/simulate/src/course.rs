//! How a lifetime goes on: which actor is next, what time it is, and which fault is due.

use std::time::{Duration, Instant};

use crate::context::Context;
use crate::moves::Tally;
use crate::rng::Rng;
use crate::script::{Kind, Planned, Script};

/// Steps of the longest lifetime that gets anywhere: some twenty times the usual.
const MAX_STEPS: u32 = 20_000;
/// Simulated time after which nothing is waited for.
const MAX_TIME_US: u64 = 120_000_000;

/// What became of a lifetime.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What was violated.
    pub failure: Option<String>,
    /// Steps that were made.
    pub steps: u32,
    /// Requests that were made.
    pub made: u32,
    /// Requests that were answered.
    pub requests: u32,
    /// A line for each step, if it was asked for.
    pub trace: Vec<String>,
    /// The scheduler's choices, if they were to be kept.
    pub choices: Vec<u8>,
    /// The faults that took effect.
    pub faults: u32,
    /// Moves of queues between workers.
    pub moves: Tally,
    /// Frames that ports received.
    pub frames: u32,
}

/// The scheduler, the clock and the planned faults.
pub(crate) struct Course<'a, K: Kind> {
    script: &'a Script<K>,
    rng: Rng,
    choices: Option<Vec<u8>>,
    chosen: usize,
    start: Instant,
    /// Simulated time.
    pub now_us: u64,
    /// Steps so far.
    pub steps: u32,
    next_fault: usize,
    /// Faults that took effect: one that is due may find nothing to break.
    effective: u32,
    /// The step at which the next fault had as many answers as it waits for.
    answered_at: Option<u32>,
}

impl<'a, K: Kind> Course<'a, K> {
    /// At the start; `keeps`: the choices are wanted.
    pub(crate) fn new(script: &'a Script<K>, keeps: bool) -> Self {
        Self {
            script,
            rng: Rng::new(script.schedule, 3),
            choices: keeps.then(Vec::new),
            chosen: 0,
            start: Instant::now(),
            now_us: 0,
            steps: 0,
            next_fault: 0,
            effective: 0,
            answered_at: None,
        }
    }

    /// The simulated time, for the product.
    pub(crate) fn now(&self) -> Instant {
        self.start + Duration::from_micros(self.now_us)
    }

    /// One of 0 to `count - 1`.
    pub(crate) fn choose(&mut self, count: usize) -> usize {
        self.chosen += 1;
        let choice = match &self.script.choices {
            None => self.rng.below(count),
            // Every actor has its turn when the choices are used up.
            Some(choices) => choices.get(self.chosen - 1).map_or(self.chosen, |choice| usize::from(*choice)) % count,
        };
        if let Some(kept) = &mut self.choices {
            kept.push(u8::try_from(choice).unwrap_or(u8::MAX));
        }
        choice
    }

    /// An actor that may run, and one that has not been asked in vain.
    pub(crate) fn pick<A: Copy>(&mut self, candidates: &mut Vec<A>, mut may_run: impl FnMut(A) -> bool) -> Option<A> {
        while !candidates.is_empty() {
            let actor = candidates.swap_remove(self.choose(candidates.len()));
            if may_run(actor) {
                return Some(actor);
            }
        }
        None
    }

    /// The next step; `false`: the lifetime does not end.
    pub(crate) fn advance(&mut self, context: &Context) -> bool {
        self.steps += 1;
        self.now_us += 1;
        let is_endless = self.steps > MAX_STEPS || self.now_us > MAX_TIME_US;
        if is_endless {
            context.violated(|| format!("after {} steps and {} us the lifetime has not ended", self.steps, self.now_us));
        }
        !is_endless
    }

    /// No actor can go on before this time.
    pub(crate) fn sleep_until(&mut self, context: &Context, until_us: u64) {
        context.say(|| format!("time: {} us", until_us.saturating_sub(self.now_us)));
        self.now_us = self.now_us.max(until_us);
    }

    /// The fault that is due after so many answered requests.
    pub(crate) fn due(&mut self, context: &Context, completed: u32) -> Option<Planned<K::Fault>> {
        let planned = *self.script.faults.get(self.next_fault)?;
        if completed < planned.answered {
            return None;
        }
        let since = *self.answered_at.get_or_insert(self.steps);
        if self.steps < since + planned.steps {
            return None;
        }
        (self.answered_at, self.next_fault) = (None, self.next_fault + 1);
        context.say(|| format!("FAULT: {:?} ({})", planned.fault, planned.victim));
        Some(planned)
    }

    /// The fault that was due has done something, or nothing. `true`: nothing has gone wrong so far, and the daemon is to be killed
    /// instead, which always does something.
    pub(crate) fn begun(&mut self, context: &Context, has_effect: bool) -> bool {
        let is_needed = !has_effect && self.effective == 0;
        self.effective += u32::from(has_effect || is_needed);
        if !has_effect {
            context.say(|| format!("it has no effect{}", if is_needed { ": the daemon is killed instead" } else { "" }));
        }
        is_needed
    }

    /// How it ended.
    pub(crate) fn outcome(self, context: &Context, (made, requests): (u32, u32)) -> Outcome {
        let (steps, faults) = (self.steps, self.effective);
        let (failure, trace, choices) = (context.verdict(), context.take_trace(), self.choices.unwrap_or_default());
        let (moves, frames) = (context.moves().tally, context.lan().received);
        Outcome { failure, steps, made, requests, trace, choices, faults, moves, frames }
    }
}
