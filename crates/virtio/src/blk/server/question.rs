//! Upgrade requests (docs/protocol.md section 9.1): a question, and a reply that may come later.

use fipsee_block::wire::Status;

use super::rare::used_bytes;
use super::serve::Header;
use super::{StatusPlace, VirtqueueServer};
use crate::blk::upgrade::wire::PART_BYTES;
use crate::core::queue::chain::total_bytes;

/// Longest question: itself and an entry for each of 64 queues.
const MAX_QUESTION_BYTES: usize = PART_BYTES + 64 * PART_BYTES;

/// Names a question that waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuestionToken {
    head: u16,
    number: u32,
}

/// A question that was taken. [`VirtqueueServer::answer_question`] answers it, at any time, or never if the device is reset before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenQuestion {
    /// Names it.
    pub token: QuestionToken,
    /// Is the rest of the request's header 0?
    pub is_plain: bool,
    /// All that the guest sent, copied and not checked.
    pub bytes: Vec<u8>,
}

impl VirtqueueServer {
    #[cold]
    pub(super) fn serve_question(&mut self, header: &Header, at: &StatusPlace) {
        if !self.takes_questions {
            return self.answer(at, Status::Unsupported);
        }
        let question = self.queue.read(MAX_QUESTION_BYTES);
        let room_bytes = total_bytes(self.queue.chain.writable());
        let Some(bytes) = question.filter(|_| room_bytes >= PART_BYTES as u64) else {
            return self.answer(at, Status::Invalid);
        };
        self.questions = self.questions.wrapping_add(1);
        let token = QuestionToken { head: at.head, number: self.questions };
        self.taken_questions.push_back(TakenQuestion { token, is_plain: header.io_priority == 0 && header.sector == 0, bytes });
        let job = &mut self.jobs[usize::from(at.head)];
        job.place = *at;
        job.place.used_bytes = used_bytes(room_bytes, PART_BYTES);
        job.written.clear();
        job.written.extend_from_slice(self.queue.chain.writable());
        job.question = Some(token.number);
        self.queue.hold(at.head);
        self.unanswered += 1;
    }

    /// Was there a question in the last visit, which [`next_question`](Self::next_question) gives?
    #[must_use]
    #[inline(always)]
    pub fn has_question(&self) -> bool {
        !self.taken_questions.is_empty()
    }

    /// The oldest question that was taken and not given yet.
    pub fn next_question(&mut self) -> Option<TakenQuestion> {
        self.taken_questions.pop_front()
    }

    /// Answer a question; [`flush`](Self::flush) publishes it. False if it waits no more.
    pub fn answer_question(&mut self, token: QuestionToken, reply: &[u8; PART_BYTES]) -> bool {
        let Some(job) = self.jobs.get_mut(usize::from(token.head)).filter(|job| job.question == Some(token.number)) else {
            return false;
        };
        if self.queue.is_over() {
            return false;
        }
        job.question = None;
        let mut at = job.place;
        let pieces = std::mem::take(&mut job.written);
        self.queue.release(token.head);
        self.unanswered -= 1;
        // The memory may be another one than when the question was asked.
        let Some(place) = self.queue.host(at.address, 1) else {
            self.queue.break_down(format!("the status byte of an upgrade request is no memory any more (chain {})", token.head));
            return false;
        };
        at.place = place;
        let put = self.queue.write(&pieces, reply);
        self.answer(&at, if put { Status::Ok } else { Status::BadMemory });
        true
    }
}
