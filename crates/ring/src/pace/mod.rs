//! When to look first for what must come after a message of ours, in call and reply (docs/how-fast.md).
//!
//! A reader that looks before the message was written takes the line away from the writer, which then pays one more line
//! transfer to get it back. So the side that has just published delays its first look. The best pair of delays depends on the
//! machine and on the work between the messages; the caller searches both by the period of its own exchanges, and asks the
//! answerer for its part through a cold word of the answers' ring (docs/protocol.md section 2.5).

mod method;
mod search;
mod visits;

pub use self::method::{Asked, Method};
pub use self::search::Search;
pub use self::visits::{MAX_BUDGET, Visits};
use crate::clock;
use crate::tuning::{Choices, Touch, Tuning};
pub use crate::tuning::{Delays, FirstLook};

/// Longest delay: half a microsecond at 2 GHz, several line transfers even between sockets.
pub const MAX_HOLD_TICKS: u64 = 1024;
/// Longest delay an answerer grants, in nanoseconds: the most that an unreasonable request of a caller may cost a worker.
pub const MAX_HOLD_NS: u32 = 1000;
/// An exchange that took longer says nothing about lines: there was other work, or one side slept or was interrupted.
const MAX_PERIOD_TICKS: u64 = 8192;
/// Exchanges per measurement.
const WINDOW_EXCHANGES: u32 = 16;

/// While more answers than this are due,
const MANY_DUE: usize = 8;
/// the next look after one that found none waits this long, some 90 ns: a caller that takes each answer as it comes takes
/// the neighbouring line from the answerer, which is about to write it. Bursts of 64 take 52 instead of 76 cycles a call with it,
/// of 16 100 instead of 108; twice as long gains less.
const GATHER_TICKS: u64 = 200;

/// After a look that found nothing while `due` answers are due: let more of them gather, if there are many.
#[inline(always)]
pub fn let_answers_gather(due: usize) {
    if due > MANY_DUE {
        let since_ticks = clock::ticks();
        while clock::ticks().wrapping_sub(since_ticks) < GATHER_TICKS {
            core::hint::spin_loop();
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Hold {
    since_ticks: u64,
    /// 0: none is running.
    ticks: u64,
}

impl Hold {
    /// Is it too early to look? For callers that have something else to do meanwhile.
    #[inline(always)]
    pub fn is_early(&mut self) -> bool {
        if self.ticks != 0 && clock::ticks().wrapping_sub(self.since_ticks) >= self.ticks {
            self.ticks = 0;
        }
        self.ticks != 0
    }

    /// Wait until it is time to look: at most [`MAX_HOLD_TICKS`] of a caller, [`MAX_HOLD_NS`] of an answerer.
    #[inline(always)]
    pub fn wait(&mut self) {
        while self.is_early() {}
    }
}

/// The caller's side.
#[derive(Debug)]
pub struct CallerPace {
    /// The delay before the first look at an answer.
    pub hold: Hold,
    delays: Delays,
    /// How both sides own the slots of lone messages: [`Method`], or what the tuning says until one is chosen.
    choices: Choices,
    began_ticks: u64,
    /// The call before was answered, and no other was made meanwhile.
    in_step: bool,
    exchanges: u32,
    window_ticks: u64,
    first_look: FirstLook,
    search: Search,
    /// The answerer has not been asked for the present delays and choices.
    is_changed: bool,
}

impl CallerPace {
    /// The pace of a new channel.
    pub fn new(tuning: &Tuning) -> Self {
        let first_look = tuning.first_look;
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
            choices: Choices::NONE.with_ownership(tuning.ownership).with_touch(match tuning.touch {
                Touch::Always => Touch::Always,
                Touch::Never | Touch::Runs => Touch::Never,
            }),
            began_ticks: 0,
            in_step: false,
            exchanges: 0,
            window_ticks: 0,
            first_look,
            search: Search::new(tuning.searches_methods()),
            is_changed: true,
        }
    }

    /// One call was published and it is the only one outstanding. Returns what both sides are to do from now on, when that has
    /// changed: [`Asked::apply`].
    #[must_use = "both sides must do it"]
    #[inline(always)]
    pub fn begin(&mut self) -> Option<Asked> {
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
        if self.is_changed { self.take_asked() } else { None }
    }

    #[cold]
    fn take_asked(&mut self) -> Option<Asked> {
        self.is_changed = false;
        let ns = clock::ticks_to_ns(self.delays.answerer_ticks);
        let hold_ns = u32::try_from(ns).unwrap_or(MAX_HOLD_NS).min(MAX_HOLD_NS);
        Some(Asked { hold_ns, choices: self.choices })
    }

    /// Something other than one call and its answer happened: look at once, and do not count it.
    #[inline(always)]
    pub const fn interrupt(&mut self) {
        self.in_step = false;
        self.hold.ticks = 0;
        self.exchanges = 0;
        self.window_ticks = 0;
    }

    /// The delays in force.
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
        if matches!(self.first_look, FirstLook::Calibrated | FirstLook::CalibratedDelays) {
            let (delays, method) = self.search.window(window_ticks);
            let choices = if self.search.methods { method.choices() } else { self.choices };
            self.is_changed |= delays.answerer_ticks != self.delays.answerer_ticks || choices != self.choices;
            (self.delays, self.choices) = (delays, choices);
        }
    }
}

/// The answerer's side: it does as the caller asks, within [`MAX_HOLD_NS`].
#[derive(Debug, Default)]
pub struct AnswererPace {
    /// The delay before the first look at the next call.
    pub hold: Hold,
    asked_ns: u32,
    asked_ticks: u64,
    asked_choices: u32,
}

impl AnswererPace {
    /// One call was answered, which was the only one there; `asked_ns` and `asked_choices` are what the caller asks for
    /// ([`MappedRing::asked_hold`](crate::mapped::MappedRing::asked_hold) of the answers' ring). Returns the choices when they
    /// have changed: [`Choices::apply_to_lone`].
    #[must_use = "the answerer does as it is asked"]
    #[inline(always)]
    pub fn begin(&mut self, asked_ns: u32, asked_choices: u32) -> Option<Choices> {
        if asked_ns != self.asked_ns {
            self.listen(asked_ns);
        }
        if self.asked_ticks != 0 {
            self.hold = Hold { since_ticks: clock::ticks(), ticks: self.asked_ticks };
        }
        (asked_choices != self.asked_choices).then(|| {
            self.asked_choices = asked_choices;
            Choices::from_word(asked_choices)
        })
    }

    /// The delay asked for and granted, in ticks.
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::Ownership;

    #[test]
    fn an_answerer_grants_no_more_than_its_limit() {
        let mut pace = AnswererPace::default();
        let _ = pace.begin(u32::MAX, 0);
        assert_eq!(pace.asked_ticks, clock::duration_to_ticks(std::time::Duration::from_nanos(MAX_HOLD_NS.into())));
        pace.hold.wait();
        assert!(!pace.hold.is_early());
        assert_eq!(pace.begin(0, 0x32), Some(Choices::from_word(0x32)));
        assert_eq!(pace.begin(0, 0x32), None, "once");
        assert!(!pace.hold.is_early());
    }

    #[test]
    fn fixed_delays_are_sent_once_and_bounded() {
        let wanted = Delays { caller_ticks: u64::MAX, answerer_ticks: u64::MAX };
        let mut pace = CallerPace::new(&Tuning { first_look: FirstLook::After(wanted), ..Tuning::usual() });
        assert_eq!(pace.delays(), Delays { caller_ticks: MAX_HOLD_TICKS, answerer_ticks: MAX_HOLD_TICKS });
        assert!(pace.begin().is_some_and(|asked| (1..=MAX_HOLD_NS).contains(&asked.hold_ns)));
        pace.hold.wait();
        assert_eq!(pace.begin(), None);
        pace.interrupt();
        assert!(!pace.hold.is_early());
    }

    #[test]
    fn a_search_for_delays_alone_leaves_the_choices_as_they_are() {
        let locked = Tuning { ownership: Ownership::LockedAhead, touch: Touch::Always, measured: true, ..Tuning::usual() };
        for (first_look, are_fixed) in [(FirstLook::CalibratedDelays, true), (FirstLook::Calibrated, false)] {
            let mut pace = CallerPace::new(&Tuning { first_look, ..locked });
            let (given, mut tried) = (pace.choices, Delays::default());
            let all_given = (0..600).all(|_| {
                pace.window_ticks = 8000;
                pace.end_window();
                tried.answerer_ticks = tried.answerer_ticks.max(pace.delays.answerer_ticks);
                pace.choices == given
            });
            assert_eq!(all_given, are_fixed, "{first_look:?}");
            assert!(!are_fixed || tried.answerer_ticks > 0, "the delays are searched all the same");
        }
    }

    #[test]
    fn looking_at_once_delays_and_tells_nothing() {
        let mut pace = CallerPace::new(&Tuning { first_look: FirstLook::AtOnce, ..Tuning::usual() });
        assert_eq!(pace.begin(), None);
        assert!(!pace.hold.is_early());
    }
}
