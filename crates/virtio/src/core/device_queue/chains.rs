//! Taking chains, and reading and writing their memory.

use std::ptr::NonNull;

use fipsee_ring::cpu::{prefetch_for_read, prefetch_for_write};
use fipsee_ring::memory::Span;
use fipsee_ring::{AtomicU64, Ordering};
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_INDIRECT_DESC, VRING_DESC_F_WRITE};

use super::DeviceQueue;
use crate::core::queue::chain::{Piece, total_bytes};
use crate::core::queue::{Descriptor, LINE_BYTES};

/// So many buffers ahead are brought here: as long as a line takes from CPU to CPU, on two sockets, others are filled.
const BUFFERS_AHEAD: u16 = 16;

impl DeviceQueue {
    /// Is this a possible number of waiting chains? If so they are taken next, and kicks are not needed. If not, the queue stops.
    #[inline(always)]
    pub(crate) fn begin_visit(&mut self, waiting: u16) -> bool {
        if waiting > self.ring.size {
            let (next, size) = (self.ring.next_available, self.ring.size);
            self.break_down(format!("the available ring went from {next} on by {waiting} entries, and the queue has {size}"));
            return false;
        }
        self.disarm();
        true
    }

    /// Copy the first descriptors of the next chains, with their cache lines fetched in parallel, and prefetch what they refer
    /// to.
    #[inline(always)]
    pub(crate) fn look_ahead(&mut self, limit: u16, first: &mut [(u16, Descriptor)]) {
        for (ahead, (head, _)) in (0..limit).zip(first.iter_mut()) {
            *head = self.ring.head(ahead);
            self.ring.prefetch(*head);
        }
        for (head, descriptor) in first.iter_mut() {
            *descriptor = self.ring.descriptor(*head).unwrap_or_default();
            self.prefetch(descriptor, prefetch_for_read);
        }
    }

    /// The next chains are to be written to, one by one, with other work in between: have the driver's descriptors and the beginnings of
    /// their buffers brought here while that is done. For the first `prefetched` of them it was done. Returns for how many it is.
    #[inline(always)]
    pub(crate) fn look_ahead_for_write(&mut self, prefetched: u16) -> u16 {
        let waiting = self.ring.waiting_for(0);
        let until = waiting.min(BUFFERS_AHEAD);
        for ahead in prefetched..until {
            let soon = ahead + BUFFERS_AHEAD;
            if soon < waiting {
                self.ring.prefetch(self.ring.head(soon));
            }
            let descriptor = self.ring.descriptor(self.ring.head(ahead)).unwrap_or_default();
            self.prefetch(&descriptor, prefetch_for_write);
            self.ring.prefetch_used(ahead);
        }
        until.max(prefetched)
    }

    /// The beginning of a descriptor's memory, with the next line if it reaches into that: a header, and a frame behind it.
    #[inline(always)]
    fn prefetch(&self, descriptor: &Descriptor, prefetch: impl Fn(*const u8)) {
        if let Some(place) = self.finder.host(descriptor.address, 1) {
            let first = place.as_ptr();
            prefetch(first);
            let in_first = LINE_BYTES - first.addr() % LINE_BYTES;
            if descriptor.length_bytes as usize > in_first {
                prefetch(first.wrapping_add(in_first));
            }
        }
    }

    /// The memory of a chain that is one descriptor in one region of memory, as most are of devices for frames; `None`: it is not as simple, or at
    /// fault, and is for [`take`](Self::take). At least `mapped_bytes` from its beginning on are guest memory, however short it is.
    #[inline(always)]
    pub(crate) fn plain(&self, head: u16, descriptor: &Descriptor, writable: bool, mapped_bytes: usize) -> Option<Span> {
        let flags = if writable { VRING_DESC_F_WRITE } else { 0 };
        if u32::from(descriptor.flags) != flags || head >= self.ring.size || self.inflight.is_some() {
            return None;
        }
        let length_bytes = usize::try_from(descriptor.length_bytes).ok()?;
        let place = self.finder.host(descriptor.address, length_bytes.max(mapped_bytes) as u64)?;
        // SAFETY: mapped guest memory of that length, kept as long as the queue has this memory.
        Some(unsafe { Span::new(place, length_bytes) })
    }

    /// Is there a chain that was in flight before this server started?
    pub(crate) fn has_resubmit(&self) -> bool {
        !self.resubmit.is_empty()
    }

    /// The oldest of them, to be resubmitted.
    pub(crate) fn next_resubmit(&mut self) -> Option<(u16, Descriptor)> {
        let head = self.resubmit.pop_front()?;
        Some((head, self.ring.descriptor(head).unwrap_or_default()))
    }

    /// Take the chain that begins with the descriptor `first`, and follow it. False: the queue stops. `is_new`: it comes from the
    /// available ring.
    #[inline(always)]
    pub(crate) fn take(&mut self, head: u16, first: Descriptor, is_new: bool) -> bool {
        match self.held.get(usize::from(head)) {
            Some(false) => {}
            Some(true) => {
                self.break_down(format!("chain {head} was made available again before it was used"));
                return false;
            }
            None => {
                let size = self.ring.size;
                self.break_down(format!("the available ring names descriptor {head}, and the queue has {size}"));
                return false;
            }
        }
        if let Some(inflight) = self.inflight.as_mut().filter(|_| is_new) {
            inflight.taken(head);
        }
        let indirect_offered = self.has(VIRTIO_RING_F_INDIRECT_DESC);
        if let Err(fault) = self.chain.gather(&self.ring, &mut self.finder, first, indirect_offered) {
            self.break_down(format!("{fault} (chain {head})"));
            return false;
        }
        true
    }

    /// The chain at `head` is used after this visit.
    pub(crate) fn hold(&mut self, head: u16) {
        self.held[usize::from(head)] = true;
    }

    /// The chain at `head` is about to be used.
    pub(crate) fn release(&mut self, head: u16) {
        self.held[usize::from(head)] = false;
    }

    /// The chain at `head` is used and `written_bytes` of it were written; [`flush`](Self::flush) publishes that.
    #[inline(always)]
    pub(crate) fn put_used(&mut self, head: u16, written_bytes: u32) {
        self.ring.put_used(head, written_bytes);
        if self.inflight.is_some() {
            self.batch.push(head);
        }
    }

    /// As [`GuestMemory::host`].
    #[inline(always)]
    pub(crate) fn host(&mut self, address: u64, length_bytes: u64) -> Option<NonNull<u8>> {
        self.finder.host(address, length_bytes)
    }

    /// Take the first words off the readable pieces, each read once.
    #[inline(always)]
    pub(crate) fn take_words<const WORDS: usize>(&mut self) -> Option<[u64; WORDS]> {
        let length_bytes = const { bytes_of(WORDS) };
        let readable = self.chain.readable;
        if let [first, ..] = &mut self.chain.pieces[..readable]
            && first.length_bytes >= length_bytes
            && let Some(place) = self.finder.host(first.address, length_bytes.into())
            && place.addr().get().is_multiple_of(8)
        {
            first.address = first.address.wrapping_add(length_bytes.into());
            first.length_bytes -= length_bytes;
            return Some(std::array::from_fn(|index| {
                // SAFETY: so many words of mapped guest memory, aligned to 8; all access is atomic.
                let word = unsafe { AtomicU64::from_ptr(place.as_ptr().wrapping_add(index * 8).cast()) };
                u64::from_le(word.load(Ordering::Relaxed))
            }));
        }
        self.take_scattered_words()
    }

    /// Words in several descriptors, across regions or at an odd address.
    #[cold]
    fn take_scattered_words<const WORDS: usize>(&mut self) -> Option<[u64; WORDS]> {
        let (mut rest, mut bytes) = (const { bytes_of(WORDS) }, Vec::with_capacity(WORDS * 8));
        let readable = self.chain.readable;
        for piece in &mut self.chain.pieces[..readable] {
            let part = piece.length_bytes.min(rest);
            if !self.finder.memory().read(piece.address, part.into(), &mut bytes) {
                return None;
            }
            piece.address = piece.address.wrapping_add(part.into());
            (piece.length_bytes, rest) = (piece.length_bytes - part, rest - part);
        }
        Some(<[[u8; 8]; WORDS]>::try_from(bytes.as_chunks().0).ok()?.map(u64::from_le_bytes))
    }

    /// Turn the readable or the writable pieces into spans; the bytes they hold together, or nothing if a piece is not guest
    /// memory. Of more than `limit` spans only one is kept.
    #[inline(always)]
    pub(crate) fn gather_spans(&mut self, writable: bool, spans: &mut Vec<Span>, limit: usize) -> Option<u64> {
        spans.clear();
        let pieces = if writable { self.chain.writable() } else { self.chain.readable() };
        let mut total_bytes = 0;
        for piece in pieces {
            let length = u64::from(piece.length_bytes);
            total_bytes += length;
            match self.finder.host(piece.address, length) {
                _ if length == 0 => {}
                Some(place) => add_span(spans, limit, place, usize::try_from(length).ok()?),
                None => {
                    let memory = self.finder.memory();
                    if !memory.pieces(piece.address, length, &mut |place, length| add_span(spans, limit, place, length)) {
                        return None;
                    }
                    // Too many: looking up more of them delays other requests.
                    if spans.len() > limit {
                        break;
                    }
                }
            }
        }
        Some(total_bytes)
    }

    /// The readable bytes, copied once; none if a piece is not guest memory, or there are more than `limit`.
    pub(crate) fn read(&self, limit: usize) -> Option<Vec<u8>> {
        let pieces = self.chain.readable();
        let total = usize::try_from(total_bytes(pieces)).ok().filter(|total| *total <= limit)?;
        let (memory, mut bytes) = (self.finder.memory(), Vec::with_capacity(total));
        let is_memory = pieces.iter().all(|piece| memory.read(piece.address, piece.length_bytes.into(), &mut bytes));
        is_memory.then_some(bytes)
    }

    /// Write `bytes` to the beginning of `pieces`, as far as it fits; false if a piece that is needed is not guest memory.
    pub(crate) fn write(&self, pieces: &[Piece], bytes: &[u8]) -> bool {
        let (mut rest, mut is_memory) = (bytes, true);
        for piece in pieces {
            let count = rest.len().min(usize::try_from(piece.length_bytes).unwrap_or(usize::MAX));
            let (now, later) = rest.split_at(count);
            rest = later;
            is_memory = is_memory && self.finder.memory().write(piece.address, now);
            self.log_bytes(piece.address, count as u64);
        }
        is_memory
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a header has a few words")]
const fn bytes_of(words: usize) -> u32 {
    (words * 8) as u32
}

/// Add a span, merged with the last one if contiguous: drivers split memory that is contiguous for us.
#[inline(always)]
fn add_span(spans: &mut Vec<Span>, limit: usize, place: NonNull<u8>, length_bytes: usize) {
    if let Some(last) = spans.last_mut()
        && last.base().as_ptr().wrapping_add(last.length_bytes()) == place.as_ptr()
    {
        // SAFETY: both are mapped guest memory, one behind the other.
        *last = unsafe { Span::new(last.base(), last.length_bytes() + length_bytes) };
        return;
    }
    // One more than the limit means "too many".
    if spans.len() <= limit {
        // SAFETY: mapped guest memory of that length, kept as long as the chain is in flight.
        spans.push(unsafe { Span::new(place, length_bytes) });
    }
}
