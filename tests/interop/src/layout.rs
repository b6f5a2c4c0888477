//! What `fipsee.h` fixes, derived from the Rust code: constants by their values, fields from the types that describe structures.

use std::mem::offset_of;
use std::ops::Range;

use fipsee_block::packed;
use fipsee_block::wire::{self, BlockInfo, Operation, Segment, Status};
use fipsee_call::{PAYLOAD_UNIT_BYTES, ServiceInfo};
use fipsee_ring::channel::{self, RegionLayout};
use fipsee_ring::control::{self, RefusalCode, packets};
use fipsee_ring::cpu::StoreVariant;
use fipsee_ring::layout::ColdWords;
use fipsee_ring::region::{self, Region};
use fipsee_ring::tuning::{Choices, Ownership, Touch};
use fipsee_ring::wire::Structure;
use fipsee_ring::{Message, layout, seqpacket};

use crate::control::refusal_number;
use crate::golden;

/// Names and values.
pub type Table = Vec<(String, u64)>;

fn number(value: usize) -> u64 {
    u64::try_from(value).expect("sizes are small")
}

fn put(table: &mut Table, name: &str, field: Range<usize>) {
    table.push((format!("{name}.offset"), number(field.start)));
    table.push((format!("{name}.bytes"), number(field.len())));
}

fn constants(table: &mut Table) {
    let plain = [
        ("SLOT_BYTES", number(layout::SLOT_BYTES)),
        ("PAYLOAD_BYTES", number(layout::PAYLOAD_BYTES)),
        ("STAMP_OFFSET_BYTES", number(layout::STAMP_OFFSET_BYTES)),
        ("MIN_SLOTS", layout::MIN_SLOTS.into()),
        ("MAX_SLOTS", layout::MAX_SLOTS.into()),
        ("COLD_BYTES", number(layout::COLD_BYTES)),
        ("COLD_RELEASED_OFFSET_BYTES", number(offset_of!(ColdWords, released))),
        ("COLD_ASLEEP_OFFSET_BYTES", number(offset_of!(ColdWords, asleep))),
        ("COLD_HOLD_OFFSET_BYTES", number(offset_of!(ColdWords, hold))),
        ("COLD_CHOICES_OFFSET_BYTES", number(offset_of!(ColdWords, choices))),
        ("MAX_HOLD_NS", fipsee_ring::pace::MAX_HOLD_NS.into()),
        ("REGION_MAGIC", channel::REGION_MAGIC),
        ("REGION_HEADER_BYTES", number(channel::REGION_HEADER_BYTES)),
        ("QUEUE_ENTRY_BYTES", number(channel::QUEUE_ENTRY_BYTES)),
        ("MAX_DEPTH", channel::MAX_DEPTH.into()),
        ("EVENT_CREDITS", wire::EVENT_CREDITS.into()),
        ("MAX_POOL_BYTES", channel::MAX_POOL_BYTES),
        ("MAX_REGION_BYTES", region::MAX_REGION_BYTES),
        ("CONTROL_MAGIC", control::MAGIC.into()),
        ("VERSION", control::VERSION.into()),
        ("MAX_MESSAGE_BYTES", number(control::MAX_MESSAGE_BYTES)),
        ("MAX_DESCRIPTORS", number(control::MAX_DESCRIPTORS)),
        ("MAX_QUEUES", control::MAX_QUEUES.into()),
        ("MAX_REGIONS", control::MAX_REGIONS.into()),
        ("MAX_NAME_BYTES", number(control::MAX_NAME_BYTES)),
        ("MAX_REFUSAL_BYTES", number(control::MAX_REFUSAL_BYTES)),
        ("SERVICE_INFO_BYTES", number(control::SERVICE_INFO_BYTES)),
        ("MAX_SOCKET_PATH_BYTES", number(seqpacket::MAX_SOCKET_PATH_BYTES)),
        ("SERVICE_BLOCK", wire::SERVICE_BLOCK.into()),
        ("SERVICE_CALLS", fipsee_call::SERVICE_CALLS.into()),
        ("CALL_PAYLOAD_UNIT_BYTES", PAYLOAD_UNIT_BYTES.into()),
        ("ATTACH_READ_ONLY", wire::ATTACH_READ_ONLY.into()),
        ("ATTACH_EXCLUSIVE", wire::ATTACH_EXCLUSIVE.into()),
        ("ATTACH_SOLE_WRITER", wire::ATTACH_SOLE_WRITER.into()),
        ("ATTACH_IGNORE_CLAIM", wire::ATTACH_IGNORE_CLAIM.into()),
        ("ACCESS_READ", control::ACCESS_READ.into()),
        ("ACCESS_WRITE", control::ACCESS_WRITE.into()),
        ("SECTOR_BYTES", wire::SECTOR_BYTES),
        ("SECTOR_SHIFT", wire::SECTOR_SHIFT.into()),
        ("MAX_INLINE_SEGMENTS", number(wire::MAX_INLINE_SEGMENTS)),
        ("SEGMENTS_INDIRECT", wire::SEGMENTS_INDIRECT.into()),
        ("MAX_INDIRECT_ENTRIES", number(wire::MAX_INDIRECT_ENTRIES)),
        ("MAX_TRANSFER_BYTES", wire::MAX_TRANSFER_BYTES),
        ("MAX_PACKED", number(wire::MAX_PACKED)),
        ("FLAG_FUA", wire::FLAG_FUA.into()),
        ("FLAG_UNMAP", wire::FLAG_UNMAP.into()),
        ("KIND_COMPLETIONS", wire::KIND_COMPLETIONS.into()),
        ("KIND_RESIZE", wire::KIND_RESIZE.into()),
        ("KIND_DETACH", wire::KIND_DETACH.into()),
        ("CAPABILITY_WRITE", wire::CAPABILITY_WRITE.into()),
        ("CAPABILITY_FLUSH", wire::CAPABILITY_FLUSH.into()),
        ("CAPABILITY_FUA", wire::CAPABILITY_FUA.into()),
        ("CAPABILITY_DISCARD", wire::CAPABILITY_DISCARD.into()),
        ("CAPABILITY_WRITE_ZEROES", wire::CAPABILITY_WRITE_ZEROES.into()),
        ("CAPABILITY_PACKED", wire::CAPABILITY_PACKED.into()),
        ("PACKED", packed::PACKED.into()),
        ("MAX_PACKED_REQUESTS", number(packed::MAX_PACKED_REQUESTS)),
        ("STATUS_COUNT", number(Status::ALL.len())),
    ];
    table.extend(plain.map(|(name, value)| (name.to_owned(), value)));
    for operation in Operation::ALL {
        table.push((shout(&format!("{operation:?}")), operation.to_wire().into()));
    }
    for status in Status::ALL {
        table.push((format!("STATUS_{}", shout(&format!("{status:?}"))), status.to_wire().into()));
    }
}

/// `WriteZeroes` as `WRITE_ZEROES`.
pub(crate) fn shout(name: &str) -> String {
    let mut out = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.extend(letter.to_uppercase());
    }
    out
}

/// Each feature and each choice, as a word that has no other.
fn choices(table: &mut Table) {
    let features = [
        ("FEATURE_WORKER_CPU", channel::FEATURE_WORKER_CPU),
        ("FEATURE_SOLE_WRITER", wire::FEATURE_SOLE_WRITER),
        ("FEATURE_CHOICES", channel::FEATURE_CHOICES),
        ("FEATURE_LIST", control::FEATURE_LIST),
        ("MAX_LISTED", number(control::MAX_LISTED)),
        ("LISTED_INFO_BYTES", number(control::LISTED_INFO_BYTES)),
        ("LISTED_READ_ONLY", wire::LISTED_READ_ONLY.into()),
        ("FEATURES", wire::FEATURES),
    ];
    table.extend(features.map(|(name, value)| (name.to_owned(), value)));
    let none = Choices::NONE;
    let words = [
        ("OWNERSHIP_PREFETCH_NEXT", none.with_ownership(Ownership::PrefetchNext)),
        ("OWNERSHIP_LOCKED_AHEAD", none.with_ownership(Ownership::LockedAhead)),
        ("OWNERSHIP_NOT_ASKED", none.with_ownership(Ownership::NotAsked)),
        ("TOUCH_NEVER", none.with_touch(Touch::Never)),
        ("TOUCH_RUNS", none.with_touch(Touch::Runs)),
        ("TOUCH_ALWAYS", none.with_touch(Touch::Always)),
        ("STORES_WIDE16", none.with_store(StoreVariant::Wide16)),
        ("STORES_SPLIT32", none.with_store(StoreVariant::Split32)),
        ("STORES_WIDE64", none.with_store(StoreVariant::Wide64)),
        ("BURST_PREFETCH_OFF", none.with_burst_prefetch(false)),
        ("BURST_PREFETCH_ON", none.with_burst_prefetch(true)),
        ("TAKE_SINGLY", none.with_take(1)),
        ("TAKE_SIXTEEN", none.with_take(16)),
        ("CHOICES_MEASURED", none.as_measured()),
    ];
    table.extend(words.map(|(name, choices)| (name.to_owned(), choices.word().into())));
}

fn u16_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(bytes[at]) | u64::from(bytes[at + 1]) << 8
}

fn control_numbers(table: &mut Table) {
    use RefusalCode as Code;
    let every = [
        Code::Version,
        Code::Malformed,
        Code::UnknownName,
        Code::NotAllowed,
        Code::Busy,
        Code::Limit,
        Code::BadMemory,
        Code::ShuttingDown,
    ];
    for code in every {
        table.push((format!("REFUSAL_{}", shout(&format!("{code:?}"))), refusal_number(code).into()));
    }
    // Each kind is an example, one of them twice.
    for (name, bytes) in golden::control().into_iter().filter(|(name, _)| *name != "attach-calls") {
        table.push((name.to_uppercase(), u16_at(&bytes, 4)));
    }
}

/// The fields of a type that describes a structure; on the wire it may have bytes behind it.
pub(crate) fn fields<T: Structure>(table: &mut Table, name: &str, length_bytes: usize) {
    table.push((format!("{name}.bytes"), number(length_bytes)));
    for (field, offset, bytes) in T::FIELDS {
        put(table, &format!("{name}.{field}"), *offset..*offset + *bytes);
    }
}

pub(crate) fn structure<T: Structure>(table: &mut Table, name: &str) {
    fields::<T>(table, name, size_of::<T>());
}

/// The same of a type whose first field is a structure, `First`, where that of C has the fields themselves.
fn flattened<T: Structure, First: Structure>(table: &mut Table, name: &str) {
    fields::<First>(table, name, size_of::<T>());
    let (_, first, length) = T::FIELDS[0];
    assert_eq!((first, length), (0, size_of::<First>()));
    for (field, offset, bytes) in &T::FIELDS[1..] {
        put(table, &format!("{name}.{field}"), *offset..*offset + *bytes);
    }
}

fn control_structures(table: &mut Table) {
    structure::<packets::ControlHeader>(table, "control_header");
    structure::<packets::Hello>(table, "hello");
    structure::<packets::Welcome>(table, "welcome");
    structure::<packets::Attach>(table, "attach");
    structure::<packets::Attached>(table, "attached");
    structure::<packets::Register>(table, "register");
    structure::<packets::RegionId>(table, "region_id");
    structure::<packets::List>(table, "list");
    structure::<packets::ListedEntry>(table, "listed_entry");
    structure::<packets::Listed>(table, "listed");
    let text = size_of::<packets::Refused>();
    fields::<packets::Refused>(table, "refused", text + control::MAX_REFUSAL_BYTES);
    put(table, "refused.text", text..text + control::MAX_REFUSAL_BYTES);
}

/// Header and table of `layout` as the Rust code writes them.
pub fn region_bytes(layout: &RegionLayout) -> Vec<u8> {
    let region = Region::create("interop-layout", 8192).expect("memory for a region");
    layout.write_to(&region).expect("the layout fits");
    let mut bytes = vec![0; 64 * (1 + layout.queues.len())];
    region.read(0, &mut bytes).expect("within the region");
    bytes
}

fn region_structures(table: &mut Table) {
    structure::<channel::RegionHeader>(table, "region_header");
    structure::<channel::QueueGeometry>(table, "queue_entry");
    table.push(("slot.bytes".to_owned(), number(size_of::<Message>())));
    put(table, "slot.stamp", layout::STAMP_OFFSET_BYTES..layout::SLOT_BYTES);
    structure::<ColdWords>(table, "cold");
}

fn block_structures(table: &mut Table) {
    structure::<Segment>(table, "segment");
    flattened::<wire::RawRequest, wire::RequestHead>(table, "request");
    // C has one structure for both, with a union.
    for (field, offset, bytes) in wire::RawRange::FIELDS {
        match wire::RawRequest::FIELDS.iter().find(|(name, ..)| name == field) {
            Some(same) => assert_eq!((same.1, same.2), (*offset, *bytes), "{field}"),
            None if *field == "reserved" => {} // In C the end of the segments.
            None => put(table, &format!("request.{field}"), *offset..*offset + *bytes),
        }
    }
    structure::<packed::PackedRequest>(table, "packed_request");
    structure::<packed::RawPacked>(table, "packed");
    structure::<wire::CompletionEntry>(table, "completion_entry");
    flattened::<wire::RawCompletion, wire::CompletionHead>(table, "completion");
    flattened::<wire::RawEvent, wire::CompletionHead>(table, "event");
}

/// The whole table, sorted by name.
pub fn table() -> Table {
    let mut table = Vec::new();
    constants(&mut table);
    choices(&mut table);
    control_numbers(&mut table);
    control_structures(&mut table);
    region_structures(&mut table);
    block_structures(&mut table);
    fields::<BlockInfo>(&mut table, "block_info", control::SERVICE_INFO_BYTES);
    structure::<wire::ListedInfo>(&mut table, "listed_info");
    fields::<ServiceInfo>(&mut table, "call_info", control::SERVICE_INFO_BYTES);
    crate::vm::layout(&mut table);
    crate::net::layout(&mut table);
    table.sort();
    table
}
