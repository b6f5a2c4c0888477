//! What was measured, round by round.

use std::collections::BTreeMap;

use fipsee_measure::results::Rounds;
use fipsee_ring::clock;
use serde_json::{Value, json};

use crate::harness::{BURST, Outcome};
use crate::mechanisms::{Entry, names};

/// One measurement of every mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Measure {
    RoundTrip,
    /// 64 messages, then their answers.
    Burst,
    Stream {
        /// How many are sent and received at a time: 1, or as many as there are, up to [`BURST`].
        batch: usize,
        /// Messages that the ring holds; `None` where we do not choose.
        slots: Option<u32>,
    },
}

/// Rings that streams are measured through.
pub const STREAM_SLOTS: [u32; 3] = [64, 1024, 8192];

impl Measure {
    /// All of them, in the order of a round.
    pub fn all() -> Vec<Self> {
        let mut all = vec![Self::RoundTrip, Self::Burst];
        for batch in [BURST, 1] {
            all.extend(STREAM_SLOTS.map(|slots| Self::Stream { batch, slots: Some(slots) }));
            all.push(Self::Stream { batch, slots: None });
        }
        all
    }

    /// Its name in results.
    pub fn name(self) -> String {
        let of = |slots: Option<u32>| slots.map_or_else(|| "own buffers".to_owned(), |slots| format!("{slots} slots"));
        match self {
            Self::RoundTrip => "round trip".to_owned(),
            Self::Burst => "burst of 64".to_owned(),
            Self::Stream { batch: 1, slots } => format!("stream one by one, {}", of(slots)),
            Self::Stream { slots, .. } => format!("stream in batches, {}", of(slots)),
        }
    }

    /// The measure of ours that one of theirs is compared to. Where their buffers have their own size, it is our smallest
    /// ring, our slowest.
    pub const fn of_ours(self) -> Self {
        match self {
            Self::Stream { batch, slots: None } => Self::Stream { batch, slots: Some(STREAM_SLOTS[0]) },
            other => other,
        }
    }
}

/// Outcomes by mechanism and measure.
#[derive(Debug, Default)]
pub struct Results {
    outcomes: Rounds<(&'static str, Measure), Outcome>,
    errors: BTreeMap<&'static str, String>,
}

impl Results {
    /// Enter what came of one job in `round`.
    pub fn add(&mut self, entry: &Entry, measure: Measure, round: usize, outcome: Result<Outcome, String>) {
        match outcome {
            Ok(outcome) => self.outcomes.add((entry.name, measure), round, outcome),
            Err(error) => drop(self.errors.insert(entry.name, format!("{}: {error}", measure.name()))),
        }
    }

    /// What went wrong, by mechanism; the latest of each.
    pub fn errors(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.errors.iter().map(|(name, error)| (*name, error.as_str()))
    }

    /// Median over the rounds of one figure.
    pub fn median(&self, name: &'static str, measure: Measure, figure: impl Fn(&Outcome) -> f64) -> Option<f64> {
        self.outcomes.median(&(name, measure), figure)
    }

    /// Median over the rounds of `name`'s time divided by `other`'s in the same round: half of the round trips take less; of a
    /// stream there is one figure.
    pub fn ratio(&self, name: &'static str, other: &'static str, measure: Measure) -> Option<f64> {
        self.outcomes.paired(&(name, measure), &(other, measure.of_ours()), |one, other| one.p50 / other.p50)
    }

    /// What documents quote first: our round trip, in each round.
    pub fn quoted(&self) -> Vec<(String, Vec<f64>)> {
        let key = (names::RING, Measure::RoundTrip);
        vec![(format!("{}, {}", key.0, key.1.name()), self.outcomes.of(&key).map(|outcome| outcome.p50).collect())]
    }

    /// Every series, for machines: ticks per message of each round.
    pub fn to_json(&self) -> Value {
        let series = self.outcomes.iter().map(|(key @ (name, measure), _)| {
            let rounds = self.outcomes.in_order(key);
            let of = |figure: fn(&Outcome) -> f64| -> Vec<Option<f64>> {
                rounds.iter().map(|outcome| outcome.map(|outcome| (figure(outcome) * 10.0).round() / 10.0)).collect()
            };
            let mut line = json!({ "mechanism": name, "measure": measure.name() });
            if matches!(measure, Measure::Stream { .. }) {
                line["ticks_per_message"] = json!(of(|outcome| outcome.mean));
            } else {
                line["ticks_p50"] = json!(of(|outcome| outcome.p50));
                line["ticks_p99"] = json!(of(|outcome| outcome.p99));
                line["ticks_min"] = json!(of(|outcome| outcome.min));
                line["ticks_mean"] = json!(of(|outcome| outcome.mean));
            }
            line
        });
        series.collect()
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate of some GHz")]
pub fn to_ns(ticks: f64) -> f64 {
    ticks * 1e9 / clock::ticks_per_second() as f64
}
