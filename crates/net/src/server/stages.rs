//! Time stamps of the stages of a frame in a worker, for the benchmark that has the feature `stages`; in what ships they are nothing.

#[cfg(feature = "stages")]
use std::cell::RefCell;

/// What has just been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The message was copied out of its slot.
    Taken,
    /// The switch has said who gets the frame.
    Decided,
    /// It is in the receiver's buffer.
    Copied,
    /// The receiver can see it.
    Published,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub stage: Stage,
    pub ticks: u64,
}

#[cfg(feature = "stages")]
thread_local! {
    static STAMPS: RefCell<Vec<Stamp>> = const { RefCell::new(Vec::new()) };
}

/// Keep the stamps of this thread from now on, of so many frames to one receiver each.
#[cfg(feature = "stages")]
pub fn begin(frames: usize) {
    const STAGES: usize = 4;
    STAMPS.set(Vec::with_capacity(frames * STAGES));
}

/// Those that were kept, in their order.
#[cfg(feature = "stages")]
pub fn take() -> Vec<Stamp> {
    STAMPS.take()
}

#[inline(always)]
pub(super) fn stamp(_stage: Stage) {
    #[cfg(feature = "stages")]
    STAMPS.with_borrow_mut(|stamps| {
        if stamps.len() < stamps.capacity() {
            stamps.push(Stamp { stage: _stage, ticks: fipsee_ring::clock::ticks() });
        }
    });
}
