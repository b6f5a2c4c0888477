//! A ring in cells that the model checker tracks, and a doorbell.

use std::sync::Arc;

use fipsee_ring::ring::RingMemory;
use fipsee_ring::{AtomicU32, Message};
use loom::cell::UnsafeCell;
use loom::sync::{Condvar, Mutex};

struct Slot {
    /// Tracked: an access that races with another panics, which is how a torn or overwritten message shows.
    payload: UnsafeCell<Message>,
    stamp: AtomicU32,
}

struct Cells {
    slots: Vec<Slot>,
    released: AtomicU32,
    asleep: AtomicU32,
}

/// A ring in loom's cells. Shared by the plain `Arc`: loom's would add steps that the ring does not have.
#[derive(Clone)]
pub(crate) struct CellRing(Arc<Cells>);

impl CellRing {
    pub(crate) fn new(slot_count: usize) -> Self {
        let slot = || Slot { payload: UnsafeCell::new(Message::ZERO), stamp: AtomicU32::new(0) };
        let slots = (0..slot_count).map(|_| slot()).collect();
        Self(Arc::new(Cells { slots, released: AtomicU32::new(0), asleep: AtomicU32::new(0) }))
    }

    fn slot(&self, index: u32) -> &Slot {
        &self.0.slots[usize::try_from(index).expect("an index fits usize")]
    }
}

// SAFETY: the vector never changes, so neither do its length (2 or 4) and the words; both copies use only slot
// `index`, which the vector's own bounds check confirms.
unsafe impl RingMemory for CellRing {
    fn slot_count(&self) -> u32 {
        u32::try_from(self.0.slots.len()).expect("few slots")
    }

    fn stamp(&self, index: u32) -> &AtomicU32 {
        &self.slot(index).stamp
    }

    fn released(&self) -> &AtomicU32 {
        &self.0.released
    }

    fn asleep(&self) -> &AtomicU32 {
        &self.0.asleep
    }

    unsafe fn copy_in(&self, index: u32, into: &mut Message) {
        // SAFETY: loom panics before the access if any other access to the cell is concurrent.
        self.slot(index).payload.with(|payload| *into = unsafe { *payload });
    }

    unsafe fn write_payload(&self, index: u32, message: &Message) {
        // SAFETY: as above.
        self.slot(index).payload.with_mut(|payload| unsafe { *payload = *message });
    }
}

/// A doorbell that remembers one ring, as an eventfd does. A reader that waits for ever is loom's deadlock.
#[derive(Clone)]
pub(crate) struct Doorbell(Arc<(Mutex<bool>, Condvar)>);

impl Doorbell {
    pub(crate) fn new() -> Self {
        Self(Arc::new((Mutex::new(false), Condvar::new())))
    }

    pub(crate) fn ring(&self) {
        *self.0.0.lock().expect("no panic while held") = true;
        self.0.1.notify_one();
    }

    pub(crate) fn wait(&self) {
        let mut rung = self.0.0.lock().expect("no panic while held");
        while !*rung {
            rung = self.0.1.wait(rung).expect("no panic while held");
        }
        *rung = false;
    }
}
