//! Bytes and descriptors over Unix stream sockets.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

const MAX_DESCRIPTORS: usize = 32;

/// Send all of `bytes`, with these descriptors.
///
/// # Errors
/// Of the socket; or it took only a part.
pub fn send(stream: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> std::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    let sent = sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    if sent == bytes.len() { Ok(()) } else { Err(std::io::ErrorKind::WriteZero.into()) }
}

/// Wait for some of `bytes`, and add the descriptors that come with them; returns how many bytes, 0 at the end.
pub(crate) fn receive(stream: &UnixStream, bytes: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let into = &mut [IoSliceMut::new(bytes)];
    let received = rustix::io::retry_on_intr(|| recvmsg(stream, into, &mut control, RecvFlags::CMSG_CLOEXEC))?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    Ok(received.bytes)
}
