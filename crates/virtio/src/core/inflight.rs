//! The inflight area (vhost-user, "Inflight I/O tracking"): which requests were taken and not answered, in memory that the
//! hypervisor keeps while the daemon is not running.

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use fipsee_ring::region::Region;
use fipsee_ring::{AtomicU16, AtomicU64, Ordering};

use crate::core::memory::{SharedMapping, Source};

fipsee_ring::wire_structures! {
    /// The start of a queue's part; an entry for each descriptor follows.
    Header: 16 { 0 features: u64, 8 version: u16, 10 size: u16, 12 last_batch_head: u16, 14 used_index: u16 }
    /// The record of the chain with this head.
    Entry: 16 { 0 inflight: u8, 1 padding: [u8; 5], 6 next: u16, 8 counter: u64 }
}

const HEADER_BYTES: usize = size_of::<Header>();
const ENTRY_BYTES: usize = size_of::<Entry>();
/// The one version of the area.
const VERSION: u16 = 1;
/// Each queue's part begins at a multiple of this.
const ALIGNMENT: u64 = 64;

fn queue_bytes(size: u16) -> u64 {
    (HEADER_BYTES as u64 + u64::from(size) * ENTRY_BYTES as u64).next_multiple_of(ALIGNMENT)
}

#[derive(Clone, Debug)]
pub struct InflightArea {
    mapping: Arc<SharedMapping>,
    queues: u16,
    size: u16,
}

impl InflightArea {
    /// A new area for `queues` queues of at most `size` descriptors, and the file to hand to the hypervisor.
    pub fn create(queues: u16, size: u16) -> io::Result<(Self, OwnedFd)> {
        let length_bytes = queue_bytes(size) * u64::from(queues);
        let file = Region::create("fipsee-inflight", length_bytes)?.as_fd().try_clone_to_owned()?;
        Ok((Self::from_peer(file.try_clone()?, length_bytes, 0, queues, size)?, file))
    }

    /// The area that the hypervisor kept: `length_bytes` bytes from `offset_bytes` of `file`.
    ///
    /// # Errors
    /// It is too small for this many queues of this size, or cannot be mapped.
    pub fn from_peer(file: OwnedFd, length_bytes: u64, offset_bytes: u64, queues: u16, size: u16) -> io::Result<Self> {
        let needed_bytes = queue_bytes(size) * u64::from(queues);
        if length_bytes < needed_bytes || !offset_bytes.is_multiple_of(8) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "the inflight area of {length_bytes} bytes at {offset_bytes} of its file cannot hold {queues} queues of {size} \
                     descriptors, which take {needed_bytes} bytes from a multiple of 8; hand over the area that GET_INFLIGHT_FD gave"
                ),
            ));
        }
        let mapping = SharedMapping::new("the inflight area", file, offset_bytes, length_bytes)?;
        Ok(Self { mapping: Arc::new(mapping), queues, size })
    }

    /// Bytes that the area takes in its file.
    pub fn length_bytes(&self) -> u64 {
        queue_bytes(self.size) * u64::from(self.queues)
    }

    /// Its file, and the number of queues and descriptors it was made for.
    pub fn source(&self) -> (Source<'_>, u16, u16) {
        (self.mapping.source(), self.queues, self.size)
    }

    /// The part of queue `index`; `None` if the area was made for fewer queues.
    pub fn queue(&self, index: u16) -> Option<InflightQueue> {
        let offset = usize::try_from(queue_bytes(self.size) * u64::from(index)).ok().filter(|_| index < self.queues)?;
        // SAFETY: `from_peer` has checked that the mapping holds the parts of all queues, of which this is one.
        let base = unsafe { self.mapping.base.add(offset) };
        Some(InflightQueue { base, size: self.size, state: InflightState::default(), _mapping: Arc::clone(&self.mapping) })
    }
}

/// A server's state of its part of the area, besides the contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InflightState {
    /// The number of the next request that is taken: it orders those in flight.
    pub counter: u64,
    /// The head that was put into the used ring last: where the list of its batch begins.
    pub last_batch_head: u16,
}

#[derive(Debug)]
pub struct InflightQueue {
    base: NonNull<u8>,
    size: u16,
    pub(super) state: InflightState,
    _mapping: Arc<SharedMapping>,
}

// SAFETY: the pointer leads into memory that `_mapping` keeps mapped and any thread may access.
unsafe impl Send for InflightQueue {}

impl InflightQueue {
    fn word16(&self, offset_bytes: usize) -> &AtomicU16 {
        debug_assert!(offset_bytes < HEADER_BYTES + usize::from(self.size) * ENTRY_BYTES);
        // SAFETY: every offset asked for is even and is within the queue's part, which begins at a multiple of 8 and which
        // `_mapping` keeps mapped; all our access is atomic, and no two sizes of it overlap.
        unsafe { AtomicU16::from_ptr(self.base.as_ptr().wrapping_add(offset_bytes).cast()) }
    }

    fn counter_of(&self, head: u16) -> &AtomicU64 {
        let place = self.base.as_ptr().wrapping_add(self.entry(head) + offset_of!(Entry, counter));
        // SAFETY: as above, and a multiple of 8.
        unsafe { AtomicU64::from_ptr(place.cast()) }
    }

    /// The offset of an entry. `head` is below the queue's size, as checked by the caller.
    const fn entry(&self, head: u16) -> usize {
        debug_assert!(head < self.size);
        HEADER_BYTES + head as usize * ENTRY_BYTES
    }

    /// Begin to use it for a queue of `size` descriptors whose rings say `used_index` and `available_index`. The heads that were
    /// in flight, oldest first; `None` if it is used for the first time.
    ///
    /// Records that do not fit the rings belong to rings before a reset of the guest: they are discarded.
    ///
    /// # Errors
    /// It was made for fewer descriptors, or written by another program.
    pub(crate) fn begin(&mut self, size: u16, used_index: u16, available_index: u16) -> Result<Option<Vec<u16>>, String> {
        let made_for = self.size;
        if size > made_for {
            return Err(format!("the inflight area is for queues of {made_for} descriptors, not {size}; ask for another one"));
        }
        let version = self.word16(offset_of!(Header, version)).load(Ordering::Acquire);
        if version > VERSION {
            return Err(format!("the inflight area has version {version}, and only {VERSION} is known here; reset the device"));
        }
        let fits = version == VERSION && self.word16(offset_of!(Header, size)).load(Ordering::Relaxed) == size;
        if fits
            && self.settle_last_batch(size, used_index)
            && let heads = self.heads(size)
            && heads.len() <= usize::from(available_index.wrapping_sub(used_index).min(size))
        {
            return Ok(Some(heads));
        }
        for head in 0..self.size {
            self.word16(self.entry(head)).store(0, Ordering::Relaxed);
        }
        self.state.counter = 0;
        self.word16(offset_of!(Header, used_index)).store(used_index, Ordering::Relaxed);
        self.word16(offset_of!(Header, size)).store(size, Ordering::Relaxed);
        self.word16(offset_of!(Header, version)).store(VERSION, Ordering::Release);
        Ok(None)
    }

    /// Continue for a queue of `size` descriptors where another server left off; nothing is written before a request is taken.
    /// `false`: the area was made for fewer descriptors, and must not be used.
    pub(crate) const fn resume(&mut self, size: u16, state: InflightState) -> bool {
        self.state = state;
        // Any head: it was read from memory of the hypervisor, and is only stored there again.
        size <= self.size
    }

    /// The heads in flight, oldest first.
    fn heads(&mut self, size: u16) -> Vec<u16> {
        let mut heads: Vec<(u64, u16)> = (0..size)
            .filter(|head| self.word16(self.entry(*head)).load(Ordering::Acquire) & 0xff != 0)
            .map(|head| (self.counter_of(head).load(Ordering::Relaxed), head))
            .collect();
        heads.sort_unstable();
        self.state.counter = heads.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        heads.into_iter().map(|(_, head)| head).collect()
    }

    /// Clear the entries of the last batch, if the daemon ended after the used ring was published and before it cleared them.
    /// `false`: the records do not fit that.
    fn settle_last_batch(&mut self, size: u16, used_index: u16) -> bool {
        self.state.last_batch_head = self.word16(offset_of!(Header, last_batch_head)).load(Ordering::Acquire);
        let batch = used_index.wrapping_sub(self.word16(offset_of!(Header, used_index)).load(Ordering::Acquire));
        let mut head = self.state.last_batch_head;
        if batch > size {
            return false;
        }
        for _ in 0..batch {
            if head >= size {
                return false;
            }
            self.word16(self.entry(head)).store(0, Ordering::Relaxed);
            head = self.word16(self.entry(head) + offset_of!(Entry, next)).load(Ordering::Relaxed);
        }
        self.word16(offset_of!(Header, used_index)).store(used_index, Ordering::Release);
        true
    }

    /// Nothing is in flight and the queue is removed: the next server starts afresh.
    pub(crate) fn end(&mut self) {
        self.word16(offset_of!(Header, version)).store(0, Ordering::Release);
    }

    /// The chain at `head` was taken.
    #[inline]
    pub(crate) fn taken(&mut self, head: u16) {
        self.counter_of(head).store(self.state.counter, Ordering::Relaxed);
        self.state.counter = self.state.counter.wrapping_add(1);
        self.word16(self.entry(head)).store(1, Ordering::Release);
    }

    /// `heads` are in the used ring, whose index is about to be published.
    #[inline]
    pub(crate) fn about_to_publish(&mut self, heads: &[u16]) {
        for head in heads {
            self.word16(self.entry(*head) + offset_of!(Entry, next)).store(self.state.last_batch_head, Ordering::Release);
            self.state.last_batch_head = *head;
            self.word16(offset_of!(Header, last_batch_head)).store(*head, Ordering::Release);
        }
    }

    /// The index was published.
    #[inline]
    pub(crate) fn published(&mut self, heads: &[u16], used_index: u16) {
        for head in heads {
            self.word16(self.entry(*head)).store(0, Ordering::Release);
        }
        self.word16(offset_of!(Header, used_index)).store(used_index, Ordering::Release);
    }
}
