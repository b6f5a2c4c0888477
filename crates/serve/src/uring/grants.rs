//! What jobs waited for and have now: added by whichever engine gave it up.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::EventfdFlags;

/// One per engine, shared with what its jobs wait for.
#[derive(Debug)]
pub struct Grants {
    /// Slot of the engine, and the name of what its job has now.
    granted: Mutex<Vec<(u32, u32)>>,
    /// Wakes the engine's thread. It blocks, so that the kernel ring waits for it rather than fail.
    bell: OwnedFd,
}

impl Grants {
    /// For one engine, or for a test.
    ///
    /// # Errors
    /// No descriptor left.
    pub fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self { granted: Mutex::default(), bell: rustix::event::eventfd(0, EventfdFlags::CLOEXEC)? }))
    }

    /// The job in `slot` has `lock` now. `wake`: the engine is another thread's, which may be asleep.
    pub fn add(&self, slot: u32, lock: u32, wake: bool) {
        self.granted.lock().unwrap_or_else(PoisonError::into_inner).push((slot, lock));
        if wake {
            self.ring();
        }
    }

    /// What was added since the last time.
    pub fn take(&self) -> Vec<(u32, u32)> {
        std::mem::take(&mut self.granted.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn ring(&self) {
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }
}

impl AsFd for Grants {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
