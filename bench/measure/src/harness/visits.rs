//! The number of messages that the answering side takes at once, as in the daemon (`server::QueueServer::visit` of crates/block).

use fipsee_ring::Message;
use fipsee_ring::mapped::MappedRing;
use fipsee_ring::ring::Reader;
use fipsee_ring::tuning::TAKE_MANY;

/// Most messages answered before the peer's doorbell is checked. More than the daemon's 14 requests, whose completions
/// travel in one message: the locked operation before that check waits for every message published so far.
const MAX_BUDGET: u32 = 64;
/// After this many visits in a row with a single message, the caller calls and waits for the reply.
const LONE_VISITS_OF_CALLS: u32 = 4;
/// Then only one visit in this many checks for a second message, at the cost of a line transfer.
const VISITS_PER_LOOK_AHEAD: u32 = 16;

/// Most messages that are taken out of the ring before the first is answered.
const TAKEN_TOGETHER: usize = TAKE_MANY as usize;

/// Messages taken and not yet answered.
pub(super) struct Taken {
    messages: [Message; TAKEN_TOGETHER],
    together: usize,
}

impl Taken {
    /// At most `together` at a time.
    pub(super) const fn new(together: u32) -> Self {
        Self { messages: [Message::ZERO; TAKEN_TOGETHER], together: together as usize }
    }

    /// Take the messages in the ring, `most` at most.
    #[inline(always)]
    pub(super) fn take(&mut self, reader: &mut Reader<MappedRing>, most: u32) -> &[Message] {
        let mut count = 0;
        for message in self.messages.iter_mut().take(self.together.min(most as usize)) {
            if !reader.receive(message) {
                break;
            }
            count += 1;
        }
        self.messages.get(..count).unwrap_or_default()
    }
}

/// The result of recent visits.
pub(super) struct Visits {
    budget: u32,
    lone_visits: u32,
    look_twice: bool,
}

impl Visits {
    /// `look_twice`: look ahead always.
    pub(super) const fn new(look_twice: bool) -> Self {
        Self { budget: 1, lone_visits: 0, look_twice }
    }

    /// Messages this visit may take.
    #[inline(always)]
    pub(super) const fn limit(&self) -> u32 {
        if self.look_twice { MAX_BUDGET } else { self.budget }
    }

    /// A visit took `taken` messages; true: the caller calls and waits.
    #[inline(always)]
    pub(super) fn end(&mut self, taken: u32) -> bool {
        self.lone_visits = if taken == 1 { self.lone_visits.wrapping_add(1) } else { 0 };
        let calls = self.lone_visits >= LONE_VISITS_OF_CALLS;
        let look_ahead = !calls || self.lone_visits.is_multiple_of(VISITS_PER_LOOK_AHEAD);
        // A caller that sends bursts sends more of them: only lone messages reduce the budget.
        self.budget = match (taken, look_ahead) {
            (1, true) => (self.budget / 2).max(2),
            (1, false) => 1,
            _ => MAX_BUDGET,
        };
        calls
    }
}
