//! Frames that are to leave with the next submit: one alone is in its message, so that the daemon decides without a look at memory; several share messages.

use fipsee_ring::Message;

use super::buffers::SHORT_REST_BYTES;
use super::{POOL, Port};
use crate::error::Error;
use crate::wire::{
    Addresses, OPERATION_SEND, OPERATION_SEND_COMPRESSED, OPERATION_SEND_SMALL, PackedFrame, Send, SendPacking, Small,
    expanded_bytes, first_byte, sent_tag,
};

/// More than one message, for the ring.
pub(super) const BURST: usize = 2;

#[derive(Debug, Default)]
pub(super) struct Staged {
    /// The message of a frame that is alone until another one follows.
    alone: Option<Message>,
    packing: SendPacking,
    /// Something was staged since the last submit.
    is_burst: bool,
    /// Something was published that the daemon, if it sleeps, was not rung for.
    is_unrung: bool,
}

impl Staged {
    pub(super) fn count(&self) -> u32 {
        u32::from(self.packing.count()) + u32::from(self.alone.is_some())
    }
}

impl Port {
    /// Will a frame without an offload share a message with those before it?
    #[inline(always)]
    pub(super) const fn is_burst(&self) -> bool {
        self.staged.is_burst
    }

    /// The first of a burst, or a frame alone.
    #[inline(always)]
    pub(super) const fn stage_alone(&mut self, message: Message) {
        self.staged.alone = Some(message);
        self.staged.is_burst = true;
    }

    /// A frame that is in memory wholly, at this offset in the pool, follows others.
    #[inline(always)]
    pub(super) fn pack(&mut self, tag: u16, length_bytes: usize, offset_bytes: u32) -> Result<(), Error> {
        if let Some(message) = self.staged.alone.take() {
            self.unfold(&message)?;
        }
        self.push(tag, length_bytes, offset_bytes);
        Ok(())
    }

    #[inline(always)]
    fn push(&mut self, tag: u16, length_bytes: usize, offset_bytes: u32) {
        // Without an offload it is no longer.
        let length_bytes = u16::try_from(length_bytes).unwrap_or(u16::MAX);
        self.staged.packing.push(PackedFrame { tag, length_bytes, offset_bytes });
        if self.staged.packing.is_full() {
            self.publish_packed();
        }
    }

    /// Another frame follows the one that was alone: what is in its message goes before its rest.
    #[inline(never)]
    fn unfold(&mut self, message: &Message) -> Result<(), Error> {
        let (tag, send, small, region) =
            (sent_tag(message), Send::within(message), Small::within(message), &self.attachment.region);
        let expanded = self.sent_addresses.map(|known| expanded_bytes(&known.expand(message)));
        let length = usize::from(small.length_bytes);
        let frame = match first_byte(message) {
            OPERATION_SEND_SMALL => Some(&small.bytes[..length]),
            OPERATION_SEND_COMPRESSED => expanded.as_ref().map(|bytes| &bytes[..length]),
            _ => None,
        };
        if let Some(frame) = frame {
            let places = self.places(frame.len());
            let pool_offset_bytes = places.pool_offset_bytes(tag);
            region.write(places.region_offset_bytes(tag), frame)?;
            self.push(tag, frame.len(), pool_offset_bytes);
            return Ok(());
        }
        let (first, rest_bytes) = (&send.first[..usize::from(send.first_bytes)], send.rest_bytes as usize);
        let length_bytes = first.len() + rest_bytes;
        let mut places = &self.sending.places;
        if rest_bytes > 0 && send.offset_bytes != places.pool_offset_bytes(tag) + u32::from(send.first_bytes) {
            // It is apart from where the whole frame goes.
            let mut rest = [0; SHORT_REST_BYTES as usize];
            let rest = &mut rest[..rest_bytes.min(SHORT_REST_BYTES as usize)];
            region.read(self.places(rest.len()).region_offset_bytes(tag), rest)?;
            places = self.places(length_bytes);
            region.write(places.region_offset_bytes(tag) + first.len() as u64, rest)?;
        }
        let pool_offset_bytes = places.pool_offset_bytes(tag);
        region.write(places.region_offset_bytes(tag), first)?;
        self.push(tag, length_bytes, pool_offset_bytes);
        Ok(())
    }

    #[inline(always)]
    fn publish_packed(&mut self) {
        let Self { staged: Staged { packing, is_unrung, .. }, sending, transmit, .. } = self;
        // Not before: of a frame that is only staged no answer may come.
        packing.tags().for_each(|tag| sending.given[usize::from(tag)] = true);
        let (count, message) = (packing.count(), packing.take(POOL));
        let published = transmit.queue.requests.publish_several(&message, count.into());
        debug_assert!(published.is_ok(), "there are no more buffers than the ring takes");
        transmit.queue.requests.prefetch(BURST);
        *is_unrung = true;
    }

    #[inline(always)]
    fn publish_staged(&mut self) {
        if let Some(message) = self.staged.alone.take() {
            self.publish(sent_tag(&message), &message);
        }
        if self.staged.packing.count() > 0 {
            self.publish_packed();
        }
    }

    #[inline(always)]
    fn publish(&mut self, tag: u16, message: &Message) {
        let (send, small) = (Send::within(message), Small::within(message));
        match first_byte(message) {
            OPERATION_SEND => self.sent_addresses = Addresses::of(&send.first),
            OPERATION_SEND_SMALL => self.sent_addresses = Addresses::of(&small.bytes),
            _ => {}
        }
        self.sending.given[usize::from(tag)] = true;
        let published = self.transmit.queue.requests.publish(message);
        debug_assert!(published.is_ok(), "there are no more buffers than the ring takes");
        self.staged.is_unrung = true;
    }

    /// What shares no message, behind what was staged.
    pub(super) fn publish_alone(&mut self, tag: u16, message: &Message) {
        self.publish_staged();
        self.publish(tag, message);
        self.transmit.queue.requests.prefetch(BURST);
        self.staged.is_burst = true;
    }

    /// Publish what was staged, in one burst, and wake the daemon if it sleeps.
    pub fn submit(&mut self) {
        self.publish_staged();
        self.staged.is_burst = false;
        if std::mem::take(&mut self.staged.is_unrung) {
            self.transmit.ring_a_sleeper();
        }
    }
}
