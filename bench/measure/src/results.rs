//! What was measured, round by round, and where it is kept.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use serde_json::Value;

use crate::statistics::median;

/// Figures of everything that is measured once in a round.
#[derive(Clone, Debug)]
pub struct Rounds<K, V>(BTreeMap<K, BTreeMap<usize, V>>);

impl<K: Ord, V> Default for Rounds<K, V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord, V> Rounds<K, V> {
    /// Enter what came of `key` in `round`.
    pub fn add(&mut self, key: K, round: usize, value: V) {
        self.0.entry(key).or_default().insert(round, value);
    }

    /// Everything, with its rounds in order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, impl Iterator<Item = &V>)> {
        self.0.iter().map(|(key, rounds)| (key, rounds.values()))
    }

    /// One in each round so far; none where it was not measured.
    pub fn in_order(&self, key: &K) -> Vec<Option<&V>> {
        let count = self.0.values().filter_map(|rounds| Some(rounds.last_key_value()?.0 + 1)).max().unwrap_or(0);
        (0..count).map(|round| self.0.get(key)?.get(&round)).collect()
    }

    /// The rounds of one.
    pub fn of(&self, key: &K) -> impl Iterator<Item = &V> {
        self.0.get(key).into_iter().flat_map(BTreeMap::values)
    }

    /// The median over the rounds of one figure.
    pub fn median(&self, key: &K, figure: impl Fn(&V) -> f64) -> Option<f64> {
        median(self.of(key).map(figure).collect())
    }

    /// The median of what `combine` makes of two of the same round.
    pub fn paired(&self, one: &K, other: &K, combine: impl Fn(&V, &V) -> f64) -> Option<f64> {
        let (one, other) = (self.0.get(one)?, self.0.get(other)?);
        median(one.iter().filter_map(|(round, value)| Some(combine(value, other.get(round)?))).collect())
    }

    /// The median of a figure over the largest of `others` in the same round.
    pub fn over_best(&self, one: &K, others: &[K], figure: impl Fn(&V) -> f64) -> Option<f64> {
        let best = |round| {
            let others = others.iter().filter_map(|other| Some(figure(self.0.get(other)?.get(round)?)));
            others.max_by(f64::total_cmp)
        };
        median(self.0.get(one)?.iter().filter_map(|(round, value)| Some(figure(value) / best(round)?)).collect())
    }
}

/// Append a line of JSON.
pub fn append(path: &Path, line: &Value) -> Result<(), String> {
    let mut open = std::fs::OpenOptions::new();
    let file = open.create(true).append(true).open(path);
    let written = file.and_then(|mut file| writeln!(file, "{line}"));
    written.map_err(|error| format!("cannot append to {}: {error}; run from the top of the repository", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(figures: &[(&'static str, [f64; 3])]) -> Rounds<&'static str, f64> {
        let mut rounds = Rounds::default();
        for (name, figures) in figures {
            figures.iter().enumerate().for_each(|(round, figure)| rounds.add(*name, round, *figure));
        }
        rounds
    }

    #[test]
    fn rounds_are_compared_with_the_same_round() {
        let mut all = rounds(&[("ours", [100.0, 30.0, 10.0]), ("theirs", [50.0, 10.0, 10.0])]);
        assert_eq!(all.median(&"ours", |figure| *figure), Some(30.0));
        assert_eq!(all.paired(&"ours", &"theirs", |a, b| a / b), Some(2.0));
        assert_eq!(all.paired(&"ours", &"none", |a, b| a / b), None);
        // A round without the other one is left out.
        all.add("ours", 3, 1e9);
        assert_eq!(all.in_order(&"theirs"), [Some(&50.0), Some(&10.0), Some(&10.0), None]);
        assert_eq!(all.paired(&"ours", &"theirs", |a, b| a / b), Some(2.0));
    }

    #[test]
    fn best_other_is_sought_in_each_round() {
        let all = rounds(&[("ours", [60.0; 3]), ("a", [10.0, 30.0, 1.0]), ("b", [20.0, 20.0, 15.0])]);
        assert_eq!(all.over_best(&"ours", &["a", "b"], |figure| *figure), Some(3.0));
    }
}
