//! When our ends look first for what must come: as the product's client and daemon do.

use fipsee_ring::mapped::MappedRing;
use fipsee_ring::pace::{AnswererPace, CallerPace};
use fipsee_ring::ring::Reader;
use fipsee_ring::tuning::{Ownership, Tuning};

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
            Side::Client => Self::Caller(CallerPace::new(&Tuning::default())),
            Side::Server => Self::Answerer(AnswererPace::default()),
        }
    }

    /// So many messages were sent at once, and what comes next is received by `reader`; `answers` is the ring that the server answers
    /// through. Returns how to own the slots of lone messages, if that has changed.
    #[inline(always)]
    pub(super) fn sent(
        &mut self,
        message_count: usize,
        reader: &mut Reader<MappedRing>,
        answers: Option<&MappedRing>,
    ) -> Option<Ownership> {
        reader.begin_run();
        match (self, answers) {
            (Self::Caller(pace), _) if message_count == 1 => pace.begin().and_then(|asked| asked.apply(reader)),
            (Self::Answerer(pace), Some(answers)) if message_count == 1 => {
                let asked = pace.begin(answers.asked_hold(), answers.asked_choices());
                asked.and_then(|choices| choices.apply_to_lone(reader))
            }
            (Self::Caller(pace), _) => {
                pace.interrupt();
                None
            }
            (Self::Answerer(pace), _) => {
                pace.interrupt();
                None
            }
        }
    }

    /// Wait until it is time to look.
    #[inline(always)]
    pub(super) fn hold(&mut self) {
        match self {
            Self::Caller(pace) => pace.hold.wait(),
            Self::Answerer(pace) => pace.hold.wait(),
        }
    }
}
