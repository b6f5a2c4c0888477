//! Questions and replies on the wire. Twin of `include/fipsee_vm.h`.
#![deny(clippy::as_conversions)]

use fipsee_ring::channel::{EVENT_CREDITS, MAX_DEPTH};
use fipsee_ring::control::MAX_QUEUES;
use fipsee_ring::layout::{COLD_BYTES, MAX_SLOTS, MIN_SLOTS, SLOT_BYTES};

/// Type of the virtio-blk requests that carry a question and a reply. Bit 0 is clear: older devices mask it away.
pub const REQUEST_TYPE: u32 = 0x4649_5030;
/// First word of a question.
pub const MAGIC: u32 = u32::from_le_bytes(*b"FiUP");
/// The version of questions and replies.
pub const VERSION: u16 = 1;
/// Bytes of a question, of each of the entries that follow it in an attach, and of a reply.
pub const PART_BYTES: usize = 64;
/// Bits of a guest-physical address below a segment's memory id.
pub const REGION_SHIFT: u32 = 41;
/// Feature: the reply of an attach advises how to go about the rings' work.
pub const FEATURE_CHOICES: u64 = 1;
/// The features that this build knows.
pub const FEATURES: u64 = FEATURE_CHOICES;
/// Most bytes of a question with its entries.
pub const MAX_QUESTION_BYTES: usize = PART_BYTES * 65;
const _: () = assert!(MAX_QUEUES == 64);

/// Result: done.
pub const DONE: u32 = 0;
/// Result of a bell: there may be completions or events on the ring.
pub const RUNG: u32 = 1;
/// Result: there is no such attachment, or no longer.
pub const NO_ATTACHMENT: u32 = 2;
/// Result of an attach: ask again later.
pub const NOT_NOW: u32 = 3;
/// Result: a value that is not allowed, or memory that is not the guest's.
pub const INVALID: u32 = 4;
/// Result: a version that we do not know.
pub const BAD_VERSION: u32 = 5;

/// What a question asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// What do you offer, what is in force?
    Query,
    /// Go over to rings.
    Attach,
    /// Tell me, by an answer, when the ring has something for me.
    Bell,
    /// Let go of the rings.
    Detach,
}

impl Operation {
    /// Every operation, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Query, Self::Attach, Self::Bell, Self::Detach];

    /// The number on the wire.
    #[must_use]
    pub const fn to_wire(self) -> u16 {
        match self {
            Self::Query => 1,
            Self::Attach => 2,
            Self::Bell => 3,
            Self::Detach => 4,
        }
    }

    fn from_wire(wire: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|operation| operation.to_wire() == wire)
    }
}

/// One queue of an attach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Guest-physical address of the request ring.
    pub request_address: u64,
    /// Guest-physical address of the completion ring.
    pub completion_address: u64,
    /// Guest-physical address of the cold words of both.
    pub cold_address: u64,
    /// Slots of the request ring.
    pub request_slots: u32,
    /// Slots of the completion ring.
    pub completion_slots: u32,
    /// Slot index of the first request.
    pub request_start: u32,
    /// Slot index of the first completion.
    pub completion_start: u32,
    /// Requests that may be outstanding.
    pub depth: u32,
    /// The virtqueue that is the queue's doorbell.
    pub virtqueue: u32,
}

impl Entry {
    /// As it stands on the wire.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; PART_BYTES] {
        let mut bytes = Bytes::default();
        for address in [self.request_address, self.completion_address, self.cold_address] {
            bytes.put(&address.to_le_bytes());
        }
        let counts = [self.request_slots, self.completion_slots, self.request_start, self.completion_start];
        for count in counts.into_iter().chain([self.depth, self.virtqueue]) {
            bytes.put(&count.to_le_bytes());
        }
        bytes.part
    }

    /// From the wire, if every value is one that is allowed whatever the guest's memory.
    #[must_use]
    pub fn parse(bytes: &[u8; PART_BYTES]) -> Option<Self> {
        let word = |at: usize| u64_at(bytes, at);
        let half = |at: usize| u32_at(bytes, at);
        let entry = Self {
            request_address: word(0),
            completion_address: word(8),
            cold_address: word(16),
            request_slots: half(24),
            completion_slots: half(28),
            request_start: half(32),
            completion_start: half(36),
            depth: half(40),
            virtqueue: half(44),
        };
        let slots_ok = |slots: u32| slots.is_power_of_two() && (MIN_SLOTS..=MAX_SLOTS).contains(&slots);
        let aligned = [entry.request_address, entry.completion_address, entry.cold_address].into_iter().all(is_aligned);
        let most = entry.request_slots.min(entry.completion_slots.saturating_sub(EVENT_CREDITS)).min(MAX_DEPTH);
        let allowed = aligned
            && slots_ok(entry.request_slots)
            && slots_ok(entry.completion_slots)
            && entry.request_start < entry.request_slots
            && entry.completion_start < entry.completion_slots
            && (1..=most).contains(&entry.depth)
            && word(48) == 0
            && word(56) == 0;
        allowed.then_some(entry)
    }

    /// Bytes of the request ring.
    #[must_use]
    pub fn request_bytes(&self) -> u64 {
        ring_bytes(self.request_slots)
    }

    /// Bytes of the completion ring.
    #[must_use]
    pub fn completion_bytes(&self) -> u64 {
        ring_bytes(self.completion_slots)
    }
}

/// Bytes of the cold words of both rings of a queue.
pub const COLD_PAIR_BYTES: u64 = 256;
const _: () = assert!(COLD_BYTES == 128 && SLOT_BYTES == 64);

fn is_aligned(address: u64) -> bool {
    address.is_multiple_of(64)
}

fn ring_bytes(slots: u32) -> u64 {
    u64::from(slots) * 64
}

/// A question in which every value is allowed. Whether it fits the device and its memory is looked at later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// What is asked.
    pub operation: Operation,
    /// The attachment it is about, or 0.
    pub attachment: u64,
    /// The features wanted, of an attach.
    pub features: u64,
    /// Number of the queue, of a bell.
    pub queue: u16,
    /// The queues of an attach.
    pub entries: Vec<Entry>,
}

/// What a question is refused with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// [`INVALID`] or [`BAD_VERSION`].
    pub result: u32,
    /// Which entry of an attach was wrong; otherwise 0.
    pub queue: u32,
}

const NOT_ALLOWED: Refused = Refused { result: INVALID, queue: 0 };

impl Question {
    /// As it stands on the wire.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Bytes::default();
        bytes.put(&MAGIC.to_le_bytes());
        bytes.put(&VERSION.to_le_bytes());
        bytes.put(&self.operation.to_wire().to_le_bytes());
        bytes.put(&self.attachment.to_le_bytes());
        bytes.put(&self.features.to_le_bytes());
        bytes.put(&u16::try_from(self.entries.len()).unwrap_or(u16::MAX).to_le_bytes());
        bytes.put(&self.queue.to_le_bytes());
        let mut all = bytes.part.to_vec();
        for entry in &self.entries {
            all.extend(entry.to_bytes());
        }
        all
    }

    /// From a copy of what the guest wrote.
    ///
    /// # Errors
    /// The result to answer with.
    pub fn parse(bytes: &[u8]) -> Result<Self, Refused> {
        let (parts, rest) = bytes.as_chunks::<PART_BYTES>();
        let (Some((head, entries)), []) = (parts.split_first(), rest) else { return Err(NOT_ALLOWED) };
        if u32_at(head, 0) != MAGIC {
            return Err(NOT_ALLOWED);
        }
        if u16_at(head, 4) != VERSION {
            return Err(Refused { result: BAD_VERSION, queue: 0 });
        }
        let operation = Operation::from_wire(u16_at(head, 6)).ok_or(NOT_ALLOWED)?;
        let (attachment, features) = (u64_at(head, 8), u64_at(head, 16));
        let (queue_count, queue) = (u16_at(head, 24), u16_at(head, 26));
        let attaches = operation == Operation::Attach;
        let allowed = features & !FEATURES == 0
            && (features == 0 || attaches)
            && usize::from(queue_count) == entries.len()
            && (queue_count != 0) == attaches
            && queue_count <= MAX_QUEUES
            && (queue == 0 || operation == Operation::Bell)
            && (attachment == 0 || !attaches)
            && head[28..].iter().all(|byte| *byte == 0);
        if !allowed {
            return Err(NOT_ALLOWED);
        }
        let wrong = |place: usize| Refused { result: INVALID, queue: u32::try_from(place).unwrap_or(0) };
        let entries = entries.iter().enumerate().map(|(place, entry)| Entry::parse(entry).ok_or_else(|| wrong(place)));
        Ok(Self { operation, attachment, features, queue, entries: entries.collect::<Result<_, _>>()? })
    }
}

/// An answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// How it ended.
    pub result: u32,
    /// Most queues of an attachment: query, attach.
    pub max_queues: u16,
    /// The new attachment (attach), or the one in force (query).
    pub attachment: u64,
    /// Features offered (query) or in force (attach).
    pub features: u64,
    /// Most requests outstanding in a queue: query.
    pub max_depth: u32,
    /// Which entry of an attach was wrong.
    pub queue: u32,
    /// Advice (attach, with [`FEATURE_CHOICES`] in force): a word of [`Choices`](fipsee_ring::tuning::Choices).
    pub choices: u32,
}

impl Reply {
    /// A reply that says no more than how it ended.
    #[must_use]
    pub fn of(result: u32) -> Self {
        Self { result, ..Self::default() }
    }

    /// As it stands on the wire.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; PART_BYTES] {
        let mut bytes = Bytes::default();
        bytes.put(&self.result.to_le_bytes());
        bytes.put(&VERSION.to_le_bytes());
        bytes.put(&self.max_queues.to_le_bytes());
        bytes.put(&self.attachment.to_le_bytes());
        bytes.put(&self.features.to_le_bytes());
        bytes.put(&self.max_depth.to_le_bytes());
        bytes.put(&self.queue.to_le_bytes());
        bytes.put(&self.choices.to_le_bytes());
        bytes.part
    }

    /// What a guest reads, if it is a reply of this version.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; PART_BYTES]) -> Option<Self> {
        let (features, choices) = (u64_at(bytes, 16), u32_at(bytes, 32));
        let unasked = choices != 0 && features & FEATURE_CHOICES == 0;
        if u16_at(bytes, 4) != VERSION || unasked || bytes[36..].iter().any(|byte| *byte != 0) {
            return None;
        }
        Some(Self {
            result: u32_at(bytes, 0),
            max_queues: u16_at(bytes, 6),
            attachment: u64_at(bytes, 8),
            features,
            max_depth: u32_at(bytes, 24),
            queue: u32_at(bytes, 28),
            choices,
        })
    }
}

impl From<Refused> for Reply {
    fn from(refused: Refused) -> Self {
        Self { result: refused.result, queue: refused.queue, ..Self::default() }
    }
}

/// A part that is filled from the front.
struct Bytes {
    part: [u8; PART_BYTES],
    filled: usize,
}

impl Default for Bytes {
    fn default() -> Self {
        Self { part: [0; PART_BYTES], filled: 0 }
    }
}

impl Bytes {
    fn put(&mut self, value: &[u8]) {
        self.part[self.filled..self.filled + value.len()].copy_from_slice(value);
        self.filled += value.len();
    }
}

fn u16_at(bytes: &[u8; PART_BYTES], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8; PART_BYTES], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8; PART_BYTES], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
