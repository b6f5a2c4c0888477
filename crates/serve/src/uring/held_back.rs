//! Jobs that the kernel is not given yet: they wait for a lock, or for a buffer.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use io_uring::squeue::Entry;
use io_uring::{opcode, types};
use rustix::event::EventfdFlags;

/// Locks that jobs waited for and have now, added by the engine that released them. One per engine, shared with the locks.
#[derive(Debug)]
pub struct Grants {
    /// Slot of the engine, and the name of what its job has now.
    granted: Mutex<Vec<(u32, u32)>>,
    /// Wakes the engine's thread. It blocks, so that the kernel ring waits for it rather than fail.
    doorbell: OwnedFd,
}

impl Grants {
    pub fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self { granted: Mutex::default(), doorbell: rustix::event::eventfd(0, EventfdFlags::CLOEXEC)? }))
    }

    /// The job in `slot` has `lock` now. `wake`: the engine is another thread's, which may be asleep.
    pub fn add(&self, slot: u32, lock: u32, wake: bool) {
        self.granted.lock().unwrap_or_else(PoisonError::into_inner).push((slot, lock));
        if wake {
            self.ring();
        }
    }

    pub fn take(&self) -> Vec<(u32, u32)> {
        std::mem::take(&mut self.granted.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn ring(&self) {
        let _ = rustix::io::write(&self.doorbell, &1_u64.to_ne_bytes());
    }
}

/// In place of a slot: the read that waits for the doorbell of [`Grants`].
pub(super) const DOORBELL: u32 = u32::MAX;

pub(super) struct HeldBack {
    pub(super) grants: Arc<Grants>,
    for_lock: usize,
    /// Slots that wait for a buffer, oldest first.
    pub(super) for_buffer: VecDeque<u32>,
    /// Where the kernel puts the doorbell's count. On the heap, so that its address does not change.
    count: Box<u64>,
    /// The kernel has the read of the doorbell, or is about to be given it.
    listens: bool,
}

impl HeldBack {
    pub(super) fn new() -> io::Result<Self> {
        let grants = Grants::new()?;
        Ok(Self { grants, for_lock: 0, for_buffer: VecDeque::new(), count: Box::new(0), listens: false })
    }

    /// One more waits for a lock. True if the doorbell must be read from now on.
    pub(super) const fn add(&mut self) -> bool {
        self.for_lock += 1;
        !std::mem::replace(&mut self.listens, true)
    }

    pub(super) fn take(&mut self) -> Vec<(u32, u32)> {
        if self.for_lock == 0 {
            return Vec::new();
        }
        let granted = self.grants.take();
        self.for_lock -= granted.len();
        if self.for_lock == 0 && self.listens {
            // Nothing is left to listen for: the read ends.
            self.grants.ring();
        }
        granted
    }

    /// The read of the doorbell has ended. True if it is wanted again.
    pub(super) const fn received(&mut self) -> bool {
        self.listens = self.for_lock > 0;
        self.listens
    }

    /// End the read of the doorbell, if there is one.
    pub(super) fn stop(&self) {
        if self.listens {
            self.grants.ring();
        }
    }

    pub(super) fn entry(&mut self) -> Entry {
        opcode::Read::new(types::Fd(self.grants.doorbell.as_raw_fd()), (&raw mut *self.count).cast(), 8).build()
    }
}
