//! The hypervisor's half of vhost-user: messages over a Unix socket, each acknowledged before the next.

use std::io;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::ram::{Piece, USER_OFFSET};
use crate::TIMEOUT;

/// Requests of the protocol that we make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the protocol's")]
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
    GetConfig = 24,
    GetInflightFd = 31,
    SetInflightFd = 32,
}

/// Virtio feature: protocol features are negotiated.
pub const PROTOCOL_FEATURES: u64 = 1 << 30;
/// Virtio feature: writes to memory are logged.
pub const LOG_ALL: u64 = 1 << 26;
/// Protocol features we ask for.
pub const MQ: u64 = 1 << 0;
/// See [`MQ`].
pub const LOG_SHMFD: u64 = 1 << 1;
/// See [`MQ`].
pub const REPLY_ACK: u64 = 1 << 3;
/// See [`MQ`].
pub const CONFIG: u64 = 1 << 9;
/// See [`MQ`].
pub const INFLIGHT_SHMFD: u64 = 1 << 12;

const VERSION: u32 = 1;
const REPLY: u32 = 4;
/// Flag of a message that is to be confirmed.
pub const NEED_REPLY: u32 = 8;
const HEADER_BYTES: usize = 12;

/// A connection to a back end.
#[derive(Debug)]
pub struct Frontend {
    socket: UnixStream,
    acknowledged: bool,
}

impl Frontend {
    /// Connect and negotiate protocol features.
    ///
    /// # Errors
    /// What the socket or the back end says.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let socket = UnixStream::connect(path)?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        let mut frontend = Self { socket, acknowledged: false };
        if frontend.get(Request::GetFeatures)? & PROTOCOL_FEATURES == 0 {
            return Err(io::Error::other("the back end has no protocol features"));
        }
        let offered = frontend.get(Request::GetProtocolFeatures)?;
        let wanted = MQ | LOG_SHMFD | REPLY_ACK | CONFIG | INFLIGHT_SHMFD;
        frontend.set(Request::SetProtocolFeatures, &(offered & wanted).to_le_bytes(), &[])?;
        frontend.acknowledged = offered & REPLY_ACK != 0;
        frontend.set(Request::SetOwner, &[], &[])?;
        Ok(frontend)
    }

    /// Has the back end closed the connection?
    #[must_use]
    pub fn is_hung_up(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// The connection, to wait for its end.
    #[must_use]
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The connection, to say what no hypervisor says.
    #[must_use]
    pub const fn connection(&self) -> &UnixStream {
        &self.socket
    }

    /// Has the back end sent nothing that was not asked for?
    #[must_use]
    pub fn is_silent(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&now)).is_ok_and(|ready| ready == 0)
    }

    /// The answer to what was said over [`connection`](Self::connection).
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn answer(&mut self, request: Request) -> io::Result<Vec<u8>> {
        self.receive(request).map(|(body, _)| body)
    }

    /// Ask for a number.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn get(&mut self, request: Request) -> io::Result<u64> {
        let (body, _) = self.call(request, &[], &[])?;
        body.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)).ok_or_else(|| io::Error::other("a short answer"))
    }

    /// Say something that has no answer of its own.
    ///
    /// # Errors
    /// The back end says no, or is gone.
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
    ///
    /// # Errors
    /// The back end is gone, or its answer is none.
    pub fn call(&mut self, request: Request, body: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
        send(&self.socket, &message(request as u32, 0, body), files)?;
        self.receive(request)
    }

    /// SET_MEM_TABLE.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub fn set_memory(&mut self, pieces: &[Piece]) -> io::Result<()> {
        let mut body = u32::try_from(pieces.len()).unwrap_or(0).to_le_bytes().to_vec();
        body.extend([0; 4]);
        for piece in pieces {
            let (address, length) = (piece.guest_address, piece.region.length_bytes());
            for value in [address, length, USER_OFFSET + address, 0] {
                body.extend(value.to_le_bytes());
            }
        }
        let files: Vec<BorrowedFd<'_>> = pieces.iter().map(Piece::file).collect();
        self.set(Request::SetMemTable, &body, &files)
    }

    /// A message about a vring: its number and a value.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub fn set_vring(&mut self, request: Request, index: u32, value: u32) -> io::Result<()> {
        self.set(request, &[index.to_le_bytes(), value.to_le_bytes()].concat(), &[])
    }

    /// A message that hands over a vring's eventfd.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub fn set_vring_file(&mut self, request: Request, index: u32, file: BorrowedFd<'_>) -> io::Result<()> {
        self.set(request, &u64::from(index).to_le_bytes(), &[file])
    }

    /// GET_VRING_BASE: stop a vring.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn stop_vring(&mut self, index: u32) -> io::Result<u16> {
        let (body, _) = self.call(Request::GetVringBase, &[index.to_le_bytes(), [0; 4]].concat(), &[])?;
        body.get(4..6).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]])).ok_or_else(|| io::Error::other("a short answer"))
    }

    fn receive(&self, request: Request) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
        receive(&self.socket, request as u32)
    }
}

/// A message that asks; `flags`: [`NEED_REPLY`].
pub fn message(code: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("short");
    let header = [code.to_le_bytes(), (VERSION | flags).to_le_bytes(), length.to_le_bytes()].concat();
    [header, body.to_vec()].concat()
}

/// Send bytes as they are.
///
/// # Errors
/// The back end is gone.
pub fn send(socket: &UnixStream, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(files.is_empty() || control.push(SendAncillaryMessage::ScmRights(files)), "at most 64 descriptors");
    let sent = sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// The answer to a request: its body and descriptors.
///
/// # Errors
/// The back end is gone, or its answer is none.
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
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(socket, &mut [IoSliceMut::new(&mut into[filled..])], &mut control, flags)?;
        if received.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        filled += received.bytes;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                files.extend(rights);
            }
        }
    }
    Ok(files)
}
