//! What moving a modified cache line costs, from every CPU to every other.

use std::collections::BTreeMap;

use crate::machine::{Cpu, Distance, Machine};

/// The cost of one direction, in ticks of the time-stamp counter per line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    pub median_ticks: f64,
    pub least_ticks: f64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Matrix {
    /// Ticks per second of the time-stamp counter.
    pub tsc_hz: u64,
    /// Ticks of taking a line that the CPU has already: what is not the move itself.
    pub own_ticks: Option<f64>,
    costs: BTreeMap<(usize, usize), Cost>,
}

impl Matrix {
    /// A matrix with these costs, by the CPU that has the line and the one that takes it.
    pub fn new(tsc_hz: u64, own_ticks: Option<f64>, costs: impl IntoIterator<Item = ((usize, usize), Cost)>) -> Self {
        Self { tsc_hz, own_ticks, costs: costs.into_iter().collect() }
    }

    /// What was measured, by the CPU that has the line and the one that takes it.
    pub fn costs(&self) -> impl Iterator<Item = ((usize, usize), Cost)> + '_ {
        self.costs.iter().map(|(direction, cost)| (*direction, *cost))
    }

    pub fn get(&self, from: usize, to: usize) -> Option<Cost> {
        self.costs.get(&(from, to)).copied()
    }

    /// Ticks of both directions together, a message and its answer, if they were measured.
    pub fn both_ways(&self, a: usize, b: usize) -> Option<f64> {
        Some(self.get(a, b)?.median_ticks + self.get(b, a)?.median_ticks)
    }

    /// Pairs that were measured both ways, the lower number first, with the ticks of both.
    pub fn pairs(&self) -> impl Iterator<Item = (usize, usize, f64)> + '_ {
        let pairs = self.costs.keys().filter(|(a, b)| a < b);
        pairs.filter_map(|(a, b)| Some((*a, *b, self.both_ways(*a, *b)?)))
    }

    /// The median of all directions at this distance, and the fastest round among them.
    pub fn at_distance(&self, machine: &Machine, distance: Distance) -> Option<Cost> {
        let here: Vec<&Cost> =
            self.costs.iter().filter(|((a, b), _)| machine.distance(*a, *b) == distance).map(|(_, cost)| cost).collect();
        let least_ticks = here.iter().map(|cost| cost.least_ticks).min_by(f64::total_cmp)?;
        Some(Cost { median_ticks: median(here.iter().map(|cost| cost.median_ticks).collect())?, least_ticks })
    }

    /// `ticks` in nanoseconds.
    pub fn to_ns(&self, ticks: f64) -> f64 {
        ticks * 1e9 / to_f64(self.tsc_hz.max(1))
    }
}

/// Pairs of one kind cost about the same: those between the same two caches, at the same distance.
pub(crate) type Kind = (Distance, [(Option<usize>, Option<usize>); 2]);

pub(crate) fn kind_of(a: &Cpu, b: &Cpu) -> Kind {
    let mut ends = [(a.socket, a.cache), (b.socket, b.cache)];
    ends.sort_unstable();
    (Distance::between(a, b), ends)
}

/// The middle of `values`, between the two middle ones of an even number.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = *values.get((values.len() - 1) / 2)?;
    Some(f64::midpoint(lower, upper))
}

/// A count or time as a float: exact up to 2^53.
#[expect(clippy::cast_precision_loss, reason = "figures of a measurement, far below 2^53")]
pub(crate) const fn to_f64(value: u64) -> f64 {
    value as f64
}
