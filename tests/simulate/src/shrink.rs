//! From a failing lifetime to the shortest one found that fails, too.

use crate::course::Outcome;
use crate::script::{Kind, Script};
use crate::variant::Variant;

/// Lifetimes played at most.
const MAX_PLAYS: u32 = 8000;

/// Orders of steps tried for each lifetime that leaves something out.
const ORDERS: u64 = 25;

/// What is left, and how it ends.
pub struct Shrunk {
    /// The lifetime: its layout and its faults.
    pub script: String,
    /// With its trace.
    pub outcome: Outcome,
    /// Played again.
    pub again: Outcome,
}

struct Shrinker<K: Kind> {
    variant: Option<Variant>,
    script: Script<K>,
    outcome: Outcome,
    plays: u32,
}

/// Drop faults, clients, requests and choices of the scheduler as long as it fails. `None`: it does not fail.
pub fn shrink<K: Kind>(script: &Script<K>, variant: Option<Variant>) -> Option<Shrunk> {
    let outcome = K::play(script, variant, true);
    outcome.failure.as_ref()?;
    let mut shrinker = Shrinker { variant, script: script.clone(), outcome, plays: 0 };
    loop {
        let steps = shrinker.outcome.steps;
        shrinker.drop_faults();
        shrinker.simplify_layout();
        shrinker.hasten_faults();
        shrinker.drop_requests();
        shrinker.drop_choices();
        if shrinker.outcome.steps == steps {
            let Shrinker { script, outcome, .. } = shrinker;
            let again = K::play(&script, variant, true);
            let script = format!("{:?}, {} requests, faults {:?}", script.layout, script.requests, script.faults);
            return Some(Shrunk { script, outcome, again });
        }
    }
}

/// What was violated, without its numbers.
fn kind_of(outcome: &Outcome) -> Option<String> {
    outcome.failure.as_ref().map(|text| text.chars().filter(|character| !character.is_ascii_hexdigit()).collect())
}

impl<K: Kind> Shrinker<K> {
    /// Is this shorter, and does it fail in the same way?
    fn try_one(&mut self, script: Script<K>) -> bool {
        if self.plays == MAX_PLAYS {
            return false;
        }
        self.plays += 1;
        let outcome = K::play(&script, self.variant, true);
        let is_better = outcome.steps <= self.outcome.steps && kind_of(&outcome) == kind_of(&self.outcome);
        if is_better {
            (self.script, self.outcome) = (script, outcome);
        }
        is_better
    }

    /// Likewise, in one of several orders of steps: what is left out has changed the order anyway.
    fn try_orders(&mut self, script: &Script<K>) -> bool {
        (0..ORDERS).any(|order| {
            let schedule = script.seed.wrapping_add(order);
            self.try_one(Script { schedule, choices: None, ..script.clone() })
        })
    }

    fn drop_faults(&mut self) {
        let mut index = 0;
        while index < self.script.faults.len() {
            let mut script = self.script.clone();
            script.faults.remove(index);
            if !self.try_orders(&script) {
                index += 1;
            }
        }
    }

    fn simplify_layout(&mut self) {
        while self.script.layout.simpler().into_iter().any(|layout| {
            let script = Script { layout, ..self.script.clone() };
            self.try_orders(&script)
        }) {}
    }

    /// Have what goes wrong go wrong sooner.
    fn hasten_faults(&mut self) {
        for index in 0..self.script.faults.len() {
            loop {
                let mut script = self.script.clone();
                let planned = &mut script.faults[index];
                (planned.answered, planned.steps) = (planned.answered / 2, planned.steps / 2);
                if script.faults == self.script.faults || !self.try_orders(&script) {
                    break;
                }
            }
        }
    }

    /// Leave out requests before and after those that matter, large pieces first.
    fn drop_requests(&mut self) {
        let mut piece = self.script.requests / 2;
        while piece > 0 {
            let (mut later, mut fewer) = (self.script.clone(), self.script.clone());
            later.first += piece;
            later.faults.iter_mut().for_each(|planned| planned.answered = planned.answered.saturating_sub(piece));
            fewer.requests = fewer.requests.saturating_sub(piece).max(1);
            let mut both = later.clone();
            both.requests = fewer.requests;
            let is_less = fewer.requests < self.script.requests;
            if !is_less || !(self.try_orders(&both) || self.try_orders(&fewer)) {
                piece /= 2;
            }
        }
    }

    /// Cut pieces out of the scheduler's choices, large ones first; after the last, every actor has its turn.
    fn drop_choices(&mut self) {
        let mut piece = self.outcome.choices.len().next_power_of_two();
        while piece > 0 {
            let mut start = 0;
            while start < self.choices().len() {
                let mut choices = self.choices();
                let end = (start + piece).min(choices.len());
                choices.drain(start..end);
                let script = Script { choices: Some(choices), ..self.script.clone() };
                if !self.try_one(script) {
                    start += piece;
                }
            }
            piece /= 2;
        }
    }

    fn choices(&self) -> Vec<u8> {
        self.script.choices.clone().unwrap_or_else(|| self.outcome.choices.clone())
    }
}
