//! What crate `vhost` does not do: name the request that comes next, and send word of a changed configuration.
//!
//! The crate wraps the socket of SET_BACKEND_REQ_FD in a type that cannot send CONFIG_CHANGE_MSG and does not give the socket back. That
//! request is therefore taken here, before the crate sees it.

use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketType, recv, recvmsg, sockopt,
};
use vhost::vhost_user::message::{BackendReq, FrontendReq};

/// Bytes of a header: request, flags, length of what follows; four bytes each.
const HEADER_BYTES: usize = 12;
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
        let [code, flags, _] = [0, 4, 8].map(|at| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]));
        Ok(Some(Self { code, needs_reply: flags & FLAG_NEED_REPLY != 0 }))
    }

    /// Does it bring the channel for our own requests?
    pub(super) fn brings_channel(self) -> bool {
        self.code == u32::from(FrontendReq::SET_BACKEND_REQ_FD)
    }

    /// For the log.
    pub(super) fn name(self) -> String {
        FrontendReq::try_from(self.code).map_or_else(|_| format!("request {}", self.code), |request| format!("{request:?}"))
    }

    /// Take the request that [`brings_channel`](Self::brings_channel), and answer it if `reply_ack` is in force.
    ///
    /// # Errors
    /// In words: it is no such message, or brings no Unix stream socket.
    pub(super) fn take_channel(self, stream: &UnixStream, reply_ack: bool) -> Result<UnixStream, String> {
        let channel = receive_socket(stream)?;
        if reply_ack && self.needs_reply {
            let mut answer = [0; HEADER_BYTES + 8];
            put_header(&mut answer, self.code, VERSION | FLAG_REPLY, 8);
            let mut writer = stream;
            writer.write_all(&answer).map_err(|error| format!("it does not take its answer: {error}"))?;
        }
        Ok(channel)
    }
}

fn receive_socket(stream: &UnixStream) -> Result<UnixStream, String> {
    let mut header = [0_u8; HEADER_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(stream, &mut [IoSliceMut::new(&mut header)], &mut control, RecvFlags::CMSG_CLOEXEC)
        .map_err(|error| error.to_string())?;
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let mut descriptors: Vec<_> = rights.flatten().collect();
    let length = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
    let (Some(socket), true, true) = (descriptors.pop(), descriptors.is_empty(), received.bytes == HEADER_BYTES && length == 0) else {
        return Err("it must bring one descriptor and nothing else".to_owned());
    };
    let is_stream = sockopt::socket_domain(&socket) == Ok(AddressFamily::UNIX) && sockopt::socket_type(&socket) == Ok(SocketType::STREAM);
    if is_stream { Ok(UnixStream::from(socket)) } else { Err("its descriptor must be a Unix stream socket".to_owned()) }
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
