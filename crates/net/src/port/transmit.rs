//! Sending: frames are copied into the pool or filled in place there, leave in bursts, and are given back.

use std::sync::Arc;

use fipsee_ring::Message;
use fipsee_ring::mapped::in_quarters;

use super::buffers::{Places, SHORT_REST_BYTES, give_back, too_long};
use super::{Buffer, POOL, Port};
use crate::error::{Error, NetError};
use crate::frame::HEADER_BYTES;
use crate::wire::{
    Addresses, MAX_FIRST_BYTES, MAX_SMALL_BYTES, OPERATION_SEND, OPERATION_SEND_COMPRESSED, OPERATION_SEND_SMALL, Offload, Send,
    Small, Status, compressed, is_compressible,
};

/// As [`MAX_FIRST_BYTES`].
const FIRST_BYTES: u8 = 36;
const _: () = assert!(FIRST_BYTES as usize == MAX_FIRST_BYTES);
/// So many frames ahead the first line of a buffer is asked for.
const TAGS_AHEAD: usize = 4;

impl Port {
    /// Send a frame, beginning with its Ethernet header, without a checksum at its end. It is copied.
    ///
    /// # Errors
    /// [`NetError::Length`]; [`Error::Full`] when all transmit buffers are on their way.
    pub fn send(&mut self, frame: &[u8]) -> Result<(), Error> {
        self.stage(frame)?;
        self.submit();
        Ok(())
    }

    /// As [`send`](Self::send), but the frame leaves with the next [`submit`](Self::submit), or earlier. Several that are staged one after the other share
    /// messages.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn stage(&mut self, frame: &[u8]) -> Result<(), Error> {
        self.stage_offloaded(frame, Offload::NONE)
    }

    /// As [`stage`](Self::stage), of a frame that leaves something to be done, by offloads that are in force
    /// ([`info`](Self::info)).
    ///
    /// # Errors
    /// As [`send`](Self::send).
    #[inline]
    pub fn stage_offloaded(&mut self, frame: &[u8], offload: Offload) -> Result<(), Error> {
        self.check_length(frame.len())?;
        let tag = self.free_tag()?;
        let is_plain = offload == Offload::NONE;
        if is_plain && self.is_burst() {
            let places = self.places(frame.len());
            let pool_offset_bytes = places.pool_offset_bytes(tag);
            self.attachment.region.write(places.region_offset_bytes(tag), frame)?;
            self.prefetch_soon(places);
            return self.pack(tag, frame.len(), pool_offset_bytes);
        }
        if frame.len() <= MAX_SMALL_BYTES && is_plain {
            self.stage_alone(Small::new(OPERATION_SEND_SMALL, tag, frame).to_message());
            return Ok(());
        }
        if is_plain && is_compressible(frame.len()) && self.sent_addresses == Addresses::of(frame) {
            self.stage_alone(compressed(OPERATION_SEND_COMPRESSED, tag, frame));
            return Ok(());
        }
        let Some((first, rest)) = frame.split_first_chunk() else {
            let first_bytes = u8::try_from(frame.len()).unwrap_or(FIRST_BYTES);
            self.publish_alone(tag, &send_message(tag, (&padded(frame), first_bytes), (0, 0), offload));
            return Ok(());
        };
        let places = self.places(rest.len());
        // A long one is where it is if the first bytes are stored, too.
        let skip_bytes = if rest.len() > SHORT_REST_BYTES as usize { FIRST_BYTES } else { 0 };
        self.attachment.region.write(places.region_offset_bytes(tag) + u64::from(skip_bytes), rest)?;
        self.prefetch_soon(places);
        let place = (places.pool_offset_bytes(tag) + u32::from(skip_bytes), rest.len());
        let message = send_message(tag, (first, FIRST_BYTES), place, offload);
        if is_plain {
            self.stage_alone(in_quarters(&message));
        } else {
            self.publish_alone(tag, &message);
        }
        Ok(())
    }

    /// Where so many bytes of a frame go.
    #[inline(always)]
    pub(super) const fn places(&self, length_bytes: usize) -> &Places {
        if length_bytes <= SHORT_REST_BYTES as usize { &self.rests } else { &self.sending.places }
    }

    /// The daemon has read what is where a frame will go soon.
    #[inline(always)]
    fn prefetch_soon(&self, places: &Places) {
        if let Some(soon) = self.free.len().checked_sub(TAGS_AHEAD) {
            self.attachment.region.prefetch_for_write(places.region_offset_bytes(self.free[soon]));
        }
    }

    /// A transmit buffer to be filled in place.
    ///
    /// # Errors
    /// [`Error::Full`] when all are on their way.
    pub fn buffer(&mut self) -> Result<Buffer, Error> {
        let tag = self.free_tag()?;
        let offset_bytes = self.sending.places.region_offset_bytes(tag);
        let (length_bytes, region) = (self.info.max_frame_bytes, Arc::clone(&self.attachment.region));
        region.pointer("transmit buffer", offset_bytes, length_bytes.into())?;
        Ok(Buffer { tag, length_bytes, region, offset_bytes })
    }

    /// Send the frame that begins a buffer; it leaves with the next [`submit`](Self::submit). Nothing but its first bytes is copied.
    ///
    /// # Errors
    /// [`NetError::Length`]; the buffer is then free again. [`NetError::OtherBuffer`].
    pub fn send_buffer(&mut self, buffer: Buffer, length_bytes: u32) -> Result<(), Error> {
        self.send_buffer_offloaded(buffer, length_bytes, Offload::NONE)
    }

    /// As [`send_buffer`](Self::send_buffer), of a frame that leaves something to be done, by offloads that are in force.
    ///
    /// # Errors
    /// As [`send_buffer`](Self::send_buffer).
    pub fn send_buffer_offloaded(&mut self, buffer: Buffer, length_bytes: u32, offload: Offload) -> Result<(), Error> {
        self.check_own(&buffer)?;
        let Buffer { tag, offset_bytes, .. } = buffer;
        if let Err(error) = self.check_length(length_bytes as usize) {
            self.free.push(tag);
            return Err(error);
        }
        let is_plain = offload == Offload::NONE;
        if is_plain && self.is_burst() {
            return self.pack(tag, length_bytes as usize, self.sending.places.pool_offset_bytes(tag));
        }
        // A buffer is longer in any case.
        let (mut first, first_bytes) = ([0; MAX_FIRST_BYTES], FIRST_BYTES.min(u8::try_from(length_bytes).unwrap_or(FIRST_BYTES)));
        self.attachment.region.read(offset_bytes, &mut first)?;
        // Behind the first ones.
        let rest_offset_bytes = self.sending.places.pool_offset_bytes(tag) + u32::from(first_bytes);
        let rest_bytes = length_bytes as usize - usize::from(first_bytes);
        let message = send_message(tag, (&first, first_bytes), (rest_offset_bytes, rest_bytes), offload);
        if is_plain {
            self.stage_alone(in_quarters(&message));
        } else {
            self.publish_alone(tag, &message);
        }
        Ok(())
    }

    /// A buffer that is not sent after all.
    ///
    /// # Errors
    /// [`NetError::OtherBuffer`].
    pub fn put_back(&mut self, buffer: Buffer) -> Result<(), Error> {
        self.check_own(&buffer)?;
        self.free.push(buffer.tag);
        Ok(())
    }

    /// Buffers of other pairs, which share the region, are elsewhere in it.
    fn check_own(&self, Buffer { tag, region, offset_bytes, .. }: &Buffer) -> Result<(), Error> {
        let is_own =
            Arc::ptr_eq(region, &self.attachment.region) && *offset_bytes == self.sending.places.region_offset_bytes(*tag);
        if is_own { Ok(()) } else { Err(Error::Service(NetError::OtherBuffer)) }
    }

    fn check_length(&self, length_bytes: usize) -> Result<(), Error> {
        let most = self.info.max_frame_bytes;
        let is_possible = (HEADER_BYTES as usize..=most as usize).contains(&length_bytes);
        if is_possible { Ok(()) } else { Err(too_long(length_bytes, most)) }
    }

    pub(super) fn free_tag(&mut self) -> Result<u16, Error> {
        if self.free.is_empty() {
            self.submit();
            self.reap()?;
        }
        self.free.pop().ok_or(Error::Full)
    }

    /// Take what was sent back, without waiting: how many frames.
    ///
    /// # Errors
    /// The daemon broke the protocol.
    pub fn reap(&mut self) -> Result<u64, Error> {
        let reaped = self.try_reap();
        self.ended_by(reaped)
    }

    fn try_reap(&mut self) -> Result<u64, Error> {
        let (mut message, before) = (Message::ZERO, self.counters.sent_back);
        while self.transmit.queue.completions.receive(&mut message) {
            let (refused, count) = give_back(&message, &mut self.sending, |tag| {
                self.transmit.queue.requests.answered();
                self.free.push(tag);
            })?;
            self.counters.sent_back += count;
            if let Some(status) = refused.0 {
                self.counters.newest_refusal = Some(status);
                self.counters.refused += refused.1;
            }
        }
        Ok(self.counters.sent_back - before)
    }

    /// Frames that were sent and not given back.
    pub fn unsent(&self) -> u32 {
        self.transmit.queue.requests.outstanding() + self.staged.count()
    }

    /// How many frames the daemon did not take, and why not, of the newest.
    pub const fn refused(&self) -> (u64, Option<Status>) {
        (self.counters.refused, self.counters.newest_refusal)
    }

    /// Publish what was staged and wait until all of it was sent back, at most until `deadline_ticks`: `false` if it was not.
    ///
    /// # Errors
    /// [`Error::Disconnected`] when the daemon is gone.
    pub fn wait_sent(&mut self, deadline_ticks: Option<u64>) -> Result<bool, Error> {
        self.submit();
        loop {
            if self.reap()? > 0 {
                self.transmit.backoff.reset();
            }
            if self.unsent() == 0 {
                return Ok(true);
            }
            if !self.transmit.pause(deadline_ticks, false, || self.attachment.control.is_hung_up())? {
                return Ok(false);
            }
        }
    }
}

#[cold]
fn padded(frame: &[u8]) -> [u8; MAX_FIRST_BYTES] {
    std::array::from_fn(|index| frame.get(index).copied().unwrap_or(0))
}

/// The first bytes are an array, of which the frame has so many: a part of unknown length would be stored, and the load of the whole message would wait for
/// that, behind the frame before. The rest is at this offset in the pool.
#[inline(always)]
fn send_message(
    tag: u16,
    (first, first_bytes): (&[u8; MAX_FIRST_BYTES], u8),
    (offset_bytes, rest_bytes): (u32, usize),
    offload: Offload,
) -> Message {
    let rest_bytes = u32::try_from(rest_bytes).unwrap_or(u32::MAX);
    // Without a rest it means nothing.
    let offset_bytes = if rest_bytes == 0 { 0 } else { offset_bytes };
    let (operation, memory) = (OPERATION_SEND, POOL);
    Send { operation, first_bytes, tag, offset_bytes, rest_bytes, memory, offload, first: *first, stamp: 0 }.to_message()
}
