//! The kinds of lifetimes that seeds play.

use crate::calls::Calls;
use crate::conversation;
use crate::course::Outcome;
use crate::disks::{Disks, Moves, Ports};
use crate::script::{Kind, Script};
use crate::shrink::{Shrunk, shrink};
use crate::variant::Variant;
use crate::virtqueues::Machine;

type Play = fn(u64, Option<Variant>, bool) -> Outcome;
type Replay = fn(u64, Vec<u8>) -> Outcome;
type Shrink = fn(u64, Option<Variant>) -> Option<Shrunk>;

/// A kind, whatever its scripts are.
pub struct Entry {
    /// Its name.
    pub name: &'static str,
    /// Play the lifetime of a seed; `true`: trace and choices are wanted.
    pub play: Play,
    /// Play it again by the choices of its scheduler, if it keeps these.
    pub replay: Option<Replay>,
    /// The shortest found that fails as it does, if it can be looked for.
    pub shrink: Option<Shrink>,
}

/// The kinds. One with a [`Script`] is one more line.
pub const KINDS: [Entry; 6] = [
    Entry::of::<Disks>(),
    Entry::of::<Calls>(),
    Entry::of::<Machine>(),
    Entry::TAKEOVER,
    Entry::of::<Moves>(),
    Entry::of::<Ports>(),
];
/// Which of them seeds play in turn. A takeover is a part of a daemon's lifetime.
const TURNS: [usize; 18] = [0, 1, 0, 1, 0, 2, 4, 1, 5, 0, 1, 0, 2, 4, 2, 1, 3, 5];

/// What this seed plays.
pub fn of_seed(seed: u64) -> &'static Entry {
    static ENTRIES: [Entry; 6] = KINDS;
    &ENTRIES[TURNS[usize::try_from(seed % TURNS.len() as u64).unwrap_or(0)]]
}

/// Play the lifetime of a seed.
pub fn play(seed: u64, variant: Option<Variant>, keeps: bool) -> Outcome {
    (of_seed(seed).play)(seed, variant, keeps)
}

impl Entry {
    /// Is it a part of a lifetime, which has no requests, and whose fault may come too late?
    pub fn is_part(&self) -> bool {
        self.name == Self::TAKEOVER.name
    }

    /// The conversation of two daemons, of at most two faults: its seed replays it, and there is nothing to shrink.
    const TAKEOVER: Self = Self {
        name: "takeover",
        play: |seed, variant, keeps| conversation::play(seed, variant, keeps),
        replay: None,
        shrink: None,
    };

    const fn of<K: Kind>() -> Self {
        Self {
            name: K::NAME,
            play: |seed, variant, keeps| K::play(&Script::draw(seed), variant, keeps),
            replay: Some(|seed, choices| K::play(&Script { choices: Some(choices), ..Script::draw(seed) }, None, true)),
            shrink: Some(|seed, variant| shrink(&Script::<K>::draw(seed), variant)),
        }
    }
}
