//! What a lifetime does: all that is drawn from its seed, and what shrinking leaves of it.

use std::fmt::Debug;

use crate::course::Outcome;
use crate::rng::Rng;
use crate::variant::Variant;

/// A kind of lifetime, and how one of them is laid out: clients, workers, parameters.
pub trait Kind: Clone + Debug + 'static {
    /// What goes wrong.
    type Fault: Copy + Debug + PartialEq;

    /// Its name.
    const NAME: &'static str;

    /// Drawn from the seed.
    fn draw(rng: &mut Rng) -> Self;

    /// Likewise.
    fn draw_fault(&self, rng: &mut Rng) -> Self::Fault;

    /// The same with less, for shrinking.
    fn simpler(&self) -> Vec<Self> {
        Vec::new()
    }

    /// Play it; `keeps`: trace and choices are wanted.
    fn play(script: &Script<Self>, variant: Option<Variant>, keeps: bool) -> Outcome;
}

/// When something goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned<F> {
    /// After so many answered requests,
    pub answered: u32,
    /// and so many steps more,
    pub steps: u32,
    /// with this client, modulo their number,
    pub victim: usize,
    /// this.
    pub fault: F,
}

/// Answers after which the first fault is due at the latest: each lifetime has one.
const LATEST_FIRST_FAULT: u32 = 50;

/// A lifetime.
#[derive(Clone, Debug)]
pub struct Script<K: Kind> {
    /// What all numbers are drawn from.
    pub seed: u64,
    /// What the order of steps is drawn from: the same, but for shrinking.
    pub schedule: u64,
    /// Requests of all clients.
    pub requests: u32,
    /// The number of the first: shrinking leaves out what comes before.
    pub first: u32,
    /// Clients, workers, parameters.
    pub layout: K,
    /// What goes wrong, one after the other.
    pub faults: Vec<Planned<K::Fault>>,
    /// The scheduler's choices, if they are not to be drawn; after the last, every actor has its turn.
    pub choices: Option<Vec<u8>>,
}

impl<K: Kind> Script<K> {
    /// The lifetime of a seed.
    pub fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed, 1);
        let requests = 100 + rng.small(20);
        let layout = K::draw(&mut rng);
        let count = 1 + rng.below(3);
        let mut faults: Vec<_> = (0..count).map(|_| Self::plan(&layout, &mut rng)).collect();
        faults.sort_by_key(|planned| planned.answered);
        // The last requests may be answered all at once, or never: none of them is to be waited for.
        faults[0].answered = faults[0].answered.min(LATEST_FIRST_FAULT);
        for index in 1..faults.len() {
            // One during another.
            if rng.percent(40) {
                faults[index].answered = faults[index - 1].answered;
                faults[index].steps /= 1 + rng.small(8);
            }
        }
        Self { seed, schedule: seed, requests, first: 0, layout, faults, choices: None }
    }

    fn plan(layout: &K, rng: &mut Rng) -> Planned<K::Fault> {
        let fault = layout.draw_fault(rng);
        // Also before a client is attached.
        let answered = if rng.percent(15) { 0 } else { rng.small(90) };
        Planned { answered, steps: rng.small(16), victim: rng.below(12), fault }
    }
}
