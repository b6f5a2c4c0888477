//! Questions as they come out of a virtqueue: bells stay with the server of the ring, the others go to the device.

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::wire::{INVALID, Operation, PART_BYTES, Question, Reply};
use crate::server::{QuestionToken, Upgrade};

/// Whoever answers the questions that concern a device as a whole.
pub trait Device: Debug + Send {
    /// Answer later, by [`GuestQueue::answer_question`](super::GuestQueue::answer_question) of the queue that this belongs to.
    fn asked(&mut self, token: QuestionToken, question: Question);
}

/// A bell request that the guest has parked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bell {
    pub(super) token: QuestionToken,
    pub(super) attachment: u64,
    pub(super) queue: u16,
}

/// Bells on their way from the virtqueue to the ring beside it. Both are of one thread, so the lock is never waited for.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    bells: Mutex<Vec<Bell>>,
    filled: AtomicBool,
}

impl Inbox {
    /// Is something there?
    #[inline(always)]
    pub(super) fn is_filled(&self) -> bool {
        self.filled.load(Ordering::Relaxed)
    }

    pub(super) fn take(&self) -> Option<Bell> {
        let mut bells = self.bells.lock().unwrap_or_else(PoisonError::into_inner);
        let bell = if bells.is_empty() { None } else { Some(bells.remove(0)) };
        self.filled.store(!bells.is_empty(), Ordering::Relaxed);
        bell
    }

    fn put(&self, bell: Bell) {
        self.bells.lock().unwrap_or_else(PoisonError::into_inner).push(bell);
        self.filled.store(true, Ordering::Relaxed);
    }
}

/// What a virtqueue's server gives its questions to.
#[derive(Debug)]
pub(super) struct Sorter {
    pub(super) inbox: Arc<Inbox>,
    pub(super) device: Box<dyn Device>,
}

impl Upgrade for Sorter {
    fn question(&mut self, token: QuestionToken, is_plain: bool, question: &[u8]) -> Option<[u8; PART_BYTES]> {
        match Question::parse(question) {
            Ok(_) if !is_plain => return Some(Reply::of(INVALID).to_bytes()),
            Err(refused) => return Some(Reply::from(refused).to_bytes()),
            Ok(question) if question.operation == Operation::Bell => {
                self.inbox.put(Bell { token, attachment: question.attachment, queue: question.queue });
            }
            Ok(question) => self.device.asked(token, question),
        }
        None
    }
}
