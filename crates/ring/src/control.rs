//! The control plane's messages (docs/protocol.md section 4): fixed little-endian structures, one per packet.
#![deny(clippy::as_conversions)]

use core::fmt;

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
/// Longest name of an export, in bytes of UTF-8.
pub const MAX_NAME_BYTES: usize = 64;
/// Longest text of a refusal.
pub const MAX_REFUSAL_BYTES: usize = 400;
/// Bytes of service-specific information in ATTACHED.
pub const SERVICE_INFO_BYTES: usize = 64;
/// Most memory regions of one attachment; id 0 is the pool.
pub const MAX_REGIONS: u16 = 64;
/// Service number of block devices.
pub const SERVICE_BLOCK: u16 = 1;
/// Service number of calls (docs/protocol.md section 8).
pub const SERVICE_CALLS: u16 = 2;

/// Bytes of the header of every message.
const HEADER_BYTES: usize = 12;

/// ATTACH flag: the client will not write.
pub const ATTACH_READ_ONLY: u32 = 1;
/// ATTACH flag: refuse if anyone else is attached, and refuse others while we are.
pub const ATTACH_EXCLUSIVE: u32 = 2;
/// ATTACH flag, with `FEATURE_SOLE_WRITER`: nobody else is to write while we are attached.
pub const ATTACH_SOLE_WRITER: u32 = 4;
/// ATTACH flag, with `FEATURE_SOLE_WRITER`: write although somebody claims to be the sole writer.
pub const ATTACH_IGNORE_CLAIM: u32 = 8;
/// REGISTER access bit: the daemon may load from the memory (the client writes to the disk).
pub const ACCESS_READ: u16 = 1;
/// REGISTER access bit: the daemon may store into the memory (the client reads from the disk).
pub const ACCESS_WRITE: u16 = 2;

/// Why an attachment, or an operation on it, was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefusalCode {
    /// No common protocol version.
    Version,
    /// The message is malformed or came out of order.
    Malformed,
    /// No export of that name.
    UnknownExport,
    /// The peer's user and groups are not on the export's list.
    NotAllowed,
    /// Others who are attached, or what they claim, does not go together with what was asked.
    Busy,
    /// A limit of the daemon or the machine was reached.
    Limit,
    /// Memory or descriptors handed over cannot be used.
    BadMemory,
    /// The daemon is going away.
    ShuttingDown,
    /// A number this build does not know.
    Other(u32),
}

impl RefusalCode {
    const TABLE: [(Self, u32); 8] = [
        (Self::Version, 1),
        (Self::Malformed, 2),
        (Self::UnknownExport, 3),
        (Self::NotAllowed, 4),
        (Self::Busy, 5),
        (Self::Limit, 6),
        (Self::BadMemory, 7),
        (Self::ShuttingDown, 8),
    ];

    fn to_wire(self) -> u32 {
        match self {
            Self::Other(code) => code,
            known => Self::TABLE.iter().find(|(code, _)| *code == known).map_or(0, |(_, wire)| *wire),
        }
    }

    fn from_wire(wire: u32) -> Self {
        Self::TABLE.iter().find(|(_, known)| *known == wire).map_or(Self::Other(wire), |(code, _)| *code)
    }
}

/// One control message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// Client: the versions and features it speaks.
    Hello {
        /// Lowest version.
        version_min: u16,
        /// Highest version.
        version_max: u16,
        /// Feature bits offered: [`FEATURES`](crate::channel::FEATURES) of the client.
        features: u64,
    },
    /// Daemon: the version in force and its limits.
    Welcome {
        /// The version both speak from here on.
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
    /// Client: asks for an export.
    Attach {
        /// Which service; [`SERVICE_BLOCK`] or [`SERVICE_CALLS`].
        service: u16,
        /// Queues wanted; the daemon caps.
        queue_count: u16,
        /// Requests outstanding per queue; the daemon caps.
        depth: u32,
        /// [`ATTACH_READ_ONLY`], [`ATTACH_EXCLUSIVE`], [`ATTACH_SOLE_WRITER`], [`ATTACH_IGNORE_CLAIM`].
        flags: u32,
        /// Bytes of shared payload memory wanted; the daemon caps.
        pool_bytes: u64,
        /// The export's name.
        name: String,
    },
    /// Daemon: granted. Comes with the region and then, per queue, the client's eventfd and socket doorbell.
    Attached {
        /// Queues granted.
        queue_count: u16,
        /// Bytes of the region.
        region_bytes: u64,
        /// What the service tells its clients; for block, a `BlockInfo`.
        service_info: [u8; SERVICE_INFO_BYTES],
    },
    /// Daemon: refused, in words that say what to do.
    Refused {
        /// For programs.
        code: RefusalCode,
        /// For people.
        text: String,
    },
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
    /// Client: finish what was published and let go.
    Detach,
    /// Daemon: finished; the socket closes.
    Detached,
}

/// A control message that could not be understood: which field, and what it held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The field.
    pub what: &'static str,
    /// What it held.
    pub value: u64,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "malformed control message: {} is {:#x}; the peer is not a Fip-see program or speaks another version",
            self.what, self.value
        )
    }
}

impl core::error::Error for Malformed {}

impl Control {
    const fn kind(&self) -> (u16, usize) {
        match self {
            Self::Hello { .. } => (1, 24),
            Self::Welcome { .. } => (2, 40),
            Self::Attach { .. } => (3, 96),
            Self::Attached { .. } => (4, 88),
            Self::Refused { .. } => (5, 20 + MAX_REFUSAL_BYTES),
            Self::Register { .. } => (6, 24),
            Self::Registered { .. } => (7, 16),
            Self::Unregister { .. } => (8, 16),
            Self::Unregistered { .. } => (9, 16),
            Self::Detach => (10, HEADER_BYTES),
            Self::Detached => (11, HEADER_BYTES),
        }
    }

    /// The bytes of this message.
    ///
    /// A name or text that is too long is cut at a character; names are checked by the caller.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (kind, length) = self.kind();
        let mut out = Encoder { bytes: vec![0; length] };
        out.put(0, &MAGIC.to_le_bytes());
        out.put(4, &kind.to_le_bytes());
        out.put(6, &VERSION.to_le_bytes());
        out.put(8, &u32::try_from(length).unwrap_or(0).to_le_bytes());
        match self {
            Self::Hello { version_min, version_max, features } => {
                out.put(12, &version_min.to_le_bytes());
                out.put(14, &version_max.to_le_bytes());
                out.put(16, &features.to_le_bytes());
            }
            Self::Welcome { version, max_queues, max_depth, features, max_pool_bytes } => {
                out.put(12, &version.to_le_bytes());
                out.put(14, &max_queues.to_le_bytes());
                out.put(16, &max_depth.to_le_bytes());
                out.put(24, &features.to_le_bytes());
                out.put(32, &max_pool_bytes.to_le_bytes());
            }
            Self::Attach { service, queue_count, depth, flags, pool_bytes, name } => {
                out.put(12, &service.to_le_bytes());
                out.put(14, &queue_count.to_le_bytes());
                out.put(16, &depth.to_le_bytes());
                out.put(20, &flags.to_le_bytes());
                out.put(24, &pool_bytes.to_le_bytes());
                out.put(32, cut(name, MAX_NAME_BYTES).as_bytes());
            }
            Self::Attached { queue_count, region_bytes, service_info } => {
                out.put(12, &queue_count.to_le_bytes());
                out.put(16, &region_bytes.to_le_bytes());
                out.put(24, service_info);
            }
            Self::Refused { code, text } => {
                let text = cut(text, MAX_REFUSAL_BYTES);
                out.put(12, &code.to_wire().to_le_bytes());
                out.put(16, &u32::try_from(text.len()).unwrap_or(0).to_le_bytes());
                out.put(20, text.as_bytes());
            }
            Self::Register { region, access, length_bytes } => {
                out.put(12, &region.to_le_bytes());
                out.put(14, &access.to_le_bytes());
                out.put(16, &length_bytes.to_le_bytes());
            }
            Self::Registered { region } | Self::Unregister { region } | Self::Unregistered { region } => {
                out.put(12, &region.to_le_bytes());
            }
            Self::Detach | Self::Detached => {}
        }
        out.bytes
    }

    /// Understand a message. Every byte that the kind does not define must be zero.
    ///
    /// # Errors
    /// Which field was wrong.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let input = Decoder { bytes };
        input.expect("the magic number", u64::from(input.u32(0)?), u64::from(MAGIC))?;
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        input.expect("the length field", u64::from(input.u32(8)?), length)?;
        let kind = input.u16(4)?;
        let message = match kind {
            1 => Self::Hello { version_min: input.u16(12)?, version_max: input.u16(14)?, features: input.u64(16)? },
            2 => Self::Welcome {
                version: input.u16(12)?,
                max_queues: input.u16(14)?,
                max_depth: input.u32(16)?,
                features: input.u64(24)?,
                max_pool_bytes: input.u64(32)?,
            },
            3 => Self::Attach {
                service: input.u16(12)?,
                queue_count: input.u16(14)?,
                depth: input.u32(16)?,
                flags: input.u32(20)?,
                pool_bytes: input.u64(24)?,
                name: input.text(32, MAX_NAME_BYTES)?,
            },
            4 => Self::Attached { queue_count: input.u16(12)?, region_bytes: input.u64(16)?, service_info: input.array(24)? },
            5 => Self::Refused { code: RefusalCode::from_wire(input.u32(12)?), text: input.refusal()? },
            6 => Self::Register { region: input.u16(12)?, access: input.u16(14)?, length_bytes: input.u64(16)? },
            7 => Self::Registered { region: input.u16(12)? },
            8 => Self::Unregister { region: input.u16(12)? },
            9 => Self::Unregistered { region: input.u16(12)? },
            10 => Self::Detach,
            11 => Self::Detached,
            other => return Err(Malformed { what: "the message kind", value: u64::from(other) }),
        };
        // Encoding again and comparing checks length, version and every reserved byte of every kind in one place.
        let canonical = message.encode();
        match canonical.iter().zip(bytes).position(|(ours, theirs)| ours != theirs) {
            // A different version is negotiated by HELLO and answered by REFUSED, so those two are read whatever it says.
            Some(6 | 7) if matches!(message, Self::Hello { .. } | Self::Refused { .. }) => Ok(message),
            Some(6 | 7) => Err(Malformed { what: "the version", value: u64::from(input.u16(6)?) }),
            Some(offset) => Err(Malformed { what: "a reserved byte, at offset", value: u64::try_from(offset).unwrap_or(0) }),
            None if canonical.len() != bytes.len() => Err(Malformed { what: "the length for its kind", value: length }),
            None => Ok(message),
        }
    }
}

fn cut(text: &str, limit_bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(limit_bytes)).unwrap_or_default()
}

struct Encoder {
    bytes: Vec<u8>,
}

impl Encoder {
    fn put(&mut self, offset: usize, value: &[u8]) {
        self.bytes[offset..offset + value.len()].copy_from_slice(value);
    }
}

struct Decoder<'a> {
    bytes: &'a [u8],
}

impl Decoder<'_> {
    fn array<const N: usize>(&self, offset: usize) -> Result<[u8; N], Malformed> {
        let short = Malformed { what: "the length in bytes", value: u64::try_from(self.bytes.len()).unwrap_or(u64::MAX) };
        let rest = self.bytes.get(offset..).ok_or(short)?;
        rest.first_chunk::<N>().copied().ok_or(short)
    }

    fn u16(&self, offset: usize) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.array(offset)?))
    }

    fn u32(&self, offset: usize) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array(offset)?))
    }

    fn u64(&self, offset: usize) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array(offset)?))
    }

    fn expect(&self, what: &'static str, value: u64, expected: u64) -> Result<(), Malformed> {
        if value == expected { Ok(()) } else { Err(Malformed { what, value }) }
    }

    fn text(&self, offset: usize, length: usize) -> Result<String, Malformed> {
        let end = offset + length;
        let short = Malformed { what: "the length in bytes", value: u64::try_from(self.bytes.len()).unwrap_or(u64::MAX) };
        let field = self.bytes.get(offset..end).ok_or(short)?;
        let text = field.split(|byte| *byte == 0).next().unwrap_or_default();
        let text = str::from_utf8(text).map_err(|error| Malformed {
            what: "a text that is not UTF-8, valid up to byte",
            value: u64::try_from(error.valid_up_to()).unwrap_or(u64::MAX),
        })?;
        Ok(text.to_owned())
    }

    fn refusal(&self) -> Result<String, Malformed> {
        let length = self.u32(16)?;
        match usize::try_from(length) {
            Ok(bytes) if bytes <= MAX_REFUSAL_BYTES => self.text(20, bytes),
            _ => Err(Malformed { what: "the length of a refusal's text", value: u64::from(length) }),
        }
    }
}
