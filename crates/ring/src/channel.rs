//! A channel: the region with its geometry, and the two ends of each queue in it (docs/protocol.md section 3).

use core::mem::offset_of;
use std::io;
use std::sync::Arc;

use zerocopy::{FromZeros, IntoBytes};

use crate::clock;
use crate::control::MAX_QUEUES;
use crate::doorbell::{DoorbellCounts, EventDoorbell, SocketDoorbell, await_readable};
use crate::fault::{PeerFault, expect};
use crate::layout::{COLD_BYTES, MIN_SLOTS, SLOT_BYTES, is_slot_count};
use crate::mapped::MappedRing;
use crate::region::{MAX_REGION_BYTES, Region};
use crate::ring::{CallWriter, Cursor, Reader, Writer};
use crate::tuning::{Choices, Tuning};
use crate::wire::all_zero;

/// First eight bytes of a region: "FIPSEE" and the layout version in two digits.
pub const REGION_MAGIC: u64 = u64::from_le_bytes(*b"FIPSEE01");
/// Feature: each entry of the table of queues names the CPU that the queue's worker is bound to.
pub const FEATURE_WORKER_CPU: u64 = 1;
/// Feature: each entry of the table of queues advises how to go about the rings' work.
pub const FEATURE_CHOICES: u64 = 4;
/// The features of channels, whatever they carry.
pub const FEATURES: u64 = FEATURE_WORKER_CPU | FEATURE_CHOICES;
/// Bytes of the region header; the table of queues follows.
pub const REGION_HEADER_BYTES: usize = size_of::<RegionHeader>();
/// Bytes of one entry in the table of queues.
pub const QUEUE_ENTRY_BYTES: usize = size_of::<QueueGeometry>();
/// Most requests outstanding in one queue. Each costs the daemon nothing until it is in flight; 4096 is four times
/// what NVMe drives expose per queue.
pub const MAX_DEPTH: u32 = 4096;
/// Most payload memory of one attachment.
pub const MAX_POOL_BYTES: u64 = 1 << 30;

const PAGE_BYTES: u64 = 4096;

/// What a service adds to the rules that hold for every channel.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// Feature bits that may be in force: [`FEATURES`] and those of the service.
    pub features: u64,
    /// Slots of a completion ring beyond the depth, for messages that answer no request.
    pub event_credits: u32,
    /// ATTACH flags that are not understood by every daemon of the service.
    pub flags: &'static [FlagRule],
}

/// An ATTACH flag that may be sent only with a feature in force. A client that sets the flag offers the feature.
#[derive(Clone, Copy, Debug)]
pub struct FlagRule {
    pub flag: u32,
    pub feature: u64,
    /// What a daemon without the feature cannot do; `None` if there the flag means nothing and is left out.
    pub unsupported: Option<&'static str>,
}

crate::wire_structures! {
    pub RegionHeader: 64 {
        0 magic: u64, 8 version: u32, 12 queue_count: u32, 16 region_bytes: u64, 24 features: u64, 32 pool_offset_bytes: u64,
        40 pool_bytes: u64, 48 reserved: [u64; 2],
    }
    /// Where the two rings of one queue are and how they start: an entry of the table of queues, which follows.
    #[derive(PartialEq, Eq)]
    pub QueueGeometry: 64 {
        0 request_offset_bytes: u64,
        8 completion_offset_bytes: u64,
        /// Offset of the cold words: those of the request ring, then those of the completion ring.
        16 cold_offset_bytes: u64,
        24 request_slots: u32,
        28 completion_slots: u32,
        32 request_start: u32,
        36 completion_start: u32,
        40 depth: u32,
        /// The CPU that the worker is bound to, plus 1, if it is and [`FEATURE_WORKER_CPU`] is in force. A hint, not to be relied
        /// on.
        44 worker_cpu_plus_1: u32,
        /// How the daemon's end goes about its work, and what it advises the client if [`FEATURE_CHOICES`] is in force.
        48 choices: Choices,
        /// 0.
        52 reserved: [u32; 3],
    }
}

/// Of the pool: four requests of 4 KiB.
const POPULATED_POOL_BYTES: u64 = 1 << 14;
/// In all: the rings of 16 queues of depth 256 are less than half of it, and a layout from a peer may name rings anywhere.
const MOST_POPULATED_BYTES: u64 = 1 << 21;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionLayout {
    /// Feature bits in force.
    pub features: u64,
    pub pool_offset_bytes: u64,
    /// Length of the payload pool; 0 when there is none.
    pub pool_bytes: u64,
    pub region_bytes: u64,
    pub queues: Vec<QueueGeometry>,
}

impl RegionLayout {
    /// Lay out `queue_count` queues of `depth` outstanding requests and a pool.
    ///
    /// Rings that all begin at slot 0 of page-aligned memory compete for the same cache sets, so each starts at
    /// another slot: `seed` (a channel number) chooses (3 cycles a visit instead of 11 with 1000 channels, DESIGN section 5).
    pub fn plan(profile: &Profile, queue_count: u16, depth: u32, pool_bytes: u64, seed: u32) -> Self {
        let depth = depth.clamp(1, MAX_DEPTH);
        let request_slots = depth.next_power_of_two().max(MIN_SLOTS);
        let completion_slots = (depth + profile.event_credits).next_power_of_two();
        let mut offset_bytes = table_offset_bytes(u64::from(queue_count));
        offset_bytes = offset_bytes.next_multiple_of(2 * SLOT_BYTES as u64);
        let mut queues = Vec::with_capacity(usize::from(queue_count));
        for queue in 0..u32::from(queue_count) {
            let start = seed.wrapping_mul(MAX_QUEUES.into()).wrapping_add(queue).wrapping_mul(0x9e37_79b1);
            let cold_offset_bytes = offset_bytes;
            let request_offset_bytes = cold_offset_bytes + 2 * COLD_BYTES as u64;
            let completion_offset_bytes = request_offset_bytes + ring_bytes(request_slots);
            offset_bytes = completion_offset_bytes + ring_bytes(completion_slots);
            queues.push(QueueGeometry {
                request_offset_bytes,
                completion_offset_bytes,
                cold_offset_bytes,
                request_slots,
                completion_slots,
                request_start: (start >> 16) & (request_slots - 1),
                completion_start: (start >> 8) & (completion_slots - 1),
                depth,
                worker_cpu_plus_1: 0,
                choices: Choices::NONE,
                reserved: [0; 3],
            });
        }
        let pool_offset_bytes = offset_bytes.next_multiple_of(PAGE_BYTES);
        let pool_bytes = pool_bytes.min(MAX_POOL_BYTES).next_multiple_of(PAGE_BYTES);
        Self { features: 0, pool_offset_bytes, pool_bytes, region_bytes: pool_offset_bytes + pool_bytes, queues }
    }

    /// The rings and the beginning of the pool: what both sides [populate](Region::populate) when a client attaches, so that neither its first
    /// request nor the worker that serves it waits for memory. The rest of a large pool takes memory as it is used.
    pub fn populated_bytes(&self) -> u64 {
        (self.pool_offset_bytes + self.pool_bytes.min(POPULATED_POOL_BYTES)).min(MOST_POPULATED_BYTES)
    }

    pub fn write_to(&self, region: &Region) -> Result<(), PeerFault> {
        let Self { features, pool_offset_bytes, pool_bytes, region_bytes, .. } = *self;
        let queue_count = u32::try_from(self.queues.len()).unwrap_or(u32::MAX);
        let (magic, version, reserved) = (REGION_MAGIC, 1, [0; 2]);
        let header =
            RegionHeader { magic, version, queue_count, region_bytes, features, pool_offset_bytes, pool_bytes, reserved };
        region.write(0, header.as_bytes())?;
        for (index, queue) in (0..).zip(&self.queues) {
            let choices = if features & FEATURE_CHOICES == 0 { Choices::NONE } else { queue.choices };
            region.write(table_offset_bytes(index), QueueGeometry { choices, ..*queue }.as_bytes())?;
        }
        Ok(())
    }

    /// Copy header and table out of a region that a peer made for this service, then check each value.
    pub fn read_from(profile: &Profile, region: &Region) -> Result<Self, PeerFault> {
        let mut header = RegionHeader::new_zeroed();
        region.read(0, header.as_mut_bytes())?;
        let RegionHeader { magic, version, region_bytes, features, pool_offset_bytes, pool_bytes, reserved, .. } = header;
        let queue_count = u64::from(header.queue_count);
        expect("the magic number of the region", magic, magic == REGION_MAGIC)?;
        expect("the layout version of the region", version, version == 1)?;
        expect("the queue count of the region", queue_count, (1..=u64::from(MAX_QUEUES)).contains(&queue_count))?;
        let is_whole = region_bytes == region.length_bytes() && region_bytes <= MAX_REGION_BYTES;
        expect("the length in the region header", region_bytes, is_whole)?;
        expect("the features of the region", features, features & !profile.features == 0)?;
        all_zero(offset_of!(RegionHeader, reserved), &reserved)?;
        expect("the pool's offset", pool_offset_bytes, pool_offset_bytes % PAGE_BYTES == 0)?;
        expect("the pool's length", pool_bytes, pool_bytes % PAGE_BYTES == 0 && pool_bytes <= MAX_POOL_BYTES)?;
        region.pointer("pool", pool_offset_bytes, pool_bytes)?;
        let queues = (0..queue_count).map(|queue| read_queue(profile, region, features, queue));
        let queues = queues.collect::<Result<_, _>>()?;
        Ok(Self { features, pool_offset_bytes, pool_bytes, region_bytes, queues })
    }
}

fn read_queue(profile: &Profile, region: &Region, features: u64, queue: u64) -> Result<QueueGeometry, PeerFault> {
    let mut geometry = QueueGeometry::new_zeroed();
    region.read(table_offset_bytes(queue), geometry.as_mut_bytes())?;
    geometry.check(profile)?;
    let unless = |feature: u64, word: u32| if features & feature == 0 { word } else { 0 };
    let [first, second, third] = geometry.reserved;
    let cpu = unless(FEATURE_WORKER_CPU, geometry.worker_cpu_plus_1);
    let choices = unless(FEATURE_CHOICES, geometry.choices.word());
    all_zero(offset_of!(QueueGeometry, worker_cpu_plus_1), &[cpu, choices, first, second, third])?;
    Ok(geometry)
}

const fn table_offset_bytes(queue: u64) -> u64 {
    REGION_HEADER_BYTES as u64 + queue * QUEUE_ENTRY_BYTES as u64
}

fn ring_bytes(slots: u32) -> u64 {
    u64::from(slots) * SLOT_BYTES as u64
}

impl QueueGeometry {
    /// The choices of this CPU's family, with those of the geometry.
    pub fn tuning(&self) -> Tuning {
        Tuning::default().with_choices(self.choices)
    }

    /// Are these values possible for rings of this service? Whether they fit the region is checked when they are opened.
    pub fn check(&self, profile: &Profile) -> Result<(), PeerFault> {
        let Self { request_slots, completion_slots, request_start, completion_start, depth, .. } = *self;
        expect("the slots of the request ring", request_slots, is_slot_count(request_slots))?;
        expect("the slots of the completion ring", completion_slots, is_slot_count(completion_slots))?;
        expect("the start of the request ring", request_start, request_start < request_slots)?;
        expect("the start of the completion ring", completion_start, completion_start < completion_slots)?;
        let most = request_slots.min(completion_slots.saturating_sub(profile.event_credits)).min(MAX_DEPTH);
        expect("the depth of the queue", depth, (1..=most).contains(&depth))
    }

    pub fn request_ring(&self, region: &Arc<Region>, tuning: &Tuning) -> Result<MappedRing, PeerFault> {
        let ring = MappedRing::new(region, self.request_offset_bytes, self.request_slots, self.cold_offset_bytes)?;
        Ok(ring.with_store(tuning.store))
    }

    pub fn completion_ring(&self, region: &Arc<Region>, tuning: &Tuning) -> Result<MappedRing, PeerFault> {
        let cold_offset_bytes = self.cold_offset_bytes.saturating_add(COLD_BYTES as u64);
        let ring = MappedRing::new(region, self.completion_offset_bytes, self.completion_slots, cold_offset_bytes)?;
        Ok(ring.with_store(tuning.store))
    }
}

#[derive(Debug)]
pub struct ClientQueue {
    pub requests: CallWriter<MappedRing>,
    pub completions: Reader<MappedRing>,
    pub daemon_doorbell: EventDoorbell,
    pub our_doorbell: SocketDoorbell,
    /// The CPU that the worker is bound to, if the daemon names it.
    pub worker_cpu: Option<u32>,
    pub tuning: Tuning,
}

impl ClientQueue {
    /// Open the client's end. `tuning`: as a rule that [of the geometry](QueueGeometry::tuning).
    pub fn open(
        region: &Arc<Region>,
        geometry: &QueueGeometry,
        daemon_doorbell: EventDoorbell,
        our_doorbell: SocketDoorbell,
        tuning: &Tuning,
    ) -> Result<Self, PeerFault> {
        let (requests, completions) = (geometry.request_ring(region, tuning)?, geometry.completion_ring(region, tuning)?);
        let request_start = Cursor::at_start(geometry.request_start);
        let completion_start = Cursor::at_start(geometry.completion_start);
        Ok(Self {
            requests: CallWriter::new(requests, request_start, geometry.depth, tuning),
            completions: Reader::new(completions, completion_start, tuning),
            daemon_doorbell,
            our_doorbell,
            worker_cpu: geometry.worker_cpu_plus_1.checked_sub(1),
            tuning: *tuning,
        })
    }

    /// Sleep until the daemon rings, at most until `deadline_ticks`. Only after
    /// [`Reader::arm_and_work_remains`] said no; afterwards [`woken`](Self::woken).
    pub fn sleep(&self, deadline_ticks: Option<u64>) -> io::Result<()> {
        await_readable(&self.our_doorbell, deadline_ticks.map(clock::until))
    }

    /// The sleep is over, or was given up: silence the doorbell. `false`: the daemon is gone and nothing is left to receive.
    #[must_use = "a daemon that is gone answers nothing"]
    pub fn woken(&mut self) -> bool {
        self.woken_counting(&mut DoorbellCounts::default())
    }

    /// As [`woken`](Self::woken), with the counts of wake-ups.
    #[must_use = "a daemon that is gone answers nothing"]
    pub fn woken_counting(&mut self, counts: &mut DoorbellCounts) -> bool {
        self.completions.disarm();
        let mut was_rung = false;
        let is_over = self.completions.is_over(|| !self.our_doorbell.drain_noting(&mut was_rung));
        counts.wakeups += u64::from(was_rung);
        counts.spurious += u64::from(was_rung && !self.completions.has_message());
        !is_over
    }
}

/// The daemon's end of one queue. The doorbells are others where the rings are in the memory of a guest.
#[derive(Debug)]
pub struct ServerQueue<C = SocketDoorbell, O = EventDoorbell> {
    pub requests: Reader<MappedRing>,
    pub completions: Writer<MappedRing>,
    pub our_doorbell: O,
    pub client_doorbell: C,
}

impl ServerQueue {
    /// Open the daemon's end. `tuning`: as a rule that [of the geometry](QueueGeometry::tuning).
    pub fn open(
        region: &Arc<Region>,
        geometry: &QueueGeometry,
        our_doorbell: EventDoorbell,
        client_doorbell: SocketDoorbell,
        tuning: &Tuning,
    ) -> Result<Self, PeerFault> {
        let start = (Cursor::at_start(geometry.request_start), Cursor::at_start(geometry.completion_start));
        Self::open_at(region, geometry, our_doorbell, client_doorbell, start, tuning)
    }

    /// Go on with a channel, whose geometry was [checked](QueueGeometry::check), at these positions of its request and its
    /// completion ring.
    pub fn open_at(
        region: &Arc<Region>,
        geometry: &QueueGeometry,
        our_doorbell: EventDoorbell,
        client_doorbell: SocketDoorbell,
        (request, completion): (Cursor, Cursor),
        tuning: &Tuning,
    ) -> Result<Self, PeerFault> {
        expect("the position in the request ring", request.index(), request.index() < geometry.request_slots)?;
        expect("the position in the completion ring", completion.index(), completion.index() < geometry.completion_slots)?;
        let (requests, completions) = (geometry.request_ring(region, tuning)?, geometry.completion_ring(region, tuning)?);
        Ok(Self {
            requests: Reader::new(requests, request, tuning),
            completions: Writer::new(completions, completion, tuning),
            our_doorbell,
            client_doorbell,
        })
    }
}
