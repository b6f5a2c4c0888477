//! One virtqueue as its hypervisor sets it up, message by message.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use fipsee_block::stats::QueueCounters;
use fipsee_ring::tuning::Choices;
use fipsee_virtio::core::RingAddresses;
use fipsee_virtio::core::memory::{DirtyLog, GuestMemory};

use super::message::VringAddress;

/// Descriptors in a queue at most (virtio 1.x).
pub(super) const MAX_SIZE: u32 = 32768;

/// SET_VRING_ADDR: addresses as the hypervisor sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UserRings {
    pub(super) descriptor: u64,
    pub(super) available: u64,
    pub(super) used: u64,
    /// Where writes to the used ring are logged, as the guest sees it, if they are.
    pub(super) log: Option<u64>,
}

impl From<VringAddress> for UserRings {
    fn from(address: VringAddress) -> Self {
        let VringAddress { flags, descriptor, used, available, log, .. } = address;
        Self { descriptor, available, used, log: (flags != 0).then_some(log) }
    }
}

impl UserRings {
    pub(super) fn translate(&self, memory: &GuestMemory) -> Option<RingAddresses> {
        Some(RingAddresses {
            descriptor: memory.guest_address(self.descriptor)?,
            available: memory.guest_address(self.available)?,
            used: memory.guest_address(self.used)?,
        })
    }
}

/// From the command to serve a queue to the command to stop it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// Unique in this daemon.
    pub(super) id: u64,
    /// Its worker's choices for rings.
    pub(super) choices: Choices,
}

#[derive(Default, Debug)]
pub(super) struct Vring {
    pub(super) size: u16,
    pub(super) rings: Option<UserRings>,
    pub(super) next_available: u16,
    pub(super) kick: Option<OwnedFd>,
    pub(super) call: Option<OwnedFd>,
    pub(super) error: Option<OwnedFd>,
    /// SET_VRING_ENABLE.
    pub(super) enabled: bool,
    pub(super) counters: Arc<QueueCounters>,
    /// While a worker serves it.
    pub(super) run: Option<Run>,
}

impl Vring {
    pub(super) const fn is_served(&self) -> bool {
        self.run.is_some()
    }

    pub(super) const fn is_described(&self) -> bool {
        self.rings.is_some() && self.kick.is_some() && self.size > 0
    }

    /// Reset to the initial state, except for its counters.
    pub(super) fn forget(&mut self) {
        *self = Self { counters: Arc::clone(&self.counters), ..Self::default() };
    }

    /// SET_VRING_NUM; of a queue that is not served.
    pub(super) fn set_size(&mut self, size: u32) -> Result<(), String> {
        let is_possible = size.is_power_of_two() && size <= MAX_SIZE;
        let size = u16::try_from(size).ok().filter(|_| is_possible);
        self.size = size.ok_or_else(|| format!("the size of a queue is a power of two, at most {MAX_SIZE}"))?;
        Ok(())
    }

    /// Where writes to the used ring go in `log`.
    pub(super) fn log_address(&self, log: Option<&Arc<DirtyLog>>) -> Option<u64> {
        log.and(self.rings?.log)
    }
}
