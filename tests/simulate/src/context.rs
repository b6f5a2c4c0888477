//! What all parts of one lifetime share: the disk, the oracle, the verdict, the trace.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use fipsee_ring::region::Region;

use crate::disk::DiskState;
use crate::disks::claims::Holder;
use crate::lan::Lan;
use crate::moves::Moves;
use crate::oracle::Oracle;
use crate::rng::Rng;
use crate::variant::Variant;

/// Shared by all parts of one lifetime. One thread runs them: no lock is ever waited for.
pub(crate) struct Context {
    /// What is broken on purpose.
    pub(crate) variant: Option<Variant>,
    disk: Mutex<DiskState>,
    oracle: Mutex<Oracle>,
    regions: Mutex<Vec<Weak<Region>>>,
    holders: Mutex<Vec<Holder>>,
    moves: Mutex<Moves>,
    lan: Mutex<Lan>,
    verdict: Mutex<Option<String>>,
    has_failed: AtomicBool,
    trace: Option<Mutex<Vec<String>>>,
}

/// Without poisoning: a panic ends the lifetime and all that it shares.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Context {
    /// A new lifetime's, the disk's numbers drawn from `rng`; `traced`: keep a line for each step.
    pub(crate) fn new(variant: Option<Variant>, rng: Rng, traced: bool) -> Arc<Self> {
        Arc::new(Self {
            variant,
            disk: Mutex::new(DiskState::new(rng)),
            oracle: Mutex::default(),
            regions: Mutex::default(),
            holders: Mutex::default(),
            moves: Mutex::default(),
            lan: Mutex::default(),
            verdict: Mutex::default(),
            has_failed: AtomicBool::new(false),
            trace: traced.then(Mutex::default),
        })
    }

    /// Is this what is broken?
    pub(crate) fn is_broken(&self, variant: Variant) -> bool {
        self.variant == Some(variant)
    }

    /// The disk.
    pub(crate) fn disk(&self) -> MutexGuard<'_, DiskState> {
        lock(&self.disk)
    }

    /// What the disk may hold.
    pub(crate) fn oracle(&self) -> MutexGuard<'_, Oracle> {
        lock(&self.oracle)
    }

    /// Clients that are attached and not released.
    pub(crate) fn holders(&self) -> MutexGuard<'_, Vec<Holder>> {
        lock(&self.holders)
    }

    /// Queues that go from worker to worker.
    pub(crate) fn moves(&self) -> MutexGuard<'_, Moves> {
        lock(&self.moves)
    }

    /// The network, and what its ports may receive.
    pub(crate) fn lan(&self) -> MutexGuard<'_, Lan> {
        lock(&self.lan)
    }

    /// Something must never be so, and is. The first is kept.
    pub(crate) fn violated(&self, what: impl FnOnce() -> String) {
        if !self.has_failed.swap(true, Ordering::Relaxed) {
            let text = what();
            self.say(|| format!("VIOLATED: {text}"));
            *lock(&self.verdict) = Some(text);
        }
    }

    /// Has something been violated?
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// What was.
    pub(crate) fn verdict(&self) -> Option<String> {
        lock(&self.verdict).clone()
    }

    /// A line of the trace.
    pub(crate) fn say(&self, line: impl FnOnce() -> String) {
        if let Some(trace) = &self.trace {
            lock(trace).push(line());
        }
    }

    /// The trace so far.
    pub(crate) fn take_trace(&self) -> Vec<String> {
        self.trace.as_ref().map(|trace| std::mem::take(&mut *lock(trace))).unwrap_or_default()
    }

    /// The daemon has mapped this.
    pub(crate) fn mapped(&self, region: &Arc<Region>) {
        lock(&self.regions).push(Arc::downgrade(region));
    }

    /// Does the daemon still map all of this memory?
    pub(crate) fn is_mapped(&self, base: usize, length_bytes: usize) -> bool {
        lock(&self.regions).iter().filter_map(Weak::upgrade).any(|region| {
            let start = region.base().as_ptr() as usize;
            let end = start.saturating_add(usize::try_from(region.length_bytes()).unwrap_or(usize::MAX));
            start <= base && base.saturating_add(length_bytes) <= end
        })
    }

    /// Memory that the daemon still maps.
    pub(crate) fn regions_left(&self) -> usize {
        lock(&self.regions).iter().filter(|region| region.strong_count() > 0).count()
    }
}
