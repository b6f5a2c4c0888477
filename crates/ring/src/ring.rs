//! The ring algorithm over borrowed memory: the part that the model checker runs.
//!
//! Position p uses slot p mod n and is published when the slot's stamp equals the lap number of p. The reader never
//! writes into a slot. A slot may be written again when its message has been released; the writer learns that from
//! the responses (call and reply) or from the release counter (streams). See docs/memory-order.md for the letters.

use crate::fault::PeerFault;
use crate::layout::next_stamp;
use crate::message::Message;
use crate::sync::{AtomicU32, Ordering, full_fence};

/// Where the words and slots of one ring live: mapped memory in the product, tracked cells under loom.
///
/// # Safety
/// * `slot_count` is a power of two of at least 2 and never changes.
/// * `stamp`, `released` and `asleep` return the same three kinds of word at every call.
/// * `copy_in` and `write_payload` touch only slot `index`, and `copy_in` reads every byte exactly once.
pub unsafe trait RingMemory {
    /// Slots in the ring.
    fn slot_count(&self) -> u32;
    /// The stamp of slot `index`.
    fn stamp(&self, index: u32) -> &AtomicU32;
    /// Messages released by the reader, modulo 2^32 (streams only).
    fn released(&self) -> &AtomicU32;
    /// Not zero: the reader sleeps, or is about to, and wants the doorbell.
    fn asleep(&self) -> &AtomicU32;
    /// Copy slot `index` into `into`.
    ///
    /// # Safety
    /// `index` is below `slot_count`, and the caller has seen the stamp of this lap in it.
    unsafe fn copy_in(&self, index: u32, into: &mut Message);
    /// Write the payload of slot `index`, not its stamp.
    ///
    /// # Safety
    /// `index` is below `slot_count`, and the reader has released its previous message.
    unsafe fn write_payload(&self, index: u32, message: &Message);
    /// Write payload and stamp so that no reader sees the stamp before the payload.
    ///
    /// # Safety
    /// As for `write_payload`.
    #[inline(always)]
    unsafe fn publish(&self, index: u32, message: &Message, stamp: u32) {
        // SAFETY: the caller's obligations are the same.
        unsafe { self.write_payload(index, message) };
        let order = if cfg!(fipsee_known_bad = "relaxed_publish") { Ordering::Relaxed } else { Ordering::Release };
        self.stamp(index).store(stamp, order); // A: pairs with the Acquire load in `Reader::has_message`.
    }
    /// A hint that slot `index` will be written soon.
    #[inline(always)]
    fn prefetch_for_write(&self, _index: u32) {}
}

/// A place in the free-running sequence of a ring: slot index and lap stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    index: u32,
    stamp: u32,
}

impl Cursor {
    /// The first position of a ring whose geometry says `start` (a slot index; the lap is 1).
    #[must_use]
    pub const fn at_start(start: u32) -> Self {
        Self { index: start, stamp: 1 }
    }

    /// Any position; `stamp` must not be 0. For handing a ring over and for tests of the wrap.
    #[must_use]
    pub const fn at(index: u32, stamp: u32) -> Self {
        assert!(stamp != 0, "a stamp is never 0: fresh memory is");
        Self { index, stamp }
    }

    /// Slot index of this position.
    #[must_use]
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// Stamp that publishes this position.
    #[must_use]
    pub const fn stamp(&self) -> u32 {
        self.stamp
    }

    #[inline(always)]
    const fn advance(&mut self, slot_count: u32) {
        self.index += 1;
        if self.index == slot_count {
            self.index = 0;
            self.stamp = next_stamp(self.stamp);
        }
    }
}

/// The writing end of a ring, without flow control of its own.
#[derive(Debug)]
pub struct Writer<M> {
    memory: M,
    cursor: Cursor,
}

/// How many slots ahead of the one just written to ask for ownership.
const PREFETCH_AHEAD_SLOTS: u32 = 4;

impl<M: RingMemory> Writer<M> {
    /// A writer that continues at `cursor`.
    ///
    /// # Panics
    /// When `cursor` lies outside the ring: geometry is validated before a ring is built.
    pub fn new(memory: M, cursor: Cursor) -> Self {
        assert!(cursor.index < memory.slot_count(), "cursor outside the ring");
        Self { memory, cursor }
    }

    /// Publish one message. The caller guarantees, from the protocol above the ring, that the slot is free: at most
    /// `slot_count` messages are unreleased. A broken guarantee overwrites a message; it is not memory-unsafe.
    #[inline(always)]
    pub fn publish(&mut self, message: &Message) {
        // SAFETY: the cursor is always inside the ring; the slot is free by this function's contract, and a slot that
        // is not only garbles a message, because slots are plain bytes that every reader copies and validates.
        unsafe { self.memory.publish(self.cursor.index, message, self.cursor.stamp) };
        self.cursor.advance(self.memory.slot_count());
    }

    /// Publish `messages` in one burst, in order. Same contract as [`publish`](Self::publish).
    #[inline(always)]
    pub fn publish_all(&mut self, messages: &[Message]) {
        for message in messages {
            self.publish(message);
            self.prefetch_ahead();
        }
    }

    /// Ask for ownership of a slot a few positions ahead.
    #[inline(always)]
    pub fn prefetch_ahead(&self) {
        let ahead = self.cursor.index.wrapping_add(PREFETCH_AHEAD_SLOTS - 1) & (self.memory.slot_count() - 1);
        self.memory.prefetch_for_write(ahead);
    }

    /// Must the doorbell be rung for what was published since the last call? Once per batch, after publishing.
    ///
    /// The first to see the flag clears it, so that a burst of batches rings once.
    #[must_use = "a sleeping reader wakes only by its doorbell"]
    #[inline(always)]
    pub fn reader_needs_doorbell(&self) -> bool {
        if !cfg!(fipsee_known_bad = "no_sleep_fence") {
            full_fence(); // S: between our stamp and the peer's flag; pairs with the fence in `Reader::arm`.
        }
        let asleep = self.memory.asleep();
        asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::Relaxed) != 0
    }

    /// The position the next message takes.
    pub const fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// The memory this ring stands on.
    pub const fn memory(&self) -> &M {
        &self.memory
    }
}

/// The reading end of a ring.
#[derive(Debug)]
pub struct Reader<M> {
    memory: M,
    cursor: Cursor,
    /// Messages received since the start, modulo 2^32.
    received: u32,
    /// Value of `received` when the release counter was last written.
    released: u32,
    armed: bool,
}

impl<M: RingMemory> Reader<M> {
    /// A reader that continues at `cursor`.
    ///
    /// # Panics
    /// When `cursor` lies outside the ring: geometry is validated before a ring is built.
    pub fn new(memory: M, cursor: Cursor) -> Self {
        assert!(cursor.index < memory.slot_count(), "cursor outside the ring");
        Self { memory, cursor, received: 0, released: 0, armed: false }
    }

    /// Is a message there? A stamp of neither this lap nor the last, which no correct writer leaves, reads as "no".
    #[inline(always)]
    pub fn has_message(&self) -> bool {
        let stamp = self.memory.stamp(self.cursor.index).load(Ordering::Acquire); // A
        stamp == self.cursor.stamp
    }

    /// Copy the next message into `into` and step past it; `false` (and `into` untouched) when there is none.
    #[inline(always)]
    pub fn receive(&mut self, into: &mut Message) -> bool {
        if !self.has_message() {
            return false;
        }
        if cfg!(fipsee_known_bad = "release_before_copy") {
            self.received = self.received.wrapping_add(1);
            self.release_all();
            self.received = self.received.wrapping_sub(1);
        }
        // SAFETY: the cursor is inside the ring and its stamp was just seen.
        unsafe { self.memory.copy_in(self.cursor.index, into) };
        self.cursor.advance(self.memory.slot_count());
        self.received = self.received.wrapping_add(1);
        true
    }

    /// Streams: tell the writer which slots are free again, if a quarter of the ring is. Call after each batch.
    #[inline(always)]
    pub fn release_some(&mut self) {
        if self.received.wrapping_sub(self.released) >= (self.memory.slot_count() / 4).max(1) {
            self.release_all();
        }
    }

    /// Streams: tell the writer that everything received is free again. Call before sleeping.
    #[inline(always)]
    pub fn release_all(&mut self) {
        if self.released != self.received {
            self.released = self.received;
            self.memory.released().store(self.released, Ordering::Release); // B: pairs with `StreamWriter::free_slots`.
        }
    }

    /// Announce that we are about to sleep, then look again: does work remain? Only on `false` may the caller sleep
    /// on the doorbell. Stays armed until [`disarm`](Self::disarm).
    #[must_use = "sleeping while work remains loses a wake-up"]
    pub fn arm_and_work_remains(&mut self) -> bool {
        self.armed = true;
        // A swap, not a store: loom does not order a plain store after the writer's swap (docs/memory-order.md).
        self.memory.asleep().swap(1, Ordering::Relaxed);
        if !cfg!(fipsee_known_bad = "no_sleep_fence") {
            full_fence(); // S: between our flag and the peer's stamp; pairs with `Writer::reader_needs_doorbell`.
        }
        self.has_message()
    }

    /// Awake again: the writer need not ring. Cheap when not armed.
    #[inline(always)]
    pub fn disarm(&mut self) {
        if self.armed {
            self.armed = false;
            self.memory.asleep().store(0, Ordering::Relaxed);
        }
    }

    /// Has [`arm_and_work_remains`](Self::arm_and_work_remains) been called since the last disarm?
    #[must_use]
    pub const fn is_armed(&self) -> bool {
        self.armed
    }

    /// The position of the next message.
    pub const fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// The memory this ring stands on.
    pub const fn memory(&self) -> &M {
        &self.memory
    }
}

/// The ring has no free slot; the message comes back to the caller, nothing was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Why a stream could not take messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamError {
    /// Try again after the reader released some.
    Full,
    /// The release counter lies; close the channel.
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
}

impl<M: RingMemory> StreamWriter<M> {
    /// A stream writer at the start of its life: nothing published, nothing released.
    pub fn new(memory: M, cursor: Cursor) -> Self {
        Self { writer: Writer::new(memory, cursor), published: 0, released: 0 }
    }

    /// Slots free now, looking at the counter only when fewer than `wanted` are known to be.
    ///
    /// # Errors
    /// The counter moved by more than is outstanding.
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
            return Err(PeerFault::ReleasedTooMany { moved, outstanding });
        }
        self.released = released;
        Ok(slot_count - (outstanding - moved))
    }

    /// Publish one message if a slot is free.
    ///
    /// # Errors
    /// [`StreamError::Full`] when none is; [`StreamError::Fault`] when the counter lies.
    #[inline(always)]
    pub fn try_publish(&mut self, message: &Message) -> Result<(), StreamError> {
        if self.free_slots(1).map_err(StreamError::Fault)? == 0 {
            return Err(StreamError::Full);
        }
        self.writer.publish(message);
        self.published = self.published.wrapping_add(1);
        self.writer.prefetch_ahead();
        Ok(())
    }

    /// Publish as many of `messages` as fit, in one burst; returns how many.
    ///
    /// # Errors
    /// The counter lies.
    #[inline(always)]
    pub fn publish_burst(&mut self, messages: &[Message]) -> Result<usize, PeerFault> {
        let wanted = u32::try_from(messages.len()).unwrap_or(u32::MAX).min(self.writer.memory.slot_count());
        let count = self.free_slots(wanted)?.min(wanted);
        self.writer.publish_all(&messages[..count as usize]);
        self.published = self.published.wrapping_add(count);
        Ok(count as usize)
    }

    /// As [`Writer::reader_needs_doorbell`].
    #[must_use = "a sleeping reader wakes only by its doorbell"]
    #[inline(always)]
    pub fn reader_needs_doorbell(&self) -> bool {
        self.writer.reader_needs_doorbell()
    }
}

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
    pub fn new(memory: M, cursor: Cursor, depth: u32) -> Self {
        assert!(depth >= 1 && depth <= memory.slot_count(), "depth outside the ring");
        Self { writer: Writer::new(memory, cursor), outstanding: 0, depth }
    }

    /// Calls that may be published now.
    #[must_use]
    #[inline(always)]
    pub const fn free(&self) -> u32 {
        self.depth - self.outstanding
    }

    /// Calls published and not yet answered.
    #[must_use]
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

    /// Publish one call.
    ///
    /// # Errors
    /// [`Full`] when `depth` are unanswered; nothing was published.
    #[inline(always)]
    pub fn publish(&mut self, call: &Message) -> Result<(), Full> {
        if self.outstanding == self.depth {
            return Err(Full);
        }
        self.outstanding += 1;
        self.writer.publish(call);
        self.writer.prefetch_ahead();
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
    pub fn reader_needs_doorbell(&self) -> bool {
        self.writer.reader_needs_doorbell()
    }
}
