//! Counters and a latency histogram that one thread writes and any thread reads.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::wire::{Operation, SECTOR_SHIFT};

/// Sub-buckets per power of two as a shift: a value is off by at most 1/32.
const SUB_BITS: u32 = 5;
const SUB_COUNT: u64 = 1 << SUB_BITS;
/// Powers of two covered beyond the sub-buckets: 2^40 ticks are minutes. All together 9 KiB.
const OCTAVES: usize = 36;
const BUCKETS: usize = OCTAVES << SUB_BITS;

/// A counter with one writer: a plain load and store, no locked operation.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Add, from the one thread that writes.
    #[inline(always)]
    pub fn add(&self, value: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(value), Ordering::Relaxed);
    }

    /// The value now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A log-linear histogram of ticks.
#[derive(Debug)]
pub struct Histogram {
    buckets: Vec<Counter>,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: (0..BUCKETS).map(|_| Counter::default()).collect() }
    }
}

fn bucket_of(ticks: u64) -> usize {
    let octave = (63 - (ticks | 1).leading_zeros()).max(SUB_BITS) - SUB_BITS;
    let index = (u64::from(octave) << SUB_BITS) + (ticks >> octave);
    usize::try_from(index).map_or(BUCKETS - 1, |index| index.min(BUCKETS - 1))
}

/// The smallest value that falls into `bucket`.
fn lower_bound(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < 2 * SUB_COUNT {
        return bucket;
    }
    let octave = (bucket >> SUB_BITS) - 1;
    (SUB_COUNT + (bucket & (SUB_COUNT - 1))) << octave
}

impl Histogram {
    #[inline]
    pub fn record(&self, ticks: u64, count: u64) {
        self.buckets[bucket_of(ticks)].add(count);
    }

    /// The buckets that are not empty: smallest value in ticks, and count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let counts = self.buckets.iter().map(Counter::get).enumerate();
        counts.filter(|(_, count)| *count > 0).map(|(bucket, count)| (lower_bound(bucket), count))
    }

    /// The number of recorded values.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(Counter::get).sum()
    }

    /// As [`Distribution::quantile`], of this one alone.
    pub fn quantile(&self, numerator: u64, denominator: u64) -> u64 {
        Distribution::of([self]).quantile(numerator, denominator)
    }
}

/// What several histograms have recorded together, at one time.
#[derive(Clone, Debug)]
pub struct Distribution {
    counts: Vec<u64>,
}

impl Distribution {
    pub fn of<'a>(histograms: impl IntoIterator<Item = &'a Histogram>) -> Self {
        let mut counts = vec![0_u64; BUCKETS];
        for histogram in histograms {
            for (sum, bucket) in counts.iter_mut().zip(&histogram.buckets) {
                *sum = sum.saturating_add(bucket.get());
            }
        }
        Self { counts }
    }

    /// The number of recorded values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The buckets that are not empty: the value in their middle in ticks, and count.
    pub fn middles(&self) -> impl Iterator<Item = (u64, u64)> {
        let counts = self.counts.iter().copied().enumerate();
        counts.filter(|(_, count)| *count > 0).map(|(bucket, count)| (middle(bucket), count))
    }

    /// The value that `numerator / denominator` of the recorded values do not exceed, in ticks; 0 when nothing was recorded.
    pub fn quantile(&self, numerator: u64, denominator: u64) -> u64 {
        let rank = (self.count() * numerator).div_ceil(denominator).max(1);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return middle(bucket);
            }
        }
        0
    }
}

fn middle(bucket: usize) -> u64 {
    u64::midpoint(lower_bound(bucket), lower_bound(bucket + 1).saturating_sub(1))
}

/// The counters of one queue, most of them written by the worker that serves it.
#[derive(Debug, Default)]
pub struct QueueCounters {
    /// Reads answered.
    pub reads: Counter,
    /// Writes answered.
    pub writes: Counter,
    /// Flushes begun.
    pub flushes: Counter,
    /// Discards begun.
    pub discards: Counter,
    /// Writes of zeroes begun.
    pub write_zeroes: Counter,
    /// Everything else: what the protocol itself needs, and requests that were refused before they were begun.
    pub rest: Counter,
    /// Requests answered with an error.
    pub errors: Counter,
    /// Bytes of reads begun.
    pub read_bytes: Counter,
    /// Bytes of writes begun.
    pub written_bytes: Counter,
    /// Visits that found work.
    pub visits: Counter,
    /// Times the sleeping client was woken.
    pub doorbells: Counter,
    /// Times that completions were published and the sleeping client was not woken because of the notification policy.
    pub suppressed: Counter,
    /// Times that the client's doorbell rang and there was no request.
    pub spurious: Counter,
    /// How long its worker was busy with it. Like the next, this is written by the thread that takes samples of workers, and begins at zero in
    /// another process.
    pub busy_ns: Counter,
    /// The number of the worker that was busy with it last, and one.
    worker_plus_1: AtomicU64,
    /// From the request being seen to its completion being published, in ticks: every request of an asynchronous disk,
    /// one visit in 64 of a synchronous one.
    pub latency: Histogram,
}

impl QueueCounters {
    /// Count a request that is neither read nor write.
    #[inline]
    pub fn count_other(&self, operation: Operation) {
        let counter = match operation {
            Operation::Flush => &self.flushes,
            Operation::Discard => &self.discards,
            Operation::WriteZeroes => &self.write_zeroes,
            _ => &self.rest,
        };
        counter.add(1);
    }

    /// This worker was busy with it for so long.
    pub fn worked(&self, worker: usize, time_ns: u64) {
        self.busy_ns.add(time_ns);
        self.worker_plus_1.store(worker as u64 + 1, Ordering::Relaxed);
    }

    /// The worker that was busy with it last, if one was.
    pub fn worker(&self) -> Option<u64> {
        self.worker_plus_1.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Requests taken, of every kind.
    pub fn taken(&self) -> u64 {
        let Self { reads, writes, flushes, discards, write_zeroes, rest, .. } = self;
        [reads, writes, flushes, discards, write_zeroes, rest].iter().map(|counter| counter.get()).sum()
    }

    /// The plain counters under their names; the histogram is separate.
    pub fn plain(&self) -> [(&'static str, &Counter); 13] {
        [
            ("reads", &self.reads),
            ("writes", &self.writes),
            ("flushes", &self.flushes),
            ("discards", &self.discards),
            ("write_zeroes", &self.write_zeroes),
            ("rest", &self.rest),
            ("errors", &self.errors),
            ("read_bytes", &self.read_bytes),
            ("written_bytes", &self.written_bytes),
            ("visits", &self.visits),
            ("doorbells", &self.doorbells),
            ("suppressed", &self.suppressed),
            ("spurious", &self.spurious),
        ]
    }
}

/// Counts of one visit to a queue, written out once at its end. What is rare is counted at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Reads begun.
    pub reads: u64,
    /// Writes begun.
    pub writes: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Sectors of the reads.
    pub read_sectors: u64,
    /// Sectors of the writes.
    pub written_sectors: u64,
}

impl Tally {
    /// Sectors read and written.
    #[inline(always)]
    pub const fn moved_sectors(&self) -> u64 {
        self.read_sectors + self.written_sectors
    }

    /// Add the counts of one visit.
    #[inline(always)]
    pub fn write_to(self, counters: &QueueCounters) {
        counters.visits.add(1);
        for (counter, value) in [
            (&counters.reads, self.reads),
            (&counters.writes, self.writes),
            (&counters.errors, self.errors),
            (&counters.read_bytes, self.read_sectors << SECTOR_SHIFT),
            (&counters.written_bytes, self.written_sectors << SECTOR_SHIFT),
        ] {
            if value != 0 {
                counter.add(value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_contiguous_and_hold_their_bounds() {
        for bucket in 0..BUCKETS - 1 {
            let (low, next) = (lower_bound(bucket), lower_bound(bucket + 1));
            assert!(low < next, "bucket {bucket}");
            assert_eq!(bucket_of(low), bucket);
            assert_eq!(bucket_of(next - 1), bucket);
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_come_from_the_counts() {
        let histogram = Histogram::default();
        assert_eq!(histogram.quantile(1, 2), 0);
        histogram.record(10, 98);
        histogram.record(1000, 2);
        assert_eq!(histogram.quantile(50, 100), 10);
        assert!(histogram.quantile(99, 100).abs_diff(1000) < 32);
        assert_eq!(histogram.count(), 100);
        assert_eq!(histogram.buckets().map(|(_, count)| count).collect::<Vec<_>>(), [98, 2]);
    }

    #[test]
    fn distribution_is_that_of_all_histograms_together() {
        let [one, other] = [Histogram::default(), Histogram::default()];
        one.record(10, 1);
        other.record(10, 2);
        other.record(1000, 97);
        let both = Distribution::of([&one, &other]);
        assert_eq!((both.count(), both.quantile(3, 100)), (100, 10));
        assert_eq!(both.quantile(4, 100), other.quantile(1, 2));
        assert_eq!(both.middles().map(|(_, count)| count).collect::<Vec<_>>(), [3, 97]);
    }

    #[test]
    fn each_operation_has_its_counter() {
        let counters = QueueCounters::default();
        for operation in [Operation::Flush, Operation::Discard, Operation::WriteZeroes, Operation::GetInfo] {
            counters.count_other(operation);
        }
        counters.count_other(Operation::Flush);
        let counts = counters.plain().map(|(_, counter)| counter.get());
        assert_eq!(counts[..6], [0, 0, 2, 1, 1, 1]);
    }
}
