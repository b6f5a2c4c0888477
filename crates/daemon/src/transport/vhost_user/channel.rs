//! What crate `vhost` does not do: name the request that comes next, and send word of a changed configuration.
//!
//! Two requests are taken here, before the crate sees them. It wraps the socket of SET_BACKEND_REQ_FD in a type that cannot send
//! CONFIG_CHANGE_MSG and does not give the socket back; and it refuses the SET_MEM_TABLE of user-mode Linux, which is longer than
//! its regions need.

use std::io::{self, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketType, recv, recvmsg, sockopt,
};
use vhost::vhost_user::message::{BackendReq, FrontendReq, MAX_ATTACHED_FD_ENTRIES, MAX_MSG_SIZE};

use super::table::Extent;

/// Bytes of a header: request, flags, length of what follows; four bytes each.
const HEADER_BYTES: usize = 12;
/// Of a table of memory: the number of regions and a gap; then each region, four times eight bytes.
const TABLE_HEADER_BYTES: usize = 8;
const REGION_BYTES: usize = 32;
const VERSION: u32 = 1;
const FLAG_REPLY: u32 = 4;
const FLAG_NEED_REPLY: u32 = 8;

/// A request that has come, not taken yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Upcoming {
    code: u32,
    needs_reply: bool,
}

impl Upcoming {
    /// Look at what the hypervisor has sent; `None`: it hung up, or has sent less than a header.
    pub(super) fn look(stream: &UnixStream) -> io::Result<Option<Self>> {
        let mut header = [0_u8; HEADER_BYTES];
        let (length, _) = recv(stream, &mut header, RecvFlags::PEEK)?;
        if length < HEADER_BYTES {
            return Ok(None);
        }
        let [code, flags, _] =
            [0, 4, 8].map(|at| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]));
        Ok(Some(Self { code, needs_reply: flags & FLAG_NEED_REPLY != 0 }))
    }

    /// Is it one of those that are taken here?
    pub(super) fn is_ours(self) -> bool {
        [FrontendReq::SET_BACKEND_REQ_FD, FrontendReq::SET_MEM_TABLE].iter().any(|ours| self.is(*ours))
    }

    /// Does it bring the channel for our own requests? Of those that are taken here, the others bring memory.
    pub(super) fn brings_channel(self) -> bool {
        self.is(FrontendReq::SET_BACKEND_REQ_FD)
    }

    fn is(self, request: FrontendReq) -> bool {
        self.code == u32::from(request)
    }

    /// For the log.
    pub(super) fn name(self) -> String {
        FrontendReq::try_from(self.code).map_or_else(|_| format!("request {}", self.code), |request| format!("{request:?}"))
    }

    /// Confirm it, if it wants that and `reply_ack` is in force.
    pub(super) fn confirm(self, stream: &UnixStream, reply_ack: bool) -> Result<(), String> {
        if !reply_ack || !self.needs_reply {
            return Ok(());
        }
        let mut answer = [0; HEADER_BYTES + 8];
        put_header(&mut answer, self.code, VERSION | FLAG_REPLY, 8);
        let mut writer = stream;
        writer.write_all(&answer).map_err(|error| format!("it does not take its answer: {error}"))
    }
}

/// A request that was taken.
pub(super) struct Taken {
    body: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

impl Taken {
    /// Take the request that comes next.
    ///
    /// # Errors
    /// In words: it is longer than any may be, or ends too early.
    pub(super) fn receive(stream: &UnixStream) -> Result<Self, String> {
        let mut header = [0_u8; HEADER_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_ATTACHED_FD_ENTRIES))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(stream, &mut [IoSliceMut::new(&mut header)], &mut control, RecvFlags::CMSG_CLOEXEC)
            .map_err(|error| error.to_string())?;
        let rights = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        let descriptors = rights.flatten().collect();
        let length = u32_at(&header, 8).and_then(|length| usize::try_from(length).ok()).unwrap_or(usize::MAX);
        if received.bytes != HEADER_BYTES || length > MAX_MSG_SIZE || u32_at(&header, 4).is_none_or(|flags| flags & 3 != VERSION)
        {
            return Err("invalid message".to_owned());
        }
        let mut body = vec![0; length];
        let mut reader = stream;
        reader.read_exact(&mut body).map_err(|error| format!("the message ends early: {error}"))?;
        Ok(Self { body, descriptors })
    }

    /// SET_BACKEND_REQ_FD: the channel that it brings.
    ///
    /// # Errors
    /// In words: it is no such message, or brings no Unix stream socket.
    pub(super) fn channel(mut self) -> Result<UnixStream, String> {
        let (Some(socket), true, true) = (self.descriptors.pop(), self.descriptors.is_empty(), self.body.is_empty()) else {
            return Err("it must bring one descriptor and nothing else".to_owned());
        };
        let is_stream =
            sockopt::socket_domain(&socket) == Ok(AddressFamily::UNIX) && sockopt::socket_type(&socket) == Ok(SocketType::STREAM);
        if is_stream { Ok(UnixStream::from(socket)) } else { Err("its descriptor must be a Unix stream socket".to_owned()) }
    }

    /// SET_MEM_TABLE: regions, where they begin in their files, and the files.
    ///
    /// # Errors
    /// In words: counts do not match.
    pub(super) fn regions(self) -> Result<Vec<(Extent, u64, OwnedFd)>, String> {
        let count = u32_at(&self.body, 0).and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
        let entries = self.body.get(TABLE_HEADER_BYTES..).unwrap_or(&[]);
        if count == 0 || count != self.descriptors.len() || count > entries.len() / REGION_BYTES {
            return Err("its regions and descriptors are not as many as it says, or none".to_owned());
        }
        // User-mode Linux sends room for more regions than it has.
        let entries = entries.chunks_exact(REGION_BYTES).zip(self.descriptors);
        let region = |(entry, file): (&[u8], OwnedFd)| {
            let [guest_address, length_bytes, user_address, file_offset_bytes] =
                [0, 8, 16, 24].map(|at| u64_at(entry, at).unwrap_or(0));
            (Extent { guest_address, length_bytes, user_address }, file_offset_bytes, file)
        };
        Ok(entries.map(region).collect())
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

/// A message of a hypervisor.
pub(super) fn message(request: FrontendReq, body: &[u8]) -> Vec<u8> {
    let mut message = vec![0; HEADER_BYTES];
    put_header(&mut message, request.into(), VERSION, u32::try_from(body.len()).unwrap_or(0));
    message.extend_from_slice(body);
    message
}

fn put_header(bytes: &mut [u8], code: u32, flags: u32, length: u32) {
    for (place, value) in bytes.chunks_exact_mut(4).zip([code, flags, length]) {
        place.copy_from_slice(&value.to_le_bytes());
    }
}

/// Tell the hypervisor that the configuration space changed. It does not answer, and one that does not read is not waited for.
pub(super) fn tell_config_changed(channel: &UnixStream) -> io::Result<()> {
    let mut message = [0; HEADER_BYTES];
    put_header(&mut message, BackendReq::CONFIG_CHANGE_MSG.into(), VERSION, 0);
    let sent = rustix::net::send(channel, &message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
    if sent == HEADER_BYTES { Ok(()) } else { Err(io::Error::from(io::ErrorKind::WriteZero)) }
}
