//! Frames of which more is looked at than their first bytes. What they leave to be done is carried to receivers that take it, and otherwise done here, with copies
//! that no other process can change.

use std::ptr::NonNull;

use fipsee_ring::memory::{Span, copy_from};

use super::endpoint::Frame;
use super::outputs::Outputs;
use crate::frame::{HEADER_BYTES, Head, Tagging, VLAN_TAG_BYTES};
use crate::offload::{Checked, MAX_HEADERS_BYTES};
use crate::switch::{Delivery, PortNumber};
use crate::wire::{CHECKSUM_NEEDED, MAX_SEGMENTED_BYTES, Offload, Status};

/// The headers of a frame, and a tag.
type LongHead = Head<{ MAX_HEADERS_BYTES + VLAN_TAG_BYTES as usize }>;

/// A port, and which of its pairs.
type Side = (PortNumber, usize);

/// What is as much work as an attempt to give a frame to a port, in bytes that are copied or summed.
const WORK_BYTES: u64 = 4096;
/// Most attempts of one frame that is divided: ports beyond lose it.
const MAX_WORK: u64 = 4096;

/// A place to work in.
pub(super) struct Software {
    /// The first bytes of a frame, then all of it.
    frame: Box<[u8]>,
}

/// A frame whose offload is true of it.
pub(super) struct Inspected {
    checked: Checked,
    length_bytes: usize,
    /// The first bytes, as they were checked.
    head: [u8; MAX_HEADERS_BYTES],
    head_bytes: usize,
}

/// What a port gets of a frame.
enum Form {
    /// The frame, and what is left to be done with it.
    Carried(Offload),
    /// The frame with its checksum.
    Completed,
    /// Frames that fit.
    Divided,
}

impl Software {
    pub(super) fn new() -> Self {
        let most_bytes = MAX_SEGMENTED_BYTES + HEADER_BYTES + VLAN_TAG_BYTES;
        Self { frame: vec![0; most_bytes as usize].into_boxed_slice() }
    }
}

impl Inspected {
    /// Of a frame that is `first`, then what `rest` has, of which what is looked at is taken. `packet` is where the packet begins. All headers are
    /// looked at if it is to be divided, or `deeply`.
    ///
    /// # Errors
    /// The offload is not true of the frame.
    ///
    /// # Safety
    /// `rest` is mapped for loads.
    pub(super) unsafe fn new(
        offload: &Offload,
        first: &[u8],
        rest: &mut [Span],
        (packet, mtu, length_bytes): (u32, u16, u64),
        deeply: bool,
    ) -> Result<Self, Status> {
        let length_bytes = usize::try_from(length_bytes).map_err(|_| Status::TooLong)?;
        let (packet, mut head) = (packet as usize, [0; MAX_HEADERS_BYTES]);
        let deeply = deeply || offload.segmentation != 0;
        let head_bytes = if deeply { length_bytes.min(MAX_HEADERS_BYTES) } else { first.len() };
        let (copied, more) = head[..head_bytes].split_at_mut(first.len());
        copied.copy_from_slice(first);
        // SAFETY: by the caller; `head` is our own.
        let is_whole = unsafe { copy_from(rest, more) };
        let mut taken_bytes = more.len();
        for span in rest {
            let now = taken_bytes.min(span.length_bytes());
            *span = span.without_first(now);
            taken_bytes -= now;
        }
        let checked = Checked::new(offload, &head[..head_bytes], length_bytes, (packet, packet + usize::from(mtu)));
        let checked = checked.filter(|_| is_whole).ok_or(Status::BadOffload)?;
        Ok(Self { checked, length_bytes, head, head_bytes })
    }

    /// The bytes that are looked at.
    pub(super) fn head(&self) -> &[u8] {
        &self.head[..self.head_bytes]
    }

    /// What a side with these offloads gets.
    fn form(&self, offloads: u32) -> Form {
        let Checked { offload, needs, .. } = self.checked;
        match needs & !offloads {
            0 => Form::Carried(offload),
            _ if offload.segmentation != 0 => Form::Divided,
            _ if offload.flags & CHECKSUM_NEEDED != 0 => Form::Completed,
            // It says only that the checksum is right.
            _ => Form::Carried(Offload::NONE),
        }
    }

    /// Give it to these ports. Returns the bytes moved.
    ///
    /// # Safety
    /// `rest` is mapped for loads.
    pub(super) unsafe fn deliver(&self, outputs: &mut Outputs, to: &[Delivery], rest: &[Span], software: &mut Software) -> u64 {
        let (mut moved_bytes, mut is_copied) = (0, false);
        for (port, tagging) in to {
            let head = LongHead::new(self.head(), *tagging);
            // Once, so that the pair whose offloads are asked for is the one that gets it, and all segments come by the same one.
            // SAFETY: by the caller.
            let side = (*port, unsafe { outputs.pair(*port, head.bytes(), rest) });
            let form = self.form(outputs.offloads(side.0, side.1));
            if let Form::Carried(offload) = form {
                // SAFETY: by the caller.
                moved_bytes += unsafe { self.carry(outputs, side, &head, rest, offload) };
                continue;
            }
            if !is_copied {
                is_copied = true;
                outputs.deliveries += 2 * (self.length_bytes as u64).div_ceil(WORK_BYTES);
                // SAFETY: by the caller.
                unsafe { self.copy(rest, software) };
            }
            moved_bytes += match form {
                Form::Divided => self.divide(outputs, side, *tagging, software),
                _ => self.give_whole(outputs, side, *tagging, software),
            };
        }
        moved_bytes
    }

    /// Have a copy of the whole frame, with its checksum unless it is to be divided.
    ///
    /// # Safety
    /// `rest` is mapped for loads.
    unsafe fn copy(&self, rest: &[Span], software: &mut Software) {
        let frame = &mut software.frame[..self.length_bytes];
        let (head, behind) = frame.split_at_mut(self.head_bytes);
        head.copy_from_slice(self.head());
        // SAFETY: by the caller; the place is our own.
        let is_whole = unsafe { copy_from(rest, behind) };
        debug_assert!(is_whole, "the lengths were checked");
        if self.checked.offload.segmentation == 0 {
            self.checked.complete(frame);
        }
    }

    /// # Safety
    /// `rest` is mapped for loads.
    unsafe fn carry(&self, outputs: &mut Outputs, to: Side, head: &LongHead, rest: &[Span], offload: Offload) -> u64 {
        let (now, then) = (head.bytes().len(), self.head_bytes);
        let tag_bytes = i16::try_from(now).unwrap_or(0) - i16::try_from(then).unwrap_or(0);
        let (length_bytes, offload) = (length(self.length_bytes - then + now), offload.shifted(tag_bytes));
        let frame = Frame { head: head.bytes(), rest, length_bytes, offload };
        // SAFETY: by the caller.
        unsafe { outputs.deliver_to(to, &frame) }
    }

    fn give_whole(&self, outputs: &mut Outputs, to: Side, tagging: Tagging, software: &mut Software) -> u64 {
        let (head, rest) = software.frame[..self.length_bytes].split_at_mut(self.head_bytes);
        give(outputs, to, &LongHead::new(head, tagging), rest)
    }

    fn divide(&self, outputs: &mut Outputs, to: Side, tagging: Tagging, software: &mut Software) -> u64 {
        let (mut headers, mut moved_bytes, mut number) = ([0; MAX_HEADERS_BYTES], 0, 0);
        let frame = &mut software.frame[..self.length_bytes];
        while let Some((headers_bytes, payload)) = self.checked.segment(frame, number, &mut headers) {
            if outputs.deliveries >= MAX_WORK {
                outputs.lose(to.0);
                break;
            }
            let head = LongHead::new(&headers[..headers_bytes], tagging);
            moved_bytes += give(outputs, to, &head, &mut frame[payload]);
            number += 1;
        }
        moved_bytes
    }
}

/// Give a frame that is our own to a pair of a port.
fn give(outputs: &mut Outputs, to: Side, head: &LongHead, rest: &mut [u8]) -> u64 {
    let length_bytes = length(head.bytes().len() + rest.len());
    // SAFETY: the borrow of `rest` outlives the span, which nothing keeps.
    let rest = [unsafe { Span::new(NonNull::from(&mut *rest).cast(), rest.len()) }];
    let frame = Frame { head: head.bytes(), rest: &rest, length_bytes, offload: Offload::NONE };
    // SAFETY: our own memory.
    unsafe { outputs.deliver_to(to, &frame) }
}

fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}
