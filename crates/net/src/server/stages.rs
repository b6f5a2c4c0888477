//! Time stamps of the stages of a frame in a worker, for the benchmark that has the feature `stages`; in what ships they are nothing.

#[cfg(feature = "stages")]
use std::cell::Cell;

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
    /// Places for stamps, of which so many are used. Nothing to release and nothing to call: where stamps are over, as in a frame that is timed
    /// as a whole, four of them must not take time.
    static STAMPS: Cell<(&'static [Cell<Stamp>], usize)> = const { Cell::new((&[], 0)) };
}

/// Keep the stamps of this thread from now on, of so many frames to one receiver each. Their memory is not given back.
#[cfg(feature = "stages")]
pub fn begin(frames: usize) {
    const STAGES: usize = 4;
    let empty = Cell::new(Stamp { stage: Stage::Taken, ticks: 0 });
    STAMPS.set((Vec::leak(vec![empty; frames * STAGES]), 0));
}

/// Those that were kept, in their order.
#[cfg(feature = "stages")]
pub fn take() -> Vec<Stamp> {
    let (places, used) = STAMPS.take();
    places[..used].iter().map(Cell::get).collect()
}

#[inline(always)]
pub(super) fn stamp(_stage: Stage) {
    #[cfg(feature = "stages")]
    STAMPS.with(|stamps| {
        let (places, used) = stamps.get();
        if let Some(place) = places.get(used) {
            place.set(Stamp { stage: _stage, ticks: fipsee_ring::clock::ticks() });
            stamps.set((places, used + 1));
        }
    });
}
