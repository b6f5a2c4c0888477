//! Messages of the vhost-user protocol: a hypervisor's messages, copied and checked, and the answers.

use std::fmt;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use fipsee_virtio::core::memory::RegionDescription;
use rustix::net::{AddressFamily, SocketType, sockopt};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// The requests of the protocol, by their numbers from 1 on.
const REQUESTS: &str = "GET_FEATURES SET_FEATURES SET_OWNER RESET_OWNER SET_MEM_TABLE SET_LOG_BASE SET_LOG_FD SET_VRING_NUM \
    SET_VRING_ADDR SET_VRING_BASE GET_VRING_BASE SET_VRING_KICK SET_VRING_CALL SET_VRING_ERR GET_PROTOCOL_FEATURES \
    SET_PROTOCOL_FEATURES GET_QUEUE_NUM SET_VRING_ENABLE SEND_RARP NET_SET_MTU SET_BACKEND_REQ_FD IOTLB_MSG SET_VRING_ENDIAN \
    GET_CONFIG SET_CONFIG CREATE_CRYPTO_SESSION CLOSE_CRYPTO_SESSION POSTCOPY_ADVISE POSTCOPY_LISTEN POSTCOPY_END \
    GET_INFLIGHT_FD SET_INFLIGHT_FD GPU_SET_SOCKET RESET_DEVICE VRING_KICK GET_MAX_MEM_SLOTS ADD_MEM_REG REM_MEM_REG SET_STATUS \
    GET_STATUS GET_SHARED_OBJECT SET_DEVICE_STATE_FD CHECK_DEVICE_STATE GET_SHMEM_CONFIG";

fipsee_ring::wire_structures! {
    RawHeader: 12 { 0 request: u32, 4 flags: u32, 8 length_bytes: u32 }
    /// A vring and a value.
    pub(super) VringState: 8 { 0 index: u32, 4 value: u32 }
    /// SET_VRING_ADDR.
    pub(super) VringAddress: 40 { 0 index: u32, 4 flags: u32, 8 descriptor: u64, 16 used: u64, 24 available: u64, 32 log: u64 }
    /// A part of the configuration space; its bytes follow.
    pub(super) ConfigRange: 12 { 0 offset: u32, 4 length_bytes: u32, 8 flags: u32 }
    /// An area for requests in flight.
    pub(super) Inflight: 24 { 0 length_bytes: u64, 8 offset_bytes: u64, 16 queues: u16, 18 size: u16, 20 padding: u32 }
    /// A log of written pages.
    pub(super) LogArea: 16 { 0 length_bytes: u64, 8 offset_bytes: u64 }
    /// The start of a table of memory; its regions follow.
    TableHeader: 8 { 0 count: u32, 4 padding: u32 }
    /// A region of a table of memory.
    RegionEntry: 32 { 0 guest_address: u64, 8 length_bytes: u64, 16 user_address: u64, 24 file_offset_bytes: u64 }
    /// A region by itself.
    SingleRegion: 40 { 0 padding: u64, 8 region: RegionEntry }
}

/// Bytes before the body of a message.
pub const HEADER_BYTES: usize = size_of::<RawHeader>();
const MAX_BODY_BYTES: usize = 4096;
const VERSION: u32 = 1;
const FLAG_REPLY: u32 = 4;
const FLAG_NEED_REPLY: u32 = 8;
const KNOWN_FLAGS: u32 = 15;
/// Request of a back end: the configuration space changed.
const CONFIG_CHANGED: u32 = 2;
/// Of SET_VRING_KICK, SET_VRING_CALL and SET_VRING_ERR: no descriptor comes with it.
const NO_DESCRIPTOR: u64 = 0x100;
const MAX_CONFIG_BYTES: u64 = 4096;
const KNOWN_CONFIG_FLAGS: u32 = 3;

const INVALID: &str = "invalid message";

/// The header of a request.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    code: u32,
    needs_reply: bool,
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            "" => write!(f, "request {}", self.code),
            name => f.write_str(name),
        }
    }
}

impl Header {
    /// Parsed from bytes; returns the length of the body, unless no message has such a header.
    pub fn parse(bytes: [u8; HEADER_BYTES]) -> (Self, Option<usize>) {
        let RawHeader { request, flags, length_bytes } = zerocopy::transmute!(bytes);
        let header = Self { code: request, needs_reply: flags & FLAG_NEED_REPLY != 0 };
        let length = usize::try_from(length_bytes).ok().filter(|length| *length <= MAX_BODY_BYTES);
        (header, length.filter(|_| flags & 3 == VERSION && flags & !KNOWN_FLAGS == 0 && !header.name().is_empty()))
    }

    /// The protocol's name of the request; empty: no request has this number.
    pub(super) fn name(self) -> &'static str {
        let place = usize::try_from(self.code).ok().and_then(|code| code.checked_sub(1));
        place.and_then(|place| REQUESTS.split_ascii_whitespace().nth(place)).unwrap_or("")
    }

    pub(super) const fn needs_reply(self) -> bool {
        self.needs_reply
    }

    pub(super) fn reply(self, body: &[u8]) -> Vec<u8> {
        encode(self.code, VERSION | FLAG_REPLY, body)
    }
}

/// CONFIG_CHANGE_MSG, which has no answer.
pub(super) fn config_changed() -> Vec<u8> {
    encode(CONFIG_CHANGED, VERSION, &[])
}

fn encode(request: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let length_bytes = u32::try_from(body.len()).unwrap_or(0);
    [RawHeader { request, flags, length_bytes }.as_bytes(), body].concat()
}

#[derive(Debug)]
pub struct Message {
    /// Its header.
    pub header: Header,
    /// What follows the header.
    pub body: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
}

/// The contents of a message, or why it is refused, in words.
type Parsed<T> = Result<T, String>;

impl Message {
    fn body<T: FromBytes>(&self) -> Parsed<T> {
        T::read_from_bytes(&self.body).map_err(|_| INVALID.to_owned())
    }

    /// A body of exactly this kind, without descriptors.
    pub(super) fn plain<T: FromBytes>(&self) -> Parsed<T> {
        if self.descriptors.is_empty() { self.body() } else { Err(INVALID.to_owned()) }
    }

    /// Nothing but a header.
    pub(super) fn empty(&self) -> Parsed<()> {
        self.plain::<[u8; 0]>().map(|_| ())
    }

    /// A body of exactly this kind, with one descriptor.
    pub(super) fn with_descriptor<T: FromBytes>(mut self) -> Parsed<(T, OwnedFd)> {
        match (self.descriptors.pop(), self.descriptors.is_empty()) {
            (Some(descriptor), true) => Ok((self.body()?, descriptor)),
            _ => Err(INVALID.to_owned()),
        }
    }

    /// SET_VRING_KICK, SET_VRING_CALL, SET_VRING_ERR: a vring and its descriptor, if it is to have one.
    pub(super) fn vring_descriptor(mut self) -> Parsed<(u32, Option<OwnedFd>)> {
        let value: u64 = self.body()?;
        let descriptor = self.descriptors.pop();
        if descriptor.is_some() == (value & NO_DESCRIPTOR != 0) || !self.descriptors.is_empty() {
            return Err(INVALID.to_owned());
        }
        Ok((u32::from(value.to_le_bytes()[0]), descriptor))
    }

    /// SET_VRING_ADDR.
    pub(super) fn vring_address(&self) -> Parsed<VringAddress> {
        let address: VringAddress = self.plain()?;
        let aligned = [(address.descriptor, 16), (address.available, 2), (address.used, 4)];
        let is_valid = address.flags <= 1 && aligned.iter().all(|(address, alignment)| address.is_multiple_of(*alignment));
        if is_valid { Ok(address) } else { Err(INVALID.to_owned()) }
    }

    /// GET_CONFIG, SET_CONFIG: which part, and its bytes.
    pub(super) fn config(&self) -> Parsed<(ConfigRange, &[u8])> {
        let (range, bytes) = ConfigRange::read_from_prefix(&self.body).map_err(|_| INVALID.to_owned())?;
        let end = u64::from(range.offset) + u64::from(range.length_bytes);
        let is_valid = range.flags & !KNOWN_CONFIG_FLAGS == 0
            && !bytes.is_empty()
            && u32::try_from(bytes.len()) == Ok(range.length_bytes)
            && end <= MAX_CONFIG_BYTES
            && self.descriptors.is_empty();
        if is_valid { Ok((range, bytes)) } else { Err(INVALID.to_owned()) }
    }

    /// SET_BACKEND_REQ_FD: the channel that it brings.
    pub(super) fn channel(mut self) -> Parsed<UnixStream> {
        let (Some(socket), true, true) = (self.descriptors.pop(), self.descriptors.is_empty(), self.body.is_empty()) else {
            return Err("it must bring one descriptor and nothing else".to_owned());
        };
        let is_stream =
            sockopt::socket_domain(&socket) == Ok(AddressFamily::UNIX) && sockopt::socket_type(&socket) == Ok(SocketType::STREAM);
        if is_stream { Ok(UnixStream::from(socket)) } else { Err("its descriptor must be a Unix stream socket".to_owned()) }
    }

    /// SET_MEM_TABLE: regions and their files.
    pub(super) fn regions(self) -> Parsed<Vec<(RegionDescription, OwnedFd)>> {
        let (header, entries) = TableHeader::read_from_prefix(&self.body).unwrap_or((TableHeader::new_zeroed(), &[]));
        let (entries, _) = entries.as_chunks::<{ size_of::<RegionEntry>() }>();
        let count = usize::try_from(header.count).unwrap_or(0);
        // User-mode Linux sends room for more regions than it has.
        if count == 0 || count != self.descriptors.len() || count > entries.len() {
            return Err("its count does not match its regions and descriptors, or is 0".to_owned());
        }
        let regions = entries.iter().map(|entry| region(zerocopy::transmute!(*entry)));
        Ok(regions.zip(self.descriptors).collect())
    }

    /// ADD_MEM_REG: a region and its file.
    pub(super) fn added_region(self) -> Parsed<(RegionDescription, OwnedFd)> {
        let (single, file) = self.with_descriptor::<SingleRegion>()?;
        Ok((region(single.region), file))
    }

    /// REM_MEM_REG. A file that comes with it is ignored.
    pub(super) fn removed_region(&self) -> Parsed<RegionDescription> {
        self.body::<SingleRegion>().map(|single| region(single.region))
    }
}

const fn region(entry: RegionEntry) -> RegionDescription {
    let RegionEntry { guest_address, length_bytes, user_address, file_offset_bytes } = entry;
    RegionDescription { guest_address, length_bytes, user_address, file_offset_bytes }
}
