//! From a failing lifetime to the shortest one found that fails, too.

use crate::script::Script;
use crate::variant::Variant;
use crate::world::{Outcome, play};

/// Lifetimes played at most.
const MAX_PLAYS: u32 = 4000;

/// What is left, and how it ends.
pub struct Shrunk {
    /// The lifetime.
    pub script: Script,
    /// With its trace.
    pub outcome: Outcome,
}

struct Shrinker {
    variant: Option<Variant>,
    best: Shrunk,
    plays: u32,
}

/// Drop faults, requests and choices of the scheduler as long as it fails. `None`: it does not fail.
#[must_use]
pub fn shrink(script: &Script, variant: Option<Variant>) -> Option<Shrunk> {
    let outcome = play(script, variant, true);
    outcome.failure.as_ref()?;
    let best = Shrunk { script: script.clone(), outcome };
    let mut shrinker = Shrinker { variant, best, plays: 0 };
    shrinker.drop_faults();
    shrinker.drop_requests();
    shrinker.drop_choices();
    shrinker.drop_faults();
    shrinker.drop_requests();
    shrinker.drop_choices();
    Some(shrinker.best)
}

impl Shrinker {
    fn try_one(&mut self, script: Script) -> bool {
        if self.plays == MAX_PLAYS {
            return false;
        }
        self.plays += 1;
        let outcome = play(&script, self.variant, true);
        let is_better = outcome.failure.is_some() && outcome.steps <= self.best.outcome.steps;
        if is_better {
            self.best = Shrunk { script, outcome };
        }
        is_better
    }

    fn drop_faults(&mut self) {
        let mut index = 0;
        while index < self.best.script.faults.len() {
            let mut script = self.best.script.clone();
            script.faults.remove(index);
            if !self.try_one(script) {
                index += 1;
            }
        }
        for index in 0..self.best.script.faults.len() {
            // Earlier is shorter.
            for _ in 0..7 {
                let mut script = self.best.script.clone();
                script.faults[index].answered /= 2;
                if script.faults == self.best.script.faults || !self.try_one(script) {
                    break;
                }
            }
        }
    }

    fn drop_requests(&mut self) {
        let mut step = self.best.script.habits.requests / 2;
        while step > 0 {
            let mut script = self.best.script.clone();
            script.habits.requests = script.habits.requests.saturating_sub(step).max(1);
            if script.habits.requests == self.best.script.habits.requests || !self.try_one(script) {
                step /= 2;
            }
        }
    }

    /// Cut pieces out of the scheduler's choices, large ones first; what follows the last is that everybody has its turn.
    fn drop_choices(&mut self) {
        let mut piece = self.best.outcome.choices.len().next_power_of_two();
        while piece > 0 {
            let mut start = 0;
            while start < self.choices().len() {
                let mut choices = self.choices();
                let end = (start + piece).min(choices.len());
                choices.drain(start..end);
                let script = Script { choices: Some(choices), ..self.best.script.clone() };
                if !self.try_one(script) {
                    start += piece;
                }
            }
            piece /= 2;
        }
    }

    fn choices(&self) -> Vec<u8> {
        self.best.script.choices.clone().unwrap_or_else(|| self.best.outcome.choices.clone())
    }
}
