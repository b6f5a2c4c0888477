//! Which pair of a port gets a frame, if the port has several: the same one for all frames of a flow, as a network card chooses (receive side
//! scaling).

use fipsee_ring::memory::{Span, copy_from};

const MACS: usize = 12;
const TYPE_IPV4: [u8; 2] = [0x08, 0x00];
const TYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const TCP: u8 = 6;
const UDP: u8 = 17;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
/// Of TCP and UDP: both are at the beginning.
const PORTS: usize = 4;
/// Most first bytes that are looked at: Ethernet with a tag, IPv4 with all its options, ports.
const MAX_BYTES: usize = 18 + 60 + PORTS;

/// A number that is the same for all frames of a flow, and however many first bytes of a frame were copied to `head` before: the same flow may
/// have frames of each kind.
///
/// # Safety
/// `rest` is mapped for loads.
pub(super) unsafe fn flow(head: &[u8], rest: &[Span]) -> usize {
    if head.len() >= MAX_BYTES || rest.is_empty() {
        return flow_of(head);
    }
    let mut first = [0; MAX_BYTES];
    let length = MAX_BYTES.min(rest.iter().fold(head.len(), |sum, span| sum.saturating_add(span.length_bytes())));
    let (copied, more) = first[..length].split_at_mut(head.len());
    copied.copy_from_slice(head);
    // These bytes are copied again for the receiver. A sender that changes them in between changes by which pair its own frame comes.
    // SAFETY: by the caller; `first` is our own.
    let is_whole = unsafe { copy_from(rest, more) };
    debug_assert!(is_whole, "there are so many");
    flow_of(&first[..length])
}

/// Of what is not there, as in a frame that is cut off, nothing is used.
fn flow_of(first: &[u8]) -> usize {
    let (macs, rest) = first.split_at(MACS.min(first.len()));
    let (ether_type, packet) = match rest {
        [0x81, 0x00, _, _, t0, t1, packet @ ..] => ([*t0, *t1], packet),
        [t0, t1, packet @ ..] => ([*t0, *t1], packet),
        _ => ([0; 2], &[][..]),
    };
    let (ips, ports) = match (ether_type, packet.first().map(|first| first >> 4)) {
        (TYPE_IPV4, Some(4)) => (packet.get(12..IPV4_BYTES), ipv4_ports(packet)),
        (TYPE_IPV6, Some(6)) => (packet.get(8..IPV6_BYTES), ipv6_ports(packet)),
        _ => (None, None),
    };
    let parts = [macs, ips.unwrap_or_default(), ports.unwrap_or_default()];
    let mix = |hash: u64, word: &[u8; 4]| {
        let mixed = (hash ^ u64::from(u32::from_le_bytes(*word))).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ (mixed >> 32)
    };
    let hash = parts.iter().flat_map(|part| part.as_chunks::<4>().0).fold(0, mix);
    // Once more: the last word has not changed all bits evenly, and addresses and ports often follow one another.
    (hash.wrapping_mul(0xff51_afd7_ed55_8ccd) >> 32) as usize
}

/// No fragment has them: only the first one would, and all are to come by the same pair.
fn ipv4_ports(packet: &[u8]) -> Option<&[u8]> {
    let [version_and_words, _, _, _, _, _, f0, f1, _, protocol, ..] = packet else { return None };
    let header_bytes = usize::from(version_and_words & 0x0f) * 4;
    let is_whole = u16::from_be_bytes([*f0, *f1]) & 0x3fff == 0;
    let has_ports = header_bytes >= IPV4_BYTES && is_whole && matches!(*protocol, TCP | UDP);
    packet.get(header_bytes..header_bytes + PORTS).filter(|_| has_ports)
}

/// Likewise; what is behind further headers, of which that of fragments is one, is not looked for.
fn ipv6_ports(packet: &[u8]) -> Option<&[u8]> {
    packet.get(IPV6_BYTES..IPV6_BYTES + PORTS).filter(|_| matches!(packet[6], TCP | UDP))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::ptr::NonNull;

    use super::*;

    const TYPE_TAG: [u8; 2] = [0x81, 0x00];
    const HOP_BY_HOP: u8 = 0;
    const FRAGMENT: u8 = 44;
    const ICMP: u8 = 1;

    /// What a flow is known by: the last bytes of the addresses, and the ports.
    #[derive(Clone, Copy)]
    struct Ends {
        macs: [u8; 2],
        ips: [u8; 2],
        ports: [u16; 2],
    }

    const ENDS: Ends = Ends { macs: [1, 2], ips: [3, 4], ports: [5000, 7] };

    fn ethernet(ends: &Ends, tag: Option<u16>, ether_type: [u8; 2], packet: &[u8]) -> Vec<u8> {
        let [to, from] = ends.macs.map(|last| [2, 0, 0, 0, 0, last]);
        let tag = tag.map(|tag| [&TYPE_TAG[..], &tag.to_be_bytes()].concat()).unwrap_or_default();
        [&to[..], &from, &tag, &ether_type, packet].concat()
    }

    fn payload(ends: &Ends) -> Vec<u8> {
        [&ends.ports[0].to_be_bytes()[..], &ends.ports[1].to_be_bytes(), &[9; 40]].concat()
    }

    /// With so many words of options.
    fn v4(ends: &Ends, tag: Option<u16>, (protocol, fragment): (u8, u16), options: u8) -> Vec<u8> {
        let [f0, f1] = fragment.to_be_bytes();
        let header = [0x45 + options, 0, 0, 0, 7, 7, f0, f1, 64, protocol, 0, 0];
        let [from, to] = ends.ips.map(|last| [192, 0, 2, last]);
        let options = vec![1; usize::from(options) * 4];
        ethernet(ends, tag, TYPE_IPV4, &[&header[..], &from, &to, &options, &payload(ends)].concat())
    }

    fn v6(ends: &Ends, tag: Option<u16>, next: u8) -> Vec<u8> {
        let [from, to] = ends.ips.map(|last| [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        ethernet(ends, tag, TYPE_IPV6, &[&[0x60, 0, 0, 0, 0, 44, next, 64][..], &from, &to, &payload(ends)].concat())
    }

    /// A frame of these ends, with or without a tag.
    type Make = fn(&Ends, Option<u16>) -> Vec<u8>;

    const WITH_PORTS: [Make; 6] = [
        |ends, tag| v4(ends, tag, (TCP, 0), 0),
        |ends, tag| v4(ends, tag, (UDP, 0x4000), 0),
        |ends, tag| v4(ends, tag, (TCP, 0), 10),
        |ends, tag| v4(ends, tag, (UDP, 0), 3),
        |ends, tag| v6(ends, tag, TCP),
        |ends, tag| v6(ends, tag, UDP),
    ];
    const WITHOUT_PORTS: [Make; 6] = [
        |ends, tag| v4(ends, tag, (UDP, 0x2000), 0),
        |ends, tag| v4(ends, tag, (UDP, 0x2001), 0),
        |ends, tag| v4(ends, tag, (TCP, 1), 2),
        |ends, tag| v4(ends, tag, (ICMP, 0), 0),
        |ends, tag| v6(ends, tag, FRAGMENT),
        |ends, tag| v6(ends, tag, HOP_BY_HOP),
    ];

    #[test]
    fn addresses_and_ports_of_ip_decide_with_and_without_a_tag() {
        let others = [
            Ends { ports: [5001, 7], ..ENDS },
            Ends { ports: [5000, 8], ..ENDS },
            Ends { ips: [9, 4], ..ENDS },
            Ends { ips: [3, 9], ..ENDS },
            Ends { macs: [9, 2], ..ENDS },
            Ends { macs: [1, 9], ..ENDS },
        ];
        for (makes, has_ports) in [(WITH_PORTS, true), (WITHOUT_PORTS, false)] {
            for (number, make) in makes.into_iter().enumerate() {
                let own = flow_of(&make(&ENDS, None));
                assert!([0, 10, 0xffff].iter().all(|tag| flow_of(&make(&ENDS, Some(*tag))) == own), "{has_ports} {number}");
                for (other, ends) in others.iter().enumerate() {
                    let is_other = flow_of(&make(ends, None)) != own;
                    assert_eq!(is_other, has_ports || other >= 2, "{has_ports} {number}: {other}");
                }
            }
        }
    }

    #[test]
    fn fragments_of_a_datagram_are_one_flow_whatever_their_payload() {
        let fragment = |fragment, ports| flow_of(&v4(&Ends { ports, ..ENDS }, None, (UDP, fragment), 0));
        let first = fragment(0x2000, ENDS.ports);
        // In the middle, and the last one.
        assert_eq!([fragment(0x20b9, [77, 78]), fragment(0x0172, [79, 80])], [first; 2]);
    }

    #[test]
    fn what_is_no_packet_of_ip_is_known_by_its_addresses_of_ethernet_alone() {
        let mut wrong_version = v4(&ENDS, None, (TCP, 0), 0);
        wrong_version[14] = 0x65;
        let plain = flow_of(&ethernet(&ENDS, None, [0x88, 0xb5], &[1; 60]));
        let same = [
            wrong_version,
            ethernet(&ENDS, None, [0x88, 0xb5], &[2; 60]),
            // With a second tag.
            ethernet(&ENDS, Some(10), TYPE_TAG, &v4(&ENDS, None, (TCP, 0), 0)[12..]),
            ethernet(&ENDS, None, [0x88, 0xa8], &[0, 10, 8, 0, 0x45, 1, 2, 3]),
        ];
        same.iter().for_each(|frame| assert_eq!(flow_of(frame), plain, "{frame:?}"));
        let short_header = |words: u8| {
            let mut frame = v4(&ENDS, None, (TCP, 0), 0);
            frame[14] = 0x40 | words;
            flow_of(&frame)
        };
        assert_eq!(short_header(4), flow_of(&v4(&ENDS, None, (ICMP, 0), 0)), "its ports would be its addresses");
    }

    #[test]
    fn frame_that_is_cut_off_has_a_flow_by_what_is_whole() {
        for make in WITH_PORTS.into_iter().chain(WITHOUT_PORTS) {
            for tag in [None, Some(10)] {
                let whole = make(&ENDS, tag);
                let flows: HashSet<usize> = (0..=whole.len()).map(|length| flow_of(&whole[..length])).collect();
                // Nothing, each further word of the addresses, IP addresses, ports.
                assert!(flows.len() <= 6, "{}", flows.len());
            }
        }
    }

    #[test]
    fn flow_is_the_same_however_many_bytes_were_copied_before() {
        for make in WITH_PORTS.into_iter().chain(WITHOUT_PORTS) {
            for tag in [None, Some(10)] {
                let mut frame = make(&ENDS, tag);
                let own = flow_of(&frame);
                for at in 0..frame.len() {
                    for second in [at, (at + 3).min(frame.len())] {
                        let (head, rest) = frame.split_at_mut(at);
                        let (near, far) = rest.split_at_mut(second - at);
                        // SAFETY: each is borrowed until both spans are used.
                        let spans = [near, far].map(|part| unsafe { Span::new(NonNull::from(&mut *part).cast(), part.len()) });
                        // SAFETY: as above.
                        assert_eq!(unsafe { flow(head, &spans) }, own, "{at} {second}");
                    }
                }
            }
        }
    }

    /// Ports that follow one another, and networks and hosts.
    #[test]
    fn flows_are_spread_over_pairs() {
        let series: [fn(u8) -> [u8; 8]; 4] = [
            |number| [10, 0, 0, 3, 0x14, number, 0, 7],
            |number| [10, 0, 0, 3, 0, 7, 0x14, number],
            |number| [10, 0, 0, number, 0, 7, 0x14, 0],
            |number| [10, 0, number, 3, 0, 7, 0x14, 0],
        ];
        for (ends, pairs) in series.into_iter().flat_map(|ends| (2..=8_usize).map(move |pairs| (ends, pairs))) {
            let mut of_pair = vec![0; pairs];
            for number in 0..240 {
                let mut frame = v4(&ENDS, None, (TCP, 0), 0);
                let [ip @ .., p0, p1, p2, p3] = ends(number);
                frame[30..34].copy_from_slice(&ip);
                frame[34..38].copy_from_slice(&[p0, p1, p2, p3]);
                of_pair[flow_of(&frame) % pairs] += 1;
            }
            let least = 240 / pairs / 2;
            assert!(of_pair.iter().all(|flows| *flows >= least), "{of_pair:?}");
        }
    }
}
