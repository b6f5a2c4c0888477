//! The hypervisor's half of vhost-user: messages over a Unix socket, each acknowledged before the next.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::ram::{Piece, USER_OFFSET};
use crate::{TIMEOUT, packets};

/// Requests of the protocol that we make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Request {
    GetFeatures = 1,
    SetFeatures = 2,
    SetOwner = 3,
    SetMemTable = 5,
    SetLogBase = 6,
    SetVringNum = 8,
    SetVringAddr = 9,
    SetVringBase = 10,
    GetVringBase = 11,
    SetVringKick = 12,
    SetVringCall = 13,
    SetVringErr = 14,
    GetProtocolFeatures = 15,
    SetProtocolFeatures = 16,
    GetQueueNum = 17,
    SetVringEnable = 18,
    SendRarp = 19,
    NetSetMtu = 20,
    SetBackendReqFd = 21,
    GetConfig = 24,
    GetInflightFd = 31,
    SetInflightFd = 32,
    AddMemReg = 37,
    RemMemReg = 38,
}

/// Virtio feature: protocol features are negotiated.
pub const PROTOCOL_FEATURES: u64 = 1 << 30;
/// Virtio feature: writes to memory are logged.
pub const LOG_ALL: u64 = 1 << 26;
/// MQ, LOG_SHMFD, RARP, REPLY_ACK, NET_MTU, BACKEND_REQ, CONFIG, INFLIGHT_SHMFD, CONFIGURE_MEM_SLOTS: protocol features we ask for.
const WANTED: u64 = 1 << 0 | 1 << 1 | 1 << 2 | REPLY_ACK | 1 << 4 | 1 << 5 | 1 << 9 | 1 << 12 | 1 << 15;
const REPLY_ACK: u64 = 1 << 3;

const VERSION: u32 = 1;
const REPLY: u32 = 4;
/// Flag of a message that is to be confirmed.
pub const NEED_REPLY: u32 = 8;
const HEADER_BYTES: usize = 12;

/// Memory in which a back end records what is in flight, as the hypervisor keeps it.
#[derive(Debug)]
pub struct InflightArea {
    file: OwnedFd,
    description: Vec<u8>,
}

/// A connection to a back end.
#[derive(Debug)]
pub struct Frontend {
    socket: UnixStream,
    acknowledged: bool,
}

impl Frontend {
    /// Connect and negotiate protocol features.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let socket = UnixStream::connect(path)?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        let mut frontend = Self { socket, acknowledged: false };
        if frontend.get(Request::GetFeatures)? & PROTOCOL_FEATURES == 0 {
            return Err(io::Error::other("the back end has no protocol features"));
        }
        let offered = frontend.get(Request::GetProtocolFeatures)?;
        frontend.set(Request::SetProtocolFeatures, &(offered & WANTED).to_le_bytes(), &[])?;
        frontend.acknowledged = offered & REPLY_ACK != 0;
        frontend.set(Request::SetOwner, &[], &[])?;
        Ok(frontend)
    }

    /// Has the back end closed the connection?
    pub fn is_hung_up(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.socket, PollFlags::RDHUP)], Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// The connection, to wait for its end.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The connection, to say what no hypervisor says.
    pub const fn connection(&self) -> &UnixStream {
        &self.socket
    }

    /// Has the back end sent nothing that was not asked for?
    pub fn is_silent(&self) -> bool {
        !packets::is_readable(&self.socket, Duration::ZERO)
    }

    /// The answer to what was said over [`connection`](Self::connection).
    pub fn answer(&mut self, request: Request) -> io::Result<Vec<u8>> {
        self.receive(request).map(|(body, _)| body)
    }

    /// Ask for a number.
    pub fn get(&mut self, request: Request) -> io::Result<u64> {
        let (body, _) = self.call(request, &[], &[])?;
        body.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)).ok_or_else(|| io::Error::other("a short answer"))
    }

    /// Say something that has no answer of its own.
    pub fn set(&mut self, request: Request, body: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let flags = if self.acknowledged { NEED_REPLY } else { 0 };
        send(&self.socket, &message(request as u32, flags, body), files)?;
        if !self.acknowledged {
            return Ok(());
        }
        let (answer, _) = self.receive(request)?;
        match answer.as_slice() {
            [0, 0, 0, 0, 0, 0, 0, 0] => Ok(()),
            other => Err(io::Error::other(format!("{request:?} is refused: {other:x?}"))),
        }
    }

    /// Say something that has an answer.
    pub fn call(&mut self, request: Request, body: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
        send(&self.socket, &message(request as u32, 0, body), files)?;
        self.receive(request)
    }

    /// Hand over the area for requests in flight, which the back end gives if there is none yet.
    pub fn set_inflight(&mut self, area: &mut Option<InflightArea>, queues: u16, size: u16) -> io::Result<()> {
        if area.is_none() {
            let wanted = [&[0; 16][..], &queues.to_le_bytes(), &size.to_le_bytes(), &[0; 4]].concat();
            let (description, mut files) = self.call(Request::GetInflightFd, &wanted, &[])?;
            *area = files.pop().map(|file| InflightArea { file, description });
        }
        let InflightArea { file, description } = area.as_ref().ok_or_else(|| io::Error::other("no inflight area"))?;
        self.set(Request::SetInflightFd, description, &[file.as_fd()])
    }

    /// SET_MEM_TABLE.
    pub fn set_memory(&mut self, pieces: &[Piece]) -> io::Result<()> {
        let places: Vec<_> = pieces.iter().map(|piece| (piece.guest_address, piece.region.length_bytes())).collect();
        let files: Vec<BorrowedFd<'_>> = pieces.iter().map(Piece::file).collect();
        self.set(Request::SetMemTable, &memory_table(&places), &files)
    }

    /// A message about a vring: its number and a value.
    pub fn set_vring(&mut self, request: Request, index: u32, value: u32) -> io::Result<()> {
        self.set(request, &[index.to_le_bytes(), value.to_le_bytes()].concat(), &[])
    }

    /// A message that hands over a vring's eventfd.
    pub fn set_vring_file(&mut self, request: Request, index: u32, file: BorrowedFd<'_>) -> io::Result<()> {
        self.set(request, &u64::from(index).to_le_bytes(), &[file])
    }

    /// GET_VRING_BASE: stop a vring.
    pub fn stop_vring(&mut self, index: u32) -> io::Result<u16> {
        let (body, _) = self.call(Request::GetVringBase, &[index.to_le_bytes(), [0; 4]].concat(), &[])?;
        body.get(4..6).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]])).ok_or_else(|| io::Error::other("a short answer"))
    }

    /// Open a channel for requests of the back end.
    pub fn open_channel(&mut self) -> io::Result<UnixStream> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_read_timeout(Some(TIMEOUT))?;
        self.set(Request::SetBackendReqFd, &[], &[theirs.as_fd()])?;
        Ok(ours)
    }

    /// The first bytes of the configuration space.
    pub fn config<const BYTES: usize>(&mut self) -> io::Result<[u8; BYTES]> {
        let length = u32::try_from(BYTES).unwrap_or(0);
        let range = [[0; 4], length.to_le_bytes(), [0; 4]].concat();
        let (body, _) = self.call(Request::GetConfig, &[&range[..], &[0; BYTES]].concat(), &[])?;
        body.get(range.len()..).and_then(|space| space.first_chunk().copied()).ok_or_else(|| io::Error::other("a short answer"))
    }

    fn receive(&self, request: Request) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
        receive(&self.socket, request as u32)
    }
}

/// The body of SET_MEM_TABLE: address and length of each piece.
pub fn memory_table(pieces: &[(u64, u64)]) -> Vec<u8> {
    let count = u32::try_from(pieces.len()).unwrap_or(u32::MAX);
    let mut body = [count.to_le_bytes(), [0; 4]].concat();
    for (address, length) in pieces {
        for value in [*address, *length, USER_OFFSET.wrapping_add(*address), 0] {
            body.extend(value.to_le_bytes());
        }
    }
    body
}

/// A message that asks; `flags`: [`NEED_REPLY`].
pub fn message(code: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("short");
    let header = [code.to_le_bytes(), (VERSION | flags).to_le_bytes(), length.to_le_bytes()].concat();
    [header, body.to_vec()].concat()
}

/// Send bytes as they are.
pub fn send(socket: &UnixStream, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let sent = packets::send(socket, bytes, files)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// The answer to a request: its body and descriptors.
pub fn receive(socket: &UnixStream, code: u32) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut header = [0; HEADER_BYTES];
    let files = fill(socket, &mut header)?;
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    if word(0) != code || word(4) != VERSION | REPLY {
        return Err(io::Error::other(format!("{header:x?} does not answer {code}")));
    }
    let mut body = vec![0; usize::try_from(word(8)).unwrap_or(0).min(4096)];
    fill(socket, &mut body)?;
    Ok((body, files))
}

fn fill(socket: &UnixStream, into: &mut [u8]) -> io::Result<Vec<OwnedFd>> {
    let (mut filled, mut files) = (0, Vec::new());
    while filled < into.len() {
        let (length, more) = packets::receive(socket, &mut into[filled..])?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        filled += length;
        files.extend(more);
    }
    Ok(files)
}
