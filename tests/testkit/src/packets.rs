//! Messages with descriptors over sockets, and waiting for what can be read.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, Result};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Descriptors of a message that the kernel takes.
const MOST: usize = 253;

pub fn send(socket: impl AsFd, bytes: &[u8], files: &[BorrowedFd<'_>]) -> Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(files.is_empty() || control.push(SendAncillaryMessage::ScmRights(files)), "at most {MOST} descriptors");
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
}

/// How many bytes came, 0 at the end, and what descriptors.
pub fn receive(socket: impl AsFd, into: &mut [u8]) -> Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(socket, &mut [IoSliceMut::new(into)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    Ok((received.bytes, rights.flatten().collect()))
}

/// Sleep until there is something to read, or the peer hangs up; false: neither.
pub fn is_readable(fd: impl AsFd, limit: Duration) -> bool {
    let limit = Timespec::try_from(limit).expect("short");
    loop {
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)) {
            Err(Errno::INTR) => {}
            ready => return ready == Ok(1),
        }
    }
}
