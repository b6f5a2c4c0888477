//! What a virtio-net device shows its driver: feature bits and configuration space.

use fipsee_net::frame::Mac;
use fipsee_net::wire::{OFFLOAD_CHECKSUM, OFFLOAD_ECN, OFFLOAD_TSO4, OFFLOAD_TSO6};
use virtio_bindings::virtio_config::{VIRTIO_F_IN_ORDER, VIRTIO_F_VERSION_1};
use virtio_bindings::virtio_net::{
    VIRTIO_NET_F_CSUM, VIRTIO_NET_F_CTRL_VQ, VIRTIO_NET_F_GUEST_ANNOUNCE, VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_GUEST_ECN,
    VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_TSO6, VIRTIO_NET_F_HOST_ECN, VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6,
    VIRTIO_NET_F_MAC, VIRTIO_NET_F_MQ, VIRTIO_NET_F_MRG_RXBUF, VIRTIO_NET_F_MTU, VIRTIO_NET_F_STATUS, VIRTIO_NET_S_LINK_UP,
};

use crate::core::{FEATURES, bit, has};

/// What the driver takes of what others leave to it, and the offload that is.
const TAKEN: [(u32, u32); 4] = [
    (VIRTIO_NET_F_GUEST_CSUM, OFFLOAD_CHECKSUM),
    (VIRTIO_NET_F_GUEST_TSO4, OFFLOAD_TSO4),
    (VIRTIO_NET_F_GUEST_TSO6, OFFLOAD_TSO6),
    (VIRTIO_NET_F_GUEST_ECN, OFFLOAD_ECN),
];
/// What it may leave to others: the switch has it done for those that do not take it.
const LEFT: u64 = bit(VIRTIO_NET_F_CSUM) | bit(VIRTIO_NET_F_HOST_TSO4) | bit(VIRTIO_NET_F_HOST_TSO6) | bit(VIRTIO_NET_F_HOST_ECN);

pub const SPACE_BYTES: usize = size_of::<Space>();

fipsee_ring::wire_structures! {
    /// `struct virtio_net_config` up to the MTU.
    pub Space: 12 { 0 mac: [u8; 6], 6 status: u16, 8 max_virtqueue_pairs: u16, 10 mtu: u16 }
}

/// The features of a port with so many pairs of queues, with those of every device.
pub fn features(pairs: u16) -> u64 {
    let taken = TAKEN.iter().fold(0, |all, (feature, _)| all | bit(*feature));
    let features = FEATURES
        | LEFT
        | taken
        | bit(VIRTIO_NET_F_MAC)
        | bit(VIRTIO_NET_F_STATUS)
        | bit(VIRTIO_NET_F_MTU)
        | bit(VIRTIO_NET_F_MRG_RXBUF)
        | bit(VIRTIO_NET_F_GUEST_ANNOUNCE)
        // Each chain is used in the visit that takes it.
        | bit(VIRTIO_F_IN_ORDER)
        // A driver takes neither announcements nor several pairs without it.
        | bit(VIRTIO_NET_F_CTRL_VQ);
    if pairs > 1 { features | bit(VIRTIO_NET_F_MQ) } else { features }
}

/// The [`Space`] of a port, which is up or down.
pub fn space(mac: Mac, mtu: u16, pairs: u16, is_up: bool) -> [u8; SPACE_BYTES] {
    let status = if is_up { u16::try_from(VIRTIO_NET_S_LINK_UP).unwrap_or(0) } else { 0 };
    zerocopy::transmute!(Space { mac: mac.0, status, max_virtqueue_pairs: pairs, mtu })
}

/// The offloads that a driver with these features takes.
pub(super) fn offloads(features: u64) -> u32 {
    let taken = TAKEN.iter().filter(|(feature, _)| has(features, *feature));
    taken.fold(0, |all, (_, offload)| all | offload)
}

/// Does the driver know of more than one pair?
pub(super) const fn has_pairs(features: u64) -> bool {
    has(features, VIRTIO_NET_F_MQ)
}

/// Does the driver send commands to this device? If not, the hypervisor has its control queue.
pub const fn has_control(features: u64) -> bool {
    has(features, VIRTIO_NET_F_CTRL_VQ)
}

/// The driver decides how many pairs it uses, and begins with one.
pub const fn driver_chooses_pairs(features: u64) -> bool {
    has_pairs(features) && has_control(features)
}

/// Bytes of the header before each frame.
pub(super) const fn header_bytes(features: u64) -> usize {
    if has(features, VIRTIO_F_VERSION_1) || has(features, VIRTIO_NET_F_MRG_RXBUF) { 12 } else { 10 }
}
