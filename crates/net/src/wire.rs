//! Frames on the wire (docs/protocol.md section 10). Counterpart of `include/fipsee_net.h`.
#![deny(clippy::as_conversions)]

use core::mem::offset_of;

use fipsee_ring::channel::{self, Profile};
use fipsee_ring::control::FEATURE_LIST;
use fipsee_ring::fault::expect;
use fipsee_ring::memory::Extent;
use fipsee_ring::{Message, PeerFault};

use crate::frame::{HEADER_BYTES, Mac, VLAN_TAG_BYTES};

/// Service number of networks.
pub const SERVICE_NET: u16 = 3;
/// A feature of disks that is in force for a client that offered it: it means nothing here.
const FEATURE_OF_DISKS: u64 = 2;
/// Slots of a completion ring beyond the depth: for messages that answer no request.
pub const EVENT_CREDITS: u32 = 2;
/// Channels to ports.
pub const PROFILE: Profile =
    Profile { features: channel::FEATURES | FEATURE_LIST | FEATURE_OF_DISKS, event_credits: EVENT_CREDITS, flags: &[] };

/// Queues of one pair: the first transmits, the second receives.
pub const QUEUES_PER_PAIR: u16 = 2;
/// Most pairs of one attachment.
pub const MAX_PAIRS: u16 = 8;
/// Least and greatest MTU.
pub const MIN_MTU: u16 = 68;
pub const MAX_MTU: u16 = 9000;

/// Operation of a transmit queue: a frame whose rest is in memory.
pub const OPERATION_SEND: u8 = 1;
/// Operation of a transmit queue: a frame in the message.
pub const OPERATION_SEND_SMALL: u8 = 2;
/// Operation of a receive queue: buffers for frames.
pub const OPERATION_POST: u8 = 3;
/// Operations of a transmit queue beside frames: the event that came last on the receive queue of the pair is acknowledged.
pub const OPERATION_ACKNOWLEDGE: u8 = 4;
/// A group whose frames the port gets, or gets no more.
pub const OPERATION_JOIN: u8 = 5;
pub const OPERATION_LEAVE: u8 = 6;
/// The frames of all groups, as in the beginning, or of none.
pub const OPERATION_ALL_GROUPS: u8 = 7;
pub const OPERATION_NO_GROUP: u8 = 8;
/// Operation of a transmit queue: several frames in memory.
pub const OPERATION_SEND_PACKED: u8 = 9;
/// Operation of a transmit queue: a frame in the message but for its addresses, which are those of the last one that was alone.
pub const OPERATION_SEND_COMPRESSED: u8 = 10;

/// Kind of an answer: what is given back, with a status each.
pub const KIND_RETURNED: u8 = 0;
/// Kind of an answer on a receive queue: a frame in buffers.
pub const KIND_RECEIVED: u8 = 1;
/// Kind of an answer on a receive queue: a frame in the message.
pub const KIND_RECEIVED_SMALL: u8 = 2;
/// Kind of a message on a receive queue that answers nothing: something about the port has changed.
pub const KIND_EVENT: u8 = 3;
/// Kind of an answer on a receive queue: several frames, each in one buffer.
pub const KIND_RECEIVED_PACKED: u8 = 4;
/// Kind of an answer on a receive queue: a frame in the message but for its addresses, which are those of the last short one that came alone.
pub const KIND_RECEIVED_COMPRESSED: u8 = 5;

/// Most bytes of a frame in the message that sends it, if the rest is in memory.
pub const MAX_FIRST_BYTES: usize = 36;
/// Most bytes of a frame that is in a message.
pub const MAX_SMALL_BYTES: usize = 56;
/// Most buffers in a message that posts them.
pub const MAX_POSTED: usize = 4;
/// Most buffers that one frame fills.
pub const MAX_FRAME_BUFFERS: usize = 20;
/// Most entries in a message that gives back.
pub const MAX_RETURNED: usize = 14;

/// Flags of ATTACH: which bits are offloads, whether the client takes events, and from which bit on the least MTU is that it can do with.
pub const ATTACH_OFFLOADS: u32 = 0xff;
pub const ATTACH_EVENTS: u32 = 0x100;
pub const ATTACH_MTU_SHIFT: u32 = 16;

/// Most groups that a port names.
pub const MAX_GROUPS: usize = 64;

/// Offloads, in flags of ATTACH and in the information of a port: the checksum of TCP and UDP.
pub const OFFLOAD_CHECKSUM: u32 = 1;
/// Segmentation of TCP over IPv4 and over IPv6, and of such with congestion notification.
pub const OFFLOAD_TSO4: u32 = 2;
pub const OFFLOAD_TSO6: u32 = 4;
pub const OFFLOAD_ECN: u32 = 8;
/// Segmentation of UDP.
pub const OFFLOAD_USO: u32 = 16;
/// All that there are.
pub const OFFLOADS: u32 = OFFLOAD_CHECKSUM | OFFLOAD_TSO4 | OFFLOAD_TSO6 | OFFLOAD_ECN | OFFLOAD_USO;
/// Those with which a frame may be longer than the MTU.
pub const SEGMENTATION: u32 = OFFLOAD_TSO4 | OFFLOAD_TSO6 | OFFLOAD_USO;
/// Longest packet of a frame that is still to be divided.
pub const MAX_SEGMENTED_BYTES: u32 = 65_535;

/// Flags of a frame's offload: the checksum is left to be done; it has been checked.
pub const CHECKSUM_NEEDED: u8 = 1;
pub const CHECKSUM_VALID: u8 = 2;
/// Types of segmentation, and what may be added for congestion notification.
pub const SEGMENT_TCP4: u8 = 1;
pub const SEGMENT_TCP6: u8 = 4;
pub const SEGMENT_UDP: u8 = 5;
pub const SEGMENT_ECN: u8 = 0x80;

/// Flag of a listed port: a client is attached.
pub const LISTED_IN_USE: u32 = 1;

/// What became of a frame that was sent, or of a buffer that holds no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// The switch took the frame. Whether a client received it is not said.
    Ok,
    /// A field is wrong.
    Invalid,
    /// No such operation, or an offload that is not in force.
    Unsupported,
    /// It is outside the memory that was handed over.
    BadMemory,
    /// No whole Ethernet header.
    TooShort,
    /// Longer than the network's MTU allows.
    TooLong,
    /// The port may not send with this source address.
    WrongSource,
    /// The port is not in this VLAN.
    WrongVlan,
    /// The port has sent more broadcasts and frames to unknown addresses than it may, or has named as many groups as it may.
    Limited,
    /// As many buffers as a frame may fill hold less than one that came.
    TooSmall,
    /// What it leaves to be done is not true of the frame.
    BadOffload,
    /// The port may not send with this IP address.
    WrongIp,
    /// An administrator took the port down, or frames come back through it.
    Down,
}

impl Status {
    /// Every status, by its number on the wire.
    pub const ALL: [Self; 13] = [
        Self::Ok,
        Self::Invalid,
        Self::Unsupported,
        Self::BadMemory,
        Self::TooShort,
        Self::TooLong,
        Self::WrongSource,
        Self::WrongVlan,
        Self::Limited,
        Self::TooSmall,
        Self::BadOffload,
        Self::WrongIp,
        Self::Down,
    ];

    pub fn to_wire(self) -> u16 {
        let number = Self::ALL.iter().position(|status| *status == self);
        number.and_then(|number| u16::try_from(number).ok()).unwrap_or(u16::MAX)
    }

    pub fn from_wire(wire: u16) -> Option<Self> {
        Self::ALL.get(usize::from(wire)).copied()
    }

    /// What was wrong and what to do.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Ok => "sent",
            Self::Invalid => "a field of the message is not what the protocol allows; the client library is at fault",
            Self::Unsupported => {
                "the daemon does not know the operation, or the offload is not in force; ask for it when attaching"
            }
            Self::BadMemory => "the buffer is outside the memory of the port; use memory of its pool",
            Self::TooShort => "the frame has no whole Ethernet header (14 bytes)",
            Self::TooLong => "the frame is longer than the MTU of the network and its headers; send less at a time",
            Self::WrongSource => "the port may not send with this source address; use its own, or configure any_source = true",
            Self::WrongVlan => "the port is not in this VLAN; see vlan and trunk in its configuration",
            Self::Limited => {
                "the port sends more broadcasts and frames to unknown addresses than it may (see flood_limit), or names more than 64 groups"
            }
            Self::TooSmall => "20 buffers hold less than a frame that came; post buffers as long as the longest frame",
            Self::BadOffload => "the headers of the frame are not what its offload says; complete the frame before it is sent",
            Self::WrongIp => "the port may not send with this IP address; see ips in its configuration",
            Self::Down => {
                "the port is down: by `fipsee net set`, or for 10 seconds because frames came back through it; see `fipsee net info`"
            }
        }
    }
}

fipsee_ring::wire_structures! {
    /// What is left to be done with a frame, in the order of a virtio-net header. 0 without an offload in force.
    #[derive(Default, PartialEq, Eq)]
    pub Offload: 10 {
        0 flags: u8,
        1 segmentation: u8,
        2 header_bytes: u16,
        4 segment_bytes: u16,
        6 checksum_start: u16,
        8 checksum_offset: u16,
    }
    /// A frame that is sent: its first bytes, and where the rest is. The stamp, here and below, is the ring's.
    pub Send: 64 {
        0 operation: u8,
        1 first_bytes: u8,
        2 tag: u16,
        4 offset_bytes: u32,
        8 rest_bytes: u32,
        12 memory: u16,
        14 offload: Offload,
        24 first: [u8; MAX_FIRST_BYTES],
        60 stamp: u32,
    }
    /// A frame in a message, in either direction, with or without its addresses.
    pub Small: 64 { 0 operation: u8, 1 length_bytes: u8, 2 tag: u16, 4 bytes: [u8; MAX_SMALL_BYTES], 60 stamp: u32 }
    /// A buffer for a frame.
    #[derive(Default, PartialEq, Eq)]
    pub PostedBuffer: 12 { 0 tag: u16, 2 memory: u16, 4 offset_bytes: u32, 8 length_bytes: u32 }
    /// Buffers for frames.
    pub Post: 64 {
        0 operation: u8, 1 count: u8, 2 reserved: u16, 4 buffers: [PostedBuffer; MAX_POSTED], 52 reserved_end: [u32; 2], 60 stamp: u32,
    }
    /// A frame in buffers: all of them full but the last.
    pub Filled: 64 {
        0 kind: u8,
        1 count: u8,
        2 reserved: u16,
        4 length_bytes: u32,
        8 offload: Offload,
        18 reserved_too: u16,
        20 tags: [u16; MAX_FRAME_BUFFERS],
        60 stamp: u32,
    }
    /// A request of a transmit queue that is no frame.
    pub Request: 64 { 0 operation: u8, 1 reserved: u8, 2 tag: u16, 4 group: [u8; 6], 10 reserved_end: [u8; 50], 60 stamp: u32 }
    /// What a port is like now.
    #[derive(PartialEq, Eq)]
    pub Event: 64 {
        0 kind: u8,
        /// 1: up, 0: down.
        1 link: u8,
        2 mtu: u16,
        4 mac: [u8; 6],
        10 reserved: [u8; 50],
        60 stamp: u32,
    }
    /// Something that is given back.
    #[derive(PartialEq, Eq)]
    pub ReturnedEntry: 4 { 0 tag: u16, 2 status: u16 }
    pub Returned: 64 { 0 kind: u8, 1 count: u8, 2 reserved: u16, 4 entries: [ReturnedEntry; MAX_RETURNED], 60 stamp: u32 }
    /// The description of a port, in ATTACHED.
    #[derive(PartialEq, Eq)]
    pub PortInfo: 64 {
        0 mac: [u8; 6],
        6 mtu: u16,
        /// Longest frame: the MTU, or with segmentation in force 65,535, the Ethernet header and a VLAN tag.
        8 max_frame_bytes: u32,
        /// Offloads in force.
        12 offloads: u32,
        /// 0 on a port without a VLAN of its own.
        16 vlan: u16,
        18 pairs: u16,
        20 reserved: [u32; 11],
    }
    /// A port in a list.
    #[derive(PartialEq, Eq)]
    pub ListedPort: 16 { 0 mac: [u8; 6], 6 mtu: u16, 8 flags: u32, 12 reserved: u32 }
}

/// Of a network with this MTU.
pub fn max_frame_bytes(mtu: u16) -> u32 {
    u32::from(mtu) + HEADER_BYTES + VLAN_TAG_BYTES
}

/// Of a network with this MTU, where these offloads are in force.
pub fn max_offloaded_bytes(mtu: u16, offloads: u32) -> u32 {
    match offloads & SEGMENTATION {
        0 => max_frame_bytes(mtu),
        _ => MAX_SEGMENTED_BYTES + HEADER_BYTES + VLAN_TAG_BYTES,
    }
}

impl PostedBuffer {
    /// The bytes it names; any values.
    #[inline(always)]
    pub fn extent(&self) -> Extent {
        Extent { region: self.memory, offset_bytes: self.offset_bytes.into(), length_bytes: self.length_bytes.into() }
    }
}

/// Structures that are a whole message.
macro_rules! messages {
    ($($name:ident)*) => { $(
        impl $name {
            #[inline(always)]
            pub const fn to_message(self) -> Message {
                Message::from_words(zerocopy::transmute!(self))
            }

            #[inline(always)]
            pub fn of(message: &Message) -> Self {
                zerocopy::transmute!(*message.words())
            }

            /// As [`of`](Self::of), without a copy: a field is loaded from where the message is.
            #[inline(always)]
            pub fn within(message: &Message) -> &Self {
                zerocopy::transmute_ref!(message.words())
            }
        }
    )* };
}

messages! { Send Small Post Filled Returned Request Event }

mod compressed;
mod info;
mod packed;

#[cfg(feature = "server")]
pub(crate) use self::compressed::readdressed;
pub use self::compressed::{
    ADDRESSES_BYTES, Addresses, EXPANDED_WORDS, MAX_COMPRESSED_BYTES, compressed, expanded_bytes, is_compressible,
};
#[cfg(feature = "server")]
pub(crate) use self::packed::Packing;
pub(crate) use self::packed::SendPacking;
pub use self::packed::{FilledPacked, MAX_PACKED_RECEIVED, MAX_PACKED_SENT, PackedBuffer, PackedFrame, SendPacked};

impl Request {
    /// With the group that it is about, if any.
    pub const fn new(operation: u8, tag: u16, group: Option<Mac>) -> Self {
        let Mac(group) = match group {
            Some(group) => group,
            None => Mac([0; 6]),
        };
        Self { operation, reserved: 0, tag, group, reserved_end: [0; 50], stamp: 0 }
    }
}

impl Event {
    pub const fn new(is_up: bool, mac: Mac, mtu: u16) -> Self {
        let link = if is_up { 1 } else { 0 };
        Self { kind: KIND_EVENT, link, mtu, mac: mac.0, reserved: [0; 50], stamp: 0 }
    }

    /// Check what a daemon sent.
    pub fn checked(message: &Message) -> Result<Self, PeerFault> {
        let event = Self::of(message);
        expect("the state of a link", event.link, event.link <= 1)?;
        expect("a port's MAC address, of a group", event.mac[0], !Mac(event.mac).is_group())?;
        expect("the MTU", event.mtu, (MIN_MTU..=MAX_MTU).contains(&event.mtu))?;
        expect("a reserved field", event.reserved[0], event.reserved == [0; 50])?;
        Ok(event)
    }
}

impl Send {
    /// Where the rest is; any values.
    #[inline(always)]
    pub fn extent(&self) -> Extent {
        Extent { region: self.memory, offset_bytes: self.offset_bytes.into(), length_bytes: self.rest_bytes.into() }
    }
}

/// What a frame that a message sends leaves to be done. Most leave nothing, which whole words of the message show: the field's own are across the pieces in
/// which the message was stored.
#[inline(always)]
pub fn sent_offload(message: &Message) -> Offload {
    const { assert!(offset_of!(Send, offload) == 14 && size_of::<Offload>() == size_of::<u16>() + 8) };
    if (message.word(1) >> 48) | message.word(2) == 0 { Offload::NONE } else { Send::within(message).offload }
}

impl Small {
    /// A frame, of which what does not fit is left out.
    pub fn new(operation: u8, tag: u16, frame: &[u8]) -> Self {
        let mut bytes = [0; MAX_SMALL_BYTES];
        let length = frame.len().min(MAX_SMALL_BYTES);
        bytes[..length].copy_from_slice(&frame[..length]);
        Self { operation, length_bytes: u8::try_from(length).unwrap_or(u8::MAX), tag, bytes, stamp: 0 }
    }
}

impl Post {
    /// Buffer `index` of a message. By half words, which are not across the pieces in which the message was stored.
    #[inline(always)]
    pub const fn buffer(message: &Message, index: usize) -> PostedBuffer {
        const { assert!(offset_of!(Self, buffers) == size_of::<u32>() && size_of::<PostedBuffer>() == 3 * size_of::<u32>()) };
        let first = 1 + 3 * index;
        zerocopy::transmute!([message.half_word(first), message.half_word(first + 1), message.half_word(first + 2)])
    }

    /// As many buffers as there may be.
    #[inline(always)]
    pub const fn whole(buffers: [PostedBuffer; MAX_POSTED]) -> Self {
        // As the type of `count` is.
        const COUNT: u8 = 4;
        const { assert!(MAX_POSTED == 4) };
        Self { operation: OPERATION_POST, count: COUNT, reserved: 0, buffers, reserved_end: [0; 2], stamp: 0 }
    }

    /// At most [`MAX_POSTED`] buffers; more are left out.
    pub fn new(buffers: &[PostedBuffer]) -> Self {
        let count = u8::try_from(buffers.len().min(MAX_POSTED)).unwrap_or(0);
        let buffers = std::array::from_fn(|index| buffers.get(index).copied().unwrap_or_default());
        Self { operation: OPERATION_POST, count, reserved: 0, buffers, reserved_end: [0; 2], stamp: 0 }
    }
}

impl Filled {
    /// A frame in one buffer. Nothing here has a length that is not known: what is stored in parts would have to leave this CPU before it could be loaded
    /// as the whole that goes into a slot.
    #[inline(always)]
    pub const fn one(length_bytes: u32, offload: Offload, tag: u16) -> Self {
        let mut tags = [0; MAX_FRAME_BUFFERS];
        tags[0] = tag;
        Self { kind: KIND_RECEIVED, count: 1, reserved: 0, length_bytes, offload, reserved_too: 0, tags, stamp: 0 }
    }

    pub fn new(length_bytes: u32, buffers: &[u16]) -> Self {
        let count = u8::try_from(buffers.len().min(MAX_FRAME_BUFFERS)).unwrap_or(0);
        let tags = std::array::from_fn(|index| buffers.get(index).copied().unwrap_or(0));
        let offload = Offload::NONE;
        Self { kind: KIND_RECEIVED, count, reserved: 0, length_bytes, offload, reserved_too: 0, tags, stamp: 0 }
    }

    #[must_use]
    pub const fn with_offload(self, offload: Offload) -> Self {
        Self { offload, ..self }
    }
}

impl Returned {
    /// At most [`MAX_RETURNED`] entries; more are left out.
    pub fn new(given_back: &[(u16, Status)]) -> Self {
        let count = u8::try_from(given_back.len().min(MAX_RETURNED)).unwrap_or(0);
        let none = ReturnedEntry { tag: 0, status: 0 };
        let entry = |(tag, status): &(u16, Status)| ReturnedEntry { tag: *tag, status: status.to_wire() };
        let entries = std::array::from_fn(|index| given_back.get(index).map_or(none, entry));
        Self { kind: KIND_RETURNED, count, reserved: 0, entries, stamp: 0 }
    }
}

/// The tag of a message that sends a frame.
#[inline(always)]
pub const fn sent_tag(message: &Message) -> u16 {
    let [_, _, low, high, ..] = message.word(0).to_le_bytes();
    u16::from_le_bytes([low, high])
}

const _: () = assert!(offset_of!(Send, tag) == 2 && offset_of!(Small, tag) == 2, "either has its tag there");

/// The first byte of a message: operation of a request, kind of an answer.
#[inline(always)]
pub const fn first_byte(message: &Message) -> u8 {
    message.word(0).to_le_bytes()[0]
}
