//! Doorbells: how a writer wakes a reader that sleeps.
//!
//! Towards the daemon a doorbell is an eventfd that the daemon watches edge-triggered and never reads. Towards the
//! client it is a socket pair, because a client could make a write to a shared eventfd block for ever (clear
//! O_NONBLOCK on the shared file description, fill the counter), and because a hang-up on it wakes a sleeping client
//! at once when the daemon dies. See docs/decisions/0003-doorbells.md.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::wait::has_woken_thread;

/// The ringing end of a client-to-daemon doorbell, or the daemon's watched end: the same eventfd. A clone is the same descriptor.
#[derive(Clone, Debug)]
pub struct EventDoorbell(Arc<OwnedFd>);

impl EventDoorbell {
    /// A new doorbell, not rung.
    ///
    /// # Errors
    /// The kernel's: no descriptor or memory is left.
    pub fn new() -> io::Result<Self> {
        Ok(Self::from_fd(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// The doorbell of an eventfd that the peer made; it should be non-blocking.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self(Arc::new(fd))
    }

    /// Ring. A full counter means that the doorbell has been rung already; the write blocks then if the file lost O_NONBLOCK.
    pub fn ring(&self) {
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
        has_woken_thread();
    }
}

impl AsFd for EventDoorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Wait until a descriptor is readable, at most `longest`, or without limit if that is `None`. A signal may end it early, so the
/// caller looks again.
///
/// # Errors
/// The kernel's, of poll(2).
pub fn await_readable(fd: impl AsFd, longest: Option<Duration>) -> io::Result<()> {
    let timeout = longest.and_then(|longest| Timespec::try_from(longest).ok());
    match rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// A doorbell towards the client or guest, as the daemon's queue rings it.
pub trait ClientDoorbell {
    /// Ring; never blocks.
    fn ring(&mut self);
}

impl ClientDoorbell for SocketDoorbell {
    fn ring(&mut self) {
        Self::ring(self);
    }
}

/// How often the two ends of a client's queue woke each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DoorbellCounts {
    /// Times that the sleeping daemon was woken.
    pub doorbells: u64,
    /// Times that requests were published and the sleeping daemon was not woken, because of the client's notification policy.
    pub suppressed: u64,
    /// Times that the daemon's doorbell was found rung.
    pub wakeups: u64,
    /// Of these, times that there was no completion.
    pub spurious: u64,
}

impl std::ops::AddAssign for DoorbellCounts {
    fn add_assign(&mut self, other: Self) {
        self.doorbells += other.doorbells;
        self.suppressed += other.suppressed;
        self.wakeups += other.wakeups;
        self.spurious += other.spurious;
    }
}

/// One end of a daemon-to-client doorbell. A clone is the same descriptor.
#[derive(Clone, Debug)]
pub struct SocketDoorbell(Arc<OwnedFd>);

/// Rings taken by one [`SocketDoorbell::drain`]. A correct peer rings once each time that we announced sleep.
const RINGS_AT_ONCE: u32 = 64;

impl SocketDoorbell {
    /// A new doorbell: the daemon's end and the client's end, which are alike.
    ///
    /// # Errors
    /// The kernel's: no descriptor or memory is left.
    pub fn pair() -> io::Result<(Self, Self)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self::from_fd(ours), Self::from_fd(theirs)))
    }

    /// The end of a doorbell that the peer made: a connected SEQPACKET socket.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self(Arc::new(fd))
    }

    /// Ring; never blocks. A full socket means that the doorbell has been rung already.
    pub fn ring(&self) {
        let _ = rustix::net::send(&*self.0, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        has_woken_thread();
    }

    /// Take the rings so far; `false` when the peer has closed its end or the socket has failed. If a peer rings faster than we
    /// read, some are left and wake us once more, without cause.
    pub fn drain(&self) -> bool {
        self.drain_noting(&mut false)
    }

    /// As [`drain`](Self::drain); sets `was_rung` if there was a ring.
    pub fn drain_noting(&self, was_rung: &mut bool) -> bool {
        let mut byte = [0_u8; 8];
        for _ in 0..RINGS_AT_ONCE {
            match rustix::net::recv(&*self.0, &mut byte, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return false,
                Ok(_) => *was_rung = true,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return true,
                Err(_) => return false,
            }
        }
        true
    }
}

impl AsFd for SocketDoorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
