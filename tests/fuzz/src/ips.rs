//! What a receiver takes for the source of a packet: a second implementation of `ips`, which looks at whole frames.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use fipsee_net::frame::Mac;
use fipsee_net::switch::Rules;

const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const FRAGMENT: u8 = 44;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;

/// Does a receiver that takes off any tags, and follows any headers, see addresses of the port alone?
pub(crate) fn is_own(rules: &Rules, frame: &[u8]) -> bool {
    if rules.ips.is_empty() {
        return true;
    }
    let mut at = 12;
    while matches!(frame.get(at..at + 2), Some([0x81, 0] | [0x88, 0xa8] | [0x91, 0])) {
        at += 4;
    }
    let packet = frame.get(at + 2..).unwrap_or_default();
    match frame.get(at..at + 2) {
        // A receiver drops what is shorter than its headers: there is no source.
        Some([8, 0]) if packet.len() >= 20 => is_own_ipv4(&rules.ips, packet),
        Some([8, 6] | [0x80, 0x35]) if packet.len() >= 28 => is_own_arp(&rules.ips, &frame[6..12], packet),
        Some([0x86, 0xdd]) if packet.len() >= 40 => is_own_ipv6(&rules.ips, rules.mac, packet),
        _ => true,
    }
}

fn address(bytes: &[u8]) -> IpAddr {
    <[u8; 4]>::try_from(bytes).map_or_else(
        |_| Ipv6Addr::from(<[u8; 16]>::try_from(bytes).expect("an address")).into(),
        |four| Ipv4Addr::from(four).into(),
    )
}

fn is_own_ipv4(ips: &[IpAddr], packet: &[u8]) -> bool {
    let source = address(&packet[12..16]);
    let udp = usize::from(packet[0] & 15) * 4;
    let asks = packet[9] == UDP && packet[16..20] == [255; 4] && packet.get(udp..udp + 4) == Some(&[0, 68, 0, 67]);
    ips.contains(&source) || source.is_unspecified() && asks
}

fn is_own_arp(ips: &[IpAddr], source: &[u8], packet: &[u8]) -> bool {
    let sender = address(&packet[14..18]);
    // Hardware and protocol: a receiver takes no others.
    packet[..6] == [0, 1, 8, 0, 6, 4] && packet[8..14] == *source && (sender.is_unspecified() || ips.contains(&sender))
}

fn is_own_ipv6(ips: &[IpAddr], Mac([a, b, c, d, e, f]): Mac, packet: &[u8]) -> bool {
    let link_local = Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
    let is_listed = |address: IpAddr| ips.contains(&address) || address == IpAddr::from(link_local);
    let source = address(&packet[8..24]);
    let advertised =
        icmpv6(packet).filter(|message| message[0] == NEIGHBOUR_ADVERTISEMENT).and_then(|message| message.get(8..24));
    (source.is_unspecified() || is_listed(source)) && advertised.is_none_or(|target| is_listed(address(target)))
}

/// The message behind all headers of a packet that is whole, or of its first fragment.
fn icmpv6(packet: &[u8]) -> Option<&[u8]> {
    let (mut next, mut at) = (packet[6], 40);
    loop {
        let header = packet.get(at..).filter(|header| !header.is_empty())?;
        match next {
            ICMPV6 => return Some(header),
            FRAGMENT if header.get(2)? | header.get(3)? & 0xf8 != 0 => return None,
            FRAGMENT => at += 8,
            0 | 43 | 60 => at += (usize::from(*header.get(1)?) + 1) * 8,
            _ => return None,
        }
        next = header[0];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_sources_are_seen_behind_tags_and_headers() {
        let ips = vec!["192.0.2.1".parse().expect("an address"), "2001:db8::1".parse().expect("an address")];
        let rules = Rules { ips, ..Rules::new(Mac([2, 0, 0, 0, 0, 1])) };
        let frame = |types: &[u8], packet: &[u8]| [&[0xff; 6][..], &rules.mac.0, types, packet].concat();
        let v4 = |source: u8| [&[0x45, 0, 0, 20, 0, 0, 0, 0, 64, 6, 0, 0, 192, 0, 2, source][..], &[192, 0, 2, 9]].concat();
        assert!(is_own(&rules, &frame(&[8, 0], &v4(1))) && !is_own(&rules, &frame(&[8, 0], &v4(2))));
        assert!(!is_own(&rules, &frame(&[0x88, 0xa8, 0, 0, 0x81, 0, 0, 0, 8, 0], &v4(2))));
        let advertises = |last: u8| {
            let source = "2001:db8::1".parse::<Ipv6Addr>().expect("an address").octets();
            let target = [&source[..15], &[last]].concat();
            let options = [ICMPV6, 0, 0, 0, 0, 0, 0, 0];
            [&[0x60, 0, 0, 0, 0, 32, 60, 255][..], &source, &[0xff; 16], &options, &[136, 0, 0, 0, 0, 0, 0, 0], &target].concat()
        };
        assert!(is_own(&rules, &frame(&[0x86, 0xdd], &advertises(1))));
        assert!(!is_own(&rules, &frame(&[0x86, 0xdd], &advertises(2))));
    }
}
