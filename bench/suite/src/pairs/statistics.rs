//! What is said of pairs: in which state of the machine each was measured, the median of their ratios, how far it can be
//! trusted, and the verdict.

use fipsee_measure::statistics::States;

use crate::generator::Random;

/// Slower is what takes more than this, with its whole interval; faster is what takes less than one over this.
const TOLERANCE: f64 = 1.02;
/// An interval is narrow when neither of its ends is farther from the ratio than this part of it.
const PRECISION: f64 = 0.02;
/// Below this, 95 % of the medians that resampling brings say nothing about the median.
pub(super) const LEAST_PAIRS: usize = 10;
const RESAMPLES: usize = 10_000;
/// Of the interval's two ends together: 5 %.
const OUTSIDE: usize = RESAMPLES / 20;
/// The floors of a pair differ by less than this when the machine stayed as it was.
const STEADY_FACTOR: f64 = 1.25;

/// Old and new, one right after the other.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    /// One line bounced, in nanoseconds: before, between and after.
    pub(super) floors_ns: [f64; 3],
    pub(super) old_ns: f64,
    pub(super) new_ns: f64,
    pub(super) new_first: bool,
}

impl Pair {
    /// From the times in the order in which they were measured.
    pub(super) fn of(new_first: bool, [first_ns, second_ns]: [f64; 2], floors_ns: [f64; 3]) -> Self {
        let (old_ns, new_ns) = if new_first { (second_ns, first_ns) } else { (first_ns, second_ns) };
        Self { floors_ns, old_ns, new_ns, new_first }
    }

    pub(super) fn ratio(&self) -> f64 {
        self.new_ns / self.old_ns
    }

    fn is_steady(&self) -> bool {
        let most = self.floors_ns.into_iter().fold(f64::MIN, f64::max);
        let least = self.floors_ns.into_iter().fold(f64::MAX, f64::min);
        most < least * STEADY_FACTOR
    }
}

/// How far the host put the two CPUs apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The run saw no other.
    Only,
    Near,
    Far,
}

impl State {
    const ALL: [Self; 3] = [Self::Only, Self::Near, Self::Far];

    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Only => "one",
            Self::Near => "near",
            Self::Far => "far",
        }
    }
}

/// The state in which a pair was measured from beginning to end; `None` when the machine changed meanwhile.
pub(super) fn state_of(states: States, pair: &Pair) -> Option<State> {
    let [before, between, after] = pair.floors_ns.map(|floor_ns| states.is_near(floor_ns));
    let state = match states.border {
        None => State::Only,
        Some(_) if before => State::Near,
        Some(_) => State::Far,
    };
    (before == between && between == after && pair.is_steady()).then_some(state)
}

/// The ratio of new to old, and the interval that holds it in 95 of 100 cases.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Estimate {
    pub(super) ratio: f64,
    pub(super) interval: (f64, f64),
}

impl Estimate {
    /// The median of `ratios`, and the middle 95 % of the medians of samples drawn from them. `None`: too few.
    pub(super) fn of(ratios: &[f64]) -> Option<Self> {
        if ratios.len() < LEAST_PAIRS {
            return None;
        }
        let mut random = Random::default();
        let mut sample = vec![0.0; ratios.len()];
        let mut medians = Vec::with_capacity(RESAMPLES);
        for _ in 0..RESAMPLES {
            sample.iter_mut().for_each(|place| *place = ratios[random.index(ratios.len())]);
            medians.extend(median(&sample));
        }
        medians.sort_by(f64::total_cmp);
        let outside = OUTSIDE / 2;
        Some(Self { ratio: median(ratios)?, interval: (medians[outside], medians[RESAMPLES - 1 - outside]) })
    }

    pub(super) fn is_narrow(&self) -> bool {
        let (from, to) = self.interval;
        self.ratio - from <= self.ratio * PRECISION && to - self.ratio <= self.ratio * PRECISION
    }
}

/// What a workload's pairs say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Same,
    Slower,
    Faster,
    /// The interval is too wide to call it the same, and not wholly beyond the limit.
    Undecided,
}

impl Verdict {
    pub(super) fn of(estimate: Option<&Estimate>) -> Self {
        match estimate {
            Some(estimate) if estimate.interval.0 > TOLERANCE => Self::Slower,
            Some(estimate) if estimate.interval.1 < 1.0 / TOLERANCE => Self::Faster,
            Some(estimate) if estimate.is_narrow() => Self::Same,
            _ => Self::Undecided,
        }
    }

    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Slower => "SLOWER",
            Self::Faster => "faster",
            Self::Undecided => "undecided",
        }
    }
}

/// The pairs of a workload that are compared, and what they say.
#[derive(Clone, Debug)]
pub(super) struct Summary<'a> {
    pub(super) state: State,
    /// Measured in that state, in which more were than in the other.
    pub(super) used: Vec<&'a Pair>,
    pub(super) estimate: Option<Estimate>,
    pub(super) verdict: Verdict,
}

impl<'a> Summary<'a> {
    pub(super) fn of(pairs: &'a [Pair], states: States) -> Self {
        let within = |state| pairs.iter().filter(|pair| state_of(states, pair) == Some(state)).collect::<Vec<_>>();
        let most = State::ALL.map(|state| (state, within(state))).into_iter().max_by_key(|(_, used)| used.len());
        let (state, used) = most.unwrap_or((State::Only, Vec::new()));
        let estimate = Estimate::of(&used.iter().map(|pair| pair.ratio()).collect::<Vec<_>>());
        Self { state, used, verdict: Verdict::of(estimate.as_ref()), estimate }
    }

    pub(super) fn median_of(&self, figure: impl Fn(&Pair) -> f64) -> Option<f64> {
        median(&self.used.iter().map(|pair| figure(pair)).collect::<Vec<_>>())
    }
}

/// Of an even number of values, the geometric mean of the middle two: of ratios, the same whichever way they are taken.
fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = sorted[(sorted.len() - 1) / 2];
    Some(if sorted.len().is_multiple_of(2) { (lower * upper).sqrt() } else { upper })
}

#[cfg(test)]
#[path = "statistics_tests.rs"]
mod tests;
