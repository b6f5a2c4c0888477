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
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::table::Extent;

fipsee_ring::wire_structures! {
    /// The start of a message.
    Header: 12 {
        0 request: u32, 4 flags: u32,
        /// Of what follows.
        8 length_bytes: u32,
    }
    /// The start of a table of memory; its regions follow.
    TableHeader: 8 { 0 count: u32, 4 padding: u32 }
    /// A region of a table of memory.
    RegionEntry: 32 { 0 guest_address: u64, 8 length_bytes: u64, 16 user_address: u64, 24 file_offset_bytes: u64 }
}

const HEADER_BYTES: usize = size_of::<Header>();
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
        let mut header = Header::new_zeroed();
        let (length, _) = recv(stream, header.as_mut_bytes(), RecvFlags::PEEK)?;
        let needs_reply = header.flags & FLAG_NEED_REPLY != 0;
        Ok((length == HEADER_BYTES).then_some(Self { code: header.request, needs_reply }))
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
        let mut writer = stream;
        writer
            .write_all(&with_header(self.code, FLAG_REPLY, &[0; 8]))
            .map_err(|error| format!("it does not take its answer: {error}"))
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
        let mut header = Header::new_zeroed();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_ATTACHED_FD_ENTRIES))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(stream, &mut [IoSliceMut::new(header.as_mut_bytes())], &mut control, RecvFlags::CMSG_CLOEXEC)
            .map_err(|error| error.to_string())?;
        let rights = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        let descriptors = rights.flatten().collect();
        let length = usize::try_from(header.length_bytes).unwrap_or(usize::MAX);
        if received.bytes != HEADER_BYTES || length > MAX_MSG_SIZE || header.flags & 3 != VERSION {
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
        let (header, entries) = TableHeader::read_from_prefix(&self.body).unwrap_or((TableHeader::new_zeroed(), &[]));
        let (entries, _) = entries.as_chunks::<{ size_of::<RegionEntry>() }>();
        let count = usize::try_from(header.count).unwrap_or(0);
        if count == 0 || count != self.descriptors.len() || count > entries.len() {
            return Err("its regions and descriptors are not as many as it says, or none".to_owned());
        }
        // User-mode Linux sends room for more regions than it has.
        let region = |(entry, file): (&[u8; _], OwnedFd)| {
            let RegionEntry { guest_address, length_bytes, user_address, file_offset_bytes } = zerocopy::transmute!(*entry);
            (Extent { guest_address, length_bytes, user_address }, file_offset_bytes, file)
        };
        Ok(entries.iter().zip(self.descriptors).map(region).collect())
    }
}

/// A message of a hypervisor.
pub(super) fn message(request: FrontendReq, body: &[u8]) -> Vec<u8> {
    with_header(request.into(), 0, body)
}

fn with_header(request: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let length_bytes = u32::try_from(body.len()).unwrap_or(0);
    [Header { request, flags: VERSION | flags, length_bytes }.as_bytes(), body].concat()
}

/// Tell the hypervisor that the configuration space changed. It does not answer, and one that does not read is not waited for.
pub(super) fn tell_config_changed(channel: &UnixStream) -> io::Result<()> {
    let message = with_header(BackendReq::CONFIG_CHANGE_MSG.into(), 0, &[]);
    let sent = rustix::net::send(channel, &message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
    if sent == HEADER_BYTES { Ok(()) } else { Err(io::Error::from(io::ErrorKind::WriteZero)) }
}
