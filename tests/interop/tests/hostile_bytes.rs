//! C and Rust agree about every byte string a peer can send: what is refused, and what the rest means.

use fipsee_block::wire::{self, BlockInfo, Operation, PROFILE, Segment, Status};
use fipsee_interop::control::neutral;
use fipsee_interop::ffi;
use fipsee_interop::golden;
use fipsee_interop::random::Random;
use fipsee_interop::requests::{Memory, Scratch};
use fipsee_ring::Message;
use fipsee_ring::channel::RegionLayout;
use fipsee_ring::control::{Control, Listed, Page, Refusal, RefusalCode, Wanted};
use fipsee_ring::region::Region;

const INPUTS: u32 = 250_000;

fn text(random: &mut Random, most_bytes: usize) -> String {
    let letters = ['a', 'Z', '0', 'ä', '€', '\u{d7ff}', '\u{e000}', '\u{10ffff}', '\u{7f}', '\0'];
    let length = random.index(most_bytes + 1);
    let choices = if random.below(4) == 0 { &letters[..] } else { &letters[..9] };
    let mut text = String::new();
    while text.len() < length {
        text.push(random.pick(choices));
    }
    text
}

fn control(random: &mut Random) -> Control {
    let (a, b, c) = (random.half(), random.half(), random.word());
    match random.below(13) {
        0 => Control::Hello { version_min: a, version_max: b, features: random.number() },
        1 => Control::Welcome {
            version: a,
            max_queues: b,
            max_depth: c,
            features: random.number(),
            max_pool_bytes: random.number(),
        },
        2 => Control::Attach(Wanted {
            service: a,
            queue_count: b,
            depth: c,
            flags: random.word(),
            pool_bytes: random.number(),
            name: text(random, 80),
        }),
        3 => {
            let mut service_info = [0; 64];
            random.fill(&mut service_info);
            Control::Attached { queue_count: a, region_bytes: random.number(), service_info }
        }
        4 => {
            let known = [RefusalCode::Version, RefusalCode::NotAllowed, RefusalCode::ShuttingDown];
            let code = if c & 1 == 0 { random.pick(&known) } else { RefusalCode::Other(100 + (c >> 1)) };
            Control::Refused(Refusal { code, text: text(random, 410) })
        }
        5 => Control::Register { region: a, access: b, length_bytes: random.number() },
        6 => Control::Registered { region: a },
        7 => Control::Unregister { region: a },
        8 => Control::Unregistered { region: a },
        9 => Control::Detach,
        10 => Control::List { service: a, after: text(random, 80) },
        11 => {
            let mut listed = || {
                let mut service_info = [0; 16];
                random.fill(&mut service_info);
                Listed { name: text(random, 80), service_info }
            };
            Control::Listed(Page { entries: (0..c % 8).map(|_| listed()).collect(), more: b & 1 == 1 })
        }
        _ => Control::Detached,
    }
}

/// Bytes that look like a control message: whole, cut, longer, of another version, changed, or noise.
fn control_bytes(random: &mut Random) -> Vec<u8> {
    let mut bytes = control(random).encode();
    match random.below(8) {
        0 => {}
        1 => bytes.truncate(random.index(bytes.len())),
        2 => bytes.resize(bytes.len() + random.index(513 - bytes.len()), random.bytes()[0] & 1),
        3 => random.fill(&mut bytes),
        _ => random.mutate(&mut bytes),
    }
    if bytes.len() >= 12 {
        if random.below(4) != 0 {
            let length = u32::try_from(bytes.len()).expect("at most 512");
            bytes[8..12].copy_from_slice(&length.to_le_bytes());
        }
        if random.below(8) == 0 {
            bytes[6] = random.bytes()[0] & 3;
        }
        if random.below(16) == 0 {
            bytes[..4].copy_from_slice(b"FPSC");
        }
    }
    bytes
}

#[test]
fn both_decode_the_same_control_messages_to_the_same_fields() {
    let mut random = Random::new(0x0c0_117);
    let (mut understood, mut refused) = (0, 0);
    for _ in 0..INPUTS {
        let bytes = control_bytes(&mut random);
        let rust = Control::decode(&bytes);
        let c = ffi::control_decode(&bytes);
        assert_eq!(c, rust.as_ref().ok().map(neutral), "{rust:?}: {bytes:02x?}");
        // Of HELLO and REFUSED the version is read, whatever it is.
        let may_differ = matches!(rust, Err(_) | Ok(Control::Hello { .. } | Control::Refused(_)));
        assert!(may_differ || rust.as_ref().is_ok_and(|message| message.encode() == bytes), "{rust:?}: {bytes:02x?}");
        if rust.is_ok() { understood += 1 } else { refused += 1 }
    }
    assert!(understood > INPUTS / 10 && refused > INPUTS / 10, "{understood} understood, {refused} refused: inputs too plain");
}

#[test]
fn both_encode_the_same_control_messages_to_the_same_bytes() {
    let mut random = Random::new(0xe0c0de);
    for _ in 0..INPUTS / 10 {
        // The decoded form: what encoding cut off is gone.
        if let Ok(message) = Control::decode(&control(&mut random).encode()) {
            assert_eq!(ffi::control_encode(&neutral(&message)), message.encode(), "{message:?}");
        }
    }
}

fn segment(random: &mut Random) -> Segment {
    let region = random.pick(&[0, 0, 0, 0, 1, 5, 63, 2, 64, 0xffff]);
    let length_sectors = random.pick(&[8, 8, 16, 1, 0, 128, 2048, 0xffff]);
    let offset_sectors = random.pick(&[0, 8, 64, 120, 2040, 2047, 2048, u32::MAX]);
    Segment { offset_sectors, length_sectors, region }
}

fn request(random: &mut Random, memory: &Memory) -> Message {
    let operation = random.pick(&Operation::ALL);
    let data = random.pick(&[Operation::Read, Operation::Write]);
    let flags = random.pick(&[0, 0, 0, 1, 2, 3]);
    let tag = random.half();
    let sector = random.pick(&[0, 8, 16, 1000, 9992, 10_000, 10_001, u64::MAX]);
    let segments: Vec<Segment> = (0..random.below(7)).map(|_| segment(random)).collect();
    match random.below(8) {
        0 => wire::request_range(operation, flags, tag, sector, random.pick(&[0, 8, 16, 4096, 4104, 9992, u64::MAX])),
        1 => wire::request_one_segment(Operation::GetInfo, 0, tag, 0, segment(random)),
        2 => random.pick(&[wire::request_flush(tag), wire::request_ack_event(tag, wire::KIND_RESIZE)]),
        3 | 4 => {
            let at = u64::from(random.pick(&[0_u16, 8, 2047])) * 512;
            for entry in 0..64 {
                let one = if random.below(40) == 0 {
                    segment(random)
                } else {
                    Segment { offset_sectors: 8, length_sectors: 8, region: 0 }
                };
                memory.region.write(at + entry * 8, &one.to_word().to_le_bytes()).expect("within the region");
            }
            let table = Segment {
                offset_sectors: u32::try_from(at / 512).expect("small"),
                length_sectors: random.pick(&[1, 1, 4, 0]),
                region: random.pick(&[0, 0, 0, 1, 5]),
            };
            wire::request_indirect(data, flags, tag, sector, table, random.pick(&[1, 2, 64, 65, 256, 257, 0, u32::MAX]))
        }
        _ => wire::request_inline(data, flags, tag, sector, &segments),
    }
}

fn disk(random: &mut Random) -> BlockInfo {
    BlockInfo {
        first_sector: 0,
        sector_count: 10_000,
        block_bytes: random.pick(&[512, 4096]),
        optimal_bytes: 4096,
        max_transfer_bytes: random.pick(&[4096, 1 << 20]),
        max_range_sectors: 4096,
        max_segments: 256,
        capabilities: random.pick(&[31, 31, 31, 0, 1, 27, 15, 30]),
        identity: [0; 16],
    }
}

#[test]
fn both_parse_the_same_requests_to_the_same_status_fields_and_memory() {
    let mut random = Random::new(0x5ec7_0125);
    let (memory, mut scratch) = (Memory::new(), Scratch::default());
    let mut seen = [0_u32; Status::ALL.len()];
    for _ in 0..INPUTS {
        let mut bytes = request(&mut random, &memory).to_bytes();
        match random.below(4) {
            0 => random.mutate(&mut bytes),
            1 if random.below(8) == 0 => random.fill(&mut bytes),
            _ => {}
        }
        let status = memory.parse_in_both(&Message::from_bytes(&bytes), &disk(&mut random), &mut scratch).err();
        seen[usize::from(status.map_or(0, Status::to_wire))] += 1;
    }
    let rare: Vec<Status> = Status::ALL.into_iter().filter(|status| seen[usize::from(status.to_wire())] < 100).collect();
    // These are about the disk's state, not about the request.
    assert_eq!(rare, [Status::IoError, Status::NoSpace, Status::Detached], "statuses hardly reached: {seen:?}");
}

#[test]
fn both_take_the_same_disk_descriptions() {
    let mut random = Random::new(0xd15c);
    let valid = golden::examples().into_iter().find(|(name, _)| name == "block-info").expect("an example").1;
    let mut taken = 0;
    for _ in 0..INPUTS {
        let mut bytes: [u8; 64] = valid.as_slice().try_into().expect("64 bytes");
        random.mutate(&mut bytes);
        let rust = BlockInfo::from_bytes(&bytes);
        assert_eq!(ffi::block_info_is_valid(&bytes), rust.is_ok(), "{rust:?}: {bytes:02x?}");
        taken += u32::from(rust.is_ok());
    }
    assert!(taken > INPUTS / 10 && taken < INPUTS - INPUTS / 10, "{taken} taken");
}

/// R-6-13 and R-6-14, as far as they need no memory of requests and earlier events.
fn is_allowed_on_a_completion_ring(bytes: &[u8; 64]) -> bool {
    let is_zero = |range: std::ops::Range<usize>| bytes[range].iter().all(|byte| *byte == 0);
    let size = u64::from_le_bytes(bytes[8..16].try_into().expect("8 bytes"));
    match bytes[1] {
        wire::KIND_COMPLETIONS => (1..=14).contains(&bytes[0]) && is_zero(2..4),
        wire::KIND_RESIZE => bytes[0] == 1 && is_zero(2..8) && is_zero(16..60) && (1..1 << 55).contains(&size),
        wire::KIND_DETACH => bytes[0] == 1 && is_zero(2..60),
        _ => false,
    }
}

/// What a reader hands out of a message, as [`ffi::completion_read`]: entries until one whose status is none, or an event that may come.
fn read_by_the_document(bytes: &[u8; 64], unacknowledged: u32) -> (Option<bool>, Vec<(u16, u16)>) {
    if !is_allowed_on_a_completion_ring(bytes) {
        return (None, Vec::new());
    }
    if bytes[1] != wire::KIND_COMPLETIONS {
        return ((unacknowledged >> bytes[1] & 1 == 0).then_some(true), Vec::new());
    }
    let entries = bytes[4..60].as_chunks::<4>().0.iter().take(bytes[0].into());
    let entries = entries.map(|[a, b, c, d]| (u16::from_le_bytes([*a, *b]), u16::from_le_bytes([*c, *d])));
    let given: Vec<_> = entries.take_while(|(_, status)| Status::from_wire(*status).is_some()).collect();
    ((given.len() == usize::from(bytes[0])).then_some(false), given)
}

/// checks: R-6-13, R-6-14
#[test]
fn c_takes_the_completions_and_events_that_the_document_allows() {
    let mut random = Random::new(0xc0_4d1e);
    let mut completions = [0; 64];
    completions[0] = 3;
    let events =
        [wire::event(wire::KIND_RESIZE, 1), wire::event(wire::KIND_RESIZE, (1 << 55) - 1), wire::event(wire::KIND_DETACH, 0)];
    let valid: Vec<[u8; 64]> = events.iter().map(Message::to_bytes).chain([completions]).collect();
    for message in &valid {
        assert!(ffi::completion_read(message, 0).0.is_some(), "{message:02x?}");
        for bit in 0..60 * 8 {
            let mut bytes = *message;
            bytes[bit / 8] ^= 1 << (bit % 8);
            for unacknowledged in [0, 2, 4, 6] {
                let expected = read_by_the_document(&bytes, unacknowledged);
                assert_eq!(ffi::completion_read(&bytes, unacknowledged), expected, "{unacknowledged}: {bytes:02x?}");
            }
        }
    }
    for _ in 0..INPUTS / 10 {
        let mut bytes = random.pick(&valid);
        random.mutate(&mut bytes);
        let unacknowledged = random.pick(&[0, 2, 4, 6]);
        let expected = read_by_the_document(&bytes, unacknowledged);
        assert_eq!(ffi::completion_read(&bytes, unacknowledged), expected, "{unacknowledged}: {bytes:02x?}");
    }
}

#[test]
fn both_take_the_same_region_headers() {
    let mut random = Random::new(0x4ead);
    let plan = RegionLayout::plan(&PROFILE, 3, 32, 8192, 5);
    let region = Region::create("interop-header", plan.region_bytes).expect("memory");
    plan.write_to(&region).expect("it fits");
    let mut valid = vec![0; 64 * 65];
    region.read(0, &mut valid).expect("within the region");
    let mut taken = 0;
    for _ in 0..INPUTS {
        let mut bytes = valid.clone();
        random.mutate(&mut bytes[..256]);
        region.write(0, &bytes).expect("within the region");
        let rust = RegionLayout::read_from(&PROFILE, &region);
        assert_eq!(ffi::region_is_valid(&bytes, region.length_bytes()), rust.is_ok(), "{rust:?}: {:02x?}", &bytes[..256]);
        taken += u32::from(rust.is_ok());
    }
    assert!(taken > INPUTS / 10 && taken < INPUTS - INPUTS / 10, "{taken} taken");
}
