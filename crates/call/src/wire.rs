//! What ATTACHED contains for a service of calls, and where payloads are (docs/protocol.md section 8).

use core::mem::offset_of;

use fipsee_ring::PeerFault;
use fipsee_ring::channel::{FEATURES, MAX_POOL_BYTES, Profile};
use fipsee_ring::control::SERVICE_INFO_BYTES;
use fipsee_ring::layout::PAYLOAD_BYTES;
use fipsee_ring::wire::all_zero;

/// Service number of calls.
pub const SERVICE_CALLS: u16 = 2;
/// Channels of calls. Their completion rings are as long as those of disks: the rule is one for the wire.
pub const PROFILE: Profile = Profile { features: FEATURES, event_credits: 2, flags: &[] };
/// Most bytes of a request or reply: what one message of a ring carries.
#[expect(clippy::cast_possible_truncation, reason = "60")]
pub const MAX_VALUE_BYTES: u32 = PAYLOAD_BYTES as u32;
/// Unit of the lengths of payloads: a cache line, so that neighbours do not share one.
pub const PAYLOAD_UNIT_BYTES: u32 = 64;

fipsee_ring::wire_structures! {
    /// A service as the wire describes it.
    #[derive(PartialEq, Eq)]
    pub ServiceInfo: 16 {
        /// Bytes of a request, at most 60.
        0 request_bytes: u32,
        /// Bytes of a reply, at most 60.
        4 reply_bytes: u32,
        /// Bytes of payload that go with each request; a multiple of 64, 0 for none.
        8 request_payload_bytes: u32,
        /// Bytes of payload that go with each reply; a multiple of 64, 0 for none.
        12 reply_payload_bytes: u32,
    }
    RawServiceInfo: 64 { 0 info: ServiceInfo, 16 reserved: [u32; 12] }
}

impl ServiceInfo {
    /// As it is in ATTACHED.
    pub fn to_bytes(&self) -> [u8; SERVICE_INFO_BYTES] {
        zerocopy::transmute!(RawServiceInfo { info: *self, reserved: [0; 12] })
    }

    /// Check what a peer sent.
    pub fn from_bytes(bytes: &[u8; SERVICE_INFO_BYTES]) -> Result<Self, PeerFault> {
        let RawServiceInfo { info, reserved } = zerocopy::transmute!(*bytes);
        let check = |what, value: u32, ok: bool| if ok { Ok(()) } else { Err(PeerFault::Value { what, value: value.into() }) };
        check("the length of a request", info.request_bytes, info.request_bytes <= MAX_VALUE_BYTES)?;
        check("the length of a reply", info.reply_bytes, info.reply_bytes <= MAX_VALUE_BYTES)?;
        for bytes in [info.request_payload_bytes, info.reply_payload_bytes] {
            let ok = bytes.is_multiple_of(PAYLOAD_UNIT_BYTES) && u64::from(bytes) <= MAX_POOL_BYTES;
            check("the length of a payload", bytes, ok)?;
        }
        all_zero(offset_of!(RawServiceInfo, reserved), &reserved).map(|()| info)
    }

    /// Bytes of the pool that `depth` calls need.
    pub(crate) fn pool_bytes(&self, depth: u32) -> u64 {
        u64::from(depth) * self.stride_bytes()
    }

    const fn stride_bytes(&self) -> u64 {
        self.request_payload_bytes as u64 + self.reply_payload_bytes as u64
    }
}

/// The place of a call's payloads: call k of a queue has place k mod depth. Both sides count; it is not sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PayloadSlot {
    index: u32,
    depth: u32,
}

impl PayloadSlot {
    pub(crate) const fn first(depth: u32) -> Self {
        Self { index: 0, depth }
    }

    #[inline(always)]
    pub(crate) const fn advance(&mut self) {
        self.index += 1;
        if self.index == self.depth {
            self.index = 0;
        }
    }

    /// The place of the `count`-th call before this one; `count` is at most the depth.
    pub(crate) const fn back(mut self, count: u32) -> Self {
        self.index = if self.index >= count { self.index - count } else { self.index + self.depth - count };
        self
    }

    /// Offsets in the pool, in bytes: of the request's payload and of the reply's.
    pub(crate) fn offsets_bytes(self, info: &ServiceInfo) -> (u64, u64) {
        let start_bytes = u64::from(self.index) * info.stride_bytes();
        (start_bytes, start_bytes + u64::from(info.request_payload_bytes))
    }
}
