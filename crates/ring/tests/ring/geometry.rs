//! The geometry of a region: one side reads what the other plans, and hostile values never lead outside.

use std::sync::Arc;

use crate::common::{assert_is_numbered, numbered};
use fipsee_ring::channel::{
    ClientQueue, FEATURE_WORKER_CPU, FEATURES, MAX_DEPTH, MAX_POOL_BYTES, Profile, QUEUE_ENTRY_BYTES, QueueGeometry,
    REGION_HEADER_BYTES, RegionLayout, ServerQueue,
};
use fipsee_ring::control::MAX_QUEUES;
use fipsee_ring::doorbell::{EventDoorbell, SocketDoorbell};
use fipsee_ring::layout::{COLD_BYTES, MAX_SLOTS, SLOT_BYTES};
use fipsee_ring::region::Region;
use fipsee_ring::ring::RingMemory;
use fipsee_ring::{Message, Ordering, PeerFault};

/// A service with two events and a feature of its own.
const PROFILE: Profile = Profile { features: FEATURES | 2, event_credits: 2, flags: &[] };

fn region_of(layout: &RegionLayout) -> Arc<Region> {
    let region = Arc::new(Region::create("fipsee-test", layout.region_bytes).expect("memory for the layout"));
    layout.write_to(&region).expect("the layout fits its region");
    region
}

fn daemon_end(region: &Arc<Region>, geometry: &QueueGeometry) -> Result<ServerQueue, PeerFault> {
    let (doorbell, _) = SocketDoorbell::pair().expect("a socket pair");
    ServerQueue::open(region, geometry, EventDoorbell::new().expect("an eventfd"), doorbell, &geometry.tuning())
}

fn client_end(region: &Arc<Region>, geometry: &QueueGeometry) -> Result<ClientQueue, PeerFault> {
    let (_, doorbell) = SocketDoorbell::pair().expect("a socket pair");
    ClientQueue::open(region, geometry, EventDoorbell::new().expect("an eventfd"), doorbell, &geometry.tuning())
}

/// The parts of a layout, in order: none overlaps the next, all are aligned and inside.
fn assert_parts_are_apart(layout: &RegionLayout) {
    let mut end = (REGION_HEADER_BYTES + layout.queues.len() * QUEUE_ENTRY_BYTES) as u64;
    let line = SLOT_BYTES as u64;
    for queue in &layout.queues {
        for (offset, length) in [
            (queue.cold_offset_bytes, 2 * COLD_BYTES as u64),
            (queue.request_offset_bytes, u64::from(queue.request_slots) * line),
            (queue.completion_offset_bytes, u64::from(queue.completion_slots) * line),
        ] {
            assert!(offset >= end && offset.is_multiple_of(line), "{offset} after {end} in {queue:?}");
            end = offset + length;
        }
        assert!(queue.request_slots >= queue.depth && queue.completion_slots >= queue.depth + PROFILE.event_credits, "{queue:?}");
        assert!(queue.request_start < queue.request_slots && queue.completion_start < queue.completion_slots, "{queue:?}");
    }
    assert!(layout.pool_offset_bytes >= end, "the pool overlaps the rings");
    assert_eq!(layout.region_bytes, layout.pool_offset_bytes + layout.pool_bytes);
}

#[test]
fn every_depth_and_every_queue_count_is_read_as_planned() {
    let depths = (1..=MAX_DEPTH).map(|depth| (1, depth));
    let counts = (1..=MAX_QUEUES).flat_map(|count| [1, 2, 3, 64, 128, MAX_DEPTH].map(|depth| (count, depth)));
    for (queue_count, depth) in depths.chain(counts) {
        let layout =
            RegionLayout::plan(&PROFILE, queue_count, depth, u64::from(depth) * 512, u32::from(queue_count) * 77 + depth);
        assert_parts_are_apart(&layout);
        assert_eq!(layout.queues.len(), usize::from(queue_count));
        assert!(layout.queues.iter().all(|queue| queue.depth == depth));
        assert_eq!(RegionLayout::read_from(&PROFILE, &region_of(&layout)), Ok(layout), "{queue_count} queues of depth {depth}");
    }
}

#[test]
fn requests_beyond_the_limits_are_cut_to_them() {
    for (depth, planned) in [(0, 1), (MAX_DEPTH + 1, MAX_DEPTH), (u32::MAX, MAX_DEPTH)] {
        let layout = RegionLayout::plan(&PROFILE, 1, depth, u64::MAX, u32::MAX);
        assert_eq!((layout.queues[0].depth, layout.pool_bytes), (planned, MAX_POOL_BYTES));
        assert_parts_are_apart(&layout);
    }
}

#[test]
fn channels_begin_at_different_slots() {
    let start = |seed| RegionLayout::plan(&PROFILE, 1, 64, 0, seed).queues[0].request_start;
    let mut starts: Vec<u32> = (0..64).map(start).collect();
    starts.sort_unstable();
    starts.dedup();
    assert!(starts.len() > 32, "64 channels share {} first slots", starts.len());
}

#[test]
fn layout_larger_than_its_region_is_not_written() {
    let layout = RegionLayout::plan(&PROFILE, 64, 1, 0, 0);
    let small = Region::create("fipsee-test", 4096).expect("a page");
    assert!(matches!(layout.write_to(&small), Err(PeerFault::OutOfRegion { .. })));
}

#[test]
fn message_goes_both_ways_over_a_planned_queue() {
    let layout = RegionLayout::plan(&PROFILE, 3, 5, 8192, 99);
    let region = region_of(&layout);
    for (number, geometry) in (0..).zip(&layout.queues) {
        let mut client = client_end(&region, geometry).expect("the client's end");
        let mut daemon = daemon_end(&region, geometry).expect("the daemon's end");
        let mut message = Message::ZERO;
        client.requests.publish_all(&[numbered(number); 5]).expect("the depth");
        for _ in 0..5 {
            assert!(daemon.requests.receive(&mut message));
            assert_is_numbered(&message, number);
        }
        assert!(!daemon.requests.receive(&mut message));
        daemon.completions.publish(&numbered(!number));
        assert!(client.completions.receive(&mut message));
        assert_is_numbered(&message, !number);
    }
}

/// Use every word of both rings that a queue opened from hostile geometry can reach. Outside the region this faults.
fn touch_all(region: &Arc<Region>, layout: &RegionLayout) {
    for geometry in &layout.queues {
        let Ok(queue) = daemon_end(region, geometry) else { continue };
        for ring in [queue.requests.memory(), queue.completions.memory()] {
            for index in [0, ring.slot_count() / 2, ring.slot_count() - 1] {
                let stamp = ring.stamp(index);
                stamp.store(stamp.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            ring.released().store(ring.asleep().load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

/// Bytes of header and table of `queue_count` queues.
const fn header_bytes(queue_count: usize) -> usize {
    REGION_HEADER_BYTES + queue_count * QUEUE_ENTRY_BYTES
}

#[test]
fn boundary_values_in_any_field_lead_nowhere_outside() {
    let layout = RegionLayout::plan(&PROFILE, 2, 4, 4096, 1);
    let region = region_of(&layout);
    let mut good = [0; header_bytes(2)];
    region.read(0, &mut good).expect("the header");
    let length = region.length_bytes();
    let values = [0, 1, 2, 3, 63, 64, 65, 4095, 4096, 4097, length - 64, length - 1, length, length + 1, 1 << 31, 1 << 41]
        .into_iter()
        .chain([u64::from(MAX_SLOTS), u64::from(MAX_SLOTS) * 2, u64::from(u32::MAX), 1 << 32, 1 << 63, u64::MAX - 63, u64::MAX]);
    for value in values {
        for width in [4, 8] {
            for offset in (0..good.len()).step_by(width) {
                let mut bad = good;
                bad[offset..offset + width].copy_from_slice(&value.to_le_bytes()[..width]);
                region.write(0, &bad).expect("the header");
                if let Ok(accepted) = RegionLayout::read_from(&PROFILE, &region) {
                    touch_all(&region, &accepted);
                    let pool_end = accepted.pool_offset_bytes.checked_add(accepted.pool_bytes);
                    assert!(pool_end.is_some_and(|end| end <= length), "{value:#x} at {offset}: {accepted:?}");
                }
                region.write(0, &good).expect("the header");
            }
        }
    }
}

#[test]
fn every_reserved_field_is_refused_when_set() {
    let layout = RegionLayout::plan(&PROFILE, 1, 4, 4096, 1);
    let region = region_of(&layout);
    let reserved_in_table = (44..64).map(|offset| REGION_HEADER_BYTES + offset);
    for offset in (48..64).chain(reserved_in_table) {
        let at = u64::try_from(offset).expect("small");
        region.write(at, &[1]).expect("the header");
        assert!(matches!(RegionLayout::read_from(&PROFILE, &region), Err(PeerFault::ReservedSet { .. })), "byte {offset}");
        region.write(at, &[0]).expect("the header");
    }
    assert_eq!(RegionLayout::read_from(&PROFILE, &region), Ok(layout));
}

#[test]
fn cpu_of_a_worker_is_sent_only_where_that_was_agreed() {
    let mut layout = RegionLayout::plan(&PROFILE, 2, 4, 4096, 1);
    layout.features = FEATURE_WORKER_CPU;
    layout.queues[1].worker_cpu_plus_1 = 512;
    let region = region_of(&layout);
    assert_eq!(RegionLayout::read_from(&PROFILE, &region), Ok(layout.clone()), "one queue with a CPU, one without");
    layout.features = 0;
    layout.write_to(&region).expect("it fits");
    let refused = RegionLayout::read_from(&PROFILE, &region);
    assert_eq!(
        refused,
        Err(PeerFault::ReservedSet { offset_bytes: 44, value: 512 }),
        "without the feature the field is reserved"
    );
    layout.features = FEATURE_WORKER_CPU | 1 << 63;
    layout.write_to(&region).expect("it fits");
    assert!(RegionLayout::read_from(&PROFILE, &region).is_err(), "an unknown feature");
}
