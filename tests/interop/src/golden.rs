//! The examples of `docs/protocol.md` section 7, built by the Rust encoders. `c/golden.c` builds the same in C.

use std::sync::Arc;

use fipsee_block::packed::{Short, pack};
use fipsee_block::wire::{
    self, ATTACH_READ_ONLY, BlockInfo, FLAG_FUA, FLAG_UNMAP, LISTED_READ_ONLY, ListedInfo, Operation, SERVICE_BLOCK, Segment,
    Status,
};
use fipsee_call::{SERVICE_CALLS, ServiceInfo};
use fipsee_ring::Message;
use fipsee_ring::channel::{FEATURE_CHOICES, FEATURE_WORKER_CPU, QueueGeometry, RegionLayout};
use fipsee_ring::control::{ACCESS_READ, ACCESS_WRITE, Control, Listed, Page, Refusal, RefusalCode, Wanted};
use fipsee_ring::cpu::StoreVariant;
use fipsee_ring::mapped::MappedRing;
use fipsee_ring::region::Region;
use fipsee_ring::ring::{Cursor, Reader, Writer};
use fipsee_ring::tuning::Tuning;
use fipsee_ring::tuning::{Choices, Ownership, Touch};

use crate::layout::region_bytes;
use crate::messages::completions;

/// Names and bytes.
pub type Examples = Vec<(String, Vec<u8>)>;

const REGION_BYTES: u64 = 1_064_960;
const INFO: BlockInfo = BlockInfo {
    first_sector: 0,
    sector_count: 2_097_152,
    block_bytes: 4096,
    optimal_bytes: 131_072,
    max_transfer_bytes: 16_777_216,
    max_range_sectors: 8_388_608,
    max_segments: 256,
    capabilities: 31,
    identity: [0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f],
};

fn listed(name: &str, info: ListedInfo) -> Listed {
    Listed { name: name.to_owned(), service_info: info.to_bytes() }
}

fn list() -> Page {
    let disk1 = ListedInfo { sector_count: 2_097_152, block_bytes: 4096, flags: 0 };
    let disk2 = ListedInfo { sector_count: 2048, block_bytes: 512, flags: LISTED_READ_ONLY };
    Page { entries: vec![listed("disk1", disk1), listed("disk2", disk2)], more: false }
}

pub(crate) fn control() -> Vec<(&'static str, Vec<u8>)> {
    [
        ("hello", Control::Hello { version_min: 1, version_max: 1, features: FEATURE_WORKER_CPU }),
        (
            "welcome",
            Control::Welcome {
                version: 1,
                max_queues: 64,
                max_depth: 4096,
                features: FEATURE_WORKER_CPU,
                max_pool_bytes: 1 << 30,
            },
        ),
        (
            "attach",
            Control::Attach(Wanted {
                service: SERVICE_BLOCK,
                queue_count: 2,
                depth: 64,
                flags: ATTACH_READ_ONLY,
                pool_bytes: 1 << 20,
                name: "disk0".to_owned(),
            }),
        ),
        (
            "attach-calls",
            Control::Attach(Wanted {
                service: SERVICE_CALLS,
                queue_count: 1,
                depth: 64,
                flags: 0,
                pool_bytes: 0,
                name: "org.example.counter/1".to_owned(),
            }),
        ),
        ("attached", Control::Attached { queue_count: 1, region_bytes: REGION_BYTES, service_info: INFO.to_bytes() }),
        ("refused", Control::Refused(Refusal { code: RefusalCode::UnknownName, text: "no export 'a'".to_owned() })),
        ("register", Control::Register { region: 1, access: ACCESS_READ | ACCESS_WRITE, length_bytes: 1 << 21 }),
        ("registered", Control::Registered { region: 1 }),
        ("unregister", Control::Unregister { region: 1 }),
        ("unregistered", Control::Unregistered { region: 1 }),
        ("detach", Control::Detach),
        ("detached", Control::Detached),
        ("list", Control::List { service: SERVICE_BLOCK, after: "disk0".to_owned() }),
        ("listed", Control::Listed(list())),
    ]
    .into_iter()
    .map(|(name, message)| (name, message.encode()))
    .collect()
}

fn region() -> Vec<(&'static str, Vec<u8>)> {
    let queue = QueueGeometry {
        request_offset_bytes: 384,
        completion_offset_bytes: 4480,
        cold_offset_bytes: 128,
        request_slots: 64,
        completion_slots: 128,
        request_start: 5,
        completion_start: 9,
        depth: 64,
        worker_cpu_plus_1: 4,
        choices: Choices::NONE
            .with_ownership(Ownership::LockedAhead)
            .with_touch(Touch::Always)
            .with_store(StoreVariant::Split32)
            .with_burst_prefetch(false)
            .with_take(1)
            .as_measured(),
        reserved: [0; 3],
    };
    let layout = RegionLayout {
        features: FEATURE_WORKER_CPU | FEATURE_CHOICES,
        pool_offset_bytes: 16_384,
        pool_bytes: 1 << 20,
        region_bytes: REGION_BYTES,
        queues: vec![queue],
    };
    let bytes = region_bytes(&layout);
    vec![("region-header", bytes[..64].to_vec()), ("queue-entry", bytes[64..].to_vec())]
}

fn segment(offset_sectors: u32, length_sectors: u16, region: u16) -> Segment {
    Segment { offset_sectors, length_sectors, region }
}

fn read_one() -> Message {
    wire::request_one_segment(Operation::Read, 0, 7, 8, segment(16, 8, 0))
}

/// A request of 8 sectors right behind those before it, on the disk and in memory.
fn short(index: u32, is_write: bool, tag: u16) -> Short {
    Short::new(is_write, tag, u64::from(2048 + 8 * index), segment(16 + 8 * index, 8, 1))
}

fn messages() -> Vec<(&'static str, Message)> {
    let five = [segment(0, 1, 0), segment(2, 1, 0), segment(8, 8, 1), segment(0xffff_fff0, 8, 2), segment(64, 0xffff, 63)];
    let mut fourteen: Vec<(u16, Status)> = (0..).zip(Status::ALL).collect();
    fourteen.extend([(0x1234, Status::Ok), (0xffff, Status::Ok)]);
    vec![
        ("request-read", read_one()),
        ("request-write-fua", wire::request_inline(Operation::Write, FLAG_FUA, 0x1234, 0x12_3456_789a, &five)),
        ("request-read-indirect", wire::request_indirect(Operation::Read, 0, 8, 4096, segment(32, 1, 0), 3)),
        ("request-flush", wire::request_flush(9)),
        ("request-discard", wire::request_range(Operation::Discard, 0, 10, 2048, 65_536)),
        ("request-write-zeroes", wire::request_range(Operation::WriteZeroes, FLAG_FUA | FLAG_UNMAP, 11, 2048, 16)),
        ("request-get-info", wire::request_one_segment(Operation::GetInfo, 0, 12, 0, segment(48, 1, 0))),
        ("request-ack-event", wire::request_ack_event(13, wire::KIND_RESIZE)),
        ("packed-two", pack([&short(0, false, 14), &short(1, true, 15)])),
        ("packed-three", pack([&short(0, true, 0x1234), &short(1, true, 0xffff), &short(2, false, 16)])),
        ("completion-one", completions(&[(7, Status::Ok)])),
        ("completion-fourteen", completions(&fourteen)),
        ("event-resize", wire::event(wire::KIND_RESIZE, 4_194_304)),
        ("event-detach", wire::event(wire::KIND_DETACH, 0)),
    ]
}

/// The read request in slot 1 of a ring of 2, published by a writer in its second lap.
fn slot() -> Vec<u8> {
    let region = Arc::new(Region::create("interop-golden", 4096).expect("memory for a region"));
    let ring = MappedRing::new(&region, 128, 2, 0).expect("the ring fits");
    Writer::new(ring, Cursor::at(1, 2), &Tuning::default()).publish(&read_one());
    let mut bytes = vec![0; 64];
    region.read(192, &mut bytes).expect("within the region");
    bytes
}

/// What a writer leaves in a ring of 2 slots, and a reader finds, when the second message is the first of another round of
/// stamps.
fn lap() -> Vec<u8> {
    let region = Arc::new(Region::create("interop-golden", 4096).expect("memory for a region"));
    let ring = || MappedRing::new(&region, 128, 2, 0).expect("the ring fits");
    let (mut writer, mut reader) = (
        Writer::new(ring(), Cursor::at(1, u32::MAX), &Tuning::default()),
        Reader::new(ring(), Cursor::at(1, u32::MAX), &Tuning::default()),
    );
    let (mut message, sent) = (Message::ZERO, [read_one(), wire::request_flush(9)]);
    writer.publish_all(&sent);
    for sent in sent {
        assert!(reader.receive(&mut message) && message.to_bytes()[..60] == sent.to_bytes()[..60], "the reader crosses as well");
    }
    let mut bytes = vec![0; 128];
    region.read(128, &mut bytes).expect("within the region");
    bytes
}

/// The cold words of a stream.
fn cold_words() -> Vec<u8> {
    let region = Arc::new(Region::create("interop-golden", 4096).expect("memory for a region"));
    let ring = || MappedRing::new(&region, 1024, 4, 0).expect("the ring fits");
    let (mut writer, mut reader) = (
        Writer::new(ring(), Cursor::at_start(0), &Tuning::default()),
        Reader::new(ring(), Cursor::at_start(0), &Tuning::default()),
    );
    let mut message = Message::ZERO;
    writer.publish_all(&[Message::ZERO; 3]);
    assert!((0..3).all(|_| reader.receive(&mut message)), "what was published is there");
    reader.release_all();
    reader.memory().ask_hold(250);
    reader.memory().ask_choices(Choices::NONE.with_ownership(Ownership::LockedAhead).with_touch(Touch::Always));
    assert!(!reader.arm_and_work_remains(), "nothing more is there");
    let mut bytes = vec![0; 128];
    region.read(0, &mut bytes).expect("within the region");
    bytes
}

/// Every example, sorted by name.
pub fn examples() -> Examples {
    let mut examples: Examples = Vec::new();
    for (name, bytes) in control().into_iter().chain(region()) {
        examples.push((name.to_owned(), bytes));
    }
    for (name, message) in messages() {
        examples.push((name.to_owned(), message.to_bytes()[..60].to_vec()));
    }
    let table = [segment(40, 8, 0), segment(0, 256, 1), segment(512, 8, 1)];
    examples.push(("indirect-table".to_owned(), table.iter().flat_map(|entry| entry.to_word().to_le_bytes()).collect()));
    examples.push(("block-info".to_owned(), INFO.to_bytes().to_vec()));
    let calls = ServiceInfo { request_bytes: 16, reply_bytes: 60, request_payload_bytes: 4096, reply_payload_bytes: 64 };
    examples.push(("call-info".to_owned(), calls.to_bytes().to_vec()));
    examples.push(("slot".to_owned(), slot()));
    examples.push(("lap".to_owned(), lap()));
    examples.push(("cold-words".to_owned(), cold_words()));
    examples.extend(crate::vm::examples());
    examples.extend(crate::net::examples());
    examples.sort();
    examples
}
