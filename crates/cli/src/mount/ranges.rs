//! The byte ranges being written. Writes that overlap take turns, so that a write of part of a block, which reads the block,
//! changes it and writes it back, loses no other write.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
struct State {
    claims: Vec<(u64, Range<u64>)>,
    next_id: u64,
    waiting: usize,
}

/// The writes in progress, by the whole blocks they touch.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    state: Mutex<State>,
    left: Condvar,
}

/// The right to write a range; given back on drop.
#[derive(Debug)]
pub(super) struct Claim {
    ranges: Arc<Ranges>,
    id: u64,
}

impl Ranges {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claim `bytes`, unless a claim, held or waited for, overlaps.
    pub(super) fn try_claim(self: &Arc<Self>, bytes: Range<u64>) -> Option<Claim> {
        let mut state = self.lock();
        if state.claims.iter().any(|(_, other)| overlap(other, &bytes)) {
            return None;
        }
        Some(self.enter(&mut state, bytes))
    }

    /// Claim `bytes` and wait until every earlier claim that overlaps is gone.
    pub(super) fn claim(self: &Arc<Self>, bytes: Range<u64>) -> Claim {
        let mut state = self.lock();
        let claim = self.enter(&mut state, bytes.clone());
        state.waiting += 1;
        while state.claims.iter().any(|(id, other)| *id < claim.id && overlap(other, &bytes)) {
            state = self.left.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting -= 1;
        drop(state);
        claim
    }

    fn enter(self: &Arc<Self>, state: &mut State, bytes: Range<u64>) -> Claim {
        let id = state.next_id;
        state.next_id += 1;
        state.claims.push((id, bytes));
        Claim { ranges: Arc::clone(self), id }
    }
}

const fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut state = self.ranges.lock();
        if let Some(index) = state.claims.iter().position(|(id, _)| *id == self.id) {
            state.claims.swap_remove(index);
        }
        if state.waiting > 0 {
            self.ranges.left.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_do_not_wait_and_overlaps_do() {
        let ranges = Arc::new(Ranges::default());
        let first = ranges.try_claim(0..4096).unwrap();
        let second = ranges.try_claim(4096..8192).unwrap();
        assert!(ranges.try_claim(4095..4097).is_none());
        drop(first);
        assert!(ranges.try_claim(4095..4097).is_none());
        drop(second);
        assert!(ranges.try_claim(4095..4097).is_some());
    }

    #[test]
    fn earlier_claims_go_before_later_ones() {
        let ranges = Arc::new(Ranges::default());
        let held = ranges.try_claim(0..512).unwrap();
        let waiter = {
            let ranges = Arc::clone(&ranges);
            std::thread::spawn(move || drop(ranges.claim(0..1024)))
        };
        while ranges.lock().waiting == 0 {
            std::thread::yield_now();
        }
        assert!(ranges.try_claim(512..1024).is_none(), "the waiting claim counts");
        drop(held);
        waiter.join().unwrap();
        assert!(ranges.try_claim(0..1024).is_some());
    }
}
