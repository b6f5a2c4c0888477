//! What a daemon writes at the head of a region, and its description of a disk: what clients must validate.

use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use fipsee_block::wire::{BlockInfo, PROFILE};
use fipsee_interop::layout::region_bytes;
use fipsee_interop::{ffi, golden};
use fipsee_ring::Message;
use fipsee_ring::channel::{FEATURE_CHOICES, QueueGeometry, RegionLayout};
use fipsee_ring::mapped::MappedRing;
use fipsee_ring::region::Region;
use fipsee_ring::ring::{Cursor, Reader};
use fipsee_ring::tuning::{Choices, Tuning};

use crate::{fio, take};

/// Header and longest table.
const HEAD_BYTES: usize = 64 * 65;
/// The region ends behind two pages: rings of a few slots fit, and what leaves it is a fault at once.
const REGION_BYTES: u64 = 8192;

/// One region for all inputs: making one costs more than reading it.
static REGION: LazyLock<Mutex<Arc<Region>>> =
    LazyLock::new(|| Mutex::new(Arc::new(Region::create("fuzz-region", REGION_BYTES).expect("memory"))));

pub(crate) fn one(bytes: &[u8]) {
    let region = REGION.lock().unwrap_or_else(PoisonError::into_inner);
    let mut head = vec![0; HEAD_BYTES];
    let count = bytes.len().min(HEAD_BYTES);
    head[..count].copy_from_slice(&bytes[..count]);
    region.write(0, &head).expect("within the region");
    let rust = RegionLayout::read_from(&PROFILE, &region);
    assert_eq!(ffi::region_is_valid(&head, REGION_BYTES), rust.is_ok(), "Rust says {rust:?}: {:02x?}", &head[..192]);
    let queues = rust.as_ref().map_or(&[][..], |layout| &layout.queues);
    let rings: Vec<Option<Ends>> = queues.iter().map(|queue| open(&region, queue)).collect();
    // The engine asks for one queue and, here, for one feature.
    let expected = rust.as_ref().is_ok_and(|layout| layout.features & !FEATURE_CHOICES == 0) && matches!(rings[..], [Some(_)]);
    // SAFETY: the region is mapped and is longer than header and entry.
    let engine = unsafe { fio::takes_region(region.base().as_ptr(), REGION_BYTES) };
    assert_eq!(engine, expected, "Rust says {rust:?}: {:02x?}", &head[..128]);
    for (requests, completions) in rings.into_iter().flatten() {
        touch(requests);
        touch(completions);
    }
    if let Ok(layout) = rust {
        layout.write_to(&region).expect("it was read from there");
        assert_eq!(RegionLayout::read_from(&PROFILE, &region), Ok(layout), "what we write is what we meant");
    }
}

type Ends = ((MappedRing, u32), (MappedRing, u32));

fn open(region: &Arc<Region>, queue: &QueueGeometry) -> Option<Ends> {
    let tuning = Tuning::default();
    let (requests, completions) = (queue.request_ring(region, &tuning).ok()?, queue.completion_ring(region, &tuning).ok()?);
    Some(((requests, queue.request_slots), (completions, queue.completion_slots)))
}

/// Use both ends of a ring and its cold words: what is outside the region is a fault.
fn touch((ring, slots): (MappedRing, u32)) {
    let mut message = Message::ZERO;
    ring.ask_hold(ring.asked_hold());
    ring.ask_choices(Choices::from_word(ring.asked_choices()));
    let mut reader = Reader::new(ring, Cursor::at(slots - 1, 1), &Tuning::default());
    for _ in 0..2 {
        let _ = reader.receive(&mut message);
    }
    let _ = reader.arm_and_work_remains();
    reader.disarm();
}

/// A disk's description: three implementations take the same.
pub(crate) fn one_info(bytes: &[u8]) {
    let bytes: [u8; 64] = take(&mut &*bytes);
    let rust = BlockInfo::from_bytes(&bytes);
    assert_eq!(ffi::block_info_is_valid(&bytes), rust.is_ok(), "Rust says {rust:?}: {bytes:02x?}");
    assert_eq!(fio::takes_info(&bytes), rust.is_ok(), "Rust says {rust:?}: {bytes:02x?}");
    if let Ok(info) = rust {
        assert_eq!(info.to_bytes(), bytes, "what we send is what we meant");
        assert!(info.size_bytes() >= 512);
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let plans = [(1, 4, 4096), (2, 2, 0), (1, 16, 0)];
    let plan = |(queues, depth, pool_bytes)| {
        let mut layout = RegionLayout::plan(&PROFILE, queues, depth, pool_bytes, 3);
        layout.region_bytes = REGION_BYTES;
        // With advice, so that it can be made invalid.
        layout.features = FEATURE_CHOICES;
        layout.queues.iter_mut().for_each(|queue| queue.choices = Choices::from_word(0x0011_1232));
        region_bytes(&layout)
    };
    plans.into_iter().map(plan).collect()
}

pub(crate) fn info_seeds() -> Vec<Vec<u8>> {
    golden::examples().into_iter().filter(|(name, _)| name == "block-info").map(|(_, bytes)| bytes).collect()
}
