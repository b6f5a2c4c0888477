//! Loops: two ports whose clients are connected to each other elsewhere, so that frames come back.
//!
//! Addresses that come back are a suspicion and no more: any port with `any_source` can send with those behind another. A detection
//! frame decides, as in the loop protection of other switches: it leaves through one port, and comes in at a port only if there is a way back.
//! The port where it comes in is blocked, so a client can have its own port blocked and no other.

use crate::frame::Mac;
use crate::wire::MAX_SMALL_BYTES;

/// So many addresses that come back within a second are a reason for a detection frame. A station that moves is back once or twice.
const MOST_BACK: u32 = 50;
const SECOND_NS: u64 = 1_000_000_000;
/// For so long it may be on its way.
const DETECTION_NS: u64 = SECOND_NS;
/// For so long a port is blocked.
const BLOCKED_NS: u64 = 10 * SECOND_NS;
/// Of the Ethernet Configuration Testing Protocol, which switches detect loops with.
pub(super) const DETECTION_TYPE: u16 = 0x9000;
/// Its payload begins so: nothing is skipped, it is a reply.
const DETECTION_BEGINS: [u8; 4] = [0, 0, 1, 0];

#[derive(Debug, Default)]
pub(super) struct Loops {
    /// Since when addresses that came back are counted, and how many.
    since_ns: u64,
    count: u32,
    /// Until when the detection frame of the port counts.
    detects_until_ns: u64,
    pub(super) blocked_until_ns: Option<u64>,
}

impl Loops {
    /// An address came back to the port. `true`: one too many, and a detection frame is to leave through it.
    pub(super) fn is_suspicious(&mut self, now_ns: u64) -> bool {
        if now_ns.saturating_sub(self.since_ns) >= SECOND_NS {
            (self.since_ns, self.count) = (now_ns, 0);
        }
        self.count += 1;
        if self.count <= MOST_BACK {
            return false;
        }
        self.count = 0;
        self.detects_until_ns = now_ns + DETECTION_NS;
        true
    }

    /// May the detection frame of the port come in now?
    pub(super) const fn detects(&self, now_ns: u64) -> bool {
        now_ns < self.detects_until_ns
    }

    /// A detection frame came in at the port. Returns until when it is blocked. Its own counts no more: of a loop, one port is enough.
    pub(super) fn block(&mut self, now_ns: u64) -> u64 {
        let until_ns = now_ns + BLOCKED_NS;
        *self = Self { blocked_until_ns: Some(until_ns), ..Self::default() };
        until_ns
    }
}

/// The detection frame of a port with this address.
pub(super) fn detection_frame(mac: Mac) -> [u8; MAX_SMALL_BYTES] {
    let mut frame = [0; MAX_SMALL_BYTES];
    frame[..6].copy_from_slice(&Mac::BROADCAST.0);
    frame[6..12].copy_from_slice(&mac.0);
    frame[12..14].copy_from_slice(&DETECTION_TYPE.to_be_bytes());
    frame[14..18].copy_from_slice(&DETECTION_BEGINS);
    frame
}
