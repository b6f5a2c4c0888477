//! From figures to choices: which candidates are compared, and when one is taken.

use std::io;

use fipsee_ring::cpu::StoreVariant;
use fipsee_ring::tuning::{Choices, Ownership, Touch};

use super::words::over;
use crate::matrix::median;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Task {
    RoundTrip,
    /// Eight messages published together, and their answers.
    Burst8,
    /// Sixty-four.
    Burst64,
    /// One way through a ring of 1024 slots.
    Stream,
    /// And of 64: too short for messages to gather in.
    ShortStream,
}

impl Task {
    pub const ALL: [Self; 5] = [Self::RoundTrip, Self::Burst8, Self::Burst64, Self::Stream, Self::ShortStream];

    /// Which stream it is, if it is one.
    pub(super) const fn stream(self) -> Option<usize> {
        match self {
            Self::Stream => Some(0),
            Self::ShortStream => Some(1),
            _ => None,
        }
    }

    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::RoundTrip => "round trip",
            Self::Burst8 => "bursts of 8",
            Self::Burst64 => "bursts of 64",
            Self::Stream => "stream of 1024 slots",
            Self::ShortStream => "stream of 64 slots",
        }
    }
}

pub trait Measure {
    /// Ticks per message of `task` with `choices`. All that is measured in one `turn` is to begin at the same place of its rings.
    fn measure(&mut self, choices: Choices, task: Task, turn: usize) -> io::Result<f64>;
    /// Is there time for more turns than are needed at least?
    fn has_time(&self) -> bool {
        true
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trial {
    /// The field that was changed.
    pub tried: Choices,
    /// Its time over that of the choices until then: the geometric mean over the tasks that decide.
    pub ratio: f64,
    pub taken: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    pub choices: Choices,
    /// What was tried, in its order.
    pub trials: Vec<Trial>,
}

/// A candidate is taken if it takes at most this part of the time.
pub(super) const TAKEN_BELOW: f64 = 0.95;
/// And if no task that it affects takes more than this many times as long as before.
const LOSS_BELOW: f64 = 1.05;
/// Turns at first; and more at a time while the ratio is so close to the bar that they decide.
const TURNS: [(usize, f64); 3] = [(5, f64::INFINITY), (11, 0.045), (21, 0.03)];

/// Choose, starting from `prior`, which is kept where nothing is clearly better; `stores` are those that the CPU has.
///
/// Each choice is made for itself, in the order in which one shows the other: a touch, for example, gains nothing in bursts while
/// prefetching takes the lines away. How many requests are taken before the first answer is not among them: pieces as short as
/// these do not show what it does to long runs of bursts.
pub fn decide(prior: Choices, stores: &[StoreVariant], measure: &mut impl Measure) -> io::Result<Decision> {
    let mut made = Decision { choices: prior, trials: Vec::new() };
    let none = Choices::NONE;
    let ownership = made.choices.ownership();
    let others = [Ownership::PrefetchNext, Ownership::LockedAhead, Ownership::NotAsked];
    let others: Vec<_> =
        others.into_iter().filter(|other| Some(*other) != ownership).map(|other| none.with_ownership(other)).collect();
    made.attempt(&others, &[Task::RoundTrip], &[], measure)?;

    let lone = if made.choices.touch() == Some(Touch::Always) { Touch::Runs } else { Touch::Always };
    made.attempt(&[none.with_touch(lone)], &[Task::RoundTrip], &[], measure)?;

    let bursts = [Task::Burst8, Task::Burst64];
    let prefetch = made.choices.burst_prefetch() != Some(false);
    made.attempt(&[none.with_burst_prefetch(!prefetch)], &bursts, &[Task::Stream], measure)?;
    let store = made.choices.store();
    let others: Vec<_> = stores.iter().filter(|other| Some(**other) != store).map(|other| none.with_store(*other)).collect();
    made.attempt(&others, &bursts, &[Task::RoundTrip], measure)?;

    // A reader that touches lone messages touches those of runs, too: then the loss at the one counts against the gain at the
    // other.
    let (runs, tasks) = match made.choices.touch() {
        Some(Touch::Always) => (Touch::Never, &[Task::Stream, Task::Burst64, Task::RoundTrip][..]),
        Some(Touch::Runs) => (Touch::Never, &[Task::Stream, Task::Burst64][..]),
        _ => (Touch::Runs, &[Task::Stream, Task::Burst64][..]),
    };
    made.attempt(&[none.with_touch(runs)], tasks, &[Task::ShortStream], measure)?;
    Ok(made)
}

impl Decision {
    /// Try `candidates` against what there is, by turns, at `tasks`, which decide, and at `guards`, which must not suffer. Take
    /// the best if it is good enough.
    fn attempt(&mut self, candidates: &[Choices], tasks: &[Task], guards: &[Task], measure: &mut impl Measure) -> io::Result<()> {
        let all: Vec<Task> = tasks.iter().chain(guards).copied().collect();
        if candidates.is_empty() {
            return Ok(());
        }
        let tried: Vec<Choices> = candidates.iter().map(|candidate| over(self.choices, *candidate)).collect();
        let mut ratios = vec![vec![Vec::new(); all.len()]; tried.len()];
        let mut figures = Vec::new();
        let mut turn = 0;
        for (turns, within) in TURNS {
            let is_close = figures.iter().any(|(ratio, _): &(f64, f64)| (ratio - TAKEN_BELOW).abs() < within);
            if !(figures.is_empty() || is_close && measure.has_time()) {
                break;
            }
            for now in turn..turns {
                for (task, index) in all.iter().zip(0..) {
                    let found = by_turns(self.choices, &tried, *task, now, measure)?;
                    for (ratio, ratios) in found.into_iter().zip(&mut ratios) {
                        ratios[index].push(ratio);
                    }
                }
            }
            turn = turns;
            figures = ratios.iter().map(|of_tasks| judge(of_tasks, tasks.len())).collect();
        }
        let is_good = |(ratio, worst): &(f64, f64)| *ratio < TAKEN_BELOW && *worst < LOSS_BELOW;
        let good = figures.iter().zip(&tried).filter(|(figures, _)| is_good(figures));
        let best = good.min_by(|(a, _), (b, _)| a.0.total_cmp(&b.0)).map(|(_, choices)| *choices);
        for ((candidate, choices), (ratio, _)) in candidates.iter().zip(&tried).zip(&figures) {
            self.trials.push(Trial { tried: *candidate, ratio: *ratio, taken: Some(*choices) == best });
        }
        self.choices = best.unwrap_or(self.choices);
        Ok(())
    }
}

/// Measure `base` and all of `tried` once; the ratios of these to that. Every other turn goes the other way round: what comes
/// first may be slower because it does.
fn by_turns(base: Choices, tried: &[Choices], task: Task, turn: usize, measure: &mut impl Measure) -> io::Result<Vec<f64>> {
    let mut order: Vec<Choices> = std::iter::once(base).chain(tried.iter().copied()).collect();
    let is_reversed = turn % 2 == 1;
    if is_reversed {
        order.reverse();
    }
    let mut figures = order.into_iter().map(|choices| measure.measure(choices, task, turn)).collect::<io::Result<Vec<f64>>>()?;
    if is_reversed {
        figures.reverse();
    }
    let Some((base, figures)) = figures.split_first() else { return Ok(Vec::new()) };
    Ok(figures.iter().map(|figure| figure / base).collect())
}

/// The geometric mean of the first `deciding` tasks' median ratios, and the worst of all.
fn judge(of_tasks: &[Vec<f64>], deciding: usize) -> (f64, f64) {
    let medians: Vec<f64> = of_tasks.iter().filter_map(|ratios| median(ratios.clone())).collect();
    let logarithms: f64 = medians.iter().take(deciding).map(|ratio| ratio.ln()).sum();
    let count = crate::matrix::to_f64(deciding.max(1) as u64);
    ((logarithms / count).exp(), medians.iter().copied().fold(0.0, f64::max))
}
