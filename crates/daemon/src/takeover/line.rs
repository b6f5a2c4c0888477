//! The connection between the two daemons of a takeover: packets of JSON with descriptors, whole or absent.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, Shutdown, SocketFlags, SocketType,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::wire::{Answer, Given};

/// Longest packet: a queue with a full histogram has a third of it.
const MAX_PACKET_BYTES: usize = 64 << 10;
/// Descriptors of one packet at most: a socket and its lock, a client and its channel, two doorbells.
const MAX_DESCRIPTORS: usize = 2;

/// Why a packet did not go, or come.
#[derive(Debug)]
pub(crate) enum LineError {
    /// The other daemon is gone, or has closed its end.
    Ended,
    /// It did not do its part in time.
    TimedOut,
    /// What came, or the machine, is not as it must be; in words.
    Wrong(String),
}

impl LineError {
    /// In words; `what` was to come, or to go.
    pub(crate) fn describe(self, what: &str) -> String {
        match self {
            Self::Ended => format!("the other daemon ended before {what}"),
            Self::TimedOut => {
                format!("the other daemon did not get to {what} in time; look whether it is stopped or the machine overloaded")
            }
            Self::Wrong(text) => format!("{what}: {text}"),
        }
    }
}

/// One end.
#[derive(Debug)]
pub(crate) struct Line(OwnedFd);

impl Line {
    /// Both ends.
    pub(crate) fn pair() -> std::io::Result<(Self, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self(ours), theirs))
    }

    /// The end that another daemon made.
    pub(crate) const fn from_fd(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Send a packet with its descriptors, before `deadline`.
    pub(crate) fn send(
        &self,
        packet: &impl Serialize,
        descriptors: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> Result<(), LineError> {
        let bytes = serde_json::to_vec(packet).map_err(|error| LineError::Wrong(format!("cannot be written down: {error}")))?;
        if bytes.len() > MAX_PACKET_BYTES || descriptors.len() > MAX_DESCRIPTORS {
            return Err(LineError::Wrong(format!(
                "{} bytes and {} descriptors do not fit a packet",
                bytes.len(),
                descriptors.len()
            )));
        }
        loop {
            let mut space = [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
                return Err(LineError::Wrong("descriptors do not fit a packet".to_owned()));
            }
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut ancillary, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                // Too many descriptors on their way: they are fewer once some were taken. There is no event for that.
                Err(Errno::TOOMANYREFS) => self.await_event(PollFlags::RDHUP, deadline.min(soon()))?,
                Err(Errno::AGAIN) => self.await_event(PollFlags::OUT, deadline)?,
                Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => return Err(LineError::Ended),
                Err(error) => return Err(LineError::Wrong(error.to_string())),
            }
            if Instant::now() >= deadline {
                return Err(LineError::TimedOut);
            }
        }
    }

    /// Take the next packet, before `deadline`.
    pub(crate) fn receive<T: DeserializeOwned>(&self, deadline: Instant) -> Result<(T, Vec<OwnedFd>), LineError> {
        loop {
            if let Some(received) = self.try_receive()? {
                return Ok(received);
            }
            if Instant::now() >= deadline {
                return Err(LineError::TimedOut);
            }
            self.await_event(PollFlags::IN, deadline)?;
        }
    }

    /// Take the next packet if it is there.
    pub(crate) fn try_receive<T: DeserializeOwned>(&self) -> Result<Option<(T, Vec<OwnedFd>)>, LineError> {
        let mut bytes = vec![0_u8; MAX_PACKET_BYTES];
        let mut space = [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut receive = || rustix::net::recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags);
        let received = match receive() {
            // The reset is reported before what was sent ahead of it.
            Err(Errno::CONNRESET) => receive(),
            other => other,
        };
        let received = match received {
            Ok(received) if received.bytes > 0 => received,
            Ok(_) | Err(Errno::CONNRESET) => return Err(LineError::Ended),
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(error) => return Err(LineError::Wrong(error.to_string())),
        };
        let rights = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(rights) => Some(rights),
            _ => None,
        });
        let descriptors: Vec<OwnedFd> = rights.flatten().collect();
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(LineError::Wrong(
                "descriptors did not fit; raise the limit of open files (ulimit -n, LimitNOFILE=)".to_owned(),
            ));
        }
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Err(LineError::Wrong("a packet is longer than any may be".to_owned()));
        }
        let packet = bytes.get(..received.bytes).unwrap_or_default();
        let packet = serde_json::from_slice(packet).map_err(|error| LineError::Wrong(format!("not understood: {error}")))?;
        Ok(Some((packet, descriptors)))
    }

    /// Take back what was handed over, and say why; `Ok`: too late, the other daemon has sent [`Answer::Taken`].
    ///
    /// The kernel decides, once: what the other sends comes before the shutdown, and is found here, or after it, and it learns that
    /// it was not sent.
    pub(crate) fn withdraw(&self, reason: &str) -> Result<(), ()> {
        let _ = rustix::net::shutdown(&self.0, Shutdown::Read);
        loop {
            match self.try_receive() {
                Ok(Some((Answer::Taken, _))) => return Ok(()),
                Ok(Some(_)) | Err(LineError::Wrong(_)) => {}
                Ok(None) | Err(_) => break,
            }
        }
        let _ = self.send(&Given::Refused { reason: reason.to_owned() }, &[], Instant::now());
        Err(())
    }

    /// Wait until the other end is closed, at most until `deadline`.
    pub(crate) fn await_end(&self, deadline: Instant) {
        while Instant::now() < deadline && matches!(self.try_receive::<serde_json::Value>(), Ok(_) | Err(LineError::Wrong(_))) {
            if self.await_event(PollFlags::IN, deadline).is_err() {
                return;
            }
        }
    }

    /// Wait for an event or the deadline, whichever comes first.
    fn await_event(&self, event: PollFlags, deadline: Instant) -> Result<(), LineError> {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(|error| LineError::Wrong(error.to_string()))?;
        match rustix::event::poll(&mut [PollFd::new(&self.0, event)], Some(&left)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(LineError::Wrong(error.to_string())),
        }
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn soon() -> Instant {
    Instant::now() + std::time::Duration::from_millis(1)
}
