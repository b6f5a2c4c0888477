//! A queue for C.

use std::borrow::{Borrow, BorrowMut};
use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use fipsee_block::client::transfer::Transfers;
use fipsee_block::client::{Buffer, Completion, Event, Queue};
use fipsee_block::wire::MAX_TRANSFER_BYTES;

use crate::disk::Common;
use crate::failure::{Failure, null};
use crate::fork::Opener;
use crate::function::functions;
use crate::memory::Places;

/// `struct fipsee_queue`.
#[derive(Debug)]
pub(crate) struct OpenQueue {
    pub(crate) queue: Queue,
    pub(crate) places: Places,
    /// Completions that did not fit the caller's array. The ring is read only when there are none, so there are never
    /// more than the queue is deep.
    pub(crate) kept: VecDeque<Completion>,
    /// Bounce buffer of the blocking calls.
    pub(crate) bounce: Option<Buffer>,
    pub(crate) transfers: Transfers,
    pub(crate) common: Arc<Common>,
    pub(crate) block_bytes: u64,
    /// Most data of one request: whole blocks.
    pub(crate) max_transfer_bytes: u64,
    opener: Opener,
}

impl OpenQueue {
    pub(crate) fn new(queue: Queue, common: Arc<Common>, opener: Opener) -> Self {
        let info = common.disk.info();
        let block_bytes = u64::from(info.block_bytes);
        Self {
            kept: VecDeque::with_capacity(queue.depth()),
            queue,
            places: Places::default(),
            bounce: None,
            transfers: Transfers::new(&info, None),
            common,
            block_bytes,
            max_transfer_bytes: u64::from(info.max_transfer_bytes).min(MAX_TRANSFER_BYTES) / block_bytes * block_bytes,
            opener,
        }
    }

    pub(crate) fn into_queue(self) -> Queue {
        self.queue
    }

    /// C's handle of a queue.
    ///
    /// # Safety
    /// `queue` is null or of an open disk, and no other call on it runs while the reference exists.
    #[inline(always)]
    pub(crate) unsafe fn from_c<'a>(queue: *mut Self) -> Result<&'a mut Self, Failure> {
        // SAFETY: promised by the caller.
        let queue = unsafe { queue.as_mut() }.ok_or_else(no_queue)?;
        queue.opener.check()?;
        Ok(queue)
    }

    /// Requests staged and not yet taken by the caller.
    pub(crate) fn outstanding(&self) -> usize {
        self.queue.outstanding() + self.kept.len()
    }
}

#[cold]
fn no_queue() -> Failure {
    null("queue")
}

impl Borrow<Queue> for OpenQueue {
    fn borrow(&self) -> &Queue {
        &self.queue
    }
}

impl BorrowMut<Queue> for OpenQueue {
    fn borrow_mut(&mut self) -> &mut Queue {
        &mut self.queue
    }
}

functions! {
    "`queue` is null or of an open disk, and no other call on it runs meanwhile."

    fn fipsee_depth(queue: OpenQueue) {
        Ok(count(queue.queue.depth()))
    }

    fn fipsee_outstanding(queue: OpenQueue) {
        Ok(count(queue.outstanding()))
    }

    fn fipsee_next_event(queue: OpenQueue) {
        let event = queue.queue.next_event();
        Ok(match event {
            None => 0,
            Some(Event::Resized { .. }) => 1,
            Some(Event::Detached) => 2,
        })
    }

    fn fipsee_descriptor(queue: OpenQueue) {
        Ok(queue.queue.as_fd().as_raw_fd())
    }

    fn fipsee_arm(queue: OpenQueue) {
        let work_remains = queue.queue.arm_and_work_remains();
        Ok(c_int::from(work_remains || !queue.kept.is_empty()))
    }

    fn fipsee_woken(queue: OpenQueue) {
        match queue.queue.woken() {
            Err(error) if queue.kept.is_empty() => Err(error.into()),
            _ => Ok(0),
        }
    }
}

/// A count that the depth of a queue bounds.
#[inline(always)]
pub(crate) fn count(count: usize) -> c_int {
    c_int::try_from(count).unwrap_or(c_int::MAX)
}
