//! Which of several workers goes first that wait for the same limit.
//!
//! They all wait for the same time, and the one that looks first may take all that is there: a worker that polls for other queues always
//! looks before one that must wake up. So what each takes while another waits is counted, and one that is ahead lets those behind it
//! go first, for a while.

use std::sync::atomic::AtomicU64;

use fipsee_ring::{AtomicU32, Ordering};

/// More workers than this share entries.
const ENTRIES: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// A bit for each worker that waits.
    waiting: AtomicU64,
    /// For how long the limit was used up by what each has taken while others waited, in ticks.
    used: [AtomicU64; ENTRIES],
}

/// A number for a worker, by which limits distinguish it.
pub(crate) fn next_worker() -> u32 {
    static WORKERS: AtomicU32 = AtomicU32::new(0);
    WORKERS.fetch_add(1, Ordering::Relaxed)
}

const fn entry(worker: u32) -> usize {
    worker as usize % ENTRIES
}

impl Turns {
    /// It has a request, and may not be served now.
    pub(crate) fn waits(&self, worker: u32) {
        self.waiting.fetch_or(1 << entry(worker), Ordering::Relaxed);
    }

    /// What the one has used of those others that wait and have used least. `None`: no other waits.
    fn least_of_others(&self, worker: u32) -> Option<u64> {
        let waiting = self.waiting.load(Ordering::Relaxed) & !(1 << entry(worker));
        let used = self.used.iter().enumerate().filter(|(other, _)| waiting & 1 << other != 0);
        used.map(|(_, used)| used.load(Ordering::Relaxed)).min()
    }

    /// Is it ahead of another that waits, by more than `lead` ticks?
    pub(crate) fn yields(&self, worker: u32, lead: u64) -> bool {
        let used = self.used[entry(worker)].load(Ordering::Relaxed);
        self.least_of_others(worker).is_some_and(|least| used > least.saturating_add(lead))
    }

    /// It took what uses the limit for `cost` ticks. Of workers that do so at the same time each may miss what the other stores: then one
    /// has a little more.
    pub(crate) fn served(&self, worker: u32, cost: u64, lead: u64) {
        let waiting = self.waiting.load(Ordering::Relaxed);
        if waiting == 0 {
            return;
        }
        // Those that were let go first and have not come may want nothing any more.
        let others = if self.yields(worker, lead) { 0 } else { waiting & !(1 << entry(worker)) };
        if let Some(least) = self.least_of_others(worker) {
            // No further ahead: what was taken long ago is not held against it.
            let used = &self.used[entry(worker)];
            let most = least.saturating_add(cost.max(2 * lead));
            used.store(used.load(Ordering::Relaxed).saturating_add(cost).min(most), Ordering::Relaxed);
        }
        self.waiting.store(others, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAD: u64 = 10;

    #[test]
    fn those_that_wait_get_equal_parts_whichever_looks_first_and_whatever_each_takes() {
        let turns = Turns::default();
        let mut used = [0_u64; 5];
        for _ in 0..500 {
            (0..5).for_each(|worker| turns.waits(worker));
            let first = (0..5).find(|worker| !turns.yields(*worker, LEAD)).expect("one may always go");
            turns.served(first, 3 + u64::from(first), LEAD);
            used[first as usize] += 3 + u64::from(first);
        }
        let (least, most) = (used.iter().min().expect("five"), used.iter().max().expect("five"));
        assert!(most - least <= 2 * LEAD, "{used:?}");
    }

    #[test]
    fn worker_that_does_not_come_is_waited_for_once() {
        let turns = Turns::default();
        (0..2).for_each(|worker| turns.waits(worker));
        turns.served(0, 100, LEAD);
        turns.waits(0);
        assert!(turns.yields(0, LEAD) && !turns.yields(1, LEAD));
        // It has waited for the other one.
        turns.served(0, 100, LEAD);
        turns.waits(0);
        assert!(!turns.yields(0, LEAD));
        // The other one is late, and what it did not use it does not get later.
        turns.waits(1);
        assert!(turns.yields(0, LEAD) && !turns.yields(1, LEAD));
        turns.served(1, 120, LEAD);
        assert!(!turns.yields(0, LEAD));
    }

    #[test]
    fn without_waiting_nothing_is_stored() {
        let turns = Turns::default();
        turns.served(3, 1000, LEAD);
        turns.waits(2);
        assert!(!turns.yields(3, LEAD));
    }
}
