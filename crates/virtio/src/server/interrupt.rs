//! Interrupting the guest: a write to an eventfd that the hypervisor shares with us.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;

/// An eventfd of the hypervisor's, to be written to.
#[derive(Debug)]
pub(super) struct Interrupt(OwnedFd);

impl Interrupt {
    pub(super) fn new(name: &str, fd: OwnedFd) -> Result<Self, String> {
        let refused = |errno| format!("the {name} descriptor cannot be used ({errno}); hand over an eventfd");
        let flags = rustix::fs::fcntl_getfl(&fd).map_err(refused)?;
        rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK).map_err(refused)?;
        Ok(Self(fd))
    }

    /// Never blocks: the hypervisor can make its eventfd blocking again and fill it, so it is asked first. A full one has long been
    /// raised.
    #[cold]
    pub(super) fn raise(&mut self) {
        let mut fds = [PollFd::new(&self.0, PollFlags::OUT)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0) && fds[0].revents().contains(PollFlags::OUT) {
            let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
        }
    }
}
