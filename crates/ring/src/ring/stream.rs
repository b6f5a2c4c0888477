//! One-way streams: slots come back by the reader's release counter.

use super::{Cursor, Reader, RingMemory, Writer};
use crate::fault::PeerFault;
use crate::message::Message;
use crate::sync::Ordering;
use crate::tuning::Tuning;

/// Why a stream could not take messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamError {
    /// Try again after the reader released some.
    Full,
    /// The release counter is false; close the channel.
    Fault(PeerFault),
}

/// The writing end of a one-way stream: flow control by the reader's release counter.
#[derive(Debug)]
pub struct StreamWriter<M> {
    writer: Writer<M>,
    /// Messages published since the start, modulo 2^32.
    published: u32,
    /// The release counter as last seen.
    released: u32,
    /// How far ahead ownership is asked for: far enough to hide a transfer, not so far that it takes a slot from the reader.
    prefetch_slots: u32,
    /// Slots that a reader with our choices releases at a time.
    part_slots: u32,
}

impl<M: RingMemory> StreamWriter<M> {
    /// A new stream writer: nothing published, nothing released.
    pub fn new(memory: M, cursor: Cursor, tuning: &Tuning) -> Self {
        let prefetch_slots = tuning.stream_prefetch_slots.min((memory.slot_count() / 8).max(1));
        let part_slots = tuning.release_slots(memory.slot_count());
        Self { writer: Writer::new(memory, cursor, tuning), published: 0, released: 0, prefetch_slots, part_slots }
    }

    /// Slots free now, looking at the counter only when fewer than `wanted` are known to be.
    #[inline(always)]
    pub fn free_slots(&mut self, wanted: u32) -> Result<u32, PeerFault> {
        let slot_count = self.writer.memory.slot_count();
        let outstanding = self.published.wrapping_sub(self.released);
        if slot_count - outstanding >= wanted {
            return Ok(slot_count - outstanding);
        }
        let released = self.writer.memory.released().load(Ordering::Acquire); // B
        let moved = released.wrapping_sub(self.released);
        if moved > outstanding {
            return Err(PeerFault::Count { what: "messages as released", value: moved.into(), limit: outstanding.into() });
        }
        self.released = released;
        Ok(slot_count - (outstanding - moved))
    }

    /// Publish one message if a slot is free.
    ///
    /// # Errors
    /// [`StreamError::Full`] when none is; [`StreamError::Fault`] when the counter is false.
    #[inline(always)]
    pub fn try_publish(&mut self, message: &Message) -> Result<(), StreamError> {
        if self.free_slots(1).map_err(StreamError::Fault)? == 0 {
            return Err(StreamError::Full);
        }
        self.writer.publish(message);
        self.published = self.published.wrapping_add(1);
        self.writer.prefetch_ahead(self.prefetch_slots);
        Ok(())
    }

    /// Publish as many of `messages` as are known to fit, in one burst; returns how many, 0 only if the ring is full.
    #[inline(always)]
    pub fn publish_burst(&mut self, messages: &[Message]) -> Result<usize, PeerFault> {
        let slot_count = self.writer.memory.slot_count();
        let wanted = u32::try_from(messages.len()).unwrap_or(u32::MAX).min(slot_count);
        // Slots come back by parts of a lap: to look at the counter for more than a part costs a transfer for nothing.
        let count = self.free_slots(wanted.min(self.part_slots))?.min(wanted);
        for message in &messages[..count as usize] {
            self.writer.publish(message);
            self.writer.prefetch_ahead(self.prefetch_slots);
        }
        self.published = self.published.wrapping_add(count);
        Ok(count as usize)
    }

    /// As [`Writer::reader_needs_doorbell`].
    #[must_use = "a sleeping reader wakes only by its doorbell"]
    #[inline(always)]
    pub fn reader_needs_doorbell(&mut self) -> bool {
        self.writer.reader_needs_doorbell()
    }
}

impl<M: RingMemory> Reader<M> {
    /// Streams: as [`receive`](Self::receive), and ask for a slot further on, so that the transfers of several overlap. In call
    /// and reply that would take the slot from the writer while it is written.
    #[inline(always)]
    pub fn receive_streamed(&mut self, into: &mut Message) -> bool {
        let received = self.receive(into);
        if !received {
            self.gather.empty_look(self.received);
        }
        // A reader that keeps up with the writer must not take slots that the writer is about to write.
        if self.ahead_slots != 0 && self.run > self.ahead_slots {
            let ahead = self.cursor.index.wrapping_add(self.ahead_slots) & (self.memory.slot_count() - 1);
            self.memory.prefetch_for_read(ahead);
        }
        received
    }

    /// Streams: report to the writer which slots are free again, if enough are ([`Tuning`]). Call after each batch.
    #[inline(always)]
    pub fn release_some(&mut self) {
        if self.received.wrapping_sub(self.released) >= self.release_slots {
            self.release_all();
        }
    }

    /// Streams: report to the writer that everything received is free again. Call before sleeping.
    #[inline(always)]
    pub fn release_all(&mut self) {
        if self.released != self.received {
            self.released = self.received;
            self.memory.released().store(self.released, Ordering::Release); // B: pairs with `StreamWriter::free_slots`.
        }
    }

    /// Streams: messages received so far, modulo 2^32. [`release_all`](Self::release_all) has reported all of them to the writer.
    pub const fn received(&self) -> u32 {
        self.received
    }

    /// Streams: continue where another reader stopped, which had [received](Self::received) this many and released them.
    pub const fn continue_stream(&mut self, received: u32) {
        (self.received, self.released) = (received, received);
    }
}
