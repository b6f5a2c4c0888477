//! Messages between threads that may be asleep in epoll.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::doorbell::EventDoorbell;

/// Many senders, one receiver. A check for messages costs one load.
#[derive(Debug)]
pub struct Mailbox<T> {
    messages: Mutex<Vec<T>>,
    pending: AtomicBool,
    doorbell: EventDoorbell,
}

impl<T> Mailbox<T> {
    pub fn new() -> std::io::Result<Self> {
        Ok(Self { messages: Mutex::new(Vec::new()), pending: AtomicBool::new(false), doorbell: EventDoorbell::new()? })
    }

    pub fn send(&self, message: T) {
        self.send_all(std::iter::once(message));
    }

    /// Add messages that the receiver takes together.
    pub fn send_all(&self, messages: impl IntoIterator<Item = T>) {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).extend(messages);
        self.pending.store(true, Ordering::Release);
        self.doorbell.ring();
    }

    #[inline(always)]
    pub fn has_messages(&self) -> bool {
        self.pending.load(Ordering::Relaxed)
    }

    pub fn take(&self) -> Vec<T> {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        self.pending.store(false, Ordering::Relaxed);
        std::mem::take(&mut messages)
    }
}

impl<T> AsFd for Mailbox<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }
}
