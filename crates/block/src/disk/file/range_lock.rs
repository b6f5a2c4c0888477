//! Which writes may run at the same time, on a file whose unit of transfer is larger than the disk's block.
//!
//! A write that does not cover whole units is a read-modify-write, and *exclusive* in its units: another write to one of them in
//! between would be undone. Writes of whole units share. A request waits for all earlier conflicting ones, so there is no
//! starvation and no deadlock. QEMU's tracked requests (`block/io.c`) do the same.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fipsee_serve::uring::Grants;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::disk) struct Range {
    pub(in crate::disk) start_bytes: u64,
    pub(in crate::disk) end_bytes: u64,
    /// Exclusive of all other writes?
    pub(in crate::disk) exclusive: bool,
}

impl Range {
    const fn conflicts(&self, other: &Self) -> bool {
        (self.exclusive || other.exclusive) && self.start_bytes < other.end_bytes && other.start_bytes < self.end_bytes
    }
}

struct Waiter {
    grants: Arc<Grants>,
    slot: u32,
}

struct Entry {
    range: Range,
    /// Counts up: the order of arrival.
    number: u64,
    /// Earlier conflicting entries that still exist.
    blockers: u32,
    /// `None` once the range is held.
    waiter: Option<Waiter>,
}

#[derive(Default)]
struct Table {
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    exclusive_count: usize,
    next_number: u64,
}

#[derive(Default)]
pub(in crate::disk) struct RangeLocks(Mutex<Table>);

impl core::fmt::Debug for RangeLocks {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("RangeLocks").finish_non_exhaustive()
    }
}

pub(in crate::disk) type LockId = u32;

impl RangeLocks {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enter `range`. True if it is held at once; else `grants` receives `slot` as soon as it is.
    pub(in crate::disk) fn acquire(&self, range: Range, grants: &Arc<Grants>, slot: u32) -> (LockId, bool) {
        let mut table = self.table();
        let mut blockers = 0;
        if range.exclusive || table.exclusive_count > 0 {
            let conflicting = table.entries.iter().flatten().filter(|entry| entry.range.conflicts(&range));
            blockers = u32::try_from(conflicting.count()).unwrap_or(u32::MAX);
        }
        let waiter = (blockers > 0).then(|| Waiter { grants: Arc::clone(grants), slot });
        let is_held = waiter.is_none();
        let number = table.next_number;
        table.next_number += 1;
        table.exclusive_count += usize::from(range.exclusive);
        (table.insert(Entry { range, number, blockers, waiter }), is_held)
    }

    /// Release a held range. Waiting requests are notified through their `Grants`; `own` is the caller's, which checks by itself.
    pub(in crate::disk) fn release(&self, id: LockId, own: &Arc<Grants>) {
        let mut table = self.table();
        let Some(gone) = table.entries.get_mut(id as usize).and_then(Option::take) else {
            debug_assert!(false, "a range is released once");
            return;
        };
        table.free.push(id);
        table.exclusive_count -= usize::from(gone.range.exclusive);
        if !gone.range.exclusive && table.exclusive_count == 0 {
            return;
        }
        for (place, entry) in (0..).zip(&mut table.entries) {
            let Some(entry) = entry.as_mut().filter(|entry| entry.number > gone.number && entry.range.conflicts(&gone.range))
            else {
                continue;
            };
            entry.blockers -= 1;
            if let Some(waiter) = entry.waiter.take_if(|_| entry.blockers == 0) {
                waiter.grants.add(waiter.slot, place, !Arc::ptr_eq(&waiter.grants, own));
            }
        }
    }

    /// Remove requests that wait with `own`, whose engine ends.
    pub(in crate::disk) fn cancel(&self, own: &Arc<Grants>) {
        let waits = |entry: &Entry| entry.waiter.as_ref().is_some_and(|waiter| Arc::ptr_eq(&waiter.grants, own));
        let find = |table: &Table| table.entries.iter().position(|entry| entry.as_ref().is_some_and(waits));
        while let Some(id) = { find(&self.table()) }.and_then(|place| LockId::try_from(place).ok()) {
            self.release(id, own);
        }
    }
}

impl Table {
    fn insert(&mut self, entry: Entry) -> LockId {
        if let Some(id) = self.free.pop() {
            self.entries[id as usize] = Some(entry);
            return id;
        }
        self.entries.push(Some(entry));
        LockId::try_from(self.entries.len() - 1).unwrap_or(LockId::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn range(start_bytes: u64, end_bytes: u64, exclusive: bool) -> Range {
        Range { start_bytes, end_bytes, exclusive }
    }

    fn granted(grants: &Grants) -> Vec<u32> {
        grants.take().into_iter().map(|(slot, _)| slot).collect()
    }

    #[test]
    fn writes_of_whole_units_share_and_a_read_modify_write_does_not() {
        let (locks, grants) = (RangeLocks::default(), Grants::new().expect("eventfd"));
        let (a, held_a) = locks.acquire(range(0, 8192, false), &grants, 1);
        let (b, held_b) = locks.acquire(range(4096, 12288, false), &grants, 2);
        assert!(held_a && held_b);
        let (c, held_c) = locks.acquire(range(4096, 8192, true), &grants, 3);
        let (d, held_d) = locks.acquire(range(12288, 16384, true), &grants, 4);
        assert!(!held_c && held_d, "only what meets it waits");
        locks.release(a, &grants);
        assert!(granted(&grants).is_empty(), "one of two is left");
        locks.release(b, &grants);
        assert_eq!(granted(&grants), [3]);
        locks.release(c, &grants);
        locks.release(d, &grants);
        assert!(granted(&grants).is_empty());
    }

    #[test]
    fn conflicting_requests_run_in_order_of_arrival() {
        let (locks, grants) = (RangeLocks::default(), Grants::new().expect("eventfd"));
        let ids: Vec<_> = (0..4).map(|slot| locks.acquire(range(0, 4096, slot % 2 == 0), &grants, slot)).collect();
        assert_eq!(ids.iter().map(|(_, held)| *held).collect::<Vec<_>>(), [true, false, false, false]);
        // A later one that shares may not overtake the exclusive one before it.
        for (next, (id, _)) in (1..4).zip(&ids) {
            locks.release(*id, &grants);
            assert_eq!(granted(&grants), [next]);
        }
        locks.release(ids[3].0, &grants);
        assert!(locks.acquire(range(0, 4096, true), &grants, 9).1, "nothing is left behind");
    }

    #[test]
    fn an_engine_that_ends_is_not_waited_for() {
        let locks = RangeLocks::default();
        let (ours, other) = (Grants::new().expect("eventfd"), Grants::new().expect("eventfd"));
        let (held, _) = locks.acquire(range(0, 4096, true), &ours, 0);
        locks.acquire(range(0, 4096, true), &other, 1);
        locks.acquire(range(0, 4096, true), &ours, 2);
        locks.cancel(&other);
        locks.release(held, &other);
        assert_eq!((granted(&ours), granted(&other)), (vec![2], vec![]));
    }
}
