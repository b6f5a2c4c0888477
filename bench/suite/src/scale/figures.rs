//! What the report's tables say of a run: latencies in microseconds, requests per second, and how equal the clients were.

use fipsee_measure::statistics::to_f64;

use crate::table::{RATE, Results};

pub(super) const MAX_US: &str = "latency_us_max";
pub(super) const MEAN_US: &str = "latency_us_mean";
pub(super) const MIN_US: &str = "latency_us_min";
pub(super) const DEVIATION_US: &str = "latency_us_standard_deviation";
/// Jain's index of the clients' requests per second: 1 if all are equal, 1/n if one has everything.
pub(super) const FAIRNESS: &str = "fairness_index";

/// One client's run.
#[derive(Clone, Debug, Default)]
pub(super) struct ClientTimes {
    /// From the common start to its last answer.
    pub(super) elapsed_ns: u64,
    pub(super) latencies_ns: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figures {
    /// From the common start to the last answer of all.
    pub(super) seconds: f64,
    pub(super) max_us: f64,
    pub(super) mean_us: f64,
    pub(super) min_us: f64,
    pub(super) deviation_us: f64,
    pub(super) rate: f64,
    pub(super) fairness: f64,
}

impl Figures {
    /// Clients without a request are not counted; an error if there was none at all.
    pub(super) fn of(clients: &[ClientTimes]) -> Result<Self, String> {
        let latencies = || clients.iter().flat_map(|client| client.latencies_ns.iter().map(|ns| to_f64(*ns) / 1e3));
        let count = to_f64(clients.iter().map(|client| client.latencies_ns.len() as u64).sum());
        let slowest_ns = clients.iter().map(|client| client.elapsed_ns).max().unwrap_or(0);
        if count == 0.0 || slowest_ns == 0 {
            return Err("no request was answered".to_owned());
        }
        let mean_us = latencies().sum::<f64>() / count;
        let variance = latencies().map(|us| (us - mean_us) * (us - mean_us)).sum::<f64>() / count;
        let of_one = |client: &ClientTimes| to_f64(client.latencies_ns.len() as u64) / to_f64(client.elapsed_ns.max(1));
        Ok(Self {
            seconds: to_f64(slowest_ns) / 1e9,
            max_us: latencies().fold(0.0, f64::max),
            mean_us,
            min_us: latencies().fold(f64::MAX, f64::min),
            deviation_us: variance.sqrt(),
            rate: count / to_f64(slowest_ns) * 1e9,
            fairness: jain(clients.iter().filter(|client| !client.latencies_ns.is_empty()).map(of_one)),
        })
    }

    pub(super) fn add_to(&self, results: &mut Results, candidate: &str) {
        let Self { seconds: _, max_us, mean_us, min_us, deviation_us, rate, fairness } = *self;
        let figures = [
            (MAX_US, max_us),
            (MEAN_US, mean_us),
            (MIN_US, min_us),
            (DEVIATION_US, deviation_us),
            (RATE, rate),
            (FAIRNESS, fairness),
        ];
        figures.into_iter().for_each(|(metric, value)| results.add(candidate, metric, value));
    }
}

/// Jain's fairness index; NaN of none.
pub(super) fn jain(shares: impl Iterator<Item = f64>) -> f64 {
    let (count, sum, squares) =
        shares.fold((0.0, 0.0, 0.0), |(count, sum, squares), share| (count + 1.0, sum + share, squares + share * share));
    sum * sum / (count * squares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_of_all_requests_and_fairness_is_of_clients() {
        let client = |elapsed_ns, latencies_ns: &[u64]| ClientTimes { elapsed_ns, latencies_ns: latencies_ns.to_vec() };
        let even = Figures::of(&[client(4000, &[1000, 3000]), client(4000, &[1000, 3000])]).expect("figures");
        let expected =
            Figures { seconds: 4e-6, max_us: 3.0, mean_us: 2.0, min_us: 1.0, deviation_us: 1.0, rate: 1e6, fairness: 1.0 };
        assert_eq!(even, expected);
        // One was three times as fast: (3 + 1)^2 / (2 * (9 + 1)).
        let uneven = Figures::of(&[client(1000, &[1000]), client(3000, &[3000]), client(0, &[])]).expect("figures");
        assert!((uneven.fairness - 0.8).abs() < 1e-9, "{uneven:?}");
        assert!(Figures::of(&[client(0, &[])]).is_err());
    }

    #[test]
    fn fairness_is_one_of_equals_and_one_over_n_of_one_that_has_all() {
        assert_eq!(jain([5.0; 8].into_iter()), 1.0);
        assert_eq!(jain([9.0, 0.0, 0.0, 0.0].into_iter()), 0.25);
        assert!(jain(std::iter::empty()).is_nan());
    }
}
