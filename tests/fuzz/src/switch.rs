//! First bytes of frames, through the parser of headers and the switch: each frame goes to ports of its VLAN alone, once, as they take it.

use std::time::Duration;

use fipsee_net::frame::{HEADER_BYTES, Head, Header, Mac, VLAN_TAG_BYTES};
use fipsee_net::switch::{Learning, Rules, Switch, Vlans};
use fipsee_net::wire::MAX_SMALL_BYTES;

use crate::take;

const MOST_MACS: usize = 4;

/// A byte says how many ports there are, each has three; then frames: a byte for the port, one for the length, and the first bytes.
pub(crate) fn one(mut bytes: &[u8]) {
    let [count] = take(&mut bytes);
    let rules: Vec<Rules> = (0..2 + count % 4).map(|number| rules(number, take(&mut bytes))).collect();
    let learning = Learning { max_macs: MOST_MACS, max_macs_per_port: 2, ageing: Duration::from_nanos(3) };
    let mut switch = Switch::new(rules.clone(), learning);
    let ports = u16::try_from(rules.len()).expect("few");
    (0..ports).filter(|port| count >> 4 & 1 << port == 0 || *port < 2).for_each(|port| switch.set_up(port, true));
    let (mut to, mut now_ns) = (Vec::new(), 0);
    while !bytes.is_empty() {
        let [from, length] = take(&mut bytes);
        let (front, rest) = bytes.split_at(bytes.len().min(usize::from(length) % (MAX_SMALL_BYTES + 1)));
        bytes = rest;
        let from = u16::from(from) % ports;
        now_ns += 1;
        let Some(header) = Header::of(front) else {
            let is_tagged = front.get(12..14) == Some(&[0x81, 0]);
            let least = HEADER_BYTES + if is_tagged { VLAN_TAG_BYTES } else { 0 };
            assert!(front.len() < least as usize, "{front:02x?} has a whole header");
            continue;
        };
        to.clear();
        let verdict = switch.forward(from, &header, now_ns, &mut to);
        assert!(verdict.is_ok() || to.is_empty(), "refused and delivered");
        assert!(switch.learned() <= MOST_MACS);
        for (index, (port, tagging)) in to.iter().enumerate() {
            assert!(*port != from && to[..index].iter().all(|(other, _)| other != port), "twice, or back: {to:?}");
            let left: Head<{ MAX_SMALL_BYTES + VLAN_TAG_BYTES as usize }> = Head::new(front, *tagging);
            check(&rules, (from, *port), &header, (front, left.bytes()));
        }
    }
}

pub(crate) fn rules(number: u8, [vlans, tags, flags]: [u8; 3]) -> Rules {
    let vlan = |bits: u8| u16::from(bits & 3);
    let vlans = match vlans & 3 {
        0 | 1 => Vlans::Access(vlan(vlans >> 2)),
        kind => {
            Vlans::Trunk { tagged: vec![1 + vlan(tags), 1 + vlan(tags >> 2)], native: (kind == 2).then_some(vlan(tags >> 4)) }
        }
    };
    let has = |bit: u8| flags & bit != 0;
    let flood_limit = if has(8) { 1 } else { 1_000_000_000 };
    Rules {
        vlans,
        any_source: has(1),
        isolated: has(2),
        mirror: has(4),
        down: has(16),
        flood_limit,
        ..Rules::new(Mac([2, 0, 0, 0, 0, number]))
    }
}

/// The VLAN of a frame with this tag at this port, by the document.
fn vlan_at(rules: &Rules, tag: Option<u16>) -> Option<u16> {
    match (&rules.vlans, tag) {
        (Vlans::Access(own), None) => Some(*own),
        (Vlans::Access(_), Some(_)) => None,
        (Vlans::Trunk { native, .. }, None | Some(0)) => *native,
        (Vlans::Trunk { tagged, .. }, Some(vlan)) => tagged.contains(&vlan).then_some(vlan),
    }
}

/// A frame that begins with `front` may leave so through a port.
pub(crate) fn check(rules: &[Rules], (from, port): (u16, u16), header: &Header, (front, left): (&[u8], &[u8])) {
    let (sender, receiver) = (&rules[usize::from(from)], &rules[usize::from(port)]);
    let vlan = vlan_at(sender, header.tag);
    assert!(vlan.is_some(), "{header:?} is in no VLAN of {sender:?}");
    let is_spoofed = rules.iter().any(|other| other.mac == header.source && other.mac != sender.mac);
    assert!(!is_spoofed && (sender.any_source || header.source == sender.mac), "{header:?} from {sender:?}");
    if receiver.mirror && left == front {
        return;
    }
    let left_header = Header::of(left).expect("a header");
    assert_eq!((left_header.destination, left_header.source), (header.destination, header.source));
    assert_eq!(vlan_at(receiver, left_header.tag), vlan, "{header:?} leaves as {left_header:?} for {receiver:?}");
    assert!(!(sender.isolated && receiver.isolated), "from one isolated port to another");
    let is_for_it = header.destination.is_group() || header.destination == receiver.mac || receiver.any_source;
    assert!(is_for_it, "{header:?} for {receiver:?}");
    let behind = |bytes: &[u8], tag: Option<u16>| bytes[if tag.is_some() { 16 } else { 12 }..].to_vec();
    assert_eq!(behind(left, left_header.tag), behind(front, header.tag), "only the tag changes");
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let frame = |from: u8, to: [u8; 6], source: [u8; 6], rest: &[u8]| {
        let bytes = [&to[..], &source, rest].concat();
        [&[from, bytes.len().to_le_bytes()[0]][..], &bytes].concat()
    };
    let mac = |number| [2, 0, 0, 0, 0, number];
    let (plain, tagged) = ([0x08, 0, 1, 2], [0x81, 0, 0x20, 1, 0x08, 0, 1, 2]);
    let twice = [0x81, 0, 0, 1, 0x88, 0xa8, 0, 2, 0x08, 0];
    let same = [&[0][..], &[0; 6], &frame(0, mac(1), mac(0), &plain), &frame(1, [0xff; 6], mac(1), &plain)].concat();
    let trunks = [
        &[2][..],
        &[4, 0, 0, 2, 0x10, 0, 3, 0x04, 1, 4, 0, 4],
        &frame(1, mac(0), mac(1), &tagged),
        &frame(2, [0xff; 6], mac(9), &tagged),
        &frame(0, mac(9), mac(0), &plain),
        &frame(2, mac(0), mac(2), &twice),
    ]
    .concat();
    vec![same, trunks, [&[0][..], &[0; 6], &frame(0, mac(1), mac(1), &plain)].concat()]
}
