//! Upgrade requests and replies on the wire. Counterpart of `include/fipsee_vm.h`.
#![deny(clippy::as_conversions)]

use fipsee_block::wire::EVENT_CREDITS;
use fipsee_ring::channel::MAX_DEPTH;
use fipsee_ring::control::MAX_QUEUES;
use fipsee_ring::layout::{COLD_BYTES, MAX_SLOTS, MIN_SLOTS, SLOT_BYTES};
use zerocopy::IntoBytes;

/// Type of the virtio-blk requests that carry an upgrade request and its reply. Bit 0 is clear: older devices mask it away.
pub const REQUEST_TYPE: u32 = 0x4649_5030;
/// First word of an upgrade request.
pub const MAGIC: u32 = u32::from_le_bytes(*b"FiUP");
/// The version of upgrade requests and replies.
pub const VERSION: u16 = 1;
/// Bytes of an upgrade request, of each entry that follows it in an attach, and of a reply.
pub const PART_BYTES: usize = 64;
/// Bits of a guest-physical address below a segment's memory id.
pub const REGION_SHIFT: u32 = 41;
/// Feature: the reply to an attach advises choices for the rings' hot path.
pub const FEATURE_CHOICES: u64 = 1;
/// The features that this build knows.
pub const FEATURES: u64 = FEATURE_CHOICES;
/// Most bytes of an upgrade request with its entries.
pub const MAX_UPGRADE_REQUEST_BYTES: usize = PART_BYTES * 65;
const _: () = assert!(MAX_QUEUES == 64);

/// Result: done.
pub const DONE: u32 = 0;
/// Result of a doorbell request: there may be completions or events on the ring.
pub const RUNG: u32 = 1;
/// Result: there is no such attachment, or no longer.
pub const NO_ATTACHMENT: u32 = 2;
/// Result of an attach: try again later.
pub const NOT_NOW: u32 = 3;
/// Result: a value that is not allowed, or memory that is not the guest's.
pub const INVALID: u32 = 4;
/// Result: an unknown version.
pub const BAD_VERSION: u32 = 5;

fipsee_block::wire_numbers! {
    /// The operation of an upgrade request.
    Operation: u16 {
        /// Query the offered features and the attachment in force.
        Query = 1,
        /// Attach: move to rings.
        Attach = 2,
        /// Doorbell request: completed when the ring has something for the guest.
        Doorbell = 3,
        /// Detach: release the rings.
        Detach = 4,
    }
}

fipsee_ring::wire_structures! {
    /// One queue of an attach.
    #[derive(Default, PartialEq, Eq)]
    pub Entry: 48 {
        /// Guest-physical address of the request ring.
        0 request_address: u64,
        /// Guest-physical address of the completion ring.
        8 completion_address: u64,
        /// Guest-physical address of the cold words of both.
        16 cold_address: u64,
        /// Slots of the request ring.
        24 request_slots: u32,
        /// Slots of the completion ring.
        28 completion_slots: u32,
        /// Slot index of the first request.
        32 request_start: u32,
        /// Slot index of the first completion.
        36 completion_start: u32,
        /// Requests that may be outstanding.
        40 depth: u32,
        /// The virtqueue that is the queue's doorbell.
        44 virtqueue: u32,
    }
    RawEntry: 64 { 0 entry: Entry, 48 reserved: [u64; 2] }
    /// An upgrade request on the wire, up to the entries of an attach.
    pub RawUpgradeRequest: 64 {
        0 magic: u32, 4 version: u16, 6 operation: u16, 8 attachment: u64, 16 features: u64, 24 queue_count: u16, 26 queue: u16,
        28 reserved: [u8; 36],
    }
    /// A reply.
    #[derive(Default, PartialEq, Eq)]
    pub Reply: 64 {
        /// The result.
        0 result: u32,
        /// [`VERSION`].
        4 version: u16,
        /// Most queues of an attachment: query, attach.
        6 max_queues: u16,
        /// The new attachment (attach), or the one in force (query).
        8 attachment: u64,
        /// Features offered (query) or in force (attach).
        16 features: u64,
        /// Most requests outstanding in a queue: query.
        24 max_depth: u32,
        /// The entry of an attach that was wrong.
        28 queue: u32,
        /// Advice (attach, with [`FEATURE_CHOICES`] in force): a word of [`Choices`](fipsee_ring::tuning::Choices).
        32 choices: u32,
        /// Zeroes.
        36 reserved: [u8; 28],
    }
}

impl Entry {
    /// As on the wire.
    pub fn to_bytes(&self) -> [u8; PART_BYTES] {
        zerocopy::transmute!(RawEntry { entry: *self, reserved: [0; 2] })
    }

    /// From the wire, if every value is allowed independently of the guest's memory.
    pub fn parse(bytes: &[u8; PART_BYTES]) -> Option<Self> {
        let RawEntry { entry, reserved } = zerocopy::transmute!(*bytes);
        let slots_ok = |slots: u32| slots.is_power_of_two() && (MIN_SLOTS..=MAX_SLOTS).contains(&slots);
        let aligned = [entry.request_address, entry.completion_address, entry.cold_address]
            .iter()
            .all(|address| address.is_multiple_of(64));
        let most = entry.request_slots.min(entry.completion_slots.saturating_sub(EVENT_CREDITS)).min(MAX_DEPTH);
        let allowed = aligned
            && slots_ok(entry.request_slots)
            && slots_ok(entry.completion_slots)
            && entry.request_start < entry.request_slots
            && entry.completion_start < entry.completion_slots
            && (1..=most).contains(&entry.depth)
            && reserved == [0; 2];
        allowed.then_some(entry)
    }

    /// Bytes of the request ring.
    pub fn request_bytes(&self) -> u64 {
        ring_bytes(self.request_slots)
    }

    /// Bytes of the completion ring.
    pub fn completion_bytes(&self) -> u64 {
        ring_bytes(self.completion_slots)
    }
}

/// Bytes of the cold words of both rings of a queue.
pub const COLD_PAIR_BYTES: u64 = 256;
const _: () = assert!(COLD_BYTES == 128 && SLOT_BYTES == 64);

fn ring_bytes(slots: u32) -> u64 {
    u64::from(slots) * 64
}

/// An upgrade request in which every value is allowed. Whether it fits the device and its memory is checked later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpgradeRequest {
    /// The operation.
    pub operation: Operation,
    /// The attachment it refers to, or 0.
    pub attachment: u64,
    /// The features wanted, of an attach.
    pub features: u64,
    /// Number of the queue, of a doorbell request.
    pub queue: u16,
    /// The queues of an attach.
    pub entries: Vec<Entry>,
}

impl UpgradeRequest {
    /// As on the wire.
    pub fn to_bytes(&self) -> Vec<u8> {
        let head = RawUpgradeRequest {
            magic: MAGIC,
            version: VERSION,
            operation: self.operation.to_wire(),
            attachment: self.attachment,
            features: self.features,
            queue_count: u16::try_from(self.entries.len()).unwrap_or(u16::MAX),
            queue: self.queue,
            reserved: [0; 36],
        };
        let mut all = head.as_bytes().to_vec();
        for entry in &self.entries {
            all.extend(entry.to_bytes());
        }
        all
    }

    /// From a copy of guest memory.
    pub fn parse(bytes: &[u8]) -> Result<Self, Reply> {
        let (parts, rest) = bytes.as_chunks::<PART_BYTES>();
        let (Some((head, entries)), []) = (parts.split_first(), rest) else { return Err(Reply::of(INVALID)) };
        let head: RawUpgradeRequest = zerocopy::transmute!(*head);
        if head.magic != MAGIC {
            return Err(Reply::of(INVALID));
        }
        if head.version != VERSION {
            return Err(Reply::of(BAD_VERSION));
        }
        let operation = Operation::from_wire(head.operation).ok_or_else(|| Reply::of(INVALID))?;
        let RawUpgradeRequest { attachment, features, queue_count, queue, reserved, .. } = head;
        let attaches = operation == Operation::Attach;
        let allowed = features & !FEATURES == 0
            && (features == 0 || attaches)
            && usize::from(queue_count) == entries.len()
            && (queue_count != 0) == attaches
            && queue_count <= MAX_QUEUES
            && (queue == 0 || operation == Operation::Doorbell)
            && (attachment == 0 || !attaches)
            && reserved == [0; 36];
        if !allowed {
            return Err(Reply::of(INVALID));
        }
        let wrong = |place: usize| Reply { queue: u32::try_from(place).unwrap_or(0), ..Reply::of(INVALID) };
        let entries = entries.iter().enumerate().map(|(place, entry)| Entry::parse(entry).ok_or_else(|| wrong(place)));
        Ok(Self { operation, attachment, features, queue, entries: entries.collect::<Result<_, _>>()? })
    }
}

impl Reply {
    /// A reply with a result only.
    pub fn of(result: u32) -> Self {
        Self { result, version: VERSION, ..Self::default() }
    }

    /// As on the wire.
    pub fn to_bytes(&self) -> [u8; PART_BYTES] {
        zerocopy::transmute!(*self)
    }

    /// Parsed by a guest, if it is a reply of this version.
    pub fn from_bytes(bytes: &[u8; PART_BYTES]) -> Option<Self> {
        let reply: Self = zerocopy::transmute!(*bytes);
        let unasked = reply.choices != 0 && reply.features & FEATURE_CHOICES == 0;
        (reply.version == VERSION && !unasked && reply.reserved == [0; 28]).then_some(reply)
    }
}
