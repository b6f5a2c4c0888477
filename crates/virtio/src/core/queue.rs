//! A split virtqueue, on the device side: three areas in guest memory, whose addresses are found once.

pub(crate) mod chain;

use std::mem::offset_of;
use std::ptr::NonNull;

use fipsee_ring::cpu::{prefetch_for_read, prefetch_for_write};
use fipsee_ring::{AtomicU16, AtomicU32, AtomicU64, Ordering, full_fence};
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VRING_AVAIL_F_NO_INTERRUPT, VRING_USED_F_NO_NOTIFY};

use crate::core::memory::{DirtyLog, GuestMemory};
use crate::core::{DeviceQueueSetup, has};

const MAX_SIZE: u16 = 32768;

fipsee_ring::wire_structures! {
    #[derive(Default)]
    pub(crate) Descriptor: 16 { 0 address: u64, 8 length_bytes: u32, 12 flags: u16, 14 next: u16 }
    /// The start of the available and of the used ring; entries follow, followed by the other side's event index.
    RingHeader: 4 { 0 flags: u16, 2 index: u16 }
    UsedEntry: 8 { 0 head: u32, 4 written_bytes: u32 }
}

pub(crate) const DESCRIPTOR_BYTES: usize = size_of::<Descriptor>();
const FLAGS_OFFSET: usize = offset_of!(RingHeader, flags);
const INDEX_OFFSET: usize = offset_of!(RingHeader, index);
const RING_OFFSET: usize = size_of::<RingHeader>();
const AVAILABLE_ENTRY_BYTES: usize = size_of::<u16>();
const USED_ENTRY_BYTES: usize = size_of::<UsedEntry>();
pub(crate) const LINE_BYTES: usize = 64;
pub(crate) const USED_ENTRIES_PER_LINE: u16 = 8;

impl Descriptor {
    #[inline(always)]
    pub(crate) fn has(&self, flag: u32) -> bool {
        u32::from(self.flags) & flag != 0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingAddresses {
    pub descriptor: u64,
    pub available: u64,
    pub used: u64,
}

/// Our addresses of the areas.
#[derive(Clone, Copy, Debug)]
struct Areas {
    descriptors: NonNull<u8>,
    available: NonNull<u8>,
    used: NonNull<u8>,
}

impl Areas {
    /// Find them. The caller keeps `memory` as long as it uses them.
    fn find(memory: &GuestMemory, size: u16, rings: RingAddresses) -> Result<Self, String> {
        let size = u64::from(size);
        let find = |what: &str, address: u64, length_bytes: u64, alignment: u64| {
            if !address.is_multiple_of(alignment) {
                return Err(format!("the {what} at {address:#x} is not aligned to {alignment} bytes; the driver is at fault"));
            }
            let place = memory.host(address, length_bytes).ok_or_else(|| {
                format!("the {what} at {address:#x}, {length_bytes} bytes long, is not in one region of guest memory")
            })?;
            // A region may begin anywhere in our address space.
            if !place.addr().get().is_multiple_of(usize::try_from(alignment).unwrap_or(1).min(8)) {
                return Err(format!(
                    "the {what} at {address:#x} is aligned for the guest and not for us; have its memory region begin at a page"
                ));
            }
            Ok(place)
        };
        // Each ring is followed by the event index of the other side.
        Ok(Self {
            descriptors: find("descriptor table", rings.descriptor, size * DESCRIPTOR_BYTES as u64, 16)?,
            available: find("available ring", rings.available, size * AVAILABLE_ENTRY_BYTES as u64 + 6, 2)?,
            used: find("used ring", rings.used, size * USED_ENTRY_BYTES as u64 + 6, 4)?,
        })
    }
}

#[derive(Debug)]
pub(crate) struct Virtqueue {
    areas: Areas,
    pub(super) size: u16,
    mask: u16,
    event_index: bool,
    pub(super) next_available: u16,
    /// Chains from there on that are known to be available.
    known: u16,
    /// Index of the next used entry; the entries before it are written.
    pub(super) next_used: u16,
    /// The entries before it are published.
    pub(super) published: u16,
    /// Does the guest kick?
    pub(crate) is_armed: bool,
    /// Interrupt after the next publishing regardless of the event index: it may date from an earlier server. Until that was done.
    pub(super) interrupt_anyway: bool,
}

// SAFETY: the pointers lead into guest memory, which the server of the queue keeps mapped and any thread may access.
unsafe impl Send for Virtqueue {}

impl Virtqueue {
    /// Serve the rings.
    ///
    /// # Errors
    /// They are not in `memory`, are misaligned, or have an impossible size.
    pub(crate) fn new(setup: &DeviceQueueSetup) -> Result<Self, String> {
        let mut queue = Self::at(setup, (setup.next_available, 0))?;
        queue.published = queue.used_word(INDEX_OFFSET).load(Ordering::Relaxed);
        queue.next_used = queue.published;
        // The driver may have kicked before this server started: until kicks are asked for, poll.
        queue.ask_for_kicks(false);
        Ok(queue)
    }

    /// As another server of the rings left them: kicks not asked for, its next entries these. Nothing is written.
    pub(crate) fn at(setup: &DeviceQueueSetup, (next_available, next_used): (u16, u16)) -> Result<Self, String> {
        let size = setup.size;
        if !size.is_power_of_two() || size > MAX_SIZE {
            return Err(format!("a queue of {size} descriptors cannot be served; choose a power of two up to {MAX_SIZE}"));
        }
        let areas = Areas::find(&setup.memory, size, setup.rings)?;
        Ok(Self {
            areas,
            size,
            mask: size - 1,
            event_index: has(setup.features, VIRTIO_RING_F_EVENT_IDX),
            next_available,
            known: 0,
            next_used,
            published: next_used,
            is_armed: false,
            interrupt_anyway: true,
        })
    }

    /// The same rings in other memory.
    pub(crate) fn move_to(&mut self, memory: &GuestMemory, rings: RingAddresses) -> Result<(), String> {
        self.areas = Areas::find(memory, self.size, rings)?;
        self.interrupt_anyway = true;
        Ok(())
    }

    #[inline(always)]
    fn available_word(&self, offset_bytes: usize) -> &AtomicU16 {
        // SAFETY: the offsets used are even and within the ring and the event index behind it; the ring is 2-byte aligned and
        // stays mapped; all our access to it is atomic.
        unsafe { AtomicU16::from_ptr(self.areas.available.as_ptr().wrapping_add(offset_bytes).cast()) }
    }

    #[inline(always)]
    fn used_word(&self, offset_bytes: usize) -> &AtomicU16 {
        // SAFETY: as above; the used ring is 4-byte aligned.
        unsafe { AtomicU16::from_ptr(self.areas.used.as_ptr().wrapping_add(offset_bytes).cast()) }
    }

    /// The event index by which the device asks for kicks.
    #[inline(always)]
    fn available_event(&self) -> &AtomicU16 {
        self.used_word(RING_OFFSET + usize::from(self.size) * USED_ENTRY_BYTES)
    }

    /// The event index by which the guest asks for interrupts.
    #[inline(always)]
    fn used_event(&self) -> &AtomicU16 {
        self.available_word(RING_OFFSET + usize::from(self.size) * AVAILABLE_ENTRY_BYTES)
    }

    /// Index of the available ring. All entries before it were written earlier.
    #[inline(always)]
    pub(crate) fn available_index(&self) -> u16 {
        self.available_word(INDEX_OFFSET).load(Ordering::Acquire) // V1
    }

    /// Chains that the guest made available and we have not taken: more than the queue's size is a fault.
    #[inline(always)]
    pub(crate) fn waiting(&self) -> u16 {
        self.available_index().wrapping_sub(self.next_available)
    }

    /// Likewise. The index, which the driver writes often, is read again only if fewer than `enough` are known.
    #[inline(always)]
    pub(crate) fn waiting_for(&mut self, enough: u16) -> u16 {
        if self.known < enough {
            self.known = self.waiting();
        }
        self.known
    }

    /// Head of the chain that is `ahead` chains from the next one.
    #[inline(always)]
    pub(crate) fn head(&self, ahead: u16) -> u16 {
        let place = usize::from(self.next_available.wrapping_add(ahead) & self.mask);
        self.available_word(RING_OFFSET + place * AVAILABLE_ENTRY_BYTES).load(Ordering::Relaxed)
    }

    /// This many chains are taken.
    #[inline(always)]
    pub(crate) const fn advance(&mut self, count: u16) {
        self.next_available = self.next_available.wrapping_add(count);
        self.known = self.known.saturating_sub(count);
    }

    #[inline(always)]
    pub(crate) fn descriptor(&self, index: u16) -> Option<Descriptor> {
        if index >= self.size {
            return None;
        }
        let place = self.areas.descriptors.as_ptr().wrapping_add(usize::from(index) * DESCRIPTOR_BYTES);
        // SAFETY: within the table, which is aligned to 8 bytes at least and stays mapped.
        Some(unsafe { copy_descriptor(place) })
    }

    #[inline(always)]
    pub(crate) fn prefetch(&self, index: u16) {
        prefetch_for_read(self.areas.descriptors.as_ptr().wrapping_add(usize::from(index & self.mask) * DESCRIPTOR_BYTES));
    }

    /// The used entry that is `ahead` entries from the next one is put soon: have its line brought here for writing.
    #[inline(always)]
    pub(crate) fn prefetch_used(&self, ahead: u16) {
        let place = usize::from(self.next_used.wrapping_add(ahead) & self.mask);
        prefetch_for_write(self.areas.used.as_ptr().wrapping_add(RING_OFFSET + place * USED_ENTRY_BYTES));
    }

    /// Record that the chain at `head` is used and `written_bytes` of it were written. Not visible before
    /// [`publish`](Self::publish).
    #[inline(always)]
    pub(crate) fn put_used(&mut self, head: u16, written_bytes: u32) {
        let place = RING_OFFSET + usize::from(self.next_used & self.mask) * USED_ENTRY_BYTES;
        let place = self.areas.used.as_ptr().wrapping_add(place);
        // SAFETY: within the used ring, which is aligned to 4 bytes and stays mapped; our access is atomic.
        unsafe { AtomicU32::from_ptr(place.cast()) }.store(u32::from(head), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(place.wrapping_add(offset_of!(UsedEntry, written_bytes)).cast()) }
            .store(written_bytes, Ordering::Relaxed);
        self.next_used = self.next_used.wrapping_add(1);
    }

    /// Likewise for `count` chains, of which that at `last_head` is the last, if the driver has chains used in order: it needs no entry
    /// but this one, where that of the first would be (virtio 1.2, 2.7.9). Nothing of them was written.
    #[inline(always)]
    pub(crate) fn put_used_in_order(&mut self, last_head: u16, count: u16) {
        self.put_used(last_head, 0);
        self.next_used = self.next_used.wrapping_add(count - 1);
    }

    /// Is there anything to publish?
    #[inline(always)]
    pub(crate) const fn has_unpublished(&self) -> bool {
        self.next_used != self.published
    }

    pub(crate) fn log_entries(&self, log: &DirtyLog, used_log_address: u64) {
        let mut index = self.published;
        while index != self.next_used {
            let offset = RING_OFFSET + usize::from(index & self.mask) * USED_ENTRY_BYTES;
            log.mark(used_log_address.wrapping_add(offset as u64), USED_ENTRY_BYTES as u64);
            index = index.wrapping_add(1);
        }
    }

    /// Log the flags and the index, and the event index.
    pub(crate) fn log_words(&self, log: &DirtyLog, used_log_address: u64) {
        log.mark(used_log_address, RING_OFFSET as u64);
        if self.event_index {
            let offset = RING_OFFSET + usize::from(self.size) * USED_ENTRY_BYTES;
            log.mark(used_log_address.wrapping_add(offset as u64), 2);
        }
    }

    /// Publish the entries that were put. Does the guest want an interrupt?
    #[inline(always)]
    pub(crate) fn publish(&mut self) -> bool {
        let before = std::mem::replace(&mut self.published, self.next_used);
        // Release: entries, statuses and data are visible before the index.
        self.used_word(INDEX_OFFSET).store(self.next_used, Ordering::Release); // V2
        // The guest stores its event index and then reads our index; we store our index and then read its event index.
        full_fence();
        self.wants_interrupt(before)
    }

    /// Does the guest want an interrupt for what was published since the position `since`? It may be asked again later: a guest that
    /// looked by itself meanwhile wants none.
    #[inline(always)]
    pub(crate) fn wants_interrupt(&self, since: u16) -> bool {
        let wants = if self.event_index {
            let event = self.used_event().load(Ordering::Relaxed);
            self.published.wrapping_sub(event).wrapping_sub(1) < self.published.wrapping_sub(since)
        } else {
            u32::from(self.available_word(FLAGS_OFFSET).load(Ordering::Relaxed)) & VRING_AVAIL_F_NO_INTERRUPT == 0
        };
        wants | self.interrupt_anyway
    }

    /// We poll: kicks are not needed.
    ///
    /// With the event index nothing needs to be stored: the guest kicks when it passes the entry last asked for, which is in the
    /// past.
    #[inline(always)]
    pub(crate) fn disarm(&mut self) {
        if self.is_armed {
            self.is_armed = false;
            if !self.event_index {
                self.ask_for_kicks(false);
            }
        }
    }

    /// Ask for kicks. The fence orders that before the caller's next read of [`waiting`](Self::waiting): either that read sees a
    /// chain or the guest, which stores its index, fences and then checks whether we asked, kicks.
    pub(crate) fn arm(&mut self) {
        self.is_armed = true;
        self.ask_for_kicks(true);
        full_fence();
    }

    fn ask_for_kicks(&self, wanted: bool) {
        let no_kicks = u16::try_from(VRING_USED_F_NO_NOTIFY).unwrap_or(1);
        match (self.event_index, wanted) {
            (true, true) => self.available_event().store(self.next_available, Ordering::Relaxed),
            // Flags are not read; the entry before the next one is 65535 entries away.
            (true, false) => self.available_event().store(self.next_available.wrapping_sub(1), Ordering::Relaxed),
            (false, wanted) => self.used_word(FLAGS_OFFSET).store(if wanted { 0 } else { no_kicks }, Ordering::Relaxed),
        }
    }
}

/// Copy a descriptor, each word read once.
///
/// # Safety
/// `place` is valid for reads of 16 bytes and aligned to 8.
#[inline(always)]
unsafe fn copy_descriptor(place: *mut u8) -> Descriptor {
    // SAFETY: by the caller; all our access to descriptors is atomic.
    let address = unsafe { AtomicU64::from_ptr(place.cast()) }.load(Ordering::Relaxed);
    // SAFETY: as above.
    let rest = unsafe { AtomicU64::from_ptr(place.wrapping_add(8).cast()) }.load(Ordering::Relaxed);
    zerocopy::transmute!([u64::from_le(address), u64::from_le(rest)])
}
