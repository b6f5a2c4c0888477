//! Whose turn it is among workers that wait for the same limit.
//!
//! They all wait for the same time, and the one that looks first may take all that is there: a worker that polls for other queues always
//! looks before one that must wake up. So a worker that was served lets those that still wait go first, for a while.

use std::sync::atomic::AtomicU64;

use fipsee_ring::{AtomicU32, Ordering};

/// Workers that wait, and those served since the round began: a bit for each, which more than 64 workers share.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    waiting: AtomicU64,
    served: AtomicU64,
}

/// A number for a worker, by which limits distinguish it.
pub(crate) fn next_worker() -> u32 {
    static WORKERS: AtomicU32 = AtomicU32::new(0);
    WORKERS.fetch_add(1, Ordering::Relaxed)
}

const fn bit(worker: u32) -> u64 {
    1 << (worker % u64::BITS)
}

impl Turns {
    /// It has a request, and nothing is left of the limit.
    pub(crate) fn waits(&self, worker: u32) {
        if self.waiting.load(Ordering::Relaxed) & bit(worker) == 0 {
            self.waiting.fetch_or(bit(worker), Ordering::Relaxed);
        }
    }

    /// Has it been served while others wait that have not?
    pub(crate) fn yields(&self, worker: u32) -> bool {
        let (waiting, served) = (self.waiting.load(Ordering::Relaxed), self.served.load(Ordering::Relaxed));
        served & bit(worker) != 0 && waiting & !served != 0
    }

    /// Two workers at the same time may each miss what the other stores: then one has a turn too many.
    pub(crate) fn served(&self, worker: u32) {
        let (waiting, before) = (self.waiting.load(Ordering::Relaxed), self.served.load(Ordering::Relaxed));
        if waiting | before == 0 {
            return;
        }
        // Those that were let go first and have not come may want nothing any more.
        let waiting = if self.yields(worker) { 0 } else { waiting & !bit(worker) };
        let served = before | bit(worker);
        self.waiting.store(waiting, Ordering::Relaxed);
        self.served.store(if waiting & !served == 0 { 0 } else { served }, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_those_that_wait_has_its_turn_whoever_looks_first() {
        let turns = Turns::default();
        let mut served = [0_u32; 5];
        for _ in 0..500 {
            (0..5).for_each(|worker| turns.waits(worker));
            let first = (0..5).find(|worker| !turns.yields(*worker)).expect("one may always go");
            turns.served(first);
            served[first as usize] += 1;
        }
        assert_eq!(served, [100; 5]);
    }

    #[test]
    fn worker_that_does_not_come_is_waited_for_once() {
        let turns = Turns::default();
        (0..2).for_each(|worker| turns.waits(worker));
        turns.served(0);
        turns.waits(0);
        assert!(turns.yields(0) && !turns.yields(1));
        // It has waited for the other one.
        turns.served(0);
        turns.waits(0);
        assert!(!turns.yields(0));
        // The other one is late.
        turns.waits(1);
        turns.served(0);
        assert!(turns.yields(0) && !turns.yields(1));
    }

    #[test]
    fn without_waiting_nothing_is_stored() {
        let turns = Turns::default();
        turns.served(3);
        assert_eq!((turns.served.load(Ordering::Relaxed), turns.yields(3)), (0, false));
    }
}
