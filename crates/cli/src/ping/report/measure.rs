//! The measurement: every row once per round, in a rotating order; in a row the floor, the channel and the report's ring one
//! after the other, so that disturbances affect them alike.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fipsee_measure::harness::{Design, Partner, RunLength, Spec, drive, rounds};
use fipsee_measure::statistics::{Spread, States, middle};
use hdrhistogram::Histogram;

use super::course::{Pace, Row};
use super::progress::Progress;
use crate::error::Error;
use crate::ping::start_partner;
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

/// The states of a pair of CPUs, in whatever order; with PAUSE, without which a line takes longer in either state.
pub(super) fn states_of_pair(outcomes: &[Outcome], cpus: Option<[usize; 2]>) -> States {
    let turned = cpus.map(|[a, b]| [b, a]);
    let is_here = |row: &Row| row.spec.pause && (row.cpus == cpus || row.cpus == turned);
    let here = outcomes.iter().filter(|outcome| is_here(&outcome.row));
    States::of(here.flat_map(|outcome| outcome.floors().to_vec()))
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
            std::collections::btree_map::Entry::Vacant(entry) => entry.insert(start_partner(row.cpus)?),
        };
        if let Some([own, _]) = row.cpus {
            process::bind_to_cpu(own)?;
        }
        let (spec, length) = asked(row, cell.design, round, pace);
        let sample = partner.measure(&spec, length).map_err(|error| progress.explain(error.into()))?;
        cell.medians.push(middle(&sample.ticks));
        cell.ticks.add(&sample.ticks).map_err(|error| format!("cannot add histograms: {error}; report this"))?;
        progress.step();
    }
    Ok(())
}

fn asked(row: &Row, design: Design, round: u32, pace: Pace) -> (Spec, RunLength) {
    if design == Design::OneLine {
        return rounds::floor(&row.spec, round, pace.floor);
    }
    (Spec { design, seed: round, ..row.spec.clone() }, RunLength::of_time(pace.warm_up, pace.measured))
}
