//! Near and far, distinguished by what one line took in each round.

use std::time::Duration;

use super::meeting::RunLength;
use super::plan::{Design, Spec, Task};
use super::rounds::Spread;
use crate::units;

/// The floor, in one round: one line bounced, as `base` waits. It needs little warming up: there is a line and no more.
pub(super) fn floor(base: &Spec, round: u32, duration: Duration) -> (Spec, RunLength) {
    let spec = Spec { design: Design::OneLine, task: Task::Queue(1), seed: round, ..base.clone() };
    (spec, RunLength { warm_up: duration / 3, duration: duration - duration / 3 })
}

/// Whether a machine was in two states, *near* and *far*, by what a line took in each round: on a virtual machine the host may
/// move the CPUs, and everything then costs several times more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct States {
    /// A floor below it is near; none: there was one state.
    pub(super) border: Option<f64>,
    /// Most rounds were near.
    mostly_near: bool,
}

/// Noise does not make two states: these quantiles lie so far apart.
const TWO_STATES_FACTOR: f64 = 1.6;
const STATES_QUANTILE: f64 = 0.05;

impl States {
    pub(super) fn of(mut floors: Vec<f64>) -> Self {
        floors.sort_by(f64::total_cmp);
        let rank =
            floors.iter().zip(0_u32..).find(|(_, rank)| f64::from(*rank) >= STATES_QUANTILE * units::to_f64(floors.len() as u64));
        let edge = rank.and_then(|(_, rank)| usize::try_from(rank).ok()).unwrap_or(0);
        let ends = floors.get(edge).zip(floors.len().checked_sub(edge + 1).and_then(|index| floors.get(index)));
        let ends = ends.filter(|(low, high)| **low * TWO_STATES_FACTOR <= **high);
        let border = ends.map(|(low, high)| (low * high).sqrt());
        let states = Self { border, mostly_near: true };
        let near = floors.iter().filter(|floor| states.is_near(**floor)).count();
        Self { mostly_near: near * 2 >= floors.len(), ..states }
    }

    /// Was a round with this floor near? Where there is one state every round was.
    pub(super) fn is_near(self, floor: f64) -> bool {
        self.border.is_none_or(|border| floor < border)
    }

    /// Medians of `figures`, one for each round of `floors`, near and far, if there are two states; NaN of a state without rounds.
    pub(super) fn split(self, floors: &[f64], figures: &[f64]) -> Option<[f64; 2]> {
        self.border?;
        let of = |near: bool| {
            let rounds = figures.iter().zip(floors).filter(|(_, floor)| self.is_near(**floor) == near);
            Spread::of(rounds.map(|(figure, _)| *figure).collect()).median
        };
        Some([of(true), of(false)])
    }

    /// What stands where there is room for one figure, so that figures beside each other are of one state: the median of `figures` in
    /// the state that most rounds were in; none if no round of these was in that one.
    pub(super) fn common(self, floors: &[f64], figures: &[f64]) -> Option<f64> {
        let Some([near, far]) = self.split(floors, figures) else { return Some(Spread::of(figures.to_vec()).median) };
        Some(if self.mostly_near { near } else { far }).filter(|median| median.is_finite())
    }

    /// The words for [`common`](Self::common).
    pub(super) const fn common_words(self) -> &'static str {
        match (self.border.is_some(), self.mostly_near) {
            (false, _) => "",
            (true, true) => ", of the rounds in which the CPUs were near",
            (true, false) => ", of the rounds in which the CPUs were far",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_states_are_told_apart_and_noise_is_none() {
        let near_and_far = [vec![140.0; 60], vec![950.0; 20], vec![7.0, 90_000.0]].concat();
        let States { border, mostly_near } = States::of(near_and_far);
        assert!(mostly_near && !States::of([vec![140.0; 20], vec![950.0; 60]].concat()).mostly_near);
        assert!(border.is_some_and(|border| (300.0..500.0).contains(&border)), "{border:?}");
        assert_eq!(States::of([vec![140.0; 60], vec![180.0; 60], vec![5000.0; 2]].concat()).border, None);
        assert_eq!(States::of(Vec::new()).border, None);
        assert_eq!(States::of(vec![100.0]).border, None);
    }
}
