//! How both sides of call and reply own the slots of lone messages.

use crate::mapped::MappedRing;
use crate::ring::Reader;
use crate::tuning::{Choices, Ownership, Touch};

/// The ways that the search tries, in its order. `include/fipsee_pace.h` is its counterpart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// PREFETCHW of the next slot, with the delays found.
    #[default]
    Prefetch,
    /// Nothing.
    NotAsked,
    /// A locked operation on the slot two ahead.
    Locked,
    /// The same, and the reader touches what it has copied.
    LockedTouched,
}

impl Method {
    /// The one that is tried after this.
    pub(super) const fn next(self) -> Option<Self> {
        match self {
            Self::Prefetch => Some(Self::NotAsked),
            Self::NotAsked => Some(Self::Locked),
            Self::Locked => Some(Self::LockedTouched),
            Self::LockedTouched => None,
        }
    }

    /// As the answerer is asked for it.
    #[must_use]
    pub fn choices(self) -> Choices {
        let (ownership, touch) = match self {
            Self::Prefetch => (Ownership::PrefetchNext, Touch::Never),
            Self::NotAsked => (Ownership::NotAsked, Touch::Never),
            Self::Locked => (Ownership::LockedAhead, Touch::Never),
            Self::LockedTouched => (Ownership::LockedAhead, Touch::Always),
        };
        Choices::NONE.with_ownership(ownership).with_touch(touch)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The answerer's delay, in nanoseconds.
    pub hold_ns: u32,
    /// For lone messages of both sides.
    pub choices: Choices,
}

impl Asked {
    /// Do it on the caller's side: ask the answerer, touch answers or do not. Returns how to own the slots of calls.
    #[cold]
    pub fn apply(self, answers: &mut Reader<MappedRing>) -> Option<Ownership> {
        answers.memory().ask_hold(self.hold_ns);
        answers.memory().ask_choices(self.choices);
        self.choices.apply_to_lone(answers)
    }
}

impl Choices {
    /// Touch lone messages of `reader` as these say. Returns how to own the slots of one's own lone messages, if they say so.
    #[cold]
    pub fn apply_to_lone(self, reader: &mut Reader<MappedRing>) -> Option<Ownership> {
        if let Some(touch) = self.touch() {
            reader.set_touch_lone(touch == Touch::Always);
        }
        self.ownership()
    }
}
