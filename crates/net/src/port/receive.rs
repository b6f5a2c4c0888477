//! Receiving: buffers are posted, frames come in them or in messages, and are copied out or held.

use std::mem::offset_of;
use std::time::Duration;

use fipsee_ring::fault::expect;
use fipsee_ring::tuning::Touch;
use fipsee_ring::{Message, PeerFault, clock};

use super::buffers::give_back;
use super::staged::BURST;
use super::{Frame, POOL, Port};
use crate::error::{Error, NetError};
use crate::frame::HEADER_BYTES;
use crate::wire::{
    Filled, FilledPacked, KIND_EVENT, KIND_RECEIVED, KIND_RECEIVED_PACKED, KIND_RECEIVED_SMALL, MAX_FRAME_BUFFERS,
    MAX_PACKED_RECEIVED, MAX_POSTED, MAX_SMALL_BYTES, Offload, PackedBuffer, Post, PostedBuffer, Small, first_byte,
};

/// Frames of a message, of which each is in a buffer. All of it is checked.
#[derive(Debug)]
pub(super) struct Unpacked {
    frames: [PackedBuffer; MAX_PACKED_RECEIVED],
    count: u8,
    /// Those that were received.
    taken: u8,
}

impl Default for Unpacked {
    fn default() -> Self {
        Self { frames: [PackedBuffer::default(); MAX_PACKED_RECEIVED], count: 0, taken: 0 }
    }
}

impl Unpacked {
    #[inline(always)]
    pub(super) const fn is_empty(&self) -> bool {
        self.taken == self.count
    }

    #[inline(always)]
    fn next(&mut self) -> Option<PackedBuffer> {
        if self.is_empty() {
            return None;
        }
        let next = self.frames.get(usize::from(self.taken)).copied();
        self.taken += 1;
        next
    }
}

/// What was found in the ring.
enum Came {
    Nothing,
    Small(Small),
    /// One of several of a message.
    Packed(PackedBuffer),
    Filled(Filled),
}

impl Came {
    fn length_bytes(&self) -> u32 {
        match self {
            Self::Nothing => 0,
            Self::Small(small) => small.length_bytes.into(),
            Self::Packed(frame) => frame.length_bytes.into(),
            Self::Filled(filled) => filled.length_bytes,
        }
    }
}

/// Events that one look takes before it gives up: a correct daemon has one on its way at most.
const MOST_EVENTS: usize = 8;
/// Where the daemon has so many buffers, others wait until a message is full of them: one that comes after each frame costs a line transfer each.
const ENOUGH_POSTED: u32 = 32;
/// Of a longer frame the lines behind are on their way while the first are written.
const MAX_TOUCHED_BYTES: usize = 256;

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
        let offset_bytes = self.receiving.pool_offset_bytes(tag);
        PostedBuffer { tag, memory: POOL, offset_bytes, length_bytes: self.receiving.stride_bytes }
    }

    #[inline(always)]
    fn publish_post(&mut self, post: Post, buffers: usize) {
        let calls = u32::try_from(buffers).unwrap_or(0);
        let published = self.receive.queue.requests.publish_several(&post.to_message(), calls);
        self.receive.queue.requests.prefetch(BURST);
        debug_assert!(published.is_ok(), "there are no more buffers than the ring takes");
    }

    /// Take the next frame, if one is there, in place of what `frame` has. Its buffers are posted again, several at a time.
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
        let came = self.next().inspect_err(|_| frame.clear())?;
        // What it has already is not filled with zeroes before.
        frame.resize(came.length_bytes() as usize, 0);
        self.copy_out(&came, frame)?;
        Ok(!matches!(came, Came::Nothing))
    }

    fn try_receive_into(&mut self, into: &mut [u8]) -> Result<Option<u32>, Error> {
        let came = self.next()?;
        self.copy_out(&came, into)?;
        Ok((!matches!(came, Came::Nothing)).then(|| came.length_bytes()))
    }

    /// Copy as much as fits; the buffers are free.
    #[inline(always)]
    fn copy_out(&mut self, came: &Came, into: &mut [u8]) -> Result<(), Error> {
        match came {
            Came::Nothing => return Ok(()),
            Came::Packed(packed) => return self.copy_packed(*packed, into),
            Came::Small(Small { length_bytes, tag, bytes, .. }) => {
                self.unposted.push_back(*tag);
                let count = into.len().min(usize::from(*length_bytes));
                into[..count].copy_from_slice(&bytes[..count]);
            }
            Came::Filled(Filled { count, length_bytes, tags, .. }) => {
                let tags = &tags[..usize::from(*count)];
                self.unposted.extend(tags);
                let length = into.len().min(*length_bytes as usize);
                let pieces = into[..length].chunks_mut(self.receiving.stride_bytes as usize);
                tags.iter().zip(pieces).try_for_each(|(tag, piece)| self.read_buffer(*tag, piece))?;
            }
        }
        self.post(false);
        Ok(())
    }

    /// Likewise, of a frame that came with others.
    #[inline(always)]
    fn copy_packed(&mut self, PackedBuffer { tag, length_bytes }: PackedBuffer, into: &mut [u8]) -> Result<(), Error> {
        self.received_offload = Offload::NONE;
        let count = into.len().min(usize::from(length_bytes));
        self.attachment.region.read(self.receiving.region_offset_bytes(tag), &mut into[..count])?;
        self.unposted.push_back(tag);
        self.post(false);
        Ok(())
    }

    /// Copy the beginning of a buffer that the daemon is to write again.
    #[inline(always)]
    fn read_buffer(&self, tag: u16, into: &mut [u8]) -> Result<(), Error> {
        let (region, offset_bytes) = (&self.attachment.region, self.receiving.region_offset_bytes(tag));
        region.read(offset_bytes, into)?;
        if self.receive.queue.tuning.touch != Touch::Never {
            region.touch(offset_bytes, into.len().min(MAX_TOUCHED_BYTES) as u64)?;
        }
        Ok(())
    }

    fn try_take(&mut self) -> Result<Option<Frame>, Error> {
        let frame = match self.next()? {
            Came::Nothing => return Ok(None),
            Came::Small(small) => {
                let (bytes, place) =
                    (&small.bytes[..usize::from(small.length_bytes)], self.receiving.region_offset_bytes(small.tag));
                self.attachment.region.write(place, bytes)?;
                Frame::new(&self.home, u32::from(small.length_bytes), Offload::NONE, &[small.tag])
            }
            Came::Packed(PackedBuffer { tag, length_bytes }) => {
                Frame::new(&self.home, length_bytes.into(), Offload::NONE, &[tag])
            }
            Came::Filled(Filled { count, length_bytes, offload, tags, .. }) => {
                Frame::new(&self.home, length_bytes, offload, &tags[..usize::from(count)])
            }
        };
        self.held += frame.buffer_count();
        self.post(false);
        Ok(Some(frame))
    }

    /// The next message that is no event, checked: its buffers are the program's again.
    #[inline(always)]
    fn next(&mut self) -> Result<Came, Error> {
        self.received_offload = Offload::NONE;
        if let Some(frame) = self.unpacked.next() {
            return Ok(Came::Packed(frame));
        }
        let mut message = Message::ZERO;
        // Behind an event there may be a frame: without it the caller would wait.
        for _ in 0..MOST_EVENTS {
            if !self.receive.queue.completions.receive(&mut message) {
                self.post(self.receive.queue.requests.outstanding() < ENOUGH_POSTED);
                self.acknowledge()?;
                self.receive.check_liveness_now_and_then(|| self.attachment.control.is_hung_up())?;
                return Ok(Came::Nothing);
            }
            self.prefetch_next();
            match first_byte(&message) {
                KIND_RECEIVED_PACKED => return self.unpack(FilledPacked::within(&message)),
                KIND_RECEIVED_SMALL => return self.check_small(Small::of(&message)).map(Came::Small),
                KIND_RECEIVED => return self.check_filled(Filled::of(&message)).map(Came::Filled),
                KIND_EVENT => self.take_event(&message)?,
                _ => return self.take_returned(&message),
            }
        }
        Ok(Came::Nothing)
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
                let offset_bytes = self.receiving.region_offset_bytes(u16::from_le_bytes([low, high]));
                self.attachment.region.prefetch_for_read(offset_bytes);
            }
        }
    }

    fn take_returned(&mut self, message: &Message) -> Result<Came, Error> {
        let (requests, unposted) = (&mut self.receive.queue.requests, &mut self.unposted);
        let ((refused, refusals), count) = give_back(message, &mut self.receiving, |tag| {
            requests.answered();
            unposted.push_back(tag);
        })?;
        expect("buffers without a frame and without a reason", count - refusals, refusals == count)?;
        refused.map_or(Ok(Came::Nothing), |status| Err(Error::Service(NetError::NotPosted(status))))
    }

    fn check_small(&mut self, small: Small) -> Result<Small, Error> {
        let length = small.length_bytes;
        let is_possible = usize::from(length) <= MAX_SMALL_BYTES && u32::from(length) >= HEADER_BYTES;
        expect("the length of a small frame", length, is_possible)?;
        self.take_back(small.tag)?;
        Ok(small)
    }

    fn check_filled(&mut self, filled: Filled) -> Result<Filled, Error> {
        let Filled { count, reserved, length_bytes, offload, reserved_too, tags, .. } = filled;
        let count = usize::from(count);
        expect("the buffers of a frame", count as u64, (1..=MAX_FRAME_BUFFERS).contains(&count))?;
        let stride = self.receiving.stride_bytes as usize;
        let fits = (length_bytes as usize).div_ceil(stride) == count;
        let is_possible = (HEADER_BYTES..=self.info.max_frame_bytes).contains(&length_bytes);
        expect("the length of a frame", length_bytes, fits && is_possible)?;
        expect("a reserved field", reserved | reserved_too, reserved == 0 && reserved_too == 0)?;
        let is_in_force = offload.needs().is_some_and(|needs| needs & !self.info.offloads == 0);
        expect("an offload that is not in force", offload.flags, is_in_force)?;
        tags[..count].iter().try_for_each(|tag| self.take_back(*tag))?;
        self.received_offload = offload;
        Ok(filled)
    }

    /// Check all frames of a message, and begin with the first.
    #[inline(always)]
    fn unpack(&mut self, packed: &FilledPacked) -> Result<Came, Error> {
        let FilledPacked { count, reserved, .. } = *packed;
        let frames = packed.named().ok_or(PeerFault::Value { what: "the frames of a message", value: count.into() })?;
        expect("a reserved field", reserved, reserved == 0)?;
        let most = self.receiving.stride_bytes.min(self.info.max_frame_bytes);
        // As if it were touched later, at once.
        let touches = self.receive.queue.tuning.touch != Touch::Never;
        for PackedBuffer { tag, length_bytes } in frames {
            expect("the length of a frame", *length_bytes, (HEADER_BYTES..=most).contains(&u32::from(*length_bytes)))?;
            self.take_back(*tag)?;
            let offset_bytes = self.receiving.region_offset_bytes(*tag);
            if touches {
                self.attachment.region.prefetch_for_write(offset_bytes);
            } else {
                self.attachment.region.prefetch_for_read(offset_bytes);
            }
        }
        // By when these frames are taken the next message is here.
        self.receive.queue.completions.prefetch_ahead(0);
        self.unpacked = Unpacked { frames: packed.frames, count, taken: 0 };
        Ok(self.unpacked.next().map_or(Came::Nothing, Came::Packed))
    }

    fn take_back(&mut self, tag: u16) -> Result<(), Error> {
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
