//! The common base of all virtio devices: guest memory, virtqueues and their chains, interrupts, the inflight area, the
//! log of written pages.

mod device_queue;
mod fault_guard;
pub mod inflight;
mod interrupt;
pub mod memory;
pub(crate) mod queue;
mod served;

pub use device_queue::{DeviceQueue, DeviceQueueSetup, VirtqueueState};
pub use interrupt::make_spare_rings;
pub use queue::RingAddresses;
pub use served::ServedVirtqueue;
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

/// Virtio feature: the back end logs what it writes (vhost).
pub const LOG_ALL: u32 = 26;
/// The features of every device. `VHOST_USER_F_PROTOCOL_FEATURES` is handled by the vhost-user code.
pub(crate) const FEATURES: u64 =
    bit(VIRTIO_F_VERSION_1) | bit(VIRTIO_RING_F_INDIRECT_DESC) | bit(VIRTIO_RING_F_EVENT_IDX) | bit(LOG_ALL);

pub(crate) const fn bit(feature: u32) -> u64 {
    1 << feature
}

#[inline(always)]
pub(crate) const fn has(features: u64, feature: u32) -> bool {
    features & bit(feature) != 0
}
