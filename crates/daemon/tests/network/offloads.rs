//! Frames that leave something to be done: carried to a client that takes it, done for one that does not.

use std::path::Path;

use fipsee_net::checksum::Sum;
use fipsee_net::wire::{
    CHECKSUM_NEEDED, CHECKSUM_VALID, OFFLOAD_CHECKSUM, OFFLOAD_ECN, OFFLOAD_TSO4, OFFLOADS, Offload, SEGMENT_TCP4, Status,
};
use fipsee_net::{AttachOptions, Port};
use fipsee_testkit::random::Random;

use super::{all_sent, assert_nothing, lan, next, options, stat};

const HEADERS: usize = 14 + 20 + 20;
pub(super) const TCP: Offload = Offload {
    flags: CHECKSUM_NEEDED,
    segmentation: 0,
    header_bytes: 0,
    segment_bytes: 0,
    checksum_start: 34,
    checksum_offset: 16,
};

fn with(socket: &Path, port: &str, offloads: u32) -> Port {
    Port::attach(socket, &AttachOptions { offloads, ..options(port) }).expect("attached")
}

/// The sum of TCP's pseudo header, of a packet with so many bytes of TCP.
fn pseudo(packet: &[u8], tcp_bytes: usize) -> Sum {
    Sum::of(&packet[12..20]).plus_number(6).plus_number(u16::try_from(tcp_bytes).expect("it fits"))
}

/// A frame of TCP from `a` to another port, with the sum of the pseudo header in place of its checksum.
pub(super) fn tcp(to: u8, payload: usize, seed: u64) -> Vec<u8> {
    let mut frame = [2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0].to_vec();
    frame.extend(u16::try_from(40 + payload).expect("it fits").to_be_bytes());
    frame.extend([0, 7, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, to]);
    let header_sum = Sum::of(&frame[14..34]).finish();
    frame[24..26].copy_from_slice(&header_sum);
    frame.extend([3, 232, 7, 208, 0, 0, 1, 0, 0, 0, 0, 1, 0x50, 0x18, 2, 0, 0, 0, 0, 0]);
    let [high, low] = pseudo(&frame[14..], 20 + payload).finish();
    frame[50..52].copy_from_slice(&[!high, !low]);
    frame.resize(HEADERS + payload, 0);
    Random(seed).fill(&mut frame[HEADERS..]);
    frame
}

/// Both checksums are right, and the lengths are those of the frame.
#[track_caller]
pub(super) fn assert_complete(frame: &[u8]) {
    let packet = &frame[14..];
    assert_eq!(usize::from(u16::from_be_bytes([packet[2], packet[3]])), packet.len());
    assert_eq!(Sum::of(&packet[..20]).finish(), [0, 0], "of IPv4");
    assert_eq!(pseudo(packet, packet.len() - 20).plus(&packet[20..]).finish(), [0, 0], "of TCP");
}

/// checks: R-10.1-1, R-10.5-1, R-10.5-3
#[test]
fn checksum_is_carried_or_done() {
    let daemon = lan(1500, ["", "", ""]);
    let (mut a, mut b) = (with(&daemon.socket(), "a", u32::MAX), with(&daemon.socket(), "b", OFFLOAD_CHECKSUM));
    let mut c = with(&daemon.socket(), "c", OFFLOAD_TSO4);
    assert_eq!([a.info(), b.info(), c.info()].map(|info| info.offloads), [OFFLOADS, OFFLOAD_CHECKSUM, 0]);
    assert_eq!([a.info(), b.info(), c.info()].map(|info| info.max_frame_bytes), [65_553, 1518, 1518]);
    for payload in [0, 1, 2, 100, 1459, 1460] {
        let (to_b, to_c) = (tcp(2, payload, 1), tcp(3, payload, 1));
        a.stage_offloaded(&to_b, TCP).expect("staged");
        a.stage_offloaded(&to_c, TCP).expect("staged");
        a.submit();
        assert_eq!((next(&mut b), b.received_offload()), (to_b, TCP), "carried");
        let received = next(&mut c);
        assert_eq!((received.len(), c.received_offload()), (to_c.len(), Offload::NONE));
        assert_complete(&received);
        assert!(received[..50] == to_c[..50] && received[52..] == to_c[52..], "all else is as it was");
        a.stage_offloaded(&received_again(&received, 2), Offload { flags: CHECKSUM_VALID, ..Offload::NONE }).expect("staged");
        a.submit();
        next(&mut b);
        assert_eq!(b.received_offload().flags, CHECKSUM_VALID);
    }
    a.stage_offloaded(&tcp(2, 20, 1), Offload { checksum_offset: 19, ..TCP }).expect("staged");
    all_sent(&mut a);
    a.stage_offloaded(&tcp(2, 10, 1), Offload { checksum_offset: 30, ..TCP }).expect("staged");
    all_sent(&mut a);
    assert_eq!((a.refused(), next(&mut b).len()), ((1, Some(Status::BadOffload)), 74), "beyond the end");
    b.stage_offloaded(&tcp(3, 10, 1), Offload { segmentation: SEGMENT_TCP4, segment_bytes: 1000, ..TCP }).expect("staged");
    all_sent(&mut b);
    assert_eq!(b.refused(), (1, Some(Status::Unsupported)), "not in force there");
    assert_nothing(&mut c);
    assert_eq!(
        (&stat(&daemon, "a")["refused"]["bad_offload"], &stat(&daemon, "b")["refused"]["unsupported"]),
        (&1.into(), &1.into())
    );
}

/// To another port.
fn received_again(frame: &[u8], to: u8) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[5] = to;
    frame
}

/// checks: R-10.5-3, R-10.5-4
#[test]
fn frame_of_64_kib_is_carried_or_divided() {
    const SEGMENT: u16 = 1448;
    let daemon = lan(1500, ["trunk = [10]\nvlan = 20", "vlan = 20", "trunk = [20]"]);
    let (mut a, mut b) = (with(&daemon.socket(), "a", OFFLOADS), with(&daemon.socket(), "b", OFFLOADS & !OFFLOAD_ECN));
    let mut c = with(&daemon.socket(), "c", 0);
    let offload = Offload { segmentation: SEGMENT_TCP4, segment_bytes: SEGMENT, ..TCP };
    for payload in [1, usize::from(SEGMENT), usize::from(SEGMENT) + 1, 30_000, 65_535 - 40] {
        let (to_b, to_c) = (tcp(2, payload, 2), tcp(3, payload, 3));
        a.stage_offloaded(&to_b, offload).expect("staged");
        a.stage_offloaded(&to_c, offload).expect("staged");
        a.submit();
        assert_eq!(next(&mut b), to_b, "carried");
        assert_eq!(b.received_offload(), Offload { header_bytes: 54, ..offload });
        let mut received = Vec::new();
        while received.len() < payload {
            let segment = next(&mut c);
            // With the tag of its VLAN.
            assert_eq!((&segment[12..16], c.received_offload()), (&[0x81, 0, 0, 20][..], Offload::NONE));
            let segment = [&segment[..12], &segment[16..]].concat();
            assert!(segment.len() <= HEADERS + usize::from(SEGMENT));
            assert_complete(&segment);
            let sequence = u32::from_be_bytes([segment[38], segment[39], segment[40], segment[41]]);
            assert_eq!(sequence as usize, 256 + received.len());
            let is_last = received.len() + segment.len() - HEADERS == payload;
            assert_eq!(segment[47], if is_last { 0x18 } else { 0x10 }, "PSH on the last");
            received.extend_from_slice(&segment[HEADERS..]);
        }
        assert_eq!(received, to_c[HEADERS..]);
    }
    // With congestion notification, which b does not take.
    let mut notified = tcp(2, 4000, 4);
    notified[47] |= 0x80;
    a.stage_offloaded(&notified, Offload { segmentation: SEGMENT_TCP4 | 0x80, ..offload }).expect("staged");
    a.submit();
    let flags: Vec<u8> =
        (0..3).map(|_| next(&mut b)).inspect(|segment| assert_complete(segment)).map(|segment| segment[47]).collect();
    assert_eq!(flags, [0x90, 0x10, 0x18]);
    // Segments that the network has no room for.
    a.stage_offloaded(&tcp(2, 4000, 4), Offload { segment_bytes: 1461, ..offload }).expect("staged");
    all_sent(&mut a);
    assert_eq!(a.refused(), (1, Some(Status::BadOffload)));
    assert_nothing(&mut b);
    assert_nothing(&mut c);
}
