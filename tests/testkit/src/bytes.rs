//! The protocol in bytes: packets, memory, rings, doorbells, as docs/protocol.md defines them. Nothing here uses the project's
//! protocol code, so that the daemon and the client are compared with the document and not with themselves.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use fipsee_ring::AtomicU32;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};

use crate::packets;

/// A bound against hanging, not a claim about speed.
pub const LIMIT: Duration = Duration::from_secs(60);

pub const HELLO: u16 = 1;
pub const WELCOME: u16 = 2;
pub const ATTACH: u16 = 3;
pub const ATTACHED: u16 = 4;
pub const REFUSED: u16 = 5;
pub const REGISTER: u16 = 6;
pub const REGISTERED: u16 = 7;
pub const UNREGISTER: u16 = 8;
pub const UNREGISTERED: u16 = 9;
pub const DETACH: u16 = 10;
pub const DETACHED: u16 = 11;
pub const LIST: u16 = 12;
pub const LISTED: u16 = 13;

pub fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes(*bytes[offset..].first_chunk().expect("long enough"))
}

pub fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(*bytes[offset..].first_chunk().expect("long enough"))
}

pub fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(*bytes[offset..].first_chunk().expect("long enough"))
}

/// `bytes` with `value` at `offset`.
pub fn with(mut bytes: Vec<u8>, offset: usize, value: &[u8]) -> Vec<u8> {
    bytes[offset..offset + value.len()].copy_from_slice(value);
    bytes
}

/// A control message of so many bytes (4.2), its fields 0.
pub fn control(kind: u16, length: u32) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(length).expect("small")];
    bytes[..4].copy_from_slice(b"FPSC");
    bytes[4..6].copy_from_slice(&kind.to_le_bytes());
    bytes[6..8].copy_from_slice(&1_u16.to_le_bytes());
    bytes[8..12].copy_from_slice(&length.to_le_bytes());
    bytes
}

pub fn hello(version_min: u16, version_max: u16, features: u64) -> Vec<u8> {
    let bytes = with(control(HELLO, 24), 12, &version_min.to_le_bytes());
    with(with(bytes, 14, &version_max.to_le_bytes()), 16, &features.to_le_bytes())
}

/// What ATTACH asks for.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    pub service: u16,
    pub queues: u16,
    pub depth: u32,
    pub flags: u32,
    pub pool_bytes: u64,
    pub name: &'a [u8],
}

impl<'a> Wanted<'a> {
    pub const fn disk(name: &'a str) -> Self {
        Self { service: 1, queues: 1, depth: 4, flags: 0, pool_bytes: 1 << 20, name: name.as_bytes() }
    }
}

pub fn attach(wanted: &Wanted<'_>) -> Vec<u8> {
    let bytes = with(control(ATTACH, 96), 12, &wanted.service.to_le_bytes());
    let bytes = with(with(bytes, 14, &wanted.queues.to_le_bytes()), 16, &wanted.depth.to_le_bytes());
    let bytes = with(with(bytes, 20, &wanted.flags.to_le_bytes()), 24, &wanted.pool_bytes.to_le_bytes());
    with(bytes, 32, wanted.name)
}

/// What may be attached to of this service, after a name.
pub fn list(service: u16, after: &[u8]) -> Vec<u8> {
    with(with(control(LIST, 80), 12, &service.to_le_bytes()), 16, after)
}

pub fn register(id: u16, access: u16, length: u64) -> Vec<u8> {
    let bytes = with(control(REGISTER, 24), 12, &id.to_le_bytes());
    with(with(bytes, 14, &access.to_le_bytes()), 16, &length.to_le_bytes())
}

pub fn about_region(kind: u16, id: u16) -> Vec<u8> {
    with(control(kind, 16), 12, &id.to_le_bytes())
}

/// A packet as received.
#[derive(Debug)]
pub struct Packet {
    pub bytes: Vec<u8>,
    pub files: Vec<OwnedFd>,
}

impl Packet {
    pub fn kind(&self) -> u16 {
        u16_at(&self.bytes, 4)
    }
}

/// A SOCK_SEQPACKET socket.
#[derive(Debug)]
pub struct Socket(pub OwnedFd);

fn new_socket() -> OwnedFd {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket")
}

/// Listen at `path`, as the daemon.
pub fn listen(path: &Path) -> OwnedFd {
    let socket = new_socket();
    rustix::net::bind(&socket, &SocketAddrUnix::new(path).expect("a short path")).expect("the path is free");
    rustix::net::listen(&socket, 8).expect("it listens");
    socket
}

/// Wait until there is something to read, or the peer hangs up.
#[track_caller]
pub fn await_readable(fd: &impl AsFd) {
    assert!(packets::is_readable(fd, LIMIT), "nothing came within {LIMIT:?}");
}

impl Socket {
    pub fn connect(path: &Path) -> Self {
        let socket = new_socket();
        rustix::net::connect(&socket, &SocketAddrUnix::new(path).expect("a short path")).expect("the daemon listens");
        Self(socket)
    }

    pub fn accept(listener: &OwnedFd) -> Self {
        await_readable(listener);
        Self(rustix::net::accept_with(listener, SocketFlags::CLOEXEC).expect("a connection"))
    }

    /// A closed peer shows up when reading.
    pub fn send(&self, bytes: &[u8], files: &[BorrowedFd<'_>]) {
        let sent = packets::send(&self.0, bytes, files);
        assert!(matches!(sent, Ok(_) | Err(Errno::PIPE | Errno::CONNRESET)), "{sent:?}");
    }

    /// The next packet; `None` at the end of the connection.
    #[track_caller]
    pub fn receive(&self) -> Option<Packet> {
        // An end, and then a reset, may be reported before a packet that was sent earlier (R-4.1-8).
        for _ in 0..3 {
            await_readable(&self.0);
            let mut bytes = vec![0; 1024];
            match packets::receive(&self.0, &mut bytes) {
                Ok((0, _)) | Err(Errno::CONNRESET) => {}
                Ok((length, files)) => {
                    bytes.truncate(length);
                    return Some(Packet { bytes, files });
                }
                Err(error) => panic!("{error}"),
            }
        }
        None
    }

    #[track_caller]
    pub fn ask(&self, bytes: &[u8], files: &[BorrowedFd<'_>]) -> Packet {
        self.send(bytes, files);
        self.receive().expect("an answer, not a hang-up")
    }

    #[track_caller]
    pub fn assert_closed(&self) {
        let more = self.receive();
        assert!(more.is_none(), "{more:?} instead of a hang-up");
    }

    /// The next message is REFUSED, as 4.5 lays it out, with that code.
    #[track_caller]
    pub fn assert_refused(&self, code: u32, what: &str) {
        let packet = self.receive().unwrap_or_else(|| panic!("{what}: a hang-up instead of REFUSED"));
        assert_refusal(&packet, code, what);
    }
}

#[track_caller]
pub fn assert_refusal(packet: &Packet, code: u32, what: &str) {
    let bytes = &packet.bytes;
    assert_eq!((packet.kind(), bytes.len()), (REFUSED, 420), "{what}: {bytes:02x?}");
    assert_eq!(bytes[..12], control(REFUSED, 420)[..12], "{what}: the header");
    let text_bytes = usize::try_from(u32_at(bytes, 16)).expect("small");
    let (text, rest) = bytes[20..].split_at(text_bytes);
    let text = str::from_utf8(text).expect("UTF-8");
    assert_eq!(u32_at(bytes, 12), code, "{what}: {text}");
    assert!(!text.is_empty() && !text.contains('\0') && rest.iter().all(|byte| *byte == 0), "{what}: {text}");
    assert!(packet.files.is_empty(), "{what}: descriptors");
}

/// A memory file with these seals.
pub fn memory_file(length: u64, seals: SealFlags) -> OwnedFd {
    let file = rustix::fs::memfd_create("conformance", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a memory file");
    rustix::fs::ftruncate(&file, length).expect("it grows");
    rustix::fs::fcntl_add_seals(&file, seals).expect("seals");
    file
}

/// A mapped memory file.
#[derive(Debug)]
pub struct Mapped {
    base: NonNull<u8>,
    length: usize,
}

impl Mapped {
    pub fn new(file: &impl AsFd, length: u64) -> Self {
        let length = usize::try_from(length).expect("small");
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, file, 0) };
        Self { base: NonNull::new(base.expect("memory").cast()).expect("not null"), length }
    }

    fn place(&self, offset: u64, length: usize) -> *mut u8 {
        let offset = usize::try_from(offset).expect("small");
        assert!(offset <= self.length && length <= self.length - offset, "outside the memory");
        self.base.as_ptr().wrapping_add(offset)
    }

    pub fn word(&self, offset: u64) -> &AtomicU32 {
        assert_eq!(offset % 4, 0);
        // SAFETY: aligned, within the mapping, and never accessed otherwise while another process may.
        unsafe { AtomicU32::from_ptr(self.place(offset, 4).cast()) }
    }

    pub fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        // SAFETY: within the mapping; the destination is new.
        unsafe { std::ptr::copy_nonoverlapping(self.place(offset, length), bytes.as_mut_ptr(), length) };
        bytes
    }

    pub fn write(&self, offset: u64, bytes: &[u8]) {
        // SAFETY: within the mapping, to which no reference exists.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.place(offset, bytes.len()), bytes.len()) };
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, to which no pointer is left.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.length) };
        assert!(unmapped.is_ok());
    }
}

/// One side's position in a ring (2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    pub ring: u64,
    pub slots: u32,
    pub index: u32,
    pub stamp: u32,
}

impl Cursor {
    pub fn slot(&self) -> u64 {
        self.ring + 64 * u64::from(self.index)
    }

    pub fn advance(&mut self) {
        self.index += 1;
        if self.index == self.slots {
            (self.index, self.stamp) = (0, if self.stamp == u32::MAX { 1 } else { self.stamp + 1 });
        }
    }

    /// 2.2: payload, then stamp.
    pub fn publish(&mut self, memory: &Mapped, payload: &[u8; 60]) {
        memory.write(self.slot(), payload);
        memory.word(self.slot() + 60).store(self.stamp, Ordering::Release);
        self.advance();
    }

    /// 2.2: the message here, if there is one.
    pub fn take(&mut self, memory: &Mapped) -> Option<[u8; 60]> {
        if memory.word(self.slot() + 60).load(Ordering::Acquire) != self.stamp {
            return None;
        }
        let payload = memory.read(self.slot(), 60);
        self.advance();
        Some(*payload.first_chunk().expect("60 bytes"))
    }
}

/// 2.4: must the reader of the ring with these cold words be woken? Clears its flag if so.
pub fn must_ring(memory: &Mapped, cold: u64) -> bool {
    fence(Ordering::SeqCst);
    memory.word(cold + 4).load(Ordering::Relaxed) != 0 && memory.word(cold + 4).swap(0, Ordering::Relaxed) != 0
}

/// The content of a doorbell socket: the lengths of its packets, and whether the peer has closed it.
pub fn rings(doorbell: &impl AsFd) -> (Vec<usize>, bool) {
    let mut lengths = Vec::new();
    loop {
        let mut bytes = [0; 64];
        match rustix::net::recv(doorbell, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return (lengths, true),
            Ok((length, _)) => lengths.push(length),
            Err(Errno::AGAIN) => return (lengths, false),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Wait until a doorbell socket holds something, or is closed.
pub use await_readable as await_ring;

/// Poll until `value` returns one.
#[track_caller]
pub fn until<T>(what: &str, mut value: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(value) = value() {
            return value;
        }
        assert!(Instant::now() < deadline, "not within {LIMIT:?}: {what}");
        std::thread::yield_now();
    }
}

/// Offset and length in sectors, and id (5.2).
pub type Piece = (u32, u16, u16);

pub fn segment((offset, length, id): Piece) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&offset.to_le_bytes());
    bytes[4..6].copy_from_slice(&length.to_le_bytes());
    bytes[6..].copy_from_slice(&id.to_le_bytes());
    bytes
}

/// A request (5.1): operation, segment_count, flags; tag; sector; bytes 16..56; aux.
pub fn request(head: (u8, u8, u16), tag: u16, sector: u64, middle: &[u8], aux: u32) -> [u8; 60] {
    let (operation, segment_count, flags) = head;
    let mut bytes = [0; 60];
    (bytes[0], bytes[1]) = (operation, segment_count);
    bytes[2..4].copy_from_slice(&flags.to_le_bytes());
    bytes[4..6].copy_from_slice(&tag.to_le_bytes());
    bytes[8..16].copy_from_slice(&sector.to_le_bytes());
    bytes[16..16 + middle.len()].copy_from_slice(middle);
    bytes[56..].copy_from_slice(&aux.to_le_bytes());
    bytes
}

pub const READ: u8 = 1;
pub const WRITE: u8 = 2;
pub const FLUSH: u8 = 3;
pub const DISCARD: u8 = 4;
pub const ZERO: u8 = 5;
pub const GET_INFO: u8 = 6;
pub const ACK_EVENT: u8 = 7;

/// A read or write of one segment.
pub fn transfer(operation: u8, tag: u16, sector: u64, piece: Piece) -> [u8; 60] {
    request((operation, 1, 0), tag, sector, &segment(piece), 0)
}

pub fn flush(tag: u16) -> [u8; 60] {
    request((FLUSH, 0, 0), tag, 0, &[], 0)
}

pub fn ack_event(tag: u16, kind: u32) -> [u8; 60] {
    request((ACK_EVENT, 0, 0), tag, 0, &[], kind)
}
