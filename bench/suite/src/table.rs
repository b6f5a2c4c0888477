//! Rounds of numbers, and what is said of them.

use serde_json::{Value, json};

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// All rounds of one figure of one candidate.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) candidate: &'static str,
    pub(crate) metric: &'static str,
    pub(crate) lower_is_better: bool,
    pub(crate) values: Vec<f64>,
}

impl Series {
    pub(crate) fn median(&self) -> f64 {
        median(self.values.clone())
    }

    /// The median of the ratios of each round's values.
    pub(crate) fn ratio_to(&self, other: &Self) -> f64 {
        median(self.values.iter().zip(&other.values).map(|(ours, theirs)| ours / theirs).collect())
    }

    pub(crate) fn best(&self) -> f64 {
        let pick = if self.lower_is_better { f64::min } else { f64::max };
        self.values.iter().copied().reduce(pick).unwrap_or(f64::NAN)
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "candidate": self.candidate,
            "metric": self.metric,
            "median": self.median(),
            "best": self.best(),
            "rounds": self.values,
        })
    }
}

/// Everything measured in one run.
#[derive(Debug, Default)]
pub(crate) struct Results {
    pub(crate) series: Vec<Series>,
}

impl Results {
    pub(crate) fn add(&mut self, candidate: &'static str, metric: &'static str, lower_is_better: bool, value: f64) {
        let known = self.series.iter_mut().find(|series| series.candidate == candidate && series.metric == metric);
        match known {
            Some(series) => series.values.push(value),
            None => self.series.push(Series { candidate, metric, lower_is_better, values: vec![value] }),
        }
    }

    pub(crate) fn get(&self, candidate: &str, metric: &str) -> Option<&Series> {
        self.series.iter().find(|series| series.candidate == candidate && series.metric == metric)
    }

    pub(crate) fn print(&self) {
        println!("{:<44} {:<26} {:>14} {:>14} {:>7}", "candidate", "metric", "median", "best", "rounds");
        for series in &self.series {
            let (median, best) = (series.median(), series.best());
            println!("{:<44} {:<26} {median:>14.1} {best:>14.1} {:>7}", series.candidate, series.metric, series.values.len());
        }
    }
}

/// A claim that the run bears out, or does not.
pub(crate) struct Claim {
    pub(crate) text: &'static str,
    pub(crate) value: Option<f64>,
    pub(crate) limit: f64,
    pub(crate) at_most: bool,
}

impl Claim {
    pub(crate) fn holds(&self) -> Option<bool> {
        self.value.map(|value| if self.at_most { value <= self.limit } else { value >= self.limit })
    }

    pub(crate) fn print(&self) {
        let sign = if self.at_most { "<=" } else { ">=" };
        let verdict = match self.holds() {
            Some(true) => "holds",
            Some(false) => "DOES NOT HOLD",
            None => "not measured",
        };
        println!("{:<70} {:>14.3} {sign} {:<12} {verdict}", self.text, self.value.unwrap_or(f64::NAN), self.limit);
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({ "claim": self.text, "value": self.value, "limit": self.limit, "at_most": self.at_most, "holds": self.holds() })
    }
}
