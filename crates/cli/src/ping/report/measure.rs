//! The measurement: every row once per round, in a rotating order; in a row the floor, the channel and the report's ring one
//! after the other, so that disturbances affect them alike.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use fipsee_ring::clock;
use hdrhistogram::Histogram;

use super::course::{Pace, Row};
use super::progress::Progress;
use crate::error::Error;
use crate::ping::drive;
use crate::ping::meeting::RunLength;
use crate::ping::partner::Partner;
use crate::ping::plan::{Design, Spec};
use crate::ping::rounds::Spread;
use crate::{process, units};

/// One design in one row.
pub(super) struct Cell {
    pub(super) design: Design,
    /// Bursts of all rounds.
    pub(super) ticks: Histogram<u64>,
    /// The median burst of each round.
    pub(super) medians: Vec<f64>,
}

/// A row and its results.
pub(super) struct Outcome {
    pub(super) row: Row,
    pub(super) cells: Vec<Cell>,
}

impl Cell {
    /// The median burst of the median round. The median of all bursts together would be that of the fast state: there are more
    /// of them in a round.
    pub(super) fn median(&self) -> f64 {
        Spread::of(self.medians.clone()).median
    }

    /// Minimum, mean, median and 99th percentile of a burst; all rounds together, except for the median.
    pub(super) fn figures(&self) -> [f64; 4] {
        let p99 = units::to_f64(self.ticks.value_at_quantile(0.99));
        [units::to_f64(self.ticks.min()), self.ticks.mean(), self.median(), p99]
    }
}

impl Outcome {
    pub(super) fn cell(&self, design: Design) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.design == design && !cell.medians.is_empty())
    }

    /// The ratio of `own`'s time to `other`'s, round by round.
    pub(super) fn ratios(&self, own: Design, other: Design) -> Option<Vec<f64>> {
        let (own, other) = (self.cell(own)?, self.cell(other)?);
        Some(own.medians.iter().zip(&other.medians).map(|(own, other)| own / other).collect())
    }

    /// The floor of each round of this row.
    pub(super) fn floors(&self) -> &[f64] {
        self.cell(Design::OneLine).map_or(&[], |cell| &cell.medians)
    }
}

/// Whether a machine was in two states, *near* and *far*, by the time of a line in each round: on a virtual machine the host may
/// move the CPUs, and everything then costs several times more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct States {
    /// A floor below it is near; none: there was one state.
    pub(super) border: Option<f64>,
    /// Most rounds were near.
    mostly_near: bool,
}

/// Noise does not make two states: their quantiles are at least this far apart.
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
        let near = floors.iter().filter(|floor| border.is_some_and(|border| **floor < border)).count();
        Self { border, mostly_near: near * 2 >= floors.len() }
    }

    /// Of a pair of CPUs, in whatever order; with PAUSE, without which a line takes longer in either state.
    pub(super) fn of_pair(outcomes: &[Outcome], cpus: Option<[usize; 2]>) -> Self {
        let turned = cpus.map(|[a, b]| [b, a]);
        let is_here = |row: &Row| row.spec.pause && (row.cpus == cpus || row.cpus == turned);
        let here = outcomes.iter().filter(|outcome| is_here(&outcome.row));
        Self::of(here.flat_map(|outcome| outcome.floors().to_vec()).collect())
    }

    /// Medians of `figures`, one for each round of the outcome, near and far, if there are two states; NaN of a state without
    /// rounds.
    pub(super) fn split(self, outcome: &Outcome, figures: &[f64]) -> Option<[f64; 2]> {
        let border = self.border?;
        let of = |near: bool| {
            let rounds = figures.iter().zip(outcome.floors()).filter(|(_, floor)| (**floor < border) == near);
            Spread::of(rounds.map(|(figure, _)| *figure).collect()).median
        };
        Some([of(true), of(false)])
    }

    /// The single figure of a cell, so that neighbouring figures are of one state: the median of a cell in the
    /// state that most rounds were in; none if no round of it was in that one.
    pub(super) fn common(self, outcome: &Outcome, cell: &Cell) -> Option<f64> {
        let Some([near, far]) = self.split(outcome, &cell.medians) else { return Some(cell.median()) };
        Some(if self.mostly_near { near } else { far }).filter(|median| median.is_finite())
    }

    /// The text for [`common`](Self::common).
    pub(super) const fn common_words(self) -> &'static str {
        match (self.border.is_some(), self.mostly_near) {
            (false, _) => "",
            (true, true) => ", of the rounds in which the CPUs were near",
            (true, false) => ", of the rounds in which the CPUs were far",
        }
    }
}

/// The step of the time-stamp counter: on many machines more than one cycle.
pub(super) fn counter_step() -> u64 {
    static STEP: LazyLock<u64> = LazyLock::new(|| {
        const READINGS: u32 = 1000;
        let mut last = clock::ticks_fenced();
        let differences = (0..READINGS).map(|_| {
            let now = clock::ticks_fenced();
            now.saturating_sub(std::mem::replace(&mut last, now))
        });
        differences.fold(0, greatest_common_divisor).max(1)
    });
    *STEP
}

const fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The median, interpolated within the counter's step (or the histogram's, where that is wider): bursts of some 300 cycles would
/// else all have one of a few medians.
fn middle(ticks: &Histogram<u64>) -> f64 {
    let half = units::to_f64(ticks.len()) / 2.0;
    let mut below = 0.0;
    for step in ticks.iter_recorded() {
        let count = units::to_f64(step.count_since_last_iteration());
        if below + count >= half {
            let value = step.value_iterated_to();
            let width = units::to_f64(ticks.equivalent_range(value).max(counter_step()));
            return units::to_f64(ticks.median_equivalent(value)) + width * ((half - below) / count - 0.5);
        }
        below += count;
    }
    f64::NAN
}

/// Measure all rows until `deadline`, in whole rounds of which there is one at least; how many there were.
pub(super) fn run(rows: Vec<Row>, pace: Pace, deadline: Instant, progress: &Progress) -> Result<(Vec<Outcome>, u32), Error> {
    let cell = |design: &Design| Ok(Cell { design: *design, ticks: drive::histogram()?, medians: Vec::new() });
    let outcome = |row: Row| Ok(Outcome { cells: row.designs.iter().map(cell).collect::<Result<_, Error>>()?, row });
    let mut outcomes = rows.into_iter().map(outcome).collect::<Result<Vec<Outcome>, Error>>()?;
    let mut partners = BTreeMap::new();
    let (mut done, mut longest) = (0, Duration::ZERO);
    while done < pace.rounds && (done == 0 || Instant::now() + longest <= deadline) {
        let started = Instant::now();
        let count = outcomes.len();
        let first =
            usize::try_from(done).unwrap_or(0) * (count / usize::try_from(pace.rounds).unwrap_or(1)).max(1) % count.max(1);
        for index in (first..count).chain(0..first) {
            if let Some(outcome) = outcomes.get_mut(index) {
                measure_row(outcome, done, pace, &mut partners, progress)?;
            }
        }
        longest = longest.max(started.elapsed());
        done += 1;
    }
    Ok((outcomes, done))
}

type Partners = BTreeMap<Option<[usize; 2]>, Partner>;

/// One row in one round, each time beginning with another design.
fn measure_row(outcome: &mut Outcome, round: u32, pace: Pace, partners: &mut Partners, progress: &Progress) -> Result<(), Error> {
    let Outcome { row, cells } = outcome;
    let count = cells.len();
    let first = usize::try_from(round).unwrap_or(0) % count.max(1);
    for index in (first..count).chain(0..first) {
        let Some(cell) = cells.get_mut(index) else { continue };
        progress.check()?;
        let partner = match partners.entry(row.cpus) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => entry.insert(Partner::start(false, row.cpus)?),
        };
        if let Some([own, _]) = row.cpus {
            process::bind_to_cpu(own)?;
        }
        let (spec, duty) = asked(row, cell.design, round, pace);
        let sample = partner.measure(&spec, duty).map_err(|error| progress.explain(error))?;
        cell.medians.push(middle(&sample.ticks));
        cell.ticks.add(&sample.ticks).map_err(|error| format!("cannot add histograms: {error}; report this"))?;
        progress.step();
    }
    Ok(())
}

fn asked(row: &Row, design: Design, round: u32, pace: Pace) -> (Spec, RunLength) {
    if design == Design::OneLine {
        let spec = Spec { design, task: crate::ping::plan::Task::Queue(1), seed: round, ..row.spec.clone() };
        return (spec, RunLength { warm_up: pace.floor / 3, duration: pace.floor - pace.floor / 3 });
    }
    (Spec { design, seed: round, ..row.spec.clone() }, RunLength { warm_up: pace.warm_up, duration: pace.measured })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_states_are_distinguished_and_noise_makes_none() {
        let near_and_far = [vec![140.0; 60], vec![950.0; 20], vec![7.0, 90_000.0]].concat();
        let States { border, mostly_near } = States::of(near_and_far);
        assert!(mostly_near && !States::of([vec![140.0; 20], vec![950.0; 60]].concat()).mostly_near);
        assert!(border.is_some_and(|border| (300.0..500.0).contains(&border)), "{border:?}");
        assert_eq!(States::of([vec![140.0; 60], vec![180.0; 60], vec![5000.0; 2]].concat()).border, None);
        assert_eq!(States::of(Vec::new()).border, None);
        assert_eq!(States::of(vec![100.0]).border, None);
    }

    #[test]
    fn the_answering_side_waits_in_its_own_way() {
        let base = super::super::course::base_spec(None);
        let mut partner = Partner::start(true, None).expect("a thread");
        let duty = RunLength { warm_up: Duration::ZERO, duration: Duration::from_millis(1) };
        for design in [Design::Channel, Design::Classic] {
            let spec = |wait: &str| Spec { design, answerer_wait: Some(wait.to_owned()), ..base.clone() };
            assert!(partner.measure(&spec("yield"), duty).is_ok(), "{design:?}");
        }
        let unknown = Spec { answerer_wait: Some("doze".to_owned()), ..base };
        assert!(unknown.choices().is_ok(), "the calling side does not wait so");
        let error = partner.measure(&unknown, duty).expect_err("the answering side does").to_string();
        assert!(error.contains("unknown wait mode 'doze'"), "{error}");
    }

    #[test]
    fn a_median_is_within_half_a_step_of_the_recorded_one() {
        let mut ticks = drive::histogram().expect("a histogram");
        let step = counter_step();
        let recorded = 40 * step;
        for value in [39 * step, recorded, recorded, recorded, 41 * step, 900 * step] {
            ticks.record(value).expect("in range");
        }
        let (found, recorded) = (middle(&ticks), units::to_f64(recorded));
        assert!((found - recorded).abs() <= units::to_f64(step.max(2)) / 2.0, "{found} beside {recorded}");
        assert!(middle(&drive::histogram().expect("a histogram")).is_nan(), "of nothing");
    }

    #[test]
    fn the_step_of_a_counter_divides_every_difference() {
        assert_eq!([52, 26, 130, 0].into_iter().fold(0, greatest_common_divisor), 26);
        let (from, step) = (clock::ticks_fenced(), counter_step());
        assert!((clock::ticks_fenced() - from).is_multiple_of(step), "{step}");
    }
}
