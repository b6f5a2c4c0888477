//! When to look first for what must come after a message of ours, in call and reply.
//!
//! A reader that looks before the message was written takes the line away from the writer, who then pays one more line
//! transfer to get it back. When exactly one call is outstanding nothing can be there for about half a round trip, so the
//! side that has just published holds still for a while first (docs/how-fast.md). How long depends on the machine, on the work
//! between the messages, and on how long the other side holds still; the best pair of delays lies on a narrow ridge, which
//! neither side finds alone. So the caller searches both, by the period of its own exchanges, and asks the answerer for its part
//! through a cold word of the answers' ring (docs/protocol.md section 2.5).

mod search;

use crate::clock;
pub use search::Search;

/// Two delays of the first look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delays {
    /// Of the caller after a call, in ticks of the time-stamp counter.
    pub caller_ticks: u64,
    /// Of the answerer after an answer, in ticks.
    pub answerer_ticks: u64,
}

/// How the first look is delayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FirstLook {
    /// By what the channel's own exchanges show to be best, which may be nothing.
    #[default]
    Calibrated,
    /// Not at all.
    AtOnce,
    /// By so much, at most [`MAX_HOLD_TICKS`]; for measurements.
    After(Delays),
}

/// Longest delay: half a microsecond at 2 GHz, several line transfers even between sockets.
pub const MAX_HOLD_TICKS: u64 = 1024;
/// Longest delay an answerer grants, in nanoseconds: what it may cost a worker that a caller asks for nonsense.
pub const MAX_HOLD_NS: u32 = 1000;
/// An exchange that took longer says nothing about lines: there was other work, or somebody slept or was interrupted.
const MAX_PERIOD_TICKS: u64 = 8192;
/// Exchanges per measurement.
const WINDOW_EXCHANGES: u32 = 16;

/// While more answers than this are due,
const MANY_DUE: usize = 8;
/// a look that found none is followed by the next after so long, some 90 ns: who takes each answer as it comes takes its line's
/// neighbour from the answerer, who is about to write it. Bursts of 64 take 52 instead of 76 cycles a call with it, of 16 100 instead
/// of 108; twice as long gains less.
const GATHER_TICKS: u64 = 200;

/// After a look that found nothing while `due` answers are: let more of them gather, if there are many.
#[inline(always)]
pub fn let_answers_gather(due: usize) {
    if due > MANY_DUE {
        let since_ticks = clock::ticks();
        while clock::ticks().wrapping_sub(since_ticks) < GATHER_TICKS {
            core::hint::spin_loop();
        }
    }
}

/// The delay that is running, if one is.
#[derive(Clone, Copy, Debug, Default)]
struct Hold {
    since_ticks: u64,
    /// 0: none is running.
    ticks: u64,
}

impl Hold {
    #[inline(always)]
    fn is_over(&mut self) -> bool {
        if self.ticks != 0 && clock::ticks().wrapping_sub(self.since_ticks) >= self.ticks {
            self.ticks = 0;
        }
        self.ticks == 0
    }
}

/// The caller's side.
#[derive(Debug)]
pub struct CallerPace {
    hold: Hold,
    delays: Delays,
    began_ticks: u64,
    /// The call before was answered, and no other was made meanwhile.
    in_step: bool,
    exchanges: u32,
    window_ticks: u64,
    first_look: FirstLook,
    search: Search,
    /// What the answerer has not been told yet.
    untold: bool,
}

impl CallerPace {
    /// A pace at the start of a channel's life.
    #[must_use]
    pub fn new(first_look: FirstLook) -> Self {
        let delays = match first_look {
            FirstLook::After(delays) => Delays {
                caller_ticks: delays.caller_ticks.min(MAX_HOLD_TICKS),
                answerer_ticks: delays.answerer_ticks.min(MAX_HOLD_TICKS),
            },
            _ => Delays::default(),
        };
        Self {
            hold: Hold::default(),
            delays,
            began_ticks: 0,
            in_step: false,
            exchanges: 0,
            window_ticks: 0,
            first_look,
            search: Search::default(),
            untold: delays.answerer_ticks != 0,
        }
    }

    /// One call was published and it is the only one outstanding. Returns what to ask of the answerer, in nanoseconds, when
    /// that has changed ([`MappedRing::ask_hold`](crate::mapped::MappedRing::ask_hold) of the answers' ring).
    #[must_use = "the answerer must be told"]
    #[inline(always)]
    pub fn begin(&mut self) -> Option<u32> {
        if self.first_look == FirstLook::AtOnce {
            return None;
        }
        let now_ticks = clock::ticks();
        if self.in_step {
            self.count(now_ticks.wrapping_sub(self.began_ticks));
        }
        self.began_ticks = now_ticks;
        self.in_step = true;
        self.hold = Hold { since_ticks: now_ticks, ticks: self.delays.caller_ticks };
        if self.untold { self.tell() } else { None }
    }

    #[cold]
    fn tell(&mut self) -> Option<u32> {
        self.untold = false;
        let ns = clock::ticks_to_ns(self.delays.answerer_ticks);
        Some(u32::try_from(ns).unwrap_or(MAX_HOLD_NS).min(MAX_HOLD_NS))
    }

    /// Something else than one call and its answer happened: look at once, and do not count it.
    #[inline(always)]
    pub const fn interrupt(&mut self) {
        self.in_step = false;
        self.hold.ticks = 0;
        self.exchanges = 0;
        self.window_ticks = 0;
    }

    /// Is it too early to look? For those who have something else to do meanwhile.
    #[inline(always)]
    pub fn is_early(&mut self) -> bool {
        !self.hold.is_over()
    }

    /// Wait until it is time to look; at most [`MAX_HOLD_TICKS`].
    #[inline(always)]
    pub fn hold(&mut self) {
        while !self.hold.is_over() {}
    }

    /// The delays in force.
    #[must_use]
    pub const fn delays(&self) -> Delays {
        self.delays
    }

    #[inline(always)]
    fn count(&mut self, period_ticks: u64) {
        if period_ticks > MAX_PERIOD_TICKS {
            self.exchanges = 0;
            self.window_ticks = 0;
            return;
        }
        self.window_ticks += period_ticks;
        self.exchanges += 1;
        if self.exchanges == WINDOW_EXCHANGES {
            self.end_window();
        }
    }

    #[cold]
    fn end_window(&mut self) {
        let window_ticks = std::mem::take(&mut self.window_ticks);
        self.exchanges = 0;
        if self.first_look == FirstLook::Calibrated {
            let delays = self.search.window(window_ticks);
            self.untold |= delays.answerer_ticks != self.delays.answerer_ticks;
            self.delays = delays;
        }
    }
}

/// The answerer's side: it does as the caller asks, within [`MAX_HOLD_NS`].
#[derive(Debug, Default)]
pub struct AnswererPace {
    hold: Hold,
    asked_ns: u32,
    asked_ticks: u64,
}

impl AnswererPace {
    /// One call was answered, which was the only one there; `asked_ns` is what the caller asks for
    /// ([`MappedRing::asked_hold`](crate::mapped::MappedRing::asked_hold) of the answers' ring).
    #[inline(always)]
    pub fn begin(&mut self, asked_ns: u32) {
        if asked_ns != self.asked_ns {
            self.listen(asked_ns);
        }
        if self.asked_ticks != 0 {
            self.hold = Hold { since_ticks: clock::ticks(), ticks: self.asked_ticks };
        }
    }

    /// The delay asked for and granted, in ticks.
    #[must_use]
    pub const fn hold_ticks(&self) -> u64 {
        self.asked_ticks
    }

    #[cold]
    fn listen(&mut self, asked_ns: u32) {
        self.asked_ns = asked_ns;
        let granted = std::time::Duration::from_nanos(asked_ns.min(MAX_HOLD_NS).into());
        self.asked_ticks = clock::duration_to_ticks(granted);
    }

    /// Look at once.
    #[inline(always)]
    pub const fn interrupt(&mut self) {
        self.hold.ticks = 0;
    }

    /// Is it too early to look? For those who have something else to do meanwhile.
    #[inline(always)]
    pub fn is_early(&mut self) -> bool {
        !self.hold.is_over()
    }

    /// Wait until it is time to look; at most [`MAX_HOLD_NS`].
    #[inline(always)]
    pub fn hold(&mut self) {
        while !self.hold.is_over() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answerer_grants_no_more_than_its_limit() {
        let mut pace = AnswererPace::default();
        pace.begin(u32::MAX);
        assert_eq!(pace.asked_ticks, clock::duration_to_ticks(std::time::Duration::from_nanos(MAX_HOLD_NS.into())));
        pace.hold();
        assert!(!pace.is_early());
        pace.begin(0);
        assert!(!pace.is_early());
    }

    #[test]
    fn fixed_delays_are_told_once_and_bounded() {
        let wanted = Delays { caller_ticks: u64::MAX, answerer_ticks: u64::MAX };
        let mut pace = CallerPace::new(FirstLook::After(wanted));
        assert_eq!(pace.delays(), Delays { caller_ticks: MAX_HOLD_TICKS, answerer_ticks: MAX_HOLD_TICKS });
        assert!(pace.begin().is_some_and(|ns| ns > 0 && ns <= MAX_HOLD_NS));
        pace.hold();
        assert_eq!(pace.begin(), None);
        pace.interrupt();
        assert!(!pace.is_early());
    }

    #[test]
    fn looking_at_once_delays_and_tells_nothing() {
        let mut pace = CallerPace::new(FirstLook::AtOnce);
        assert_eq!(pace.begin(), None);
        assert!(!pace.is_early());
    }
}
