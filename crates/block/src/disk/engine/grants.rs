//! Ranges that were waited for and are held now: told by whichever engine let go of them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::EventfdFlags;

/// One per engine, shared with the ranges that its requests wait for.
#[derive(Debug)]
pub(in crate::disk) struct Grants {
    /// Slot of the engine, and the name of the lock it holds now.
    granted: Mutex<Vec<(u32, u32)>>,
    /// Wakes the engine's thread. It blocks, so that the kernel ring waits for it rather than fail.
    bell: OwnedFd,
}

impl Grants {
    pub(in crate::disk) fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self { granted: Mutex::default(), bell: rustix::event::eventfd(0, EventfdFlags::CLOEXEC)? }))
    }

    /// `wake`: the engine is another thread's, which may be asleep.
    pub(in crate::disk) fn add(&self, slot: u32, lock: u32, wake: bool) {
        self.granted.lock().unwrap_or_else(PoisonError::into_inner).push((slot, lock));
        if wake {
            self.ring();
        }
    }

    pub(in crate::disk) fn take(&self) -> Vec<(u32, u32)> {
        std::mem::take(&mut self.granted.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(in crate::disk) fn ring(&self) {
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }
}

impl AsFd for Grants {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
