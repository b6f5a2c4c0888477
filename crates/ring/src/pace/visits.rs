//! How many requests an answerer takes in a visit, and when it visits next, by what its visits have found.

use super::AnswererPace;
use crate::mapped::MappedRing;
use crate::ring::{Reader, Writer};

/// Most requests taken from one queue before the next is looked at. Other queues wait for no longer than this; bursts cost
/// half of what single requests do.
pub const MAX_BUDGET: u32 = 14;
/// After this many visits in a row that found a single request, the client calls and waits for the reply.
const LONE_VISITS_OF_CALLS: u32 = 4;
/// Then only one visit in this many looks for a second request, at the cost of a line transfer.
const VISITS_PER_LOOK_AHEAD: u32 = 16;

/// The visits to one queue.
///
/// The budget starts at 1, doubles after a full visit and falls to a quarter after a short one: looking ahead costs a line
/// transfer when nothing can be there.
#[derive(Debug)]
pub struct Visits {
    budget: u32,
    /// Visits in a row that found a single request.
    lone: u32,
    pace: AnswererPace,
}

impl Default for Visits {
    fn default() -> Self {
        Self { budget: 1, lone: 0, pace: AnswererPace::default() }
    }
}

impl Visits {
    /// Before a visit: if the caller has no other queue to look at (`alone`), wait until the next request can be there, a
    /// fraction of a microsecond.
    #[inline(always)]
    pub fn hold(&mut self, alone: bool) {
        if alone {
            self.pace.hold.wait();
        } else {
            self.pace.interrupt();
        }
    }

    /// Requests to take in this visit, of at most `most`.
    #[inline(always)]
    pub fn limit(&self, most: u32) -> u32 {
        self.budget.min(most)
    }

    /// After a visit that took `taken` requests, of at most `most`; `answered`: every one of them was answered.
    #[inline(always)]
    pub fn end(
        &mut self,
        (taken, most): (u32, u32),
        answered: bool,
        requests: &mut Reader<MappedRing>,
        answers: &mut Writer<MappedRing>,
    ) {
        self.lone = if taken == 1 { self.lone.wrapping_add(1) } else { 0 };
        let calls = answered && self.lone >= LONE_VISITS_OF_CALLS;
        if calls {
            let asked = self.pace.begin(answers.memory().asked_hold(), answers.memory().asked_choices());
            if let Some(ownership) = asked.and_then(|choices| choices.apply_to_lone(requests)) {
                answers.set_ownership(ownership);
            }
        } else {
            self.pace.interrupt();
        }
        let look_ahead = !calls || self.lone.is_multiple_of(VISITS_PER_LOOK_AHEAD);
        self.budget = if taken >= self.budget && look_ahead { (self.budget * 2).min(most) } else { (self.budget / 4).max(1) };
    }
}
