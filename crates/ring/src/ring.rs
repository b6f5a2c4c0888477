//! The ring algorithm over borrowed memory: the part that the model checker runs.
//!
//! Position p uses slot p mod n and is published when the slot's stamp equals the lap number of p. A slot may be written again
//! when its message has been released; the writer learns that from the responses (call and reply) or from the release counter
//! (streams). Until then the reader may store the stamp that it has read once more, and nothing else in a slot. See
//! docs/memory-order.md for the letters.

mod gather;
mod slots;
mod stream;

pub use self::slots::{Cursor, RingMemory};
pub use self::stream::{StreamError, StreamWriter};

pub use self::gather::Gather;
use crate::cpu;
use crate::message::Message;
use crate::sync::{Ordering, full_fence, known_bad};
use crate::tuning::{Ownership, Touch, Tuning};
use crate::wait::Watch;

/// The writing end of a ring, without flow control of its own.
#[derive(Debug)]
pub struct Writer<M> {
    memory: M,
    cursor: Cursor,
    ownership: Ownership,
    prefetch_slots: u32,
    burst_prefetch_slots: u32,
    /// Messages published since the last full fence.
    unfenced: u32,
    demote: bool,
}

/// Slots ahead of the cursor at which [`Ownership::LockedAhead`] has its locked operation after a lone message: the slot after the
/// next. The message before brought the next one here; the cost is to have it taken back.
const LOCKED_AHEAD_SLOTS: u32 = 1;
/// After a burst of up to so many, it has one at each of as many slots, from the next on.
const MOST_LOCKED_SLOTS: u32 = 8;

impl<M: RingMemory> Writer<M> {
    /// A writer that continues at `cursor`.
    ///
    /// # Panics
    /// When `cursor` is outside the ring: geometry is validated before a ring is built.
    pub fn new(memory: M, cursor: Cursor, tuning: &Tuning) -> Self {
        assert!(cursor.index < memory.slot_count(), "cursor outside the ring");
        let Tuning { ownership, prefetch_slots, burst_prefetch_slots, .. } = *tuning;
        let demote = tuning.demote && cpu::features().has_demote;
        Self { memory, cursor, ownership, prefetch_slots, burst_prefetch_slots, unfenced: 0, demote }
    }

    /// From now on, own the slot of the next lone message in this way.
    pub const fn set_ownership(&mut self, ownership: Ownership) {
        self.ownership = ownership;
    }

    /// Publish one message. The caller guarantees, from the protocol above the ring, that the slot is free: at most
    /// `slot_count` messages are unreleased. A broken guarantee overwrites a message; it is not memory-unsafe.
    #[inline(always)]
    pub fn publish(&mut self, message: &Message) {
        let index = self.cursor.index;
        // SAFETY: the cursor is always inside the ring; the slot is free by this function's contract, and a slot that
        // is not only garbles a message, because slots are plain bytes that every reader copies and validates.
        unsafe { self.memory.publish(index, message, self.cursor.stamp) };
        if self.demote {
            self.memory.demote(index);
        }
        self.cursor.advance(self.memory.slot_count());
        self.unfenced = self.unfenced.wrapping_add(1);
    }

    /// Publish `messages` in one burst, in order. Same contract as [`publish`](Self::publish).
    #[inline(always)]
    pub fn publish_all(&mut self, messages: &[Message]) {
        for message in messages {
            self.publish(message);
            self.prefetch(messages.len());
        }
    }

    /// After publishing a message of a burst of `burst`: ask for ownership of a slot to come. In a burst the transfers of
    /// several slots overlap; between single messages only the very next slot must be asked for ([`Tuning`]).
    #[inline(always)]
    pub fn prefetch(&self, burst: usize) {
        if burst > 1 {
            self.prefetch_ahead(self.burst_prefetch_slots);
        } else if self.ownership == Ownership::PrefetchNext {
            self.prefetch_ahead(self.prefetch_slots);
        }
    }

    #[inline(always)]
    fn prefetch_ahead(&self, slots: u32) {
        if slots != 0 {
            let ahead = self.cursor.index.wrapping_add(slots - 1) & (self.memory.slot_count() - 1);
            self.memory.prefetch_for_write(ahead);
        }
    }

    /// Must the doorbell be rung for what was published since the last call? Once per batch, after publishing.
    ///
    /// The first to see the flag clears it, so that a burst of batches rings once.
    #[must_use = "a sleeping reader wakes only by its doorbell"]
    #[inline(always)]
    pub fn reader_needs_doorbell(&mut self) -> bool {
        self.reader_needs_doorbell_after(false)
    }

    /// As [`reader_needs_doorbell`](Self::reader_needs_doorbell). `fenced`: the caller has executed a full fence since it published; one
    /// serves all rings.
    #[must_use = "a sleeping reader wakes only by its doorbell"]
    #[inline(always)]
    pub fn reader_needs_doorbell_after(&mut self, fenced: bool) -> bool {
        if fenced {
            self.unfenced = 0;
        } else if !known_bad("no_sleep_fence") {
            self.fence(); // S: between our stamp and the peer's flag; pairs with the fence in `Reader::arm`.
        }
        let asleep = self.memory.asleep();
        asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::Relaxed) != 0
    }

    /// For a writer that may put the doorbell off: does the reader sleep? Nothing is lost as long as
    /// [`reader_needs_doorbell`](Self::reader_needs_doorbell) is asked later: the flag stays as it is.
    #[must_use = "a sleeping reader wakes only by its doorbell"]
    #[inline(always)]
    pub fn reader_sleeps(&mut self) -> bool {
        if !known_bad("no_sleep_fence") {
            self.fence(); // S: as in `reader_needs_doorbell`.
        }
        if known_bad("flag_cleared_while_held") {
            return self.memory.asleep().swap(0, Ordering::Relaxed) != 0;
        }
        self.reader_seems_asleep()
    }

    /// A full fence after what was published, which also makes it leave at once; after a few messages, where [`Ownership`] says.
    #[inline(always)]
    pub fn fence(&mut self) {
        let burst = std::mem::take(&mut self.unfenced);
        if self.ownership != Ownership::LockedAhead || burst == 0 || burst > MOST_LOCKED_SLOTS {
            return full_fence();
        }
        let first = if burst == 1 { LOCKED_AHEAD_SLOTS } else { 0 };
        for ahead in first..first + burst {
            self.memory.full_fence_at(self.cursor.index.wrapping_add(ahead) & (self.memory.slot_count() - 1));
        }
    }

    /// Does the reader sleep, as far as a look without the fence shows? A hint between messages of a batch: "no" may be
    /// out of date, so the batch still ends with [`reader_needs_doorbell`](Self::reader_needs_doorbell).
    #[inline(always)]
    pub fn reader_seems_asleep(&self) -> bool {
        self.memory.asleep().load(Ordering::Relaxed) != 0
    }

    /// The position the next message takes.
    pub const fn cursor(&self) -> Cursor {
        self.cursor
    }

    pub const fn memory(&self) -> &M {
        &self.memory
    }

    /// Continue in `memory`, which is the same ring, mapped elsewhere. One of another length is not taken.
    pub fn move_to(&mut self, memory: M) {
        if memory.slot_count() == self.memory.slot_count() {
            self.memory = memory;
        }
    }
}

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

#[derive(Debug)]
pub struct Reader<M> {
    memory: M,
    cursor: Cursor,
    /// Messages received since the start, modulo 2^32.
    received: u32,
    /// Value of `received` when the release counter was last written.
    released: u32,
    /// Messages received for which it is worth writing the release counter.
    release_slots: u32,
    /// How far ahead a stream asks for slots.
    ahead_slots: u32,
    /// Messages received since the last empty look, or since the caller said that a run begins.
    run: u32,
    /// Are messages touched: the first of a run, and those that follow it?
    touch_first: bool,
    touch_rest: bool,
    gather: Gather,
    armed: bool,
}

impl<M: RingMemory> Reader<M> {
    /// A reader that continues at `cursor`.
    ///
    /// # Panics
    /// When `cursor` is outside the ring: geometry is validated before a ring is built.
    pub fn new(memory: M, cursor: Cursor, tuning: &Tuning) -> Self {
        assert!(cursor.index < memory.slot_count(), "cursor outside the ring");
        let release_slots = tuning.release_slots(memory.slot_count());
        let gather = Gather::new(tuning, memory.slot_count());
        let (_, ahead_slots) = tuning.gather_and_read_ahead(memory.slot_count());
        let (touch_first, touch_rest) = (tuning.touch == Touch::Always, tuning.touch != Touch::Never);
        Self {
            memory,
            cursor,
            received: 0,
            released: 0,
            release_slots,
            ahead_slots,
            run: 0,
            touch_first,
            touch_rest,
            gather,
            armed: false,
        }
    }

    /// Touch messages that travel alone, or do not; those of a run are touched as before.
    pub const fn set_touch_lone(&mut self, touch: bool) {
        self.touch_first = touch;
    }

    /// What comes next is no continuation of what was received last: for readers that know what is due, and do not look until
    /// there is nothing more.
    #[inline(always)]
    pub const fn begin_run(&mut self) {
        self.run = 0;
    }

    /// Is a message there? A stamp of neither this lap nor the last, which no correct writer leaves, reads as "no".
    #[inline(always)]
    pub fn has_message(&self) -> bool {
        self.watch().is_there()
    }

    /// Where the next message's stamp will be, and its value.
    #[inline(always)]
    pub fn watch(&self) -> Watch<'_> {
        Watch::new(self.memory.stamp(self.cursor.index), self.cursor.stamp)
    }

    /// Copy the next message into `into` and step past it; `false` (and `into` untouched) when there is none.
    #[inline(always)]
    pub fn receive(&mut self, into: &mut Message) -> bool {
        if known_bad("touch_after_answer") && self.received != 0 {
            let Cursor { index, stamp } = self.cursor;
            let before = index.wrapping_sub(1) & (self.memory.slot_count() - 1);
            self.touch(Cursor { index: before, stamp: stamp - u32::from(index == 0) });
        }
        if !self.has_message() {
            self.run = 0;
            return false;
        }
        if known_bad("release_before_copy") {
            self.received = self.received.wrapping_add(1);
            self.release_all();
            self.received = self.received.wrapping_sub(1);
        }
        // SAFETY: the cursor is inside the ring and its stamp was just seen.
        unsafe { self.memory.copy_in(self.cursor.index, into) };
        let touched = self.cursor;
        let touches = if self.run == 0 { self.touch_first } else { self.touch_rest };
        if touches && !known_bad("touch_after_release") && !known_bad("touch_after_answer") {
            self.touch(touched);
        }
        self.cursor.advance(self.memory.slot_count());
        self.received = self.received.wrapping_add(1);
        self.run = self.run.saturating_add(1);
        if touches && known_bad("touch_after_release") {
            self.release_all();
            self.touch(touched);
        }
        true
    }

    /// As [`receive`](Self::receive), without stepping past the message: to ask early for what it names. What is done with it is decided by the copy that
    /// `receive` makes, because the writer may change it until then.
    #[inline(always)]
    pub fn peek(&self, into: &mut Message) -> bool {
        let is_there = self.has_message();
        if is_there {
            // SAFETY: the cursor is inside the ring and its stamp was just seen.
            unsafe { self.memory.copy_in(self.cursor.index, into) };
        }
        is_there
    }

    /// Ask for the slot so many behind the next one.
    #[inline(always)]
    pub fn prefetch_ahead(&self, slots: u32) {
        self.memory.prefetch_for_read(self.cursor.index.wrapping_add(slots) & (self.memory.slot_count() - 1));
    }

    /// Store the stamp of a message that was copied, in a slot that is not given back, once more. T: the store of the answer, or
    /// of the release counter, comes after it (Release), so the writer's next stamp does, too.
    #[inline(always)]
    fn touch(&self, at: Cursor) {
        self.memory.touch(at.index, at.stamp);
    }

    /// Announce that we are about to sleep, then look again: does work remain? Only on `false` may the caller sleep
    /// on the doorbell. Stays armed until [`disarm`](Self::disarm).
    #[must_use = "sleeping while work remains loses a wake-up"]
    pub fn arm_and_work_remains(&mut self) -> bool {
        self.armed = true;
        // A swap, not a store: loom does not order a plain store after the writer's swap (docs/memory-order.md).
        self.memory.asleep().swap(1, Ordering::Relaxed);
        if !known_bad("no_sleep_fence") {
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

    /// Has the channel ended, with nothing left to take? `is_gone` asks the kernel whether the writer hung up. That comes first,
    /// and what the writer published before it hung up is seen: the other way round, what it publishes between the two looks
    /// would be lost.
    pub fn is_over(&self, is_gone: impl FnOnce() -> bool) -> bool {
        if known_bad("look_before_hang_up") {
            return !self.has_message() && is_gone();
        }
        is_gone() && !self.has_message()
    }

    /// Has [`arm_and_work_remains`](Self::arm_and_work_remains) been called since the last disarm?
    pub const fn is_armed(&self) -> bool {
        self.armed
    }

    pub const fn cursor(&self) -> Cursor {
        self.cursor
    }

    pub const fn memory(&self) -> &M {
        &self.memory
    }

    /// Continue in `memory`, which is the same ring, mapped elsewhere. One of another length is not taken.
    pub fn move_to(&mut self, memory: M) {
        if memory.slot_count() == self.memory.slot_count() {
            self.memory = memory;
        }
    }
}
