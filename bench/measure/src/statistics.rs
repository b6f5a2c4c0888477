//! What is reported of several rounds: their middle, how far they spread, and in which state the machine was.

use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// Counters stay far below 2^53, where the conversion is exact.
#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
pub const fn to_f64(value: u64) -> f64 {
    value as f64
}

/// The middle one; of two, halfway between. `None` of none.
pub fn median(values: Vec<f64>) -> Option<f64> {
    (!values.is_empty()).then(|| Spread::of(values).median)
}

/// The middle of some values and how far they spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The middle value; of two, halfway between.
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// All NaN of none.
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        let (low, high) = (at(values.len().saturating_sub(1) / 2), at(values.len() / 2));
        Self { median: f64::midpoint(low, high), min: at(0), max: at(values.len().saturating_sub(1)) }
    }

    pub fn to_json(self) -> Value {
        json!({ "median": self.median, "min": self.min, "max": self.max })
    }
}

/// How sure an interval of the median is, at least.
const CONFIDENCE: f64 = 0.9;

/// Between which of these values the median of all rounds is that a machine could be measured in, with 90 % confidence, whatever their
/// distribution (sign test): least and most of up to seven values, of eight the second and the seventh. NaN of none.
pub fn interval_of_median(mut values: Vec<f64>) -> [f64; 2] {
    values.sort_by(f64::total_cmp);
    let count = to_f64(values.len() as u64);
    // The median is below the value of this rank as often as so many of `count` tosses of a coin, or fewer, are heads.
    let (mut left_out, mut exactly, mut at_most) = (0, 0.5_f64.powf(count), 0.5_f64.powf(count));
    loop {
        let heads = to_f64(left_out as u64 + 1);
        exactly *= (count - heads + 1.0) / heads;
        at_most += exactly;
        if 2.0 * at_most > 1.0 - CONFIDENCE || 2.0 * heads >= count {
            break;
        }
        left_out += 1;
    }
    let at = |index: Option<usize>| index.and_then(|index| values.get(index)).copied().unwrap_or(f64::NAN);
    [at(Some(left_out)), at(values.len().checked_sub(left_out + 1))]
}

/// May the median be on either side of this limit, by [`interval_of_median`]?
pub fn is_undecided(values: Vec<f64>, limit: f64) -> bool {
    let [low, high] = interval_of_median(values);
    low < limit && limit <= high
}

/// The median of pairs of a value and how often it was recorded, in ascending order; `None` if none was recorded.
///
/// The time-stamp counter moves in steps, on Zen of 26, so that the middle value stays for a change of 5 % or jumps by as much.
/// Within the step that holds the median, the counts say how much of it is below: as if its values were spread evenly from the
/// middle between this value and the one before to the middle between it and the next.
pub fn within_step(counts: &[(f64, u64)]) -> Option<f64> {
    let half = to_f64(counts.iter().map(|(_, count)| count).sum()) / 2.0;
    let mut below = 0.0;
    for (index, (value, count)) in counts.iter().enumerate() {
        let count = to_f64(*count);
        if count > 0.0 && below + count >= half {
            let neighbour = |index: Option<usize>| index.and_then(|index| counts.get(index)).map(|(value, _)| *value);
            let (before, after) = (neighbour(index.checked_sub(1)), neighbour(Some(index + 1)));
            // At an end of the list the step is as wide as on the other side.
            let down = before.or(after).map_or(0.0, |other| (value - other).abs() / 2.0);
            let up = after.or(before).map_or(0.0, |other| (value - other).abs() / 2.0);
            return Some(value - down + (down + up) * (half - below) / count);
        }
        below += count;
    }
    None
}

/// [`within_step`] of a histogram; NaN of an empty one.
pub fn middle(ticks: &Histogram<u64>) -> f64 {
    let step = |value| (to_f64(ticks.median_equivalent(value)), ticks.count_at(value));
    let counts: Vec<_> = ticks.iter_recorded().map(|recorded| step(recorded.value_iterated_to())).collect();
    within_step(&counts).unwrap_or(f64::NAN)
}

/// Whether a machine was in two states, *near* and *far*, by what one bounced line took in each round: on a virtual machine the
/// host may move the CPUs, and everything then costs several times more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct States {
    /// Rounds with a floor below it were near; `None`: there was one state.
    pub border: Option<f64>,
    /// Most rounds were near.
    mostly_near: bool,
}

/// There were two states if the quantile from above is at least so many times that from below: noise spreads less.
const TWO_STATES_FACTOR: f64 = 1.6;
const STATES_QUANTILE: f64 = 0.05;

impl States {
    /// States with this border between them.
    pub const fn with_border(border: Option<f64>) -> Self {
        Self { border, mostly_near: true }
    }

    /// The states of rounds with these floors.
    pub fn of(floors: impl IntoIterator<Item = f64>) -> Self {
        let mut floors: Vec<f64> = floors.into_iter().collect();
        floors.sort_by(f64::total_cmp);
        let rank = floors.iter().zip(0_u32..).find(|(_, rank)| f64::from(*rank) >= STATES_QUANTILE * to_f64(floors.len() as u64));
        let edge = rank.and_then(|(_, rank)| usize::try_from(rank).ok()).unwrap_or(0);
        let ends = floors.get(edge).zip(floors.len().checked_sub(edge + 1).and_then(|index| floors.get(index)));
        let ends = ends.filter(|(low, high)| **low * TWO_STATES_FACTOR <= **high);
        let states = Self::with_border(ends.map(|(low, high)| (low * high).sqrt()));
        let near = floors.iter().filter(|floor| states.is_near(**floor)).count();
        Self { mostly_near: near * 2 >= floors.len(), ..states }
    }

    /// Was a round with this floor near? Where there is one state every round was.
    pub fn is_near(self, floor: f64) -> bool {
        self.border.is_none_or(|border| floor < border)
    }

    /// Medians of `figures`, one for each round of `floors`: near and far; `None` if there was one state; NaN of a state without
    /// rounds.
    pub fn split(self, floors: &[f64], figures: &[f64]) -> Option<[f64; 2]> {
        self.border?;
        let of = |near: bool| {
            let rounds = figures.iter().zip(floors).filter(|(_, floor)| self.is_near(**floor) == near);
            Spread::of(rounds.map(|(figure, _)| *figure).collect()).median
        };
        Some([of(true), of(false)])
    }

    /// The median of `figures` in the state that most rounds were in, so that single figures beside each other are of one state;
    /// `None` if no round of these was in that state.
    pub fn common(self, floors: &[f64], figures: &[f64]) -> Option<f64> {
        let Some([near, far]) = self.split(floors, figures) else { return Some(Spread::of(figures.to_vec()).median) };
        Some(if self.mostly_near { near } else { far }).filter(|median| median.is_finite())
    }

    /// The words that say which rounds [`common`](Self::common) is of.
    pub const fn common_words(self) -> &'static str {
        match (self.border.is_some(), self.mostly_near) {
            (false, _) => "",
            (true, true) => ", of the rounds in which the CPUs were near",
            (true, false) => ", of the rounds in which the CPUs were far",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn values_that_are_left_out_leave_the_median_between_the_others_in_nine_of_ten_cases() {
        let interval = |count: u32| interval_of_median((1..=count).rev().map(f64::from).collect());
        // Binomial tables: 0.94 of five, 0.98 of seven (0.87 without its ends), 0.93 of eight and of eleven without one and two at each end.
        for (count, ends) in
            [(1, [1.0, 1.0]), (5, [1.0, 5.0]), (7, [1.0, 7.0]), (8, [2.0, 7.0]), (10, [2.0, 9.0]), (11, [3.0, 9.0])]
        {
            assert_eq!(interval(count), ends, "{count} values");
        }
        assert!(interval(0).iter().all(|end| end.is_nan()));
    }

    #[test]
    fn a_limit_within_the_interval_is_undecided() {
        let undecided = |limit| is_undecided(vec![0.9, 1.0, 1.1], limit);
        assert_eq!([0.8, 0.9, 0.95, 1.1, 1.2].map(undecided), [false, false, true, true, false]);
        assert!(!is_undecided(Vec::new(), 1.0) && !is_undecided(vec![1.0], 1.0));
    }

    #[test]
    fn spread_is_the_middle_and_the_ends() {
        assert_eq!(Spread::of(vec![3.0, 1.0, 2.0]), Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Spread::of(vec![4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert_eq!((median(vec![4.0, 1.0, 2.0, 3.0]), median(Vec::new())), (Some(2.5), None));
    }

    #[test]
    fn two_states_are_told_apart_and_noise_is_none() {
        let near_and_far = [vec![140.0; 60], vec![950.0; 20], vec![7.0, 90_000.0]].concat();
        let States { border, mostly_near } = States::of(near_and_far);
        assert!(mostly_near && !States::of([vec![140.0; 20], vec![950.0; 60]].concat()).mostly_near);
        assert!(border.is_some_and(|border| (300.0..500.0).contains(&border)), "{border:?}");
        assert_eq!(States::of([vec![140.0; 60], vec![180.0; 60], vec![5000.0; 2]].concat()).border, None);
        assert_eq!(States::of([100.0, 105.0, 112.0, 118.0, 125.0, 131.0, 140.0]).border, None, "one that drifts is not split");
        assert_eq!(States::of([]).border, None);
        assert_eq!(States::of([100.0]).border, None);
    }

    #[test]
    fn a_lone_outlier_does_not_hide_the_border_between_two_states() {
        let near = (0..40).map(|index| 110.0 + f64::from(index % 7));
        let far = (0..12).map(|index| 440.0 + f64::from(index * 3));
        let states = States::of(near.chain(far).chain([5000.0]));
        assert!(states.border.is_some_and(|border| (117.0..440.0).contains(&border)), "{states:?}");
    }

    /// What a counter in steps of 26 makes of times around `middle`, from 40 below it to 40 above.
    fn recorded(middle: u32) -> Vec<(f64, u64)> {
        let mut counts = BTreeMap::new();
        for time in middle - 40..=middle + 40 {
            // Start and end fall anywhere in their steps.
            for start in 0..26 {
                *counts.entry((start + time) / 26 * 26).or_insert(0) += 1;
            }
        }
        counts.into_iter().map(|(value, count)| (f64::from(value), count)).collect()
    }

    #[test]
    fn a_change_within_a_step_is_seen_as_large_as_it_is() {
        for middle in 500..600 {
            let found = within_step(&recorded(middle)).expect("some");
            assert!((found - f64::from(middle)).abs() < 1.0, "{found} of {middle}");
        }
    }

    #[test]
    fn the_middle_of_a_single_value_is_the_value_and_of_none_there_is_none() {
        assert_eq!(within_step(&[(520.0, 7)]), Some(520.0));
        assert_eq!(within_step(&[(494.0, 0), (520.0, 7)]), Some(520.0));
        assert_eq!(within_step(&[]), None);
        // A quarter of the values is below: the median is a third into the step from 507 to 533.
        assert_eq!(within_step(&[(494.0, 25), (520.0, 75)]), Some(507.0 + 26.0 / 3.0));
    }

    #[test]
    fn a_median_lies_within_half_a_step_of_the_recorded_one() {
        let mut ticks = Histogram::<u64>::new_with_bounds(1, 1 << 40, 3).expect("a histogram");
        assert!(middle(&ticks).is_nan(), "of nothing");
        for value in [39 * 26, 40 * 26, 40 * 26, 40 * 26, 41 * 26, 900 * 26] {
            ticks.record(value).expect("in range");
        }
        assert!((middle(&ticks) - 1040.0).abs() <= 13.0, "{}", middle(&ticks));
    }
}
