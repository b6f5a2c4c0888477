//! What a frame may leave to its receiver: its checksum, and its division into frames that fit (docs/protocol.md section 10.5).
//!
//! All of this works on bytes that were copied; every field of a header is checked before it is used.
#![deny(clippy::as_conversions)]

use std::ops::Range;

use crate::checksum::Sum;
use crate::wire::{
    CHECKSUM_NEEDED, CHECKSUM_VALID, OFFLOAD_CHECKSUM, OFFLOAD_ECN, OFFLOAD_TSO4, OFFLOAD_TSO6, OFFLOAD_USO, OFFLOADS, Offload,
    SEGMENT_ECN, SEGMENT_TCP4, SEGMENT_TCP6, SEGMENT_UDP,
};

/// Longest headers of a frame that is divided: Ethernet with a tag, IPv4 and TCP with all options.
pub const MAX_HEADERS_BYTES: usize = 18 + 60 + 60;
/// Most frames that one is divided into: one of 64 KiB into pieces of 256 bytes.
pub const MAX_SEGMENTS: usize = 256;

const IPV4: usize = 20;
const IPV6: usize = 40;
const TCP: usize = 20;
const UDP: usize = 8;
const TYPE_IPV4: u16 = 0x0800;
const TYPE_IPV6: u16 = 0x86dd;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
/// Where TCP and UDP have their checksum.
const TCP_CHECKSUM: usize = 16;
const UDP_CHECKSUM: usize = 6;
/// Flags of TCP, in its byte 13.
const TCP_FLAGS: usize = 13;
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const PUSH: u8 = 0x08;
const CWR: u8 = 0x80;

/// Those that are in force for a client that asks for `asked`: each of them only with what it needs.
pub const fn granted(asked: u32) -> u32 {
    let known = asked & OFFLOADS;
    match known & OFFLOAD_CHECKSUM {
        0 => 0,
        _ if known & (OFFLOAD_TSO4 | OFFLOAD_TSO6) == 0 => known & !OFFLOAD_ECN,
        _ => known,
    }
}

impl Offload {
    /// Nothing is left to be done.
    pub const NONE: Self =
        Self { flags: 0, segmentation: 0, header_bytes: 0, segment_bytes: 0, checksum_start: 0, checksum_offset: 0 };

    /// The offloads that it needs. `None`: it has a flag or a type that does not exist.
    pub const fn needs(&self) -> Option<u32> {
        if self.flags & !(CHECKSUM_NEEDED | CHECKSUM_VALID) != 0 {
            return None;
        }
        let checksum = if self.flags == 0 { 0 } else { OFFLOAD_CHECKSUM };
        let ecn = if self.segmentation & SEGMENT_ECN == 0 { 0 } else { OFFLOAD_ECN };
        match self.segmentation & !SEGMENT_ECN {
            0 if ecn == 0 => Some(checksum),
            SEGMENT_TCP4 => Some(checksum | ecn | OFFLOAD_TSO4),
            SEGMENT_TCP6 => Some(checksum | ecn | OFFLOAD_TSO6),
            SEGMENT_UDP if ecn == 0 => Some(checksum | OFFLOAD_USO),
            _ => None,
        }
    }

    /// The same for a frame whose headers have become longer or shorter by a VLAN tag.
    pub fn shifted(self, bytes: i16) -> Self {
        let shift = |applies: bool, offset: u16| if applies { offset.saturating_add_signed(bytes) } else { offset };
        let checksum_start = shift(self.flags & CHECKSUM_NEEDED != 0, self.checksum_start);
        Self { checksum_start, header_bytes: shift(self.segmentation != 0, self.header_bytes), ..self }
    }
}

/// The offload of a frame, checked against the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    /// As it is carried: fields that mean nothing are 0, and the length of the headers is theirs.
    pub offload: Offload,
    /// The offloads that a receiver which gets it unchanged must take.
    pub needs: u32,
    /// Where the packet begins.
    packet: usize,
}

impl Checked {
    /// Of a frame of this length with these first bytes, which hold all of its headers, at least [`MAX_HEADERS_BYTES`] if it has as many.
    /// The packet begins at `packet`, and frames may be `most_bytes` long. `None`: it is not true of this frame.
    pub fn new(offload: &Offload, first: &[u8], length_bytes: usize, (packet, most_bytes): (usize, usize)) -> Option<Self> {
        let needs = offload.needs()?;
        let Offload { flags, segmentation, segment_bytes, checksum_start, checksum_offset, .. } = *offload;
        let mut checked = Self { offload: Offload { flags, segmentation, ..Offload::NONE }, needs, packet };
        if flags & CHECKSUM_NEEDED != 0 {
            let (start, offset) = (usize::from(checksum_start), usize::from(checksum_offset));
            let is_within = start >= packet && start + offset + 2 <= length_bytes;
            if !is_within || flags & CHECKSUM_VALID != 0 {
                return None;
            }
            checked.offload = Offload { checksum_start, checksum_offset, ..checked.offload };
        }
        if segmentation == 0 {
            return Some(checked);
        }
        let headers = headers_bytes(offload, first, length_bytes, packet)?;
        let (segment, payload) = (usize::from(segment_bytes), length_bytes.checked_sub(headers)?);
        let fits = segment > 0 && headers + segment <= most_bytes;
        if !fits || payload == 0 || payload.div_ceil(segment) > MAX_SEGMENTS {
            return None;
        }
        checked.offload = Offload { segment_bytes, header_bytes: u16::try_from(headers).ok()?, ..checked.offload };
        Some(checked)
    }

    /// Put the checksum that is left to be done into the frame.
    pub fn complete(&self, frame: &mut [u8]) {
        let Offload { flags, checksum_start, checksum_offset, .. } = self.offload;
        if flags & CHECKSUM_NEEDED == 0 {
            return;
        }
        // The field holds what of the sum is not in the frame.
        let covered = frame.get_mut(usize::from(checksum_start)..).unwrap_or_default();
        let sum = Sum::of(covered).finish_never_0();
        put(covered, checksum_offset.into(), sum);
    }

    /// The headers of segment `number` of the frame, put at the beginning of `headers`, and its payload. `None`: there is none.
    pub fn segment(&self, frame: &[u8], number: usize, headers: &mut [u8; MAX_HEADERS_BYTES]) -> Option<(usize, Range<usize>)> {
        let Offload { segmentation, header_bytes, segment_bytes, checksum_start, .. } = self.offload;
        let (transport, length) = (usize::from(checksum_start), usize::from(header_bytes));
        let from = length + number * usize::from(segment_bytes);
        let payload = from..frame.len().min(from + usize::from(segment_bytes));
        if payload.is_empty() {
            return None;
        }
        let headers = headers.get_mut(..length)?;
        headers.copy_from_slice(frame.get(..length)?);
        let number = u16::try_from(number).ok()?;
        let packet_bytes = u16::try_from(length - self.packet + payload.len()).ok()?;
        let pseudo = network_header(headers.get_mut(self.packet..transport)?, packet_bytes, number)?;
        let transport_bytes = u16::try_from(length - transport + payload.len()).ok()?;
        let header = headers.get_mut(transport..)?;
        let is_udp = segmentation == SEGMENT_UDP;
        let checksum = if is_udp { UDP_CHECKSUM } else { TCP_CHECKSUM };
        put(header, checksum, [0, 0]);
        match is_udp {
            true => put(header, 4, transport_bytes.to_be_bytes()),
            false => tcp_header(header, u32::from(number) * u32::from(segment_bytes), number == 0, payload.end == frame.len())?,
        }
        let sum = pseudo.plus_number(transport_bytes).plus_number(if is_udp { PROTOCOL_UDP } else { PROTOCOL_TCP }.into());
        let sum = sum.plus(header).plus(frame.get(payload.clone())?);
        put(header, checksum, sum.finish_never_0());
        Some((length, payload))
    }
}

/// The length of all headers of a frame that is to be divided; `None` if they are not what the offload says.
fn headers_bytes(offload: &Offload, first: &[u8], length_bytes: usize, packet: usize) -> Option<usize> {
    let ether_type = u16_at(first, packet.checked_sub(2)?)?;
    let ip = first.get(packet..)?;
    let packet_bytes = length_bytes.checked_sub(packet)?;
    let (ip_bytes, protocol) = match (ether_type, ip.first()? >> 4) {
        (TYPE_IPV4, 4) => {
            let header_bytes = usize::from(ip[0] & 0x0f) * 4;
            // Neither a fragment nor one of which more will come.
            let is_whole = u16_at(ip, 6)? & 0x3fff == 0;
            let is_right = header_bytes >= IPV4 && is_whole && usize::from(u16_at(ip, 2)?) == packet_bytes;
            (is_right.then_some(header_bytes)?, *ip.get(9)?)
        }
        // Headers between the two are not looked for: no stack divides such packets.
        (TYPE_IPV6, 6) => ((usize::from(u16_at(ip, 4)?) + IPV6 == packet_bytes).then_some(IPV6)?, *ip.get(6)?),
        _ => return None,
    };
    let transport = packet + ip_bytes;
    let header = first.get(transport..)?;
    let (transport_bytes, checksum) = match protocol {
        PROTOCOL_TCP => {
            let flags = *header.get(TCP_FLAGS)?;
            let header_bytes = usize::from(header.get(12)? >> 4) * 4;
            ((header_bytes >= TCP && flags & SYN == 0).then_some(header_bytes)?, TCP_CHECKSUM)
        }
        PROTOCOL_UDP => ((usize::from(u16_at(header, 4)?) + ip_bytes == packet_bytes).then_some(UDP)?, UDP_CHECKSUM),
        _ => return None,
    };
    let is_as_said = match offload.segmentation & !SEGMENT_ECN {
        SEGMENT_TCP4 => (ether_type, protocol) == (TYPE_IPV4, PROTOCOL_TCP),
        SEGMENT_TCP6 => (ether_type, protocol) == (TYPE_IPV6, PROTOCOL_TCP),
        _ => protocol == PROTOCOL_UDP,
    };
    let says_where = offload.flags == CHECKSUM_NEEDED
        && usize::from(offload.checksum_start) == transport
        && usize::from(offload.checksum_offset) == checksum;
    (is_as_said && says_where && transport + transport_bytes <= first.len()).then_some(transport + transport_bytes)
}

/// Make the header of IPv4 or IPv6 that of segment `number`, a packet of so many bytes; the sum of its addresses.
fn network_header(header: &mut [u8], packet_bytes: u16, number: u16) -> Option<Sum> {
    if header.first()? >> 4 == 6 {
        put(header, 4, packet_bytes.checked_sub(40)?.to_be_bytes());
        return Some(Sum::of(header.get(8..IPV6)?));
    }
    put(header, 2, packet_bytes.to_be_bytes());
    let identification = u16_at(header, 4)?.wrapping_add(number);
    put(header, 4, identification.to_be_bytes());
    put(header, 10, [0, 0]);
    let sum = Sum::of(header).finish();
    put(header, 10, sum);
    Some(Sum::of(header.get(12..IPV4)?))
}

/// Make the header of TCP that of a segment whose payload begins `offset` bytes behind the first one's.
fn tcp_header(header: &mut [u8], offset: u32, is_first: bool, is_last: bool) -> Option<()> {
    let sequence = u32::from_be_bytes(*header.get(4..)?.first_chunk()?).wrapping_add(offset);
    header.get_mut(4..8)?.copy_from_slice(&sequence.to_be_bytes());
    let cleared = if is_last { 0 } else { FIN | PUSH } | if is_first { 0 } else { CWR };
    *header.get_mut(TCP_FLAGS)? &= !cleared;
    Some(())
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Put two bytes where there is room for them.
fn put(bytes: &mut [u8], at: usize, two: [u8; 2]) {
    if let Some(place) = bytes.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        *place = two;
    }
}
