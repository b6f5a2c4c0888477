//! Time that the host of a virtual machine gave to others while it was wanted here. A figure measured meanwhile is not this
//! machine's: with two pollers on CPUs that share one of the host's, a microsecond becomes a time slice.

/// More than this, in percent of the CPUs' time, is worth a warning.
const TOLERABLE_PERCENT: f64 = 1.0;

/// The kernel's counters at some moment, in ticks.
pub(crate) struct Steal {
    stolen: u64,
    total: u64,
}

impl Steal {
    /// From now on; `None` where the kernel does not report it.
    pub(crate) fn begin() -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    /// The line of all CPUs: user, nice, system, idle, iowait, irq, softirq, steal; what follows is contained in these (proc(5)).
    fn parse(stat: &str) -> Option<Self> {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks = line.split_ascii_whitespace().take(8).map(|word| word.parse().ok()).collect::<Option<Vec<u64>>>()?;
        Some(Self { stolen: *ticks.get(7)?, total: ticks.iter().sum() })
    }

    fn percent_until(&self, now: &Self) -> f64 {
        let (stolen, total) = (now.stolen.saturating_sub(self.stolen), now.total.saturating_sub(self.total));
        #[expect(clippy::cast_precision_loss, reason = "ticks of some minutes")]
        let percent = 100.0 * stolen as f64 / total.max(1) as f64;
        percent
    }

    /// How much was stolen since, in percent of all CPUs' time; says so if it is too much.
    pub(crate) fn end(begun: Option<&Self>) -> Option<f64> {
        let percent = begun?.percent_until(&Self::begin()?);
        if percent > TOLERABLE_PERCENT {
            eprintln!(
                "warning: the host took {percent:.1} % of this machine's CPU time during the run (steal): these figures are not its own; \
                 run again when the host is quiet"
            );
        }
        Some(percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_is_of_all_time_and_guests_are_not_counted_twice() {
        let stat = |user: u64, stolen: u64| format!("cpu  {user} 0 10 80 0 0 0 {stolen} 999 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n");
        let at = |user, stolen| Steal::parse(&stat(user, stolen)).unwrap_or_else(|| panic!("these are counters"));
        let percent = at(10, 0).percent_until(&at(85, 25));
        assert!((percent - 25.0).abs() < 1e-9, "{percent}");
    }

    #[test]
    fn what_is_no_counter_says_nothing() {
        for stat in ["", "cpu  1 2 3", "cpu  1 2 3 4 5 6 7 x"] {
            assert!(Steal::parse(stat).is_none(), "{stat}");
        }
    }
}
