//! Whole frames of ports that may send with some IP addresses, in access and trunk VLANs, through the network: what comes out has the length and bytes that
//! were sent, is where it may be, and has no other source.

use std::net::IpAddr;

use fipsee_net::switch::Rules;
use fipsee_net::wire::{OFFLOADS, Offload};

use crate::lan::{self, Got, Side, To, mac};
use crate::{switch, take};

const PORTS: u8 = 4;
/// Longest frame of an input, and as many zeroes as may follow it.
const MOST_ZEROES: usize = 64 << 10;
const IPS: [&str; 4] = ["192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2"];

/// Each port has five bytes: VLANs, tags, flags, IP addresses and offloads that it takes. Then frames: a byte for the port and whether an offload comes,
/// one for the length, two for the zeroes that follow, the offload, and the first bytes.
pub(crate) fn one(mut bytes: &[u8]) {
    let settings: [[u8; 5]; PORTS as usize] = [(); PORTS as usize].map(|()| take(&mut bytes));
    let rules: Vec<Rules> = (0..).zip(settings).map(|(number, settings)| rules(number, settings)).collect();
    let switches = lan::network(&rules);
    let ports: Vec<_> = (0..rules.len()).map(|number| lan::port(&switches, number)).collect();
    let offloads = settings.map(|[.., offloads]| u32::from(offloads) & OFFLOADS);
    let got: Vec<Got> = ports.iter().zip(offloads).map(|(port, offloads)| Side::serve(port, offloads)).collect();
    while !bytes.is_empty() {
        let [from, length, low, high] = take(&mut bytes);
        let offload = if from & 0x80 == 0 { Offload::NONE } else { zerocopy::transmute!(take::<10>(&mut bytes)) };
        let (front, rest) = bytes.split_at(bytes.len().min(length.into()));
        bytes = rest;
        let mut frame = front.to_vec();
        frame.resize(frame.len() + usize::from(u16::from_le_bytes([low, high])).min(MOST_ZEROES), 0);
        let from = from % PORTS;
        lan::send(&ports[usize::from(from)], &frame, offload);
        for ((got, offloads), port) in got.iter().zip(offloads).zip(0..) {
            let got = got.take();
            assert!(port != from || got.iter().all(|(left, _)| left[6..12] == mac(from).0), "its own frame");
            if port != from {
                lan::check(&rules, from, (&frame, offload), To { port, offloads, takes_all: true }, &got);
            }
        }
    }
}

fn rules(number: u8, [vlans, tags, flags, ips, _]: [u8; 5]) -> Rules {
    let ips = IPS.iter().enumerate().filter(|(bit, _)| ips >> bit & 1 != 0);
    let ips: Vec<IpAddr> = ips.map(|(_, ip)| ip.parse().expect("an address")).collect();
    Rules { ips, ..switch::rules(number, [vlans, tags, flags]) }
}

/// Ports of one VLAN without a tag; the first may send with addresses that end with 1.
const PLAIN: [[u8; 5]; 4] = [[0, 0, 0, 5, 31], [0, 0, 0, 0, 31], [0, 0, 1, 0, 0], [0, 0, 4, 0, 1]];
/// Two trunks of VLAN 1, an access port of it, and a mirror.
const TAGGED: [[u8; 5]; 4] = [[3, 0, 0, 5, 31], [3, 0, 0, 0, 0], [4, 0, 0, 10, 31], [0, 0, 4, 0, 31]];

/// A frame with its port, and its offload if it has one.
type Sent = (u8, Option<[u8; 10]>, Vec<u8>);

fn input(settings: [[u8; 5]; 4], frames: &[Sent]) -> Vec<u8> {
    let frame = |(from, offload, bytes): &Sent| {
        let front = bytes.len().min(255);
        let zeroes = u16::try_from(bytes.len() - front).expect("short").to_le_bytes();
        let flag = if offload.is_some() { 0x80 } else { 0 };
        let offload = offload.map_or(Vec::new(), |offload| offload.to_vec());
        [&[from | flag, u8::try_from(front).expect("short")][..], &zeroes, &offload, &bytes[..front]].concat()
    };
    [settings.concat(), frames.iter().flat_map(frame).collect()].concat()
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let frame = |from: u8, to: u8, types: &[u8], packet: &[u8]| [&mac(to).0[..], &mac(from).0, types, packet].concat();
    let (tag, v4, v6, arp) = ([0x81, 0, 0, 1], [8, 0], [0x86, 0xdd], [8, 6]);
    let source = |last: u8| [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
    let packet4 = |last: u8| [&[0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, last, 192, 0, 2, 9][..], &[0; 8]].concat();
    let packet6 =
        |last: u8, next: u8, payload: &[u8]| [&[0x60, 0, 0, 0, 0, 0, next, 255][..], &source(last), &source(9), payload].concat();
    let asks =
        |from: u8, last: u8| [&[0, 1, 8, 0, 6, 4, 0, 1][..], &mac(from).0, &[192, 0, 2, last], &[0; 6], &[192, 0, 2, 9]].concat();
    let about = |kind: u8, last: u8| [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &source(last)].concat();
    let dhcp = [&[0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255][..], &[0, 68, 0, 67, 0, 8, 0, 0]];
    let divided = |segmentation: u8| Some([1, segmentation, 54, 0, 0, 2, 34, 0, 16, 0]);
    let checksum = Some([1, 0, 0, 0, 0, 0, 34, 0, 6, 0]);
    let tcp = lan::tcp4(0, 2, 3000);
    let behind = |header: &[u8]| [header, &about(136, 2)].concat();
    vec![
        input(PLAIN, &[(0, None, frame(0, 1, &v4, &packet4(1))), (0, None, frame(0, 1, &v4, &packet4(2)))]),
        input(PLAIN, &[(0, None, frame(0, 1, &arp, &asks(0, 1))), (0, None, frame(0, 1, &arp, &asks(1, 1)))]),
        input(PLAIN, &[(0, None, frame(0, 1, &v6, &packet6(1, 58, &about(136, 1))))]),
        input(PLAIN, &[(0, None, frame(0, 2, &v6, &packet6(1, 60, &behind(&[58, 0, 0, 0, 0, 0, 0, 0]))))]),
        input(PLAIN, &[(0, None, frame(0, 2, &v6, &packet6(1, 44, &behind(&[58, 0, 0, 1, 0, 0, 0, 0]))))]),
        input(PLAIN, &[(0, None, [&[0xff; 6][..], &mac(0).0, &v4, &dhcp.concat()].concat())]),
        input(PLAIN, &[(0, divided(1), tcp.clone()), (0, divided(1), lan::tcp4(0, 1, 3000)), (1, checksum, lan::tcp4(1, 2, 40))]),
        input(PLAIN, &[(1, None, frame(1, 0, &v4, &[0; 1500])), (1, None, frame(1, 2, &v4, &[0; 1501]))]),
        input(TAGGED, &[(0, None, frame(0, 1, &[&tag[..], &v4].concat(), &packet4(1)))]),
        input(
            TAGGED,
            &[(0, None, frame(0, 2, &[&tag[..], &v4].concat(), &packet4(2))), (2, None, frame(2, 0, &v4, &packet4(2)))],
        ),
        input(TAGGED, &[(2, None, frame(2, 0, &[0x88, 0xa8, 0, 2, 8, 0], &packet4(1)))]),
        input(TAGGED, &[(1, Some([1, 1, 0, 0, 0, 2, 38, 0, 16, 0]), [&tcp[..6], &mac(1).0, &tag, &tcp[12..]].concat())]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the first frames of the seeds.
    #[test]
    fn seeds_with_own_addresses_come_out() {
        let sent = |settings: [[u8; 5]; 4], frame: &[u8]| {
            let rules: Vec<Rules> = (0..).zip(settings).map(|(number, settings)| rules(number, settings)).collect();
            let switches = lan::network(&rules);
            let got: Vec<Got> = (0..4).map(|number| Side::serve(&lan::port(&switches, number), 0)).collect();
            let outcome = lan::send(&lan::port(&switches, 0), frame, Offload::NONE);
            (outcome.status, got.iter().map(|got| got.take().len()).collect::<Vec<_>>())
        };
        let first = |seed: &[u8]| seed[24..][..usize::from(seed[21])].to_vec();
        let seeds = seeds();
        for (settings, seed, to) in [(PLAIN, 0, [0, 1, 0, 1]), (PLAIN, 2, [0, 1, 0, 1]), (TAGGED, 8, [0, 1, 0, 1])] {
            let (status, came) = sent(settings, &first(&seeds[seed]));
            assert_eq!((status, &came[..]), (fipsee_net::wire::Status::Ok, &to[..]), "seed {seed}");
        }
    }
}
