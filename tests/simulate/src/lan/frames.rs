//! Frames that ports send: correct ones, which carry their number, and wrong ones, each with one thing wrong.

use fipsee_net::frame::Mac;
use fipsee_net::switch::{Rules, Vlans};
use fipsee_net::wire::{
    Addresses, MAX_FIRST_BYTES, MAX_SMALL_BYTES, OPERATION_SEND, OPERATION_SEND_SMALL, Offload, Send, Small, Status,
};
use fipsee_ring::Message;

use super::{MTU, POOL_BYTES};
use crate::rng::Rng;

/// Experiments (802).
const ETHER_TYPE: u16 = 0x88b5;
const TAG_TYPE: u16 = 0x8100;
/// A VLAN that no port is in.
const NO_VLAN: u16 = 99;
/// Header and number.
const LEAST_BYTES: usize = 18;

/// A frame as it is sent, and what the rules make of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) destination: Mac,
    pub(super) source: Mac,
    /// Priority and VLAN.
    pub(super) tag: Option<u16>,
    /// The VLAN that it is in.
    pub(super) vlan: u16,
    pub(super) bytes: Vec<u8>,
    /// The status that it must be answered with.
    pub(super) expected: Status,
}

/// What is wrong with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    SourceOfOther,
    SourceUnknown,
    SourceOfGroup,
    Vlan,
    SecondTag,
    TooShort,
    TooLong,
    Memory,
    Operation,
    Offload,
    FirstBytes,
}

const WRONG: [Wrong; 11] = [
    Wrong::SourceOfOther,
    Wrong::SourceUnknown,
    Wrong::SourceOfGroup,
    Wrong::Vlan,
    Wrong::SecondTag,
    Wrong::TooShort,
    Wrong::TooLong,
    Wrong::Memory,
    Wrong::Operation,
    Wrong::Offload,
    Wrong::FirstBytes,
];

/// The address of a port.
pub(super) const fn own(port: usize) -> Mac {
    Mac([2, 0, 0, 0, 0, port.to_le_bytes()[0]])
}

/// One of the addresses behind a port.
pub(super) const fn behind(port: usize, nth: usize) -> Mac {
    Mac([2, 0, 0, 0, 1 + nth.to_le_bytes()[0], port.to_le_bytes()[0]])
}

impl Wrong {
    const fn status(self) -> Status {
        match self {
            Self::SourceOfOther | Self::SourceUnknown | Self::SourceOfGroup => Status::WrongSource,
            Self::Vlan | Self::SecondTag => Status::WrongVlan,
            Self::TooShort => Status::TooShort,
            Self::TooLong => Status::TooLong,
            Self::Memory => Status::BadMemory,
            Self::Operation | Self::Offload => Status::Unsupported,
            Self::FirstBytes => Status::Invalid,
        }
    }
}

/// The tag of a frame that a port may send, and its VLAN.
fn tag(rules: &Rules, rng: &mut Rng) -> (Option<u16>, u16) {
    let priority = |rng: &mut Rng| u16::try_from(rng.below(8) << 13).unwrap_or(0);
    match &rules.vlans {
        Vlans::Access(vlan) => (None, *vlan),
        Vlans::Trunk { tagged, native } => match (native, rng.percent(40) || tagged.is_empty()) {
            (Some(vlan), true) => (rng.percent(50).then(|| priority(rng)), *vlan),
            _ => {
                let vlan = tagged[rng.below(tagged.len())];
                (Some(vlan | priority(rng)), vlan)
            }
        },
    }
}

/// No message of a transmit queue begins with it.
const NO_OPERATION: u8 = 11;

/// Where `port` of so many sends a frame.
fn destination(ports: usize, port: usize, rng: &mut Rng) -> Mac {
    match rng.below(20) {
        0..12 => own((port + 1 + rng.below(ports - 1)) % ports),
        12..15 => Mac::BROADCAST,
        15 => Mac([1, 0, 0x5e, 0, 0, 7]),
        16..19 => behind(rng.below(ports), rng.below(2)),
        _ => own(port),
    }
}

/// A frame of `port` with this number, and how it is sent: the message without tag and place, and the rest.
pub(super) fn draw(rules: &[Rules], port: usize, number: u32, is_wrong: bool, rng: &mut Rng) -> (Frame, Message, Vec<u8>) {
    let wrong = is_wrong.then(|| WRONG[rng.below(WRONG.len())]);
    let (own_rules, ports) = (&rules[port], rules.len());
    let ((mut tag, vlan), destination) = (tag(own_rules, rng), destination(ports, port, rng));
    let mut source = if own_rules.any_source && rng.percent(50) { behind(port, rng.below(2)) } else { own(port) };
    let mut ether_type = ETHER_TYPE;
    match wrong {
        Some(Wrong::SourceOfOther) => source = own((port + 1) % ports),
        Some(Wrong::SourceUnknown) if !own_rules.any_source => source = behind((port + 1) % ports, 0),
        Some(Wrong::SourceOfGroup | Wrong::SourceUnknown) => source = Mac([3, 0, 0, 0, 0, 1]),
        Some(Wrong::Vlan) => tag = Some(NO_VLAN),
        // In place of a tag, where a port takes none but has a VLAN.
        Some(Wrong::SecondTag) if own_rules.vlans != Vlans::Access(0) => {
            ether_type = if tag.is_none() { 0x88a8 } else { [TAG_TYPE, 0x88a8, 0x9100][rng.below(3)] };
        }
        Some(Wrong::SecondTag) => (tag, ether_type) = (Some(0), TAG_TYPE),
        _ => {}
    }
    let longest = usize::from(MTU) + 14 + if tag.is_some() { 4 } else { 0 };
    let least = LEAST_BYTES + longest - usize::from(MTU) - 14;
    let length = match rng.below(3) {
        0 => least + rng.below(MAX_SMALL_BYTES + 5 - least),
        1 => longest - rng.below(3),
        _ => least + rng.below(longest + 1 - least),
    };
    let length = if wrong == Some(Wrong::TooLong) { longest + 1 } else { length };
    let mut bytes = [&destination.0[..], &source.0].concat();
    tag.iter().for_each(|tag| bytes.extend([TAG_TYPE.to_be_bytes(), tag.to_be_bytes()].concat()));
    bytes.extend(ether_type.to_be_bytes());
    bytes.extend(number.to_le_bytes());
    bytes.extend((bytes.len()..length).map(|at| number.to_le_bytes()[0].wrapping_mul(31).wrapping_add(at.to_le_bytes()[0])));
    let (message, rest) = message(&bytes, wrong, rng);
    let expected = wrong.map_or(Status::Ok, Wrong::status);
    (Frame { destination, source, tag, vlan, bytes, expected }, message, rest)
}

/// In a message wholly, or its first bytes there and the rest in memory.
fn message(bytes: &[u8], wrong: Option<Wrong>, rng: &mut Rng) -> (Message, Vec<u8>) {
    let needs_rest = matches!(wrong, Some(Wrong::Memory | Wrong::FirstBytes | Wrong::Offload | Wrong::TooLong));
    if bytes.len() <= MAX_SMALL_BYTES && !needs_rest && rng.percent(70) {
        let mut small = Small::new(OPERATION_SEND_SMALL, 0, bytes);
        match wrong {
            Some(Wrong::TooShort) => small.length_bytes = 13,
            Some(Wrong::Operation) => small.operation = NO_OPERATION,
            _ => {}
        }
        return (small.to_message(), Vec::new());
    }
    let first_bytes = (18 + rng.below(MAX_FIRST_BYTES - 17)).min(bytes.len() - usize::from(needs_rest));
    let (first, rest) = bytes.split_at(first_bytes);
    let mut held = [0; MAX_FIRST_BYTES];
    held[..first_bytes].copy_from_slice(first);
    let mut send = Send {
        operation: OPERATION_SEND,
        first_bytes: u8::try_from(first_bytes).unwrap_or(u8::MAX),
        tag: 0,
        offset_bytes: 0,
        rest_bytes: u32::try_from(rest.len()).unwrap_or(u32::MAX),
        memory: 0,
        offload: Offload::default(),
        first: held,
        stamp: 0,
    };
    match wrong {
        Some(Wrong::TooShort) => send.first_bytes = 13,
        Some(Wrong::Memory) if rng.percent(50) => send.memory = 1,
        Some(Wrong::Memory) => send.offset_bytes = POOL_BYTES + 1 - send.rest_bytes,
        Some(Wrong::Operation) => send.operation = NO_OPERATION,
        Some(Wrong::Offload) => send.offload.flags = 1,
        Some(Wrong::FirstBytes) => send.first_bytes = 37,
        _ => {}
    }
    (send.to_message(), rest.to_vec())
}

/// The whole frame of a message whose fields are right, so that it may share one with others.
pub(super) fn whole(message: &Message, rest: &[u8]) -> Option<Vec<u8>> {
    let (send, small) = (Send::of(message), Small::of(message));
    let first = match send.operation {
        OPERATION_SEND if send.memory == 0 && send.offset_bytes == 0 && send.offload == Offload::default() => {
            send.first.get(..usize::from(send.first_bytes))?
        }
        OPERATION_SEND_SMALL => small.bytes.get(..usize::from(small.length_bytes))?,
        _ => return None,
    };
    (first.len() >= 14).then(|| [first, rest].concat())
}

/// The addresses that a message without them refers to from now on, if this one was published before.
pub(super) fn addresses(message: &Message, before: Option<Addresses>) -> Option<Addresses> {
    let (send, small) = (Send::of(message), Small::of(message));
    match send.operation {
        OPERATION_SEND => send.first.get(..usize::from(send.first_bytes)).and_then(Addresses::of),
        OPERATION_SEND_SMALL => small.bytes.get(..usize::from(small.length_bytes)).and_then(Addresses::of),
        _ => before,
    }
}

/// The number of a frame as it is received.
pub(super) fn number_of(bytes: &[u8]) -> Option<u32> {
    let at = if bytes.get(12..14)? == TAG_TYPE.to_be_bytes() { 18 } else { 14 };
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

impl Frame {
    /// As it leaves for a port with these VLANs.
    pub(super) fn leaving(&self, vlans: &Vlans) -> Vec<u8> {
        let tag = match vlans {
            Vlans::Access(_) => None,
            Vlans::Trunk { native, .. } if *native == Some(self.vlan) => None,
            // The priority of a tag that stays is kept.
            Vlans::Trunk { .. } => self.tag.filter(|tag| tag & 0xfff == self.vlan).or(Some(self.vlan)),
        };
        let behind = if self.tag.is_some() { 16 } else { 12 };
        let tag = tag.map(|tag| [TAG_TYPE.to_be_bytes(), tag.to_be_bytes()].concat()).unwrap_or_default();
        [&self.bytes[..12], &tag, &self.bytes[behind..]].concat()
    }
}
