//! What frames leave to be done, against values that come from elsewhere: they were computed from the RFCs in another language.

use fipsee_net::checksum::Sum;
use fipsee_net::offload::{Checked, MAX_HEADERS_BYTES, MAX_SEGMENTS, granted};
use fipsee_net::wire::{OFFLOAD_CHECKSUM, OFFLOAD_ECN, OFFLOAD_TSO4, OFFLOAD_TSO6, OFFLOAD_USO, OFFLOADS, Offload};
use fipsee_testkit::random::Random;

/// 11 bytes of payload, and a sequence number that wraps; flags CWR, ACK, PSH, FIN; an option of 12 bytes.
const TCP4: &str = "02000000000202000000000108004500003fffff4000400626b70a0000010a00000203e807d0fffffffe1122334480990200143400000101080a\
     00000001000000020102030405060708090a0b";
const TCP4_COMPLETED: &str = "02000000000202000000000108004500003fffff4000400626b70a0000010a00000203e807d0fffffffe1122334480990200ebe8\
     00000101080a00000001000000020102030405060708090a0b";
const TCP4_SEGMENTS: [&str; 3] = [
    "020000000002020000000001080045000038ffff4000400626be0a0000010a00000203e807d0fffffffe11223344809002000c1100000101080a\
     000000010000000201020304",
    "02000000000202000000000108004500003800004000400626be0a0000010a00000203e807d0000000021122334480100200048600000101080a\
     000000010000000205060708",
    "02000000000202000000000108004500003700014000400626be0a0000010a00000203e807d0000000061122334480190200fc7d00000101080a\
     0000000100000002090a0b",
];
const TCP6: &str = "02000000000202000000000186dd60000000001f064020010db800000000000000000000000120010db80000000000000000000000\
     0203e807d00000006411223344501802005b9a00000102030405060708090a0b";
const TCP6_SEGMENTS: [&str; 2] = [
    "02000000000202000000000186dd60000000001c064020010db800000000000000000000000120010db800000000000000000000000203e807d0\
     0000006411223344501 00200f1c100000102030405060708",
    "02000000000202000000000186dd600000000017064020010db800000000000000000000000120010db800000000000000000000000203e807d0\
     0000006c11223344501 80200edc00000090a0b",
];
/// With options of IPv4.
const UDP4: &str =
    "02000000000202000000000108004600002b00074000401123b80a0000010a0000020101010003e807d0001314270102030405060708090a0b";
const UDP4_SEGMENTS: [&str; 2] = [
    "02000000000202000000000108004600002600074000401123bd0a0000010a0000020101010003e807d0000ed70b010203040506",
    "02000000000202000000000108004600002500084000401123bd0a0000010a0000020101010003e807d0000dc5070708090a0b",
];
const UDP6: &str = "02000000000202000000000186dd600000000013114020010db800000000000000000000000120010db80000000000000000000000\
     0203e807d000135b990102030405060708090a0b";
const UDP6_SEGMENTS: [&str; 2] = [
    "02000000000202000000000186dd60000000000e114020010db800000000000000000000000120010db800000000000000000000000203e807d0\
     000e8f99010203040506",
    "02000000000202000000000186dd60000000000d114020010db800000000000000000000000120010db800000000000000000000000203e807d0\
     000d7d950708090a0b",
];

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|digit| *digit != b' ').collect();
    let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).expect("digits"), 16).expect("hexadecimal");
    digits.chunks(2).map(byte).collect()
}

fn offload(segmentation: u8, segment_bytes: u16, checksum_start: u16, checksum_offset: u16) -> Offload {
    Offload { flags: 1, segmentation, header_bytes: 0, segment_bytes, checksum_start, checksum_offset }
}

fn check_at(packet: usize, offload: &Offload, frame: &[u8]) -> Option<Checked> {
    Checked::new(offload, &frame[..frame.len().min(MAX_HEADERS_BYTES)], frame.len(), (packet, packet + 1500))
}

fn check(offload: &Offload, frame: &[u8]) -> Option<Checked> {
    check_at(14, offload, frame)
}

fn segments(checked: &Checked, frame: &[u8]) -> Vec<Vec<u8>> {
    let mut headers = [0; MAX_HEADERS_BYTES];
    let mut segment = |number| {
        let (length, payload) = checked.segment(frame, number, &mut headers)?;
        Some([&headers[..length], &frame[payload]].concat())
    };
    (0..).map_while(&mut segment).collect()
}

/// Whole frames that may be divided, their offloads, and what they are divided into.
fn examples() -> [(Vec<u8>, Offload, Vec<Vec<u8>>); 4] {
    let all = |segments: &[&str]| segments.iter().map(|segment| bytes(segment)).collect::<Vec<_>>();
    [
        (bytes(TCP4), offload(0x81, 4, 34, 16), all(&TCP4_SEGMENTS)),
        (bytes(TCP6), offload(4, 8, 54, 16), all(&TCP6_SEGMENTS)),
        (bytes(UDP4), offload(5, 6, 38, 6), all(&UDP4_SEGMENTS)),
        (bytes(UDP6), offload(5, 6, 54, 6), all(&UDP6_SEGMENTS)),
    ]
}

#[test]
fn frames_are_divided_as_others_do_it() {
    for (frame, offload, expected) in examples() {
        let checked = check(&offload, &frame).unwrap_or_else(|| panic!("{offload:?}"));
        assert_eq!(segments(&checked, &frame), expected, "{offload:?}");
        // Behind a VLAN tag everything is 4 bytes later.
        let tag = |frame: &[u8]| [&frame[..12], &[0x81, 0, 0, 10], &frame[12..]].concat();
        let (tagged, shifted) = (tag(&frame), Offload { segmentation: offload.segmentation, ..offload.shifted(4) });
        let checked = check_at(18, &shifted, &tagged).expect("the same with a tag");
        assert_eq!(segments(&checked, &tagged), expected.iter().map(|frame| tag(frame)).collect::<Vec<_>>());
    }
}

#[test]
fn checksum_is_completed_as_others_do_it() {
    let mut frame = bytes(TCP4);
    check(&offload(0, 0, 34, 16), &frame).expect("true").complete(&mut frame);
    assert_eq!(frame, bytes(TCP4_COMPLETED));
    let mut unchanged = bytes(TCP4);
    check(&Offload { flags: 2, ..Offload::default() }, &unchanged).expect("true").complete(&mut unchanged);
    assert_eq!(unchanged, bytes(TCP4));
}

#[test]
fn what_is_carried_has_no_fields_without_a_meaning_and_the_true_length_of_the_headers() {
    let frame = bytes(TCP4);
    let noise = Offload { flags: 0, segmentation: 0, header_bytes: 1, segment_bytes: 2, checksum_start: 3, checksum_offset: 4 };
    assert_eq!(check(&noise, &frame).map(|checked| (checked.offload, checked.needs)), Some((Offload::NONE, 0)));
    let carried = check(&Offload { header_bytes: 9, ..offload(1, 4, 34, 16) }, &frame).expect("true").offload;
    assert_eq!(carried, Offload { header_bytes: 66, ..offload(1, 4, 34, 16) });
    assert_eq!(carried.shifted(-4), Offload { header_bytes: 62, ..offload(1, 4, 30, 16) });
    assert_eq!(Offload::NONE.shifted(4), Offload::NONE);
}

/// checks: R-10.3-14, R-10.5-2
#[test]
fn offload_that_is_not_true_of_the_frame_is_refused() {
    let frame = bytes(TCP4);
    let length = u16::try_from(frame.len()).expect("short");
    let right = offload(1, 4, 34, 16);
    let wrong = [
        Offload { flags: 0, ..right },
        Offload { flags: 2, ..right },
        Offload { flags: 3, ..offload(0, 0, 34, 16) },
        Offload { flags: 5, ..right },
        Offload { segmentation: 2, ..right },
        Offload { segmentation: 3, ..right },
        Offload { segmentation: 4, ..right },
        Offload { segmentation: 5, ..right },
        Offload { segmentation: 0x80, ..right },
        Offload { segment_bytes: 0, ..right },
        Offload { segment_bytes: 1500 - 52 + 1, ..right },
        Offload { checksum_start: 33, ..right },
        Offload { checksum_offset: 6, ..right },
        offload(0, 0, 13, 16),
        offload(0, 0, 34, length - 35),
        offload(0, 0, length - 1, 0),
        offload(0, 0, u16::MAX, u16::MAX),
    ];
    assert!(check(&right, &frame).is_some() && check(&Offload { segment_bytes: 1448, ..right }, &frame).is_some());
    assert!(check(&offload(0, 0, 34, length - 36), &frame).is_some());
    for offload in wrong {
        assert_eq!(check(&offload, &frame), None, "{offload:?}");
    }
}

#[test]
fn headers_that_are_not_those_of_the_offload_are_refused() {
    // Offset, mask and value of a byte that is changed: of TCP over IPv4, TCP over IPv6, UDP over IPv4 and over IPv6.
    let changes: [&[(usize, u8, u8)]; 4] = [
        &[
            (12, 0, 0x86),
            (13, 0, 0x06),
            (14, 0x0f, 0x60),
            (14, 0xf0, 4),
            (14, 0xf0, 6),
            (16, 0, 1),
            (17, 0, 0x40),
            (20, 0, 0x20),
            (21, 0, 1),
            (23, 0, 17),
            (46, 0, 0x40),
            (46, 0, 0xf0),
            (47, 0xff, 2),
        ],
        &[(13, 0, 0), (14, 0x0f, 0x40), (18, 0, 1), (19, 0, 0x20), (20, 0, 0), (20, 0, 17), (66, 0, 0xf0)],
        &[(14, 0xf0, 5), (23, 0, 6), (42, 0, 1), (43, 0, 0x14)],
        &[(20, 0, 6), (58, 0, 1), (59, 0, 0x12)],
    ];
    for ((frame, offload, _), changes) in examples().into_iter().zip(changes) {
        for (at, mask, value) in changes {
            let mut frame = frame.clone();
            frame[*at] = frame[*at] & mask | value;
            assert_eq!(check(&offload, &frame), None, "{offload:?}: {value:#x} at {at}");
        }
        for cut in 0..frame.len() {
            assert_eq!(check(&offload, &frame[..cut]), None, "{offload:?}: cut to {cut}");
        }
    }
    // Nothing to divide, and too many pieces.
    let headers_alone = |payload: usize| {
        let mut frame = bytes(TCP4);
        frame.resize(66 + payload, 7);
        let total = u16::try_from(52 + payload).expect("it fits");
        frame[16..18].copy_from_slice(&total.to_be_bytes());
        frame
    };
    assert_eq!(check(&offload(1, 4, 34, 16), &headers_alone(0)), None);
    assert!(check(&offload(1, 4, 34, 16), &headers_alone(4 * MAX_SEGMENTS)).is_some());
    assert_eq!(check(&offload(1, 4, 34, 16), &headers_alone(4 * MAX_SEGMENTS + 1)), None);
    assert!(check(&offload(1, 256, 34, 16), &headers_alone(65_535 - 52)).is_some(), "the longest in the smallest pieces");
}

#[test]
fn offloads_are_granted_with_what_they_need() {
    let tcp = OFFLOAD_CHECKSUM | OFFLOAD_TSO4 | OFFLOAD_ECN;
    let of = [0, OFFLOAD_CHECKSUM, OFFLOAD_TSO4, tcp, OFFLOAD_CHECKSUM | OFFLOAD_ECN, OFFLOAD_USO | OFFLOAD_CHECKSUM, u32::MAX];
    let expected = [0, OFFLOAD_CHECKSUM, 0, tcp, OFFLOAD_CHECKSUM, OFFLOAD_USO | OFFLOAD_CHECKSUM, OFFLOADS];
    assert_eq!(of.map(granted), expected);
    assert_eq!(offload(4, 1, 0, 0).needs(), Some(OFFLOAD_CHECKSUM | OFFLOAD_TSO6));
    assert_eq!(Offload { flags: 0, ..offload(0x81, 1, 0, 0) }.needs(), Some(OFFLOAD_TSO4 | OFFLOAD_ECN));
}

/// Whatever the bytes are: nothing panics, every segment fits, and together they are the frame.
#[test]
fn any_bytes_are_looked_at_without_harm() {
    let mut divided = 0;
    for seed in 0..4000 {
        let mut random = Random(seed);
        let (mut frame, right, _) = examples()[usize::try_from(random.below(4)).expect("small")].clone();
        let mut offload = right;
        for _ in 0..random.below(3) {
            let at = usize::try_from(random.below(frame.len() as u64)).expect("small");
            frame[at] = u8::try_from(random.below(256)).expect("a byte");
        }
        if random.percent(30) {
            let small = |random: &mut Random| u16::try_from(random.below(70)).expect("small");
            let flags = u8::try_from(random.below(4)).expect("small");
            offload = Offload {
                flags,
                segment_bytes: small(&mut random),
                checksum_start: small(&mut random),
                checksum_offset: small(&mut random),
                ..offload
            };
        }
        let packet = if random.percent(50) { 14 } else { 18 };
        let Some(checked) = check_at(packet, &offload, &frame) else { continue };
        checked.complete(&mut frame.clone());
        if checked.offload.segmentation == 0 {
            continue;
        }
        divided += 1;
        let segments = segments(&checked, &frame);
        let headers = usize::from(checked.offload.header_bytes);
        assert!(segments.iter().all(|segment| segment.len() <= packet + 1500));
        let payloads: Vec<u8> = segments.iter().flat_map(|segment| segment[headers..].to_vec()).collect();
        assert_eq!(payloads, frame[headers..], "seed {seed}");
        let transport = usize::from(checked.offload.checksum_start);
        if frame[packet - 2] == 8 {
            assert!(segments.iter().all(|segment| Sum::of(&segment[packet..transport]).finish() == [0, 0]), "seed {seed}");
        }
    }
    assert!(divided > 500, "only {divided}");
}
