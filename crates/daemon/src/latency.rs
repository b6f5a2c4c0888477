//! Service times in a few buckets: what is left of the histograms of queues when their clients are gone, and what Prometheus gets.

use fipsee_block::stats::Distribution;
use fipsee_ring::clock;
use serde::{Deserialize, Serialize};

/// Upper bounds of the buckets, in nanoseconds. One more bucket has none.
pub(crate) const BOUNDS_NS: [u64; 24] = [
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    10_000_000_000,
    30_000_000_000,
];

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Latency {
    /// Not cumulative.
    pub(crate) counts: [u64; BOUNDS_NS.len() + 1],
    /// Of all times, by the middles of the buckets of their histograms.
    pub(crate) sum_ns: u64,
}

impl Latency {
    pub(crate) fn add(&mut self, times: &Distribution) {
        for (ticks, count) in times.middles() {
            self.record(clock::ticks_to_ns(ticks), count);
        }
    }

    fn record(&mut self, ns: u64, count: u64) {
        let bucket = BOUNDS_NS.partition_point(|bound| *bound < ns);
        self.counts[bucket] = self.counts[bucket].saturating_add(count);
        self.sum_ns = self.sum_ns.saturating_add(ns.saturating_mul(count));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_belong_to_the_bucket_below() {
        let mut latency = Latency::default();
        for (ns, count) in [(0, 1), (250, 2), (251, 4), (30_000_000_000, 8), (u64::MAX / 16, 16)] {
            latency.record(ns, count);
        }
        assert_eq!((latency.counts[0], latency.counts[1]), (3, 4));
        assert_eq!(latency.counts[BOUNDS_NS.len() - 1..], [8, 16]);
        assert!(BOUNDS_NS.is_sorted());
    }
}
