//! A network of which an input has frames, and what its ports may get of them by the document.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use fipsee_net::frame::{Header, Mac};
use fipsee_net::server::{Delivered, Frame, NetworkSetup, Outcome, PortSetup, Receive, ServedPort, Switches};
use fipsee_net::switch::{Learning, Rules};
use fipsee_net::wire::{CHECKSUM_NEEDED, MAX_SEGMENTED_BYTES, MAX_SMALL_BYTES, Offload};
use fipsee_ring::memory::{Span, copy_from};

use crate::{ips, switch};

pub(crate) const MTU: u16 = 1500;
const TAG_TYPE: [u8; 2] = [0x81, 0];
const UDP: u8 = 17;

/// A frame, and what it leaves to be done.
pub(crate) type Whole = (Vec<u8>, Offload);

pub(crate) fn mac(number: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, number])
}

/// A network of ports with these rules, which have their numbers as names.
pub(crate) fn network(rules: &[Rules]) -> Switches {
    let port = |(number, rules): (usize, &Rules)| {
        let (name, rules) = (number.to_string(), rules.clone());
        PortSetup { name, rules, allow: Box::new(|_| true), reserved: None }
    };
    let learning = Learning { max_macs: 4, max_macs_per_port: 2, ..Learning::default() };
    let ports = rules.iter().enumerate().map(port).collect();
    Switches::new(vec![NetworkSetup { name: "lan".to_owned(), mtu: MTU, learning, ports }])
}

pub(crate) fn port(switches: &Switches, number: usize) -> ServedPort {
    switches.port(&format!("lan/{number}")).expect("it was just made")
}

/// A receiving side that takes every frame.
pub(crate) struct Side {
    offloads: u32,
    got: Got,
}

/// What it has got.
#[derive(Clone, Default)]
pub(crate) struct Got(Arc<Mutex<Vec<Whole>>>);

impl Got {
    pub(crate) fn take(&self) -> Vec<Whole> {
        std::mem::take(&mut self.0.lock().expect("one thread"))
    }
}

impl Side {
    /// Serve a port.
    pub(crate) fn serve(port: &ServedPort, offloads: u32) -> Got {
        let got = Got::default();
        port.add(0, Box::new(Self { offloads, got: got.clone() }));
        got
    }
}

impl Receive for Side {
    unsafe fn deliver(&mut self, frame: &Frame<'_>) -> Delivered {
        let mut bytes = frame.head.to_vec();
        bytes.resize(frame.length_bytes as usize, 0);
        assert_eq!(frame.head.len() + frame.rest.iter().map(Span::length_bytes).sum::<usize>(), bytes.len(), "its length");
        // SAFETY: the caller vouches for the rest of the frame; the place is our own.
        assert!(unsafe { copy_from(frame.rest, &mut bytes[frame.head.len()..]) });
        self.got.0.lock().expect("one thread").push((bytes, frame.offload));
        Delivered { is_taken: true, is_first: false, extra_work: 0 }
    }

    fn offloads(&self) -> u32 {
        self.offloads
    }

    fn flush(&mut self) {}
}

/// Send a frame as a device of the host or a machine does.
pub(crate) fn send(port: &ServedPort, frame: &[u8], offload: Offload) -> Outcome {
    let (first, rest) = frame.split_at(frame.len().min(MAX_SMALL_BYTES));
    let mut rest = rest.to_vec();
    // SAFETY: memory of this function, which nothing changes meanwhile.
    let span = unsafe { Span::new(NonNull::from(&mut rest[..]).cast(), rest.len()) };
    let rest = if rest.is_empty() { &[][..] } else { std::slice::from_ref(&span) };
    // SAFETY: as above.
    unsafe { port.try_sending().expect("one thread").send(first, rest, offload) }
}

/// A frame of TCP over IPv4 that leaves its checksum to be done.
pub(crate) fn tcp4(from: u8, to: u8, payload_bytes: u16) -> Vec<u8> {
    let [total, transport] = [40 + payload_bytes, 20 + payload_bytes].map(u16::to_be_bytes);
    let addresses = [192, 0, 2, 1 + from, 192, 0, 2, 1 + to];
    let mut ip = [&[0x45, 0][..], &total, &[0, 7, 0x40, 0, 64, 6, 0, 0], &addresses].concat();
    let checksum = !sum(&[&ip]);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    let pseudo = sum(&[&addresses, &[0, 6], &transport]).to_be_bytes();
    let tcp = [&[0x80, 1, 0x80, 2, 0, 0, 0, 9, 0, 0, 0, 3, 0x50, 0x18, 1, 0][..], &pseudo, &[0, 0]].concat();
    let payload: Vec<u8> = (0..payload_bytes).map(|at| at.to_le_bytes()[0]).collect();
    [&mac(to).0[..], &mac(from).0, &[8, 0], &ip, &tcp, &payload].concat()
}

/// Where the packet of a frame begins.
fn packet_at(frame: &[u8]) -> usize {
    if frame.get(12..14) == Some(&TAG_TYPE) { 18 } else { 14 }
}

fn untagged(frame: &[u8]) -> Vec<u8> {
    [&frame[..12], &frame[packet_at(frame) - 2..]].concat()
}

/// A frame of the network itself, which finds loops.
fn is_detection_frame(rules: &Rules, frame: &[u8]) -> bool {
    let begins = [&[0xff; 6][..], &rules.mac.0, &[0x90, 0, 0, 0, 1, 0]].concat();
    frame.len() >= 14 && untagged(frame).starts_with(&begins)
}

/// What gets something of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct To {
    pub(crate) port: u8,
    pub(crate) offloads: u32,
    /// It has room for all of them.
    pub(crate) takes_all: bool,
}

/// What a port has got of a frame that another one has sent: it may be sent and received there, is as long as it was, and what its receiver does not take
/// is done.
pub(crate) fn check(rules: &[Rules], from: u8, (sent, offload): (&[u8], Offload), to: To, got: &[Whole]) {
    let got: Vec<&Whole> = got.iter().filter(|(left, _)| !is_detection_frame(&rules[usize::from(to.port)], left)).collect();
    let Some((first, _)) = got.first() else { return };
    let header = Header::of(sent).unwrap_or_else(|| panic!("{} bytes without a header came to {to:?}", sent.len()));
    let needs = offload.needs().unwrap_or_else(|| panic!("{offload:?} is no offload, and it came to {to:?}"));
    let most_bytes = if offload.segmentation == 0 { MTU.into() } else { MAX_SEGMENTED_BYTES as usize };
    assert!(sent.len() <= packet_at(sent) + most_bytes, "a frame of {} bytes", sent.len());
    for (left, _) in &got {
        let fronts = (&sent[..packet_at(sent)], &left[..packet_at(left)]);
        switch::check(rules, (from.into(), to.port.into()), &header, fronts);
    }
    assert!(ips::is_own(&rules[usize::from(from)], sent), "a source that is not its own: {sent:02x?}");
    if needs & !to.offloads != 0 && offload.segmentation != 0 {
        let parts: Vec<Vec<u8>> = got.iter().map(|(left, _)| untagged(left)).collect();
        assert!(got.iter().all(|(_, left)| *left == Offload::NONE), "nothing is left to be done");
        return check_parts(&untagged(sent), &parts, to.takes_all);
    }
    assert_eq!(got.len(), 1, "{to:?} got it more than once");
    let (left, mut expected) = (got[0].1, untagged(sent));
    if needs & !to.offloads != 0 {
        assert_eq!(left, Offload::NONE, "nothing is left to be done");
        complete(&mut expected, &offload, packet_at(sent) - 14);
    } else {
        check_carried(&offload, &left, packet_at(first).cast_signed() - packet_at(sent).cast_signed());
    }
    assert!(untagged(first) == expected, "{} bytes came as others: {first:02x?}, not {expected:02x?}", sent.len());
}

/// An offload that its receiver takes, of a frame that has become so much longer by a tag.
fn check_carried(sent: &Offload, left: &Offload, longer: isize) {
    assert_eq!((left.flags, left.segmentation), (sent.flags, sent.segmentation));
    let is_moved = |from: u16, to: u16| usize::from(to) == usize::from(from).wrapping_add_signed(longer);
    if sent.flags & CHECKSUM_NEEDED != 0 {
        assert!(is_moved(sent.checksum_start, left.checksum_start) && left.checksum_offset == sent.checksum_offset, "{left:?}");
    }
    if sent.segmentation != 0 {
        assert_eq!(left.segment_bytes, sent.segment_bytes);
        let transport_bytes = left.header_bytes.checked_sub(left.checksum_start);
        assert!(transport_bytes.is_some_and(|bytes| (8..=60).contains(&bytes)), "{left:?}");
    }
}

/// By the definition (RFC 1071): of pieces of which all but the last have an even length.
fn sum(pieces: &[&[u8]]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u32::from);
    let total: u64 = pieces.iter().flat_map(|piece| piece.chunks(2)).map(|pair| u64::from(word(pair))).sum();
    let mut folded = total;
    while folded > 0xffff {
        folded = (folded >> 16) + (folded & 0xffff);
    }
    u16::try_from(folded).expect("16 bits")
}

/// Put the checksum into a frame whose tag of so many bytes was taken off.
pub(crate) fn complete(frame: &mut [u8], offload: &Offload, tag_bytes: usize) {
    if offload.flags & CHECKSUM_NEEDED == 0 {
        return;
    }
    let start = usize::from(offload.checksum_start) - tag_bytes;
    let at = start + usize::from(offload.checksum_offset);
    let whole = match !sum(&[&frame[start..]]) {
        0 => 0xffff,
        whole => whole,
    };
    frame[at..at + 2].copy_from_slice(&whole.to_be_bytes());
}

/// A frame was divided into these: each fits the network, has lengths and checksums that are right, and together they have its payload.
fn check_parts(sent: &[u8], parts: &[Vec<u8>], are_all: bool) {
    let is_ipv4 = sent[14] >> 4 == 4;
    let (transport, protocol) = if is_ipv4 { (14 + usize::from(sent[14] & 15) * 4, sent[23]) } else { (54, sent[20]) };
    let headers = transport + if protocol == UDP { 8 } else { usize::from(sent[transport + 12] >> 4) * 4 };
    let mut payload = Vec::new();
    for part in parts {
        assert!(part.len() > headers && part.len() <= 14 + usize::from(MTU), "a part of {} bytes", part.len());
        let number = |at: usize| usize::from(u16::from_be_bytes([part[at], part[at + 1]]));
        let (length, addresses) = if is_ipv4 { (number(16), &part[26..34]) } else { (number(18) + 40, &part[22..54]) };
        assert_eq!(length, part.len() - 14, "the length in the header");
        assert!(!is_ipv4 || sum(&[&part[14..transport]]) == 0xffff, "the checksum of IPv4: {part:02x?}");
        let transport_bytes = u16::try_from(part.len() - transport).expect("short").to_be_bytes();
        let pseudo = [&[0, protocol][..], &transport_bytes].concat();
        assert_eq!(sum(&[addresses, &pseudo, &part[transport..]]), 0xffff, "the checksum: {part:02x?}");
        payload.extend_from_slice(&part[headers..]);
    }
    assert!(!are_all || payload == sent[headers..], "the payload is another");
}
