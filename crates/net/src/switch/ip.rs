//! The IP addresses with which a port may send, where IPv4, ARP, IPv6 and its neighbour discovery have them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::frame::{Header, Mac};

const TYPE_IPV4: u16 = 0x0800;
const TYPE_ARP: u16 = 0x0806;
const TYPE_RARP: u16 = 0x8035;
const TYPE_IPV6: u16 = 0x86dd;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const FRAGMENT: u8 = 44;
/// Options of hops and of the destination, routing: headers of IPv6 with their length in their second byte.
const OTHER_HEADERS: [u8; 3] = [0, 43, 60];
/// Most headers of IPv6 that are looked at.
const MAX_HEADERS: usize = 8;
const IPV6_BYTES: usize = 40;
/// Messages of ICMPv6.
const ROUTER_SOLICITATION: u8 = 133;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const LISTENER_REPORTS: [u8; 3] = [131, 132, 143];
/// What every ARP of IPv4 over Ethernet begins with.
const ARP_OF_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// May a port with this address of its own and these IP addresses send a frame with this header? `packet` is its packet, as much of it as was
/// copied. `false` also if more would have to be looked at.
pub(super) fn may_send(ips: &[IpAddr], own: Mac, header: &Header, packet: &[u8]) -> bool {
    let of = match header.ether_type {
        TYPE_IPV4 => ipv4(ips, packet),
        TYPE_ARP | TYPE_RARP => arp(ips, header.source, packet),
        TYPE_IPV6 => ipv6(ips, own, packet),
        // A receiver may take off a tag that names no VLAN, and take what is behind it for a packet.
        _ => Some(!header.has_tag_behind()),
    };
    of.unwrap_or(false)
}

fn ipv4(ips: &[IpAddr], packet: &[u8]) -> Option<bool> {
    let source = Ipv4Addr::from(*bytes::<4>(packet, 12)?);
    Some(packet.first()? >> 4 == 4 && (ips.contains(&source.into()) || source.is_unspecified() && asks_dhcp(packet)?))
}

/// A host that has no address yet asks for one.
fn asks_dhcp(packet: &[u8]) -> Option<bool> {
    let udp = packet.get(usize::from(packet.first()? & 0x0f) * 4..)?;
    let is_whole = u16::from_be_bytes(*bytes(packet, 6)?) & 0x3fff == 0;
    let to_all = Ipv4Addr::from(*bytes::<4>(packet, 16)?).is_broadcast();
    Some(*packet.get(9)? == UDP && is_whole && to_all && *bytes(udp, 0)? == [0, 68, 0, 67])
}

/// A host may ask whether an address is in use before it takes it: the sender has none then.
fn arp(ips: &[IpAddr], source: Mac, packet: &[u8]) -> Option<bool> {
    let sender = Ipv4Addr::from(*bytes::<4>(packet, 14)?);
    let is_own = *bytes(packet, 0)? == ARP_OF_IPV4 && *bytes(packet, 8)? == source.0;
    Some(is_own && (sender.is_unspecified() || ips.contains(&sender.into())))
}

fn ipv6(ips: &[IpAddr], own: Mac, packet: &[u8]) -> Option<bool> {
    let listed = |address: Ipv6Addr| ips.contains(&address.into()) || address == link_local(own);
    let source = Ipv6Addr::from(*bytes::<16>(packet, 8)?);
    if packet.first()? >> 4 != 6 || !(listed(source) || source.is_unspecified()) {
        return Some(false);
    }
    let message = icmpv6(packet)?;
    let kind = match message {
        Some(message) => Some(*message.first()?),
        None => None,
    };
    let target = || Some(listed(Ipv6Addr::from(*bytes::<16>(message?, 8)?)));
    match kind {
        Some(NEIGHBOUR_ADVERTISEMENT) => target(),
        _ if !source.is_unspecified() => Some(true),
        // It may ask whether an address of its own is in use, for routers, and for frames to groups.
        Some(NEIGHBOUR_SOLICITATION) => target(),
        Some(ROUTER_SOLICITATION) => Some(true),
        Some(kind) => Some(LISTENER_REPORTS.contains(&kind)),
        None => Some(false),
    }
}

/// The message of ICMPv6 in a packet of IPv6, behind all other headers; `Some(None)` if there is none, or in an earlier fragment.
fn icmpv6(packet: &[u8]) -> Option<Option<&[u8]>> {
    let (mut next, mut rest) = (*packet.get(6)?, packet.get(IPV6_BYTES..)?);
    for _ in 0..MAX_HEADERS {
        let header_bytes = match next {
            ICMPV6 => return Some(Some(rest)),
            FRAGMENT if u16::from_be_bytes(*bytes(rest, 2)?) & 0xfff8 != 0 => return Some(None),
            FRAGMENT => 8,
            _ if OTHER_HEADERS.contains(&next) => (usize::from(*rest.get(1)?) + 1) * 8,
            _ => return Some(None),
        };
        (next, rest) = (*rest.first()?, rest.get(header_bytes..)?);
    }
    None
}

/// The address that every port has by its MAC address.
fn link_local(Mac([a, b, c, d, e, f]): Mac) -> Ipv6Addr {
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

fn bytes<const N: usize>(of: &[u8], at: usize) -> Option<&[u8; N]> {
    of.get(at..)?.first_chunk()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const OWN_LINK_LOCAL: &str = "fe80::ff:fe00:1";

    fn may(ether_type: u16, packet: &[u8]) -> bool {
        let ips = ["192.0.2.1".parse().expect("an address"), "2001:db8::1".parse().expect("an address")];
        let header = Header { destination: Mac::BROADCAST, source: OWN, tag: None, ether_type };
        may_send(&ips, OWN, &header, packet)
    }

    fn v4(source: [u8; 4], destination: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
        [&[0x45, 0, 0, 28, 0, 0, 0, 0, 64, protocol, 0, 0][..], &source, &destination, payload].concat()
    }

    #[test]
    fn packet_behind_a_tag_that_a_receiver_may_take_off_is_not_sent() {
        let packet = [&[0, 0, 8, 0][..], &v4([192, 0, 2, 2], [192, 0, 2, 3], UDP, &[0; 8])].concat();
        assert!([0x8100, 0x88a8, 0x9100].iter().all(|tag| !may(*tag, &packet)) && may(0x88b5, &packet));
    }

    #[test]
    fn ipv4_has_an_own_source_or_asks_for_one() {
        let (own, other, none, all) = ([192, 0, 2, 1], [192, 0, 2, 2], [0; 4], [255; 4]);
        let dhcp = [0, 68, 0, 67, 0, 8, 0, 0];
        assert!(may(TYPE_IPV4, &v4(own, other, UDP, &dhcp)) && may(TYPE_IPV4, &v4(none, all, UDP, &dhcp)));
        let mut fragment = v4(none, all, UDP, &dhcp);
        fragment[6] = 0x20;
        let mut version = v4(own, other, UDP, &dhcp);
        version[0] = 0x65;
        let wrong = [
            v4(other, own, UDP, &dhcp),
            v4(none, other, UDP, &dhcp),
            v4(none, all, 6, &dhcp),
            v4(none, all, UDP, &[0, 67, 0, 68]),
            v4(none, all, UDP, &dhcp[..3]),
            fragment,
            version,
            v4(own, other, UDP, &[])[..15].to_vec(),
            Vec::new(),
        ];
        wrong.iter().for_each(|packet| assert!(!may(TYPE_IPV4, packet), "{packet:?}"));
    }

    #[test]
    fn arp_has_an_own_sender_or_none() {
        let arp = |mac: [u8; 6], ip: [u8; 4]| [&ARP_OF_IPV4[..], &[0, 1], &mac, &ip, &[0; 6], &[192, 0, 2, 9]].concat();
        for kind in [TYPE_ARP, TYPE_RARP] {
            assert!(may(kind, &arp(OWN.0, [192, 0, 2, 1])) && may(kind, &arp(OWN.0, [0; 4])));
            assert!(!may(kind, &arp(OWN.0, [192, 0, 2, 2])), "of another");
            assert!(!may(kind, &arp([2, 0, 0, 0, 0, 2], [192, 0, 2, 1])), "another MAC address");
            assert!(!may(kind, &arp(OWN.0, [192, 0, 2, 1])[..17]), "cut off");
            let mut strange = arp(OWN.0, [192, 0, 2, 1]);
            strange[5] = 16;
            assert!(!may(kind, &strange), "of another protocol");
        }
        assert!(may(0x88b5, &[]), "other types have no address");
    }

    fn v6(source: &str, next: u8, payload: &[u8]) -> Vec<u8> {
        let source: Ipv6Addr = source.parse().expect("an address");
        [&[0x60, 0, 0, 0, 0, 0, next, 255][..], &source.octets(), &[0xff; 16], payload].concat()
    }

    fn about(kind: u8, target: &str) -> Vec<u8> {
        [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &target.parse::<Ipv6Addr>().expect("an address").octets()].concat()
    }

    #[test]
    fn ipv6_has_an_own_source_and_advertises_own_addresses_alone() {
        let (own, other) = ("2001:db8::1", "2001:db8::2");
        let right = [
            v6(own, 6, &[]),
            v6(OWN_LINK_LOCAL, 6, &[]),
            v6(own, ICMPV6, &about(NEIGHBOUR_ADVERTISEMENT, own)),
            v6(OWN_LINK_LOCAL, ICMPV6, &about(NEIGHBOUR_ADVERTISEMENT, OWN_LINK_LOCAL)),
            v6(own, ICMPV6, &about(NEIGHBOUR_SOLICITATION, other)),
            v6("::", ICMPV6, &about(NEIGHBOUR_SOLICITATION, own)),
            v6("::", ICMPV6, &[ROUTER_SOLICITATION]),
            v6("::", 0, &[&[ICMPV6, 0, 0, 0, 0, 0, 0, 0][..], &[143]].concat()),
            v6(own, FRAGMENT, &[&[ICMPV6, 0, 0, 8, 0, 0, 0, 0][..], &[NEIGHBOUR_ADVERTISEMENT]].concat()),
        ];
        right.iter().for_each(|packet| assert!(may(TYPE_IPV6, packet), "{packet:?}"));
        let behind = |header: &[u8]| [header, &about(NEIGHBOUR_ADVERTISEMENT, other)].concat();
        let wrong = [
            v6(other, 6, &[]),
            v6("fe80::1", 6, &[]),
            v6("::", 6, &[]),
            v6("::", ICMPV6, &[128]),
            v6("::", ICMPV6, &about(NEIGHBOUR_SOLICITATION, other)),
            v6(own, ICMPV6, &about(NEIGHBOUR_ADVERTISEMENT, other)),
            v6(own, ICMPV6, &about(NEIGHBOUR_ADVERTISEMENT, own)[..23]),
            v6(own, ICMPV6, &[]),
            v6(own, 60, &behind(&[ICMPV6, 0, 0, 0, 0, 0, 0, 0])),
            v6(own, FRAGMENT, &behind(&[ICMPV6, 0, 0, 1, 0, 0, 0, 0])),
            v6(own, 60, &[ICMPV6, 3, 0, 0, 0, 0, 0, 0, 0]),
            v6(own, 0, &[0; 8 * MAX_HEADERS]),
            v6(own, 6, &[])[..39].to_vec(),
            v6(own, 6, &[])[..23].to_vec(),
        ];
        wrong.iter().for_each(|packet| assert!(!may(TYPE_IPV6, packet), "{packet:?}"));
    }
}
