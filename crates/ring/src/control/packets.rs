//! The packets of the control socket, byte for byte (docs/protocol.md section 4). Counterpart of `include/fipsee.h`.

use super::{LISTED_INFO_BYTES, MAX_LISTED, MAX_NAME_BYTES, SERVICE_INFO_BYTES};

crate::wire_structures! {
    /// The start of every packet; alone: DETACH and DETACHED.
    pub ControlHeader: 12 { 0 magic: u32, 4 kind: u16, 6 version: u16, 8 length_bytes: u32 }
    /// HELLO.
    pub Hello: 24 { 0 header: ControlHeader, 12 version_min: u16, 14 version_max: u16, 16 features: u64 }
    /// WELCOME.
    pub Welcome: 40 {
        0 header: ControlHeader, 12 version: u16, 14 max_queues: u16, 16 max_depth: u32, 20 reserved: u32, 24 features: u64,
        32 max_pool_bytes: u64,
    }
    /// ATTACH.
    pub Attach: 96 {
        0 header: ControlHeader, 12 service: u16, 14 queue_count: u16, 16 depth: u32, 20 flags: u32, 24 pool_bytes: u64,
        32 name: [u8; MAX_NAME_BYTES],
    }
    /// ATTACHED.
    pub Attached: 88 {
        0 header: ControlHeader, 12 queue_count: u16, 14 reserved: u16, 16 region_bytes: u64,
        24 service_info: [u8; SERVICE_INFO_BYTES],
    }
    /// REFUSED up to its text, for which there is always room of [`MAX_REFUSAL_BYTES`](super::MAX_REFUSAL_BYTES).
    pub Refused: 20 { 0 header: ControlHeader, 12 code: u32, 16 text_bytes: u32 }
    /// REGISTER.
    pub Register: 24 { 0 header: ControlHeader, 12 region: u16, 14 access: u16, 16 length_bytes: u64 }
    /// REGISTERED, UNREGISTER, UNREGISTERED.
    pub RegionId: 16 { 0 header: ControlHeader, 12 region: u16, 14 reserved: u16 }
    /// LIST.
    pub List: 80 { 0 header: ControlHeader, 12 service: u16, 14 reserved: u16, 16 after: [u8; MAX_NAME_BYTES] }
    /// An entry of LISTED.
    pub ListedEntry: 80 { 0 name: [u8; MAX_NAME_BYTES], 64 service_info: [u8; LISTED_INFO_BYTES] }
    /// LISTED.
    pub Listed: 496 { 0 header: ControlHeader, 12 count: u16, 14 more: u16, 16 entries: [ListedEntry; MAX_LISTED] }
}
