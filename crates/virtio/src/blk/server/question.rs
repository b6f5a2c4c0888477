//! Upgrade requests (docs/protocol.md section 9.1): a question, and a reply that may come later.

use fipsee_block::wire::Status;

use super::rare::used_bytes;
use super::serve::Header;
use super::{StatusPlace, VirtqueueServer};
use crate::blk::upgrade::wire::{INVALID, MAX_QUESTION_BYTES, NO_ATTACHMENT, Operation, PART_BYTES, Question, RUNG, Reply};
use crate::core::queue::chain::total_bytes;

/// Names a question that waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuestionToken {
    head: u16,
    number: u32,
}

impl VirtqueueServer {
    #[cold]
    pub(super) fn serve_question(&mut self, header: &Header, at: &StatusPlace) {
        if self.device.is_none() {
            return self.answer(at, Status::Unsupported);
        }
        let question = self.queue.read(MAX_QUESTION_BYTES);
        let room_bytes = total_bytes(self.queue.chain.writable());
        let Some(bytes) = question.filter(|_| room_bytes >= PART_BYTES as u64) else {
            return self.answer(at, Status::Invalid);
        };
        self.questions = self.questions.wrapping_add(1);
        let token = QuestionToken { head: at.head, number: self.questions };
        let job = &mut self.jobs[usize::from(at.head)];
        job.place = *at;
        job.place.used_bytes = used_bytes(room_bytes, PART_BYTES);
        job.written.clear();
        job.written.extend_from_slice(self.queue.chain.writable());
        job.question = Some(token.number);
        self.queue.hold(at.head);
        self.unanswered += 1;
        let is_plain = header.io_priority == 0 && header.sector == 0;
        let reply = match Question::parse(&bytes) {
            Err(refused) => Some(refused),
            Ok(_) if !is_plain => Some(Reply::of(INVALID)),
            Ok(bell) if bell.operation == Operation::Bell => self.park(token, &bell).map(Reply::of),
            Ok(question) => {
                return if let Some(device) = &mut self.device {
                    device.asked(token, question);
                };
            }
        };
        if let Some(reply) = reply {
            self.answer_question(token, &reply);
        }
    }

    /// What to answer to a bell, or none: it is parked.
    fn park(&mut self, token: QuestionToken, bell: &Question) -> Option<u32> {
        let Some(ring) = self.ring.as_mut().filter(|ring| ring.attachment == bell.attachment && !ring.ending) else {
            return Some(NO_ATTACHMENT);
        };
        if ring.number != bell.queue || ring.parked.is_some() {
            return Some(INVALID);
        }
        if std::mem::take(&mut ring.kept) {
            return Some(RUNG);
        }
        ring.parked = Some(token);
        None
    }

    /// Answer a question that a [`Device`](super::Device) was given; [`flush`](Self::flush) publishes it. False if it waits no more.
    pub fn answer_question(&mut self, token: QuestionToken, reply: &Reply) -> bool {
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
        let put = self.queue.write(&pieces, &reply.to_bytes());
        self.answer(&at, if put { Status::Ok } else { Status::BadMemory });
        true
    }
}
