//! Frames that came by one message, received one by one.

use std::mem::offset_of;

use fipsee_ring::fault::expect;
use fipsee_ring::tuning::Touch;
use fipsee_ring::{Message, PeerFault};

use super::Port;
use crate::error::Error;
use crate::frame::HEADER_BYTES;
use crate::wire::{FilledPacked, Offload, PackedBuffer};

/// Frames of a message, of which each is in a buffer. All of it is checked.
#[derive(Debug, Default)]
pub(super) struct Unpacked {
    /// Loaded by half words, which are not across the pieces in which it was stored.
    message: Message,
    count: u8,
    /// Those that were received.
    taken: u8,
}

impl Unpacked {
    #[inline(always)]
    pub(super) const fn is_empty(&self) -> bool {
        self.taken == self.count
    }

    #[inline(always)]
    pub(super) fn next(&mut self) -> Option<PackedBuffer> {
        if self.is_empty() {
            return None;
        }
        const { assert!(offset_of!(FilledPacked, frames) == size_of::<PackedBuffer>() && size_of::<PackedBuffer>() == 4) };
        self.taken += 1;
        let [tag, length_bytes]: [u16; 2] = zerocopy::transmute!(self.message.half_word(usize::from(self.taken)));
        Some(PackedBuffer { tag, length_bytes })
    }
}

impl Port {
    /// Check all frames of a message: their buffers are the program's again.
    #[inline(always)]
    pub(super) fn unpack(&mut self, message: &Message) -> Result<(), Error> {
        let packed = FilledPacked::within(message);
        let FilledPacked { count, reserved, .. } = *packed;
        let frames = packed.named().ok_or(PeerFault::Value { what: "the frames of a message", value: count.into() })?;
        expect("a reserved field", reserved, reserved == 0)?;
        let most = self.receiving.places.stride_bytes.min(self.info.max_frame_bytes);
        // As if it were touched later, at once.
        let touches = self.receive.queue.tuning.touch != Touch::Never;
        for PackedBuffer { tag, length_bytes } in frames {
            expect("the length of a frame", *length_bytes, (HEADER_BYTES..=most).contains(&u32::from(*length_bytes)))?;
            self.take_back(*tag)?;
            let offset_bytes = self.receiving.places.region_offset_bytes(*tag);
            if touches {
                self.attachment.region.prefetch_for_write(offset_bytes);
            } else {
                self.attachment.region.prefetch_for_read(offset_bytes);
            }
        }
        // By when these frames are taken the next message is here.
        self.receive.queue.completions.prefetch_ahead(0);
        self.unpacked = Unpacked { message: *message, count, taken: 0 };
        Ok(())
    }

    /// Copy as much of one of them as fits; its buffer is free.
    #[inline(always)]
    pub(super) fn copy_packed(&mut self, PackedBuffer { tag, length_bytes }: PackedBuffer, into: &mut [u8]) -> Result<(), Error> {
        self.received_offload = Offload::NONE;
        let count = into.len().min(usize::from(length_bytes));
        self.attachment.region.read(self.receiving.places.region_offset_bytes(tag), &mut into[..count])?;
        self.unposted.push_back(tag);
        self.post(false);
        Ok(())
    }
}
