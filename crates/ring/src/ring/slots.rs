//! Where a ring's words and slots are, and a place in it.

use crate::layout::next_stamp;
use crate::message::Message;
use crate::sync::{AtomicU32, Ordering, full_fence_at, known_bad};

/// The memory of the words and slots of one ring: mapped memory in the product, tracked cells under loom.
///
/// # Safety
/// * `slot_count` is a power of two of at least 2 and never changes.
/// * `stamp`, `released` and `asleep` return the same three kinds of word at every call.
/// * `copy_in` and `write_payload` touch only slot `index`, and `copy_in` reads every byte exactly once.
pub unsafe trait RingMemory {
    fn slot_count(&self) -> u32;
    /// The stamp of slot `index`.
    fn stamp(&self, index: u32) -> &AtomicU32;
    /// Messages released by the reader, modulo 2^32 (streams only).
    fn released(&self) -> &AtomicU32;
    /// Not zero: the reader sleeps, or is about to, and wants the doorbell.
    fn asleep(&self) -> &AtomicU32;
    /// Copy slot `index` into `into`.
    ///
    /// # Safety
    /// `index` is below `slot_count`, and the caller has seen the stamp of this lap in it.
    unsafe fn copy_in(&self, index: u32, into: &mut Message);
    /// Write the payload of slot `index`, not its stamp.
    ///
    /// # Safety
    /// `index` is below `slot_count`, and the reader has released its previous message.
    unsafe fn write_payload(&self, index: u32, message: &Message);
    /// Write payload and stamp so that no reader sees the stamp before the payload.
    ///
    /// # Safety
    /// As for `write_payload`.
    #[inline(always)]
    unsafe fn publish(&self, index: u32, message: &Message, stamp: u32) {
        // SAFETY: the caller's obligations are the same.
        unsafe { self.write_payload(index, message) };
        let order = if known_bad("relaxed_publish") { Ordering::Relaxed } else { Ordering::Release };
        self.stamp(index).store(stamp, order); // A: pairs with the Acquire load in `Reader::has_message`.
    }
    /// A full fence that also brings slot `index` here, owned; its contents stay.
    #[inline(always)]
    fn full_fence_at(&self, index: u32) {
        full_fence_at(self.stamp(index));
    }
    /// Store the stamp of slot `index`, which was copied and is not given back, once more.
    #[inline(always)]
    fn touch(&self, index: u32, stamp: u32) {
        self.stamp(index).store(stamp, Ordering::Relaxed);
    }
    /// A hint that slot `index` will be written soon.
    #[inline(always)]
    fn prefetch_for_write(&self, _index: u32) {}
    /// A hint that slot `index` will be read soon.
    #[inline(always)]
    fn prefetch_for_read(&self, _index: u32) {}
    /// A hint that the reader will soon want slot `index`, just written.
    #[inline(always)]
    fn demote(&self, _index: u32) {}
}

/// A place in the free-running sequence of a ring: slot index and lap stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    pub(super) index: u32,
    pub(super) stamp: u32,
}

impl Cursor {
    /// The first position of a ring whose geometry says `start` (a slot index; the lap is 1).
    pub const fn at_start(start: u32) -> Self {
        Self { index: start, stamp: 1 }
    }

    /// Any position; `stamp` must not be 0. For handing a ring over and for tests of the wrap.
    pub const fn at(index: u32, stamp: u32) -> Self {
        assert!(stamp != 0, "a stamp is never 0: fresh memory is");
        Self { index, stamp }
    }

    pub const fn index(&self) -> u32 {
        self.index
    }

    pub const fn stamp(&self) -> u32 {
        self.stamp
    }

    #[inline(always)]
    pub(super) const fn advance(&mut self, slot_count: u32) {
        self.index += 1;
        if self.index == slot_count {
            self.index = 0;
            self.stamp = next_stamp(self.stamp);
        }
    }
}
