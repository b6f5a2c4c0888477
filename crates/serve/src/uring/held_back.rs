//! Jobs that the kernel is not given yet: they wait for a lock, or for a buffer.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use io_uring::squeue::Entry;
use io_uring::{opcode, types};

use super::Grants;

/// In place of a slot: the read that waits for the bell of [`Grants`].
pub(super) const BELL: u32 = u32::MAX;

pub(super) struct HeldBack {
    pub(super) grants: Arc<Grants>,
    /// Slots that wait for a lock.
    for_lock: usize,
    /// Slots that wait for a buffer, oldest first.
    pub(super) for_buffer: VecDeque<u32>,
    /// Where the kernel puts the bell's count. On the heap, so that it stays where the kernel is told to find it.
    count: Box<u64>,
    /// The kernel has the read of the bell, or is about to be given it.
    listens: bool,
}

impl HeldBack {
    pub(super) fn new() -> io::Result<Self> {
        let grants = Grants::new()?;
        Ok(Self { grants, for_lock: 0, for_buffer: VecDeque::new(), count: Box::new(0), listens: false })
    }

    /// One more waits for a lock. True if the bell must be listened to from now on.
    pub(super) const fn add(&mut self) -> bool {
        self.for_lock += 1;
        !std::mem::replace(&mut self.listens, true)
    }

    /// The slots whose lock is held now.
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

    /// The read of the bell has ended. True if it is wanted again.
    pub(super) const fn heard(&mut self) -> bool {
        self.listens = self.for_lock > 0;
        self.listens
    }

    /// End the read of the bell, if there is one.
    pub(super) fn stop(&self) {
        if self.listens {
            self.grants.ring();
        }
    }

    pub(super) fn entry(&mut self) -> Entry {
        opcode::Read::new(types::Fd(self.grants.as_fd().as_raw_fd()), (&raw mut *self.count).cast(), 8).build()
    }
}
