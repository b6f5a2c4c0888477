//! A token bucket.

const NS_PER_SECOND: u64 = 1_000_000_000;

/// So many per second, and a tenth of that at once.
#[derive(Debug)]
pub(super) struct Bucket {
    /// What one costs, in nanoseconds; 0: nothing is limited.
    cost_ns: u64,
    /// What may be saved, in nanoseconds.
    most_ns: u64,
    /// When all that was taken is paid.
    paid_ns: u64,
}

impl Bucket {
    pub(super) fn new(per_second: u32) -> Self {
        let cost_ns = NS_PER_SECOND / u64::from(per_second.max(1));
        Self { cost_ns, most_ns: cost_ns.max(NS_PER_SECOND / 10), paid_ns: 0 }
    }

    pub(super) fn take(&mut self, now_ns: u64) -> bool {
        // What was not used is saved up to the most.
        let paid_ns = self.paid_ns.max(now_ns) + self.cost_ns;
        let may = paid_ns <= now_ns + self.most_ns;
        if may {
            self.paid_ns = paid_ns;
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_configured_and_a_tenth_at_once() {
        let mut bucket = Bucket::new(1000);
        let start_ns = 5_000;
        assert_eq!((0..1000).filter(|_| bucket.take(start_ns)).count(), 100);
        let taken = (0..10_000_u64).filter(|tenth| bucket.take(start_ns + tenth * 100_000)).count();
        assert!((999..=1001).contains(&taken), "{taken} within a second");
        let mut slow = Bucket::new(1);
        assert!(slow.take(0) && !slow.take(NS_PER_SECOND - 1) && slow.take(NS_PER_SECOND));
    }
}
