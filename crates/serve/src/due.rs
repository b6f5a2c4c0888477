//! Queues that are to be flushed at a time although nothing happens: a notification is held back until then.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fipsee_ring::clock;

use crate::Engine;
use crate::poll_set::{PollSet, Slot};

/// Times with the numbers of queues, the earliest first. A queue may be gone, or its time may have changed: it is flushed once
/// without need then.
#[derive(Debug, Default)]
pub(crate) struct DueQueues(BinaryHeap<Reverse<(u64, u32)>>);

/// Of a queue that is not to be flushed at a time.
const NEVER: u64 = u64::MAX;

/// A queue's part of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due {
    /// May the queue hold something back?
    pub(crate) may_be: bool,
    /// The earliest of its entries in the list.
    listed_ticks: u64,
}

impl Default for Due {
    fn default() -> Self {
        Self { may_be: false, listed_ticks: NEVER }
    }
}

impl<E: Engine> PollSet<E> {
    /// The queue was added or changed: may it hold something back from now on, and does it?
    #[cold]
    pub(crate) fn changed(&mut self, id: usize) {
        let Some(slot) = self.get_mut(id) else { return };
        slot.due.may_be = slot.queue.may_hold_back();
        if slot.due.may_be {
            self.list_due(id);
        }
    }

    /// The queue may have published: has it held something back?
    #[inline(never)]
    pub(crate) fn list_due(&mut self, id: usize) {
        let Some(Slot { queue, due, .. }) = self.get_mut(id) else { return };
        if let Some(ticks) = queue.due().filter(|ticks| *ticks < due.listed_ticks) {
            due.listed_ticks = ticks;
            self.due.0.push(Reverse((ticks, u32::try_from(id).unwrap_or(u32::MAX))));
        }
    }

    /// Is there a queue that is to be flushed at a time?
    #[inline(always)]
    pub(crate) fn has_due(&self) -> bool {
        !self.due.0.is_empty()
    }

    /// The first such time.
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.due.0.peek().map(|Reverse((ticks, _))| *ticks)
    }

    /// Flush the queues whose time has come.
    #[cold]
    pub(crate) fn flush_due(&mut self) {
        let now_ticks = clock::ticks();
        while let Some(&Reverse((ticks, id))) = self.due.0.peek()
            && ticks <= now_ticks
        {
            self.due.0.pop();
            if let Some(slot) = self.get_mut(id as usize) {
                if slot.due.listed_ticks == ticks {
                    slot.due.listed_ticks = NEVER;
                }
                slot.queue.flush();
                self.list_due(id as usize);
            }
        }
    }
}
