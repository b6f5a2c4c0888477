//! Receiving: buffers are posted, frames come in them or in messages, and are copied out or held.

use std::mem::offset_of;
use std::time::Duration;

use fipsee_ring::fault::expect;
use fipsee_ring::tuning::Touch;
use fipsee_ring::{Message, clock};

use super::buffers::give_back;
use super::staged::BURST;
use super::{Frame, POOL, Port};
use crate::error::{Error, NetError};
use crate::frame::HEADER_BYTES;
use crate::wire::{
    Addresses, Filled, KIND_EVENT, KIND_RECEIVED, KIND_RECEIVED_COMPRESSED, KIND_RECEIVED_PACKED, KIND_RECEIVED_SMALL,
    MAX_COMPRESSED_BYTES, MAX_FRAME_BUFFERS, MAX_POSTED, MAX_SMALL_BYTES, Offload, PackedBuffer, Post, PostedBuffer, Small,
    first_byte,
};

/// What was found in the ring: a word, which is stored and loaded at once. The message stays where it was copied to. Of both a copy that is loaded across
/// the pieces in which it was stored would wait until these have left this CPU.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Came(u64);

impl Came {
    const NOTHING: Self = Self(0);
    /// The lowest byte.
    const SMALL: u64 = 1;
    const PACKED: u64 = 2;
    const FILLED: u64 = 3;
    const COMPRESSED: u64 = 4;

    #[inline(always)]
    fn new(kind: u64, length_bytes: u32, number: u16) -> Self {
        Self(kind | u64::from(number) << 16 | u64::from(length_bytes) << 32)
    }

    /// A frame in the message, with or without its addresses.
    #[inline(always)]
    fn in_message(kind: u64, length_bytes: u8, tag: u16) -> Self {
        Self::new(kind, length_bytes.into(), tag)
    }

    /// One of several that came by a message.
    #[inline(always)]
    fn packed(PackedBuffer { tag, length_bytes }: PackedBuffer) -> Self {
        Self::new(Self::PACKED, length_bytes.into(), tag)
    }

    /// A frame in so many buffers, whose tags are in the message.
    #[inline(always)]
    fn filled(length_bytes: u32, count: u8) -> Self {
        Self::new(Self::FILLED, length_bytes, count.into())
    }

    #[inline(always)]
    const fn kind(self) -> u64 {
        self.0 & 0xff
    }

    #[inline(always)]
    fn length_bytes(self) -> u32 {
        u32::try_from(self.0 >> 32).unwrap_or(0)
    }

    #[inline(always)]
    fn packed_buffer(self) -> PackedBuffer {
        PackedBuffer { tag: self.number(), length_bytes: u16::try_from(self.length_bytes()).unwrap_or(u16::MAX) }
    }

    /// The tag, or the count of a frame in buffers.
    #[inline(always)]
    fn number(self) -> u16 {
        let [_, _, low, high, ..] = self.0.to_le_bytes();
        u16::from_le_bytes([low, high])
    }
}

/// Events that one look takes before it gives up: a correct daemon has one on its way at most.
const MOST_EVENTS: usize = 8;
/// Where the daemon has so many buffers, others wait until a message is full of them: one that comes after each frame costs a line transfer each.
const ENOUGH_POSTED: u32 = 32;
/// Of a longer frame the lines behind are on their way while the first are written.
const MAX_TOUCHED_BYTES: usize = 256;

/// As [`MAX_COMPRESSED_BYTES`].
const MOST_COMPRESSED_BYTES: u32 = 68;
const _: () = assert!(MOST_COMPRESSED_BYTES as usize == MAX_COMPRESSED_BYTES);

/// While frames are held a wait is interrupted as often, to post the buffers of those that were dropped.
const LONGEST_UNPOSTED: Duration = Duration::from_millis(10);

impl Port {
    /// Post the buffers of frames that were dropped. What receives or waits does so, too.
    pub fn post_returned(&mut self) {
        self.post(true);
    }

    /// Post receive buffers that are free: in whole messages, or `all`.
    pub(super) fn post(&mut self, all: bool) {
        if self.held > 0 {
            self.held -= self.home.take_returned(&mut self.unposted);
        }
        while self.unposted.len() >= MAX_POSTED {
            let buffers = [(); MAX_POSTED].map(|()| self.next_unposted());
            self.publish_post(Post::whole(buffers), MAX_POSTED);
        }
        if all && !self.unposted.is_empty() {
            let (mut buffers, count) = ([PostedBuffer::default(); MAX_POSTED], self.unposted.len());
            buffers[..count].fill_with(|| self.next_unposted());
            self.publish_post(Post::new(&buffers[..count]), count);
        }
    }

    /// There is one.
    #[inline(always)]
    fn next_unposted(&mut self) -> PostedBuffer {
        let tag = self.unposted.pop_front().unwrap_or_default();
        self.receiving.given[usize::from(tag)] = true;
        let offset_bytes = self.receiving.places.pool_offset_bytes(tag);
        PostedBuffer { tag, memory: POOL, offset_bytes, length_bytes: self.receiving.places.stride_bytes }
    }

    #[inline(always)]
    fn publish_post(&mut self, post: Post, buffers: usize) {
        let calls = u32::try_from(buffers).unwrap_or(0);
        let published = self.receive.queue.requests.publish_several(&post.to_message(), calls);
        self.receive.queue.requests.prefetch(BURST);
        debug_assert!(published.is_ok(), "there are no more buffers than the ring takes");
    }

    /// Take the next frame, if one is there, in place of what `frame` has, which otherwise stays. Its buffers are posted again, several
    /// at a time.
    ///
    /// # Errors
    /// The daemon broke the protocol, or is gone, which is looked for once in many empty looks; [`NetError::NotPosted`].
    pub fn receive(&mut self, frame: &mut Vec<u8>) -> Result<bool, Error> {
        let received = self.try_receive(frame);
        self.ended_by(received)
    }

    /// What the frame that was received last leaves to be done. Nothing, unless the attachment has offloads in force.
    pub const fn received_offload(&self) -> Offload {
        self.received_offload
    }

    /// As [`receive`](Self::receive), into a buffer: the length of the frame, of which what does not fit is cut off.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn receive_into(&mut self, into: &mut [u8]) -> Result<Option<u32>, Error> {
        let received = self.try_receive_into(into);
        self.ended_by(received)
    }

    /// The next frame, if one is there, where the daemon put it: nothing is copied but what came in a message. Its buffers are posted
    /// again by the next call that receives after it was dropped; while a program holds as many frames as it has receive buffers, others
    /// are lost.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn take(&mut self) -> Result<Option<Frame>, Error> {
        let taken = self.try_take();
        self.ended_by(taken)
    }

    /// As [`take`](Self::take), until `most` came or none is there: how many were added to `frames`.
    ///
    /// # Errors
    /// As [`receive`](Self::receive). Frames that came before are in `frames`.
    pub fn take_batch(&mut self, frames: &mut Vec<Frame>, most: usize) -> Result<usize, Error> {
        let before = frames.len();
        while frames.len() - before < most
            && let Some(frame) = self.take()?
        {
            frames.push(frame);
        }
        Ok(frames.len() - before)
    }

    #[inline(always)]
    fn try_receive(&mut self, frame: &mut Vec<u8>) -> Result<bool, Error> {
        // As a rule of a burst.
        if let Some(packed) = self.unpacked.next() {
            frame.resize(packed.length_bytes.into(), 0);
            return self.copy_packed(packed, frame).map(|()| true);
        }
        let mut message = Message::ZERO;
        let came = self.next(&mut message).inspect_err(|_| frame.clear())?;
        if came == Came::NOTHING {
            return Ok(false);
        }
        // What it has already is not filled with zeroes before.
        frame.resize(came.length_bytes() as usize, 0);
        self.copy_out(came, &message, frame)?;
        Ok(true)
    }

    fn try_receive_into(&mut self, into: &mut [u8]) -> Result<Option<u32>, Error> {
        let mut message = Message::ZERO;
        let came = self.next(&mut message)?;
        self.copy_out(came, &message, into)?;
        Ok((came != Came::NOTHING).then(|| came.length_bytes()))
    }

    /// Copy as much as fits; the buffers are free.
    #[inline(always)]
    fn copy_out(&mut self, came: Came, message: &Message, into: &mut [u8]) -> Result<(), Error> {
        let (length_bytes, number) = (came.length_bytes(), came.number());
        match came.kind() {
            Came::PACKED => return self.copy_packed(came.packed_buffer(), into),
            Came::SMALL => {
                self.unposted.push_back(number);
                let count = into.len().min(length_bytes as usize);
                into[..count].copy_from_slice(&Small::within(message).bytes[..count]);
            }
            Came::COMPRESSED => {
                self.unposted.push_back(number);
                self.write_compressed(message, length_bytes as usize, into);
            }
            Came::FILLED => {
                let length = into.len().min(length_bytes as usize);
                let (places, touches) = (self.receiving.places, self.receive.queue.tuning.touch != Touch::Never);
                let mut pieces = into[..length].chunks_mut(places.stride_bytes as usize);
                for tag in &Filled::within(message).tags[..usize::from(number)] {
                    self.unposted.push_back(*tag);
                    let Some(piece) = pieces.next() else { continue };
                    let (region, offset_bytes) = (&self.attachment.region, places.region_offset_bytes(*tag));
                    region.read(offset_bytes, piece)?;
                    if touches {
                        region.touch(offset_bytes, piece.len().min(MAX_TOUCHED_BYTES) as u64)?;
                    }
                }
            }
            _ => return Ok(()),
        }
        self.post(false);
        Ok(())
    }

    /// As much as fits of a frame whose addresses are known. By words, as it was stored.
    #[inline(always)]
    fn write_compressed(&self, message: &Message, length_bytes: usize, into: &mut [u8]) {
        let Some(frame) = self.received_addresses.map(|known| known.expand(message)) else { return };
        let count = into.len().min(length_bytes);
        for (to, word) in into[..count].chunks_mut(size_of::<u64>()).zip(frame.map(u64::to_le_bytes)) {
            match <&mut [u8; size_of::<u64>()]>::try_from(&mut *to) {
                Ok(whole) => *whole = word,
                Err(_) => to.iter_mut().zip(word).for_each(|(to, byte)| *to = byte),
            }
        }
    }

    fn try_take(&mut self) -> Result<Option<Frame>, Error> {
        let mut message = Message::ZERO;
        let came = self.next(&mut message)?;
        let (length_bytes, number) = (came.length_bytes(), came.number());
        let frame = match came.kind() {
            Came::SMALL => {
                let place = self.receiving.places.region_offset_bytes(number);
                self.attachment.region.write(place, &Small::within(&message).bytes[..length_bytes as usize])?;
                Frame::new(&self.home, length_bytes, Offload::NONE, &[number])
            }
            Came::COMPRESSED => {
                let mut frame = [0; MAX_COMPRESSED_BYTES];
                let frame = &mut frame[..length_bytes as usize];
                self.write_compressed(&message, frame.len(), frame);
                self.attachment.region.write(self.receiving.places.region_offset_bytes(number), frame)?;
                Frame::new(&self.home, length_bytes, Offload::NONE, &[number])
            }
            Came::PACKED => Frame::new(&self.home, length_bytes, Offload::NONE, &[number]),
            Came::FILLED => {
                let Filled { offload, ref tags, .. } = *Filled::within(&message);
                Frame::new(&self.home, length_bytes, offload, &tags[..usize::from(number)])
            }
            _ => return Ok(None),
        };
        self.held += frame.buffer_count();
        self.post(false);
        Ok(Some(frame))
    }

    /// The next message that is no event, checked: its buffers are the program's again.
    #[inline(always)]
    fn next(&mut self, message: &mut Message) -> Result<Came, Error> {
        self.received_offload = Offload::NONE;
        if let Some(packed) = self.unpacked.next() {
            return Ok(Came::packed(packed));
        }
        // Behind an event there may be a frame: without it the caller would wait.
        for _ in 0..MOST_EVENTS {
            if !self.receive.queue.completions.receive(message) {
                return self.nothing_came().map(|()| Came::NOTHING);
            }
            if first_byte(message) == KIND_RECEIVED_PACKED {
                self.unpack(message)?;
                return Ok(self.unpacked.next().map_or(Came::NOTHING, Came::packed));
            }
            self.prefetch_next();
            match first_byte(message) {
                KIND_RECEIVED_COMPRESSED => return self.check_compressed(Small::within(message)),
                KIND_RECEIVED_SMALL => return self.check_small(Small::within(message)),
                KIND_RECEIVED => return self.check_filled(message),
                KIND_EVENT => self.take_event(message)?,
                _ => return self.take_returned(message).map(|()| Came::NOTHING),
            }
        }
        Ok(Came::NOTHING)
    }

    fn nothing_came(&mut self) -> Result<(), Error> {
        self.post(self.receive.queue.requests.outstanding() < ENOUGH_POSTED);
        self.acknowledge()?;
        self.receive.check_liveness_now_and_then(|| self.attachment.control.is_hung_up())
    }

    /// The next frame may be there already, elsewhere: its beginning is on its way here while this one is taken.
    #[inline(always)]
    fn prefetch_next(&self) {
        let completions = &self.receive.queue.completions;
        if completions.has_message() {
            let (ring, next) = (completions.memory(), completions.cursor());
            const { assert!(offset_of!(Filled, tags) == 2 * size_of::<u64>() + size_of::<u32>()) };
            let ([kind, ..], [.., low, high, _, _]) = (ring.glance(next, 0).to_le_bytes(), ring.glance(next, 2).to_le_bytes());
            if kind == KIND_RECEIVED {
                let offset_bytes = self.receiving.places.region_offset_bytes(u16::from_le_bytes([low, high]));
                self.attachment.region.prefetch_for_read(offset_bytes);
            }
        }
    }

    #[cold]
    fn take_returned(&mut self, message: &Message) -> Result<(), Error> {
        let (requests, unposted) = (&mut self.receive.queue.requests, &mut self.unposted);
        let ((refused, refusals), count) = give_back(message, &mut self.receiving, |tag| {
            requests.answered();
            unposted.push_back(tag);
        })?;
        expect("buffers without a frame and without a reason", count - refusals, refusals == count)?;
        refused.map_or(Ok(()), |status| Err(Error::Service(NetError::NotPosted(status))))
    }

    #[inline(always)]
    fn check_small(&mut self, &Small { length_bytes, tag, ref bytes, .. }: &Small) -> Result<Came, Error> {
        let is_possible = usize::from(length_bytes) <= MAX_SMALL_BYTES && u32::from(length_bytes) >= HEADER_BYTES;
        expect("the length of a small frame", length_bytes, is_possible)?;
        self.take_back(tag)?;
        self.received_addresses = Addresses::of(bytes);
        Ok(Came::in_message(Came::SMALL, length_bytes, tag))
    }

    #[inline(always)]
    fn check_compressed(&mut self, &Small { length_bytes, tag, .. }: &Small) -> Result<Came, Error> {
        let most = self.receiving.places.stride_bytes.min(MOST_COMPRESSED_BYTES);
        let is_possible = (HEADER_BYTES..=most).contains(&u32::from(length_bytes));
        let has_addresses = self.received_addresses.is_some();
        expect("the length of a frame without addresses, or there were none", length_bytes, is_possible && has_addresses)?;
        self.take_back(tag)?;
        Ok(Came::in_message(Came::COMPRESSED, length_bytes, tag))
    }

    #[inline(always)]
    fn check_filled(&mut self, message: &Message) -> Result<Came, Error> {
        let Filled { count, reserved, length_bytes, reserved_too, ref tags, .. } = *Filled::within(message);
        expect("the buffers of a frame", count, (1..=MAX_FRAME_BUFFERS).contains(&usize::from(count)))?;
        let stride = self.receiving.places.stride_bytes;
        let fits = count == 1 && length_bytes <= stride || length_bytes.div_ceil(stride) == u32::from(count);
        let is_possible = (HEADER_BYTES..=self.info.max_frame_bytes).contains(&length_bytes);
        expect("the length of a frame", length_bytes, fits && is_possible)?;
        expect("a reserved field", reserved | reserved_too, reserved == 0 && reserved_too == 0)?;
        // By whole words of the message: mostly there is none.
        const { assert!(offset_of!(Filled, offload) == 8 && size_of::<Offload>() == 8 + size_of::<u16>()) };
        if message.word(1) != 0 || message.word(2) & u64::from(u16::MAX) != 0 {
            let offload = Filled::within(message).offload;
            let in_force = self.info.offloads;
            let is_in_force = in_force != 0 && offload.needs().is_some_and(|needs| needs & !in_force == 0);
            expect("an offload that is not in force", offload.flags, is_in_force)?;
            self.received_offload = offload;
        }
        tags[..usize::from(count)].iter().try_for_each(|tag| self.take_back(*tag))?;
        // Its buffers begin with a line at least.
        if length_bytes as usize <= MAX_COMPRESSED_BYTES {
            let mut first = [0; 2 * size_of::<u64>()];
            self.attachment.region.read(self.receiving.places.region_offset_bytes(tags[0]), &mut first)?;
            self.received_addresses = Addresses::of(&first);
        }
        Ok(Came::filled(length_bytes, count))
    }

    #[inline(always)]
    pub(super) fn take_back(&mut self, tag: u16) -> Result<(), Error> {
        self.receiving.take_back(tag)?;
        self.receive.queue.requests.answered();
        Ok(())
    }

    /// Publish what was staged and wait for the next frame, at most until `deadline_ticks`; `false` if none came by then.
    ///
    /// # Errors
    /// As [`receive`](Self::receive); [`Error::Disconnected`] when the daemon is gone.
    pub fn wait(&mut self, deadline_ticks: Option<u64>, frame: &mut Vec<u8>) -> Result<bool, Error> {
        self.wait_for(deadline_ticks, |port| Ok(port.receive(frame)?.then_some(()))).map(|found| found.is_some())
    }

    /// As [`wait`](Self::wait), into a buffer, as [`receive_into`](Self::receive_into).
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_into(&mut self, deadline_ticks: Option<u64>, into: &mut [u8]) -> Result<Option<u32>, Error> {
        self.wait_for(deadline_ticks, |port| port.receive_into(into))
    }

    /// As [`wait`](Self::wait), for a frame as [`take`](Self::take) gives it.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_frame(&mut self, deadline_ticks: Option<u64>) -> Result<Option<Frame>, Error> {
        self.wait_for(deadline_ticks, Self::take)
    }

    #[inline]
    fn wait_for<T>(
        &mut self,
        deadline_ticks: Option<u64>,
        mut look: impl FnMut(&mut Self) -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        self.submit();
        loop {
            if let Some(found) = look(self)? {
                self.receive.backoff.reset();
                return Ok(Some(found));
            }
            // Frames that other threads hold give their buffers back without ringing.
            let again = (self.held > 0).then(|| clock::ticks().saturating_add(clock::duration_to_ticks(LONGEST_UNPOSTED)));
            let until = deadline_ticks.into_iter().chain(again).min();
            if !self.receive.pause(until, false, || self.attachment.control.is_hung_up())? {
                if again.is_none() || deadline_ticks.is_some_and(|deadline| clock::ticks() >= deadline) {
                    return Ok(None);
                }
                self.post(true);
            }
        }
    }
}
