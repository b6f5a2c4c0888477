//! The description of a port, and of one in a list.

use core::mem::offset_of;

use fipsee_ring::PeerFault;
use fipsee_ring::control::{LISTED_INFO_BYTES, SERVICE_INFO_BYTES};
use fipsee_ring::fault::expect;
use fipsee_ring::wire::all_zero;

use super::{LISTED_IN_USE, ListedPort, MAX_MTU, MAX_PAIRS, MIN_MTU, PortInfo, max_frame_bytes, max_offloaded_bytes};
use crate::frame::{MAX_VLAN, Mac};
use crate::offload;

impl PortInfo {
    pub fn new(mac: Mac, mtu: u16, vlan: u16, pairs: u16) -> Self {
        Self { mac: mac.0, mtu, max_frame_bytes: max_frame_bytes(mtu), offloads: 0, vlan, pairs, reserved: [0; 11] }
    }

    /// The same with these offloads in force.
    #[must_use]
    pub fn with_offloads(self, offloads: u32) -> Self {
        let max_frame_bytes = max_offloaded_bytes(self.mtu, offloads);
        Self { offloads, max_frame_bytes, ..self }
    }

    /// As it is in ATTACHED.
    pub fn to_bytes(&self) -> [u8; SERVICE_INFO_BYTES] {
        zerocopy::transmute!(*self)
    }

    /// Check what a peer sent that was asked for these offloads.
    pub fn from_bytes(bytes: &[u8; SERVICE_INFO_BYTES], asked: u32) -> Result<Self, PeerFault> {
        let info: Self = zerocopy::transmute!(*bytes);
        let Self { mac, mtu, max_frame_bytes: longest, offloads, vlan, pairs, reserved } = info;
        expect("a port's MAC address, of a group", mac[0], !Mac(mac).is_group())?;
        expect("the MTU", mtu, (MIN_MTU..=MAX_MTU).contains(&mtu))?;
        expect("offloads that were not asked for", offloads, offloads & !asked == 0 && offloads == offload::granted(offloads))?;
        expect("the longest frame", longest, longest == max_offloaded_bytes(mtu, offloads))?;
        expect("the VLAN", vlan, vlan <= MAX_VLAN)?;
        expect("the pairs of queues", pairs, (1..=MAX_PAIRS).contains(&pairs))?;
        all_zero(offset_of!(Self, reserved), &reserved).map(|()| info)
    }
}

impl ListedPort {
    pub fn new(mac: Mac, mtu: u16, in_use: bool) -> Self {
        Self { mac: mac.0, mtu, flags: if in_use { LISTED_IN_USE } else { 0 }, reserved: 0 }
    }

    pub fn to_bytes(&self) -> [u8; LISTED_INFO_BYTES] {
        zerocopy::transmute!(*self)
    }

    pub fn from_bytes(bytes: &[u8; LISTED_INFO_BYTES]) -> Self {
        zerocopy::transmute!(*bytes)
    }
}
