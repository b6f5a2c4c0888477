//! The ring alone: neither side sleeps, so there is no doorbell.

use fipsee_ring::Message;
use fipsee_ring::mapped::MappedRing;
use fipsee_ring::pace::{AnswererPace, CallerPace, Delays, let_answers_gather};
use fipsee_ring::ring::{Reader, StreamError, StreamWriter, Writer};

use super::drive::{Answers, Calls, PeerError, Receives, Sends};
use super::endpoints;
use super::spin::Spin;
use super::visits::{Taken, Visits};

pub(super) struct Caller<'a> {
    pub(super) writer: Writer<MappedRing>,
    pub(super) reader: Reader<MappedRing>,
    pub(super) pace: CallerPace,
    pub(super) spin: Spin<'a>,
}

impl Calls for Caller<'_> {
    #[inline(always)]
    fn exchange(&mut self, calls: &[Message], answers: &mut [Message]) -> Result<(), PeerError> {
        self.writer.publish_all(calls);
        if calls.len() == 1 {
            self.writer.fence(); // Drains the store buffer: the message is visible at once.
            self.reader.begin_run();
            if let Some(ownership) = self.pace.begin().and_then(|asked| asked.apply(&mut self.reader)) {
                self.writer.set_ownership(ownership);
            }
            self.pace.hold.wait();
        }
        let Self { reader, spin, .. } = self;
        for (due, answer) in (1..=answers.len()).rev().zip(answers) {
            while !reader.receive(answer) {
                spin.step()?;
                let_answers_gather(due);
            }
            spin.reset();
        }
        Ok(())
    }

    fn send(&mut self, message: &Message) {
        self.writer.publish(message);
    }

    fn delays(&self) -> Delays {
        self.pace.delays()
    }
}

pub(super) struct Answerer<'a> {
    pub(super) writer: Writer<MappedRing>,
    pub(super) reader: Reader<MappedRing>,
    pub(super) pace: AnswererPace,
    /// Messages taken before the first is answered.
    pub(super) take: u32,
    pub(super) spin: Spin<'a>,
}

impl Answers for Answerer<'_> {
    #[inline(always)]
    fn serve(&mut self, answer: &mut impl FnMut(&Message) -> Option<Message>) -> Result<(), PeerError> {
        let (mut taken, mut visits) = (Taken::new(self.take), Visits::new(false));
        loop {
            let Self { reader, spin, .. } = &mut *self;
            spin.until(|| reader.has_message())?;
            self.reader.begin_run();
            let mut count = 0;
            while count < visits.limit() {
                let messages = taken.take(&mut self.reader, visits.limit() - count);
                if messages.is_empty() {
                    break;
                }
                for message in messages {
                    let Some(reply) = answer(message) else { return Ok(()) };
                    count += 1;
                    self.writer.publish(&reply);
                    self.writer.prefetch(1);
                }
            }
            if visits.end(count) {
                self.writer.fence();
                let answers = self.writer.memory();
                let asked = self.pace.begin(answers.asked_hold(), answers.asked_choices());
                if let Some(ownership) = asked.and_then(|choices| choices.apply_to_lone(&mut self.reader)) {
                    self.writer.set_ownership(ownership);
                }
                self.pace.hold.wait();
            } else {
                self.pace.interrupt();
            }
        }
    }
}

pub(super) struct Source<'a> {
    pub(super) writer: StreamWriter<MappedRing>,
    pub(super) slot_count: u32,
    pub(super) spin: Spin<'a>,
}

impl Sends for Source<'_> {
    #[inline(always)]
    fn send(&mut self, messages: &[Message]) -> Result<(), PeerError> {
        if let [message] = messages {
            while let Err(error) = self.writer.try_publish(message) {
                match error {
                    StreamError::Full => self.spin.step()?,
                    StreamError::Fault(fault) => return Err(endpoints::fault(fault)),
                }
            }
            self.spin.reset();
            return Ok(());
        }
        let mut sent = 0;
        loop {
            let rest = messages.get(sent..).unwrap_or_default();
            sent += self.writer.publish_burst(rest).map_err(endpoints::fault)?;
            if sent == messages.len() {
                self.spin.reset();
                return Ok(());
            }
            self.spin.step()?;
        }
    }

    fn drain(&mut self) -> Result<(), PeerError> {
        drain(&mut self.writer, self.slot_count, &mut self.spin)
    }
}

/// Wait until every slot of a stream is free again.
pub(super) fn drain(writer: &mut StreamWriter<MappedRing>, slot_count: u32, spin: &mut Spin<'_>) -> Result<(), PeerError> {
    loop {
        if writer.free_slots(slot_count).map_err(endpoints::fault)? == slot_count {
            return Ok(());
        }
        spin.step()?;
    }
}

pub(super) struct Sink<'a> {
    pub(super) reader: Reader<MappedRing>,
    pub(super) spin: Spin<'a>,
}

/// Empty polls after which everything is released: the writer may wait for the last messages of a stream.
pub(super) const LOOKS_PER_RELEASE: u32 = 64;

impl Receives for Sink<'_> {
    #[inline(always)]
    fn receive(&mut self, take: &mut impl FnMut(&Message) -> bool) -> Result<(), PeerError> {
        let mut message = Message::ZERO;
        let mut looks = 0_u32;
        loop {
            if self.reader.receive_streamed(&mut message) {
                looks = 0;
                self.spin.reset();
                if !take(&message) {
                    self.reader.release_all();
                    return Ok(());
                }
                self.reader.release_some();
                continue;
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS_PER_RELEASE) {
                self.reader.release_all();
            }
            self.spin.step()?;
        }
    }
}
