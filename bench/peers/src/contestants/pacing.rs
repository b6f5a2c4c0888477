//! When our ends look first for what must come: as the product's client and daemon do.

use fipsee_ring::mapped::MappedRing;
use fipsee_ring::pace::{AnswererPace, CallerPace, FirstLook};

use crate::harness::Side;

/// The pace of one side of a channel.
#[expect(clippy::large_enum_variant, reason = "there is one in a process, and boxed it would cost a load per message")]
pub(super) enum Pacing {
    /// The client's, which searches the delays of both.
    Caller(CallerPace),
    /// The server's, which does as it is asked.
    Answerer(AnswererPace),
}

impl Pacing {
    pub(super) fn new(side: Side) -> Self {
        match side {
            Side::Client => Self::Caller(CallerPace::new(FirstLook::Calibrated)),
            Side::Server => Self::Answerer(AnswererPace::default()),
        }
    }

    /// So many messages were sent at once; `answers` is the ring that answers go through.
    #[inline(always)]
    pub(super) fn sent(&mut self, message_count: usize, answers: &MappedRing) {
        match self {
            Self::Caller(pace) if message_count == 1 => {
                if let Some(hold_ns) = pace.begin() {
                    answers.ask_hold(hold_ns);
                }
            }
            Self::Answerer(pace) if message_count == 1 => pace.begin(answers.asked_hold()),
            Self::Caller(pace) => pace.interrupt(),
            Self::Answerer(pace) => pace.interrupt(),
        }
    }

    /// Wait until it is time to look.
    #[inline(always)]
    pub(super) fn hold(&mut self) {
        match self {
            Self::Caller(pace) => pace.hold(),
            Self::Answerer(pace) => pace.hold(),
        }
    }
}
