//! Rounds of numbers, and what is said of them.

use fipsee_measure::statistics;
use serde_json::{Value, json};

use crate::matrix::{CELLS, Cell, candidate};
use crate::steady::State;

pub(crate) const P50: &str = "latency_ns_p50";
pub(crate) const MEAN: &str = "latency_ns_mean";
pub(crate) const BEST: &str = "latency_ns_min";
pub(crate) const P99: &str = "latency_ns_p99";
pub(crate) const IOPS: &str = "iops";
/// Of what is no way to a disk.
pub(crate) const RATE: &str = "requests_per_s";
/// Requests per second of the client's own processor time.
pub(crate) const IOPS_OF_OWN: &str = "iops_of_own_cpu";
/// Messages, each of one or more frames.
pub(crate) const FRAMES: &str = "messages_per_s";
pub(crate) const BANDWIDTH: &str = "bandwidth_bytes_per_s";
/// Until something happened.
pub(crate) const MILLISECONDS: &str = "ms";
/// Processor time of every process that took part, per request.
pub(crate) const CPU: &str = "cpu_ns_per_io";
/// Processor time of the whole machine, per request, unrelated processes included, in steps of 10 ms.
pub(crate) const MACHINE_CPU: &str = "machine_cpu_ns_per_io";

fn median(values: Vec<f64>) -> f64 {
    statistics::median(values).unwrap_or(f64::NAN)
}

/// All rounds of one figure of one candidate.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) candidate: String,
    /// The way and the load, of a candidate of the matrix.
    pub(crate) of_matrix: Option<(&'static str, Cell)>,
    pub(crate) metric: &'static str,
    pub(crate) values: Vec<f64>,
    /// Of each value, if it was measured in one state of the machine ([`steady::measure`](crate::steady::measure)).
    states: Vec<Option<State>>,
    /// Values of another state than those that count.
    pub(crate) other_values: Vec<f64>,
}

impl Series {
    /// Of all rounds, in whatever state.
    pub(crate) fn most(&self) -> f64 {
        self.values.iter().chain(&self.other_values).copied().fold(f64::NEG_INFINITY, f64::max)
    }

    pub(crate) fn median(&self) -> f64 {
        median(self.values.clone())
    }

    /// The median of the ratios of each round's values.
    pub(crate) fn ratio_to(&self, other: &Self) -> f64 {
        median(self.ratios_to(other))
    }

    /// Of each round.
    pub(crate) fn ratios_to(&self, other: &Self) -> Vec<f64> {
        self.values.iter().zip(&other.values).map(|(ours, theirs)| ours / theirs).collect()
    }

    pub(crate) fn best(&self) -> f64 {
        let pick = if matches!(self.metric, IOPS | IOPS_OF_OWN | RATE | FRAMES | BANDWIDTH) { f64::max } else { f64::min };
        self.values.iter().copied().reduce(pick).unwrap_or(f64::NAN)
    }

    fn to_json(&self) -> Value {
        let mut json = json!({
            "candidate": self.candidate,
            "metric": self.metric,
            "median": self.median(),
            "best": self.best(),
            "rounds": self.values,
        });
        if !self.other_values.is_empty() {
            json["other_state"] = self.other_values.clone().into();
        }
        if let Some((way, cell)) = self.of_matrix {
            json["way"] = way.into();
            json["block_bytes"] = cell.block_bytes.into();
            json["operation"] = cell.operation().into();
            json["depth"] = cell.depth.into();
        }
        json
    }
}

/// Everything measured in one run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Results {
    pub(crate) series: Vec<Series>,
}

impl Results {
    /// Add a round's value of a candidate outside the matrix.
    pub(crate) fn add(&mut self, candidate: &str, metric: &'static str, value: f64) {
        self.insert(candidate, None, metric, value, None);
    }

    /// The same, of a value that was measured in this state.
    pub(crate) fn add_in(&mut self, state: Option<State>, candidate: &str, metric: &'static str, value: f64) {
        self.insert(candidate, None, metric, value, state);
    }

    /// Add a round's value of a way under a load.
    pub(crate) fn add_cell(&mut self, way: &'static str, cell: Cell, metric: &'static str, value: f64) {
        self.insert(&candidate(way, cell), Some((way, cell)), metric, value, None);
    }

    fn insert(
        &mut self,
        candidate: &str,
        of_matrix: Option<(&'static str, Cell)>,
        metric: &'static str,
        value: f64,
        state: Option<State>,
    ) {
        let known = self.series.iter().position(|series| series.candidate == candidate && series.metric == metric);
        let index = known.unwrap_or_else(|| {
            let (candidate, values, states, other_values) = (candidate.to_owned(), Vec::new(), Vec::new(), Vec::new());
            self.series.push(Series { candidate, of_matrix, metric, values, states, other_values });
            self.series.len() - 1
        });
        self.series[index].values.push(value);
        self.series[index].states.push(state);
    }

    /// Add the rounds of others, all of which were measured in this state.
    pub(crate) fn append(&mut self, others: Self, state: Option<State>) {
        for Series { candidate, of_matrix, metric, values, .. } in others.series {
            values.into_iter().for_each(|value| self.insert(&candidate, of_matrix, metric, value, state));
        }
    }

    /// From now on what was measured in this state counts, and what was measured in no state in particular; of a figure that was not measured in it, everything.
    pub(crate) fn keep(&mut self, state: State) {
        for series in &mut self.series {
            if !series.states.contains(&Some(state)) {
                continue;
            }
            let values = std::mem::take(&mut series.values).into_iter().zip(std::mem::take(&mut series.states));
            let (kept, others): (Vec<_>, Vec<_>) = values.partition(|(_, of)| of.is_none_or(|of| of == state));
            (series.values, series.states) = kept.into_iter().unzip();
            series.other_values.extend(others.into_iter().map(|(value, _)| value));
        }
    }

    pub(crate) fn get(&self, candidate: &str, metric: &str) -> Option<&Series> {
        self.series.iter().find(|series| series.candidate == candidate && series.metric == metric)
    }

    /// The median over the rounds of one figure of the matrix.
    pub(crate) fn median(&self, way: &str, cell: Cell, metric: &str) -> Option<f64> {
        self.get(&candidate(way, cell), metric).map(Series::median)
    }

    /// Every series, for machines.
    pub(crate) fn to_json(&self) -> Value {
        self.series.iter().map(Series::to_json).collect()
    }

    pub(crate) fn print(&self) {
        println!("{:<44} {:<26} {:>14} {:>14} {:>7}", "candidate", "metric", "median", "best", "rounds");
        for series in self.series.iter().filter(|series| series.of_matrix.is_none()) {
            let (median, best) = (series.median(), series.best());
            println!("{:<44} {:<26} {median:>14.1} {best:>14.1} {:>7}", series.candidate, series.metric, series.values.len());
        }
        CELLS.iter().for_each(|cell| print!("{}", self.cell_table(*cell)));
    }

    /// The medians of every way under one load; nothing when nothing was measured.
    fn cell_table(&self, cell: Cell) -> String {
        let mut ways: Vec<&str> = Vec::new();
        let measured = self.series.iter().filter_map(|series| series.of_matrix.filter(|(_, of)| *of == cell));
        for (way, _) in measured {
            if !ways.contains(&way) {
                ways.push(way);
            }
        }
        if ways.is_empty() {
            return String::new();
        }
        let title = format!("{cell}, medians");
        let mut text =
            format!("\n{title:<32} {:>10} {:>10} {:>10} {:>12} {:>7}\n", "kIOPS", "p50 ns", "p99 ns", "CPU ns/IO", "rounds");
        for way in ways {
            let figure = |metric, divisor: f64, digits: usize| {
                self.median(way, cell, metric).map_or("-".to_owned(), |value| format!("{:.digits$}", value / divisor))
            };
            let rounds = [IOPS, P50].iter().filter_map(|metric| self.get(&candidate(way, cell), metric));
            let rounds = rounds.map(|series| series.values.len()).max().unwrap_or(0);
            let (iops, p50, p99, cpu) = (figure(IOPS, 1e3, 1), figure(P50, 1.0, 0), figure(P99, 1.0, 0), figure(CPU, 1.0, 0));
            text += &format!("{way:<32} {iops:>10} {p50:>10} {p99:>10} {cpu:>12} {rounds:>7}\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::{DEEP, SHALLOW};

    fn results(rounds: &[(&'static str, &'static str, f64)]) -> Results {
        let mut results = Results::default();
        rounds.iter().for_each(|(way, metric, value)| results.add_cell(way, SHALLOW, metric, *value));
        results
    }

    #[test]
    fn median_and_best_are_of_all_rounds() {
        let results = results(&[("a", IOPS, 3.0), ("a", IOPS, 9.0), ("a", IOPS, 4.0), ("a", P50, 7.0), ("a", P50, 5.0)]);
        let of = |metric| results.get("a, 4 KiB read QD1", metric).expect("a series");
        assert_eq!((of(IOPS).median(), of(IOPS).best()), (4.0, 9.0));
        assert_eq!(of(P50).best(), 5.0);
        assert!(median(Vec::new()).is_nan());
    }

    #[test]
    fn ratio_is_that_of_rounds_not_of_medians() {
        let rounds =
            [("a", IOPS, 10.0), ("b", IOPS, 1.0), ("a", IOPS, 2.0), ("b", IOPS, 1.0), ("a", IOPS, 90.0), ("b", IOPS, 30.0)];
        let results = results(&rounds);
        let of = |way| results.get(&candidate(way, SHALLOW), IOPS).expect("a series");
        assert_eq!(of("a").ratio_to(of("b")), 3.0);
    }

    #[test]
    fn figures_of_another_state_do_not_count_unless_there_are_no_others() {
        let mut results = Results::default();
        for (state, value) in [(State::First, 1.0), (State::Other, 5.0), (State::Changed, 9.0), (State::Other, 7.0)] {
            results.add_in(Some(state), "a", P50, value);
        }
        results.add_in(Some(State::First), "b", P50, 2.0);
        results.add("c", P50, 3.0);
        results.keep(State::Other);
        let of = |name| results.get(name, P50).map(|series| (series.values.clone(), series.other_values.clone()));
        assert_eq!(of("a"), Some((vec![5.0, 7.0], vec![1.0, 9.0])));
        assert_eq!((of("b"), of("c")), (Some((vec![2.0], vec![])), Some((vec![3.0], vec![]))));
    }

    #[test]
    fn table_of_a_load_has_a_line_for_each_way_that_was_measured() {
        let results = results(&[("fast", IOPS, 2_500_000.0), ("fast", P50, 120.4), ("slow", P50, 9000.0)]);
        let table = results.cell_table(SHALLOW);
        let lines: Vec<Vec<&str>> = table.trim().lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["fast", "2500.0", "120", "-", "-", "1"]);
        assert_eq!(lines[2], ["slow", "-", "9000", "-", "-", "1"]);
        assert_eq!(results.cell_table(DEEP), "");
    }

    #[test]
    fn series_of_the_matrix_say_what_they_are_of() {
        let json = results(&[("a", IOPS, 1.0)]).series[0].to_json();
        assert_eq!((&json["way"], &json["operation"], &json["depth"]), (&json!("a"), &json!("read"), &json!(1)));
        let mut plain = Results::default();
        plain.add("b", BANDWIDTH, 1.0);
        assert_eq!(plain.series[0].to_json().get("way"), None);
    }
}
