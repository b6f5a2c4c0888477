//! Frames that are to leave with the next submit: one alone is in its message, so that the daemon decides without a look at memory; several share messages.

use fipsee_ring::Message;

use super::{POOL, Port};
use crate::error::Error;
use crate::wire::{OPERATION_SEND_SMALL, PackedFrame, Send, SendPacking, Small, first_byte, sent_tag};

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

    /// A frame that is in its buffer, wholly, follows others.
    #[inline(always)]
    pub(super) fn pack(&mut self, tag: u16, length_bytes: usize) -> Result<(), Error> {
        if let Some(message) = self.staged.alone.take() {
            self.unfold(&message)?;
        }
        self.push(tag, length_bytes);
        Ok(())
    }

    #[inline(always)]
    fn push(&mut self, tag: u16, length_bytes: usize) {
        let offset_bytes = self.sending.pool_offset_bytes(tag);
        // Without an offload it is no longer.
        let length_bytes = u16::try_from(length_bytes).unwrap_or(u16::MAX);
        self.staged.packing.push(PackedFrame { tag, length_bytes, offset_bytes });
        if self.staged.packing.is_full() {
            self.publish_packed();
        }
    }

    /// Another frame follows the one that was alone: what is in its message goes where its rest is.
    #[inline(never)]
    fn unfold(&mut self, message: &Message) -> Result<(), Error> {
        let (tag, send) = (sent_tag(message), Send::within(message));
        let (first, length_bytes) = match first_byte(message) {
            OPERATION_SEND_SMALL => {
                let Small { length_bytes, ref bytes, .. } = *Small::within(message);
                (&bytes[..usize::from(length_bytes)], usize::from(length_bytes))
            }
            _ => (&send.first[..usize::from(send.first_bytes)], usize::from(send.first_bytes) + send.rest_bytes as usize),
        };
        self.attachment.region.write(self.sending.region_offset_bytes(tag), first)?;
        self.push(tag, length_bytes);
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
        if std::mem::take(&mut self.staged.is_unrung) && self.transmit.queue.requests.reader_needs_doorbell() {
            self.transmit.queue.daemon_doorbell.ring();
        }
    }
}
