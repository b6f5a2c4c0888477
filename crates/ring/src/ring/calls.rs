//! The writing end of a call/reply ring.

use super::{Cursor, RingMemory, Writer};
use crate::message::Message;
use crate::tuning::{Ownership, Tuning};

/// The ring has no free slot; the message comes back to the caller, nothing was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The writing end of a call/reply ring: flow control by the answers.
#[derive(Debug)]
pub struct CallWriter<M> {
    writer: Writer<M>,
    outstanding: u32,
    depth: u32,
}

impl<M: RingMemory> CallWriter<M> {
    /// A writer that lets `depth` calls be unanswered at a time.
    ///
    /// # Panics
    /// When `depth` exceeds the slots of the ring; geometry is validated before.
    pub fn new(memory: M, cursor: Cursor, depth: u32, tuning: &Tuning) -> Self {
        assert!(depth >= 1 && depth <= memory.slot_count(), "depth outside the ring");
        Self { writer: Writer::new(memory, cursor, tuning), outstanding: 0, depth }
    }

    /// Calls that may be published now.
    #[inline(always)]
    pub const fn free(&self) -> u32 {
        self.depth - self.outstanding
    }

    /// Calls published and not yet answered.
    #[inline(always)]
    pub const fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Publish `calls` in one burst, all or nothing.
    ///
    /// # Errors
    /// [`Full`] when more than [`free`](Self::free); nothing was published.
    #[inline(always)]
    pub fn publish_all(&mut self, calls: &[Message]) -> Result<(), Full> {
        match u32::try_from(calls.len()) {
            Ok(count) if count <= self.free() => {
                self.writer.publish_all(calls);
                self.outstanding += count;
                Ok(())
            }
            _ => Err(Full),
        }
    }

    #[inline(always)]
    pub fn publish(&mut self, call: &Message) -> Result<(), Full> {
        if self.outstanding == self.depth {
            return Err(Full);
        }
        self.outstanding += 1;
        self.writer.publish(call);
        Ok(())
    }

    /// As [`Writer::set_ownership`].
    pub const fn set_ownership(&mut self, ownership: Ownership) {
        self.writer.set_ownership(ownership);
    }

    /// As [`Writer::prefetch`].
    #[inline(always)]
    pub fn prefetch(&self, burst: usize) {
        self.writer.prefetch(burst);
    }

    /// Publish one message that holds `calls` calls, each of which will be answered.
    ///
    /// # Errors
    /// [`Full`] when fewer than `calls` may be published; nothing was.
    #[inline(always)]
    pub fn publish_several(&mut self, message: &Message, calls: u32) -> Result<(), Full> {
        if calls > self.free() {
            return Err(Full);
        }
        self.writer.publish(message);
        self.outstanding += calls;
        Ok(())
    }

    /// One outstanding call was answered: its slot is free.
    ///
    /// # Panics
    /// When none is outstanding: the caller matches answers to its own table first.
    #[inline(always)]
    pub const fn answered(&mut self) {
        assert!(self.outstanding > 0, "an answer without a call");
        self.outstanding -= 1;
    }

    /// As [`Writer::reader_needs_doorbell`].
    #[must_use = "a sleeping reader wakes only by its doorbell"]
    #[inline(always)]
    pub fn reader_needs_doorbell(&mut self) -> bool {
        self.writer.reader_needs_doorbell()
    }

    /// As [`Writer::reader_sleeps`].
    #[must_use = "a sleeping reader wakes only by its doorbell"]
    pub fn reader_sleeps(&mut self) -> bool {
        self.writer.reader_sleeps()
    }
}
