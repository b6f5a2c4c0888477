//! Frames to the guest.

use fipsee_net::server::{Delivered, Frame, Receive, copy_frame};
use fipsee_ring::memory::{Span, copy_to};
use virtio_bindings::virtio_net::VIRTIO_NET_F_MRG_RXBUF;
use zerocopy::IntoBytes;

use super::{Broke, MAX_SPANS, behind};
use crate::core::DeviceQueue;
use crate::core::queue::chain::Piece;
use crate::net::config::{header_bytes, offloads};

/// Buffers that one frame fills at most: one of 64 KiB fits those of a driver that posts 1500 bytes each.
const MAX_BUFFERS: u16 = 64;
/// As many buffers are no more than the work for a frame of this length.
const USUAL_BUFFER_BYTES: u32 = 1024;

fipsee_ring::wire_structures! {
    /// `struct virtio_net_hdr_v1`.
    Header: 12 { 0 offload: fipsee_net::wire::Offload, 10 buffers: u16 }
}

/// A receive virtqueue, which its network has.
pub(super) struct Receiver {
    pub(super) queue: DeviceQueue,
    header_bytes: usize,
    offloads: u32,
    /// Buffers of one frame at most.
    most_buffers: u16,
    /// Of the frame that is delivered: its memory, its buffers by their heads with their lengths, and what is to be logged.
    spans: Vec<Span>,
    buffers: Vec<(u16, u64)>,
    written: Vec<Piece>,
    /// Those of one buffer.
    found: Vec<Span>,
    /// Chains whose lines were asked for.
    prefetched: u16,
    /// Something was used since the last flush.
    touched: bool,
    broke: Option<Broke>,
}

// SAFETY: the spans lead into guest memory, which `queue` keeps mapped and any thread may access; they are not used between two frames.
unsafe impl Send for Receiver {}

impl Receiver {
    pub(super) fn new(queue: DeviceQueue, features: u64, broke: Broke) -> Self {
        let most_buffers = if queue.has(VIRTIO_NET_F_MRG_RXBUF) { MAX_BUFFERS } else { 1 };
        let spans = || Vec::with_capacity(MAX_SPANS + 1);
        Self {
            queue,
            header_bytes: header_bytes(features),
            offloads: offloads(features),
            most_buffers,
            spans: spans(),
            buffers: Vec::with_capacity(MAX_BUFFERS.into()),
            written: Vec::new(),
            found: spans(),
            prefetched: 0,
            touched: false,
            broke: Some(broke),
        }
    }

    /// Find buffers for so many bytes; `false`: there are not enough, or the queue is over. None of them is taken yet.
    fn find(&mut self, needed_bytes: u64) -> bool {
        let Self { queue, spans, buffers, written, found, .. } = self;
        spans.clear();
        buffers.clear();
        written.clear();
        if queue.is_over() {
            return false;
        }
        let (mut room_bytes, mut descriptors) = (0, 0);
        for ahead in 0..self.most_buffers {
            let waiting = queue.ring.waiting_for(ahead + 1);
            if waiting <= ahead || !queue.begin_visit(waiting) {
                return false;
            }
            let head = queue.ring.head(ahead);
            let first = queue.ring.descriptor(head).unwrap_or_default();
            if !queue.take(head, first, true) {
                return false;
            }
            // Empty descriptors are no pieces, but are looked at for each frame.
            descriptors += queue.chain.pieces.len();
            let bytes = if descriptors > MAX_SPANS { None } else { queue.gather_spans(true, found, MAX_SPANS) };
            let Some(bytes @ 1..) = bytes.filter(|_| spans.len() + found.len() <= MAX_SPANS) else {
                queue.break_down(format!(
                    "a buffer for frames is empty, is no memory, or has more than {MAX_SPANS} pieces (chain {head})"
                ));
                return false;
            };
            spans.append(found);
            buffers.push((head, bytes));
            if queue.is_logging() {
                written.extend_from_slice(queue.chain.writable());
            }
            room_bytes += bytes;
            if room_bytes >= needed_bytes {
                return true;
            }
        }
        false
    }

    /// # Safety
    /// The rest of the frame is mapped for loads.
    unsafe fn fill(&mut self, &Frame { head, rest, length_bytes, offload }: &Frame<'_>) {
        let count = u16::try_from(self.buffers.len()).unwrap_or(u16::MAX);
        let header = Header { offload, buffers: count.to_le() };
        // SAFETY: found in guest memory just now, which the queue keeps mapped.
        let _ = unsafe { copy_to(&self.spans, &header.as_bytes()[..self.header_bytes]) };
        // SAFETY: likewise; the caller vouches for `rest`.
        unsafe { copy_frame(head, rest, behind(&mut self.spans, self.header_bytes)) };
        // Logged when it is written: a page that is copied before that must be copied again.
        self.queue.log_pieces(&self.written);
        let mut left_bytes = self.header_bytes as u64 + u64::from(length_bytes);
        for (head, room_bytes) in self.buffers.iter().copied() {
            let bytes = room_bytes.min(left_bytes);
            left_bytes -= bytes;
            self.queue.put_used(head, u32::try_from(bytes).unwrap_or(u32::MAX));
        }
        self.advance(count);
    }

    #[inline(always)]
    fn advance(&mut self, count: u16) {
        self.queue.ring.advance(count);
        self.prefetched = self.queue.look_ahead_for_write(self.prefetched.saturating_sub(count));
    }

    /// Put a frame into the next buffer, if that is large enough and nothing but one piece of memory, as most are. `false`: it is not, or there is
    /// none.
    ///
    /// # Safety
    /// The rest of the frame is mapped for loads.
    #[inline(always)]
    unsafe fn fill_plain(&mut self, &Frame { head: frame_head, rest, length_bytes, offload }: &Frame<'_>) -> bool {
        const HEADER_BYTES: usize = size_of::<Header>();
        let queue = &mut self.queue;
        let waiting = queue.ring.waiting_for(1);
        if waiting == 0 || queue.is_over() || self.header_bytes != HEADER_BYTES || !queue.begin_visit(waiting) {
            return false;
        }
        let head = queue.ring.head(0);
        let descriptor = queue.ring.descriptor(head).unwrap_or_default();
        let needed_bytes = HEADER_BYTES + length_bytes as usize;
        let Some(buffer) = queue.plain(head, &descriptor, true, 0).filter(|buffer| buffer.length_bytes() >= needed_bytes) else {
            return false;
        };
        // SAFETY: found in guest memory just now, which the queue keeps mapped, and as long.
        unsafe { buffer.base().as_ptr().cast::<Header>().write_unaligned(Header { offload, buffers: 1_u16.to_le() }) };
        // SAFETY: likewise; the caller vouches for `rest`.
        unsafe { copy_frame(frame_head, rest, &[buffer.without_first(HEADER_BYTES)]) };
        queue.log_bytes(descriptor.address, needed_bytes as u64);
        queue.put_used(head, u32::try_from(needed_bytes).unwrap_or(u32::MAX));
        self.advance(1);
        true
    }

    fn report_fault(&mut self) {
        if let (Some(reason), true) = (self.queue.fault(), self.broke.is_some()) {
            let reason = reason.to_owned();
            self.broke.take().into_iter().for_each(|broke| broke(&reason));
        }
    }
}

impl Receive for Receiver {
    unsafe fn deliver(&mut self, frame: &Frame<'_>) -> Delivered {
        // SAFETY: by the caller.
        if unsafe { self.fill_plain(frame) } {
            return Delivered { is_taken: true, is_first: !std::mem::replace(&mut self.touched, true), extra_work: 0 };
        }
        let is_taken = self.find(self.header_bytes as u64 + u64::from(frame.length_bytes));
        let usual = if is_taken { 1 + frame.length_bytes / USUAL_BUFFER_BYTES } else { 1 };
        let extra_work = u32::try_from(self.buffers.len()).unwrap_or(u32::MAX).saturating_sub(usual);
        if !is_taken {
            self.report_fault();
            return Delivered { is_taken, is_first: false, extra_work };
        }
        // SAFETY: by the caller.
        unsafe { self.fill(frame) };
        Delivered { is_taken, is_first: !std::mem::replace(&mut self.touched, true), extra_work }
    }

    fn offloads(&self) -> u32 {
        self.offloads
    }

    fn flush(&mut self) {
        self.touched = false;
        if self.queue.flush() {
            self.queue.interrupt();
        }
        self.report_fault();
    }
}
