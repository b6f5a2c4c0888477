//! The receiving side of a port: buffers that the client has posted, and frames that are put into them.

use std::collections::VecDeque;

use fipsee_ring::channel::ServerQueue;
use fipsee_ring::control::ACCESS_WRITE;
use fipsee_ring::memory::{MemoryFault, RegionTable, Span, copy_from};
use fipsee_ring::{Message, cpu};

use super::copy::copy_frame;
use super::endpoint::{Delivered, Frame};
use super::events::Events;
use super::queue::QueueState;
use super::stages::{self, Stage};
use crate::wire::{
    Addresses, Filled, KIND_RECEIVED_COMPRESSED, KIND_RECEIVED_PACKED, KIND_RECEIVED_SMALL, MAX_COMPRESSED_BYTES,
    MAX_FRAME_BUFFERS, MAX_POSTED, MAX_RETURNED, MAX_SMALL_BYTES, OPERATION_POST, Offload, Packing, Post, PostedBuffer, Returned,
    Small, Status, compressed, is_compressible,
};

/// A message of a client posts buffers for so much of a frame at least, as a rule.
const USUAL_BUFFER_BYTES: u64 = 1024;
/// Most messages with a buffer that cannot be used that one frame takes: it is then dropped.
const MAX_USELESS: u32 = 4;

/// In a burst so many buffers at least are ready, if the client has posted as many.
const READY_AHEAD: usize = 8;
/// Of a frame that is longer more lines than the first are asked for early, and how many.
const LONG_BYTES: u32 = 1024;
const MORE_LINES: usize = 3;
const LINE_BYTES: usize = 64;
/// More than one message, for the ring.
const BURST: usize = 2;

/// The daemon's end of a receive queue. No worker visits it: the one that has a frame for it takes buffers from its ring.
pub(super) struct Receiver {
    end: ServerQueue,
    memory: RegionTable,
    /// In force.
    offloads: u32,
    events: Events,
    /// Those of the last short frame that came alone.
    pub(super) addresses: Option<Addresses>,
    /// Checked buffers that hold no frame yet, with their memory.
    pub(super) ready: VecDeque<(PostedBuffer, Span)>,
    ready_bytes: u64,
    /// Places to work in.
    spans: Vec<Span>,
    tags: Vec<u16>,
    /// Frames in a buffer each that are not published yet: none between visits.
    collected: Packing,
    /// Something was published or collected since the client was last rung for.
    pub(super) touched: bool,
    /// For the frame that is being delivered, as [`Delivered`] has it.
    pub(super) extra_work: u32,
}

impl Receiver {
    /// With these offloads in force.
    pub(super) fn new(end: ServerQueue, memory: RegionTable, (offloads, events): (u32, Events)) -> Self {
        let most = MAX_FRAME_BUFFERS + MAX_POSTED;
        let (ready, spans, tags) = (VecDeque::with_capacity(most), Vec::with_capacity(most), Vec::with_capacity(most));
        let collected = Packing::default();
        Self {
            end,
            memory,
            offloads,
            events,
            addresses: None,
            ready,
            ready_bytes: 0,
            spans,
            tags,
            collected,
            touched: false,
            extra_work: 0,
        }
    }

    /// Continue with addresses that were published and buffers that were taken in another process.
    ///
    /// # Errors
    /// One of them cannot be used.
    pub(super) fn restore(&mut self, state: &QueueState) -> Result<(), MemoryFault> {
        self.addresses = state.addresses;
        state.buffers.iter().try_for_each(|buffer| self.add(buffer))
    }

    /// Where it is, and the buffers that it has taken.
    pub(super) fn state(&self) -> QueueState {
        debug_assert!(self.collected.is_empty(), "a visit ends with what it has collected published");
        let buffers = self.ready.iter().map(|(buffer, _)| *buffer).collect();
        let positions = (self.end.requests.cursor(), self.end.completions.cursor());
        QueueState { positions, buffers, events: self.events, addresses: self.addresses }
    }

    /// Publish the event that is due after this change, if one is; `true`: it is the first message since the last flush.
    pub(super) fn report(&mut self, change: impl FnOnce(&mut Events) -> Result<bool, Status>) -> Result<bool, Status> {
        let was_touched = self.touched;
        if change(&mut self.events)? {
            self.publish(&self.events.event().to_message());
        }
        Ok(self.touched && !was_touched)
    }

    pub(super) const fn offloads(&self) -> u32 {
        self.offloads
    }

    /// Put a frame into posted buffers, and answer them. A frame of a burst, or one that is not the first of a visit, may be published with others.
    ///
    /// # Safety
    /// The rest of the frame is mapped for loads.
    #[inline(always)]
    pub(super) unsafe fn deliver(&mut self, frame: &Frame<'_>, is_burst: bool) -> Delivered {
        let was_touched = self.touched;
        // SAFETY: by the caller.
        let is_taken = unsafe { self.put(frame, is_burst || was_touched) };
        Delivered { is_taken, is_first: self.touched && !was_touched, extra_work: std::mem::take(&mut self.extra_work) }
    }

    /// `false`: there are not enough buffers.
    ///
    /// # Safety
    /// As [`deliver`](Self::deliver).
    #[inline(always)]
    unsafe fn put(&mut self, &Frame { head, rest, length_bytes, offload }: &Frame<'_>, collects: bool) -> bool {
        // Other messages have no room for an offload.
        let is_plain = offload == Offload::NONE;
        let is_small = is_plain && length_bytes as usize <= MAX_SMALL_BYTES;
        let addresses = if length_bytes as usize <= MAX_COMPRESSED_BYTES { Addresses::of(head) } else { None };
        if !self.gather(if is_small { 1 } else { length_bytes.into() }) {
            return false;
        }
        // Mostly one is enough.
        let is_held = self.ready.front().is_some_and(|(buffer, _)| buffer.length_bytes >= length_bytes);
        if is_small && !(collects && is_held) {
            // SAFETY: by the caller.
            let is_taken = unsafe { self.deliver_small(head, rest, length_bytes as usize) };
            self.addresses = addresses.filter(|_| is_taken).or(self.addresses);
            return is_taken;
        }
        if is_held && let Some((buffer, span)) = self.take() {
            let is_compressed = is_plain && !collects && rest.is_empty() && is_compressible(head.len());
            if is_compressed && self.addresses == addresses {
                self.publish(&compressed(KIND_RECEIVED_COMPRESSED, buffer.tag, head));
                return true;
            }
            if length_bytes > LONG_BYTES {
                self.ask_for_lines();
            }
            // SAFETY: as below.
            unsafe { copy_frame(head, rest, &[span]) };
            match u16::try_from(length_bytes) {
                Ok(length_bytes) if is_plain && collects => self.collect(buffer.tag, length_bytes),
                _ => {
                    self.publish(&Filled::one(length_bytes, offload, buffer.tag).to_message());
                    self.addresses = addresses.or(self.addresses);
                }
            }
            return true;
        }
        self.spans.clear();
        self.tags.clear();
        let mut room_bytes = 0;
        while room_bytes < u64::from(length_bytes) {
            let Some((buffer, span)) = self.take() else { return false };
            room_bytes += u64::from(buffer.length_bytes);
            self.spans.push(span);
            self.tags.push(buffer.tag);
        }
        // SAFETY: the caller vouches for `rest`; the buffers are in the memory that this queue keeps mapped.
        unsafe { copy_frame(head, rest, &self.spans) };
        self.publish(&Filled::new(length_bytes, &self.tags).with_offload(offload).to_message());
        self.addresses = addresses.or(self.addresses);
        true
    }

    /// There is a buffer.
    ///
    /// # Safety
    /// As [`deliver`](Self::deliver).
    unsafe fn deliver_small(&mut self, head: &[u8], rest: &[Span], length_bytes: usize) -> bool {
        let mut frame = [0; MAX_SMALL_BYTES];
        let Some((first, behind)) = frame[..length_bytes].split_at_mut_checked(head.len()) else { return false };
        first.copy_from_slice(head);
        // SAFETY: by the caller; `frame` is our own.
        let is_whole = unsafe { copy_from(rest, behind) };
        if !is_whole {
            return false;
        }
        let Some((buffer, _)) = self.take() else { return false };
        self.publish(&Small::new(KIND_RECEIVED_SMALL, buffer.tag, &frame[..length_bytes]).to_message());
        true
    }

    /// As a rule a long frame follows another. A client that looks at the first line of one has its CPU bring the next lines, too.
    #[inline(always)]
    fn ask_for_lines(&self) {
        if let Some((_, soon)) = self.ready.get(1).filter(|(_, span)| span.length_bytes() > MORE_LINES * LINE_BYTES) {
            (1..=MORE_LINES).for_each(|line| cpu::prefetch_for_write(soon.base().as_ptr().wrapping_add(line * LINE_BYTES)));
        }
    }

    /// A frame is in this buffer, and may be published with others.
    #[inline(always)]
    fn collect(&mut self, tag: u16, length_bytes: u16) {
        stages::stamp(Stage::Copied);
        self.collected.push(tag, length_bytes);
        self.touched = true;
        if self.collected.is_full() {
            self.publish_collected();
        }
        // The buffers for the next frames are asked for before these come.
        let mut message = Message::ZERO;
        if self.ready.len() < READY_AHEAD && self.end.requests.receive(&mut message) {
            self.end.requests.prefetch_ahead(1);
            let is_useless = !self.take_posted(&message);
            self.extra_work += u32::from(is_useless);
        }
    }

    /// Frames are published in the order in which they came: these before anything else.
    #[inline(always)]
    pub(super) fn publish_collected(&mut self) {
        if !self.collected.is_empty() {
            let message = self.collected.take(KIND_RECEIVED_PACKED);
            self.end.completions.publish(&message);
            self.end.completions.prefetch(BURST);
            // Of one alone, as all are whose stages are timed.
            stages::stamp(Stage::Published);
        }
    }

    #[inline(always)]
    pub(super) fn publish(&mut self, message: &Message) {
        self.publish_collected();
        stages::stamp(Stage::Copied);
        self.end.completions.publish(message);
        stages::stamp(Stage::Published);
        self.touched = true;
    }

    pub(super) fn take(&mut self) -> Option<(PostedBuffer, Span)> {
        let taken = self.ready.pop_front()?;
        self.ready_bytes -= u64::from(taken.0.length_bytes);
        Some(taken)
    }

    /// Have buffers for so many bytes ready; `false`: the client has not posted as many.
    pub(super) fn gather(&mut self, length_bytes: u64) -> bool {
        let (mut useless, mut looks) = (0, 0);
        while self.ready_bytes < length_bytes {
            if self.ready.len() >= MAX_FRAME_BUFFERS {
                self.give_back_too_small();
                return false;
            }
            let mut message = Message::ZERO;
            if useless == MAX_USELESS || !self.end.requests.receive(&mut message) {
                return false;
            }
            let is_useless = !self.take_posted(&message);
            useless += u32::from(is_useless);
            // Buffers of a few bytes are work, too.
            looks += 1;
            let is_beyond = length_bytes < looks * USUAL_BUFFER_BYTES && looks > 1;
            self.extra_work += u32::from(is_useless || is_beyond);
        }
        // The last message may have had more buffers than were missing: a frame fills the first 20 at most.
        if self.ready.len() > MAX_FRAME_BUFFERS {
            let fillable = self.ready.iter().take(MAX_FRAME_BUFFERS);
            if fillable.map(|(buffer, _)| u64::from(buffer.length_bytes)).sum::<u64>() < length_bytes {
                self.give_back_too_small();
                return false;
            }
        }
        true
    }

    /// As many buffers as one frame may fill hold less than one: the client must post larger ones.
    fn give_back_too_small(&mut self) {
        let mut left = MAX_FRAME_BUFFERS.min(self.ready.len());
        while left > 0 {
            let (mut given_back, mut count) = ([(0, Status::TooSmall); MAX_RETURNED], 0);
            while count < left.min(MAX_RETURNED)
                && let Some((buffer, _)) = self.take()
            {
                given_back[count].0 = buffer.tag;
                count += 1;
            }
            left -= count;
            self.publish(&Returned::new(&given_back[..count]).to_message());
        }
    }

    /// The copy of a message: buffers that cannot be used are given back at once. `false`: there was one.
    fn take_posted(&mut self, message: &Message) -> bool {
        let Post { operation, count, reserved, buffers, reserved_end, .. } = Post::within(message);
        let status = match (*operation, usize::from(*count)) {
            (OPERATION_POST, 1..=MAX_POSTED) if *reserved == 0 && *reserved_end == [0; 2] => Status::Ok,
            (OPERATION_POST, _) => Status::Invalid,
            _ => Status::Unsupported,
        };
        if status != Status::Ok {
            // The tag of other operations is there, too, where `reserved` is.
            let tag = if status == Status::Unsupported { *reserved } else { buffers[0].tag };
            self.publish(&Returned::new(&[(tag, status)]).to_message());
            return false;
        }
        let mut all_usable = true;
        for index in 0..usize::from(*count) {
            let buffer = Post::buffer(message, index);
            if self.add(&buffer).is_err() {
                self.publish(&Returned::new(&[(buffer.tag, Status::BadMemory)]).to_message());
                all_usable = false;
            }
        }
        all_usable
    }

    fn add(&mut self, buffer: &PostedBuffer) -> Result<(), MemoryFault> {
        let span = self.memory.span(buffer.extent(), ACCESS_WRITE)?;
        // Its client has had the last frame in it.
        cpu::prefetch_for_write(span.base().as_ptr());
        self.ready.push_back((*buffer, span));
        self.ready_bytes += u64::from(buffer.length_bytes);
        Ok(())
    }

    /// Ring for what was published, if the client sleeps. `fenced`: a full fence has been executed since.
    pub(super) fn flush(&mut self, fenced: bool) {
        self.touched = false;
        if self.end.completions.reader_needs_doorbell_after(fenced) {
            self.end.client_doorbell.ring();
        }
    }
}
