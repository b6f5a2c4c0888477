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

/// What a stamp costs this thread in ticks, which may be less than a step of the counter.
#[cfg(feature = "stages")]
pub fn cost_ticks() -> f64 {
    begin(MEASUREMENTS * REPEATED as usize);
    let cost = usual_ticks(|| stamp(Stage::Taken));
    take();
    cost
}

#[cfg(feature = "stages")]
const MEASUREMENTS: usize = 11;
#[cfg(feature = "stages")]
const REPEATED: u32 = 250;

/// What something takes in ticks if it is done again and again: the median of some means.
#[cfg(feature = "stages")]
pub fn usual_ticks(mut once: impl FnMut()) -> f64 {
    let mut totals: [u64; MEASUREMENTS] = std::array::from_fn(|_| {
        let begun = fipsee_ring::clock::ticks();
        (0..REPEATED).for_each(|_| once());
        fipsee_ring::clock::ticks().saturating_sub(begun)
    });
    totals.sort_unstable();
    let total = u32::try_from(totals[MEASUREMENTS / 2]).unwrap_or(u32::MAX);
    f64::from(total) / f64::from(REPEATED)
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
