//! The buffers of a pair of queues: equal pieces of the pool.

use std::sync::Arc;

use fipsee_ring::channel::QueueGeometry;
use fipsee_ring::fault::expect;
use fipsee_ring::region::Region;
use fipsee_ring::{Message, PeerFault};

use super::AttachOptions;
use crate::error::{Error, NetError};
use crate::frame::HEADER_BYTES;
use crate::wire::{KIND_RETURNED, MAX_RETURNED, PortInfo, Returned, SEGMENTATION, Status};

/// Buffers begin at cache lines.
const BUFFER_ALIGN_BYTES: u32 = 64;
/// Of a receive buffer where frames of 64 KiB come, which fill 17, and 20 are the most that one may fill.
const SEGMENTED_BUFFER_BYTES: u32 = 4096;
/// Equal pieces of the pool, known by their numbers, which are tags.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    /// Of the first, in the region and in the pool.
    region_offset_bytes: u64,
    pool_offset_bytes: u32,
    pub(super) stride_bytes: u32,
}

impl Places {
    #[inline(always)]
    pub(super) fn region_offset_bytes(&self, tag: u16) -> u64 {
        self.region_offset_bytes + u64::from(tag) * u64::from(self.stride_bytes)
    }

    #[inline(always)]
    pub(super) fn pool_offset_bytes(&self, tag: u16) -> u32 {
        self.pool_offset_bytes + u32::from(tag) * self.stride_bytes
    }
}

/// Buffers of one direction.
#[derive(Debug)]
pub(super) struct Buffers {
    pub(super) places: Places,
    /// Those of which the daemon has the use.
    pub(super) given: Vec<bool>,
}

impl Buffers {
    /// The daemon gives it back.
    #[inline(always)]
    pub(super) fn take_back(&mut self, tag: u16) -> Result<(), PeerFault> {
        let given = self.given.get_mut(usize::from(tag)).filter(|given| **given);
        let given = given.ok_or(PeerFault::Value { what: "the tag of a buffer that it has not", value: tag.into() })?;
        *given = false;
        Ok(())
    }
}

/// Of the rest of a short frame, which has a place apart: a cache line. These follow each other, so that the CPUs see which comes next, and so that few
/// pages are in use.
pub(super) const SHORT_REST_BYTES: u32 = 64;

/// A transmit buffer that the caller fills in place. It goes to [`Port::send_buffer`](super::Port::send_buffer) or back to
/// [`Port::put_back`](super::Port::put_back); one that is dropped is not used again by this attachment.
#[derive(Debug)]
pub struct Buffer {
    pub(super) tag: u16,
    pub(super) length_bytes: u32,
    pub(super) region: Arc<Region>,
    pub(super) offset_bytes: u64,
}

impl Buffer {
    /// The memory: valid for loads and stores of [`length_bytes`](Self::length_bytes) as long as this exists. The daemon may read it.
    pub fn as_ptr(&self) -> *mut u8 {
        // It was found to be in the region when it was taken.
        self.region.base().as_ptr().wrapping_add(usize::try_from(self.offset_bytes).unwrap_or(0))
    }

    pub const fn length_bytes(&self) -> u32 {
        self.length_bytes
    }

    /// Put bytes into it.
    ///
    /// # Errors
    /// They do not fit.
    pub fn write(&mut self, offset_bytes: u32, bytes: &[u8]) -> Result<(), Error> {
        let end = offset_bytes as usize + bytes.len();
        if end > self.length_bytes as usize {
            return Err(too_long(end, self.length_bytes));
        }
        Ok(self.region.write(self.offset_bytes + u64::from(offset_bytes), bytes)?)
    }
}

pub(super) fn too_long(length_bytes: usize, most: u32) -> Error {
    Error::Service(NetError::Length { length_bytes, least: HEADER_BYTES as usize, most: most as usize })
}

pub(super) const fn stride_bytes(length_bytes: u32) -> u32 {
    length_bytes.next_multiple_of(BUFFER_ALIGN_BYTES)
}

/// The length of a receive buffer, where frames may be so long and these offloads are in force.
pub(super) fn received_bytes(options: &AttachOptions, longest: u32, offloads: u32) -> u32 {
    let usual = if offloads & SEGMENTATION == 0 { longest } else { SEGMENTED_BUFFER_BYTES };
    stride_bytes(options.buffer_bytes.unwrap_or(usual).clamp(64, longest))
}

/// The buffers of a pair: places for short rests, transmit buffers as long as the longest frame, and receive buffers, as many as the depth and the memory allow.
pub(super) fn divide(
    info: &PortInfo,
    (transmit, receive): (&QueueGeometry, &QueueGeometry),
    (pool_offset_bytes, first_bytes, share_bytes): (u64, u64, u64),
    options: &AttachOptions,
) -> Result<(Places, Buffers, Buffers), Error> {
    let sent = stride_bytes(info.max_frame_bytes);
    let received = received_bytes(options, info.max_frame_bytes, info.offloads);
    let each_bytes = u64::from(SHORT_REST_BYTES + sent + received);
    let most = (share_bytes / each_bytes).min(u64::from(u16::MAX));
    if most == 0 {
        let (pool_bytes, least_bytes) = (share_bytes, each_bytes);
        return Err(Error::Service(NetError::PoolTooSmall { pool_bytes, least_bytes }));
    }
    let count = |depth: u32| usize::try_from(most.min(depth.into())).unwrap_or(0);
    let (sends, receives) = (count(transmit.depth), count(receive.depth.min(options.posted.unwrap_or(u32::MAX))));
    let places = |first_bytes: u64, stride_bytes| Places {
        region_offset_bytes: pool_offset_bytes + first_bytes,
        pool_offset_bytes: u32::try_from(first_bytes).unwrap_or(u32::MAX),
        stride_bytes,
    };
    let buffers = |places, count| Buffers { places, given: vec![false; count] };
    let send_first_bytes = first_bytes + sends as u64 * u64::from(SHORT_REST_BYTES);
    let receive_first_bytes = send_first_bytes + sends as u64 * u64::from(sent);
    let rests = places(first_bytes, SHORT_REST_BYTES);
    Ok((rests, buffers(places(send_first_bytes, sent), sends), buffers(places(receive_first_bytes, received), receives)))
}

/// Check a message of what is given back: the newest status that is not ok and how many had one, and how many there are.
pub(super) fn give_back(
    message: &Message,
    buffers: &mut Buffers,
    mut each: impl FnMut(u16),
) -> Result<((Option<Status>, u64), u64), PeerFault> {
    let Returned { kind, count, reserved, ref entries, .. } = *Returned::within(message);
    expect("the kind of an answer", kind, kind == KIND_RETURNED)?;
    expect("the entries of an answer", count, (1..=MAX_RETURNED).contains(&usize::from(count)))?;
    expect("a reserved field", reserved, reserved == 0)?;
    let (mut refused, mut refusals) = (None, 0);
    for entry in &entries[..usize::from(count)] {
        let status = Status::from_wire(entry.status);
        let status = status.ok_or(PeerFault::Value { what: "a status", value: entry.status.into() })?;
        buffers.take_back(entry.tag)?;
        each(entry.tag);
        if status != Status::Ok {
            refused = Some(status);
            refusals += 1;
        }
    }
    Ok(((refused, refusals), count.into()))
}
