//! The virtio-net device: a port of a network.

pub mod config;
pub mod server;

/// What a virtqueue of the device is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Frames to the guest, of this pair.
    Receive(usize),
    /// Frames from the guest, of this pair.
    Transmit(usize),
    /// Commands of the driver.
    Control,
}

impl Role {
    /// Of the virtqueue of this index, of a device with so many pairs. The control queue comes after the pairs that the driver knows of.
    pub fn of(index: u16, pairs: u16, features: u64) -> Self {
        let pairs = if config::has_pairs(features) { pairs } else { 1 };
        let pair = usize::from(index / 2);
        match index.is_multiple_of(2) {
            true if config::has_control(features) && index == 2 * pairs => Self::Control,
            true => Self::Receive(pair),
            false => Self::Transmit(pair),
        }
    }
}

#[cfg(test)]
mod tests {
    use virtio_bindings::virtio_net::{VIRTIO_NET_F_CTRL_VQ, VIRTIO_NET_F_MQ};

    use super::*;
    use crate::core::bit;

    #[test]
    fn control_queue_is_behind_the_pairs_that_the_driver_knows_of() {
        let (control, pairs) = (bit(VIRTIO_NET_F_CTRL_VQ), bit(VIRTIO_NET_F_MQ));
        assert_eq!([0, 1].map(|index| Role::of(index, 4, control | pairs)), [Role::Receive(0), Role::Transmit(0)]);
        assert_eq!([2, 8].map(|index| Role::of(index, 4, control)), [Role::Control, Role::Receive(4)]);
        assert_eq!([2, 8].map(|index| Role::of(index, 4, control | pairs)), [Role::Receive(1), Role::Control]);
        // The hypervisor has the control queue itself.
        assert_eq!([2, 7].map(|index| Role::of(index, 4, pairs)), [Role::Receive(1), Role::Transmit(3)]);
    }
}
