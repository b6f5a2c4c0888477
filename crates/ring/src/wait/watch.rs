//! Having the CPU watch a line of memory without losing the write that is waited for.

use crate::sync::{AtomicU32, Ordering, known_bad};

/// The stamp of the next message: where it will be, and its value.
#[derive(Clone, Copy, Debug)]
pub struct Watch<'a> {
    stamp: &'a AtomicU32,
    expected: u32,
}

impl<'a> Watch<'a> {
    pub const fn new(stamp: &'a AtomicU32, expected: u32) -> Self {
        Self { stamp, expected }
    }

    /// Has it come?
    #[inline(always)]
    pub fn is_there(&self) -> bool {
        self.stamp.load(Ordering::Acquire) == self.expected // A: pairs with the publishing store.
    }

    /// Have `arm` watch the line of the stamp, look again, and `wait` for a write to it only if the message is not there.
    ///
    /// The look is between the two because a message that came before the line was watched wakes no reader; `arm`
    /// must be ordered like a load, as the instructions are (docs/memory-order.md, "M").
    #[inline(always)]
    pub fn wait(&self, arm: impl FnOnce(&AtomicU32), wait: impl FnOnce()) {
        let is_bad = known_bad("monitor_armed_after_look");
        if is_bad && self.is_there() {
            return;
        }
        arm(self.stamp); // M1
        if !is_bad && self.is_there() {
            return; // M2
        }
        wait(); // M3
    }
}
