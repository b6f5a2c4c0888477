//! Control messages with descriptors over a Unix SOCK_SEQPACKET socket: boundaries kept, half a message impossible.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::control::{MAX_DESCRIPTORS, MAX_MESSAGE_BYTES};
use crate::doorbell::await_readable;

/// Longest path a Unix socket address can hold, without the terminating zero byte.
pub const MAX_SOCKET_PATH_BYTES: usize = 107;

#[derive(Debug)]
pub struct Seqpacket(OwnedFd);

#[derive(Debug)]
pub struct Packet {
    pub bytes: Vec<u8>,
    /// The descriptors that came with them, close-on-exec.
    pub descriptors: Vec<OwnedFd>,
}

/// A socket address for `path`.
///
/// # Errors
/// The path is too long for a Unix socket; the message says how long it may be.
pub fn socket_address(path: &Path) -> io::Result<SocketAddrUnix> {
    let length = path.as_os_str().len();
    if length > MAX_SOCKET_PATH_BYTES {
        let text = format!(
            "socket path {} has {length} bytes; a Unix socket path holds at most {MAX_SOCKET_PATH_BYTES}; choose a shorter one",
            path.display()
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    Ok(SocketAddrUnix::new(path)?)
}

impl Seqpacket {
    pub fn connect(path: &Path) -> io::Result<Self> {
        let address = socket_address(path)?;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        rustix::net::connect(&socket, &address)?;
        Ok(Self(socket))
    }

    pub const fn from_fd(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Send one message with its descriptors; never blocks.
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        // The space is rounded up and would take a few more.
        let too_many = descriptors.len() > MAX_DESCRIPTORS;
        if too_many || !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "more descriptors than one message carries"));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = rustix::net::sendmsg(&self.0, &[IoSlice::new(bytes)], &mut ancillary, flags)?;
        if sent != bytes.len() {
            return Err(io::Error::new(io::ErrorKind::WriteZero, "control message cut short"));
        }
        Ok(())
    }

    /// Take one message if one is there; `None` when there is none yet.
    ///
    /// # Errors
    /// `UnexpectedEof` when the peer closed; `InvalidData` when the message is longer than allowed; `Other` when
    /// its descriptors did not fit this process's limit.
    pub fn try_receive(&self) -> io::Result<Option<Packet>> {
        self.try_receive_within(MAX_MESSAGE_BYTES)
    }

    /// As [`try_receive`](Self::try_receive), for other packets than those of control connections, of at most `max_bytes`.
    pub fn try_receive_within(&self, max_bytes: usize) -> io::Result<Option<Packet>> {
        let received = self.receive_once(max_bytes);
        let has_ended = received.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::UnexpectedEof);
        // A packet of 0 bytes ends the connection, too, whatever follows it.
        if !has_ended || !self.is_hung_up() {
            return received;
        }
        // The kernel may report the peer's hang-up before a message that was sent earlier: as the end, if both came while the read
        // looked into the queue, and then as a reset, if a message of ours was unread.
        (0..2).find_map(|_| self.receive_once(max_bytes).ok().flatten()).map_or(received, |packet| Ok(Some(packet)))
    }

    fn receive_once(&self, max_bytes: usize) -> io::Result<Option<Packet>> {
        let mut bytes = vec![0_u8; max_bytes];
        let mut space = [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = match rustix::net::recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags) {
            Ok(received) => received,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(None),
            Err(rustix::io::Errno::CONNRESET) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) => return Err(error.into()),
        };
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        if received.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "control message longer than the protocol allows"));
        }
        // The space is rounded up, so that one more than allowed may have fitted.
        if received.flags.contains(ReturnFlags::CTRUNC) || descriptors.len() > MAX_DESCRIPTORS {
            let text = "descriptors did not fit: raise the limit of open files (ulimit -n, or LimitNOFILE= in the unit)";
            return Err(io::Error::other(text));
        }
        bytes.truncate(received.bytes);
        Ok(Some(Packet { bytes, descriptors }))
    }

    pub fn receive(&self, timeout: Duration) -> io::Result<Packet> {
        let deadline = std::time::Instant::now() + timeout;
        loop {
            if let Some(packet) = self.try_receive()? {
                return Ok(packet);
            }
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            await_readable(self, Some(left))?;
        }
    }

    /// Has the peer closed its end? One system call.
    pub fn is_hung_up(&self) -> bool {
        let mut fds = [PollFd::new(&self.0, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let polled = rustix::event::poll(&mut fds, Some(&now));
        polled.is_ok_and(|count| count > 0)
            && fds[0].revents().intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR | PollFlags::NVAL)
    }
}

impl AsFd for Seqpacket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
