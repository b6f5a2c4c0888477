//! One virtqueue, for any kind of device: chains are taken and used, the guest is interrupted, chains taken and memory
//! written are recorded for the hypervisor, and the queue stops for good if the guest or its memory is at fault.

mod chains;

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::inflight::{InflightQueue, InflightState};
use super::interrupt::Interrupt;
use super::memory::{DirtyLog, Finder, GuestMemory};
use super::queue::chain::{Chain, MAX_TABLE_ENTRIES, Piece};
use super::queue::{RingAddresses, Virtqueue};
use super::{fault_guard, has};

#[derive(Debug)]
pub struct DeviceQueueSetup {
    pub memory: Arc<GuestMemory>,
    /// Descriptors in the table, a power of two, at most 32768.
    pub size: u16,
    /// Where the queue is.
    pub rings: RingAddresses,
    /// From SET_VRING_BASE. An inflight area that was used before takes precedence.
    pub next_available: u16,
    /// Virtio features in force, including the device's.
    pub features: u64,
    /// Wakes the worker; the hypervisor's eventfd.
    pub kick: OwnedFd,
    /// Interrupts the guest; none: the driver polls.
    pub call: Option<OwnedFd>,
    /// Reports that the queue broke.
    pub error: Option<OwnedFd>,
    /// The queue's part of the inflight area.
    pub inflight: Option<InflightQueue>,
    pub log: Option<Arc<DirtyLog>>,
    /// Guest-physical address under which writes to the used ring are logged (VHOST_VRING_F_LOG).
    pub used_log_address: Option<u64>,
}

/// State of a virtqueue between two visits: all that another server needs to continue. Nothing is in flight in the device, and
/// used chains are published.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VirtqueueState {
    pub next_available: u16,
    pub next_used: u16,
    /// Chains that were taken and not used, by their heads: those that are pending, and those to be served again. Sorted.
    pub taken: Vec<u16>,
    /// Why it is no longer served.
    pub fault: Option<String>,
    /// Of the inflight area, if there is one.
    pub inflight: Option<InflightState>,
}

#[derive(Debug)]
pub struct DeviceQueue {
    pub(crate) ring: Virtqueue,
    finder: Finder,
    /// The chain that was taken last.
    pub(crate) chain: Chain,
    features: u64,
    /// By head: taken and not used, beyond the visit it was taken in?
    held: Vec<bool>,
    /// Chains in flight before this server started, oldest first.
    resubmit: VecDeque<u16>,
    inflight: Option<InflightQueue>,
    /// Used and not published; kept with an inflight area only.
    batch: Vec<u16>,
    log: Option<Arc<DirtyLog>>,
    used_log_address: Option<u64>,
    kick: OwnedFd,
    call: Option<Interrupt>,
    error: Option<OwnedFd>,
    /// Count of guest memory faults when ours was last checked.
    faults_seen: u64,
    fault: Option<String>,
}

impl DeviceQueue {
    /// Serve a virtqueue.
    ///
    /// # Errors
    /// A ring is outside the guest's memory, or is misaligned; a descriptor is not an eventfd.
    pub(crate) fn new(mut setup: DeviceQueueSetup) -> Result<Self, String> {
        let faults_seen = fault_guard::fault_count();
        if setup.memory.is_broken() {
            return Err(broken_memory());
        }
        let mut ring = Virtqueue::new(&setup)?;
        let recovered = setup.inflight.as_mut().map(|area| recover(area, &mut ring)).transpose()?.flatten();
        let is_continued = recovered.is_some();
        let mut queue = Self::over(setup, ring, recovered.unwrap_or_default(), faults_seen)?;
        queue.log_words();
        // The previous server may have been killed between its last publication and the interrupt.
        if is_continued {
            queue.interrupt();
        }
        Ok(queue)
    }

    /// `resubmit`: chains that were taken from `ring` and not used.
    fn over(setup: DeviceQueueSetup, ring: Virtqueue, resubmit: VecDeque<u16>, faults_seen: u64) -> Result<Self, String> {
        let size = usize::from(setup.size);
        Ok(Self {
            ring,
            finder: Finder::new(setup.memory),
            chain: Chain::with_capacity(size + MAX_TABLE_ENTRIES),
            features: setup.features,
            held: vec![false; size],
            resubmit,
            inflight: setup.inflight,
            batch: Vec::with_capacity(size),
            log: setup.log,
            used_log_address: setup.used_log_address,
            kick: setup.kick,
            call: setup.call.map(|fd| Interrupt::new("call", fd)).transpose()?,
            error: setup.error,
            faults_seen,
            fault: None,
        })
    }

    /// The queue's state; `None` while something is not published. The caller has checked that nothing is in flight.
    pub(crate) fn state(&self) -> Option<VirtqueueState> {
        if self.ring.has_unpublished() {
            return None;
        }
        let is_served = self.fault.is_none();
        let mut taken: Vec<u16> = self.resubmit.iter().copied().collect();
        taken.extend((0..self.ring.size).filter(|head| is_served && self.held[usize::from(*head)]));
        taken.sort_unstable();
        Some(VirtqueueState {
            next_available: self.ring.next_available,
            next_used: self.ring.published,
            taken,
            fault: self.fault.clone(),
            inflight: self.inflight.as_ref().map(|area| area.state),
        })
    }

    /// Continue where another server of the queue left off; its state counts, not the rings' contents. Nothing is written to
    /// memory of the guest or the inflight area before the first visit, so that the other server may still continue.
    pub(crate) fn resume(mut setup: DeviceQueueSetup, state: &VirtqueueState) -> Result<Self, String> {
        let faults_seen = fault_guard::fault_count();
        let size = setup.size;
        let positions = (state.next_available, state.next_used);
        let ring = Virtqueue::at(&setup, positions)?;
        let known = match (&mut setup.inflight, state.inflight) {
            (Some(area), Some(inflight)) => area.resume(size, inflight),
            (None, None) => true,
            _ => false,
        };
        if !known || state.taken.iter().any(|head| *head >= size) {
            return Err(format!("a queue of {size} descriptors cannot have this state: {state:?}"));
        }
        let resubmit: VecDeque<u16> = state.taken.iter().copied().collect();
        let mut queue = Self::over(setup, ring, resubmit, faults_seen)?;
        queue.fault.clone_from(&state.fault);
        Ok(queue)
    }

    #[inline(always)]
    pub(crate) const fn has(&self, feature: u32) -> bool {
        has(self.features, feature)
    }

    /// Why the queue is no longer served, if so. This is final: a new server is made when the device was reset.
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    #[inline(always)]
    pub(crate) const fn is_over(&self) -> bool {
        self.fault.is_some()
    }

    /// Ask for kicks. The caller checks once more for work.
    pub(crate) fn arm(&mut self) {
        self.ring.arm();
        self.log_words();
    }

    #[inline(always)]
    pub(crate) fn disarm(&mut self) {
        if self.ring.is_armed {
            self.ring.disarm();
            self.log_words();
        }
    }

    pub(crate) const fn memory(&self) -> &Arc<GuestMemory> {
        self.finder.memory()
    }

    pub fn doorbell(&self) -> BorrowedFd<'_> {
        self.kick.as_fd()
    }

    /// Use another descriptor for interrupts from now on, and interrupt once now: one may have gone to the old descriptor.
    ///
    /// # Errors
    /// The descriptor is not an eventfd; the guest is no longer interrupted.
    pub fn set_call(&mut self, call: Option<OwnedFd>) -> Result<(), String> {
        self.call = None;
        self.call = call.map(|fd| Interrupt::new("call", fd)).transpose()?;
        if let Some(call) = &mut self.call {
            call.raise();
        }
        Ok(())
    }

    /// Log, or stop logging, the pages that are written from now on.
    pub fn set_log(&mut self, log: Option<Arc<DirtyLog>>, used_log_address: Option<u64>) {
        self.log = log;
        self.used_log_address = used_log_address;
        self.log_words();
    }

    /// Continue in other memory, with the rings at these addresses. Nothing that refers to the old memory is in flight or
    /// unpublished.
    pub(crate) fn set_memory(&mut self, memory: Arc<GuestMemory>, rings: RingAddresses) -> Result<(), String> {
        self.ring.move_to(&memory, rings)?;
        self.finder = Finder::new(memory);
        self.faults_seen = fault_guard::fault_count();
        if self.finder.memory().is_broken() {
            self.break_down(broken_memory());
        }
        Ok(())
    }

    /// The queue is removed: returns the index of the next available entry. `is_idle`: no chain is taken.
    pub(crate) fn stop(mut self, is_idle: bool) -> u16 {
        let nothing_is_taken = is_idle && self.resubmit.is_empty() && self.fault.is_none();
        if let Some(inflight) = self.inflight.as_mut().filter(|_| nothing_is_taken) {
            inflight.end();
        }
        self.ring.next_available
    }

    /// Index of the next available entry.
    pub(crate) const fn next_available(&self) -> u16 {
        self.ring.next_available
    }

    /// Publish used chains. Does the guest want an interrupt for them?
    #[inline(always)]
    pub(crate) fn flush(&mut self) -> bool {
        self.ring.has_unpublished() && self.publish()
    }

    #[inline(always)]
    fn publish(&mut self) -> bool {
        if fault_guard::fault_count() != self.faults_seen && self.memory_is_gone() {
            return false;
        }
        if let Some(inflight) = &mut self.inflight {
            inflight.about_to_publish(&self.batch);
        }
        if let (Some(log), Some(address)) = (&self.log, self.used_log_address) {
            self.ring.log_entries(log, address);
        }
        let wants_interrupt = self.ring.publish();
        if let Some(inflight) = &mut self.inflight {
            inflight.published(&self.batch, self.ring.published);
            self.batch.clear();
        }
        self.log_words();
        wants_interrupt
    }

    /// Used chains are published up to this position.
    pub(crate) const fn published(&self) -> u16 {
        self.ring.published
    }

    /// As [`Virtqueue::wants_interrupt`].
    pub(crate) fn wants_interrupt(&self, since: u16) -> bool {
        self.ring.wants_interrupt(since)
    }

    /// False: the driver polls.
    #[cold]
    pub(crate) fn interrupt(&mut self) -> bool {
        self.ring.interrupt_anyway = false;
        self.call.as_mut().map(Interrupt::raise).is_some()
    }

    /// Check whether guest memory was truncated. The queue stops then.
    #[inline(always)]
    pub fn check_memory(&mut self) {
        if fault_guard::fault_count() != self.faults_seen && self.fault.is_none() {
            self.memory_is_gone();
        }
    }

    /// Some guest's memory was truncated. If ours, the used chains are not valid: they are not published.
    #[cold]
    fn memory_is_gone(&mut self) -> bool {
        // First the count, then the check: a fault in between is checked again.
        self.faults_seen = fault_guard::fault_count();
        fence(Ordering::Acquire);
        let is_gone = self.finder.memory().is_broken() || self.log.as_ref().is_some_and(|log| log.is_broken());
        if is_gone {
            self.ring.next_used = self.ring.published;
            self.break_down(broken_memory());
        }
        is_gone
    }

    /// Stop for good: the contents of the rings or memory cannot be served.
    #[cold]
    pub(crate) fn break_down(&mut self, why: String) {
        if self.fault.is_some() {
            return;
        }
        // Truncated rings read as zeroes, which looks like a driver fault.
        let why = if self.finder.memory().is_broken() { broken_memory() } else { why };
        self.fault = Some(why);
        self.resubmit.clear();
        if let Some(Ok(mut error)) = self.error.take().map(|fd| Interrupt::new("error", fd)) {
            error.raise();
        }
    }

    /// Log the writes to the used ring other than its entries.
    #[inline(always)]
    fn log_words(&self) {
        if let (Some(log), Some(address)) = (&self.log, self.used_log_address) {
            self.ring.log_words(log, address);
        }
    }

    /// Are writes logged?
    #[inline(always)]
    pub(crate) const fn is_logging(&self) -> bool {
        self.log.is_some()
    }

    #[inline(always)]
    pub(crate) fn log_bytes(&self, address: u64, length_bytes: u64) {
        if let Some(log) = &self.log {
            log.mark(address, length_bytes);
        }
    }

    #[inline(always)]
    pub(crate) fn log_pieces(&self, pieces: &[Piece]) {
        if let Some(log) = &self.log {
            for piece in pieces {
                log.mark(piece.address, piece.length_bytes.into());
            }
        }
    }
}

/// The chains in flight, to be resubmitted, if the queue was served before; the ring is continued after them.
fn recover(area: &mut InflightQueue, ring: &mut Virtqueue) -> Result<Option<VecDeque<u16>>, String> {
    let Some(heads) = area.begin(ring.size, ring.published, ring.available_index())? else { return Ok(None) };
    // At most the size of the queue, which is at most 32768.
    let count = u16::try_from(heads.len()).unwrap_or(0);
    ring.next_available = ring.published.wrapping_add(count);
    Ok(Some(heads.into()))
}

fn broken_memory() -> String {
    "a file of guest memory was truncated; the hypervisor is at fault, restart the machine".to_owned()
}
