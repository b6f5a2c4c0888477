//! Frames from the guest.

use fipsee_net::frame::MAX_FIRST_COPIED_BYTES;
use fipsee_net::server::{Outcome, Sending, ServedPort};
use fipsee_net::wire::{Offload, Status};
use fipsee_ring::clock;
use fipsee_ring::memory::{Span, copy_from};
use fipsee_serve::{Blocks, Taken, Turn};
use virtio_bindings::virtio_config::VIRTIO_F_IN_ORDER;
use virtio_bindings::virtio_net::{VIRTIO_NET_HDR_F_NEEDS_CSUM, VIRTIO_NET_HDR_GSO_NONE};
use virtio_bindings::virtio_ring::VIRTIO_RING_F_INDIRECT_DESC;

use super::held::HeldInterrupt;
use super::{MAX_SPANS, behind, has_work};
use crate::core::DeviceQueue;
use crate::core::queue::{Descriptor, USED_ENTRIES_PER_LINE};
use crate::net::config::header_bytes;

/// Most frames of one visit.
const MAX_BUDGET: u16 = 64;
const OFFLOAD_BYTES: usize = size_of::<Offload>();
const MAX_HEADER_BYTES: usize = 12;
/// What is copied of a frame before it is looked at.
const MAX_FIRST_BYTES: usize = MAX_HEADER_BYTES + MAX_FIRST_COPIED_BYTES;

/// A frame in one piece of memory, whose beginning was copied.
#[derive(Clone, Copy)]
struct Begun {
    offload: Offload,
    /// Behind a shorter frame is what is in memory there.
    first: [u8; MAX_FIRST_COPIED_BYTES],
    first_bytes: usize,
    rest: Span,
}

pub(super) struct Transmitter {
    pub(super) queue: DeviceQueue,
    port: ServedPort,
    header_bytes: usize,
    spans: Vec<Span>,
    /// Of the frames of a visit: copied before any is sent, so that the CPU waits for the lines of several at once.
    begun: Vec<Option<Begun>>,
    blocks: Blocks,
    held: HeldInterrupt,
    /// A driver that has indirect tables needs one descriptor for a frame, as a rule.
    is_indirect: bool,
    /// One used entry is enough for all frames of a visit.
    is_in_order: bool,
}

// SAFETY: the spans lead into guest memory, which `queue` keeps mapped and any thread may access; they are not used between two visits.
unsafe impl Send for Transmitter {}

impl Transmitter {
    pub(super) fn new((mut queue, size): (DeviceQueue, u16), port: ServedPort, features: u64) -> Self {
        // A server that was killed may have held one back, which no hypervisor without an area for what is in flight would show.
        queue.interrupt();
        let (header_bytes, spans) = (header_bytes(features), Vec::with_capacity(MAX_SPANS + 1));
        let (is_indirect, is_in_order) = (queue.has(VIRTIO_RING_F_INDIRECT_DESC), queue.has(VIRTIO_F_IN_ORDER));
        let (held, blocks) = (HeldInterrupt::new(size), Blocks::default());
        let begun = vec![None; MAX_BUDGET.into()];
        Self { queue, port, header_bytes, spans, begun, blocks, held, is_indirect, is_in_order }
    }

    /// When [`notify`](Self::notify) is to be called although nothing happens.
    pub(super) fn due(&self) -> Option<u64> {
        self.held.due().filter(|_| !self.queue.is_over())
    }

    /// Publish chains with so many descriptors. The driver is interrupted later, unless it may soon need what it gets back.
    fn publish(&mut self, descriptors: usize) {
        let from = self.queue.published();
        self.held.end_unless(|since| self.queue.wants_interrupt(since));
        // What is decided here is when, not whether.
        let _ = self.queue.flush();
        if self.queue.published() == from {
            return;
        }
        let now_ticks = clock::ticks();
        let since = self.held.add(from, descriptors, now_ticks);
        if !self.queue.wants_interrupt(since) {
            self.held.end();
        } else if self.held.is_due(now_ticks) {
            self.notify();
        }
    }

    /// Interrupt the driver for what it has not been interrupted for, if it still wants that.
    pub(super) fn notify(&mut self) {
        if let Some(since) = self.held.end()
            && !self.queue.is_over()
            && self.queue.wants_interrupt(since)
        {
            self.queue.interrupt();
        }
    }

    /// Likewise, if that is due.
    pub(super) fn notify_when_due(&mut self) {
        if self.held.is_due(clock::ticks()) {
            self.notify();
        }
    }

    /// Whether the port may send with this address is for the switch to decide. It is lost, as a frame may be, while another thread has the
    /// network for longer than a moment.
    pub(super) fn announce(&self, mac: [u8; 6]) {
        let attempt = || {
            std::thread::yield_now();
            self.port.try_sending()
        };
        let Some(mut sending) = std::iter::repeat_with(attempt).take(ATTEMPTS).flatten().next() else { return };
        // SAFETY: there is no memory.
        unsafe { sending.send(&announcement(mac), &[], Offload::NONE) };
    }

    pub(super) fn visit(&mut self, turn: Turn) -> Taken {
        let waiting = self.queue.ring.waiting();
        if !has_work(&self.queue) || !self.queue.begin_visit(waiting) {
            return Taken::NOTHING;
        }
        let Self { queue, port, header_bytes, spans, begun, blocks, is_indirect, is_in_order, .. } = self;
        // Another thread has the network at this moment: the next pass looks again. A queue that stayed armed would not be looked at
        // before the worker sleeps; this one is not armed any more.
        let Some(mut sending) = port.try_sending() else { return Taken::NOTHING };
        let (mut taken, mut descriptors, mut sent) = (Taken::NOTHING, 0, None);
        let limit = waiting.min(MAX_BUDGET).min(u16::try_from(turn.requests).unwrap_or(u16::MAX));
        let mut first = [(0, Descriptor::default()); MAX_BUDGET as usize];
        let first = &mut first[..usize::from(limit)];
        queue.look_ahead(limit, first);
        let used_entries = if *is_in_order { 1 } else { limit };
        (0..used_entries).step_by(USED_ENTRIES_PER_LINE.into()).for_each(|ahead| queue.ring.prefetch_used(ahead));
        first.iter().zip(&mut *begun).for_each(|(first, begun)| begin(queue, *header_bytes, first, begun));
        for ((head, descriptor), begun) in first.iter().zip(begun) {
            let head = *head;
            queue.ring.advance(1);
            // Its fields are loaded one by one, as they were stored: see `begin`.
            let (bytes, more_work) = if let Some(begun) = begun {
                descriptors += 1;
                let outcome = begun.send(&mut sending);
                (outcome.bytes, outcome.more_work())
            } else if queue.take(head, *descriptor, true) {
                descriptors += if *is_indirect { 1 } else { queue.chain.pieces.len() };
                let Some(outcome) = send(queue, spans, *header_bytes, &mut sending) else {
                    queue.break_down(format!("a frame's header is shorter than {header_bytes} bytes (chain {head})"));
                    break;
                };
                (outcome.bytes, outcome.more_work())
            } else {
                break;
            };
            if *is_in_order {
                sent = Some((head, sent.map_or(1, |(_, count)| count + 1)));
            } else {
                queue.put_used(head, 0);
            }
            taken = taken.and(Taken::new(1, blocks.complete(bytes)).with_more_work(more_work));
            if taken.units >= turn.units {
                break;
            }
        }
        if let Some((last_head, count)) = sent {
            queue.ring.put_used_in_order(last_head, count);
        }
        drop(sending);
        self.publish(descriptors);
        taken
    }
}

/// To announce a machine.
const ATTEMPTS: usize = 64;
/// So many descriptors of a chain cost about as much as a frame for one receiver.
const DESCRIPTORS_PER_DELIVERY: usize = 16;

/// Copy the beginning of a frame, if its chain is one piece of memory, as most are. Header and frame are copied in the pieces in which they are
/// loaded again: a load across two stores would wait until all that was stored before has left this CPU.
#[inline(always)]
fn begin(queue: &DeviceQueue, header_bytes: usize, (head, descriptor): &(u16, Descriptor), begun: &mut Option<Begun>) {
    *begun = None;
    let Some(memory) = queue.plain(*head, descriptor, false, MAX_FIRST_BYTES) else { return };
    if header_bytes != MAX_HEADER_BYTES || memory.length_bytes() < MAX_HEADER_BYTES {
        return;
    }
    let (place, mut header) = (memory.base().as_ptr(), [0; MAX_HEADER_BYTES]);
    // SAFETY: found in guest memory, which the queue keeps mapped, with as many bytes; `header` is our own.
    unsafe { place.copy_to_nonoverlapping(header.as_mut_ptr(), MAX_HEADER_BYTES) };
    // Without this the compiler may read a byte again from where it was copied from.
    std::hint::black_box(&mut header);
    let offload = header.first_chunk().map_or(Offload::NONE, offload);
    let frame = memory.without_first(MAX_HEADER_BYTES);
    let first_bytes = frame.length_bytes().min(MAX_FIRST_COPIED_BYTES);
    let rest = frame.without_first(first_bytes);
    let begun = begun.insert(Begun { offload, first: [0; MAX_FIRST_COPIED_BYTES], first_bytes, rest });
    // SAFETY: as above.
    unsafe { frame.base().as_ptr().copy_to_nonoverlapping(begun.first.as_mut_ptr(), MAX_FIRST_COPIED_BYTES) };
    std::hint::black_box(&mut begun.first);
}

impl Begun {
    #[inline(always)]
    fn send(&self, sending: &mut Sending<'_>) -> Outcome {
        let rest = std::slice::from_ref(&self.rest);
        let rest = if self.rest.length_bytes() == 0 { &[] } else { rest };
        // SAFETY: in guest memory that the queue keeps mapped during the call.
        unsafe { sending.send(&self.first[..self.first_bytes], rest, self.offload) }
    }
}

/// Send the frame in the chain that was taken last. `None`: there is no whole header.
fn send(queue: &mut DeviceQueue, spans: &mut Vec<Span>, header_bytes: usize, sending: &mut Sending<'_>) -> Option<Outcome> {
    let descriptors = queue.chain.pieces.len();
    if descriptors > MAX_SPANS {
        let refused = sending.refuse(Status::Invalid);
        // Looking at them is cost of the visit.
        return Some(Outcome { deliveries: (descriptors / DESCRIPTORS_PER_DELIVERY) as u64, ..refused });
    }
    let Some(total_bytes) = queue.gather_spans(false, spans, MAX_SPANS) else {
        return Some(sending.refuse(Status::BadMemory));
    };
    if spans.len() > MAX_SPANS {
        return Some(sending.refuse(Status::Invalid));
    }
    let total_bytes = usize::try_from(total_bytes).unwrap_or(usize::MAX);
    let mut bytes = [0; MAX_FIRST_BYTES];
    let first = &mut bytes[..total_bytes.min(header_bytes + MAX_FIRST_COPIED_BYTES)];
    // SAFETY: found in guest memory, which the queue keeps mapped; `bytes` is our own.
    let is_whole = unsafe { copy_from(spans, first) };
    let (header, frame) = first.split_at_checked(header_bytes).filter(|_| is_whole)?;
    let offload = offload(header.first_chunk()?);
    let rest = behind(spans, first.len());
    // SAFETY: as above: it stays mapped during the call.
    Some(unsafe { sending.send(frame, rest, offload) })
}

/// The fields of a header that mean something.
#[inline(always)]
fn offload(header: &[u8; OFFLOAD_BYTES]) -> Offload {
    if header[0] | header[1] == 0 {
        return Offload::NONE;
    }
    let mut offload: Offload = zerocopy::transmute!(*header);
    if u32::from(offload.flags) & VIRTIO_NET_HDR_F_NEEDS_CSUM == 0 {
        (offload.flags, offload.checksum_start, offload.checksum_offset) = (0, 0, 0);
    }
    if u32::from(offload.segmentation) == VIRTIO_NET_HDR_GSO_NONE {
        (offload.header_bytes, offload.segment_bytes) = (0, 0);
    }
    offload
}

/// A RARP request of this station for itself (RFC 903), as hypervisors send it after a migration.
fn announcement(mac: [u8; 6]) -> [u8; 42] {
    const TYPES: [u8; 10] = [0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3];
    let mut frame = [0; 42];
    let parts: [(usize, &[u8]); 5] = [(0, &[0xff; 6]), (6, &mac), (12, &TYPES), (22, &mac), (32, &mac)];
    for (at, part) in parts {
        frame[at..at + part.len()].copy_from_slice(part);
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_without_offload_means_none_whatever_else_is_in_it() {
        assert_eq!(offload(&[0, 0, 66, 0, 0x50, 5, 9, 9, 9, 9]), Offload::NONE);
        let checksum = offload(&[1, 0, 66, 0, 0, 0, 34, 0, 16, 0]);
        assert_eq!((checksum.flags, checksum.checksum_start, checksum.checksum_offset, checksum.header_bytes), (1, 34, 16, 0));
        let segments = offload(&[1, 1, 66, 0, 0x50, 5, 34, 0, 16, 0]);
        assert_eq!((segments.segmentation, segments.header_bytes, segments.segment_bytes), (1, 66, 0x550));
    }
}
