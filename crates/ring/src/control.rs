//! The control plane's messages (docs/protocol.md section 4): fixed little-endian structures, one per packet.
#![deny(clippy::as_conversions)]

pub mod packets;

use zerocopy::{FromBytes, IntoBytes};

use self::packets::{
    Attach, Attached, ControlHeader, Hello, List, Listed as ListedPacket, ListedEntry, Refused, RegionId, Register, Welcome,
};

/// First four bytes of every control message: "FPSC".
pub const MAGIC: u32 = u32::from_le_bytes(*b"FPSC");
/// The protocol version of this build; versions are negotiated as a range.
pub const VERSION: u16 = 1;
/// Longest control message. The longest we send is REFUSED with 400 bytes of text.
pub const MAX_MESSAGE_BYTES: usize = 512;
/// Most queues of one attachment: their 2 doorbells each, and the region, fit one SCM_RIGHTS message (253 at most).
pub const MAX_QUEUES: u16 = 64;
/// Most descriptors in one message.
pub const MAX_DESCRIPTORS: usize = 1 + 2 * 64;
/// Longest name of what can be attached to, in bytes of UTF-8.
pub const MAX_NAME_BYTES: usize = 64;
/// Longest text of a refusal.
pub const MAX_REFUSAL_BYTES: usize = 400;
/// Bytes of service-specific information in ATTACHED.
pub const SERVICE_INFO_BYTES: usize = 64;
/// Most memory regions of one attachment; id 0 is the pool.
pub const MAX_REGIONS: u16 = 64;
/// Feature: the client may ask with LIST what it may attach to.
pub const FEATURE_LIST: u64 = 8;
/// Most entries of LISTED: as many as fit a message.
pub const MAX_LISTED: usize = 6;
/// Bytes of service-specific information in an entry of LISTED.
pub const LISTED_INFO_BYTES: usize = 16;
/// REGISTER access bit: the daemon may load from the memory.
pub const ACCESS_READ: u16 = 1;
/// REGISTER access bit: the daemon may store into the memory.
pub const ACCESS_WRITE: u16 = 2;

/// Why an attachment, or an operation on it, was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefusalCode {
    /// No common protocol version.
    Version,
    /// The message is malformed or came out of order.
    Malformed,
    /// Nothing of that name.
    UnknownName,
    /// The peer's user and groups may not attach to it.
    NotAllowed,
    /// Other attached clients, or their claims, conflict with the request.
    Busy,
    /// A limit of the daemon or the machine was reached.
    Limit,
    /// Memory or descriptors handed over cannot be used.
    BadMemory,
    /// The daemon is going away.
    ShuttingDown,
    /// A number that this build does not know.
    Other(u32),
}

impl RefusalCode {
    /// Those of the wire, numbered from 1.
    const KNOWN: [Self; 8] = [
        Self::Version,
        Self::Malformed,
        Self::UnknownName,
        Self::NotAllowed,
        Self::Busy,
        Self::Limit,
        Self::BadMemory,
        Self::ShuttingDown,
    ];

    fn to_wire(self) -> u32 {
        match self {
            Self::Other(code) => code,
            known => (1..).zip(Self::KNOWN).find(|(_, code)| *code == known).map_or(0, |(wire, _)| wire),
        }
    }

    fn from_wire(wire: u32) -> Self {
        (1..).zip(Self::KNOWN).find(|(known, _)| *known == wire).map_or(Self::Other(wire), |(_, code)| code)
    }
}

/// One control message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// Client: the versions and features that it supports.
    Hello {
        /// Lowest version.
        version_min: u16,
        /// Highest version.
        version_max: u16,
        /// Feature bits offered.
        features: u64,
    },
    /// Daemon: the version in force and its limits.
    Welcome {
        /// The version in force from here on.
        version: u16,
        /// Most queues it grants.
        max_queues: u16,
        /// Most requests outstanding in one queue.
        max_depth: u32,
        /// Features both have.
        features: u64,
        /// Largest pool, in bytes.
        max_pool_bytes: u64,
    },
    /// Client: asks for this.
    Attach(Wanted),
    /// Daemon: granted. Comes with the region and then, per queue, the client's eventfd and socket doorbell.
    Attached {
        /// Queues granted.
        queue_count: u16,
        /// Bytes of the region.
        region_bytes: u64,
        /// What the service reports to its clients.
        service_info: [u8; SERVICE_INFO_BYTES],
    },
    /// Daemon: refused, in words that say what to do.
    Refused(Refusal),
    /// Client: here is memory of mine (one descriptor).
    Register {
        /// Which id it gets, 1..[`MAX_REGIONS`].
        region: u16,
        /// [`ACCESS_READ`] and [`ACCESS_WRITE`].
        access: u16,
        /// Bytes to map, from offset 0.
        length_bytes: u64,
    },
    /// Daemon: the memory is mapped and may be named in requests.
    Registered {
        /// The id.
        region: u16,
    },
    /// Client: forget this memory; no request that names it is outstanding.
    Unregister {
        /// The id.
        region: u16,
    },
    /// Daemon: forgotten; no access will follow.
    Unregistered {
        /// The id.
        region: u16,
    },
    /// Client: finish what was published and release the attachment.
    Detach,
    /// Daemon: finished; the socket closes.
    Detached,
    /// Client: what may it attach to?
    List {
        /// Which service, by its number.
        service: u16,
        /// Only names after this one, in the order of their bytes.
        after: String,
    },
    /// Daemon: this.
    Listed(Page),
}

/// A part of the list of what a client may attach to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// At most [`MAX_LISTED`], in the order of their names' bytes.
    pub entries: Vec<Listed>,
    /// Others follow, after the last of these.
    pub more: bool,
}

/// Something that a client may attach to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name for ATTACH.
    pub name: String,
    /// What the service says of it.
    pub service_info: [u8; LISTED_INFO_BYTES],
}

/// Why something is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Refusal {
    /// For programs.
    pub code: RefusalCode,
    /// For people: what was wrong and what to do.
    pub text: String,
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Which service, by its number.
    pub service: u16,
    /// Queues wanted; the daemon caps.
    pub queue_count: u16,
    /// Requests outstanding per queue; the daemon caps.
    pub depth: u32,
    /// Flags of the service.
    pub flags: u32,
    /// Bytes of shared payload memory wanted; the daemon caps.
    pub pool_bytes: u64,
    /// What to attach to.
    pub name: String,
}

/// A control message that could not be understood: which field, and what it held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed control message: {what} is {value:#x}; the peer is not a Fip-see program or speaks another version")]
pub struct Malformed {
    /// The field.
    pub what: &'static str,
    /// What it held.
    pub value: u64,
}

impl Control {
    pub(crate) const fn kind(&self) -> (u16, usize) {
        match self {
            Self::Hello { .. } => (1, size_of::<Hello>()),
            Self::Welcome { .. } => (2, size_of::<Welcome>()),
            Self::Attach(_) => (3, size_of::<Attach>()),
            Self::Attached { .. } => (4, size_of::<Attached>()),
            Self::Refused(_) => (5, size_of::<Refused>() + MAX_REFUSAL_BYTES),
            Self::Register { .. } => (6, size_of::<Register>()),
            Self::Registered { .. } => (7, size_of::<RegionId>()),
            Self::Unregister { .. } => (8, size_of::<RegionId>()),
            Self::Unregistered { .. } => (9, size_of::<RegionId>()),
            Self::Detach => (10, size_of::<ControlHeader>()),
            Self::Detached => (11, size_of::<ControlHeader>()),
            Self::List { .. } => (12, size_of::<List>()),
            Self::Listed(_) => (13, size_of::<ListedPacket>()),
        }
    }

    /// The bytes of this message.
    ///
    /// A name or text that is too long is cut at a character; names are checked by the caller.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, length) = self.kind();
        let length_bytes = u32::try_from(length).unwrap_or(0);
        let header = ControlHeader { magic: MAGIC, kind, version: VERSION, length_bytes };
        let mut bytes = Vec::with_capacity(length);
        match *self {
            Self::Hello { version_min, version_max, features } => {
                bytes.extend(Hello { header, version_min, version_max, features }.as_bytes());
            }
            Self::Welcome { version, max_queues, max_depth, features, max_pool_bytes } => {
                let packet = Welcome { header, version, max_queues, max_depth, reserved: 0, features, max_pool_bytes };
                bytes.extend(packet.as_bytes());
            }
            Self::Attach(Wanted { service, queue_count, depth, flags, pool_bytes, name: ref text }) => {
                let name = name_field(text);
                bytes.extend(Attach { header, service, queue_count, depth, flags, pool_bytes, name }.as_bytes());
            }
            Self::Attached { queue_count, region_bytes, service_info } => {
                bytes.extend(Attached { header, queue_count, reserved: 0, region_bytes, service_info }.as_bytes());
            }
            Self::Refused(Refusal { code, ref text }) => {
                let text = cut(text, MAX_REFUSAL_BYTES);
                let text_bytes = u32::try_from(text.len()).unwrap_or(0);
                bytes.extend(Refused { header, code: code.to_wire(), text_bytes }.as_bytes());
                bytes.extend(text.as_bytes());
                bytes.resize(length, 0);
            }
            Self::Register { region, access, length_bytes } => {
                bytes.extend(Register { header, region, access, length_bytes }.as_bytes());
            }
            Self::Registered { region } | Self::Unregister { region } | Self::Unregistered { region } => {
                bytes.extend(RegionId { header, region, reserved: 0 }.as_bytes());
            }
            Self::Detach | Self::Detached => bytes.extend(header.as_bytes()),
            Self::List { service, ref after } => {
                bytes.extend(List { header, service, reserved: 0, after: name_field(after) }.as_bytes());
            }
            Self::Listed(ref page) => bytes.extend(listed_packet(header, page).as_bytes()),
        }
        bytes
    }

    /// Understand a message. Every byte that the kind does not define must be zero.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let (header, _): (ControlHeader, _) = read(bytes)?;
        expect("the magic number", header.magic.into(), MAGIC.into())?;
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        expect("the length field", header.length_bytes.into(), length)?;
        let message = Self::decode_kind(header.kind, bytes)?;
        // Encoding again and comparing checks length, version and every reserved byte of every kind in one place.
        let canonical = message.encode();
        match canonical.iter().zip(bytes).position(|(ours, theirs)| ours != theirs) {
            // A different version is negotiated by HELLO and answered by REFUSED, so those two are read whatever it says.
            Some(6 | 7) if matches!(message, Self::Hello { .. } | Self::Refused(_)) => Ok(message),
            Some(6 | 7) => Err(Malformed { what: "the version", value: header.version.into() }),
            Some(offset) => Err(Malformed { what: "a reserved byte, at offset", value: u64::try_from(offset).unwrap_or(0) }),
            None if canonical.len() != bytes.len() => Err(Malformed { what: "the length for its kind", value: length }),
            None => Ok(message),
        }
    }

    /// The fields alone.
    fn decode_kind(kind: u16, bytes: &[u8]) -> Result<Self, Malformed> {
        Ok(match kind {
            1 => {
                let Hello { version_min, version_max, features, .. } = read(bytes)?.0;
                Self::Hello { version_min, version_max, features }
            }
            2 => {
                let Welcome { version, max_queues, max_depth, features, max_pool_bytes, .. } = read(bytes)?.0;
                Self::Welcome { version, max_queues, max_depth, features, max_pool_bytes }
            }
            3 => {
                let Attach { service, queue_count, depth, flags, pool_bytes, name, .. } = read(bytes)?.0;
                Self::Attach(Wanted { service, queue_count, depth, flags, pool_bytes, name: text(&name)? })
            }
            4 => {
                let Attached { queue_count, region_bytes, service_info, .. } = read(bytes)?.0;
                Self::Attached { queue_count, region_bytes, service_info }
            }
            5 => {
                let (Refused { code, text_bytes, .. }, rest) = read(bytes)?;
                let length = usize::try_from(text_bytes).ok().filter(|length| *length <= MAX_REFUSAL_BYTES);
                let too_long = Malformed { what: "the length of a refusal's text", value: text_bytes.into() };
                let field = rest.get(..length.ok_or(too_long)?).ok_or_else(|| short(bytes))?;
                Self::Refused(Refusal { code: RefusalCode::from_wire(code), text: text(field)? })
            }
            6 => {
                let Register { region, access, length_bytes, .. } = read(bytes)?.0;
                Self::Register { region, access, length_bytes }
            }
            7 => Self::Registered { region: read::<RegionId>(bytes)?.0.region },
            8 => Self::Unregister { region: read::<RegionId>(bytes)?.0.region },
            9 => Self::Unregistered { region: read::<RegionId>(bytes)?.0.region },
            10 => Self::Detach,
            11 => Self::Detached,
            12 => {
                let List { service, after, .. } = read(bytes)?.0;
                Self::List { service, after: text(&after)? }
            }
            13 => {
                let ListedPacket { count, more, entries, .. } = read(bytes)?.0;
                let too_many = Malformed { what: "the number of entries of a list", value: count.into() };
                let entries = entries.get(..usize::from(count)).ok_or(too_many)?.iter();
                let listed = |entry: &ListedEntry| Ok(Listed { name: text(&entry.name)?, service_info: entry.service_info });
                Self::Listed(Page { entries: entries.map(listed).collect::<Result<_, Malformed>>()?, more: more != 0 })
            }
            other => return Err(Malformed { what: "the message kind", value: other.into() }),
        })
    }
}

/// A name and zeroes behind it.
fn name_field(name: &str) -> [u8; MAX_NAME_BYTES] {
    let (name, mut field) = (cut(name, MAX_NAME_BYTES), [0; MAX_NAME_BYTES]);
    field[..name.len()].copy_from_slice(name.as_bytes());
    field
}

/// Entries beyond the most that there can be are left out.
fn listed_packet(header: ControlHeader, page: &Page) -> ListedPacket {
    let count = u16::try_from(page.entries.len().min(MAX_LISTED)).unwrap_or(0);
    let entries = std::array::from_fn(|index| {
        let listed = page.entries.get(index);
        let none = ListedEntry { name: [0; MAX_NAME_BYTES], service_info: [0; LISTED_INFO_BYTES] };
        listed.map_or(none, |listed| ListedEntry { name: name_field(&listed.name), service_info: listed.service_info })
    });
    ListedPacket { header, count, more: page.more.into(), entries }
}

fn cut(text: &str, limit_bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(limit_bytes)).unwrap_or_default()
}

fn short(bytes: &[u8]) -> Malformed {
    Malformed { what: "the length in bytes", value: u64::try_from(bytes.len()).unwrap_or(u64::MAX) }
}

/// A copy of the structure at the start, and what follows it.
fn read<T: FromBytes>(bytes: &[u8]) -> Result<(T, &[u8]), Malformed> {
    T::read_from_prefix(bytes).map_err(|_| short(bytes))
}

fn expect(what: &'static str, value: u64, expected: u64) -> Result<(), Malformed> {
    if value == expected { Ok(()) } else { Err(Malformed { what, value }) }
}

/// The bytes of a field before its first zero byte.
fn text(field: &[u8]) -> Result<String, Malformed> {
    let text = field.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = str::from_utf8(text).map_err(|error| Malformed {
        what: "a text that is not UTF-8, valid up to byte",
        value: u64::try_from(error.valid_up_to()).unwrap_or(u64::MAX),
    })?;
    Ok(text.to_owned())
}
